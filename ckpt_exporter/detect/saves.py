"""From facts to saves: what each event means for the files being written, and when a save has ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ckpt_exporter.detect import layouts
from ckpt_exporter.detect.bandwidth import Meter
from ckpt_exporter.detect.evidence import closed_again, earliest, is_rewrite, unchanged
from ckpt_exporter.detect.files import FileRecord
from ckpt_exporter.detect.grouping import OpenSaves
from ckpt_exporter.detect.inventory import Inventory, KnownFile
from ckpt_exporter.detect.moves import Moves
from ckpt_exporter.detect.places import NewDirectories, Openings, fixed_prefix, relative_to
from ckpt_exporter.detect.progress import SaveInProgress, joined_late
from ckpt_exporter.detect.resume import begin_after_pause, look_at, resume
from ckpt_exporter.detect.signs import begin_unfinished, note_remote_commit, note_sign
from ckpt_exporter.detect.verdict import EarlierSaves, big_enough, is_due, judge, take_stock
from ckpt_exporter.model import (
    DetectSettings,
    DirectorySettings,
    Fact,
    FileEvent,
    OpenSave,
    Progress,
    Save,
    Space,
    WatchChange,
    Writers,
)

# From the event of a new directory to the scan that finds what was made in it meanwhile, with room.
SCAN_LAG_SECONDS: Final = 2.0


class SaveDetector:
    """Turn the facts of one directory into saves.

    Facts come in time order; ``feed`` and ``tick`` return the saves that ended. Nothing here reads a clock:
    the same facts give the same saves, live or replayed.
    """

    def __init__(self, directory: DirectorySettings, settings: DetectSettings) -> None:
        self.directory = directory
        self.settings = settings
        self.base = fixed_prefix(directory.path)
        self.inventory = Inventory()
        self.meter = Meter()
        self._saves = OpenSaves(directory.layout, settings.quiet_seconds, self._end)
        self._moves = Moves(
            self._saves, self.inventory, ignored=self._ignored, close=self._close, emptied=self._emptied
        )
        self._earlier = EarlierSaves()
        self._space: Space | None = None
        self._scanned = False
        self._openings = Openings()
        self._made_here = NewDirectories()
        self._ended: list[Save] = []

    # --- in ---------------------------------------------------------------------------------------------

    def reconfigure(self, directory: DirectorySettings, settings: DetectSettings) -> None:
        """Go on under new settings of the same path; open saves stay open."""
        self.directory = directory
        self.settings = settings
        self._saves.layout = directory.layout
        self._saves.quiet_seconds = settings.quiet_seconds

    def owns(self, path: str | None) -> bool:
        """Tell whether an absolute path lies below this directory."""
        return path is not None and relative_to(path, self.base) is not None

    def feed(self, fact: Fact) -> list[Save]:
        """Take in one fact; return the saves that it ended."""
        if isinstance(fact, FileEvent):
            self._on_file(fact)
        elif isinstance(fact, Progress):
            self._on_progress(fact)
        elif isinstance(fact, Writers):
            self._on_writers(fact)
        elif isinstance(fact, Space):
            self._space = fact
        elif isinstance(fact, WatchChange):
            self._on_watch_change(fact)
        return self._handed_out()

    def tick(self, now: float) -> list[Save]:
        """Let time pass until ``now``; return the saves that ended by it."""
        for save in list(self._saves.by_key.values()):
            if is_due(save, now, self.settings, self._earlier):
                self._end(save, now)
        return self._handed_out()

    def finish(self, now: float) -> list[Save]:
        """Stop watching: return the saves that are committed by now; the others stay unjudged."""
        for save in list(self._saves.by_key.values()):
            # Weights alone may be all that there will be, or what the Trainer writes first.
            may_go_on = save.unproven and save.rules.need == "required"
            if save.open_files == 0 and save.unmet()[0] is None and not may_go_on:
                self._end(save, now)
        return self._handed_out()

    def adopt(self, record: FileRecord, to: str, t: float) -> list[Save]:
        """Take over a file that was written below another directory and has been renamed into this one."""
        path = relative_to(to, self.base)
        if path is not None:
            record.changed_at = max(record.changed_at, t)
            if not record.open:
                record.closed_at = t
            self._saves.place(record, path, t)
            note_sign(self._saves, path, t)
        return self._handed_out()

    def release(self, path: str) -> FileRecord | None:
        """Give up the record of an absolute path that is being renamed to another directory."""
        relative = relative_to(path, self.base)
        if relative is None or relative not in self._saves.by_path:
            return None
        save = self._saves.by_path[relative]
        record = self._saves.take(relative)
        self._saves.drop_if_empty(save)
        return record

    # --- out --------------------------------------------------------------------------------------------

    def open_saves(self, now: float) -> tuple[OpenSave, ...]:
        """Return the saves being written now."""
        return tuple(
            save.view(self.directory.name, self._shown_path(save), stalled=self._stalled(save, now))
            for save in self._saves.by_key.values()
            if self._visible(save)
        )

    @property
    def saving(self) -> bool:
        """Tell whether a save is open or has yet to be judged."""
        return bool(self._saves.by_key)

    @property
    def retained(self) -> tuple[int, int] | None:
        """Complete checkpoints on disk and their bytes; None before the tree has been scanned."""
        if not self._scanned:
            return None
        return self.inventory.retained_checkpoints, self.inventory.retained_bytes

    # --- file events ------------------------------------------------------------------------------------

    def _on_file(self, event: FileEvent) -> None:
        path = relative_to(event.path, self.base) if event.path is not None else None
        if event.event == "moved":
            self._moves.moved(event, path, relative_to(event.to, self.base) if event.to is not None else None)
        elif path is None:
            return
        elif event.event == "deleted":
            self._moves.deleted(event, path)
        elif event.is_dir:
            if event.event == "create" and not event.initial:
                self._saves.new_directories.add(path, event.t)
                if not event.found:
                    self._made_here.add(path, event.t)
        elif not self._ignored(path):
            self._on_name(event, path)

    def _on_name(self, event: FileEvent, path: str) -> None:
        if event.event == "link":
            if not event.initial:
                note_sign(self._saves, path, event.t)
        elif layouts.is_pointer(path) and not self._holds_data(event, path):
            if event.event == "close_write" or (event.found and not event.initial):
                note_sign(self._saves, path, event.t)
        elif event.initial and event.event != "open":
            self._remember(path, event)
        elif not event.local:
            # Whose it is shows when it is closed. What a scan finds in a directory that was just made here
            # was created before its watch began to tell.
            if self._made_here.topmost(path, event.t - SCAN_LAG_SECONDS) is not None:
                self._openings.note(path, event.t)
            self._remember(path, event)
            note_sign(self._saves, path, event.t)
            note_remote_commit(self._saves, path)
        elif begin_unfinished(self._saves, self.inventory, path, event.t):
            return
        elif event.event == "close_write":
            self._on_close(event, path)
        else:
            self._on_write_open(event, path)

    def _holds_data(self, event: FileEvent, path: str) -> bool:
        """Tell whether a file with a pointer's name is a checkpoint after all: pointers are small."""
        if path in self._saves.by_path:
            return True
        if (event.size or 0) > layouts.MAX_POINTER_BYTES:
            return True
        if event.event in ("create", "open") and not event.initial:
            self._openings.note(path, event.t)
        return False

    def _on_write_open(self, event: FileEvent, path: str) -> None:
        save = self._saves.by_path.get(path)
        old = save.files[path] if save is not None else None
        if save is not None and old is not None and (old.open or not is_rewrite(old, event)):
            if not old.open and not event.found:
                save.reopen(old, event.t)
            return
        before = self._saves.renamed_from(event.inode, path, event.started) if event.found else None
        if before is not None:
            self._saves.relocate(before, path, event.t)
            return
        known = self.inventory.get(path)
        if known is not None and event.found and unchanged(event, known):
            return
        if event.initial and known is not None:
            self._resume(path, look_at(event), event.t).note_writer(event.pid)
            return
        existing = known.size if known is not None and event.event == "open" else 0
        if event.size is not None and event.size != existing:
            existing = 0  # cut to nothing and being written anew: what grows from its old size is appended
        start = min(event.t, event.started) if event.started is not None else event.t
        record = FileRecord(path, event.t, start=start, existing=existing)
        record.inode = event.inode
        record.unwitnessed = event.found
        record.size = max(record.size, event.size or 0)
        self._begin(record, path, event.t).note_writer(event.pid)

    def _on_close(self, event: FileEvent, path: str) -> None:
        save = self._saves.by_path.get(path) or self._unannounced(event, path)
        if save is None:
            return
        record = save.files[path]
        if not record.open and closed_again(event, record):
            return
        if not record.open and event.size is not None and event.size < record.size:
            record = FileRecord(path, event.t, start=earliest(event.t, event.modified))
            save = self._saves.place(record, path, event.t)
        self._close(save, record, event.t, event.size, event.modified)
        record.unwitnessed = False
        record.inode = event.inode or record.inode
        save.note_writer(event.pid)
        note_sign(self._saves, path, event.t)

    def _unannounced(self, event: FileEvent, path: str) -> SaveInProgress | None:
        """Begin a record for a file whose opening was missed; None if nothing was written to it."""
        known = self.inventory.get(path)
        if known is not None and unchanged(event, known):
            return None
        seen = self._openings.take(path)
        written = event.started if event.started is not None else event.modified
        start = earliest(event.t, seen if seen is not None else written)
        return self._begin(FileRecord(path, event.t, start=start), path, event.t)

    # --- progress and the rest --------------------------------------------------------------------------

    def _on_progress(self, progress: Progress) -> None:
        path = relative_to(progress.path, self.base)
        if path is None or self._ignored(path):
            return
        if layouts.is_pointer(path) and progress.size <= layouts.MAX_POINTER_BYTES:
            return
        save = self._saves.by_path.get(path) or self._resumed(path, progress)
        if save is None:
            return
        record = save.files[path]
        self._count(save, record, record.advance(progress))
        if progress.writers == 0 and record.open:
            ended = min(record.changed_at if progress.modified is None else progress.modified, progress.t)
            self._close(save, record, ended, progress.size, None)
            note_sign(self._saves, path, ended)
        elif record.open and progress.writers:
            record.changed_at = max(record.changed_at, progress.t)

    def _resumed(self, path: str, progress: Progress) -> SaveInProgress | None:
        known = self.inventory.get(path)
        if progress.writers == 0 or (known is not None and not progress.writers):
            return None  # nobody writes it
        seen = self._openings.take(path)
        return self._resume(path, progress, seen if seen is not None else progress.t)

    def _resume(self, path: str, progress: Progress, start: float) -> SaveInProgress:
        return resume(self._saves, self.inventory, path, progress, start=start, settings=self.settings)

    def _count(self, save: SaveInProgress, record: FileRecord, arrived: int) -> None:
        """Add newly arrived bytes to their save and to the live counters."""
        if arrived > 0:
            self.meter.add(arrived, record.arrivals.last)
            save.arrived(record, arrived)

    def _close(
        self, save: SaveInProgress, record: FileRecord, t: float, size: int | None, modified: float | None
    ) -> None:
        self._count(save, record, record.close(t, size, modified))
        save.closed(record)

    def knows_any(self, pids: Iterable[int]) -> bool:
        """Tell whether one of these processes writes a save that is open."""
        wanted = set(pids)
        return any(not save.pids.isdisjoint(wanted) for save in self._saves.by_key.values())

    def _on_writers(self, writers: Writers) -> None:
        paths = {relative_to(path, self.base) for path in writers.paths}
        for save in self._saves.by_key.values():
            concerned = bool(save.pids & set(writers.pids)) or not paths.isdisjoint(save.files)
            # Living writers of unknown files may be its writers; that others died is no news of it.
            if concerned or (writers.alive and not writers.paths):
                save.add_writers(writers)

    def _on_watch_change(self, change: WatchChange) -> None:
        if change.event in ("overflow", "rescan") and change.reason not in ("start", "periodic"):
            for save in self._saves.by_key.values():
                save.notes.add("reconciled")
        if change.event == "rescan" and change.reason == "start":
            self._scanned = True
            take_stock(self.inventory, self._saves.by_key, self.settings)

    def _remember(self, path: str, event: FileEvent) -> None:
        key = self._saves.key_at_rest(path)
        found_at = event.t if event.initial else None
        known = KnownFile(key, event.size or 0, event.started, event.modified, found_at, event.local)
        self.inventory.put(path, known)

    def _ignored(self, path: str) -> bool:
        return layouts.is_noise(path) or layouts.is_ignored(path, self.directory.ignore)

    # --- ending -----------------------------------------------------------------------------------------

    def _begin(self, record: FileRecord, path: str, t: float) -> SaveInProgress:
        """Place a version of a file; with the first of a save goes what was there of it before."""
        save = self._saves.place(record, path, t)
        begin_after_pause(self._saves, self.inventory, save, record, self.settings)
        return save

    def _emptied(self, save: SaveInProgress, t: float) -> None:
        """End a save whose last file was deleted: it was committed before, or it is aborted.

        What a scan found and was gone at once may have been committed before: of that nothing is said.
        """
        removed, save.removed = save.removed, []
        committed = save.marker_at is not None or save.published_at is not None
        closed = all(not record.open and (committed or not record.staged) for record in removed)
        for record in removed:
            save.put(record)
        if closed and save.unmet()[0] is None and not self._earlier.owes_marker(save):
            self._end(save, t)
            for record in removed:
                self.inventory.remove(record.path)
        elif closed and all(record.unwitnessed for record in removed):
            self._saves.close(save)
        else:
            self._end(save, t, aborted=True)

    def _end(self, save: SaveInProgress, now: float, *, aborted: bool = False) -> None:  # noqa: ARG002
        """Judge a save and hand it out, unless it is too small to be one."""
        self._saves.close(save)
        result, reason = judge(save, self._earlier, self._space, aborted=aborted)
        counts = big_enough(save, self.settings)
        if not aborted:
            self._retain(save, complete=result == "complete" and counts)
        if not counts and not (save.late_of and result == "complete"):
            return
        ended = save.ended(self.directory.name, self._shown_path(save), result, reason)
        if result == "complete":
            self._earlier.add(save)
            late = save.late_of is not None
            self._saves.remember(save, joined_late(save.late_of, ended) if late and save.late_of else ended)
        self._ended.append(ended)

    def _retain(self, save: SaveInProgress, *, complete: bool) -> None:
        for record in save.files.values():
            known = KnownFile(save.key, record.size, record.start, record.closed_at)
            self.inventory.put(record.path, known)
        if complete:
            self.inventory.complete(save.key)

    def _handed_out(self) -> list[Save]:
        ended, self._ended = self._ended, []
        return ended

    def _visible(self, save: SaveInProgress) -> bool:
        if save.open_files == 0 and save.unmet()[0] is None and not big_enough(save, self.settings):
            return False
        return save.named or save.bytes_arrived >= self.settings.min_bytes

    def _stalled(self, save: SaveInProgress, now: float) -> bool:
        return now - max(save.last_byte, save.start) > self.settings.stall_seconds

    def _absolute(self, path: str) -> str:
        return f"{self.base}/{path}" if self.base != "/" else f"/{path}"

    def _shown_path(self, save: SaveInProgress) -> str:
        if save.named or len(save.files) != 1:
            return self._absolute(save.key.partition("#")[0]).rstrip("/")
        return self._absolute(next(iter(save.files)))
