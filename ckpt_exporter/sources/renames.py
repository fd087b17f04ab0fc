"""Join the two halves of a rename: within the tree, into it, out of it, between two watched ones."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckpt_exporter.model import Progress
from ckpt_exporter.sources.filestat import inode_name, lstat
from ckpt_exporter.sources.rescan import Meaning, known_of

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from ckpt_exporter.sources.entry import Entry
    from ckpt_exporter.sources.progress import ActiveFile, ActiveFiles
    from ckpt_exporter.sources.rescan import TreeWatch
    from ckpt_exporter.sources.tree import KnownFile, Node


# Appended to the path of a directory that another has replaced, to tell the open files of both apart.
_ASIDE = "//displaced"


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
    is_dir: bool = False
    told: bool = False  # of its name, with a size that could not be asked
    stale: bool = False  # its name belongs to something newer already
    aside: bool = False  # its open files are kept apart from those of what replaced it

    @property
    def now_at(self) -> str:
        """The old name as it is now: the directory that held it may have been renamed meanwhile."""
        return f"{self.parent.path}/{self.name}"

    @property
    def files_at(self) -> str:
        """The prefix of the paths of its open files."""
        return self.now_at + _ASIDE if self.aside else self.now_at


class Renames:
    """Follows renames by their cookies; what is left over after a moment came from or went out of sight."""

    def __init__(self, entry: Entry, trees: TreeWatch, active: ActiveFiles) -> None:
        self._entry = entry
        self._trees = trees
        self._tree = trees.tree
        self._active = active
        trees.rejoin = self.rejoin
        self.departures: dict[int, Departure] = {}
        # What a rename replaced: gone, or exchanged and about to be renamed itself.
        self._displaced: dict[tuple[Node, str], Departure] = {}
        # Names that were gone when their CREATE was read; what they were (a file, a link), the next event
        # about them shows.
        self.unseen: dict[str, float] = {}
        # Files whose directory had been renamed when their CLOSE_WRITE was read, so that their size could not
        # be asked: it can be as soon as the rename has been read.
        self.unsized: dict[tuple[Node, str], None] = {}
        # Scans that took longer than a slice; the engine finishes them.
        self.unfinished: list[Iterator[None]] = []

    # --- renames of files -------------------------------------------------------------------------------

    def file_left(self, node: Node, name: str, cookie: int, t: float) -> None:
        """Take in the MOVED_FROM of a file."""
        path = f"{node.path}/{name}"
        departure = self._displaced.pop((node, name), None)
        if departure is None:
            departure = Departure(node, name, path, t, unseen_t=self.unseen.pop(path, None))
            known, st = node.file(name), lstat(path)
            # A scan may be ahead of the events: then another file has this name already.
            departure.stale = known is not None and st is not None and st.st_ino == known[2]
            if not departure.stale:
                self._active.settle(path, t)
                departure.file = self._active.drop(path)
                departure.known = self._tree.forget(node, name)
        departure.told = (node, name) in self.unsized
        self.unsized.pop((node, name), None)
        departure.t = t
        self.departures[cookie] = departure
        key = self._key_of(departure)
        if key is not None:
            self._entry.shared.inodes.note(key, path, self._entry.name)

    def file_arrived(self, node: Node, name: str, cookie: int, t: float) -> None:
        """Take in the MOVED_TO of a file."""
        path = f"{node.path}/{name}"
        departure = self.departures.pop(cookie, None)
        st = lstat(path)
        if departure is not None and self._is_reported(departure, node, name, st):
            if departure.told:
                # Both names were told of: without this the old one would be a file that stays for ever.
                self._entry.file("moved", departure.path, t, st, to=path)
            return
        self._displace_file(node, name, path, t)
        hidden = self._entry.hidden(node.root.name, path)
        if departure is None:
            if st is not None and not hidden:
                self._from_outside(node, name, path, t, st)
            return
        if hidden and self._entry.hidden(departure.parent.root.name, departure.path):
            return
        self._renamed(departure, (node, name), t, st)

    def _is_reported(self, departure: Departure, node: Node, name: str, st: os.stat_result | None) -> bool:
        """Tell whether a scan was ahead of these events, and has told of this file under its new name.

        Its close was read under the old name, which nobody knew any more: it stays among the active files,
        which are asked for their writers.
        """
        if st is None or departure.file is not None or departure.known is not None:
            return False
        file, known = self._active.by_path.get(f"{node.path}/{name}"), node.file(name)
        if file is not None:
            return file.key == (st.st_dev, st.st_ino)
        return known is not None and known[2] == st.st_ino

    def _renamed(
        self, departure: Departure, place: tuple[Node, str], t: float, st: os.stat_result | None
    ) -> None:
        node, name = place
        path = f"{node.path}/{name}"
        if st is None and departure.unseen_t is not None:
            self.unseen[path] = departure.unseen_t
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
        if not departure.stale:
            self._remember_renamed(departure, place, st)
        if departure.stale and st is not None:
            self._trees.report(node, name, st, "found")
            return
        if departure.unseen_t is not None:
            started = self._entry.started(path, departure.unseen_t)
            self._entry.file("create", departure.path, departure.unseen_t, st, started=started)
            self._active.add(path, departure.unseen_t, st)
            self._trees.disarm(node, t)
        elif departure.file is not None:
            self._active.put(departure.file, path, st)
            self._trees.disarm(node, t)
        self._entry.file("moved", departure.path, t, st, to=path)

    def _remember_renamed(
        self, departure: Departure, place: tuple[Node, str], st: os.stat_result | None
    ) -> None:
        """Know the file under its new name, even if that is gone, too: the event that says so may be lost."""
        known = departure.known
        if st is not None and (departure.file is None or known is None):
            # A closed file is known as it is now: its size at the close could not be asked once its name
            # had changed, and a comparison with the disk would take the difference for another write.
            known = known_of(st)
        if known is not None:
            self._tree.remember(*place, known)
        elif departure.told:
            self.unsized[place] = None

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

    def scan(self, parent: Node, name: str, st: os.stat_result, meaning: Meaning) -> None:
        """List a directory that came into the tree; what takes long is left to the engine."""
        child = self._tree.add(name, parent, st.st_ino)
        self._entry.shared.inodes.note((st.st_dev, st.st_ino), child.path, self._entry.name)
        self._scan(child, meaning)

    def _scan(self, top: Node, meaning: Meaning) -> None:
        steps = self._trees.scan(top, meaning)
        deadline = self._entry.clock() + self._entry.settings.scan_slice_seconds
        self._trees.prefer_new = True
        for _ in steps:
            if self._entry.clock() > deadline:
                self.unfinished.append(steps)
                break
        self._trees.prefer_new = False

    def directory_left(self, node: Node, name: str, cookie: int, t: float) -> None:
        """Take in the MOVED_FROM of a directory."""
        departure = self._displaced.pop((node, name), None)
        if departure is None:
            path = f"{node.path}/{name}"
            child, st = node.child(name), lstat(path)
            departure = Departure(node, name, path, t, child=child, is_dir=True)
            departure.stale = child is not None and st is not None and st.st_ino == child.inode
            if departure.stale:
                departure.child = None
            elif child is not None:
                self._tree.detach(child)
        departure.t = t
        self.departures[cookie] = departure
        if departure.child is not None:
            key = (self.device(node), departure.child.inode)
            self._entry.shared.inodes.note(key, departure.path, self._entry.name)

    def directory_arrived(self, node: Node, name: str, cookie: int, t: float) -> None:
        """Take in the MOVED_TO of a directory."""
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
        if not departure.stale:
            self._entry.file("moved", departure.path, t, st, to=path, is_dir=True)
        if departure.child is not None:
            self._look_again(departure.child)
        self._ask_sizes()
        if departure.child is None and not seen and st is not None and stat.S_ISDIR(st.st_mode):
            self.scan(node, name, st, "found")

    def _look_again(self, top: Node) -> None:
        """List what could not be listed, since its name changed between its watch and the look at it."""
        for node in [node for node in top.below() if not node.mtime_ns]:
            self._scan(node, "found")

    def _ask_sizes(self) -> None:
        """Tell the final size of files that were closed before their directory's rename was read."""
        for node, name in list(self.unsized):
            path = f"{node.path}/{name}"
            st = lstat(path)
            if st is None or not stat.S_ISREG(st.st_mode):
                continue
            del self.unsized[node, name]
            self._tree.remember(node, name, known_of(st))
            self._entry.emit(
                Progress(
                    self._entry.clock(),
                    path,
                    st.st_size,
                    allocated=st.st_blocks * 512,
                    position=st.st_size,
                    inode=inode_name(st),
                    writers=0,
                    modified=self._entry.modified(st),
                    method="size",
                )
            )

    def forget_gone(self) -> None:
        """Report what no comparison can miss: names told of without a size that nothing has taken away."""
        for node, name in list(self.unsized):
            path = f"{node.path}/{name}"
            if lstat(path) is None:
                del self.unsized[node, name]
                self._entry.file("deleted", path, self._entry.clock(), found=True)

    def _displace_directory(self, node: Node, name: str, path: str, t: float) -> None:
        """Set aside the directory that a rename replaces (an empty one, or one that is exchanged)."""
        child = node.child(name)
        if child is None:
            return
        self._tree.detach(child)
        aside = path + _ASIDE
        for old in self._active.below(path):
            self._active.move(old, aside + old[len(path) :])
        self._displaced[node, name] = Departure(node, name, path, t, child=child, is_dir=True, aside=True)

    def _directory_from_outside(self, node: Node, name: str, path: str, t: float, st: os.stat_result) -> None:
        before = self._entry.shared.inodes.claim((st.st_dev, st.st_ino), self._entry.name)
        self._entry.file("moved", before, t, st, to=path, is_dir=True)
        self.scan(node, name, st, "moved" if before is None else "silent")

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

    def settle_name(self, node: Node, name: str) -> None:
        """Report a pending departure at once when its name is made anew."""
        for cookie, departure in list(self.departures.items()):
            if departure.parent is node and departure.name == name:
                del self.departures[cookie]
                self._left_for_good(departure)

    def _left_for_good(self, departure: Departure) -> None:
        child = departure.child
        if departure.stale or (child is not None and child.is_attached):
            return  # something newer has the name, or a scan met the directory where it is now
        key = self._key_of(departure)
        if child is not None:
            self._forget_directory(departure)
        if key is not None and self._entry.shared.inodes.take_claim(key, departure.path):
            return
        hidden = not departure.is_dir and self._entry.hidden(departure.parent.root.name, departure.path)
        if hidden or departure.unseen_t is not None or not departure.parent.is_attached:
            return  # what left with its directory needs no event of its own
        self._entry.file("moved", departure.now_at, departure.t, to=None, is_dir=departure.is_dir)

    def rejoin(self, path: str, st: os.stat_result, t: float) -> bool:
        """Take a file that a scan found for one that was renamed there before the directory was watched."""
        for cookie, departure in self.departures.items():
            key = None if departure.is_dir else self._key_of(departure)
            if key == (st.st_dev, st.st_ino):
                del self.departures[cookie]
                if departure.file is not None:
                    self._active.put(departure.file, path, st)
                self._entry.file("moved", departure.now_at, t, st, to=path, found=True)
                return True
        return False

    def _forget_directory(self, departure: Departure) -> None:
        child = departure.child
        if child is not None:
            for path in self._active.below(departure.files_at):
                self._active.drop(path)
            self._trees.remove(child, departure.t, report=False)

    def _key_of(self, departure: Departure) -> tuple[int, int] | None:
        if departure.file is not None and departure.file.key is not None:
            return departure.file.key
        device = self.device(departure.parent)
        if departure.child is not None:
            return device, departure.child.inode
        return None if departure.known is None else (device, departure.known[2])

    @staticmethod
    def device(node: Node) -> int:
        """Return the device number of a directory's file system, 0 when it is gone."""
        st = lstat(node.path)
        return st.st_dev if st is not None else 0
