"""What the looks at a shared directory remember of it, and which of its folders are due for the next one."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ckpt_exporter.detect.layouts import locate

# A folder in which something changed is looked at in every round for so long.
HOT_SECONDS = 120.0
# So many folders that hold checkpoints are looked at in every round; beyond them one a round.
MAX_HOLDERS = 16
# Of each folder that holds checkpoints, so many of its newest checkpoints and files are looked at.
NEWEST = 2
MAX_FOLDERS = 20_000
MAX_NAMES = 200_000
_NUMBERS = re.compile(r"(\d+)")


@dataclass(slots=True)
class RemoteName:
    """One file as it was last looked at; ``calm`` counts the looks at which it was as before."""

    stamp: tuple[int, int, int, int]
    looked_at: float
    calm: int = 0
    due: float = 0.0


class Folder:
    """One directory. ``names`` are its entries with inode and kind, None while it was never listed.

    ``stamp`` is its own state when last looked at (None: never), ``files`` holds those that may change.
    """

    __slots__ = (
        "changed_at", "children", "files", "hot_until", "in_checkpoint", "looked_at", "name", "names",
        "parent", "recheck", "stamp",
    )  # fmt: skip

    def __init__(self, name: str, parent: Folder | None, *, in_checkpoint: bool = False) -> None:
        self.name = name
        self.parent = parent
        self.in_checkpoint = in_checkpoint
        self.names: dict[str, tuple[int, bool]] | None = None
        self.files: dict[str, RemoteName] = {}
        self.children: dict[str, Folder] = {}
        self.stamp: tuple[int, int, int, int] | None = None
        self.looked_at: float | None = None
        self.hot_until = float("-inf")
        self.changed_at = float("-inf")
        self.recheck = False

    @property
    def path(self) -> str:
        """The absolute path."""
        parts: list[str] = []
        folder: Folder | None = self
        while folder is not None:
            parts.append(folder.name)
            folder = folder.parent
        return "/".join(reversed(parts)) or "/"

    def below(self) -> Iterator[Folder]:
        """Yield this folder and all below it."""
        stack = [self]
        while stack:
            folder = stack.pop()
            stack.extend(folder.children.values())
            yield folder


class RemoteTree:
    """All folders of one shared directory; ``pattern`` is the configured path below ``base``, in parts."""

    def __init__(self, base: str, pattern: Sequence[str], layout: str) -> None:
        self.root = Folder("" if base == "/" else base, None)
        # False once most files of a folder seemed to be others at the next look: some file systems make
        # inode numbers up.
        self.inodes_last = True
        self._pattern = tuple(pattern)
        self._layout = layout
        self._rotation: list[Folder] = []

    def relative(self, path: str) -> str:
        """Return a path relative to the root."""
        return path[len(self.root.name) + 1 :]

    def add(self, parent: Folder, name: str) -> Folder | None:
        """Make the node of a folder; None if it can hold nothing that is watched."""
        path = self.relative(f"{parent.path}/{name}")
        if self._pattern and not _may_lead(path.split("/"), self._pattern):
            return None
        inside = parent.in_checkpoint or (self.holds_files(path) and locate(path, self._layout) is not None)
        folder = parent.children[name] = Folder(name, parent, in_checkpoint=inside)
        return folder

    def holds_files(self, path: str) -> bool:
        """Tell whether a relative path lies at or below what the configured path matches."""
        if not self._pattern:
            return True
        parts = path.split("/") if path else []
        return any(_matches(parts[:count], self._pattern) for count in range(len(parts) + 1))

    def due(self, now: float) -> list[Folder]:
        """Return the folders to look at in this round, and forget what need not be remembered."""
        everything = list(self.root.below())
        holders = [folder for folder in everything if not folder.in_checkpoint and folder is not self.root]
        holders.sort(key=lambda folder: folder.changed_at, reverse=True)
        chosen = [self.root, *holders[:MAX_HOLDERS]]
        for holder in list(chosen):
            checkpoints = [child for child in holder.children.values() if child.in_checkpoint]
            newest = sorted(checkpoints, key=lambda child: natural(child.name))[-NEWEST:]
            for child in newest:
                child.recheck = child.recheck or child.names is None
            chosen += newest
        chosen += [folder for folder in everything if folder.hot_until > now or folder.recheck]
        chosen += self._next_of(everything, chosen)
        self._forget(everything, now)
        return list(dict.fromkeys(chosen))

    def _next_of(self, everything: list[Folder], chosen: list[Folder]) -> list[Folder]:
        """Return one of the folders that no round looks at, each in its turn."""
        taken = set(map(id, chosen))
        while self._rotation:
            folder = self._rotation.pop()
            if id(folder) not in taken and (folder.parent is None or folder.name in folder.parent.children):
                return [folder]
        self._rotation = everything if len(everything) > len(taken) else []
        return []

    def _forget(self, everything: list[Folder], now: float) -> None:
        names = 0
        for folder in everything:
            if folder.hot_until <= now and folder.files:
                newest = sorted(folder.files, key=lambda name: folder.files[name].stamp[2])[-NEWEST:]
                folder.files = {name: folder.files[name] for name in newest}
            names += len(folder.names or ())
        if names > MAX_NAMES:
            for folder in sorted(everything, key=lambda folder: folder.changed_at)[: len(everything) // 2]:
                folder.names = None  # listed anew, and without a word, when it changes

    @property
    def folders(self) -> int:
        """Number of folders known."""
        return sum(1 for _ in self.root.below())


def natural(name: str) -> list[tuple[int, str]]:
    """Return a key by which ``step-9`` comes before ``step-10``."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in _NUMBERS.split(name)]


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(parts[skip:], pattern[1:]) for skip in range(len(parts) + 1))
    return bool(parts) and fnmatch.fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def _may_lead(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Tell whether a folder may be, hold, or lie in one that the pattern matches."""
    if not parts or not pattern or pattern[0] == "**":
        return True
    return fnmatch.fnmatchcase(parts[0], pattern[0]) and _may_lead(parts[1:], pattern[1:])
