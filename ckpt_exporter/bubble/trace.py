"""Mean activity of some GPUs over time, for a timeline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from ckpt_exporter.bubble.activity import Scale
from ckpt_exporter.bubble.track import Rows

# A reading stands for the time up to half-way to its neighbours, but not over a gap.
REACH_SECONDS: Final = 1.0
# More readings than this in a bin change its mean by less than a picture shows.
READINGS_PER_BIN: Final = 8


def mean_activity(
    readings: Iterable[tuple[Scale, Rows]], start: float, bin_seconds: float, count: int
) -> list[float | None]:
    """Return the mean activity (0..1) in each of ``count`` bins; None where no GPU was read."""
    sums, covered = [0.0] * count, [0.0] * count
    for scale, rows in readings:
        stride = _stride(len(rows), count)
        times, values = scale.points(rows if stride == 1 else rows.picked(range(0, len(rows), stride)))
        for (begin, end), value in zip(_stretches(times), values, strict=True):
            activity = min(1.0, max(0.0, value))
            first = max(0, int((begin - start) // bin_seconds))
            last = min(count - 1, int((end - start) // bin_seconds))
            for i in range(first, last + 1):
                edge = start + i * bin_seconds
                inside = min(end, edge + bin_seconds) - max(begin, edge)
                if inside > 0:
                    sums[i] += activity * inside
                    covered[i] += inside
    return [total / time if time > 0 else None for total, time in zip(sums, covered, strict=True)]


def _stretches(times: Sequence[float]) -> Iterator[tuple[float, float]]:
    """Return for each reading the time that it stands for; at both ends as far as on its other side."""
    halves = [min(REACH_SECONDS, (b - a) / 2) for a, b in pairwise(times)]
    before = [halves[0] if halves else REACH_SECONDS, *halves]
    after = [*halves, halves[-1] if halves else REACH_SECONDS]
    for t, left, right in zip(times, before, after, strict=True):
        yield t - left, t + right


def _stride(rows: int, bins: int) -> int:
    return max(1, rows // (READINGS_PER_BIN * bins))
