"""Which directories have a watch, and with which mask."""

from __future__ import annotations

import errno
import logging
import os
from typing import TYPE_CHECKING

from ckpt_exporter.sources.inotify_calls import BASE_MASK, IDLE_MASK, IN_DONT_FOLLOW, READING_MASK
from ckpt_exporter.sources.tree import UNWATCHED, Node, Tree

if TYPE_CHECKING:
    from ckpt_exporter.sources.entry import Entry

OUTAGE_ERRORS = frozenset({errno.EIO, errno.ESTALE, errno.ENODEV, errno.ENOTCONN, errno.ETIMEDOUT})
_GONE_ERRORS = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


class OutageError(OSError):
    """The file system does not answer; nothing is known about its files now."""


class Watches:
    """The watches of one configured directory's tree on one inotify instance."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._calls = entry.shared.calls
        self.tree = Tree(entry.settings.max_known_files)
        self.fd = -1
        # A directory just made may take the watch of an old one when there are no more.
        self.prefer_new = False
        # Directories that the kernel's limit leaves without a watch.
        self.unwatched: dict[Node, None] = {}
        # Directories in which more are than the tree may hold.
        self.truncated: set[Node] = set()
        # When a directory with the mask without OPEN and MODIFY goes back to the idle mask.
        self.unarmed: dict[Node, float] = {}
        # Directories in which something happens now.
        self.burst: set[Node] = set()
        # Until when the closes of readers are listened for.
        self.read: dict[Node, float] = {}

    def watch(self, node: Node, *, armed: bool = False) -> Node | None:
        """Put the directory under watch (again); return the node that has the watch, None if it is gone."""
        if self.fd < 0:
            return node
        try:
            wd = self._add(node, IDLE_MASK if armed else BASE_MASK)
        except OSError as error:
            return self._not_watched(node, error)
        self.unwatched.pop(node, None)
        holder = self.tree.by_wd.get(wd)
        if holder is not None and holder is not node:
            return holder  # the same directory under an older name
        if node.wd not in (UNWATCHED, wd):
            self.unwatch(node)  # another directory has this path now
        self.tree.bind(node, wd)
        node.armed = armed
        if armed:
            self.unarmed.pop(node, None)
            self.burst.discard(node)
        else:
            self.unarmed.setdefault(node, self._entry.clock())
        return node

    def _add(self, node: Node, mask: int) -> int:
        if node.parent is not None:
            mask |= IN_DONT_FOLLOW  # the root alone may be a link
        return self._calls.add_watch(self.fd, os.fsencode(node.path), mask)

    def _not_watched(self, node: Node, error: OSError) -> Node | None:
        if error.errno in _GONE_ERRORS:
            return None
        if error.errno in OUTAGE_ERRORS:
            raise OutageError(error.errno, error.strerror, node.path) from error
        if error.errno == errno.ENOSPC:
            if node not in self.unwatched and self._make_room(node):
                return self.watch(node)
            self._entry.log(
                logging.WARNING,
                "the kernel's limit of inotify watches is reached: the other directories are polled; "
                "raise fs.inotify.max_user_watches",
                every_seconds=3600,
                sysctl="fs.inotify.max_user_watches",
                watched=len(self.tree.by_wd),
            )
        else:
            self._entry.log(
                logging.WARNING,
                "cannot watch a directory",
                every_seconds=60,
                path=node.path,
                error=error.strerror,
            )
        self.unwatched[node] = None
        return node

    def _make_room(self, node: Node) -> bool:
        """Give the watch of an old, quiet directory to a new one, which is where a save happens."""
        if not self.prefer_new and node.parent is not None:
            return False
        for other in self.tree.by_wd.values():
            if other.parent is not None and not other.children and other not in self.burst:
                self.unwatch(other)
                self.unwatched[node] = None
                self.unwatched[other] = None
                return True
        return False

    def unwatch(self, node: Node) -> None:
        """Remove the watch of one directory."""
        self.unwatched.pop(node, None)
        self.unarmed.pop(node, None)
        self.burst.discard(node)
        self.read.pop(node, None)
        wd = self.tree.unbind(node)
        if wd != UNWATCHED:
            try:
                self._calls.rm_watch(self.fd, wd)
            except OSError:
                return  # the kernel removed it already

    def disarm(self, node: Node, now: float) -> None:
        """Drop OPEN and MODIFY from the mask while something happens in the directory."""
        self.burst.add(node)
        self.read.pop(node, None)
        if node.armed:
            self.watch(node)
        self.unarmed[node] = now + self._entry.settings.rearm_seconds

    def listen_for_closes(self, node: Node, until: float) -> None:
        """Let the closes of readers in an idle directory be told, too, for a while."""
        known = node in self.read
        self.read[node] = until
        if not known and node.armed:
            try:
                wd = self._add(node, READING_MASK)
                if wd not in self.tree.by_wd:
                    # Another directory has this path by now; its own events will tell.
                    self._calls.rm_watch(self.fd, wd)
            except OSError:
                self.read.pop(node, None)

    def stop_listening(self, now: float) -> float:
        """Go back to the idle mask where nothing was read lately; return when to come again."""
        for node in [node for node, until in self.read.items() if until <= now]:
            del self.read[node]
            if node.armed:
                self.watch(node, armed=True)
        return min(self.read.values(), default=float("inf"))

    def forget_watches(self, root: Node) -> None:
        """Note that every watch below ``root`` is void (a new instance, another file system)."""
        for node in root.below():
            self.unwatch(node)
