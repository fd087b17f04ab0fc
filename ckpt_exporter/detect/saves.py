"""From file events to saves: which file belongs to which save, and when a save has ended."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from ckpt_exporter.detect import layouts
from ckpt_exporter.detect.files import FileRecord
from ckpt_exporter.detect.inventory import Inventory, KnownFile
from ckpt_exporter.detect.places import NewDirectories, fixed_prefix, relative_to
from ckpt_exporter.detect.progress import SaveInProgress, joined_late
from ckpt_exporter.detect.verdict import EarlierSaves, judge
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

# More files under a finished save's name within this time are late files of it, not another save.
LATE_SECONDS = 900.0
MAX_FINISHED = 256
# A rewritten file at least this part of its save begins the next version of the checkpoint.
NEW_VERSION_SHARE = 0.1
REPEATED_POINTER_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Finished:
    save: Save
    files: frozenset[str]


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
        self.written_bytes = 0
        self.write_active_seconds = 0.0
        self._open: dict[str, SaveInProgress] = {}
        self._save_of: dict[str, SaveInProgress] = {}
        self._finished: OrderedDict[str, _Finished] = OrderedDict()
        self._new_directories = NewDirectories()
        self._earlier = EarlierSaves()
        self._space: Space | None = None
        self._active_until = float("-inf")
        self._scanned = False
        self._ended: list[Save] = []

    # --- in ---------------------------------------------------------------------------------------------

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
        else:
            self._on_watch_change(fact)
        ended, self._ended = self._ended, []
        return ended

    def tick(self, now: float) -> list[Save]:
        """Let time pass until ``now``; return the saves that ended by it."""
        for save in list(self._open.values()):
            deadline = self._deadline(save)
            if deadline is not None and now >= deadline:
                self._end(save, now)
        ended, self._ended = self._ended, []
        return ended

    def finish(self, now: float) -> list[Save]:
        """Stop watching: return the saves that are committed by now; the others stay unjudged."""
        for save in list(self._open.values()):
            if save.open_files == 0 and save.unmet()[0] is None:
                self._end(save, now)
        ended, self._ended = self._ended, []
        return ended

    def adopt(self, record: FileRecord, to: str, t: float) -> list[Save]:
        """Take over a file that was written below another directory and has been renamed into this one."""
        path = relative_to(to, self.base)
        if path is not None:
            record.changed_at = max(record.changed_at, t)
            if not record.open:
                record.closed_at = t
            self._place(record, path, t)
        ended, self._ended = self._ended, []
        return ended

    def release(self, path: str) -> FileRecord | None:
        """Give up the record of an absolute path that is being renamed to another directory."""
        relative = relative_to(path, self.base)
        save = self._save_of.get(relative) if relative is not None else None
        if relative is None or save is None:
            return None
        record = self._take(save, relative)
        self._drop_if_empty(save)
        return record

    # --- out --------------------------------------------------------------------------------------------

    def open_saves(self, now: float) -> tuple[OpenSave, ...]:
        """Return the saves being written now."""
        return tuple(
            save.view(self.directory.name, self._shown_path(save), stalled=self._stalled(save, now))
            for save in self._open.values()
            if self._visible(save)
        )

    @property
    def retained(self) -> tuple[int, int] | None:
        """Complete checkpoints on disk and their bytes; None before the tree has been scanned."""
        if not self._scanned:
            return None
        return self.inventory.retained_checkpoints, self.inventory.retained_bytes

    def active_paths(self) -> list[str]:
        """List the absolute paths of files that are open now."""
        return [
            self._absolute(record.path)
            for save in self._open.values()
            for record in save.files.values()
            if record.open
        ]

    # --- file events ------------------------------------------------------------------------------------

    def _on_file(self, event: FileEvent) -> None:
        path = relative_to(event.path, self.base) if event.path is not None else None
        to = relative_to(event.to, self.base) if event.to is not None else None
        if event.event == "moved":
            self._on_moved(event, path, to)
        elif path is None:
            return
        elif event.event == "deleted":
            self._on_deleted(event, path)
        elif event.is_dir:
            if event.event == "create" and not event.initial:
                self._new_directories.add(path, event.t)
        elif self._ignored(path):
            return
        elif event.event == "link":
            self._on_sign(path, event.t)
        elif layouts.is_pointer(path):
            if event.event == "close_write" or event.found:
                self._on_sign(path, event.t)
        elif event.initial:
            self._remember(path, event)
        elif event.event == "close_write":
            self._on_close(event, path)
        else:
            self._on_write_open(event, path)

    def _on_write_open(self, event: FileEvent, path: str) -> None:
        if not event.local:
            self._remember(path, event)
            self._on_sign(path, event.t)
            return
        if self._mark_unfinished(path, event.t):
            return
        save = self._save_of.get(path)
        old = save.files[path] if save is not None else None
        if old is not None and (old.open or not self._is_rewrite(old, event)):
            self._reopen(old, event)
            return
        known = self.inventory.get(path)
        existing = known.size if known is not None and event.event == "open" else 0
        if event.size is not None and event.size < existing:
            existing = 0
        start = min(event.t, event.started) if event.started is not None else event.t
        record = FileRecord(path, event.t, start=start, existing=existing)
        record.inode = event.inode
        record.size = max(record.size, event.size or 0)
        self._place(record, path, event.t)

    def _is_rewrite(self, old: FileRecord, event: FileEvent) -> bool:
        """Tell a new version of a closed file from its being opened again to add to it."""
        if event.event == "create":
            return not event.found or (event.inode is not None and event.inode != old.inode)
        return event.size is None or event.size < old.size

    def _reopen(self, record: FileRecord, event: FileEvent) -> None:
        save = self._save_of[record.path]
        if record.open or event.found:
            return
        record.open = True
        save.open_files += 1
        record.changed_at = max(record.changed_at, event.t)
        record.seen_at = max(record.seen_at, event.t)
        save.touch(event.t)

    def _on_close(self, event: FileEvent, path: str) -> None:
        if self._mark_unfinished(path, event.t):
            return
        save = self._save_of.get(path)
        if save is None:
            save = self._unannounced(event, path)
            if save is None:
                return
        record = save.files[path]
        if not record.open and self._closed_again(event, record):
            return
        if not record.open and event.size is not None and event.size < record.size:
            save, record = self._cut_down(event, path)
        save.open_files -= record.open
        self._count(save, record, record.close(event.t, event.size, event.modified))
        record.inode = event.inode or record.inode
        save.touch(event.t)
        self._on_sign(path, event.t)

    def _closed_again(self, event: FileEvent, record: FileRecord) -> bool:
        """Tell whether a closed file was only opened for writing and closed again, with nothing written."""
        if event.modified is None or record.closed_at is None:
            return False
        return event.modified <= record.closed_at and event.size == record.size

    def _cut_down(self, event: FileEvent, path: str) -> tuple[SaveInProgress, FileRecord]:
        """Begin the next version of a file that was truncated and closed unseen."""
        start = event.t if event.modified is None else min(event.modified, event.t)
        record = FileRecord(path, event.t, start=start)
        return self._place(record, path, event.t), record

    def _unannounced(self, event: FileEvent, path: str) -> SaveInProgress | None:
        """Begin a record for a file whose opening was missed; None if nothing was written to it."""
        known = self.inventory.get(path)
        unchanged = event.modified is None or (
            known is not None and event.modified <= (known.modified or 0.0)
        )
        if known is not None and event.size == known.size and unchanged:
            return None
        start = event.started if event.started is not None else event.modified
        record = FileRecord(path, event.t, start=event.t if start is None else min(start, event.t))
        self._place(record, path, event.t)
        return self._save_of.get(path)

    def _on_deleted(self, event: FileEvent, path: str) -> None:
        if path.endswith("-unfinished"):
            self._finish_unfinished(path, event.t)
        self._new_directories.discard(path)
        if path in self._save_of:
            self._delete(path, event.t)
        elif event.is_dir:
            prefix = path + "/"
            for below in [known for known in self._save_of if known.startswith(prefix)]:
                self._delete(below, event.t)
        self.inventory.remove(path)
        if event.is_dir:
            self.inventory.remove_below(path)
            self._finished.pop(path, None)

    def _delete(self, path: str, t: float) -> None:
        save = self._save_of[path]
        record = self._take(save, path)
        save.removed.append(record)
        save.touch(t)
        if not save.files:
            self._emptied(save, t)

    def _emptied(self, save: SaveInProgress, t: float) -> None:
        """End a save whose last file was deleted: committed before, or aborted."""
        removed, save.removed = save.removed, []
        committed = save.marker_at is not None or save.published_at is not None
        closed = all(not record.open and (committed or not record.staged) for record in removed)
        for record in removed:
            save.put(record)
            self._save_of[record.path] = save
        if closed and save.unmet()[0] is None:
            self._end(save, t)
            for record in removed:
                self.inventory.remove(record.path)
        else:
            self._end(save, t, aborted=True)

    def _on_moved(self, event: FileEvent, path: str | None, to: str | None) -> None:
        if to is None:
            if path is not None:
                self._on_deleted(event, path)
        elif path is None:
            self._on_arrived(event, to)
        elif event.is_dir:
            self._move_directory(path, to, event.t)
        else:
            self._move_file(event, path, to)

    def _on_arrived(self, event: FileEvent, to: str) -> None:
        """Take in something renamed into the tree: its bytes are known, when they were written is not."""
        if event.is_dir or self._ignored(to):
            return
        if layouts.is_pointer(to):
            self._on_sign(to, event.t)
            return
        record = FileRecord(to, event.t, start=None)
        record.inode = event.inode
        record.size = record.data_bytes = event.size or 0
        record.position = record.size
        record.open = False
        record.closed_at = event.t
        self._place(record, to, event.t)
        self._on_sign(to, event.t)

    def _move_directory(self, path: str, to: str, t: float) -> None:
        self._new_directories.rename(path, to)
        prefix = path + "/"
        moved = [known for known in self._save_of if known.startswith(prefix)]
        for old in moved:
            self._relocate(old, to + old[len(path) :], t)
        for old in self.inventory.below(path):
            new = to + old[len(path) :]
            if new not in self._save_of:
                self.inventory.rename(old, new, self._key(new))

    def _move_file(self, event: FileEvent, path: str, to: str) -> None:
        if path in self._save_of:
            if layouts.is_pointer(to):
                self._delete(path, event.t)
            elif self._ignored(to):
                self._drop_record(path)
            else:
                self._relocate(path, to, event.t)
            self._on_sign(to, event.t)
        elif layouts.is_pointer(to):
            self._on_sign(to, event.t)
        elif self.inventory.get(path) is not None:
            self.inventory.rename(path, to, self._key(to))
        elif not self._ignored(to) and not layouts.is_pointer(path):
            self._on_arrived(event, to)

    def _relocate(self, path: str, to: str, t: float) -> None:
        """Follow a file of an open save to its new name, which may put it into another save."""
        save = self._save_of[path]
        record = self._take(save, path)
        was_staged = record.staged
        record.changed_at = max(record.changed_at, t)
        if not record.open:
            record.closed_at = max(record.closed_at or t, t)
        self.inventory.remove(path)
        target = self._place(record, to, t)
        if was_staged and not record.staged:
            target.published_at = t
        if target is not save:
            self._merge_or_trim(save, target)

    def _merge_or_trim(self, save: SaveInProgress, target: SaveInProgress) -> None:
        if save.files:
            save.restart_from_files()
        elif self._open.get(save.key) is save:
            del self._open[save.key]
            target.absorb(save)

    # --- grouping ---------------------------------------------------------------------------------------

    def _place(self, record: FileRecord, path: str, t: float) -> SaveInProgress:
        """Put a file version into the save it belongs to, opening or splitting saves as needed."""
        record.path = path
        record.sidecar = layouts.SIDECAR.search(path) is not None
        unit = layouts.locate(path, self.directory.layout)
        record.staged = layouts.is_temporary(path) or (unit is not None and unit.staged)
        save = self._named_save(unit, path, t) if unit is not None else self._near_save(path, t)
        old = save.files.get(path)
        if old is not None and old is not record:
            save = self._next_version(save, old, record, t)
        save.put(record)
        self._save_of[path] = save
        self._refine_layout(save, path)
        return save

    def _named_save(self, unit: layouts.Unit, path: str, t: float) -> SaveInProgress:
        save = self._open.get(unit.key)
        if save is None:
            layout = "generic" if unit.layout == "dcp" and self.directory.layout == "auto" else unit.layout
            holder = unit.key.rpartition("/")[0]
            save = SaveInProgress(unit.key, layout, unit.step, t, named=True, holder=holder)
            self._open[unit.key] = save
            self._note_late(save, path, t)
        if unit.layout == "nemo" and path.endswith("-unfinished"):
            save.unfinished = True
        return save

    def _note_late(self, save: SaveInProgress, path: str, t: float) -> None:
        finished = self._finished.get(save.key)
        if finished is None:
            return
        if path not in finished.files and t - finished.save.end <= LATE_SECONDS:
            save.late_of = finished.save

    def _near_save(self, path: str, t: float) -> SaveInProgress:
        """Find or open the save that a file without a checkpoint's name belongs to: near in time and place."""
        step = layouts.step_of_name(path)
        parent = path.rpartition("/")[0]
        near = [save for save in self._open.values() if self._is_near(save, parent, step, t)]
        exact = [save for save in near if save.step == step]
        chosen = max(exact or near, key=lambda save: save.opened_at, default=None)
        if chosen is not None:
            chosen.step = chosen.step if step is None else step
            return chosen
        place = self._new_directories.topmost(path, t - self.settings.quiet_seconds)
        if place is None:
            place = parent
        key = place if step is None else f"{place}#{step}"
        save = self._open.get(key)
        if save is None:
            layout = self.directory.layout if self.directory.layout != "auto" else "generic"
            save = self._open[key] = SaveInProgress(key, layout, step, t, named=False, holder=place)
        return save

    def _is_near(self, save: SaveInProgress, parent: str, step: int | None, t: float) -> bool:
        if save.named:
            return False
        if parent == save.holder:
            within = step is None or save.step == step or save.parents() == {parent}
            within = within and (step is None or save.step in (None, step))
        else:
            within = save.step == step and save.holder != "" and parent.startswith(save.holder + "/")
        if not within:
            return False
        return save.open_files > 0 or t - save.last_activity <= self.settings.quiet_seconds

    def _next_version(
        self, save: SaveInProgress, old: FileRecord, new: FileRecord, t: float
    ) -> SaveInProgress:
        """Decide what a second version of a file means: the next save, or a rewrite within this one."""
        begun = new.start if new.start is not None else t
        newer = [r for r in save.files.values() if r is not old and r.start is not None and r.start >= begun]
        rest = [record for record in save.files.values() if record not in newer]
        if old.sidecar or any(record.open for record in rest):
            return save
        if old.bytes < NEW_VERSION_SHARE * sum(record.bytes for record in rest):
            return save
        moved = [self._take(save, record.path) for record in newer]
        self._end(save, t)
        following = SaveInProgress(save.key, save.layout, save.step, t, named=save.named, holder=save.holder)
        self._open[following.key] = following
        for record in moved:
            following.put(record)
            self._save_of[record.path] = following
        return following

    def _refine_layout(self, save: SaveInProgress, path: str) -> None:
        if self.directory.layout != "auto" or save.layout not in layouts.UNSPECIFIC_LAYOUTS:
            return
        said = layouts.layout_of_component(path)
        if said is None or said == save.layout:
            return
        if save.layout == "generic" or said not in layouts.UNSPECIFIC_LAYOUTS or said == "dcp":
            save.layout = said
            save.touch(save.last_activity)

    def _key(self, path: str) -> str:
        """Return the key under which a file at rest is retained."""
        unit = layouts.locate(path, self.directory.layout)
        if unit is not None:
            return unit.key
        step = layouts.step_of_name(path)
        parent = path.rpartition("/")[0]
        return parent if step is None else f"{parent}#{step}"

    # --- signs of commit --------------------------------------------------------------------------------

    def _on_sign(self, path: str, t: float) -> None:
        """Note a marker inside a save, or a pointer beside it."""
        save = self._save_of.get(path)
        if save is None:
            unit = layouts.locate(path, self.directory.layout)
            save = self._open.get(unit.key) if unit is not None else None
        if save is not None:
            inside = save.rules.inside
            if inside is not None and inside.search(save.component(path)):
                save.marker_at = max(save.marker_at or t, t)
                save.touch(t)
            return
        parent, _, name = path.rpartition("/")
        beside = [save for save in self._open.values() if parent in (save.holder, _parent(save.key))]
        pointed = [s for s in beside if s.rules.beside is not None and s.rules.beside.search(name)]
        for save in _pointed_at(pointed, t):
            save.marker_at = t
            save.touch(t)
        for save in beside:
            if save not in pointed and layouts.is_pointer(path):
                save.pointer_at = t

    def _mark_unfinished(self, path: str, t: float) -> bool:
        if not path.endswith("-unfinished"):
            return False
        unit = layouts.locate(path, self.directory.layout)
        if unit is None or self.inventory.unit(unit.key) is not None:
            return False  # the same marker stands beside a checkpoint that is being deleted
        self._named_save(unit, path, t).touch(t)
        return True

    def _finish_unfinished(self, path: str, t: float) -> None:
        unit = layouts.locate(path, self.directory.layout)
        save = self._open.get(unit.key) if unit is not None else None
        if save is not None and save.unfinished:
            save.unfinished = False
            save.marker_at = t
            save.touch(t)

    # --- progress and the rest --------------------------------------------------------------------------

    def _on_progress(self, progress: Progress) -> None:
        path = relative_to(progress.path, self.base)
        if path is None or self._ignored(path) or layouts.is_pointer(path):
            return
        if path not in self._save_of and not self._resume(path, progress):
            return
        save = self._save_of[path]
        record = save.files[path]
        self._count(save, record, record.advance(progress))
        if progress.writers == 0 and record.open:
            modified = progress.modified if progress.modified is not None else record.changed_at
            save.open_files -= 1
            self._count(save, record, record.close(min(modified, progress.t), progress.size, None))
            save.touch(record.changed_at)
        elif record.open and progress.writers:
            record.changed_at = max(record.changed_at, progress.t)

    def _resume(self, path: str, progress: Progress) -> bool:
        """Pick up a save that was being written before watching began; False if nobody writes the file."""
        known = self.inventory.get(path)
        if known is None and progress.writers == 0:
            return False
        if known is not None and not progress.writers:
            return False
        record = FileRecord(path, progress.t, start=known.started if known else progress.t)
        if record.start is None:
            record.start = progress.t
        save = self._place(record, path, progress.t)
        save.notes.add("reconciled")
        unit = self.inventory.unit(known.key) if known is not None and save.named else None
        if unit is not None and not unit.complete:
            self._include_earlier(save, sorted(unit.files - {path}))
        return True

    def _include_earlier(self, save: SaveInProgress, paths: list[str]) -> None:
        """Add the files of a save that were finished before watching began in the middle of it."""
        for path in paths:
            known = self.inventory.get(path)
            if known is None or path in self._save_of:
                continue
            closed_at = known.modified if known.modified is not None else save.start
            record = FileRecord(path, closed_at, start=known.started)
            record.start = closed_at if record.start is None else record.start
            record.close(closed_at, known.size, known.modified)
            self._place(record, path, closed_at)

    def _count(self, save: SaveInProgress, record: FileRecord, arrived: int) -> None:
        """Add newly arrived bytes, and the time they took, to the live counters."""
        if arrived <= 0:
            return
        self.written_bytes += arrived
        save.bytes_arrived += arrived
        save.last_byte = max(save.last_byte, record.last_byte)
        chunk = record.arrivals.last
        begin = max(chunk.start, self._active_until)
        if chunk.end > begin:
            self.write_active_seconds += chunk.end - begin
            self._active_until = chunk.end
        save.touch(record.last_byte)

    def _on_writers(self, writers: Writers) -> None:
        paths = {relative_to(path, self.base) for path in writers.paths}
        for save in self._open.values():
            known = bool(save.pids & set(writers.pids))
            if known or not writers.paths or not paths.isdisjoint(save.files):
                save.writers_alive = writers.alive
                if writers.alive:
                    save.pids |= set(writers.pids)
                if writers.commands and all(c in layouts.COPY_COMMANDS for c in writers.commands):
                    save.notes.add("copy")

    def _on_watch_change(self, change: WatchChange) -> None:
        if change.event in ("overflow", "rescan") and change.reason != "start":
            for save in self._open.values():
                save.notes.add("reconciled")
        if change.event == "rescan" and change.reason == "start":
            self._scanned = True
            self._take_stock()

    def _take_stock(self) -> None:
        """Decide which of the checkpoints found on disk at the start are complete."""
        for key, unit in self.inventory.units():
            data = [path for path in unit.files if not layouts.is_temporary(path)]
            shards = {p.rpartition("/")[0] for p in data if layouts.SHARDED_DATA.search(p)}
            commits = {p.rpartition("/")[0] for p in data if layouts.SHARDED_COMMIT.search(p)}
            staged = any(u.staged for u in map(layouts.locate, data[:1]) if u is not None)
            unit.complete = unit.bytes >= max(1, self.settings.min_bytes) and shards <= commits and not staged
            unit.complete = unit.complete and bool(data) and key not in self._open

    def _remember(self, path: str, event: FileEvent) -> None:
        size = event.size or 0
        self.inventory.put(path, KnownFile(self._key(path), size, event.started, event.modified))

    def _ignored(self, path: str) -> bool:
        return layouts.is_noise(path) or layouts.is_ignored(path, self.directory.ignore)

    # --- ending -----------------------------------------------------------------------------------------

    def _deadline(self, save: SaveInProgress) -> float | None:
        """Return when a save ends if nothing more happens; None while a file is open."""
        settings = self.settings
        if save.open_files:
            latest = max(record.changed_at for record in save.files.values() if record.open)
            silent_since = max(latest, save.last_activity)
            # Nobody said in all this time that a writer still holds it: its close was lost.
            return silent_since + settings.incomplete_seconds
        reason, required = save.unmet()
        if reason is not None and (required or self._earlier.uses_marker(save) is not False):
            return save.last_activity + settings.incomplete_seconds
        if reason is None and save.marker_at is not None and save.rules.settle_seconds is not None:
            return save.last_activity + min(settings.quiet_seconds, save.rules.settle_seconds)
        if save.named and not self._big_enough(save):
            return save.last_activity + settings.incomplete_seconds
        return save.last_activity + settings.quiet_seconds

    def _end(self, save: SaveInProgress, now: float, *, aborted: bool = False) -> None:
        """Judge a save and hand it out, unless it is too small to be one."""
        if self._open.get(save.key) is save:
            del self._open[save.key]
        for path in save.files:
            self._save_of.pop(path, None)
        result, reason = judge(save, self._earlier, self._space, aborted=aborted)
        if not aborted:
            self._retain(save, complete=result == "complete")
        if not self._big_enough(save) and not (save.late_of and result == "complete"):
            return
        ended = save.ended(self.directory.name, self._shown_path(save), result, reason)
        if result == "complete":
            self._remember_complete(save, ended)
        self._ended.append(ended)

    def _remember_complete(self, save: SaveInProgress, ended: Save) -> None:
        self._earlier.add(save)
        whole, files = ended, frozenset(save.files)
        if save.late_of is not None:
            whole = joined_late(save.late_of, ended)
            earlier = self._finished.get(save.key)
            files |= earlier.files if earlier else frozenset()
        self._finished[save.key] = _Finished(whole, files)
        self._finished.move_to_end(save.key)
        while len(self._finished) > MAX_FINISHED:
            self._finished.popitem(last=False)

    def _retain(self, save: SaveInProgress, *, complete: bool) -> None:
        key = save.key
        for record in save.files.values():
            self.inventory.put(record.path, KnownFile(key, record.size, record.start, record.closed_at))
        if complete and self._big_enough(save):
            self.inventory.complete(key)

    def _big_enough(self, save: SaveInProgress) -> bool:
        size_bytes = save.bytes
        if size_bytes >= max(1, self.settings.min_bytes):
            return True
        committed = save.marker_at is not None or save.published_at is not None
        return save.named and committed and any(not record.sidecar for record in save.files.values())

    def _visible(self, save: SaveInProgress) -> bool:
        if save.open_files == 0 and save.unmet()[0] is None and not self._big_enough(save):
            return False
        return save.named or save.bytes_arrived >= self.settings.min_bytes

    def _stalled(self, save: SaveInProgress, now: float) -> bool:
        return now - max(save.last_byte, save.start) > self.settings.stall_seconds

    def _drop_record(self, path: str) -> None:
        save = self._save_of[path]
        self._take(save, path)
        self._drop_if_empty(save)

    def _drop_if_empty(self, save: SaveInProgress) -> None:
        if not save.files and self._open.get(save.key) is save:
            del self._open[save.key]

    def _take(self, save: SaveInProgress, path: str) -> FileRecord:
        self._save_of.pop(path, None)
        return save.take(path)

    def _absolute(self, path: str) -> str:
        return f"{self.base}/{path}" if self.base != "/" else f"/{path}"

    def _shown_path(self, save: SaveInProgress) -> str:
        if save.named or len(save.files) != 1:
            return self._absolute(save.key.partition("#")[0]).rstrip("/")
        return self._absolute(next(iter(save.files)))


def _pointed_at(saves: list[SaveInProgress], t: float) -> list[SaveInProgress]:
    """Choose the save that a pointer beside it commits: which, only its content would say.

    It is the oldest one not yet pointed at, first of those whose files are all closed. Without any, a
    pointer written twice in a row belongs to the save it has just been written for.
    """
    unmarked = [save for save in saves if save.marker_at is None]
    if unmarked:
        return [min(unmarked, key=lambda save: (save.open_files > 0, save.start))]
    again = [s for s in saves if s.marker_at is not None and t - s.marker_at <= REPEATED_POINTER_SECONDS]
    return [max(again, key=lambda save: save.start)] if again else []


def _parent(key: str) -> str:
    return key.rpartition("/")[0]
