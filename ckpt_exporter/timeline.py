"""The latest finished saves of one directory, and what bytes and GPUs did around them.

Nothing here runs while no save is near: write rates are kept as they arrive, and activity is taken from the
readings that the bubble detector holds anyway, once when a save ends, once after it, and for a reader that
asks in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
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


class Timeline:
    """Mean GPU activity around the latest saves of one directory, and windows on it and on the write rate."""

    def __init__(self, rates: Strip) -> None:
        self._rates = rates
        self._activity = Strip()
        self._gpus = 0
        self._gpus_known = False
        self._taken_until = -inf
        self._tails: list[Span] = []  # of saves that ended lately: from their end to the end of their margin

    def save_ended(self, save: Save, readings: Readings, now: float) -> None:
        """Take in what GPUs did before and during a save, as long as their readings are there."""
        self._take(save.start - MARGIN_SECONDS, now, readings)
        self._tails.append((save.end, save.end + MARGIN_SECONDS))

    def due(self, now: float) -> bool:
        """Tell whether the time after a save is over and can be taken in."""
        return bool(self._tails) and now >= self._tails[0][1] + UNSETTLED_SECONDS

    def take_tails(self, readings: Readings, now: float) -> None:
        """Take in what GPUs have done since the latest saves."""
        for start, end in self._tails:
            self._take(start, min(now, end + UNSETTLED_SECONDS), readings)
        self._tails = [tail for tail in self._tails if now < tail[1] + UNSETTLED_SECONDS]

    def windows(
        self, finished: Sequence[RecentSave], open_since: Iterable[float], readings: Readings, now: float
    ) -> tuple[TimelineWindow, ...]:
        """Return the windows around the latest finished (newest first) and all open saves, oldest first."""
        begun = list(open_since)
        for start in begun:
            self._take(start - MARGIN_SECONDS, now, readings)
        self.take_tails(readings, now)
        spans = [(entry.save.start, entry.save.end) for entry in finished[:MAX_DRAWN_SAVES]]
        spans = _joined([*spans, *((start, now) for start in begun)], now)
        total = sum(end - start for start, end in spans)
        return tuple(self._window(start, end, _bin_seconds(total)) for start, end in spans)

    def _take(self, start: float, end: float, readings: Readings) -> None:
        """Add mean activity for a stretch of time, as far as it has not been taken."""
        start = max(start, self._taken_until)
        span = end - UNSETTLED_SECONDS - start
        count = min(MAX_TAKEN_BINS, int(span / FINE_SECONDS))
        if count <= 0:
            return
        width = FINE_SECONDS * int(span / FINE_SECONDS) / count
        # A reading before the first bin tells from when on its successor holds.
        found, known = readings(start - UNSETTLED_SECONDS, end)
        if found:
            self._gpus, self._gpus_known = len(found), known
        for i, activity in enumerate(mean_activity(found, start, width, count)):
            if activity is not None:
                self._activity.add(start + i * width, start + (i + 1) * width, activity * width)
        self._taken_until = start + count * width

    def _window(self, start: float, end: float, width: float) -> TimelineWindow:
        first = floor(start / width) * width  # on one grid at every look, so that a picture does not flicker
        count = max(1, floor((end - first) / width + 1e-9))
        rates = self._rates.binned(first, width, count)
        activities = self._activity.binned(first, width, count)
        return TimelineWindow(
            start=first,
            bin_seconds=width,
            write_rates=tuple(amount / width for amount, _ in rates),
            # A bin that was hardly read shows nothing rather than a mean of a moment.
            activities=tuple(
                amount / seconds if seconds >= width / 4 else None for amount, seconds in activities
            ),
            gpus=self._gpus,
            gpus_known=self._gpus_known,
        )


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
