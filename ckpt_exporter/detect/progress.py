"""One save in the making: its files, its signs of commit, and what it amounts to when it ends."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from heapq import nlargest

from ckpt_exporter.detect.bandwidth import measure
from ckpt_exporter.detect.files import FileRecord
from ckpt_exporter.detect.layouts import COPY_COMMANDS, LAYOUTS, PART, SHARDED_COMMIT, SHARDED_DATA, Layout
from ckpt_exporter.model import OpenSave, Save, SaveResult, Shard, Writers

# Bytes that arrived by a rename from outside weigh this share before duration and bandwidth are unknown.
ARRIVED_SHARE_UNKNOWN = 0.01
# A marker this much older than the last byte pointed at a checkpoint that was not there yet.
EARLY_POINTER_SECONDS = 1.0
# A file whose data fills less than this share of its size was not (yet) written by anything seen here.
SPARSE_SHARE_UNKNOWN = 0.5
STRAGGLER_SECONDS = 60.0
# So many files of a save are kept by name: those that ended last, which is where stragglers are.
MAX_SHARDS = 64
STRAGGLER_SHARE = 0.01


class SaveInProgress:
    """A save that is open. ``holder`` is the directory in which the checkpoint (``key``) lies.

    ``named`` tells that a layout's name matched; ``place`` that nearness alone made the group.
    """

    def __init__(
        self, key: str, layout: str, step: int | None, t: float, *, named: bool, holder: str
    ) -> None:
        self.key = key
        self.layout = layout
        self.step = step
        self.named = named
        self.holder = holder
        self.files: dict[str, FileRecord] = {}
        self.removed: list[FileRecord] = []
        self.opened_at = t
        self.start = t
        self.last_activity = t
        self.last_byte = t
        self.open_paths: set[str] = set()
        self.marker_at: float | None = None
        self.pointer_at: float | None = None
        self.published_at: float | None = None
        self.unfinished = False
        self.late_of: Save | None = None
        self.adds = False  # to a checkpoint that was committed before
        self.notes: set[str] = set()
        self.pids: set[int] = set()
        self.writers_alive: bool | None = None
        self.alive_at = float("-inf")
        self.bytes_arrived = 0
        self._unmet: tuple[str | None, bool] | None = None
        self._bytes: int | None = None
        self._committed_elsewhere: set[str] = set()

    @property
    def rules(self) -> Layout:
        """Return what commits a save of this layout."""
        return LAYOUTS[self.layout]

    def put(self, record: FileRecord) -> None:
        """Add a file, or a new version of it."""
        if not self.files and not self.removed:
            self.start = record.start if record.start is not None else record.changed_at
        self.files[record.path] = record
        self._note_open(record)
        if record.start is not None:
            self.start = min(self.start, record.start)
        self.touch(record.changed_at)

    def take(self, path: str) -> FileRecord:
        """Remove a file that is moved elsewhere or deleted, and return it."""
        self.open_paths.discard(path)
        self._unmet = self._bytes = None
        return self.files.pop(path)

    @property
    def open_files(self) -> int:
        """Number of files that a writer still holds."""
        return len(self.open_paths)

    def closed(self, record: FileRecord) -> None:
        """Note that the last writer closed a file."""
        self._note_open(record)
        self.touch(record.changed_at)

    def reopen(self, record: FileRecord, t: float) -> None:
        """Note that a closed file was opened again to add to it."""
        record.open = True
        record.changed_at = max(record.changed_at, t)
        record.seen_at = max(record.seen_at, t)
        self._note_open(record)
        self.touch(t)

    def arrived(self, record: FileRecord, size_bytes: int) -> None:
        """Note that bytes of a file arrived."""
        self.bytes_arrived += size_bytes
        self.last_byte = max(self.last_byte, record.last_byte)
        self.touch(record.last_byte)

    def mark(self, t: float) -> None:
        """Note a sign of commit at ``t``."""
        self.marker_at = t if self.marker_at is None else max(self.marker_at, t)
        self.touch(t)

    def commit_elsewhere(self, directory: str) -> None:
        """Note that another host committed the shards in a directory."""
        self._committed_elsewhere.add(directory)
        self._unmet = None

    def refine(self, layout: str) -> None:
        """Learn from a file's name which layout this is."""
        self.layout = layout
        self._unmet = None

    def note_writer(self, pid: int | None) -> None:
        """Note a process that was seen writing."""
        if pid is not None:
            self.pids.add(pid)

    def add_writers(self, writers: Writers) -> None:
        """Note which processes write it, and whether they still live."""
        self.writers_alive = writers.alive
        if writers.alive:
            self.alive_at = max(self.alive_at, writers.t)
            self.pids |= set(writers.pids)
        if writers.commands and all(command in COPY_COMMANDS for command in writers.commands):
            self.notes.add("copy")

    @property
    def closed_by_living(self) -> bool:
        """Tell whether its writers were seen alive after they had closed its last file."""
        return self.alive_at >= max((r.closed_at or 0.0 for r in self.files.values()), default=0.0)

    @property
    def cut_off(self) -> bool:
        """Tell whether its writers are known to have died before it was whole.

        Either the last file was closed by their death, or they did not live to write all parts of a model.
        Programs that copy end right after their last close, which looks the same.
        """
        if self.writers_alive is not False or "copy" in self.notes:
            return False
        return not self.closed_by_living or self._lacks_parts()

    @property
    def unproven(self) -> bool:
        """Tell whether it has the name of a layout with a marker, but so far no sign of a commit."""
        if self.rules.need == "none" or not self.named or self.adds:
            return False
        return self.marker_at is None and self.published_at is None

    def _lacks_parts(self) -> bool:
        matches = [match for path in self.files if (match := PART.search(path)) is not None]
        found = Counter((match.string[: match.start()], int(match["parts"])) for match in matches)
        return any(count < parts for (_, parts), count in found.items())

    def _note_open(self, record: FileRecord) -> None:
        if record.open:
            self.open_paths.add(record.path)
        else:
            self.open_paths.discard(record.path)

    def touch(self, t: float) -> None:
        """Note that something happened at ``t``."""
        self.last_activity = max(self.last_activity, t)
        self._unmet = self._bytes = None

    def restart_from_files(self) -> None:
        """Recompute the start after a file that began this group turned out to belong elsewhere."""
        starts = [record.start for record in self.files.values() if record.start is not None]
        if starts:
            self.start = min(starts)

    def absorb(self, other: SaveInProgress) -> None:
        """Take over what is known of a group whose files have all been renamed into this one."""
        self.start = min(self.start, other.start)
        self.last_byte = max(self.last_byte, other.last_byte)
        self.notes |= other.notes
        self.pids |= other.pids
        self.late_of = self.late_of or other.late_of
        self.adds = self.adds or other.adds
        self.bytes_arrived += other.bytes_arrived
        self.marker_at = self.marker_at or other.marker_at
        self.unfinished = self.unfinished or other.unfinished
        self.removed += other.removed
        self.touch(other.last_activity)

    def unmet(self) -> tuple[str | None, bool]:
        """Return (what is missing for a commit, whether it is required); (None, False) if nothing is."""
        if self._unmet is None:
            self._unmet = self._missing()
        return self._unmet

    def _missing(self) -> tuple[str | None, bool]:
        if self.unfinished or self._uncommitted_shards():
            return "no_commit", True
        if self.marker_at is not None:
            return None, False
        if any(record.staged for record in self.files.values()):
            return "no_commit", True
        rules = self.rules
        if rules.need != "none" and self.published_at is None and self._has(rules.evidence):
            return "no_commit", rules.need == "required"
        return None, False

    def _has(self, evidence: re.Pattern[str] | None) -> bool:
        return evidence is not None and any(evidence.search(self.component(path)) for path in self.files)

    def _uncommitted_shards(self) -> bool:
        data = {path.rpartition("/")[0] for path in self.files if SHARDED_DATA.search(path)}
        if not data:
            return False
        committed = {path.rpartition("/")[0] for path in self.files if SHARDED_COMMIT.search(path)}
        return not data <= committed | self._committed_elsewhere

    def component(self, path: str) -> str:
        """Return a path below this checkpoint ('' never: then it is the file's own name)."""
        if path.startswith(self.key + "/"):
            return path[len(self.key) + 1 :]
        return path.rpartition("/")[2]

    def parents(self) -> set[str]:
        """Return the directories in which its files lie."""
        return {path.rpartition("/")[0] for path in self.files}

    def counted(self) -> list[FileRecord]:
        """List the files that belong to the checkpoint: left-over temporary ones do not."""
        files = list(self.files.values())
        published = [record for record in files if not record.staged]
        return published if published and self.marker_at is not None else files

    @property
    def bytes(self) -> int:
        """Bytes of the checkpoint as it stands."""
        if self._bytes is None:
            self._bytes = sum(record.bytes for record in self.counted())
        return self._bytes

    @property
    def gone_unsized(self) -> bool:
        """Tell whether it is a checkpoint by name of which a data file was gone before its size was asked."""
        if not self.named and self.step is None:
            return False
        return any(r.unsized and not r.sidecar and not r.staged for r in self.files.values())

    def ended(self, directory: str, path: str, result: SaveResult, reason: str | None) -> Save:
        """Sum up this save."""
        records = self.counted()
        size_bytes = sum(record.bytes for record in records)
        end = self._end(records)
        start = min(self.start, end)
        known = not self._duration_unknown(records, size_bytes)
        flow = measure([chunk for record in records for chunk in record.arrivals]) if known else None
        bandwidth_bytes = size_bytes if known and not _sparse(records, size_bytes) else None
        duration = end - start if known else None
        active = flow.active_seconds if flow else None
        return Save(
            directory=directory,
            path=path,
            layout=self.layout,
            step=self.step,
            result=result,
            reason=reason,
            start=start,
            end=end,
            duration_seconds=duration,
            bytes=size_bytes,
            files=len(records),
            active_seconds=active,
            average_bandwidth=_rate(bandwidth_bytes, duration),
            sustained_bandwidth=_rate(bandwidth_bytes, active),
            peak_bandwidth=flow.peak if flow and bandwidth_bytes is not None else None,
            flow=flow.stretches if flow else (),
            pids=tuple(sorted(self.pids)),
            notes=self._all_notes(end),
            late=self.late_of is not None,
            written_bytes=self.bytes_arrived if known else None,
            shards=self._shards(records),
        )

    def _shards(self, records: list[FileRecord]) -> tuple[Shard, ...]:
        kept = records
        if len(records) > MAX_SHARDS:
            # Small files beside the data (tokenizer, settings) are no shards where there are too many.
            kept = [record for record in records if not record.sidecar] or records
        return last_shards(
            Shard(self.component(record.path), record.bytes, record.start, record.closed_at)
            for record in kept
        )

    def _end(self, records: list[FileRecord]) -> float:
        moments = [record.closed_at for record in records if record.closed_at is not None]
        moments += [t for t in (self.marker_at, self.published_at) if t is not None]
        return max(moments, default=self.last_activity)

    def _duration_unknown(self, records: list[FileRecord], size_bytes: int) -> bool:
        if "partial" in self.notes:
            return True
        arrived = sum(record.bytes for record in records if record.start is None)
        return arrived > ARRIVED_SHARE_UNKNOWN * size_bytes or (size_bytes == 0 and not records)

    def _all_notes(self, end: float) -> tuple[str, ...]:
        signs = [t for t in (self.marker_at, self.pointer_at) if t is not None]
        if any(t < end - EARLY_POINTER_SECONDS for t in signs):
            return tuple(sorted({*self.notes, "pointer_before_data"}))
        return tuple(sorted(self.notes))

    def view(self, directory: str, path: str, *, stalled: bool) -> OpenSave:
        """Show this save while it is open."""
        return OpenSave(
            directory=directory,
            path=path,
            layout=self.layout,
            step=self.step,
            start=self.start,
            bytes=self.bytes_arrived,
            files=len(self.files),
            open_files=self.open_files,
            last_byte=self.last_byte,
            stalled=stalled,
        )


