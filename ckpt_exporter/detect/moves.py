"""What renames and deletions mean for the files below one directory."""

from __future__ import annotations

from collections.abc import Callable

from ckpt_exporter.detect import layouts
from ckpt_exporter.detect.evidence import earliest, unchanged
from ckpt_exporter.detect.files import FileRecord
from ckpt_exporter.detect.grouping import OpenSaves
from ckpt_exporter.detect.inventory import Inventory
from ckpt_exporter.detect.progress import SaveInProgress
from ckpt_exporter.detect.signs import end_unfinished, note_sign
from ckpt_exporter.model import FileEvent

# A save, its file version, when that was closed, its size in bytes and last change as far as they are known.
Close = Callable[[SaveInProgress, FileRecord, float, "int | None", "float | None"], None]


class Moves:
    """Follow the files that are renamed, come from outside or go. Paths are relative to the directory.

    ``ignored`` tells which names are no checkpoint's; ``close`` takes in that a file version is whole;
    ``emptied`` is called with a save whose last file was deleted.
    """

    def __init__(
        self,
        saves: OpenSaves,
        inventory: Inventory,
        *,
        ignored: Callable[[str], bool],
        close: Close,
        emptied: Callable[[SaveInProgress, float], None],
    ) -> None:
        self._saves = saves
        self._inventory = inventory
        self._ignored = ignored
        self._close = close
        self._emptied = emptied

    def moved(self, event: FileEvent, path: str | None, to: str | None) -> None:
        """Take in a rename; of its two names the one that lies outside is None."""
        if to is None:
            if path is not None:
                self.deleted(event, path)
        elif path is None:
            self._arrive(event, to)
        elif event.is_dir:
            self._move_directory(path, to, event.t)
        else:
            self._move_file(event, path, to)

    def _arrive(self, event: FileEvent, to: str) -> None:
        """Take in what was renamed into the tree: its bytes are known, when they were written is not."""
        if event.is_dir or self._ignored(to):
            return
        if not layouts.is_pointer(to):
            record = FileRecord(to, event.t, start=None)
            record.inode = event.inode
            record.arrive_finished(event.t, event.size or 0)
            self._saves.place(record, to, event.t).published_at = event.t
        note_sign(self._saves, to, event.t)

    def _move_directory(self, path: str, to: str, t: float) -> None:
        self._saves.new_directories.rename(path, to)
        for old in self._saves.below(path):
            if old not in self._saves.by_path:
                continue  # at rest: its save has ended by the move of one before
            self._inventory.remove(old)
            self._saves.relocate(old, to + old[len(path) :], t)
        for old in self._inventory.below(path):
            new = to + old[len(path) :]
            if new not in self._saves.by_path:
                self._inventory.rename(old, new, self._saves.key_at_rest(new))

    def _move_file(self, event: FileEvent, path: str, to: str) -> None:
        save = self._saves.by_path.get(path)
        if save is not None:
            self._inventory.remove(path)
            if layouts.is_pointer(to) or self._ignored(to):
                self._saves.take(path)
                self._saves.drop_if_empty(save)
            elif not self._saves.already_at(path, to, event.inode, event.t):
                self._saves.relocate(path, to, event.t)
                self._catch_up(event, to)
        elif self._inventory.get(path) is not None:
            self._inventory.rename(path, to, self._saves.key_at_rest(to))
        elif not layouts.is_pointer(path) and not self._found_before(event, to):
            self._take_in_unseen(event, to)
        note_sign(self._saves, to, event.t)

    def _take_in_unseen(self, event: FileEvent, to: str) -> None:
        """Take in a file that was written and renamed in a new directory before a watch or scan saw it."""
        if self._ignored(to) or layouts.is_pointer(to):
            return
        begun = event.started if event.started is not None else event.modified
        record = FileRecord(to, event.t, start=earliest(event.t, begun))
        save = self._saves.place(record, to, event.t)
        self._close(save, record, event.t, event.size, event.modified)
        record.inode = event.inode

    def _found_before(self, event: FileEvent, to: str) -> bool:
        """Tell whether a scan has found the renamed file under its new name before the rename was told."""
        if event.inode is None:
            return False
        save = self._saves.by_path.get(to)
        if save is not None:
            return save.files[to].inode == event.inode
        known = self._inventory.get(to)
        return known is not None and unchanged(event, known)

    def _catch_up(self, event: FileEvent, path: str) -> None:
        """Learn the final size of a file that was renamed before its size at the close could be asked."""
        save = self._saves.by_path[path]
        record = save.files[path]
        if not record.open and event.size is not None and event.size > record.size:
            closed_at = record.closed_at if record.closed_at is not None else event.t
            self._close(save, record, closed_at, event.size, event.modified)

    def deleted(self, event: FileEvent, path: str) -> None:
        """Take in that a file or directory was deleted, or renamed to outside."""
        end_unfinished(self._saves, path, event.t)
        self._saves.new_directories.discard(path)
        if path in self._saves.by_path:
            self._delete(path, event.t, seen=not event.found)
        elif event.is_dir:
            for below in self._saves.below(path):
                self._delete(below, event.t)
        self._inventory.remove(path, counts=event.local)
        if event.is_dir:
            self._inventory.remove_below(path, counts=event.local)
            self._saves.forget_finished(path)

    def _delete(self, path: str, t: float, *, seen: bool = False) -> None:
        save = self._saves.by_path[path]
        record = save.files[path]
        if seen and record.open and record.unwitnessed:
            # Its directory was watched before the scan that found it, so its close came before that.
            self._close(save, record, record.changed_at, record.size, None)
            note_sign(self._saves, path, record.changed_at)
        save.removed.append(self._saves.take(path))
        save.touch(t)
        if not save.files:
            self._emptied(save, t)
