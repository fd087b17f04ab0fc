"""The steady state of a GPU just before something happened: its level, its noise, its step period."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isnan, sqrt
from statistics import fmean, median
from typing import Final

from ckpt_exporter.bubble.activity import COARSE_SECONDS, Power, Scale, scales, spacing_seconds
from ckpt_exporter.bubble.curves import Curve
from ckpt_exporter.bubble.settings import BubbleSettings
from ckpt_exporter.bubble.spans import Span, inside
from ckpt_exporter.bubble.track import Rows

# A stretch without work at least this long is a stop (a save, a crash, the start-up), not a part of a step.
STOP_SECONDS: Final = 8.0
# Rows so near to a stop still show its edge, averaged.
STOP_EDGE_SECONDS: Final = 1.5
MIN_PERIOD_SECONDS: Final = 0.5
MAX_PERIOD_SECONDS: Final = 30.0
PERIODIC: Final = 0.5
# What a steady state of coarse readings must have at least.
FEWEST_SAMPLES: Final = 10
# Readings further apart miss saves, or see them half as long or twice as long as they are.
MAX_SPACING_SECONDS: Final = 20.0
# Noise below this needs no smoothing: no step shows.
QUIET_DEVIATION: Final = 0.08


@dataclass(frozen=True, slots=True)
class Baseline:
    """Steady state at ``t``: a ``scale`` on which it is 1, ``deviation`` and ``mean`` around it.

    ``period`` is the step period in seconds that curves must be smoothed over, None if no step shows;
    ``high`` is the level of the working part of a step; ``stale``: it is of an earlier time.
    """

    t: float
    scale: Scale
    deviation: float
    mean: float
    seconds: float
    high: float
    period: float | None = None
    stale: bool = False


def without_stops(curve: Curve, masks: Sequence[Span]) -> list[int]:
    """Return the indices of the samples outside ``masks`` and outside stretches without work."""
    if not len(curve):
        return []
    first, last = curve.times[0], curve.times[-1]
    low = [
        (a, b) for a, b in curve.below(0.5, first, last) if b - a >= STOP_SECONDS or a == first or b == last
    ]
    stops = [*masks, *((a - STOP_EDGE_SECONDS, b + STOP_EDGE_SECONDS) for a, b in low)]
    stops = [(a, b) for a, b in stops if b >= first and a <= last]
    if not stops:
        return list(range(len(curve)))
    return [i for i, t in enumerate(curve.times) if not inside(t, stops)]


def find_baseline(
    rows: Rows, power: Power, masks: Sequence[Span], start: float, settings: BubbleSettings
) -> Baseline | None:
    """Find the steady state in rows before ``start``: the last minute of it, from the best source.

    ``masks`` are other saves. Returns None if too little is steady, or nothing shows work.
    """
    rows = rows.until(start - settings.guard_seconds)
    spacing = spacing_seconds(rows.times)
    settings = for_spacing(spacing, settings)
    if len(rows) < settings.min_samples or spacing > MAX_SPACING_SECONDS:
        return None
    for scale in scales(rows, power):
        curve = scale.curve(rows)
        found = _settle(curve, without_stops(curve, masks), scale, start, settings)
        if found is not None:
            return found
    return None


def for_spacing(seconds: float, settings: BubbleSettings) -> BubbleSettings:
    """Return the settings for readings so far apart: of coarse ones fewer must do, but not few."""
    if seconds <= COARSE_SECONDS:
        return settings
    fewer = max(FEWEST_SAMPLES, int(settings.baseline_seconds / seconds))
    return replace(settings, min_samples=min(settings.min_samples, fewer))


def _settle(
    curve: Curve, steady: list[int], scale: Scale, start: float, settings: BubbleSettings
) -> Baseline | None:
    recent = start - settings.guard_seconds - settings.baseline_seconds
    near = [i for i in steady if curve.times[i] >= recent]
    chosen = near if len(near) >= settings.min_samples else steady
    if len(chosen) < settings.min_samples:
        return None
    times = [curve.times[i] for i in chosen]
    values = [curve.values[i] for i in chosen]
    period = find_period(times, values) if _deviation(values) > QUIET_DEVIATION * fmean(values) else None
    smooth = curve.smoothed(period) if period else curve
    level = median([smooth.values[i] for i in chosen])
    if level <= 0.1:
        return None
    relative = [smooth.values[i] / level for i in chosen]
    if median([abs(value - 1) for value in relative]) > settings.max_spread:
        return None
    high = sorted(values)[int(0.75 * len(values))] / level
    length = len(times) * median([b - a for a, b in pairwise(times)])
    return Baseline(
        times[-1], scale.normalised(level), _deviation(relative), fmean(relative), length, high, period
    )


def _deviation(values: Sequence[float]) -> float:
    mean = fmean(values)
    return sqrt(fmean([(value - mean) ** 2 for value in values]))


def find_period(times: Sequence[float], values: Sequence[float]) -> float | None:
    """Find the period of steps by autocorrelation over lags of 0.5 to 30 s; None if no step shows.

    A few periods at once are as good: a moving mean over them is as flat.
    """
    interval = max(0.25, median(b - a for a, b in pairwise(times)))
    curve = Curve(times, values)
    n = int((times[-1] - times[0]) / interval) + 1
    mean = fmean(values)
    series = [curve.at(times[0] + i * interval) - mean for i in range(n)]
    power = sum(value * value for value in series) / n
    longest = min(int(MAX_PERIOD_SECONDS / interval), n // 2)
    if power <= 0 or longest < 3:
        return None
    found = [1.0]
    for lag in range(1, longest + 1):
        products = sum(a * b for a, b in zip(series, series[lag:], strict=False))
        found.append(products / (n - lag) / power)
    return _first_peak(found, interval)


def _first_peak(found: Sequence[float], interval: float) -> float | None:
    peaks = [
        lag
        for lag in range(2, len(found) - 1)
        if found[lag - 1] < found[lag] >= found[lag + 1] and lag * interval >= MIN_PERIOD_SECONDS
    ]
    best = max((found[lag] for lag in peaks), default=0.0)
    if best <= PERIODIC:
        return None
    lag = next(lag for lag in peaks if found[lag] >= 0.85 * best)
    left, middle, right = found[lag - 1], found[lag], found[lag + 1]
    bend = left - 2 * middle + right
    return (lag + (0.5 * (left - right) / bend if bend else 0.0)) * interval


def stale(baseline: Baseline | None, now: float, settings: BubbleSettings) -> Baseline | None:
    """Return an earlier baseline as a makeshift, unless there is none or it is too old."""
    if baseline is None or now - baseline.t > settings.stale_seconds or isnan(baseline.deviation):
        return None
    return replace(baseline, stale=True)
