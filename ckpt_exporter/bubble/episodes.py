"""Stretches of lost activity as they happen, and what the GPU itself showed meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from ckpt_exporter.bubble.activity import IDLE_UTIL, SPIN_UTIL
from ckpt_exporter.bubble.settings import BubbleSettings

LOW: Final = 0.5
# A kernel that waits shows up as busy even where the GPU averages it with a little work.
BUSY_UTIL: Final = 0.5
# What a spinning GPU may show of activity: the floor of its power is known to a tenth of the limit only.
SPIN_ACTIVITY: Final = 0.25
# How fast the usual traffic between GPUs is forgotten.
USUAL_SECONDS: Final = 60.0
# Bytes per second; where usually less goes, no collective goes that way, and that it ceased says nothing.
LEAST_USUAL: Final = 10e6


@dataclass(frozen=True, slots=True)
class Seen:
    """What one reading shows beside activity; None unknown. ``moved``: bytes per second between GPUs."""

    util: float | None = None
    processes: int | None = None
    moved: float | None = None


@dataclass(frozen=True, slots=True)
class Episode:
    """A stretch of low activity: its area in seconds, and how long which sign of a cause was seen.

    ``busy_seconds``: kernels ran for most of the time; ``spin_seconds``: of these, all the time and without
    any work; ``idle_seconds``: no kernels; ``absent_seconds``: no process held the GPU; ``attended``: a
    process was known to hold it all the time. ``moved_bytes`` went between GPUs in ``moved_seconds``, where
    ``usual_moved`` (bytes per second) is what goes there while it works.
    """

    start: float
    end: float
    seconds: float = 0.0
    busy_seconds: float = 0.0
    spin_seconds: float = 0.0
    idle_seconds: float = 0.0
    absent_seconds: float = 0.0
    moved_bytes: float = 0.0
    moved_seconds: float = 0.0
    usual_moved: float | None = None
    attended: bool = True
    recovered: bool = False

    @property
    def length(self) -> float:
        """Seconds from edge to edge."""
        return self.end - self.start

    @property
    def moved_share(self) -> float | None:
        """What went between GPUs, as a share of what is usual there; None unknown."""
        if (self.usual_moved or 0.0) < LEAST_USUAL or self.moved_seconds < self.length / 2:
            return None
        return self.moved_bytes / self.moved_seconds / (self.usual_moved or 1.0)

    def since(self, t: float) -> Episode:
        """Return the part from a moment on, as if all of it were alike."""
        share = (self.end - t) / self.length
        return replace(
            self,
            start=t,
            seconds=self.seconds * share,
            busy_seconds=self.busy_seconds * share,
            spin_seconds=self.spin_seconds * share,
            idle_seconds=self.idle_seconds * share,
            absent_seconds=self.absent_seconds * share,
            moved_bytes=self.moved_bytes * share,
            moved_seconds=self.moved_seconds * share,
        )

    def grown(self, t: float, step: float, lost: float, activity: float, seen: Seen) -> Episode:
        """Return the stretch with one reading more, at ``t`` and ``step`` seconds after the one before."""
        util, moved = seen.util, seen.moved
        spins = util is not None and util >= SPIN_UTIL and activity <= SPIN_ACTIVITY
        return replace(
            self,
            end=t,
            seconds=self.seconds + lost * step,
            busy_seconds=self.busy_seconds + (step if util is not None and util >= BUSY_UTIL else 0.0),
            spin_seconds=self.spin_seconds + (step if spins else 0.0),
            idle_seconds=self.idle_seconds + (step if util is not None and util <= IDLE_UTIL else 0.0),
            absent_seconds=self.absent_seconds + (step if seen.processes == 0 else 0.0),
            moved_bytes=self.moved_bytes + (moved * step if moved is not None else 0.0),
            moved_seconds=self.moved_seconds + (step if moved is not None else 0.0),
            attended=self.attended and bool(seen.processes),
        )

    def counts(self, settings: BubbleSettings) -> bool:
        """Tell whether a run lost this time: not one that ended, nor a GPU that nobody used for long."""
        if self.length < settings.stall_seconds:
            return False
        if self.attended:
            return True
        return self.recovered and self.length <= settings.restart_seconds


class StallWatch:
    """Follow one GPU's activity, reading by reading."""

    def __init__(self) -> None:
        self.last_low = float("-inf")
        self._open: Episode | None = None
        self._last: tuple[float, float] | None = None
        self._usual_moved: float | None = None

    @property
    def low_since(self) -> float | None:
        """When the present stretch of low activity began, None if there is none."""
        return self._open.start if self._open else None

    def feed(self, t: float, activity: float, seen: Seen) -> Episode | None:
        """Take in one reading; return the stretch that it ended."""
        last, self._last = self._last, (t, activity)
        if activity < LOW:
            self.last_low = t
        if self._open is None:
            if activity < LOW:
                self._open = Episode(self._crossing(last, t, activity), t, usual_moved=self._usual_moved)
                self._grow(last, t, activity, seen)
            elif last is not None:
                self._learn(t - last[0], seen)
            return None
        self._grow(last, t, activity, seen)
        if activity < LOW:
            return None
        return self._close(self._crossing(last, t, activity))

    def cut(self) -> Episode | None:
        """End the present stretch where the readings end: what comes after is not known."""
        ended, self._open, self._last = self._open, None, None
        return ended

    def _learn(self, step: float, seen: Seen) -> None:
        if seen.moved is not None:
            weight = min(1.0, step / USUAL_SECONDS)
            before = self._usual_moved
            self._usual_moved = seen.moved if before is None else before + weight * (seen.moved - before)

    def _crossing(self, last: tuple[float, float] | None, t: float, activity: float) -> float:
        if last is None or last[1] == activity:
            return t
        return last[0] + (t - last[0]) * (LOW - last[1]) / (activity - last[1])

    def _grow(self, last: tuple[float, float] | None, t: float, activity: float, seen: Seen) -> None:
        now = self._open
        if now is None or last is None:
            return
        step = t - last[0]
        lost = 1 - (min(1.0, max(0.0, last[1])) + min(1.0, max(0.0, activity))) / 2
        self._open = now.grown(t, step, lost, activity, seen)

    def _close(self, end: float) -> Episode | None:
        ended, self._open = self._open, None
        return replace(ended, end=end, recovered=True) if ended else None
