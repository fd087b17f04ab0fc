"""One snapshot with every kind of value, known and unknown, for the tests of metrics and pages."""

from __future__ import annotations

from dataclasses import replace

from ckpt_exporter.book import DURATION_BUCKETS_SECONDS
from ckpt_exporter.model import (
    Bubble,
    ConfigStatus,
    DirectorySnapshot,
    ElsewhereStatus,
    GpuBackendStatus,
    GpuInfo,
    GpuRun,
    GpuStatus,
    Histogram,
    HistoryStatus,
    Load,
    Mount,
    OpenSave,
    Save,
    Snapshot,
    StorageStatus,
    WatchCounters,
    WatchStatus,
    WebStatus,
    Writers,
)

HOSTILE_NAME = 'we"ird\\ \n<script>alert(1)</script>\udcff'

NO_DURATIONS = Histogram(DURATION_BUCKETS_SECONDS, (0,) * 18, 0.0)


def _durations() -> Histogram:
    # 94 s falls into the bucket (90, 120], the tenth; 178 s into (120, 180], the eleventh.
    counts = [0] * 18
    exemplars: list[tuple[float, float, int] | None] = [None] * 18
    counts[9] = counts[10] = 1
    exemplars[9] = (94.0, 1764470500.5, 100)
    exemplars[10] = (178.0, 1764470900.0, 200)
    return Histogram(DURATION_BUCKETS_SECONDS, tuple(counts), 272.0, tuple(exemplars))


def empty_directory(name: str, path: str = "/data/empty") -> DirectorySnapshot:
    """Make a configured directory in which nothing has been seen yet."""
    return DirectorySnapshot(
        name=name,
        path=path,
        saves={"complete": 0, "incomplete": 0, "aborted": 0},
        save_bytes=0,
        save_files=0,
        written_bytes=0,
        write_active_seconds=0.0,
        duration=NO_DURATIONS,
        open_saves=(),
        last_save=None,
        retained_checkpoints=None,
        retained_bytes=None,
        deleted_checkpoints=0,
    )


LAST_SAVE = Save(
    directory="llama",
    path="/data/llama/checkpoint-200",
    layout="huggingface",
    step=200,
    result="complete",
    reason=None,
    start=722.0,
    end=900.0,
    duration_seconds=178.0,
    bytes=65_000_000_000,
    files=16,
    active_seconds=160.0,
    average_bandwidth=65e9 / 178,
    sustained_bandwidth=406_250_000.0,
    peak_bandwidth=2e9,
)

LAST_LOAD = Load(
    directory="llama",
    path="/data/llama/checkpoint-200",
    layout="huggingface",
    step=200,
    start=910.0,
    end=942.5,
    duration_seconds=32.5,
    bytes=65_000_000_000,
    files=16,
    bandwidth=2e9,
    readers=8,
    cached_ratio=0.25,
    first_gpu_work=951.0,
)

# Moved in from outside: when its bytes were written is not known.
MOVED_SAVE = replace(
    LAST_SAVE,
    directory=HOSTILE_NAME,
    path=f"/mnt/{HOSTILE_NAME}/final.pt",
    layout="generic",
    step=None,
    start=600.0,
    end=600.0,
    duration_seconds=None,
    bytes=5_000_000,
    files=1,
    active_seconds=None,
    average_bandwidth=None,
    sustained_bandwidth=None,
    peak_bandwidth=None,
)


def open_save(step: int, start: float, size_bytes: int, *, stalled: bool) -> OpenSave:
    """Make an open save of the first directory."""
    return OpenSave(
        directory="llama",
        path=f"/data/llama/tmp-checkpoint-{step}",
        layout="huggingface",
        step=step,
        start=start,
        bytes=size_bytes,
        files=4,
        open_files=1,
        last_byte=995.0 if not stalled else 920.0,
        stalled=stalled,
    )


# 16 s lost on GPU 0 and 14 s on GPU 1: 15 s in the mean, 1.5 + 12 + 0.5 + 1.
LAST_BUBBLE = Bubble(
    directory="llama",
    save_path=LAST_SAVE.path,
    save_end=900.0,
    seconds=15.0,
    gpu_seconds={0: 16.0, 1: 14.0},
    drag_gpu_seconds={0: 0.5, 1: 0.0},
    phases={"before_write": 1.5, "writing": 12.0, "write_gap": 0.5, "after_write": 1.0},
    start=720.0,
    end=740.0,
    depth=0.75,
    source="power",
    quality="high",
)


def _bubbles() -> Histogram:
    # 9 s falls into the bucket (5, 10], the fourth; 15 s into (10, 20], the fifth.
    counts = [0] * 18
    counts[3] = counts[4] = 1
    return Histogram(DURATION_BUCKETS_SECONDS, tuple(counts), 24.0)


