"""What each inotify event means for the files of one configured directory."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckpt_exporter.sources.filestat import local_writers, lstat
from ckpt_exporter.sources.inotify_calls import (
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
from ckpt_exporter.sources.rescan import Meaning, known_of

if TYPE_CHECKING:
    from ckpt_exporter.sources.entry import Entry
    from ckpt_exporter.sources.progress import ActiveFile, ActiveFiles
    from ckpt_exporter.sources.rescan import TreeWatch
    from ckpt_exporter.sources.tree import KnownFile, Node

# The kernel's name for a file made with O_TMPFILE.
_UNNAMED = re.compile(r"#\d+")


@dataclass(slots=True)
class Departure:
    """A MOVED_FROM that waits for the MOVED_TO with its cookie."""

    parent: Node
    name: str
    path: str
    t: float
    child: Node | None = None
    known: KnownFile | None = None
    file: ActiveFile | None = None
    unseen_t: float | None = None  # created then, and gone from its name before anyone could look
    files_at: str = ""  # the prefix under which the open files of a displaced directory are kept


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
        self.departures: dict[int, Departure] = {}
        self.hints: dict[str, OpenHint] = {}
        # Scans that took longer than a slice; the engine finishes them.
        self.unfinished: list[Iterator[None]] = []
        # While the tree is listed for the first time, a file may be created behind the lister's back.
        self.starting = False
        self._displaced: dict[tuple[Node, str], Departure] = {}
        # Names that were gone when their CREATE was read; what they were (a file, a link), the next event
        # about them shows.
        self._unseen: dict[str, float] = {}

    # --- dispatch ---------------------------------------------------------------------------------------

    def handle(self, node: Node, event: RawEvent, t: float) -> None:
        """Take in one event about a name in ``node``."""
        name = os.fsdecode(event.name)
        mask = event.mask
        if mask & IN_ISDIR:
            self._directory(node, name, mask, event.cookie, t)
        elif mask & IN_MOVED_FROM:
            self._file_left(node, name, event.cookie, t)
        elif mask & IN_MOVED_TO:
            self._file_arrived(node, name, event.cookie, t)
        else:
            self._file(node, name, mask, t)

    def _directory(self, node: Node, name: str, mask: int, cookie: int, t: float) -> None:
        if mask & IN_CREATE:
            self._settle_name(node, name, t)
            self._new_directory(node, name, t)
        elif mask & IN_MOVED_FROM:
            self._directory_left(node, name, cookie, t)
        elif mask & IN_MOVED_TO:
            self._directory_arrived(node, name, cookie, t)
        elif mask & IN_DELETE:
            self._directory_deleted(node, name, t)

    def _file(self, node: Node, name: str, mask: int, t: float) -> None:
        path = f"{node.path}/{name}"
        if self._entry.hidden(node.root.name, path):
            if mask & IN_MODIFY:
                self._quieten(node, t)
        elif mask & IN_CREATE:
            self._settle_name(node, name, t)
            self._created(node, name, path, t)
        elif mask & IN_CLOSE_WRITE:
            self._close_seen(node, name, path, t)
        elif mask & IN_MODIFY:
            self._modified(node, name, path, t)
        elif mask & IN_OPEN:
            self._opened(node, name, path, t)
        elif mask & IN_DELETE:
            self._deleted(node, name, path, t)

    def _deleted(self, node: Node, name: str, path: str, t: float) -> None:
        self.hints.pop(path, None)
        self._active.drop(path)
        self._tree.forget(node, name)
        if self._unseen.pop(path, None) is None:
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
            if len(self._unseen) >= self._entry.settings.max_hints:
                self._unseen.clear()
            self._unseen[path] = t
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
        if st.st_nlink > 1 and local_writers(path) != 1:
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
        self._trees.opened(node, name, path, opened_at, st, known, evented=hint is not None)

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

    def check_hints(self, now: float) -> float:
        """Ask the opened files whether they are being written; return when to ask again."""
        for path, hint in list(self.hints.items()):
            st = lstat(path)
            old = now - hint.t > self._entry.settings.hint_seconds
            if st is None or old or path in self._active.by_path:
                del self.hints[path]
            elif known_of(st) != hint.known and st.st_ino == hint.known[2]:
                del self.hints[path]
                self._trees.opened(hint.node, hint.name, path, hint.t, st, hint.known)
        return now + self._entry.settings.hint_interval_seconds if self.hints else float("inf")

    def _close_seen(self, node: Node, name: str, path: str, t: float) -> None:
        created_at = self._unseen.pop(path, None)
        if created_at is not None:
            self._entry.file("create", path, created_at)
            self._active.add(path, created_at, None)
        file = self._active.by_path.get(path)
        if file is None and _UNNAMED.fullmatch(name):
            key = (self._device(node), int(name[1:]))
            file = self._active.by_key.get(key)
            if file is None:
                return
        st = lstat(path if file is None else file.path)
        if file is None:
            file = self._unannounced(node, name, path, t, st)
        elif st is not None and file.key is None:
            self._active.identify(file, st)
        if file is not None:
            replaced = st is not None and file.key is not None and file.key != (st.st_dev, st.st_ino)
            self._active.close_event(file, t, None if replaced else st)

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
        self._trees.opened(node, name, path, opened_at, st, known, found=hint is None)
        return self._active.by_path.get(path)

    # --- renames of files -------------------------------------------------------------------------------

    def _file_left(self, node: Node, name: str, cookie: int, t: float) -> None:
        path = f"{node.path}/{name}"
        self.hints.pop(path, None)
        departure = self._displaced.pop((node, name), None)
        if departure is None:
            departure = Departure(node, name, path, t, unseen_t=self._unseen.pop(path, None))
            departure.file = self._active.drop(path)
            departure.known = self._tree.forget(node, name)
        departure.t = t
        self.departures[cookie] = departure
        key = self._key_of(departure)
        if key is not None:
            self._entry.shared.inodes.note(key, path, self._entry.name)

    def _file_arrived(self, node: Node, name: str, cookie: int, t: float) -> None:
        path = f"{node.path}/{name}"
        departure = self.departures.pop(cookie, None)
        self._displace_file(node, name, path, t)
        st = lstat(path)
        hidden = self._entry.hidden(node.root.name, path)
        if departure is None:
            if st is not None and not hidden:
                self._from_outside(node, name, path, t, st)
            return
        if hidden and self._entry.hidden(departure.parent.root.name, departure.path):
            return
        self._renamed(departure, node, name, path, t, st)

    def _renamed(
        self, departure: Departure, node: Node, name: str, path: str, t: float, st: os.stat_result | None
    ) -> None:
        if st is None and departure.unseen_t is not None:
            self._unseen[path] = departure.unseen_t
            return
        if st is not None and stat.S_ISLNK(st.st_mode):
            # A link that gets its final name carries no bytes.
            self._tree.remember(node, name, known_of(st))
            if departure.unseen_t is None:
                self._entry.file("deleted", departure.path, t)
            self._entry.file("link", path, t, st)
            return
        if st is not None and not stat.S_ISREG(st.st_mode):
            return
        if st is not None:
            self._tree.remember(node, name, departure.known or known_of(st))
        if departure.unseen_t is not None:
            started = self._entry.started(path, departure.unseen_t)
            self._entry.file("create", departure.path, departure.unseen_t, st, started=started)
            self._active.add(path, departure.unseen_t, st)
            self._trees.disarm(node, t)
        elif departure.file is not None:
            self._active.put(departure.file, path, st)
            self._trees.disarm(node, t)
        self._entry.file("moved", departure.path, t, st, to=path)

    def _from_outside(self, node: Node, name: str, path: str, t: float, st: os.stat_result) -> None:
        if stat.S_ISLNK(st.st_mode):
            self._tree.remember(node, name, known_of(st))
            self._entry.file("link", path, t, st)
        elif stat.S_ISREG(st.st_mode):
            self._tree.remember(node, name, known_of(st))
            before = self._entry.shared.inodes.claim((st.st_dev, st.st_ino), self._entry.name)
            self._entry.file("moved", before, t, st, to=path)
            modified = self._entry.modified(st)
            if modified is not None and t - modified < self._entry.settings.recent_seconds:
                self._trees.disarm(node, t)
                self._active.consider(path, t, st)

    def _displace_file(self, node: Node, name: str, path: str, t: float) -> None:
        """Set aside what a rename replaces: gone, or (exchanged) about to be renamed itself."""
        known = self._tree.forget(node, name)
        file = self._active.drop(path)
        if known is not None or file is not None:
            self._displaced[node, name] = Departure(node, name, path, t, known=known, file=file)

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
        self._scan(parent, name, st, "found")

    def _scan(self, parent: Node, name: str, st: os.stat_result, meaning: Meaning) -> None:
        """List a directory that came into the tree; what takes long is left to the engine."""
        child = self._tree.add(name, parent, st.st_ino)
        self._entry.shared.inodes.note((st.st_dev, st.st_ino), child.path, self._entry.name)
        steps = self._trees.scan(child, meaning)
        deadline = self._entry.clock() + self._entry.settings.scan_slice_seconds
        self._trees.prefer_new = True
        for _ in steps:
            if self._entry.clock() > deadline:
                self.unfinished.append(steps)
                break
        self._trees.prefer_new = False

    def _directory_left(self, node: Node, name: str, cookie: int, t: float) -> None:
        departure = self._displaced.pop((node, name), None)
        if departure is None:
            departure = Departure(node, name, f"{node.path}/{name}", t, child=node.child(name))
            departure.files_at = departure.path
            if departure.child is not None:
                self._tree.detach(departure.child)
        departure.t = t
        self.departures[cookie] = departure
        if departure.child is not None:
            key = (self._device(node), departure.child.inode)
            self._entry.shared.inodes.note(key, departure.path, self._entry.name)

    def _directory_arrived(self, node: Node, name: str, cookie: int, t: float) -> None:
        path = f"{node.path}/{name}"
        departure = self.departures.pop(cookie, None)
        st = lstat(path)
        here = node.child(name)
        seen = here is not None and st is not None and here.inode == st.st_ino
        if not seen or (departure is not None and departure.child is not None):
            self._displace_directory(node, name, path, t)
        if departure is None:
            if st is not None and not seen:
                self._directory_from_outside(node, name, path, t, st)
            return
        if departure.child is not None:
            self._tree.move(departure.child, node, name)
            for old in self._active.below(departure.files_at):
                self._active.move(old, path + old[len(departure.files_at) :])
        self._entry.file("moved", departure.path, t, st, to=path, is_dir=True)
        if departure.child is None and not seen and st is not None and stat.S_ISDIR(st.st_mode):
            self._scan(node, name, st, "found")

    def _displace_directory(self, node: Node, name: str, path: str, t: float) -> None:
        """Set aside the directory that a rename replaces (an empty one, or one that is exchanged)."""
        child = node.child(name)
        if child is None:
            return
        self._tree.detach(child)
        aside = f"{path}//displaced"
        for old in self._active.below(path):
            self._active.move(old, aside + old[len(path) :])
        self._displaced[node, name] = Departure(node, name, path, t, child=child, files_at=aside)

    def _directory_from_outside(self, node: Node, name: str, path: str, t: float, st: os.stat_result) -> None:
        before = self._entry.shared.inodes.claim((st.st_dev, st.st_ino), self._entry.name)
        self._entry.file("moved", before, t, st, to=path, is_dir=True)
        self._scan(node, name, st, "moved" if before is None else "silent")

    def _directory_deleted(self, node: Node, name: str, t: float) -> None:
        path = f"{node.path}/{name}"
        child = node.child(name)
        st = lstat(path)
        if child is not None and (st is None or st.st_ino != child.inode):
            self._trees.remove(child, t, report=False)
        self._entry.file("deleted", path, t, is_dir=True)

    # --- departures without arrival ---------------------------------------------------------------------

    def settle_departures(self, now: float, *, everything: bool = False) -> float:
        """Report what was renamed out of the tree; return when the next one has waited long enough."""
        hold = self._entry.settings.move_hold_seconds
        for cookie, departure in list(self.departures.items()):
            if everything or now - departure.t >= hold:
                del self.departures[cookie]
                self._left_for_good(departure)
        for key, departure in list(self._displaced.items()):
            if everything or now - departure.t >= hold:
                del self._displaced[key]
                if departure.child is not None:
                    self._forget_directory(departure)
        waiting = [d.t for d in (*self.departures.values(), *self._displaced.values())]
        return min(waiting) + hold if waiting else float("inf")

    def _settle_name(self, node: Node, name: str, t: float) -> None:
        """A name that is made anew can't be the pending rename's target any more."""
        for cookie, departure in list(self.departures.items()):
            if departure.parent is node and departure.name == name:
                del self.departures[cookie]
                self._left_for_good(departure)

    def _left_for_good(self, departure: Departure) -> None:
        directory = departure.child is not None or departure.files_at != ""
        key = self._key_of(departure)
        if departure.child is not None:
            self._forget_directory(departure)
        if key is not None and self._entry.shared.inodes.take_claim(key, departure.path):
            return
        hidden = not directory and self._entry.hidden(departure.parent.root.name, departure.path)
        if hidden or departure.unseen_t is not None:
            return
        self._entry.file("moved", departure.path, departure.t, to=None, is_dir=directory)

    def _forget_directory(self, departure: Departure) -> None:
        child = departure.child
        if child is not None:
            for path in self._active.below(departure.files_at):
                self._active.drop(path)
            self._trees.remove(child, departure.t, report=False)

    def _key_of(self, departure: Departure) -> tuple[int, int] | None:
        if departure.file is not None and departure.file.key is not None:
            return departure.file.key
        device = self._device(departure.parent)
        if departure.child is not None:
            return device, departure.child.inode
        return None if departure.known is None else (device, departure.known[2])

    @staticmethod
    def _device(node: Node) -> int:
        st = lstat(node.path)
        return st.st_dev if st is not None else 0
