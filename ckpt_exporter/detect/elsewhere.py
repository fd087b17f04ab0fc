"""Saves that other hosts make in a shared directory, from what looks at its names and times tell.

The same layouts and rules as for local saves decide what is a checkpoint and when it is committed. What this
host writes takes part only by its signs of commit: any node may commit a checkpoint that many write.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from ckpt_exporter.detect.inventory import Inventory
from ckpt_exporter.detect.saves import SaveDetector
from ckpt_exporter.detect.server_clock import ServerClock
from ckpt_exporter.model import (
    DetectSettings,
    DirectorySettings,
    FileEvent,
    Progress,
    RemoteFile,
    RemoteLook,
    Save,
)

# Writers of other hosts can't be asked whether they still hold a file, so their pauses get more time.
QUIET_FACTOR = 3.0
# Without a look for so long, what was being written is not known to go on.
LOST_SECONDS = 120.0
MAX_NAMES = 20_000
MAX_ROUND = 50_000
_Value = TypeVar("_Value")


class ElsewhereDetector:
    """Turn looks at one shared directory into the saves that other hosts made there.

    Facts of a round of looks are judged together when it is over, in the order of the file server's times:
    those are brought to our clock, and never beyond what the looks themselves prove. Nothing here reads a
    clock.
    """

    def __init__(self, directory: DirectorySettings, settings: DetectSettings) -> None:
        self._saves = SaveDetector(directory, _patient(settings))
        self._clock = ServerClock()
        self._unix_minus_t = 0.0
        self._round: list[RemoteFile] = []
        # Files that may still be written, with the two looks between which they last were.
        self._open: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._local: OrderedDict[str, None] = OrderedDict()
        self._made: OrderedDict[str, float] = OrderedDict()
        # All that was done elsewhere before this moment is known; None before the first round.
        self.known_until: float | None = None
        self._looked_at = float("-inf")

    def reconfigure(self, directory: DirectorySettings, settings: DetectSettings) -> None:
        """Go on under new settings of the same path."""
        self._saves.reconfigure(directory, _patient(settings))

    # --- what this host does ----------------------------------------------------------------------------

    def note_local(self, fact: FileEvent | Progress) -> None:
        """Take in what this host does: the files that it writes are no other host's."""
        if not self.looking:
            return  # whoever goes on writing shows again
        if isinstance(fact, Progress):
            if fact.writers:
                self._claim(fact.path)
        elif fact.event == "moved":
            if fact.path is not None and fact.to is not None:
                self._rename_local(fact)
        elif fact.event == "deleted":
            if fact.path is not None:
                self._local.pop(fact.path, None)
        elif (not fact.initial or fact.event == "open") and fact.local and not fact.is_dir and fact.path:
            self._claim(fact.path)

    def _claim(self, path: str) -> None:
        if path not in self._local:
            self._saves.release(path)  # a look was faster than the event
            self._open.pop(path, None)
        _put(self._local, path, None)

    def _rename_local(self, event: FileEvent) -> None:
        path, to = event.path or "", event.to or ""
        if event.is_dir:
            prefix = path + "/"
            for old in [name for name in self._local if name.startswith(prefix)]:
                del self._local[old]
                _put(self._local, to + old[len(path) :], None)
        elif path in self._local or not event.found:
            self._local.pop(path, None)
            self._claim(to)

    # --- what looks tell --------------------------------------------------------------------------------

    def feed(self, fact: RemoteFile | RemoteLook) -> list[Save]:
        """Take in one fact; return the saves of other hosts that ended."""
        if isinstance(fact, RemoteFile):
            if len(self._round) < MAX_ROUND:
                self._round.append(fact)
            return []
        return self._judge(fact)

    def tick(self, now: float) -> None:
        """Give up what was being written when the looks ceased to come back."""
        if now - self._looked_at > LOST_SECONDS and self._saves.saving:
            self._saves = SaveDetector(self._saves.directory, self._saves.settings)
            self._open.clear()

    def open_saves(self) -> dict[str, float]:
        """Return the paths of the saves that other hosts are writing, with their starts."""
        if not self._saves.saving:
            return {}
        return {save.path: save.start for save in self._saves.open_saves(self.known_until or 0.0)}

    @property
    def looking(self) -> bool:
        """Tell whether this directory is looked at; most are local, and need no memory for it."""
        return bool(self._round) or self.known_until is not None

    @property
    def inventory(self) -> Inventory:
        """What other hosts' saves left on disk."""
        return self._saves.inventory

    def offset(self, unix_minus_t: float) -> float | None:
        """Return the file server's clock minus this node's, in seconds; None while nothing is known."""
        offset = self._clock.offset(unix_minus_t)
        return None if offset is None else offset - unix_minus_t

    # --- one round --------------------------------------------------------------------------------------

    def _judge(self, look: RemoteLook) -> list[Save]:
        facts, self._round = self._round, []
        self._unix_minus_t = look.unix - look.t
        for fact in facts:
            if fact.event == "changed" and fact.changed_unix is not None and fact.since is not None:
                self._clock.observe(fact.changed_unix, fact.since, fact.t)
        moments = _Moments(facts, self)
        events: list[FileEvent | Progress] = []
        given: dict[str, float] = {}  # names that renames gave, and when
        for fact in facts:
            told = [_not_before(event, given) for event in self._events(fact, moments)]
            if told and fact.event == "moved" and fact.to is not None:
                given[fact.to] = told[0].t
            events += told
        saves: list[Save] = []
        for event in sorted(events, key=lambda event: event.t):
            saves += self._saves.feed(event)
        self.known_until, self._looked_at = look.since, look.t
        saves += self._saves.tick(look.since)
        return [_as_elsewhere(save) for save in saves if not save.late]

    def here(self, server_unix: float | None) -> float | None:
        """Convert a time of the file server to our clock; None while its clock is not known."""
        offset = self._clock.offset(self._unix_minus_t)
        return None if server_unix is None or offset is None else server_unix - offset

    def _events(self, fact: RemoteFile, moments: _Moments) -> Iterable[FileEvent | Progress]:
        if fact.is_dir:
            return self._folder_events(fact, moments)
        if fact.event == "gone":
            self._open.pop(fact.path, None)
            return (FileEvent(moments.named(fact), "deleted", fact.path, found=True),)
        if fact.event == "moved":
            return self._moved(fact, moments)
        return self._file_events(fact, moments)

    def _file_events(self, fact: RemoteFile, moments: _Moments) -> Iterable[FileEvent | Progress]:
        written = moments.written(fact)
        if fact.since is None:
            return (_event(fact, fact.t, "create", initial=True, modified=self.here(fact.modified_unix)),)
        if fact.path in self._local:
            return (_event(fact, written, "create", local=False, modified=written),)
        if fact.event == "found":
            begun = min(moments.begun(fact, self._made), written)
            _put(self._open, fact.path, (fact.since, fact.t))
            return (_event(fact, begun, "create", started=begun, modified=written),)
        if fact.event == "changed":
            return self._changed(fact, written)
        looks = self._open.pop(fact.path, None)
        if looks is None:
            return ()
        written = moments.between(fact.modified_unix, *looks)
        return (_event(fact, written, "close_write", modified=written),)

    def _changed(self, fact: RemoteFile, written: float) -> Iterable[FileEvent | Progress]:
        known = fact.path in self._open
        _put(self._open, fact.path, (fact.t if fact.since is None else fact.since, fact.t))
        if known:
            return (Progress(written, fact.path, fact.size or 0, position=fact.size, modified=written),)
        return (replace(_event(fact, written, "open"), found=False),)

    def _moved(self, fact: RemoteFile, moments: _Moments) -> Iterable[FileEvent]:
        to, t = fact.to or "", moments.named(fact)
        since = fact.t if fact.since is None else fact.since
        looks = self._open.pop(fact.path, (since, fact.t))
        if to in self._local or fact.path in self._local:
            return (replace(_event(fact, t, "create", local=False), path=to),)
        _put(self._open, to, looks)
        written = moments.between(fact.modified_unix, *looks)
        return (replace(_event(fact, t, "moved", started=written, modified=written), to=to),)

    def _folder_events(self, fact: RemoteFile, moments: _Moments) -> Iterable[FileEvent]:
        if fact.event in ("changed", "same") or fact.since is None:
            return ()
        t = moments.named(fact)
        if fact.event == "found":
            _put(self._made, fact.path, t)
            return (FileEvent(t, "create", fact.path, is_dir=True, found=True),)
        prefix = fact.path + "/"
        held = {path: looks for path, looks in self._open.items() if path.startswith(prefix)}
        for path in held:
            del self._open[path]
        if fact.event == "gone":
            return (FileEvent(t, "deleted", fact.path, is_dir=True, found=True),)
        for path, looks in held.items():
            _put(self._open, (fact.to or "") + path[len(fact.path) :], looks)
        return (FileEvent(t, "moved", fact.path, to=fact.to, is_dir=True, found=True),)


