"""Snapshot to families: what each collector exports, one line per metric."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ckpt_exporter.metrics.families import Families
from ckpt_exporter.model import (
    Bubble,
    BubblePhase,
    DirectorySnapshot,
    GpuRun,
    GpuStatus,
    Histogram,
    Load,
    Mount,
    Save,
    SkipReason,
    Snapshot,
    StorageStatus,
    WatchStatus,
    Writers,
)

SAVE_RESULTS = ("complete", "incomplete", "aborted")
BUBBLE_PHASES: tuple[BubblePhase, ...] = ("before_write", "writing", "write_gap", "after_write")
SKIP_REASONS: tuple[SkipReason, ...] = ("no_gpu", "no_baseline", "sampler_gap", "low_quality")
STALL_CAUSES = ("checkpoint_save", "checkpoint_load", "data_loading", "communication", "other")
RESCAN_REASONS = ("overflow", "root_lost", "mount_changed", "periodic", "canary", "limit", "restart")
EVENTS = ("create", "open", "close_write", "moved", "deleted", "link")

_UNKNOWN_MOUNT = Mount(mountpoint="", device="", fstype="", transport="unknown")


@dataclass(frozen=True, slots=True)
class Build:
    """What ``ckpt_exporter_build_info`` says."""

    version: str
    revision: str
    python: str


def collect_saves(snapshot: Snapshot, out: Families) -> None:
    """Add counters, the duration histogram and the last and open saves of every directory."""
    for directory in snapshot.directories:
        _add_save_counters(directory, out)
        _add_open_saves(directory, snapshot.t, out)
        _add_last_save(directory.name, directory.last_save, snapshot.unix_minus_t, out)
        _add_remote_saves(directory, snapshot.unix_minus_t, out)
        out.add("ckpt_retained_checkpoints", directory.retained_checkpoints, dir=directory.name)
        out.add("ckpt_retained_bytes", directory.retained_bytes, dir=directory.name)


def _add_save_counters(directory: DirectorySnapshot, out: Families) -> None:
    name = directory.name
    for result in SAVE_RESULTS:
        out.add("ckpt_saves_total", directory.saves.get(result, 0), dir=name, result=result)
    out.add_histogram("ckpt_save_duration_seconds", directory.duration, dir=name)
    out.add("ckpt_save_bytes_total", directory.save_bytes, dir=name)
    out.add("ckpt_save_files_total", directory.save_files, dir=name)
    out.add("ckpt_written_bytes_total", directory.written_bytes, dir=name)
    out.add("ckpt_write_active_seconds_total", directory.write_active_seconds, dir=name)
    out.add("ckpt_deleted_checkpoints_total", directory.deleted_checkpoints, dir=name)


def _add_remote_saves(directory: DirectorySnapshot, unix_minus_t: float, out: Families) -> None:
    if directory.remote_saves is not None:
        for result in SAVE_RESULTS:
            count = directory.remote_saves.get(result, 0)
            out.add("ckpt_remote_saves_total", count, dir=directory.name, result=result)
    if (last := directory.last_remote_save) is not None:
        end = last.end + unix_minus_t
        out.add("ckpt_last_remote_save_end_timestamp_seconds", end, dir=directory.name)


def _add_open_saves(directory: DirectorySnapshot, now: float, out: Families) -> None:
    open_saves = directory.open_saves
    age = max((now - save.start for save in open_saves), default=0.0)
    out.add("ckpt_saves_in_progress", len(open_saves), dir=directory.name)
    out.add("ckpt_save_in_progress_seconds", max(age, 0.0), dir=directory.name)
    out.add("ckpt_save_stalled", any(save.stalled for save in open_saves), dir=directory.name)


def _add_last_save(name: str, save: Save | None, unix_minus_t: float, out: Families) -> None:
    if save is None or save.result != "complete":
        return
    # Without a duration the first write was not seen, so there is no start to tell either.
    start = None if save.duration_seconds is None else save.start + unix_minus_t
    out.add("ckpt_last_save_start_timestamp_seconds", start, dir=name)
    out.add("ckpt_last_save_end_timestamp_seconds", save.end + unix_minus_t, dir=name)
    out.add("ckpt_last_save_duration_seconds", save.duration_seconds, dir=name)
    out.add("ckpt_last_save_bytes", save.bytes, dir=name)
    out.add("ckpt_last_save_files", save.files, dir=name)
    out.add("ckpt_last_save_step", save.step, dir=name)
    out.add("ckpt_last_save_average_bandwidth_bytes_per_second", save.average_bandwidth, dir=name)
    out.add("ckpt_last_save_sustained_bandwidth_bytes_per_second", save.sustained_bandwidth, dir=name)
    out.add("ckpt_last_save_peak_bandwidth_bytes_per_second", save.peak_bandwidth, dir=name)


def collect_loads(snapshot: Snapshot, out: Families) -> None:
    """Add counters, the duration histogram and the last load of every directory."""
    for directory in snapshot.directories:
        name = directory.name
        out.add("ckpt_loads_total", directory.loads, dir=name)
        if directory.load_duration is not None:
            out.add_histogram("ckpt_load_duration_seconds", directory.load_duration, dir=name)
        out.add("ckpt_load_bytes_total", directory.load_bytes, dir=name)
        _add_last_load(name, directory.last_load, out)


def _add_last_load(name: str, load: Load | None, out: Families) -> None:
    if load is None:
        return
    out.add("ckpt_last_load_duration_seconds", load.duration_seconds, dir=name)
    out.add("ckpt_last_load_bytes", load.bytes, dir=name)
    out.add("ckpt_last_load_cached_ratio", load.cached_ratio, dir=name)
    out.add("ckpt_last_load_cold_start_seconds", load.cold_start_seconds, dir=name)


def collect_bubble(snapshot: Snapshot, out: Families) -> None:
    """Add what saves cost the training, per directory; all at 0 without GPUs."""
    for directory in snapshot.directories:
        name = directory.name
        for phase in BUBBLE_PHASES:
            seconds = directory.bubble_phase_seconds.get(phase, 0.0)
            out.add("ckpt_bubble_seconds_total", seconds, dir=name, phase=phase)
        out.add_histogram("ckpt_bubble_seconds", directory.bubble or _none_of(directory.duration), dir=name)
        for reason in SKIP_REASONS:
            count = directory.bubbles_skipped.get(reason, 0)
            out.add("ckpt_bubble_skipped_total", count, dir=name, reason=reason)
        _add_last_bubble(name, directory.last_bubble, out)


def _none_of(histogram: Histogram) -> Histogram:
    return Histogram(histogram.bounds, (0,) * (len(histogram.bounds) + 1), 0.0)


def _add_last_bubble(name: str, bubble: Bubble | None, out: Families) -> None:
    if bubble is None or bubble.skipped is not None:
        return
    out.add("ckpt_last_save_bubble_seconds", bubble.seconds, dir=name)
    out.add("ckpt_last_save_bubble_depth_ratio", bubble.depth, dir=name)


def collect_gpu(snapshot: Snapshot, out: Families) -> None:
    """Add the backend of GPU readings and its GPUs; nothing without one."""
    backend = snapshot.gpu_backend
    if backend is None:
        return
    collect_gpus(snapshot, out)
    out.add("ckpt_gpu_backend_up", backend.up, backend=backend.backend)
    out.add_histogram("ckpt_gpu_call_seconds", backend.call_seconds)


def collect_gpus(snapshot: Snapshot, out: Families) -> None:
    """Add every GPU, whoever read it."""
    directories = [directory.name for directory in snapshot.directories]
    for status in snapshot.gpus:
        _add_gpu_counters(status, directories, out)
        _add_gpu_now(status, out)
        run = snapshot.gpu_runs.get(status.info.gpu)
        # An index may have been another GPU's before.
        if run is not None and status.up:
            _add_run("ckpt_gpu_run_info", run, out, gpu=str(status.info.gpu), uuid=status.info.uuid)


def _add_run(name: str, run: GpuRun | Writers, out: Families, **labels: str) -> None:
    if run.run or run.run_id or run.scheduler:
        told = {"run": run.run or "", "scheduler": run.scheduler or "", "run_id": run.run_id or ""}
        out.add_info(name, **labels, **told)


def _add_gpu_counters(status: GpuStatus, directories: list[str], out: Families) -> None:
    gpu, uuid = str(status.info.gpu), status.info.uuid
    # Only configured directories: one that a reload removed leaves no series.
    for name in directories:
        bubble, drag = status.bubble_seconds.get(name, 0.0), status.drag_seconds.get(name, 0.0)
        out.add("ckpt_gpu_bubble_seconds_total", bubble, dir=name, gpu=gpu, uuid=uuid)
        out.add("ckpt_gpu_drag_seconds_total", drag, dir=name, gpu=gpu, uuid=uuid)
    out.add("ckpt_gpu_observed_seconds_total", status.observed_seconds, gpu=gpu, uuid=uuid)
    for cause in STALL_CAUSES:
        stalled = status.stall_seconds.get(cause, 0.0)
        out.add("ckpt_gpu_stall_seconds_total", stalled, gpu=gpu, uuid=uuid, cause=cause)
        sure = status.confident_seconds.get(cause, 0.0)
        out.add("ckpt_gpu_stall_confident_seconds_total", sure, gpu=gpu, uuid=uuid, cause=cause)


def _add_gpu_now(status: GpuStatus, out: Families) -> None:
    info = status.info
    gpu, uuid = str(info.gpu), info.uuid
    out.add("ckpt_gpu_up", status.up, gpu=gpu, uuid=uuid)
    out.add("ckpt_gpu_activity_ratio", status.activity, gpu=gpu, uuid=uuid)
    out.add("ckpt_gpu_utilization_ratio", status.util, gpu=gpu, uuid=uuid)
    out.add("ckpt_gpu_power_watts", status.power_w, gpu=gpu, uuid=uuid)
    if status.source is not None and status.quality is not None:
        out.add_info(
            "ckpt_gpu_activity_source_info", gpu=gpu, uuid=uuid, source=status.source, quality=status.quality
        )
    out.add_info("ckpt_gpu_info", gpu=gpu, uuid=uuid, name=info.name, driver=info.driver)


def collect_storage(snapshot: Snapshot, out: Families) -> None:
    """Add where each directory lies, how full that is, and which run writes there."""
    known = {status.directory: status for status in snapshot.storage}
    for directory in snapshot.directories:
        status = known.get(directory.name, StorageStatus(directory.name))
        _add_storage(directory, status, out)
        if directory.run is not None:
            _add_run("ckpt_run_info", directory.run, out, dir=directory.name)


def _add_storage(directory: DirectorySnapshot, status: StorageStatus, out: Families) -> None:
    mount = status.mount or _UNKNOWN_MOUNT
    out.add_info(
        "ckpt_directory_info",
        dir=directory.name,
        path=directory.path,
        mountpoint=mount.mountpoint,
        device=mount.device,
        fstype=mount.fstype,
        transport=mount.transport,
    )
    out.add("ckpt_filesystem_avail_bytes", status.available_bytes, dir=directory.name)
    out.add("ckpt_filesystem_size_bytes", status.size_bytes, dir=directory.name)
    out.add("ckpt_device_written_bytes_total", status.device_written_bytes, dir=directory.name)
    out.add("ckpt_dirty_bytes", status.dirty_bytes, dir=directory.name)


def collect_watch(snapshot: Snapshot, out: Families) -> None:
    """Add the state of each watch and the counters of all watching."""
    known = {status.directory: status for status in snapshot.watches}
    for directory in snapshot.directories:
        _add_watch(directory.name, known.get(directory.name), out)
    for looks in snapshot.elsewhere:
        out.add("ckpt_elsewhere_up", looks.up, dir=looks.directory)
        out.add("ckpt_elsewhere_metadata_calls_total", looks.calls, dir=looks.directory)
    for directory in snapshot.directories:
        offset = directory.server_clock_offset_seconds
        out.add("ckpt_file_server_clock_offset_seconds", offset, dir=directory.name)
    counters = snapshot.counters
    out.add("ckpt_watch_overflows_total", counters.overflows)
    out.add("ckpt_events_dropped_total", counters.dropped)
    for reason, count in _zero_initialised(RESCAN_REASONS, counters.rescans).items():
        out.add("ckpt_watch_rescans_total", count, reason=reason)
    for event, count in _zero_initialised(EVENTS, counters.events).items():
        out.add("ckpt_events_total", count, event=event)


def _add_watch(name: str, status: WatchStatus | None, out: Families) -> None:
    # A directory that nothing watches yet is down, not unknown; inotify is what it will get.
    watch = status or WatchStatus(name, backend="inotify", up=False)
    out.add("ckpt_watch_up", watch.up, dir=name, backend=watch.backend)
    out.add("ckpt_watched_directories", watch.watched_directories, dir=name)
    out.add("ckpt_watch_limit_reached", watch.limit_reached, dir=name)
    out.add("ckpt_watch_truncated", watch.truncated, dir=name)
    out.add("ckpt_watch_coverage_ratio", status.coverage if status else None, dir=name)


def _zero_initialised(keys: tuple[str, ...], counts: dict[str, int]) -> dict[str, int]:
    # A series born at 1 shows no increase to Prometheus: the known ones start at 0.
    return dict.fromkeys(keys, 0) | counts


def collect_itself(build: Build, snapshot: Snapshot, out: Families) -> None:
    """Add build, sources and configuration."""
    out.add_info(
        "ckpt_exporter_build_info", version=build.version, revision=build.revision, python=build.python
    )
    for source, healthy in snapshot.sources_healthy.items():
        out.add("ckpt_source_up", healthy, source=source)
    config = snapshot.config
    out.add("ckpt_config_last_reload_successful", config.successful)
    loaded = config.success_unix if config.success_unix > 0 else None
    out.add("ckpt_config_last_reload_success_timestamp_seconds", loaded)
    if (web := snapshot.web.config) is not None:
        out.add("ckpt_web_config_last_reload_successful", web.successful)
        out.add("ckpt_web_config_last_reload_success_timestamp_seconds", web.success_unix)
    for reason, count in sorted(snapshot.web.rejected.items()):
        out.add("ckpt_web_rejected_total", count, reason=reason)


def collect_history(snapshot: Snapshot, out: Families) -> None:
    """Add the state of the history file; nothing where none is kept."""
    history = snapshot.history
    if history is None:
        return
    out.add("ckpt_history_up", history.up)
    for reason, count in history.errors.items():
        out.add("ckpt_history_errors_total", count, reason=reason)
    out.add("ckpt_history_records_dropped_total", history.dropped)
    out.add("ckpt_history_size_bytes", history.size_bytes)


Collect = Callable[[Snapshot, Families], None]

# The collectors that need the snapshot alone; the registry adds ``itself`` and ``process``.
SNAPSHOT_COLLECTORS: dict[str, Collect] = {
    "saves": collect_saves,
    "loads": collect_loads,
    "bubble": collect_bubble,
    "gpu": collect_gpu,
    "storage": collect_storage,
    "watch": collect_watch,
    "history": collect_history,
}
