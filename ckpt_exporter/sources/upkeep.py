"""How often a tree is compared with the disk although no event asks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ckpt_exporter.sources.entry import WatchSettings

Look = Literal["folders", "files"]


class Upkeep:
    """Chooses the looks at one configured directory by what those before have cost.

    A look at the folders asks each for its time and lists those that changed; a look at the files asks every
    known file as well. Each kind may use its share of a core, all ``directories()`` together, and a
    thousandth of the time: a file system that answers slowly is asked less often.
    """

    def __init__(self, settings: WatchSettings, directories: Callable[[], int]) -> None:
        self._settings = settings
        self._directories = directories
        self._due: dict[Look, float] = {"folders": float("-inf"), "files": float("-inf")}
        self._kinds: tuple[Look, ...] = ("files", "folders")
        self._last: Look | None = None
        self._began = self._busy = self._waited = 0.0

    def choose(self, now: float, *, remote: bool) -> Look | None:
        """Begin the look that is due, if one is; the one before must have ended.

        ``remote``: other hosts change this tree unseen, so its folders are worth more and its files, each a
        question to a server, nothing.
        """
        self._settle(remote=remote)
        self._kinds = ("folders",) if remote else ("files", "folders")
        soon = now + self._settings.gather_seconds  # a wake-up is shared with what is due a moment later
        for kind in self._kinds:
            if self._due[kind] <= soon:
                self._last, self._began = kind, now
                return kind
        return None

    def spent(self, busy_seconds: float, waited_seconds: float) -> None:
        """Book one slice of the look at hand: processor time, and time in all."""
        self._busy += busy_seconds
        self._waited += waited_seconds

    def next_due(self, now: float) -> float:
        """Return when to choose again; what a look at hand costs is known only then."""
        if self._last is not None:
            return now + self._settings.reconcile_seconds
        return max(now, min(self._due[kind] for kind in self._kinds))

    def _settle(self, *, remote: bool) -> None:
        if self._last is None:
            return
        settings = self._settings
        share = settings.remote_upkeep_share if remote else settings.upkeep_share
        pause = max(
            settings.reconcile_seconds,
            self._busy * self._directories() / share,
            self._waited * settings.reconcile_cost_factor,
        )
        self._due[self._last] = self._began + pause
        self._last, self._busy, self._waited = None, 0.0, 0.0
