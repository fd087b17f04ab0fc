"""From what the ledger knows of a save to the record that is kept, and back after a restart."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ckpt_exporter.detect.progress import joined_late
from ckpt_exporter.history.records import LoadRecord, SaveRecord, ShardRecord, StallRecord
from ckpt_exporter.model import Bubble, Save, Shard

if TYPE_CHECKING:
    from ckpt_exporter.model import Load, Mount, Stall, Writers


def save_record(
    save: Save, node: str, unix_minus_t: float, *, run: Writers | None, mount: Mount | None
) -> SaveRecord:
    """Return the record of a finished save; its bubble is not known yet."""
    owner = run if run is not None and _wrote(run, save) else None
    return SaveRecord(
        node=node,
        directory=save.directory,
        path=save.path,
        layout=save.layout,
        result=save.result,
        start_unix=save.start + unix_minus_t,
        end_unix=save.end + unix_minus_t,
        bytes=save.bytes,
        files=save.files,
        step=save.step,
        reason=save.reason,
        duration_seconds=save.duration_seconds,
        active_seconds=save.active_seconds,
        written_bytes=save.written_bytes,
        average_bandwidth=save.average_bandwidth,
        sustained_bandwidth=save.sustained_bandwidth,
        peak_bandwidth=save.peak_bandwidth,
        run=owner.run if owner else None,
        run_id=owner.run_id if owner else None,
        scheduler=owner.scheduler if owner else None,
        mountpoint=mount.mountpoint if mount else None,
        device=mount.device if mount else None,
        fstype=mount.fstype if mount else None,
        transport=mount.transport if mount else None,
        notes=save.notes,
        shards=tuple(_shard_record(shard, unix_minus_t) for shard in save.shards),
    )


def load_record(load: Load, node: str, unix_minus_t: float, *, mount: Mount | None = None) -> LoadRecord:
    """Return the record of a finished load."""
    return LoadRecord(
        node=node,
        directory=load.directory,
        path=load.path,
        layout=load.layout,
        start_unix=load.start + unix_minus_t,
        end_unix=load.end + unix_minus_t,
        duration_seconds=load.duration_seconds,
        bytes=load.bytes,
        files=load.files,
        step=load.step,
        run=load.run,
        readers=load.readers,
        cached_ratio=load.cached_ratio,
        cold_start_seconds=load.cold_start_seconds,
        notes=load.notes,
        mountpoint=mount.mountpoint if mount else None,
        device=mount.device if mount else None,
        fstype=mount.fstype if mount else None,
        transport=mount.transport if mount else None,
    )


def stall_record(stall: Stall, node: str, unix_minus_t: float) -> StallRecord:
    """Return the record of a stall; which GPU its index means is not known yet."""
    start, end = stall.start + unix_minus_t, stall.end + unix_minus_t
    return StallRecord(node, stall.gpu, start, end, stall.seconds, stall.cause, confidence=stall.confidence)


def _wrote(run: Writers, save: Save) -> bool:
    """Tell whether a run may have written a save: of one whose writers are known, they must be the run's."""
    return not save.pids or not set(save.pids).isdisjoint(run.pids)


def _shard_record(shard: Shard, unix_minus_t: float) -> ShardRecord:
    start = None if shard.start is None else shard.start + unix_minus_t
    end = None if shard.end is None else shard.end + unix_minus_t
    return ShardRecord(shard.name, shard.bytes, start, end)


def with_bubble(record: SaveRecord, bubble: Bubble, unix_minus_t: float) -> SaveRecord:
    """Add to a save what it cost on its GPUs, or why there is no figure."""
    return replace(
        record,
        bubble_seconds=bubble.seconds,
        bubble_gpu_seconds=dict(bubble.gpu_seconds),
        drag_gpu_seconds=dict(bubble.drag_gpu_seconds),
        bubble_phases=dict(bubble.phases),
        bubble_skipped=bubble.skipped,
        dip_start_unix=None if bubble.start is None else bubble.start + unix_minus_t,
        dip_end_unix=None if bubble.end is None else bubble.end + unix_minus_t,
        depth=bubble.depth,
        source=bubble.source,
        quality=bubble.quality,
        notes=tuple(dict.fromkeys((*record.notes, *bubble.notes))),
    )


def with_late_files(record: SaveRecord, late: Save, unix_minus_t: float) -> SaveRecord:
    """Join a save with files that came after it had been counted."""
    joined = joined_late(as_save(record, unix_minus_t), late)
    return replace(
        record,
        end_unix=joined.end + unix_minus_t,
        duration_seconds=joined.duration_seconds,
        bytes=joined.bytes,
        files=joined.files,
        active_seconds=joined.active_seconds,
        written_bytes=joined.written_bytes,
        average_bandwidth=joined.average_bandwidth,
        sustained_bandwidth=joined.sustained_bandwidth,
        notes=joined.notes,
        shards=tuple(_shard_record(shard, unix_minus_t) for shard in joined.shards),
    )


def as_save(record: SaveRecord, unix_minus_t: float) -> Save:
    """Return the save of a record, on the monotonic clock of this process."""
    return Save(
        directory=record.directory,
        path=record.path,
        layout=record.layout,
        step=record.step,
        result=record.result,
        reason=record.reason,
        start=record.start_unix - unix_minus_t,
        end=record.end_unix - unix_minus_t,
        duration_seconds=record.duration_seconds,
        bytes=record.bytes,
        files=record.files,
        active_seconds=record.active_seconds,
        average_bandwidth=record.average_bandwidth,
        sustained_bandwidth=record.sustained_bandwidth,
        peak_bandwidth=record.peak_bandwidth,
        notes=record.notes,
        written_bytes=record.written_bytes,
        shards=tuple(_shard(shard, unix_minus_t) for shard in record.shards),
    )


def _shard(shard: ShardRecord, unix_minus_t: float) -> Shard:
    start = None if shard.start_unix is None else shard.start_unix - unix_minus_t
    end = None if shard.end_unix is None else shard.end_unix - unix_minus_t
    return Shard(shard.name, shard.bytes, start, end)


def as_bubble(record: SaveRecord, unix_minus_t: float) -> Bubble | None:
    """Return the bubble of a record; None where it was never judged."""
    if record.bubble_seconds is None and record.bubble_skipped is None:
        return None
    return Bubble(
        directory=record.directory,
        save_path=record.path,
        save_end=record.end_unix - unix_minus_t,
        skipped=record.bubble_skipped,
        seconds=record.bubble_seconds,
        gpu_seconds=dict(record.bubble_gpu_seconds),
        drag_gpu_seconds=dict(record.drag_gpu_seconds),
        phases=dict(record.bubble_phases),
        start=None if record.dip_start_unix is None else record.dip_start_unix - unix_minus_t,
        end=None if record.dip_end_unix is None else record.dip_end_unix - unix_minus_t,
        depth=record.depth,
        source=record.source,
        quality=record.quality,
    )
