"""Watch one configured directory by comparing snapshots, where inotify can't be had."""

from __future__ import annotations

import errno
import logging
import os
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from watchdog.utils.dirsnapshot import DirectorySnapshot, DirectorySnapshotDiff

from ckpt_exporter.model import WatchStatus
from ckpt_exporter.sources.filestat import is_reused, lstat
from ckpt_exporter.sources.progress import ActiveFile, ActiveFiles
from ckpt_exporter.sources.roots import expand
from ckpt_exporter.sources.watches import OUTAGE_ERRORS

if TYPE_CHECKING:
    from ckpt_exporter.sources.entry import Entry
    from ckpt_exporter.sources.tree import KnownFile


class PolledStat:
    """The part of a stat result that a snapshot compares; a whole one for each file would take megabytes."""

    __slots__ = ("st_dev", "st_ino", "st_mode", "st_mtime", "st_size")

    def __init__(self, path: str) -> None:
        st = os.lstat(path)
        self.st_dev, self.st_ino, self.st_mode = st.st_dev, st.st_ino, st.st_mode
        # Nanoseconds: watchdog only tests it for equality.
        self.st_mtime, self.st_size = st.st_mtime_ns, st.st_size


@dataclass(slots=True)
class PolledRoot:
    """One root: its last believed snapshot, and since when something contradicts it."""

    path: str
    snapshot: DirectorySnapshot | None = None
    device: int = 0
    lost_at: float | None = None


