"""The scans of one watched directory: one after the other, in slices, so that events are read in between."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ckpt_exporter.sources.agenda import NEVER
from ckpt_exporter.sources.watches import OutageError

if TYPE_CHECKING:
    from ckpt_exporter.sources.entry import Entry
    from ckpt_exporter.sources.upkeep import Upkeep


class Scans:
    """The comparisons with the disk that wait, oldest first, each with its reason.

    ``upkeep`` books what those without a reason (``periodic``) cost. ``done`` is called with the reason of a
    scan that is through, ``outage`` when its file system did not answer.
    """

    def __init__(
        self,
        entry: Entry,
        upkeep: Upkeep,
        done: Callable[[str], None],
        outage: Callable[[None, OutageError], None],
    ) -> None:
        self._entry = entry
        self._upkeep = upkeep
        self._done = done
        self._outage = outage
        self._queue: deque[tuple[Iterator[None], str]] = deque()
        # From the first slice of a scan until none is left.
        self.under_way = False

    @property
    def waiting(self) -> bool:
        """Tell whether there is a scan that is not through."""
        return bool(self._queue)

    def waits_for(self, reason: str) -> bool:
        """Tell whether a scan with this reason is not through."""
        return any(left == reason for _, left in self._queue)

    def add(self, steps: Iterator[None], reason: str) -> None:
        """Add a scan that goes on a little with every step."""
        self._queue.append((steps, reason))

    def clear(self) -> None:
        """Forget what is not through."""
        self._queue.clear()

    def run(self, _now: float) -> float:
        """Go on with the oldest scan for one slice; return when the next slice is due."""
        if not self._queue:
            return NEVER
        steps, reason = self._queue[0]
        begin, busy = self._entry.clock(), self._entry.shared.busy()
        try:
            for _ in steps:
                if self._entry.clock() - begin > self._entry.settings.scan_slice_seconds:
                    break
            else:
                self._queue.popleft()
                self._done(reason)
        except OutageError as error:
            self._queue.popleft()
            self._outage(None, error)
        if reason == "periodic":
            self._upkeep.spent(self._entry.shared.busy() - busy, self._entry.clock() - begin)
        self.under_way = self.waiting
        self._entry.beat()
        return self._entry.clock() if self._queue else NEVER
