"""Stretches of lost activity as they happen, and what outside a save may have caused them (an estimate)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from ckpt_exporter.bubble.activity import IDLE_UTIL
from ckpt_exporter.bubble.settings import BubbleSettings
from ckpt_exporter.model import StallCause

LOW: Final = 0.5
# A kernel that waits shows up as busy even where the GPU averages it with a little work.
BUSY_UTIL: Final = 0.5


@dataclass(frozen=True, slots=True)
class Episode:
    """A stretch of low activity: its area in seconds, and how long which sign of a cause was seen.

    ``absent_seconds``: no process held the GPU; ``attended``: a process was known to hold it all the time.
    """

    start: float
    end: float
    seconds: float = 0.0
    busy_seconds: float = 0.0
    idle_seconds: float = 0.0
    absent_seconds: float = 0.0
    attended: bool = True
    recovered: bool = False

    @property
    def length(self) -> float:
        """Seconds from edge to edge."""
        return self.end - self.start

    def since(self, t: float) -> Episode:
        """Return the part from a moment on, as if all of it were alike."""
        share = (self.end - t) / self.length
        return replace(
            self,
            start=t,
            seconds=self.seconds * share,
            busy_seconds=self.busy_seconds * share,
            idle_seconds=self.idle_seconds * share,
            absent_seconds=self.absent_seconds * share,
        )

    def cause(self, settings: BubbleSettings) -> StallCause:
        """Judge what stopped the work."""
        if self.length > settings.long_stall_seconds or self.absent_seconds > 0:
            return "other"
        if self.busy_seconds > self.length / 2:
            return "communication"
        return "data_loading" if self.idle_seconds > self.length / 2 else "other"

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

    @property
    def low_since(self) -> float | None:
        """When the present stretch of low activity began, None if there is none."""
        return self._open.start if self._open else None

    def feed(self, t: float, activity: float, util: float | None, processes: int | None) -> Episode | None:
        """Take in one reading; return the stretch that it ended."""
        last, self._last = self._last, (t, activity)
        if activity < LOW:
            self.last_low = t
        if self._open is None:
            if activity < LOW:
                self._open = Episode(self._crossing(last, t, activity), t)
                self._grow(last, t, activity, util, processes)
            return None
        self._grow(last, t, activity, util, processes)
        if activity < LOW:
            return None
        return self._close(self._crossing(last, t, activity))

    def cut(self) -> Episode | None:
        """End the present stretch where the readings end: what comes after is not known."""
        ended, self._open, self._last = self._open, None, None
        return ended

    def _crossing(self, last: tuple[float, float] | None, t: float, activity: float) -> float:
        if last is None or last[1] == activity:
            return t
        return last[0] + (t - last[0]) * (LOW - last[1]) / (activity - last[1])

    def _grow(
        self,
        last: tuple[float, float] | None,
        t: float,
        activity: float,
        util: float | None,
        processes: int | None,
    ) -> None:
        now = self._open
        if now is None or last is None:
            return
        step = t - last[0]
        lost = 1 - (min(1.0, max(0.0, last[1])) + min(1.0, max(0.0, activity))) / 2
        self._open = replace(
            now,
            end=t,
            seconds=now.seconds + lost * step,
            busy_seconds=now.busy_seconds + (step if util is not None and util >= BUSY_UTIL else 0.0),
            idle_seconds=now.idle_seconds + (step if util is not None and util <= IDLE_UTIL else 0.0),
            absent_seconds=now.absent_seconds + (step if processes == 0 else 0.0),
            attended=now.attended and bool(processes),
        )

    def _close(self, end: float) -> Episode | None:
        ended, self._open = self._open, None
        return replace(ended, end=end, recovered=True) if ended else None