class _Moments:
    """When what one round of looks found has happened, on our clock."""

    def __init__(self, facts: Iterable[RemoteFile], clock: ElsewhereDetector) -> None:
        self._clock = clock
        self._changes: dict[str, int] = {}
        self._folders: dict[str, float | None] = {}
        for fact in facts:
            if fact.is_dir and fact.event in ("found", "changed"):
                self._folders[fact.path] = fact.modified_unix
            if fact.event in ("found", "gone", "moved"):
                for folder in {_parent(path) for path in (fact.path, fact.to) if path}:
                    self._changes[folder] = self._changes.get(folder, 0) + 1

    def named(self, fact: RemoteFile) -> float:
        """Return when a name came, went or was given: its folder's time tells of the only change."""
        folder = _parent(fact.to or fact.path)
        last = self._clock.here(self._folders.get(folder))
        if fact.event == "found" and fact.born_unix is not None:
            return _within(self._clock.here(fact.born_unix), fact, fact.t)
        if self._changes.get(folder, 0) == 1:
            return _within(last, fact, fact.t)
        changed = self._clock.here(fact.changed_unix)
        known = [t for t in (last, changed) if t is not None]
        return _within(min(known, default=None), fact, fact.t)

    def written(self, fact: RemoteFile) -> float:
        """Return when a file was last written."""
        return _within(self._clock.here(fact.modified_unix), fact, fact.t)

    def between(self, server_unix: float | None, first: float, last: float) -> float:
        """Convert a time of the server of which two looks are known to enclose it."""
        t = self._clock.here(server_unix)
        return last if t is None else min(max(t, first), last)

    def begun(self, fact: RemoteFile, made: OrderedDict[str, float]) -> float:
        """Return when a file that was found had been made."""
        if fact.born_unix is not None:
            return _within(self._clock.here(fact.born_unix), fact, fact.t)
        folder = _parent(fact.path)
        since = fact.t if fact.since is None else fact.since
        if made.get(folder, since) > since:
            return made[folder]  # the first file of a new folder comes right after it
        if self._changes.get(folder, 0) == 1 and folder in self._folders:
            return self.named(fact)
        return (since + self.written(fact)) / 2


