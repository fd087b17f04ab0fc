"""A scripted fleet, told through the exporter's own registry: what the dashboards are tested and drawn with.

Every number is made up from the script, so that what a dashboard should show can be told by hand; names,
labels and shapes are those of a real scrape. Nothing here is measured.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final

from ckpt_exporter.book import DURATION_BUCKETS_SECONDS, PHASES, SKIP_REASONS
from ckpt_exporter.metrics import build_registry
from ckpt_exporter.model import (
    Bubble,
    BubblePhase,
    ConfigStatus,
    DirectorySnapshot,
    GpuBackendStatus,
    GpuInfo,
    GpuRun,
    GpuStatus,
    Histogram,
    Load,
    Mount,
    OpenSave,
    Save,
    SaveResult,
    Snapshot,
    StorageStatus,
    WatchCounters,
    WatchStatus,
    Writers,
)
from ckpt_exporter.remote import RESULTS

GPUS: Final = 8
# A save is judged a little after it ends, when the GPUs are seen to work again.
JUDGED_AFTER_SECONDS: Final = 10.0
FREE_BYTES: Final = 28_000_000_000_000
DISK_BYTES: Final = 60_000_000_000_000
# As measured on an idle machine: see the benchmarks.
CPU_SHARE: Final = 0.0027
RESIDENT_BYTES: Final = 38_600_000


@dataclass(frozen=True, slots=True)
class ScriptedSave:
    """One save. ``phases`` are the seconds of training that it costs, by what the files do."""

    start: float
    end: float
    step: int
    size_bytes: int
    phases: dict[BubblePhase, float]
    result: SaveResult = "complete"
    flowing_share: float = 0.9

    @property
    def bubble_seconds(self) -> float:
        """Return what it costs, mean over the GPUs."""
        return sum(self.phases.values())

    @property
    def dip(self) -> tuple[float, float]:
        """Return when the GPUs stand still: from before the first byte on."""
        start = self.start - self.phases["before_write"]
        return start, start + self.bubble_seconds


@dataclass(frozen=True, slots=True)
class ScriptedLoad:
    """One checkpoint being read; ``cached_ratio`` of it was in the page cache."""

    start: float
    end: float
    size_bytes: int
    cached_ratio: float


@dataclass(frozen=True, slots=True)
class ScriptedNode:
    """One node: its saves by directory in time order, and the run behind them. Times are Unix seconds."""

    name: str
    began: float
    saves: dict[str, tuple[ScriptedSave, ...]]
    run: str
    mount: Mount
    keep: int = 4
    run_id: str = "8812"
    loads: tuple[ScriptedLoad, ...] = ()  # from its first directory

    @property
    def all_saves(self) -> tuple[ScriptedSave, ...]:
        """Return the saves of all directories."""
        return tuple(save for saves in self.saves.values() for save in saves)


def sync_save(start: float, seconds: float, step: int, size_bytes: int) -> ScriptedSave:
    """Script a save for which training stands still: two seconds before it, and until it is committed."""
    phases: dict[BubblePhase, float] = {
        "before_write": 2.0, "writing": 0.9 * seconds, "write_gap": 0.1 * seconds, "after_write": 1.0
    }  # fmt: skip
    return ScriptedSave(start, start + seconds, step, size_bytes, phases)


def async_save(start: float, seconds: float, step: int, size_bytes: int) -> ScriptedSave:
    """Script a save that is staged in three seconds and written while training goes on."""
    phases: dict[BubblePhase, float] = {
        "before_write": 3.0, "writing": 0.5, "write_gap": 0.0, "after_write": 0.0
    }  # fmt: skip
    return ScriptedSave(start, start + seconds, step, size_bytes, phases)


def snapshot(node: ScriptedNode, now: float) -> Snapshot:
    """Return what the exporter of a node would know at a moment."""
    return Snapshot(
        t=now,
        unix_minus_t=0.0,
        directories=tuple(_directory(node, name, now) for name in node.saves),
        storage=tuple(_storage(node, name, now) for name in node.saves),
        watches=tuple(WatchStatus(name, "inotify", up=True, watched_directories=6) for name in node.saves),
        counters=_counters(node, now),
        config=ConfigStatus(successful=True, success_unix=node.began),
        gpu_backend=GpuBackendStatus("nvml", up=True, call_seconds=_calls(node, now)),
        gpus=_gpus(node, now),
        gpu_runs={gpu: GpuRun(node.run, "slurm", node.run_id) for gpu in range(GPUS)},
        sources_healthy={"inotify": True, "progress": True, "storage": True, "writers": True, "gpu": True},
    )


def scrapes(node: ScriptedNode, times: Iterable[float], *, cluster: str | None = "lab") -> Iterator[str]:
    """Yield scrapes of a node as OpenMetrics samples, with the labels of its target and their times."""
    target = f'job="ckpt-exporter",instance="{node.name}"'
    if cluster is not None:
        target = f'cluster="{cluster}",{target}'
    told: list[Snapshot] = []
    # A clock by which each collector takes half a millisecond.
    ticks = count()
    registry = build_registry(
        lambda: told[-1],
        revision="scripted",
        python="3.11",
        process_metrics=False,
        clock=lambda: 0.0005 * next(ticks),
    )
    for now in times:
        told[:] = [snapshot(node, now)]
        for family in registry.collect():
            for sample in family.samples:
                labels = "".join([f',{key}="{value}"' for key, value in sample.labels.items()])
                yield f"{sample.name}{{{target}{labels}}} {float(sample.value)!r} {now:.3f}\n"
        yield from _process(node, target, now)


def _process(node: ScriptedNode, target: str, now: float) -> Iterator[str]:
    cpu_seconds = CPU_SHARE * (now - node.began)
    yield f"process_cpu_seconds_total{{{target}}} {cpu_seconds!r} {now:.3f}\n"
    yield f"process_resident_memory_bytes{{{target}}} {RESIDENT_BYTES} {now:.3f}\n"


def _directory(node: ScriptedNode, name: str, now: float) -> DirectorySnapshot:
    saves = node.saves[name]
    ended = [save for save in saves if save.end <= now]
    complete = [save for save in ended if save.result == "complete"]
    judged = [save for save in complete if save.end + JUDGED_AFTER_SECONDS <= now]
    open_saves = [save for save in saves if save.start <= now < save.end]
    loads = [load for load in node.loads if load.end <= now and name == next(iter(node.saves))]
    return DirectorySnapshot(
        name=name,
        path=f"/mnt/checkpoints/{name}",
        saves={result: sum(save.result == result for save in ended) for result in RESULTS},
        save_bytes=sum(save.size_bytes for save in complete),
        save_files=16 * len(complete),
        written_bytes=_written_bytes(saves, now),
        write_active_seconds=sum(save.flowing_share * _elapsed(save, now) for save in (*ended, *open_saves)),
        duration=_histogram(save.end - save.start for save in complete),
        open_saves=tuple(_open_save(name, save, now) for save in open_saves),
        last_save=_finished(name, complete[-1]) if complete else None,
        retained_checkpoints=min(node.keep, len(complete)),
        retained_bytes=sum(save.size_bytes for save in complete[-node.keep :]),
        deleted_checkpoints=max(0, len(complete) - node.keep),
        run=Writers(now, name, (4711,), run=node.run, scheduler="slurm", run_id=node.run_id)
        if saves
        else None,
        bubble_phase_seconds={phase: sum(save.phases[phase] for save in judged) for phase in PHASES},
        bubble=_histogram(save.bubble_seconds for save in judged),
        bubbles_skipped=dict.fromkeys(SKIP_REASONS, 0),
        last_bubble=_bubble(name, judged[-1]) if judged and judged[-1] is complete[-1] else None,
        loads=len(loads),
        load_bytes=sum(load.size_bytes for load in loads),
        load_duration=_histogram(load.end - load.start for load in loads),
        last_load=_load(name, loads[-1]) if loads else None,
    )


def _load(name: str, load: ScriptedLoad) -> Load:
    return Load(
        name, f"/mnt/checkpoints/{name}/checkpoint-100", "huggingface", 100, load.start, load.end,
        load.end - load.start, load.size_bytes, 16, load.size_bytes / (load.end - load.start), 8,
        cached_ratio=load.cached_ratio,
    )  # fmt: skip


def _elapsed(save: ScriptedSave, now: float) -> float:
    return min(max(now - save.start, 0.0), save.end - save.start)


def _written(save: ScriptedSave, now: float) -> int:
    return int(save.size_bytes * _elapsed(save, now) / (save.end - save.start))


def _written_bytes(saves: Iterable[ScriptedSave], now: float) -> int:
    return sum(
        save.size_bytes if save.end <= now else _written(save, now) for save in saves if save.start < now
    )


def _finished(name: str, save: ScriptedSave) -> Save:
    seconds = save.end - save.start
    return Save(
        directory=name,
        path=f"/mnt/checkpoints/{name}/checkpoint-{save.step}",
        layout="huggingface",
        step=save.step,
        result="complete",
        reason=None,
        start=save.start,
        end=save.end,
        duration_seconds=seconds,
        bytes=save.size_bytes,
        files=16,
        active_seconds=save.flowing_share * seconds,
        average_bandwidth=save.size_bytes / seconds,
        sustained_bandwidth=save.size_bytes / (save.flowing_share * seconds),
        peak_bandwidth=1.4 * save.size_bytes / (save.flowing_share * seconds),
    )


def _open_save(name: str, save: ScriptedSave, now: float) -> OpenSave:
    path = f"/mnt/checkpoints/{name}/checkpoint-{save.step}"
    done = _written(save, now)
    return OpenSave(name, path, "huggingface", save.step, save.start, done, 16, 1, now, stalled=False)


def _bubble(name: str, save: ScriptedSave) -> Bubble:
    path = f"/mnt/checkpoints/{name}/checkpoint-{save.step}"
    return Bubble(
        name, path, save.end, seconds=save.bubble_seconds, phases=save.phases, depth=0.97, source="power",
        quality="high",
    )  # fmt: skip


def _storage(node: ScriptedNode, name: str, now: float) -> StorageStatus:
    written = _written_bytes(node.all_saves, now)
    kept = sum(_directory_bytes(node, other, now) for other in node.saves)
    dirty = sum(0.02 * save.size_bytes for save in node.saves[name] if save.start <= now < save.end + 5.0)
    return StorageStatus(name, node.mount, FREE_BYTES - kept, DISK_BYTES, written, int(dirty) + 3_000_000)


def _directory_bytes(node: ScriptedNode, name: str, now: float) -> int:
    complete = [save for save in node.saves[name] if save.end <= now and save.result == "complete"]
    return sum(save.size_bytes for save in complete[-node.keep :])


def _counters(node: ScriptedNode, now: float) -> WatchCounters:
    ended = sum(save.end <= now for save in node.all_saves)
    hours = int((now - node.began) / 3600.0)
    return WatchCounters(
        rescans={"periodic": hours, "restart": 1},
        events={"create": 17 * ended, "close_write": 16 * ended, "moved": 2 * ended, "deleted": 16 * ended},
    )


def _calls(node: ScriptedNode, now: float) -> Histogram:
    calls = int(2 * GPUS * (now - node.began))
    return Histogram((0.001, 0.005, 0.025), (calls - calls // 50, calls // 50, 0, 0), 0.0006 * calls)


def _gpus(node: ScriptedNode, now: float) -> tuple[GpuStatus, ...]:
    bubbles = {
        name: sum(s.bubble_seconds for s in saves if s.end + JUDGED_AFTER_SECONDS <= now)
        for name, saves in node.saves.items()
    }
    # No dip is farther away than this from the save that it belongs to.
    near = (save for save in node.all_saves if save.start - 60.0 <= now < save.end + 60.0)
    standing = any(start <= now < end for start, end in (save.dip for save in near))
    return tuple(_gpu(node, gpu, now, bubbles, standing=standing) for gpu in range(GPUS))


def _gpu(node: ScriptedNode, gpu: int, now: float, bubbles: dict[str, float], *, standing: bool) -> GpuStatus:
    observed = now - node.began
    stalls = {
        "checkpoint_save": sum(bubbles.values()),
        "data_loading": 0.006 * observed,
        "communication": 0.003 * observed,
    }
    # Of waiting for data two thirds are beyond doubt, of communication one.
    sure = stalls | {"data_loading": 0.004 * observed, "communication": 0.001 * observed}
    activity, utilization, power = _readings(gpu, now, standing=standing)
    uuid = f"GPU-{node.name}-{gpu}"
    return GpuStatus(
        GpuInfo(gpu, uuid, "NVIDIA H100 80GB HBM3 (scripted)", "scripted", limit_w=700.0),
        up=True,
        activity=activity,
        util=utilization,
        power_w=power,
        source="power",
        quality="high",
        observed_seconds=observed,
        bubble_seconds=bubbles,
        stall_seconds=stalls,
        confident_seconds=sure,
    )


def _readings(gpu: int, now: float, *, standing: bool) -> tuple[float, float, float]:
    """Return activity, utilisation and watts: in a save, rank 0 writes, the others spin and look busy."""
    ripple = math.sin(now / 7.0 + 1.7 * gpu) * math.sin(now / 31.0 + gpu)
    if standing:
        return 0.02 + 0.01 * ripple, (0.03 if gpu == 0 else 1.0), 151.0 + 2.0 * ripple
    return 0.98 + 0.02 * ripple, 0.92 + 0.03 * ripple, 549.0 + 12.0 * ripple


def _histogram(values: Iterable[float]) -> Histogram:
    counts, total = [0] * (len(DURATION_BUCKETS_SECONDS) + 1), 0.0
    for value in values:
        counts[bisect_left(DURATION_BUCKETS_SECONDS, value)] += 1
        total += value
    return Histogram(DURATION_BUCKETS_SECONDS, tuple(counts), total)
