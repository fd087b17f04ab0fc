"""Follow the configured path itself: missing, appearing, replaced, unmounted, mounted over."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ckpt_exporter.sources.filestat import lstat
from ckpt_exporter.sources.inotify_calls import (
    BASE_MASK,
    IN_CREATE,
    IN_DELETE_SELF,
    IN_IGNORED,
    IN_MASK_ADD,
    IN_MOVE_SELF,
    IN_MOVED_TO,
    IN_UNMOUNT,
    RawEvent,
)
from ckpt_exporter.sources.roots import Expansion, expand
from ckpt_exporter.sources.watches import OUTAGE_ERRORS, OutageError

if TYPE_CHECKING:
    from ckpt_exporter.sources.entry import Entry
    from ckpt_exporter.sources.progress import ActiveFiles
    from ckpt_exporter.sources.rescan import TreeWatch
    from ckpt_exporter.sources.tree import KnownFile, Node

_VANISHED = IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT | IN_IGNORED

# Runs a scan in slices, then calls back.
Run = Callable[[Iterator[None], str], None]


@dataclass(slots=True)
class Root:
    """One directory that the configured path means.

    ``identity`` is (device, inode) while it is watched. ``lost_at`` is when it went away with files that are
    still believed to exist; ``suspended`` the files that were being written then.
    """

    path: str
    node: Node
    identity: tuple[int, int] | None = None
    device: int = 0
    lost_at: float | None = None
    lost_reason: str = ""
    suspended: list[str] = field(default_factory=list)
    opened: bool = False


class RootWatch:
    """The state machine of the roots: waiting, watching, lost for a moment, gone."""

    def __init__(self, entry: Entry, trees: TreeWatch, active: ActiveFiles, run: Run) -> None:
        self._entry = entry
        self._trees = trees
        self._active = active
        self._run = run
        self.roots: dict[str, Root] = {}
        self._expansion = Expansion()
        # Watch descriptor -> directory in which a part of the path may appear.
        self._awaited: dict[int, str] = {}
        self.due_now = False

    # --- events -----------------------------------------------------------------------------------------

    def handle(self, event: RawEvent) -> None:
        """Take in an event that may concern a part of the path that is missing."""
        directory = self._awaited.get(event.wd)
        if directory is None:
            return
        if event.mask & _VANISHED:
            if event.mask & IN_IGNORED:
                del self._awaited[event.wd]
            self.due_now = True
        elif event.mask & (IN_CREATE | IN_MOVED_TO):
            name = os.fsdecode(event.name)
            self.due_now = self.due_now or self._expansion.awaits(directory, name)

    def forget_watches(self) -> None:
        """Note that the inotify instance is a new one."""
        self._awaited.clear()

    # --- the state machine ------------------------------------------------------------------------------

    def check(self, t: float) -> None:
        """Compare the path with the disk: open what is there, give up what is not."""
        self.due_now = False
        for _ in range(3):
            self._expansion = expand(self._entry.directory.path, self._entry.settings.max_roots)
            if not self._await():
                break  # nothing changed between looking and watching
        if self._expansion.truncated:
            self._entry.log(30, "the path matches too many directories", every_seconds=3600)
        reason = "missing"
        for path in self._expansion.roots:
            reason = self._check_root(path, t) or reason
        present = set(self._expansion.roots)
        for root in list(self.roots.values()):
            if root.path not in present and root.identity is not None:
                self.lose(root, t, root.lost_reason or "root_lost")
                reason = root.lost_reason
            self._expire(root, t)
        up = any(root.identity is not None for root in self.roots.values())
        if not up and self._entry.up is None:
            reason = self._why_missing(reason)
        self._entry.set_up(up=up, reason=self._up_reason() if up else reason)

    def _up_reason(self) -> str:
        reasons = [root.lost_reason for root in self.roots.values() if root.lost_reason]
        return reasons[0] if reasons and self._entry.up is not None else "start"

    def _check_root(self, path: str, t: float) -> str | None:
        """Open, keep or replace one root; return why it can't be watched, None when it is."""
        root = self.roots.get(path)
        try:
            st = os.stat(path)
            with os.scandir(path):
                pass  # the right to list it, and an answer from its file system
        except OSError as error:
            reason = _reason_of(error)
            if root is not None and root.identity is not None:
                self.lose(root, t, reason)
            return reason
        identity = (st.st_dev, st.st_ino)
        if root is None:
            root = self.roots[path] = Root(path, self._trees.tree.add(path, None, st.st_ino))
        if root.identity == identity:
            return None
        if root.identity is not None:
            self.lose(root, t, "mount_changed" if st.st_dev != root.identity[0] else "root_lost")
        try:
            return self._open(root, st, t)
        except OutageError as error:
            return _reason_of(error)

    def _open(self, root: Root, st: os.stat_result, t: float) -> str | None:
        if self._trees.watch(root.node) is not root.node:
            return "missing"
        root.identity = (st.st_dev, st.st_ino)
        self._trees.remote = self._entry.is_shared(root.path, st.st_dev)
        first, root.opened = not root.opened, True
        if first:
            root.device = st.st_dev
            # Files count as there before only if watching begins now; what a root brings that appears
            # later was made while we waited for it.
            begins = self._entry.up is None
            self._entry.set_up(up=True, reason="start" if begins else "appeared")
            if begins:
                self._run(self._trees.scan(root.node, "start"), "start")
            else:
                self._run(self._trees.scan(root.node, "found"), "appeared")
            return None
        away = root.lost_at is not None and t - root.lost_at < self._entry.settings.outage_seconds
        # Another file system below the same path may be the mount point of one that is away for a moment.
        hold = away and st.st_dev != root.device
        if not hold:
            root.device, root.lost_at = st.st_dev, None
        reason = root.lost_reason or "root_lost"
        self._entry.set_up(up=True, reason=reason)
        self._run(self._resume(root, hold=hold), reason)
        root.lost_reason = ""
        return None

    def _resume(self, root: Root, *, hold: bool) -> Iterator[None]:
        yield from self._trees.reconcile(root.node, hold=hold)
        suspended, root.suspended = root.suspended, []
        for path in suspended:
            st = lstat(path)
            if st is not None:
                self._active.consider(path, self._entry.clock(), st)

    def lose(self, root: Root, t: float, reason: str) -> None:
        """Stop watching a root that is no longer the directory at its path; believe its files for a while."""
        root.identity = None
        root.lost_reason = reason
        if root.lost_at is None:
            root.lost_at = t
        root.suspended.extend(self._active.below(root.path))
        for path in root.suspended:
            self._active.drop(path)
        self._trees.forget_watches(root.node)
        up = any(other.identity is not None for other in self.roots.values())
        self._entry.set_up(up=up, reason=reason)

    def _expire(self, root: Root, t: float) -> None:
        """Report the files of a root that stayed away as deleted."""
        if root.lost_at is None or t - root.lost_at < self._entry.settings.outage_seconds:
            return
        root.lost_at = None
        if root.identity is not None:
            root.device = root.identity[0]
            self._run(self._trees.reconcile(root.node), root.lost_reason or "root_lost")
            return
        self._trees.remove(root.node, t, report=True)
        del self.roots[root.path]

    def adopt(self, path: str, device: int, known: Iterable[tuple[str, int, KnownFile | None]]) -> None:
        """Begin with a root whose directories (no file) and files are known already, parents first."""
        tree = self._trees.tree
        root = self.roots[path] = Root(path, tree.add(path, None), device=device, opened=True)
        root.lost_reason = "inotify"
        nodes = {path: root.node}
        for item, inode, file in known:
            folder, _, name = item.rpartition("/")
            parent = nodes.get(folder)
            if parent is None:
                continue
            if file is None:
                nodes[item] = tree.add(name, parent, inode)
            else:
                tree.remember(parent, name, file)

    def root_event(self, node: Node, mask: int) -> None:
        """Take in that a root itself was deleted, renamed or unmounted."""
        root = self.roots.get(node.name)
        if root is not None:
            root.lost_reason = "unmounted" if mask & IN_UNMOUNT else "root_lost"
        self.due_now = True

    def find(self, directory: str) -> Node | None:
        """Return the node of a directory's path."""
        for path, root in self.roots.items():
            if directory == path:
                return root.node
            prefix = path.rstrip("/") + "/"
            if directory.startswith(prefix):
                node: Node | None = root.node
                for part in directory[len(prefix) :].split("/"):
                    node = node.child(part) if node is not None else None
                return node
        return None

    def next_due(self, t: float) -> float:
        """Return when to check again without an event."""
        expiries = [root.lost_at for root in self.roots.values() if root.lost_at is not None]
        regular = t + self._entry.settings.root_check_seconds
        return min([regular, *(lost + self._entry.settings.outage_seconds for lost in expiries)])

    # --- waiting ----------------------------------------------------------------------------------------

    def _await(self) -> bool:
        """Watch the directories in which a part of the path may appear; tell whether that changed."""
        fd, calls = self._trees.fd, self._entry.shared.calls
        if fd < 0:
            return False
        wanted = self._expansion.expecting
        for wd, directory in list(self._awaited.items()):
            if directory not in wanted:
                del self._awaited[wd]
                if wd not in self._trees.tree.by_wd:
                    _remove(calls, fd, wd)
        have = set(self._awaited.values())
        for directory in wanted.keys() - have:
            try:
                # Added to a mask that the directory may have as part of a watched tree.
                wd = calls.add_watch(fd, os.fsencode(directory), _AWAIT_MASK)
            except OSError:
                continue
            self._awaited[wd] = directory
        return wanted.keys() - have != set()

    def _why_missing(self, reason: str) -> str:
        path = self._entry.directory.path
        if reason == "missing" and os.path.exists(path) and not os.path.isdir(path):
            return "not_a_directory"
        if reason == "missing" and not os.path.exists(path):
            return "permission_denied" if _is_hidden_by_rights(path) else reason
        return reason


_AWAIT_MASK = (BASE_MASK & (IN_CREATE | IN_MOVED_TO | IN_DELETE_SELF | IN_MOVE_SELF)) | IN_MASK_ADD


def _remove(calls: object, fd: int, wd: int) -> None:
    try:
        calls.rm_watch(fd, wd)  # type: ignore[attr-defined]
    except OSError:
        return


def _is_hidden_by_rights(path: str) -> bool:
    try:
        os.stat(path)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def _reason_of(error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        return "permission_denied"
    if error.errno in OUTAGE_ERRORS:
        return "io_error"
    return "not_a_directory" if error.errno == errno.ENOTDIR else "missing"