def _not_before(event: FileEvent | Progress, given: dict[str, float]) -> FileEvent | Progress:
    """Let nothing be told under a name before the rename that gave it, however early it was written."""
    name, t = event.path if given else None, event.t
    while name:
        t = max(t, given.get(name, t))
        name = _parent(name)
    return replace(event, t=t) if t > event.t else event


def _within(t: float | None, fact: RemoteFile, otherwise: float) -> float:
    """Keep a time of the server within what the looks prove."""
    since = fact.t if fact.since is None else fact.since
    return min(max(otherwise if t is None else t, since), fact.t)


def _event(fact: RemoteFile, t: float, event: str, **more: object) -> FileEvent:
    plain = FileEvent(t, "create", fact.path, size=fact.size, inode=fact.inode, found=True)
    return replace(plain, event=event, **more)  # type: ignore[arg-type]


def _as_elsewhere(save: Save) -> Save:
    """Keep what is known of another host's save: when, what and how it ended; not how it was written."""
    return replace(
        save,
        bytes=0,
        files=0,
        duration_seconds=None,
        active_seconds=None,
        average_bandwidth=None,
        sustained_bandwidth=None,
        peak_bandwidth=None,
        written_bytes=None,
        flow=(),
        shards=(),
        notes=("elsewhere",),
        elsewhere=True,
    )


def _patient(settings: DetectSettings) -> DetectSettings:
    return replace(settings, quiet_seconds=QUIET_FACTOR * settings.quiet_seconds)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _put(names: OrderedDict[str, _Value], path: str, value: _Value) -> None:
    names[path] = value
    names.move_to_end(path)
    if len(names) > MAX_NAMES:
        names.popitem(last=False)
