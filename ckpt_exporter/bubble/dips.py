"""Where activity fell: edges, area, and which part of a save each part of the area fell into."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isinf
from statistics import median
from typing import Final

from ckpt_exporter.bubble.baseline import Baseline
from ckpt_exporter.bubble.curves import Curve
from ckpt_exporter.bubble.spans import Span, clip, inside, subtract, total
from ckpt_exporter.model import BubblePhase, Save

HALF: Final = 0.5
# Dips closer than this are one: a rank that wakes up for a moment.
MERGE_SECONDS: Final = 1.0
MIN_DIP_SECONDS: Final = 1.0
# A dip shorter than the averaging window never falls below half; it must stand out from the noise instead.
NOTCH_DEPTH: Final = 0.15
NOTCH_SIGMAS: Final = 5.0
MIN_NOTCH_AREA: Final = 0.15
MAX_NOTCH_SIGMA: Final = 0.6
FLOOR_NOISE: Final = 0.05
# A deficit must be this many standard errors, and at least this share, to count as drag.
CLEAR_SIGMAS: Final = 3.0
LEAST_DRAG: Final = 0.005
# Where finding a drag's ends takes more smoothing than this, they are not known.
MAX_DRAG_SMOOTHING_SECONDS: Final = 20.0


@dataclass(frozen=True, slots=True)
class Dip:
    """``start`` and ``end`` are the edges; between ``first`` and ``last`` lies all of its area, ramps too.

    ``recovered`` is False where the readings end before the activity came back, ``begun`` where they begin
    after it fell.
    """

    start: float
    end: float
    first: float
    last: float
    begun: bool = True
    recovered: bool = True


class Activity:
    """Activity of one GPU around one save: as read, smoothed over a step, and what is lost of it."""

    def __init__(self, raw: Curve, baseline: Baseline) -> None:
        self.baseline = baseline
        self.raw = raw
        self.smooth = raw.smoothed(baseline.period) if baseline.period else raw
        # Noise around a known floor is even: cut off at 0, its upper half alone would count as work.
        least = -FLOOR_NOISE if baseline.scale.floor_w is not None and not baseline.scale.doubt else 0.0
        self.lost = self.smooth.mapped(lambda value: 1.0 - min(1.0, max(least, value)))
        times = raw.times
        self.interval = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else 0.0

    @property
    def window(self) -> float:
        """Seconds over which each reading is a mean; the readings' distance where it is not told."""
        told = self.baseline.scale.window_s
        return self.interval if told is None or isinf(told) else told

    @property
    def pad(self) -> float:
        """How far the ramps reach beyond an edge, in seconds."""
        return self.window / 2 + (self.baseline.period or 0.0) / 2 + max(self.interval, 0.25)

    def dips(self, start: float, end: float) -> list[Dip]:
        """Find the dips between two moments, in time order."""
        if not len(self.raw):
            return []
        deep = [dip for dip in self._deep(start, end) if dip.end - dip.start >= MIN_DIP_SECONDS]
        covered = [(dip.first, dip.last) for dip in deep]
        notches = [n for n in self._notches(start, end) if not clip(covered, n.first, n.last)]
        return sorted([*deep, *notches], key=lambda dip: dip.start)

    def _deep(self, start: float, end: float) -> Iterator[Dip]:
        merged: list[list[float]] = []
        for a, b in self.smooth.below(HALF, start, end):
            if merged and a - merged[-1][1] < MERGE_SECONDS:
                merged[-1][1] = b
            else:
                merged.append([a, b])
        low, high = self.smooth.between(start, end)
        if high <= low:
            return
        first, last = self.smooth.times[low], self.smooth.times[high - 1]
        for a, b in merged:
            x, y = self._sharpened(a, b)
            begun, recovered = a > first, b < last
            yield Dip(
                x, y, (a - self.pad if begun else a), (b + self.pad if recovered else b), begun, recovered
            )

    def _sharpened(self, start: float, end: float) -> Span:
        """Look up the edges in the readings themselves where smoothing over a step blurred them."""
        if not self.baseline.period:
            return self._half_way(start, end)
        half, reach = HALF * self.baseline.high, self.baseline.period
        pieces = list(self.raw.below(half, start - reach, end + reach))
        if not pieces:
            return start, end
        a, b = max(pieces, key=lambda piece: piece[1] - piece[0])
        # Work of less than a moment inside the dip must not cut it short.
        return min(a, start + reach), max(b, end - reach)

    def _half_way(self, start: float, end: float) -> Span:
        """Move the edges to half of the dip's own depth: a ramp's middle, also where some work goes on."""
        low, high = self.smooth.between(start, end)
        if high <= low:
            return start, end
        inside = median(self.smooth.values[low:high])
        pieces = self.smooth.below((1.0 + max(0.0, inside)) / 2, start - self.pad, end + self.pad)
        own = [(a, b) for a, b in pieces if b >= start and a <= end]
        return (min(start, own[0][0]), max(end, own[-1][1])) if own else (start, end)

    def _notches(self, start: float, end: float) -> Iterator[Dip]:
        sigma = self.baseline.deviation
        depth = max(NOTCH_DEPTH, NOTCH_SIGMAS * sigma)
        if depth > MAX_NOTCH_SIGMA:
            return
        widest = self.window + (self.baseline.period or 0.0) + 2 * MIN_DIP_SECONDS
        for a, b in self.smooth.below(1.0 - depth, start, end):
            if b - a > widest or self._width(a, b, widest) > widest:
                continue
            first, last = a - self.pad, b + self.pad
            area = self.lost.integral(first, last)
            if area >= MIN_NOTCH_AREA and self._stops(a, b, area):
                middle = self._centre(first, last)
                yield Dip(middle - area / 2, middle + area / 2, first, last)

    def _width(self, start: float, end: float, reach: float) -> float:
        """Return how wide a notch is at half of its depth: noise cuts notches into work that is slowed."""
        low, high = self.smooth.between(start, end)
        half = (1.0 + min(self.smooth.values[low:high], default=1.0)) / 2
        pieces = self.smooth.below(half, start - reach, end + reach)
        return max((b - a for a, b in pieces if a <= end and b >= start), default=0.0)

    def _stops(self, start: float, end: float, area: float) -> bool:
        """Tell whether a notch is work that stopped, spread out by averaging, not work that slowed."""
        spread = self.window + (self.baseline.period or 0.0)
        return area >= HALF * max(0.0, end - start - spread)

    def _centre(self, first: float, last: float) -> float:
        steps = 40
        moments = [first + (last - first) * (i + 0.5) / steps for i in range(steps)]
        weights = [self.lost.at(t) for t in moments]
        return sum(t * w for t, w in zip(moments, weights, strict=True)) / (sum(weights) or 1.0)

    def area(self, spans: Iterable[Span]) -> float:
        """Return the activity lost in these spans, in seconds of full work."""
        return sum(self.lost.integral(a, b) for a, b in spans)

    def doubt(self, dip: Dip) -> float:
        """Return by how many seconds a dip's area may be wrong: edges between readings, a guessed floor."""
        scale = self.baseline.scale
        edges = 0.0
        if self.window < self.interval / 2:
            edges = sum(self._distance(edge) / 2 for edge in (dip.start, dip.end))
        return edges + scale.doubt * self.area([(dip.first, dip.last)])

    def _distance(self, t: float) -> float:
        """Return how far apart the readings are around a moment."""
        low, _ = self.raw.between(t, t)
        i = min(max(low, 1), len(self.raw) - 1)
        return self.raw.times[i] - self.raw.times[i - 1]

    def drag(self, spans: Sequence[Span], min_seconds: float) -> float:
        """Return the activity lost in spans where it stays above half, if clearly beyond the noise.

        Beyond three standard errors of the difference between the means there and before the save.
        """
        seconds = total(spans)
        return self._deficit(spans) * seconds if seconds >= min_seconds else 0.0

    def slowed(self, start: float, end: float, taken: Sequence[Span]) -> Span:
        """Return from when to when, around a save, activity is clearly below its steady state.

        At least from ``start`` to ``end``; ``taken`` is not looked at. The readings are smoothed until their
        noise is small beside half of the deficit, the level at which the ends lie; where that is too much,
        or activity does not come back, that end is the save's.
        """
        depth = self._deficit(subtract([(start, end)], taken))
        if depth <= 0:
            return start, end
        width = self._apart * (2 * CLEAR_SIGMAS * self.baseline.deviation / depth) ** 2
        curve = self._without(taken)
        if width > MAX_DRAG_SMOOTHING_SECONDS or not len(curve):
            return start, end
        curve = curve.smoothed(width) if width > self._apart else curve
        pad, (first, last) = self.pad + width / 2, (curve.times[0], curve.times[-1])
        own = [
            (a, b)
            for a, b in curve.below(self.baseline.mean - depth / 2, first, last)
            if a <= end and b >= start
        ]
        began = min((a - pad for a, _ in own if a > first), default=start)
        ended = max((b + pad for _, b in own if b < last), default=end)
        return min(start, began), max(end, ended)

    @property
    def _apart(self) -> float:
        """How far apart two readings must be to be independent."""
        return max(self.interval, self.window, self.baseline.period or 0.0, 0.1)

    def _deficit(self, spans: Sequence[Span]) -> float:
        """Return by how much the mean activity in spans is below the steady state's; 0 if not clearly so."""
        seconds, base, apart = total(spans), self.baseline, self._apart
        if seconds <= 0:
            return 0.0
        deficit = base.mean - sum(self.smooth.integral(a, b) for a, b in spans) / seconds
        error = base.deviation * (apart / seconds + apart / max(base.seconds, apart)) ** 0.5
        return deficit if deficit > max(CLEAR_SIGMAS * error, LEAST_DRAG) else 0.0

    def _without(self, taken: Sequence[Span]) -> Curve:
        """Return the smoothed readings outside some spans, with straight lines across these."""
        pairs = zip(self.smooth.times, self.smooth.values, strict=True)
        kept = [(t, value) for t, value in pairs if not inside(t, taken)]
        return Curve([t for t, _ in kept], [value for _, value in kept])


def phase_spans(save: Save) -> dict[BubblePhase, list[Span]]:
    """Split all time by what a save did: before its first byte, bytes flowing, pausing, after the last."""
    flow = [span for span in save.flow if span[1] > span[0]] or [(save.start, save.end)]
    first, last = min(a for a, _ in flow), max(b for _, b in flow)
    far = float("inf")
    return {
        "before_write": [(-far, first)],
        "writing": [span for i, span in enumerate(flow) for span in subtract([span], flow[:i])],
        "write_gap": subtract([(first, last)], flow),
        "after_write": [(last, far)],
    }


def by_phase(
    activity: Activity, seconds: float, edges: Sequence[Span], save: Save
) -> dict[BubblePhase, float]:
    """Split a dip's area by the phases of a save.

    Only what lies between the edges tells the shares: averaging spreads some of the area beyond them.
    """
    areas = {
        phase: sum(activity.area(clip(edges, a, b)) for a, b in stretches)
        for phase, stretches in phase_spans(save).items()
    }
    whole = sum(areas.values())
    if whole <= 0:
        return {phase: seconds if phase == "writing" else 0.0 for phase in areas}
    return {phase: seconds * area / whole for phase, area in areas.items()}
