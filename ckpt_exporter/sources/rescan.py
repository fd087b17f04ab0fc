"""Keep the watched tree in step with the disk: look, compare with what was known, report."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ckpt_exporter.sources.filestat import is_reused, lstat, open_folder
from ckpt_exporter.sources.tree import UNWATCHED, KnownFile, Node
from ckpt_exporter.sources.watches import OUTAGE_ERRORS, OutageError, Watches

if TYPE_CHECKING:
    from ckpt_exporter.sources.entry import Entry
    from ckpt_exporter.sources.progress import ActiveFiles

# What a file that isn't known yet means: it was there at the start, it was created, it was moved in with
# its directory, or nothing is to be said about it.
Meaning = Literal["start", "found", "moved", "silent"]

_ITEMS_A_BEAT = 1000


@dataclass(slots=True)
class Findings:
    """What a comparison of a whole tree found, so that a rename shows as one and not as a loss and a gain."""

    missing: list[tuple[Node, str, KnownFile]] = field(default_factory=list)
    fresh: list[tuple[Node, str, os.stat_result]] = field(default_factory=list)
    gone: list[Node] = field(default_factory=list)
    compared: int = 0


def _is_at(node: Node) -> bool:
    st = lstat(node.path)
    return st is not None and st.st_ino == node.inode


def _is_before(birth: float | None, t: float) -> bool:
    return birth is not None and birth < t - 2.0


def _files_below(nodes: list[Node]) -> Iterator[tuple[Node, str, KnownFile]]:
    for top in nodes:
        for node in top.below():
            for name, known in (node.files or {}).items():
                yield node, name, known


def known_of(st: os.stat_result) -> KnownFile:
    """Return what the tree keeps of a file."""
    return (st.st_size, st.st_mtime_ns, st.st_ino)


class TreeWatch(Watches):
    """The watched tree of one configured directory, kept in step with the disk."""

    def __init__(self, entry: Entry, active: ActiveFiles) -> None:
        super().__init__(entry)
        self._active = active
        self._listed = False
        # Other hosts can write here: only files with an event of this host count.
        self.remote = False
        # Takes in the events that are queued.
        self.drain: Callable[[], None] = lambda: None
        # Takes a file that was found for one whose departure waits for its arrival; tells whether it is one.
        self.rejoin: Callable[[str, os.stat_result, float], bool] = lambda _path, _st, _t: False

    def remove(self, node: Node, t: float, *, report: bool) -> None:
        """Take a directory and all below out of the tree, reporting its known files as deleted if asked."""
        self.tree.detach(node)
        for below in list(node.below()):
            self.unwatch(below)
            self.truncated.discard(below)
            path = below.path
            for name in list(below.files or ()):
                self._active.drop(f"{path}/{name}")
                if report:
                    self._entry.file("deleted", f"{path}/{name}", t, found=True, local=not self.remote)
            self.tree.discard(below)
            below.files = below.children = None
        if report:
            self._entry.file("deleted", node.path, t, is_dir=True, found=True, local=not self.remote)

    # --- scanning ---------------------------------------------------------------------------------------

    def scan(self, top: Node, meaning: Meaning) -> Iterator[None]:
        """Watch and list ``top`` and all below, reporting what is new at once; yields between directories."""
        stack = [top]
        while stack:
            node = stack.pop()
            stack.extend(self.look(node, meaning, None))
            yield

    def reconcile(
        self, top: Node, *, hold: bool = False, stats: bool = True, lists: bool = True
    ) -> Iterator[None]:
        """Compare the tree below ``top`` with the disk, report the differences; yields between directories.

        ``stats``: also ask every known file for its size and time. ``lists`` False: trust an unchanged
        directory time and don't list such a directory, which would also open it. ``hold``: report no file
        as deleted (the file system may be away for a moment).
        """
        findings = Findings()
        stack = [top]
        while stack:
            node = stack.pop()
            if not lists and node not in self.truncated and self._unchanged(node):
                if stats:
                    self._look_at_files(node, findings)
                stack.extend((node.children or {}).values())
            else:
                stack.extend(self.look(node, "found", findings))
            yield
        self._settle(findings, hold=hold)

    def look(self, node: Node, meaning: Meaning, findings: Findings | None) -> list[Node]:
        """Watch and list one directory; return the directories in it that are to be looked at next."""
        holder = self.watch(node)
        if holder is not node:
            return self._not_here(node, holder)
        if meaning == "found" and findings is None:
            self.disarm(node, self._entry.clock())  # a new directory is about to be filled
        return self.compare(node, meaning, findings)

    def compare(self, node: Node, meaning: Meaning, findings: Findings | None) -> list[Node]:
        """List one directory and report what is new in it; return the directories to be looked at next."""
        path, root = node.path, node.root.name
        files: set[str] = set()
        folders: set[str] = set()
        below: list[Node] = []
        self._listed = False
        self.truncated.discard(node)
        for item in self._list(path, node):
            if item.is_dir(follow_symlinks=False):
                folders.add(item.name)
                below.extend(self._folder(node, (path, item), meaning, findings))
            elif not self._entry.hidden(root, f"{path}/{item.name}"):
                # Only what is known can be missed: names beyond the bound need no memory.
                if node.files and item.name in node.files:
                    files.add(item.name)
                self._file(node, (path, item), meaning, findings)
        if findings is not None and self._listed:
            self._note_missing(node, files, folders, findings)
        return below

    def check(self, node: Node) -> None:
        """Compare one directory, not what is below, with the disk; watch and list what is new in it."""
        findings = Findings()
        below = self.compare(node, "found", findings)
        if findings.missing or findings.fresh or findings.gone:
            # The look is ahead of events in the queue, and an inode used again would look like a rename.
            self.drain()
        for child in below:
            if child.wd == UNWATCHED and child not in self.unwatched:
                for _ in self.scan(child, "found"):
                    self._entry.beat()
        self._settle(findings, hold=False)

    def _list(self, path: str, node: Node) -> Iterator[os.DirEntry[str]]:
        """Yield what is in a directory; ``_listed`` is set at its end, if no error came before."""
        try:
            node.mtime_ns = os.lstat(path).st_mtime_ns
            descriptor = open_folder(node.root.name, path)
            try:
                with os.scandir(descriptor) as entries:
                    for count, entry in enumerate(entries):
                        if count % _ITEMS_A_BEAT == 0:
                            self._entry.beat()  # a million names in one directory are work, not a hang
                        yield entry
            finally:
                os.close(descriptor)
            self._listed = True
        except OSError as error:
            if error.errno in OUTAGE_ERRORS:
                raise OutageError(error.errno, error.strerror, path) from error
            node.mtime_ns = 0

    def _folder(
        self, node: Node, found: tuple[str, os.DirEntry[str]], meaning: Meaning, findings: Findings | None
    ) -> list[Node]:
        path, item = found
        child = node.child(item.name)
        if child is not None:
            return [child] if findings is not None or child.wd == UNWATCHED else []
        if self.tree.directories >= self._entry.settings.max_directories:
            message = "the tree has too many directories, the others are not followed"
            self._entry.log(30, message, every_seconds=3600, limit=self._entry.settings.max_directories)
            self.truncated.add(node)
            return []
        child = self.tree.add(item.name, node, item.inode())
        if meaning == "found":
            self._entry.file("create", f"{path}/{item.name}", self._entry.stamp(), is_dir=True, found=True)
        return [child]

    def _not_here(self, node: Node, holder: Node | None) -> list[Node]:
        """Resolve a directory that is gone again, or that still has its watch under another name.

        Returns the node that took the place of one renamed without an event; its files are to be compared.
        """
        if node.parent is None or node.wd != UNWATCHED or node.files or node.children:
            return []  # gone: the event that says so is in the queue
        parent, name = node.parent, node.name
        if holder is not None and holder.parent is not None and not holder.parent.is_attached:
            # It left a directory that is gone by now, and a reader has forgotten its files: all is new.
            self.remove(holder, self._entry.stamp(), report=False)
            return [node]
        self.tree.detach(node)
        self.tree.discard(node)
        if holder is None or holder.parent is None or _is_at(holder):
            return []
        old = holder.path
        self.tree.move(holder, parent, name)
        for path in self._active.below(old):
            self._active.move(path, holder.path + path[len(old) :])
        self._entry.file("moved", old, self._entry.stamp(), to=holder.path, is_dir=True, found=True)
        return [holder]

    def _note_missing(self, node: Node, files: set[str], folders: set[str], findings: Findings) -> None:
        for name in [name for name in node.files or () if name not in files]:
            known = node.file(name)
            if known is not None:
                findings.missing.append((node, name, known))
        findings.gone.extend(child for name, child in (node.children or {}).items() if name not in folders)

    # --- files ------------------------------------------------------------------------------------------

    def _file(
        self, node: Node, found: tuple[str, os.DirEntry[str]], meaning: Meaning, findings: Findings | None
    ) -> None:
        item, path = found[1], f"{found[0]}/{found[1].name}"
        known = node.file(item.name)
        if known is not None and known[2] == item.inode() and self.remote:
            return  # each question may cost the server a round trip
        if known is None and findings is not None and self._is_full(findings):
            return  # beyond the bound what is new can't be told from what was not kept
        try:
            st = os.lstat(path)
        except OSError:
            node.mtime_ns = 0  # gone, or all of the directory has another name by now
            return
        if known is not None and known[2] == st.st_ino:
            if findings is not None:
                findings.compared += 1
                self._changed(node, item.name, path, known, st)
        elif findings is not None:
            findings.fresh.append((node, item.name, st))
        else:
            self.report(node, item.name, st, meaning)

    def _is_full(self, findings: Findings) -> bool:
        return self.tree.files_full or len(findings.fresh) >= self._entry.settings.max_known_files

    def _look_at_files(self, node: Node, findings: Findings) -> None:
        path = node.path
        for name, known in list((node.files or {}).items()):
            findings.compared += 1
            try:
                st = os.lstat(f"{path}/{name}")
            except OSError:
                continue
            if st.st_ino == known[2]:
                self._changed(node, name, f"{path}/{name}", known, st)

    def _changed(self, node: Node, name: str, path: str, known: KnownFile, st: os.stat_result) -> None:
        """Report a known file that was written without an event (overwritten in place, or events lost)."""
        now = known_of(st)
        if now == known or not stat.S_ISREG(st.st_mode):
            return
        if path in self._active.by_path:
            return
        self.opened(path, self._entry.stamp(), st, (node, name, known), found=True, evented=False)

    def opened(
        self,
        path: str,
        t: float,
        st: os.stat_result,
        place: tuple[Node, str, KnownFile | None],
        *,
        found: bool = False,
        evented: bool = True,
        cut: bool = False,
        initial: bool = False,
    ) -> None:
        """Report that an existing file is being written, and follow it.

        ``place`` is its directory, its name and what was known of it if its content may be kept. ``cut``: it
        was truncated, however much of the new content is there by now. ``initial``: it was open before.
        """
        node, name, known = place
        self._entry.file("open", path, t, st, found=found, size=0 if cut else None, initial=initial)
        file = self._active.add(path, t, st, evented=evented)
        if known is not None and 0 < known[0] <= st.st_size:
            file.in_place_size = known[0]
        file.truncated = cut or (known is not None and known[0] > st.st_size)
        self.tree.remember(node, name, known_of(st))
        self.disarm(node, t)

    def report(self, node: Node, name: str, st: os.stat_result, meaning: Meaning) -> None:
        """Report a file that a scan found for the first time, and follow it if it may be open."""
        path = f"{node.path}/{name}"
        t = self._entry.stamp()
        birth = self._entry.birth(path) if stat.S_ISREG(st.st_mode) else None
        # A root that appears later may bring files that are older than the watch.
        initial = meaning == "start" or (meaning == "found" and _is_before(birth, self._entry.began))
        if stat.S_ISLNK(st.st_mode):
            self.tree.remember(node, name, known_of(st))
            if meaning != "silent":
                self._entry.file("link", path, t, st, found=True, initial=initial)
            return
        if not stat.S_ISREG(st.st_mode):
            return
        followed = self._active.by_key.get((st.st_dev, st.st_ino))
        if followed is not None and followed.path == path:
            return
        self.tree.remember(node, name, known_of(st))
        if meaning == "found" and self.rejoin(path, st, t):
            return
        if followed is not None or (st.st_nlink > 1 and meaning == "found"):
            self._entry.file("link", path, t, st, found=True)
            return
        if initial:
            local = not self.remote
            self._entry.file("create", path, t, st, found=True, local=local, initial=True, started=birth)
        elif meaning == "found":
            self._entry.file("create", path, t, st, found=True, local=not self.remote, started=birth)
        elif meaning == "moved":
            self._entry.file("moved", None, t, st, to=path, found=True)
        self._follow_if_open(path, t, st, certain=meaning == "found" and not initial)

    def _follow_if_open(self, path: str, t: float, st: os.stat_result, *, certain: bool) -> None:
        if certain:
            if not self.remote:
                self._active.add(path, t, st, evented=False)
            return
        modified = self._entry.modified(st)
        if modified is not None and t - modified < self._entry.settings.recent_seconds:
            self._active.consider(path, t, st)

    # --- settling ---------------------------------------------------------------------------------------

    def _settle(self, findings: Findings, *, hold: bool) -> None:
        t = self._entry.stamp()
        lost = [*findings.missing, *_files_below(findings.gone)]
        by_inode = {known[2]: (node, name, known) for node, name, known in lost if node.file(name) == known}
        for node, name, seen in findings.fresh:
            path = f"{node.path}/{name}"
            st = lstat(path)
            if st is None or st.st_ino != seen.st_ino:
                continue  # its events tell
            if path in self._active.by_path or node.file(name) == known_of(st):
                continue  # its event came meanwhile
            if node.file(name) is not None:
                self._active.drop(path)
                self.tree.forget(node, name)
            old = by_inode.pop(st.st_ino, None)
            if old is None or is_reused(self._entry.births.unix(path), known_of(st), old[2]):
                if old is not None:
                    self._active.drop(f"{old[0].path}/{old[1]}")
                self.report(node, name, st, "found")
            else:
                self._moved(old, (node, name), st, t)
        if hold:
            return
        for node, name, known in findings.missing:
            path = f"{node.path}/{name}"
            if node.file(name) == known and not os.path.lexists(path):
                self.tree.forget(node, name)
                self._active.drop(path)
                self._entry.file("deleted", path, t, found=True, local=not self.remote)
        for node in findings.gone:
            attached = node.parent is not None and node.parent.child(node.name) is node
            if attached and not os.path.isdir(node.path):
                self.remove(node, t, report=True)

    def _moved(
        self, old: tuple[Node, str, KnownFile], new: tuple[Node, str], st: os.stat_result, t: float
    ) -> None:
        node, name = new
        before, to = f"{old[0].path}/{old[1]}", f"{node.path}/{name}"
        self.tree.forget(old[0], old[1])
        self.tree.remember(node, name, known_of(st))
        self._active.move(before, to)
        self._entry.file("moved", before, t, st, to=to, found=True)

    @staticmethod
    def _unchanged(node: Node) -> bool:
        try:
            return os.lstat(node.path).st_mtime_ns == node.mtime_ns
        except OSError as error:
            if error.errno in OUTAGE_ERRORS:
                raise OutageError(error.errno, error.strerror, node.path) from error
            return False
