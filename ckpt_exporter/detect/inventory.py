"""What is on disk: finished checkpoints, for retention and for telling old files from new ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

MAX_FILES = 200_000


@dataclass(slots=True)
class KnownFile:
    """A file on disk: its checkpoint's ``key``, size in bytes, and monotonic birth and change if known.

    ``found_at`` is when it was found to be there before watching began, None if it was not; ``local`` tells
    whether it can only be this host's.
    """

    key: str
    size: int
    started: float | None = None
    modified: float | None = None
    found_at: float | None = None
    local: bool = True


@dataclass(slots=True)
class Retained:
    """One checkpoint on disk."""

    files: set[str] = field(default_factory=set)
    bytes: int = 0
    complete: bool = False


class Inventory:
    """Files by path and checkpoints by key, bounded to ``MAX_FILES`` files (the rest is not remembered)."""

    def __init__(self) -> None:
        self._files: dict[str, KnownFile] = {}
        self._units: dict[str, Retained] = {}
        self.deleted_checkpoints = 0

    def get(self, path: str) -> KnownFile | None:
        """Return what is known of a relative path."""
        return self._files.get(path)

    def unit(self, key: str) -> Retained | None:
        """Return the checkpoint of that key."""
        return self._units.get(key)

    def units(self) -> Iterator[tuple[str, Retained]]:
        """Iterate over (key, checkpoint)."""
        return iter(self._units.items())

    @property
    def retained_checkpoints(self) -> int:
        """Number of complete checkpoints on disk."""
        return sum(unit.complete for unit in self._units.values())

    @property
    def retained_bytes(self) -> int:
        """Bytes of complete checkpoints on disk."""
        return sum(unit.bytes for unit in self._units.values() if unit.complete)

    def put(self, path: str, file: KnownFile) -> None:
        """Remember a file, replacing what was known of its path."""
        old = self._files.pop(path, None)
        if old is not None:
            self._detach(path, old)
        elif len(self._files) >= MAX_FILES:
            return
        self._files[path] = file
        unit = self._units.setdefault(file.key, Retained())
        unit.files.add(path)
        unit.bytes += file.size

    def complete(self, key: str) -> None:
        """Mark a checkpoint as complete."""
        if key in self._units:
            self._units[key].complete = True

    def remove(self, path: str, *, counts: bool = True) -> bool:
        """Forget a deleted file; True if with it the last file of a complete checkpoint is gone.

        ``counts`` False: another host deleted it, and counts that.
        """
        file = self._files.pop(path, None)
        return file is not None and self._detach(path, file, deleted=counts)

    def remove_below(self, directory: str, *, counts: bool = True) -> int:
        """Forget every file below a deleted directory; return how many complete checkpoints went with it."""
        return sum(self.remove(path, counts=counts) for path in self.below(directory))

    def below(self, directory: str) -> list[str]:
        """List the known paths below a directory."""
        prefix = directory + "/"
        return [
            path
            for key, unit in self._units.items()
            if key.startswith(prefix) or prefix.startswith(key + "/") or "/" not in key or key == directory
            for path in unit.files
            if path.startswith(prefix)
        ]

    def rename(self, path: str, to: str, key: str) -> None:
        """Follow a renamed file into the checkpoint ``key``, which is complete if the old one was."""
        file = self._files.pop(path, None)
        if file is None:
            return
        unit = self._units.get(file.key)
        complete = unit is not None and unit.complete
        self._detach(path, file)
        self.put(to, replace(file, key=key))
        if complete:
            self.complete(key)

    def _detach(self, path: str, file: KnownFile, *, deleted: bool = False) -> bool:
        unit = self._units.get(file.key)
        if unit is None:
            return False
        unit.files.discard(path)
        unit.bytes -= file.size
        if unit.files:
            return False
        del self._units[file.key]
        if deleted and unit.complete:
            self.deleted_checkpoints += 1
            return True
        return False
