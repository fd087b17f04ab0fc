"""How often the GPU driver is asked, and how long its answers take: the pure part of the sampler."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

# Edges for the duration of one driver call: microseconds on a quiet driver, milliseconds behind its lock.
CALL_BOUNDS_SECONDS: Final = (1e-5, 1e-4, 5e-4, 1e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.5, 1.0, 5.0)
# Calls serialise on a lock that the training needs, too: slower answers mean a longer queue.
SLOW_CALL_SECONDS: Final = 0.020
CALM_CALL_SECONDS: Final = 0.010
CALM_TICKS: Final = 10
LOWEST_HZ: Final = 0.2


class CallTimes:
    """Durations of driver calls: bucket counts since the last ``take``, and those of the current tick."""

    __slots__ = ("_counts", "_sum", "tick")

    def __init__(self) -> None:
        self._counts = [0] * (len(CALL_BOUNDS_SECONDS) + 1)
        self._sum = 0.0
        self.tick: list[float] = []

    def note(self, seconds: float) -> None:
        """Count one call."""
        self._counts[bucket_of(seconds)] += 1
        self._sum += seconds
        self.tick.append(seconds)

    def take(self) -> tuple[list[int], float]:
        """Return the counts and their sum in seconds since the last take, and begin a new tick."""
        counts, total = self._counts, self._sum
        self._counts, self._sum = [0] * len(counts), 0.0
        self.tick.clear()
        return counts, total


def bucket_of(seconds: float) -> int:
    """Return the index of the bucket that a duration belongs to; an edge belongs to the bucket below it."""
    return bisect_left(CALL_BOUNDS_SECONDS, seconds)


def percentile_95(values: Sequence[float]) -> float:
    """Return the nearest-rank 95th percentile; 0 of nothing."""
    if not values:
        return 0.0
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]


class Pace:
    """The sampling rate: as wanted while the driver answers fast, halved for every tick in which it does not.

    Never below 0.2 Hz (or the wanted rate, if that is lower); doubled again after ten calm ticks.
    """

    def __init__(self, idle_hz: float, saving_hz: float) -> None:
        self._idle_hz = idle_hz
        self._saving_hz = max(idle_hz, saving_hz)
        self._halvings = 0
        self._calm = 0

    def interval_seconds(self, *, saving: bool) -> float:
        """Return the time from one tick's beginning to the next one's."""
        wanted = self._saving_hz if saving else self._idle_hz
        return 1.0 / max(min(LOWEST_HZ, wanted), wanted / float(2**self._halvings))

    def note_tick(self, call_seconds: Sequence[float]) -> None:
        """Take in the durations of one tick's calls."""
        slowest = percentile_95(call_seconds)
        self._calm = self._calm + 1 if slowest < CALM_CALL_SECONDS else 0
        if slowest > SLOW_CALL_SECONDS:
            if self._saving_hz > LOWEST_HZ * 2**self._halvings:
                self._halvings += 1
        elif self._calm >= CALM_TICKS and self._halvings:
            self._halvings, self._calm = self._halvings - 1, 0
