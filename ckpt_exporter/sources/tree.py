"""The watched directories as a tree, so that renaming one moves one node and not a thousand paths."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Size in bytes, modification time in nanoseconds and inode of a file when it was last looked at.
KnownFile = tuple[int, int, int]
UNWATCHED = -1


class Node:
    """One directory: its watch descriptor, the directories below and the files last seen in it.

    ``name`` is the whole path for a root. ``armed``: OPEN and MODIFY are in its mask.
    """

    __slots__ = ("armed", "children", "files", "inode", "mtime_ns", "name", "parent", "wd")

    def __init__(self, name: str, parent: Node | None, inode: int = 0) -> None:
        self.name = name
        self.parent = parent
        self.inode = inode
        self.wd = UNWATCHED
        self.armed = False
        self.mtime_ns = 0
        # Made when needed: most of 50,000 directories hold only one of the two.
        self.children: dict[str, Node] | None = None
        self.files: dict[str, KnownFile] | None = None

    @property
    def path(self) -> str:
        """The absolute path, in the configured spelling of the root."""
        parts: list[str] = []
        node = self
        while node.parent is not None:
            parts.append(node.name)
            node = node.parent
        parts.append("" if node.name == "/" else node.name)
        parts.reverse()
        return "/".join(parts) or "/"

    @property
    def root(self) -> Node:
        """The topmost node above this one."""
        node = self
        while node.parent is not None:
            node = node.parent
        return node

    @property
    def is_attached(self) -> bool:
        """Whether this node still hangs in its tree."""
        node = self
        while node.parent is not None:
            if node.parent.child(node.name) is not node:
                return False
            node = node.parent
        return True

    def below(self) -> Iterator[Node]:
        """Yield this node and every node below it; a node may be removed once it was yielded."""
        stack = [self]
        while stack:
            node = stack.pop()
            if node.children:
                stack.extend(node.children.values())
            yield node

    def child(self, name: str) -> Node | None:
        """Return the directory ``name`` in this one, if it is known."""
        return self.children.get(name) if self.children else None

    def file(self, name: str) -> KnownFile | None:
        """Return what was last seen of file ``name``, if it is known."""
        return self.files.get(name) if self.files else None


class Tree:
    """All nodes of one configured directory, found by watch descriptor."""

    def __init__(self, max_files: int) -> None:
        self.by_wd: dict[int, Node] = {}
        self.directories = 0
        self.file_count = 0
        self.files_full = False
        self._max_files = max_files

    def add(self, name: str, parent: Node | None, inode: int = 0) -> Node:
        """Make a node that isn't watched yet."""
        node = Node(name, parent, inode)
        if parent is not None:
            if parent.children is None:
                parent.children = {}
            parent.children[name] = node
        self.directories += 1
        return node

    def bind(self, node: Node, wd: int) -> None:
        """Note that ``wd`` is the watch of ``node``."""
        self.by_wd[wd] = node
        node.wd = wd

    def unbind(self, node: Node) -> int:
        """Forget the watch of ``node`` and return its descriptor."""
        wd, node.wd, node.armed = node.wd, UNWATCHED, False
        if self.by_wd.get(wd) is node:
            del self.by_wd[wd]
        return wd

    def move(self, node: Node, parent: Node, name: str) -> None:
        """Hang ``node`` under ``parent`` as ``name``, keeping all below it."""
        self.detach(node)
        node.name, node.parent = name, parent
        if parent.children is None:
            parent.children = {}
        parent.children[name] = node

    @staticmethod
    def detach(node: Node) -> None:
        """Take ``node`` out of its parent's children."""
        parent = node.parent
        if parent is not None and parent.children is not None and parent.children.get(node.name) is node:
            del parent.children[node.name]

    def remember(self, node: Node, name: str, known: KnownFile) -> None:
        """Note the latest look at a file; beyond the bound only files already known are kept."""
        if node.files is None:
            node.files = {}
        if name not in node.files:
            if self.file_count >= self._max_files:
                self.files_full = True
                return
            self.file_count += 1
        node.files[name] = known

    def forget(self, node: Node, name: str) -> KnownFile | None:
        """Drop file ``name`` and return what was known of it."""
        known = node.files.pop(name, None) if node.files else None
        if known is not None:
            self.file_count -= 1
        return known

    def discard(self, node: Node) -> None:
        """Count out one node that was taken from the tree, with the files known in it."""
        self.directories -= 1
        self.file_count -= len(node.files) if node.files else 0
