"""What each inotify event means for the files of one configured directory."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckpt_exporter.model import ReadEvent
from ckpt_exporter.sources.filestat import local_writers, lstat
from ckpt_exporter.sources.inotify_calls import (
    IN_CLOSE_NOWRITE,
    IN_CLOSE_WRITE,
    IN_CREATE,
    IN_DELETE,
    IN_ISDIR,
    IN_MODIFY,
    IN_MOVED_FROM,
    IN_MOVED_TO,
    IN_OPEN,
    RawEvent,
)
from ckpt_exporter.sources.renames import Renames
from ckpt_exporter.sources.rescan import known_of

if TYPE_CHECKING:
    from ckpt_exporter.sources.entry import Entry
    from ckpt_exporter.sources.progress import ActiveFile, ActiveFiles
    from ckpt_exporter.sources.rescan import TreeWatch
    from ckpt_exporter.sources.tree import KnownFile, Node

# A smaller file is no part of a checkpoint that takes time to load, or of one that is loaded alone.
_READ_MIN_BYTES = 64 * 1024
# How long after the last sign of a reader its close is listened for.
_LISTEN_SECONDS = 120.0
# The kernel's name for a file made with O_TMPFILE.
_UNNAMED = re.compile(r"#\d+")


@dataclass(frozen=True, slots=True)
class OpenHint:
    """An OPEN of an existing file, by a reader or by a writer that raises no MODIFY."""

    node: Node
    name: str
    t: float
    known: KnownFile


class Changes:
    """Turns events into facts and keeps the tree and the open files in step."""

    def __init__(self, entry: Entry, trees: TreeWatch, active: ActiveFiles) -> None:
        self._entry = entry
        self._trees = trees
        self._tree = trees.tree
        self._active = active
        self.renames = Renames(entry, trees, active)
        self.hints: dict[str, OpenHint] = {}
        # While the tree is listed for the first time, a file may be created behind the lister's back.
        self.starting = False
        # How long after the watch began its tree had been listed.
        self.listed_seconds = float("inf")

    # --- dispatch ---------------------------------------------------------------------------------------

    def handle(self, node: Node, event: RawEvent, t: float) -> None:
        """Take in one event about a name in ``node``."""
        name = os.fsdecode(event.name)
        mask = event.mask
        if mask & IN_ISDIR:
            self._directory(node, name, mask, event.cookie, t)
        elif mask & IN_MOVED_FROM:
            self.hints.pop(f"{node.path}/{name}", None)
            self.renames.file_left(node, name, event.cookie, t)
        elif mask & IN_MOVED_TO:
            self.renames.file_arrived(node, name, event.cookie, t)
        else:
            self._file(node, name, mask, t)

    def _directory(self, node: Node, name: str, mask: int, cookie: int, t: float) -> None:
        if mask & IN_CREATE:
            self.renames.settle_name(node, name)
            self._new_directory(node, name, t)
        elif mask & IN_MOVED_FROM:
            self.renames.directory_left(node, name, cookie, t)
        elif mask & IN_MOVED_TO:
            self.renames.directory_arrived(node, name, cookie, t)
        elif mask & IN_DELETE:
            self._directory_deleted(node, name, t)

    def _file(self, node: Node, name: str, mask: int, t: float) -> None:
        path = f"{node.path}/{name}"
        if self._entry.hidden(node.root.name, path):
            if mask & IN_MODIFY:
                self._quieten(node, t)
        elif mask & IN_CREATE:
            self.renames.settle_name(node, name)
            self._created(node, name, path, t)
        elif mask & IN_CLOSE_WRITE:
            self._close_seen(node, name, path, t)
        elif mask & IN_MODIFY:
            self._modified(node, name, path, t)
        elif mask & IN_OPEN:
            self._opened(node, name, path, t)
        elif mask & IN_CLOSE_NOWRITE:
            self._closed_by_reader(node, name, path, t)
        elif mask & IN_DELETE:
            self._deleted(node, name, path, t)

    def _deleted(self, node: Node, name: str, path: str, t: float) -> None:
        self.hints.pop(path, None)
        self._active.drop(path)
        self._tree.forget(node, name)
        self.renames.unsized.pop((node, name), None)
        if self.renames.unseen.pop(path, None) is None:
            self._entry.file("deleted", path, t)

    def _quieten(self, node: Node, t: float) -> None:
        """Stop the MODIFY events of a log file for a while."""
        if node.armed:
            self._trees.watch(node)
            self._trees.unarmed[node] = t + self._entry.settings.rearm_seconds

    # --- files ------------------------------------------------------------------------------------------

    def _created(self, node: Node, name: str, path: str, t: float) -> None:
        self._trees.disarm(node, t)
        st = lstat(path)
        if st is None:
            if node.file(name) is not None:
                return  # a scan has told of it, and it was not deleted since
            if len(self.renames.unseen) >= self._entry.settings.max_hints:
                self.renames.unseen.clear()
            self.renames.unseen[path] = t
        elif stat.S_ISLNK(st.st_mode):
            self._tree.remember(node, name, known_of(st))
            self._entry.file("link", path, t, st)
        elif stat.S_ISREG(st.st_mode) and not self._is_reported(node, name, path, st):
            self._created_regular(node, name, path, t, st)

    def _is_reported(self, node: Node, name: str, path: str, st: os.stat_result) -> bool:
        """Tell whether a scan saw the new file before its event was read."""
        known = node.file(name)
        file = self._active.by_path.get(path)
        if file is not None and file.key == (st.st_dev, st.st_ino):
            file.evented = True
            return not self._trees.remote
        same = known is not None and known[2] == st.st_ino
        return same and not self.starting and not self._trees.remote

    def _created_regular(self, node: Node, name: str, path: str, t: float, st: os.stat_result) -> None:
        self._tree.remember(node, name, known_of(st))
        other = self._active.by_key.get((st.st_dev, st.st_ino))
        if other is not None and other.path != path and os.path.lexists(other.path):
            self._entry.file("link", path, t, st)
            return
        if st.st_nlink > 1 and (self._trees.remote or local_writers(path) != 1):
            self._entry.file("link", path, t, st)
            return
        self._entry.file("create", path, t, st, started=self._entry.started(path, t))
        file = self._active.add(path, t, st)
        birth = self._entry.birth(path)
        if birth is not None and birth < t - 2.0:
            # Linked into the tree and unlinked elsewhere: its writer may be long gone.
            file.evented, file.writers = False, None

    def _modified(self, node: Node, name: str, path: str, t: float) -> None:
        self._trees.disarm(node, t)
        if path in self._active.by_path or _UNNAMED.fullmatch(name):
            return
        st = lstat(path)
        if st is None or not stat.S_ISREG(st.st_mode):
            return
        hint = self.hints.pop(path, None)
        # Truncating comes before its OPEN, so without a hint nothing of the old content is kept.
        known = node.file(name) if hint is not None else None
        opened_at = hint.t if hint is not None else t
        was_open = hint is None and self._was_open(node, name, st)
        cut = hint is None and not was_open
        place = (node, name, known)
        self._trees.opened(path, opened_at, st, place, evented=not cut, cut=cut, initial=was_open)

    def _was_open(self, node: Node, name: str, st: os.stat_result) -> bool:
        """Tell whether a write without an OPEN goes on with what was being written when watching began."""
        known = node.file(name)
        if known is None or known[2] != st.st_ino or st.st_size < known[0]:
            return False
        changed_at = self._entry.monotonic(known[1] / 1e9)
        return -self._entry.settings.recent_seconds <= changed_at - self._entry.began <= self.listed_seconds

    def _opened(self, node: Node, name: str, path: str, t: float) -> None:
        if path in self._active.by_path or _UNNAMED.fullmatch(name):
            return
        known = node.file(name)
        if known is None:
            st = lstat(path)
            if st is None or not stat.S_ISREG(st.st_mode):
                return
            known = known_of(st)
        self.hints.pop(path, None)
        if len(self.hints) >= self._entry.settings.max_hints:
            del self.hints[next(iter(self.hints))]
        self.hints[path] = OpenHint(node, name, t, known)
        if known[0] >= _READ_MIN_BYTES and not self.starting:
            # Whether it is a reader shows later; its close would be missed if that were waited for.
            self._trees.listen_for_closes(node, t + _LISTEN_SECONDS)
            self._entry.emit(ReadEvent(t, path, "open", size=known[0]))

    def _closed_by_reader(self, node: Node, name: str, path: str, t: float) -> None:
        known = node.file(name)
        if known is not None and known[0] >= _READ_MIN_BYTES and path not in self._active.by_path:
            self._entry.emit(ReadEvent(t, path, "close"))

    def check_hints(self, now: float) -> float:
        """Ask the opened files whether they are being written; return when to ask again."""
        for path, hint in list(self.hints.items()):
            st = lstat(path)
            old = now - hint.t > self._entry.settings.hint_seconds
            if st is None or old or path in self._active.by_path:
                del self.hints[path]
            elif known_of(st) != hint.known and st.st_ino == hint.known[2]:
                del self.hints[path]
                self._trees.opened(path, hint.t, st, (hint.node, hint.name, hint.known))
        return now + self._entry.settings.hint_interval_seconds if self.hints else float("inf")

    def _close_seen(self, node: Node, name: str, path: str, t: float) -> None:
        created_at = self.renames.unseen.pop(path, None)
        if created_at is not None:
            self._entry.file("create", path, created_at)
            self._active.add(path, created_at, None)
        file = self._active.by_path.get(path)
        if file is None and _UNNAMED.fullmatch(name):
            key = (self.renames.device(node), int(name[1:]))
            file = self._active.by_key.get(key)
            if file is None:
                return
        st = lstat(path if file is None else file.path)
        if file is None:
            file = self._unannounced(node, name, path, t, st)
        elif st is not None and file.key is None:
            self._active.identify(file, st)
        if file is not None:
            if st is None:
                self._remember_unsized(node, name)
            replaced = st is not None and file.key is not None and file.key != (st.st_dev, st.st_ino)
            self._active.close_event(file, t, None if replaced else st)

    def _remember_unsized(self, node: Node, name: str) -> None:
        if len(self.renames.unsized) >= self._entry.settings.max_hints:
            self.renames.unsized.clear()
        self.renames.unsized[node, name] = None

    def _unannounced(
        self, node: Node, name: str, path: str, t: float, st: os.stat_result | None
    ) -> ActiveFile | None:
        """Begin late with a file whose opening raised no event; None when nothing was written to it."""
        known = node.file(name)
        hint = self.hints.pop(path, None)
        if st is None or not stat.S_ISREG(st.st_mode) or known == known_of(st):
            return None
        if known is None and not self._tree.files_full:
            self._tree.remember(node, name, known_of(st))
            self._entry.file("create", path, t, st, found=True, started=self._entry.started(path, t))
            return self._active.add(path, t, st)
        opened_at = hint.t if hint is not None else t
        self._trees.opened(path, opened_at, st, (node, name, known), found=hint is None)
        return self._active.by_path.get(path)

    # --- directories ------------------------------------------------------------------------------------

    def _new_directory(self, parent: Node, name: str, t: float) -> None:
        path = f"{parent.path}/{name}"
        st = lstat(path)
        if st is None or not stat.S_ISDIR(st.st_mode):
            return
        child = parent.child(name)
        if child is not None:
            if child.inode == st.st_ino:
                return  # a scan was here first
            self._trees.remove(child, t, report=True)
        self._entry.file("create", path, t, st, is_dir=True)
        self.renames.scan(parent, name, st, "found")

    def _directory_deleted(self, node: Node, name: str, t: float) -> None:
        path = f"{node.path}/{name}"
        child = node.child(name)
        st = lstat(path)
        if child is not None and (st is None or st.st_ino != child.inode):
            self._trees.remove(child, t, report=False)
        self._entry.file("deleted", path, t, is_dir=True)
