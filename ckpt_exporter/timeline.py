"""The latest finished saves of one directory, and what bytes and GPUs did around them.

Nothing here runs while no save is near: write rates are kept as they arrive, and activity is taken from the
readings that the bubble detector holds anyway, once when a save ends, once after it, and for a reader that
asks in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, inf
from typing import Final

from ckpt_exporter.bubble.activity import Scale
from ckpt_exporter.bubble.trace import mean_activity
from ckpt_exporter.bubble.track import Rows
from ckpt_exporter.detect.progress import joined_late
from ckpt_exporter.detect.strip import FINE_SECONDS, Strip
from ckpt_exporter.model import Bubble, RecentSave, Save, TimelineWindow, Writers

MAX_RECENT_SAVES: Final = 20
# Saves that are drawn; of those before them only the figures are kept.
MAX_DRAWN_SAVES: Final = 3
# What is drawn before a save's first byte and after its end.
MARGIN_SECONDS: Final = 40.0
# The latest readings may be late by their averaging, so they are left for the next time.
UNSETTLED_SECONDS: Final = 1.5
MAX_BINS: Final = 240
MAX_TAKEN_BINS: Final = 300

# Readings of a directory's GPUs between two moments, and whether they are known to be its run's.
Readings = Callable[[float, float], tuple[list[tuple[Scale, Rows]], bool]]
Span = tuple[float, float]


class RecentSaves:
    """The latest finished saves of one directory, in the order in which they ended."""

    def __init__(self) -> None:
        self._saves: list[RecentSave] = []

    def enter(self, save: Save, run: Writers | None) -> None:
        """Add a finished save; files that came late join the save that they belong to."""
        if save.late:
            self._join(save)
            return
        ours = run is not None and (not save.pids or not set(save.pids).isdisjoint(run.pids))
        entry = RecentSave(replace(save, flow=(), pids=()), run=run.run if run is not None and ours else None)
        # A save may be judged later than one that ended after it.
        self._saves.append(entry)
        self._saves.sort(key=lambda known: known.save.end)
        del self._saves[:-MAX_RECENT_SAVES]

    def enter_bubble(self, bubble: Bubble) -> None:
        """Add what a save cost to it."""
        for i, entry in enumerate(self._saves):
            save = entry.save
            # Files that came late may have moved the save's end since.
            if save.path == bubble.save_path and save.start <= bubble.save_end <= save.end:
                self._saves[i] = replace(entry, bubble=bubble)

    def newest_first(self) -> tuple[RecentSave, ...]:
        """Return a copy."""
        return tuple(reversed(self._saves))

    def _join(self, late: Save) -> None:
        for i in reversed(range(len(self._saves))):
            entry = self._saves[i]
            if entry.save.path == late.path:
                joined = replace(joined_late(entry.save, late), flow=())
                self._saves[i] = replace(entry, save=joined)
                return


@dataclass(frozen=True, slots=True)
class Stretch:
    """Readings of a stretch of time whose mean activity has not been taken in yet."""

    start: float
    bin_seconds: float
    count: int
    readings: list[tuple[Scale, Rows]]
    known: bool

    @property
    def end(self) -> float:
        """The end of the last bin."""
        return self.start + self.count * self.bin_seconds

    def activities(self) -> list[float | None]:
        """Return the mean activity in each bin."""
        return mean_activity(self.readings, self.start, self.bin_seconds, self.count)


@dataclass(frozen=True, slots=True)
class Drawing:
    """All that windows are made from, copied, so that making them holds nobody up."""

    spans: list[Span]
    rates: Strip
    activity: Strip
    gpus: int
    gpus_known: bool

    def windows(self) -> tuple[TimelineWindow, ...]:
        """Return the windows, oldest first."""
        width = _bin_seconds(sum(end - start for start, end in self.spans))
        return tuple(self._window(start, end, width) for start, end in self.spans)

    def _window(self, start: float, end: float, width: float) -> TimelineWindow:
        first = floor(start / width) * width  # on one grid at every look, so that a picture does not flicker
        count = max(1, floor((end - first) / width + 1e-9))
        amounts, _ = self.rates.binned(first, width, count)
        worked, read = self.activity.binned(first, width, count)
        return TimelineWindow(
            start=first,
            bin_seconds=width,
            write_rates=tuple(amount / width for amount in amounts),
            # A bin that was hardly read shows nothing rather than a mean of a moment.
            activities=tuple(
                work / seconds if seconds >= width / 4 else None
                for work, seconds in zip(worked, read, strict=True)
            ),
            gpus=self.gpus,
            gpus_known=self.gpus_known,
        )


class Timeline:
    """Mean GPU activity around the latest saves of one directory, beside the write rate ``rates``."""

    def __init__(self, rates: Strip) -> None:
        self._rates = rates
        self._activity = Strip()
        self._gpus = 0
        self._gpus_known = False
        self._taken_until = -inf
        self._tails: list[Span] = []  # of saves that ended lately: from their end to the end of their margin

    def save_ended(self, save: Save, readings: Readings, now: float) -> None:
        """Take in what GPUs did before and during a save, as long as their readings are there."""
        for stretch in self._stretches([(save.start - MARGIN_SECONDS, now)], readings):
            self.enter(stretch, stretch.activities())
        self._tails.append((save.end, save.end + MARGIN_SECONDS))

    def due(self, now: float) -> bool:
        """Tell whether the time after a save is over and can be taken in."""
        return bool(self._tails) and now >= self._tails[0][1] + UNSETTLED_SECONDS

    def take_tails(self, readings: Readings, now: float) -> None:
        """Take in what GPUs have done since the latest saves."""
        for stretch in self.missing((), readings, now):
            self.enter(stretch, stretch.activities())
        self._tails = [tail for tail in self._tails if now < tail[1] + UNSETTLED_SECONDS]

    def missing(self, open_since: Iterable[float], readings: Readings, now: float) -> list[Stretch]:
        """Return what a reader needs that has not been taken in: around open saves and after the latest."""
        wanted = [(start - MARGIN_SECONDS, now) for start in open_since]
        wanted += [(start, min(now, end + UNSETTLED_SECONDS)) for start, end in self._tails]
        return self._stretches(wanted, readings)

    def enter(self, stretch: Stretch, activities: Sequence[float | None]) -> None:
        """Take in a stretch, unless another has been there before."""
        if stretch.start < self._taken_until:
            return
        if stretch.readings:
            self._gpus, self._gpus_known = len(stretch.readings), stretch.known
        width = stretch.bin_seconds
        for i, activity in enumerate(activities):
            if activity is not None:
                begin = stretch.start + i * width
                self._activity.add(begin, begin + width, activity * width)
        self._taken_until = stretch.end

    def drawing(self, finished: Sequence[RecentSave], open_since: Iterable[float], now: float) -> Drawing:
        """Return the windows around the latest finished (newest first) and all open saves, to be made."""
        spans = [(entry.save.start, entry.save.end) for entry in finished[:MAX_DRAWN_SAVES]]
        spans = _joined([*spans, *((start, now) for start in open_since)], now)
        return Drawing(spans, self._rates.copy(), self._activity.copy(), self._gpus, self._gpus_known)

    def _stretches(self, wanted: Iterable[Span], readings: Readings) -> list[Stretch]:
        """Return what of these stretches has not been taken in, each moment once."""
        taken_until = self._taken_until
        found = []
        for begin, end in sorted(wanted):
            start = max(begin, taken_until)
            steps = int((end - UNSETTLED_SECONDS - start) / FINE_SECONDS)
            if steps <= 0:
                continue
            count = min(MAX_TAKEN_BINS, steps)
            # A reading before the first bin tells from when on its successor holds.
            rows, known = readings(start - UNSETTLED_SECONDS, end)
            stretch = Stretch(start, FINE_SECONDS * steps / count, count, rows, known)
            taken_until = stretch.end
            found.append(stretch)
        return found


def _joined(spans: list[Span], now: float) -> list[Span]:
    """Widen stretches by the margin and join those that meet, oldest first."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        wide = (start - MARGIN_SECONDS, min(now, end + MARGIN_SECONDS))
        if joined and wide[0] <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], wide[1]))
        else:
            joined.append(wide)
    return joined


def _bin_seconds(total_seconds: float) -> float:
    """Return the narrowest bins of which there are few enough, a multiple of the finest."""
    return FINE_SECONDS * max(1, ceil(total_seconds / FINE_SECONDS / MAX_BINS))