# The second GPU fell off the bus after the last save.
GPUS = (
    GpuStatus(
        GpuInfo(0, "GPU-aaaa", "NVIDIA H100 80GB HBM3", "570.124.06", limit_w=700.0),
        up=True,
        activity=0.96875,
        util=1.0,
        power_w=612.5,
        source="power",
        quality="high",
        observed_seconds=800.0,
        bubble_seconds={"llama": 26.0, "gone": 5.0},
        drag_seconds={"llama": 0.5},
        stall_seconds={"checkpoint_save": 31.0, "data_loading": 2.5},
    ),
    GpuStatus(
        GpuInfo(1, "GPU-bbbb", "NVIDIA H100 80GB HBM3", "570.124.06", limit_w=700.0),
        up=False,
        observed_seconds=700.0,
        bubble_seconds={"llama": 22.0},
        stall_seconds={"checkpoint_save": 22.0},
    ),
)

# 90 calls of up to 1 ms and 10 of up to 5 ms.
GPU_BACKEND = GpuBackendStatus("nvml", up=True, call_seconds=Histogram((0.001, 0.005), (90, 10, 0), 0.0625))


def _llama() -> DirectorySnapshot:
    return replace(
        empty_directory("llama", "/data/llama"),
        saves={"complete": 2, "incomplete": 1, "aborted": 0},
        save_bytes=130_000_000_000,
        save_files=32,
        written_bytes=140_500_000_000,
        write_active_seconds=250.5,
        duration=_durations(),
        open_saves=(
            open_save(299, 900.0, 1_500_000_000, stalled=True),
            open_save(300, 940.0, 9_000_000_000, stalled=False),
        ),
        last_save=LAST_SAVE,
        retained_checkpoints=2,
        retained_bytes=130_000_000_000,
        deleted_checkpoints=3,
        bubble_phase_seconds={"before_write": 2.5, "writing": 18.0, "write_gap": 0.5, "after_write": 3.0},
        bubble=_bubbles(),
        bubbles_skipped={"no_gpu": 0, "no_baseline": 1, "sampler_gap": 0, "low_quality": 0},
        last_bubble=LAST_BUBBLE,
        loads=1,
        load_bytes=65_000_000_000,
        load_duration=Histogram((0.1, 30.0, 60.0), (0, 0, 1, 0), 32.5),
        last_load=LAST_LOAD,
        run=Writers(990.0, "llama", (4711,), run="llama-7b", scheduler="slurm", run_id="8812"),
    )


def _hostile() -> DirectorySnapshot:
    return replace(
        empty_directory(HOSTILE_NAME, f"/mnt/{HOSTILE_NAME}"),
        saves={"complete": 1, "incomplete": 0, "aborted": 0},
        save_bytes=5_000_000,
        save_files=1,
        last_save=MOVED_SAVE,
        bubbles_skipped={"no_gpu": 1, "no_baseline": 0, "sampler_gap": 0, "low_quality": 0},
        last_bubble=Bubble(HOSTILE_NAME, MOVED_SAVE.path, 600.0, skipped="no_gpu"),
        retained_checkpoints=1,
        retained_bytes=5_000_000,
        remote_saves={"complete": 2, "incomplete": 0, "aborted": 1},
        last_remote_save=replace(MOVED_SAVE, end=700.0, elsewhere=True),
        server_clock_offset_seconds=-2.5,
    )


def sample_snapshot() -> Snapshot:
    """Three directories: a busy one, one not seen yet, one with a hostile name; it is 02:50:00 UTC."""
    return Snapshot(
        t=1000.0,
        unix_minus_t=1764470000.0,
        directories=(_llama(), empty_directory("vision"), _hostile()),
        storage=(
            StorageStatus(
                "llama",
                Mount("/data", "nvme0n1p1", "ext4", "nvme-tcp"),
                available_bytes=750_000_000_000,
                size_bytes=3_000_000_000_000,
                device_written_bytes=987_654_321_000,
                dirty_bytes=4096,
            ),
            StorageStatus(
                HOSTILE_NAME,
                Mount("/mnt", "filer:/export", "nfs4", "nfs", shared=True),
                available_bytes=0,
                size_bytes=1_000_000_000_000,
            ),
        ),
        watches=(
            WatchStatus("llama", "inotify", up=True, watched_directories=12),
            WatchStatus(
                HOSTILE_NAME, "poll", up=True, watched_directories=3, limit_reached=True, coverage=0.25
            ),
        ),
        elsewhere=(ElsewhereStatus(HOSTILE_NAME, up=True, calls=321),),
        counters=WatchCounters(
            overflows=1,
            dropped=2,
            rescans={"overflow": 1, "periodic": 4},
            events={"create": 40, "close_write": 38, "moved": 3},
        ),
        config=ConfigStatus(successful=False, success_unix=1764466800.0),
        web=WebStatus(
            {
                "busy": 0,
                "crowded": 1,
                "misdirected": 0,
                "rate_limited": 0,
                "slow": 2,
                "tls": 3,
                "unauthorized": 4,
            },
            ConfigStatus(successful=True, success_unix=1764466900.0),
        ),
        gpu_backend=GPU_BACKEND,
        gpus=GPUS,
        gpu_runs={0: GpuRun("llama-7b", "slurm", "8812"), 1: GpuRun("llama-7b", "slurm", "8812")},
        sources_healthy={"inotify": True, "storage": False},
        history=HistoryStatus(up=False, errors={"damaged": 1, "full": 2}, dropped=3, size_bytes=40_960),
    )
