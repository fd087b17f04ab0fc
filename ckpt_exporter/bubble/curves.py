"""A quantity over time, known at samples and taken as straight between them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate


class Curve:
    """Values at ascending times. Constant beyond both ends; integrals are exact for the straight pieces."""

    def __init__(self, times: Sequence[float], values: Sequence[float]) -> None:
        self.times = list(times)
        self.values = list(values)
        pairs = zip(self.times, self.times[1:], self.values, self.values[1:], strict=False)
        self._sums = [0.0, *accumulate((b - a) * (u + v) / 2 for a, b, u, v in pairs)]

    def __len__(self) -> int:
        return len(self.times)

    def at(self, t: float) -> float:
        """Return the value at a moment."""
        times, values = self.times, self.values
        i = bisect_right(times, t)
        if i == 0:
            return values[0]
        if i == len(times):
            return values[-1]
        a, b = times[i - 1], times[i]
        return values[i - 1] + (values[i] - values[i - 1]) * (t - a) / (b - a)

    def _sum_to(self, t: float) -> float:
        i = bisect_right(self.times, t)
        if i == 0:
            return (t - self.times[0]) * self.values[0]
        return self._sums[i - 1] + (t - self.times[i - 1]) * (self.values[i - 1] + self.at(t)) / 2

    def integral(self, start: float, end: float) -> float:
        """Return the area below the curve between two moments (value times seconds)."""
        return self._sum_to(end) - self._sum_to(start) if self.times and end > start else 0.0

    def mapped(self, change: Callable[[float], float]) -> Curve:
        """Return the curve with every value changed."""
        return Curve(self.times, [change(value) for value in self.values])

    def smoothed(self, width: float) -> Curve:
        """Return the moving mean over ``width`` seconds, centred; shorter at both ends."""
        if not self.times or width <= 0:
            return self
        first, last = self.times[0], self.times[-1]
        values = []
        for t in self.times:
            half = min(width / 2, t - first, last - t)
            values.append(self.integral(t - half, t + half) / (2 * half) if half > 0 else self.at(t))
        return Curve(self.times, values)

    def between(self, start: float, end: float) -> tuple[int, int]:
        """Return the range of indices of the samples from ``start`` to ``end``."""
        return bisect_left(self.times, start), bisect_right(self.times, end)

    def below(self, threshold: float, start: float, end: float) -> Iterator[tuple[float, float]]:
        """Find the stretches below a threshold, their ends interpolated, within the given time."""
        low, high = self.between(start, end)
        began: float | None = None
        for i in range(low, high):
            if self.values[i] < threshold and began is None:
                began = self._crossing(i - 1, threshold) if i > low else self.times[i]
            elif self.values[i] >= threshold and began is not None:
                yield began, self._crossing(i - 1, threshold)
                began = None
        if began is not None:
            yield began, self.times[high - 1]

    def _crossing(self, i: int, threshold: float) -> float:
        a, b = self.times[i], self.times[i + 1]
        u, v = self.values[i], self.values[i + 1]
        return a + (b - a) * (threshold - u) / (v - u) if u != v else a
