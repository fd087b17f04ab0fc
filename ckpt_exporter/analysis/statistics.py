"""Medians, quantiles and bootstrap intervals; the same numbers on every run.

Intervals are percentile bootstrap intervals (Efron 1979), widened for small samples as T. Hesterberg proposes
("What Teachers Should Know About the Bootstrap", The American Statistician 69, 2015): the plain percentile
interval is too narrow by about sqrt((n-1)/n) and by the normal against Student's t quantile, so the
percentiles taken are Phi(-sqrt(n/(n-1)) * t(level, n-1)) and its complement.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Final

Statistic = Callable[[Sequence[float]], float]

LEVEL: Final = 0.95
SEED: Final = 20_26
# Widened intervals of five values read the 0.1st percentile: enough resamples to have one.
_RESAMPLES: Final = 5_000
# Statistics other than the median draw every value anew; this bounds the numbers drawn, and so the time.
_DRAWS: Final = 200_000
_MIN_RESAMPLES: Final = 1_000
_MAX_RESAMPLES: Final = 2_000


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and between what it lies at ``level`` confidence; the bounds are None below two values."""

    estimate: float
    low: float | None
    high: float | None
    level: float = LEVEL


def quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile, linear between order statistics (Hyndman and Fan's type 7). Raises ValueError."""
    if not values:
        raise ValueError("no values")
    return _sorted_quantile(sorted(values), share)


def _sorted_quantile(ordered: Sequence[float], share: float) -> float:
    at = (len(ordered) - 1) * share
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


def median(values: Sequence[float]) -> float:
    """Return the middle value."""
    return quantile(values, 0.5)


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean."""
    return math.fsum(values) / len(values)


def interval(values: Sequence[float], statistic: Statistic = median, *, level: float = LEVEL) -> Interval:
    """Return a statistic of the values with its bootstrap interval."""
    estimate = statistic(values)
    if len(values) < 2:
        return Interval(estimate, None, None, level)
    resampled = sorted(_resampled(values, statistic, _resamples(len(values), statistic), 0))
    tail = _tail(len(values), level)
    return Interval(estimate, _sorted_quantile(resampled, tail), _sorted_quantile(resampled, 1 - tail), level)


def ratio_interval(
    numerator: Sequence[float],
    denominator: Sequence[float],
    statistic: Statistic = median,
    *,
    level: float = LEVEL,
) -> Interval:
    """Return statistic(numerator) / statistic(denominator) with its bootstrap interval.

    Both samples are drawn anew, independently of each other; the widening is that of the smaller one.
    """
    estimate = _ratio(statistic(numerator), statistic(denominator))
    smaller = min(len(numerator), len(denominator))
    if smaller < 2:
        return Interval(estimate, None, None, level)
    count = _resamples(len(numerator) + len(denominator), statistic)
    above = _resampled(numerator, statistic, count, 1)
    below = _resampled(denominator, statistic, count, 2)
    resampled = sorted(map(_ratio, above, below))
    tail = _tail(smaller, level)
    return Interval(estimate, _sorted_quantile(resampled, tail), _sorted_quantile(resampled, 1 - tail), level)


def _resampled(values: Sequence[float], statistic: Statistic, count: int, stream: int) -> list[float]:
    """Return the statistic of ``count`` resamples; ``stream`` tells independent draws apart."""
    if statistic is median:
        ordered = sorted(values)
        return [(ordered[i] + ordered[j]) / 2 for i, j in _median_places(len(values), count, stream)]
    rng = random.Random(SEED + stream)
    return [statistic(rng.choices(values, k=len(values))) for _ in range(count)]


@lru_cache(maxsize=32)
def _median_places(size: int, count: int, stream: int) -> tuple[tuple[int, int], ...]:
    """Return between which two of the ordered values the median of each resample lies.

    A resample of n values is n uniform draws u, each standing for the value at floor(n u). The k-th smallest
    draw is Beta(k, n + 1 - k), and given it the next one is the least of n - k draws above it: that is the
    bootstrap's own distribution, without drawing and sorting n values each time.
    """
    rng = random.Random(SEED + stream)
    k = (size + 1) // 2
    places = []
    for _ in range(count):
        lower = rng.betavariate(k, size + 1 - k)
        upper = lower
        if size % 2 == 0:
            upper = 1 - (1 - lower) * rng.random() ** (1 / (size - k))
        places.append((min(int(size * lower), size - 1), min(int(size * upper), size - 1)))
    return tuple(places)


def _ratio(above: float, below: float) -> float:
    return above / below if below else math.inf


def _resamples(size: int, statistic: Statistic) -> int:
    if statistic is median:
        return _RESAMPLES
    return max(_MIN_RESAMPLES, min(_MAX_RESAMPLES, _DRAWS // size))


def _tail(count: int, level: float) -> float:
    """Return the percentile to read instead of (1 - level) / 2, for ``count`` values."""
    wide = math.sqrt(count / (count - 1)) * student_quantile(1 - (1 - level) / 2, count - 1)
    return NormalDist().cdf(-wide)


@lru_cache(maxsize=256)
def student_quantile(share: float, freedom: int) -> float:
    """Return the quantile of Student's t distribution for ``share`` above one half."""
    low, high = 0.0, 1.0
    while _student_cdf(high, freedom) < share:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_cdf(middle, freedom) < share else (low, middle)
    return (low + high) / 2


def _student_cdf(t: float, freedom: int) -> float:
    """Return P(T <= t) for t >= 0 by the finite series (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    cos2 = math.cos(angle) ** 2
    odd = freedom % 2 == 1
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for k in range(1 if odd else 0, freedom - 1, 2):
        total += term
        term *= cos2 * (k + 1) / (k + 2)
    both = 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
    return 0.5 + both / 2