class PollEngine:
    """The polling counterpart of the inotify engine; ``step`` does one round."""

    backend = "poll"

    def __init__(self, entry: Entry, *, initial: bool) -> None:
        self.entry = self._entry = entry
        self._settings = entry.settings
        self.active = ActiveFiles(entry, self._file_closed)
        self._initial = initial
        self._begun = False
        self._event = threading.Event()
        self.roots: dict[str, PolledRoot] = {}
        self._next_poll = entry.clock()
        self._directories = 0
        self.rounds = 0
        self._cost = 0.0  # seconds that the snapshots of this round took; reports are rare

    # --- life cycle -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Nothing is held open between rounds."""

    def wake(self) -> None:
        """Make ``step`` return soon; callable from any thread."""
        self._event.set()

    def status(self) -> WatchStatus:
        """Describe the watch; callable from any thread."""
        return WatchStatus(
            self._entry.name,
            self.backend,
            up=bool(self._entry.up),
            watched_directories=self._directories,
            limit_reached=True,
            coverage=0.0,
        )

    def step(self) -> None:
        """Wait until something is due, then poll or probe."""
        next_probe = min((file.probe_at for file in self.active.by_path.values()), default=float("inf"))
        wait = min(self._next_poll, next_probe) - self._entry.clock()
        if wait > 0:
            self._event.wait(min(wait, 15.0))
        self._event.clear()
        now = self._entry.clock()
        if now >= self._next_poll:
            self._cost = 0.0
            self._round(now)
            pause = max(self._settings.unwatched_poll_seconds, self._cost * self._settings.poll_cost_factor)
            self._next_poll = now + pause
        self.active.probe_due(now)

    # --- one round --------------------------------------------------------------------------------------

    def _round(self, now: float) -> None:
        self.rounds += 1
        found = expand(self._entry.directory.path, self._settings.max_roots).roots
        for path in found:
            if path not in self.roots:
                self.roots[path] = PolledRoot(path)
        outcome = [self._look(root, now) for root in list(self.roots.values())]
        up = any(reason is None for reason in outcome)
        reasons = [reason for reason in outcome if reason is not None]
        self._entry.set_up(up=up, reason="start" if up else (reasons or ["missing"])[0])
        if up and not self._begun:
            self._begun = True
            for root in self.roots.values():
                self._first(root)
            reason = "start" if self._initial else "polling"
            self._entry.shared.counts.rescan(reason)
            self._entry.change("rescan", reason)
        self._directories = sum(self._count(root) for root in self.roots.values())

    def _look(self, root: PolledRoot, now: float) -> str | None:
        """Take a snapshot of one root and report what differs; return why it can't be had."""
        begin = self._entry.clock()
        try:
            device = os.stat(root.path).st_dev
            snapshot = DirectorySnapshot(root.path, stat=PolledStat, listdir=self._list)  # type: ignore[arg-type]
        except OSError as error:
            self._away(root, now)
            if error.errno in OUTAGE_ERRORS:
                return "io_error"
            return "permission_denied" if error.errno in (errno.EACCES, errno.EPERM) else "missing"
        self._cost += self._entry.clock() - begin
        old = root.snapshot
        if old is None:
            root.snapshot, root.device = snapshot, device
            if self._begun:
                self._report_all(root, snapshot)
            return None
        if self._is_flap(old, snapshot, root, device) and not self._is_over(root, now):
            return None
        root.lost_at, root.device = None, device
        root.snapshot = snapshot
        self._report(root.path, old, snapshot, now)
        return None

    def _list(self, path: str | None) -> list[os.DirEntry[str]]:
        self._entry.beat()
        with os.scandir(path) as entries:
            return list(entries)

    def _is_flap(self, old: DirectorySnapshot, new: DirectorySnapshot, root: PolledRoot, device: int) -> bool:
        """Tell whether all files went at once: a mount that is away looks so, and comes back."""
        files = [path for path in old.paths if not old.isdir(path)]
        if not files:
            return False
        here = new.paths
        kept = any(path in here for path in files)
        return not kept and (device != root.device or not any(not new.isdir(path) for path in here))

    def _is_over(self, root: PolledRoot, now: float) -> bool:
        if root.lost_at is None:
            root.lost_at = now
            self._entry.log(logging.WARNING, "all files vanished at once", every_seconds=60, path=root.path)
        return now - root.lost_at >= self._settings.outage_seconds

    def _away(self, root: PolledRoot, now: float) -> None:
        if root.snapshot is None or not self._is_over(root, now):
            return
        for path in sorted(map(os.fsdecode, root.snapshot.paths), reverse=True):
            if path != root.path:
                self._deleted(root.path, path, now, is_dir=root.snapshot.isdir(path))
        root.snapshot, root.lost_at = None, None

    # --- reports ----------------------------------------------------------------------------------------

    def _first(self, root: PolledRoot) -> None:
        if root.snapshot is not None and self._initial:
            self._report_all(root, root.snapshot, initial=True)

    def _report_all(self, root: PolledRoot, snapshot: DirectorySnapshot, *, initial: bool = False) -> None:
        for path in sorted(map(os.fsdecode, snapshot.paths)):
            if path == root.path:
                continue
            self._created(root.path, path, self._entry.clock(), initial=initial)

    def _report(self, root: str, old: DirectorySnapshot, new: DirectorySnapshot, t: float) -> None:
        # A file system that was mounted again may have another device number.
        diff = DirectorySnapshotDiff(old, new, ignore_device=True)
        reused = [pair for pair in [*diff.dirs_moved, *diff.files_moved] if self._is_reuse(old, new, *pair)]
        for before, _ in reused:
            self._deleted(root, os.fsdecode(before), t, is_dir=old.isdir(before))
        apart = {(os.fsdecode(before), os.fsdecode(to)) for before, to in reused}
        moved: list[tuple[str, str]] = []
        for before, to in sorted(_pairs(diff.dirs_moved), key=lambda pair: len(pair[0])):
            if (before, to) not in apart and not _implied(before, to, moved):
                moved.append((before, to))
                self._moved(root, before, to, t, is_dir=True)
        for before, to in sorted(_pairs(diff.files_moved)):
            if (before, to) not in apart and not _implied(before, to, moved):
                self._moved(root, before, to, t, is_dir=False)
        for path in sorted(map(os.fsdecode, diff.files_deleted)):
            self._deleted(root, path, t, is_dir=False)
        for path in sorted(map(os.fsdecode, diff.dirs_deleted), reverse=True):
            self._deleted(root, path, t, is_dir=True)
        made = [*diff.dirs_created, *diff.files_created, *(to for _, to in reused)]
        for path in sorted(map(os.fsdecode, made)):
            self._created(root, path, t, initial=False)
        for path in sorted(map(os.fsdecode, diff.files_modified)):
            self._modified(root, path, t)

    def _created(self, root: str, path: str, t: float, *, initial: bool) -> None:
        st = lstat(path)
        if st is None:
            return
        if stat.S_ISDIR(st.st_mode):
            if not initial:
                self._entry.file("create", path, t, st, is_dir=True, found=True)
        elif self._entry.hidden(root, path):
            return
        elif stat.S_ISLNK(st.st_mode):
            self._entry.file("link", path, t, st, found=True, initial=initial)
        elif stat.S_ISREG(st.st_mode):
            birth = self._entry.birth(path)
            self._entry.file("create", path, t, st, found=True, initial=initial, started=birth)
            if initial:
                self.active.consider(path, t, st)
            else:
                self.active.add(path, t, st, evented=False)

    def _modified(self, root: str, path: str, t: float) -> None:
        st = lstat(path)
        if st is None or path in self.active.by_path or self._entry.hidden(root, path):
            return
        self._entry.file("open", path, t, st, found=True)
        self.active.add(path, t, st, evented=False)

    def _moved(self, root: str, before: str, to: str, t: float, *, is_dir: bool) -> None:
        hidden = self._entry.hidden(root, before) and self._entry.hidden(root, to)
        if not is_dir and hidden:
            return
        for path in [before, *self.active.below(before)]:
            self.active.move(path, to + path[len(before) :])
        st = lstat(to)
        if st is not None and stat.S_ISDIR(st.st_mode) != is_dir:
            st = None  # something else has the name by now
        self._entry.file("moved", before, t, st, to=to, is_dir=is_dir, found=True)

    def _deleted(self, root: str, path: str, t: float, *, is_dir: bool) -> None:
        if is_dir or not self._entry.hidden(root, path):
            self.active.drop(path)
            self._entry.file("deleted", path, t, is_dir=is_dir, found=True)

    def _file_closed(self, file: ActiveFile, st: os.stat_result | None, t: float) -> None:
        self._entry.file("close_write", file.path, t, st, found=True)

    def _is_reuse(
        self, old: DirectorySnapshot, new: DirectorySnapshot, before: bytes | str, to: bytes | str
    ) -> bool:
        """Tell a rename from the inode of something deleted that something new got since the last round."""
        if old.isdir(before) != new.isdir(to):
            return True
        born = self._entry.births.unix(os.fsdecode(to))
        return is_reused(born, _known(new, to), _known(old, before))

    @staticmethod
    def known(snapshot: DirectorySnapshot) -> Iterator[tuple[str, int, KnownFile | None]]:
        """Yield (path, inode, what is known of a file or None for a directory), parents first."""
        for path in sorted(map(os.fsdecode, snapshot.paths)):
            inode = snapshot.inode(path)[0]
            if snapshot.isdir(path):
                yield path, inode, None
            else:
                yield path, inode, _known(snapshot, path)

    @staticmethod
    def _count(root: PolledRoot) -> int:
        snapshot = root.snapshot
        return sum(snapshot.isdir(path) for path in snapshot.paths) if snapshot is not None else 0


def _known(snapshot: DirectorySnapshot, path: bytes | str) -> KnownFile:
    return (snapshot.size(path), int(snapshot.mtime(path)), snapshot.inode(path)[0])


def _pairs(moves: object) -> list[tuple[str, str]]:
    return [(os.fsdecode(before), os.fsdecode(to)) for before, to in moves]  # type: ignore[attr-defined]


def _implied(before: str, to: str, moved: list[tuple[str, str]]) -> bool:
    """Tell whether a move is part of one of a directory above."""
    return any(before.startswith(old + "/") and to == new + before[len(old) :] for old, new in moved)
