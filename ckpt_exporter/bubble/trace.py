"""Mean activity of some GPUs over time, for a timeline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ckpt_exporter.bubble.activity import Scale
from ckpt_exporter.bubble.track import Rows

# A reading stands for the time since the one before it, but not over a gap.
HOLD_SECONDS: Final = 2.0
# More readings than this in a bin change its mean by less than a picture shows.
READINGS_PER_BIN: Final = 8


def mean_activity(
    readings: Iterable[tuple[Scale, Rows]], start: float, bin_seconds: float, count: int
) -> list[float | None]:
    """Return the mean activity (0..1) in each of ``count`` bins; None where no GPU was read."""
    sums, covered = [0.0] * count, [0.0] * count
    for scale, rows in readings:
        kept = rows.picked(range(0, len(rows), _stride(len(rows), count)))
        curve = scale.curve(kept)
        before = curve.times[0] - HOLD_SECONDS if len(curve) else 0.0
        for t, value in zip(curve.times, curve.values, strict=True):
            begin, before = max(before, t - HOLD_SECONDS), t
            activity = min(1.0, max(0.0, value))
            first = max(0, int((begin - start) // bin_seconds))
            last = min(count - 1, int((t - start) // bin_seconds))
            for i in range(first, last + 1):
                edge = start + i * bin_seconds
                inside = min(t, edge + bin_seconds) - max(begin, edge)
                if inside > 0:
                    sums[i] += activity * inside
                    covered[i] += inside
    return [total / time if time > 0 else None for total, time in zip(sums, covered, strict=True)]


def _stride(rows: int, bins: int) -> int:
    return max(1, rows // (READINGS_PER_BIN * bins))