def joined_late(save: Save, late: Save) -> Save:
    """Join a save with files that came after it had been counted.

    Bytes add up. The end moves with what was still part of writing it: soon after, or a good part of it; a
    note added to a checkpoint later does not make the save longer.
    """
    size_bytes = save.bytes + late.bytes
    belongs = late.end - save.end <= STRAGGLER_SECONDS or late.bytes >= STRAGGLER_SHARE * save.bytes
    end = max(save.end, late.end) if belongs else save.end
    duration = None if save.duration_seconds is None else end - save.start
    active = None if save.active_seconds is None else save.active_seconds + (late.active_seconds or 0.0)
    return replace(
        save,
        end=end,
        duration_seconds=duration,
        bytes=size_bytes,
        files=save.files + late.files,
        active_seconds=active,
        average_bandwidth=_rate(size_bytes, duration),
        sustained_bandwidth=_rate(size_bytes, active),
        flow=save.flow + late.flow,
        notes=tuple(sorted({*save.notes, *late.notes, "late_files"})),
        written_bytes=_added(save.written_bytes, late.written_bytes),
        shards=last_shards((*save.shards, *late.shards)),
    )


def last_shards(shards: Iterable[Shard]) -> tuple[Shard, ...]:
    """Return the shards that ended last, in the order of their ends; unknown ends come first."""
    return tuple(nlargest(MAX_SHARDS, shards, key=_ended))[::-1]


def _ended(shard: Shard) -> tuple[float, str]:
    return (float("-inf") if shard.end is None else shard.end, shard.name)


def _added(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second


def _rate(size_bytes: int | None, seconds: float | None) -> float | None:
    # Files that were gone before their size could be asked are no save at 0 bytes per second.
    return size_bytes / seconds if size_bytes and seconds else None


def _sparse(records: list[FileRecord], size_bytes: int) -> bool:
    """Tell whether most of the size was never seen as data (holes that something else fills later)."""
    return sum(record.data_bytes for record in records) < SPARSE_SHARE_UNKNOWN * size_bytes
