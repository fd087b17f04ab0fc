"""Records for tests of the history and of what is reckoned from it; every number is set by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ckpt_exporter.history.records import (
    GpuTimeRecord,
    LoadRecord,
    Measurements,
    SaveRecord,
    ShardRecord,
    StallRecord,
)
from ckpt_exporter.model import Bubble, Load, Save, Shard, Stall

HOUR = 3600
# 2025-11-30 00:00:00 UTC, the start of an hour.
MIDNIGHT = 1764460800

PLAIN = SaveRecord(
    node="n1", directory="llama", path="/data/llama/checkpoint-100", layout="huggingface", result="complete",
    start_unix=MIDNIGHT + 0.25, end_unix=MIDNIGHT + 100.25, bytes=8_000_000_000, files=4, step=100,
    duration_seconds=100.0, active_seconds=80.0, written_bytes=8_100_000_000, average_bandwidth=80e6,
    sustained_bandwidth=100e6, peak_bandwidth=250e6,
)  # fmt: skip

FULL = replace(
    PLAIN,
    path="/data/llama/日本\\xff'; DROP TABLE saves; --",
    run="pretrain", run_id="4711", scheduler="slurm", mountpoint="/data", device="nvme0n1p1", fstype="ext4",
    transport="nvme-pcie", bubble_seconds=105.5, bubble_gpu_seconds={0: 105.0, 1: 106.0},
    drag_gpu_seconds={1: 0.5},
    bubble_phases={"before_write": 5.0, "writing": 90.0, "write_gap": 4.5, "after_write": 6.0},
    dip_start_unix=MIDNIGHT - 5.0, dip_end_unix=MIDNIGHT + 106.0, depth=0.95, source="power", quality="high",
    notes=("copy", "reconciled"),
    shards=(
        ShardRecord("rank0.bin", 4_000_000_000, MIDNIGHT + 1.0, MIDNIGHT + 90.0),
        ShardRecord("rank1.bin", 4_000_000_000, None, MIDNIGHT + 100.125),
    ),
)  # fmt: skip

LOAD = LoadRecord(
    node="n1", directory="llama", path="/data/llama/日本\\xff'; --", layout="huggingface",
    start_unix=MIDNIGHT + 10.0, end_unix=MIDNIGHT + 30.5, duration_seconds=20.5, bytes=8_000_000_000, files=4,
    step=100, run="pretrain", readers=8, cached_ratio=0.25, notes=("mapped",), mountpoint="/data",
    device="nvme0n1p1", fstype="ext4", transport="nvme-pcie", cold_start_seconds=27.5,
)  # fmt: skip
STALL = StallRecord("n1", 3, MIDNIGHT + 40.0, MIDNIGHT + 44.0, 3.5, "data_loading", "GPU-x")

HOURS = (
    GpuTimeRecord("n1", 0, "GPU-a", MIDNIGHT, 3600.0, {"data_loading": 12.5}),
    GpuTimeRecord("n1", 1, "GPU-b", MIDNIGHT, 3500.0),
)


def numbered(number: int, **values: Any) -> SaveRecord:
    """Return the save of one step: ``number`` minutes after midnight, a minute long."""
    end = MIDNIGHT + 60.0 * (number + 1)
    path = f"/data/llama/checkpoint-{number}"
    changed = {
        "step": number,
        "path": path,
        "start_unix": end - 60.0,
        "end_unix": end,
        "duration_seconds": 60.0,
    }
    return replace(PLAIN, **{**changed, **values})


def published_case() -> Measurements:
    """Return the published case as measured: 20 saves of 178 s in 36,000 s, 8 GPUs stopped all the while.

    65.6 GB each; 171.5 s of each save are writing and 6.5 s come after the last byte.
    """
    saves = tuple(
        replace(
            PLAIN, path=f"/data/llama/step-{step}", step=step, start_unix=MIDNIGHT + 1800.0 * i + 1622,
            end_unix=MIDNIGHT + 1800.0 * i + 1800, bytes=65_600_000_000, duration_seconds=178.0,
            active_seconds=171.5, written_bytes=65_600_000_000, average_bandwidth=65.6e9 / 178,
            sustained_bandwidth=65.6e9 / 171.5, peak_bandwidth=0.5e9, bubble_seconds=178.0,
            bubble_gpu_seconds=dict.fromkeys(range(8), 178.0),
            bubble_phases={"before_write": 0.0, "writing": 171.5, "write_gap": 0.0, "after_write": 6.5},
            source="power", quality="high",
        )
        for i, step in enumerate(range(500, 10_500, 500))
    )  # fmt: skip
    hours = tuple(
        GpuTimeRecord("n1", gpu, f"GPU-{gpu}", MIDNIGHT + HOUR * hour, 3600.0)
        for hour in range(10)
        for gpu in range(8)
    )
    return Measurements("the published case", MIDNIGHT, MIDNIGHT + 36_000, saves, hours)


def live_save(number: int = 1, **values: Any) -> Save:
    """Return a save as the detector hands it out, 10 s long, ending at ``number`` * 100 s."""
    end = number * 100.0
    base = Save(
        directory="llama", path=f"/data/llama/checkpoint-{number}", layout="huggingface", step=number,
        result="complete", reason=None, start=end - 10.0, end=end, duration_seconds=10.0, bytes=1_000_000_000,
        files=2, active_seconds=8.0, average_bandwidth=100e6, sustained_bandwidth=125e6, peak_bandwidth=200e6,
        written_bytes=1_000_000_000,
        shards=(Shard("a.bin", 400_000_000, end - 10, end - 5), Shard("b.bin", 600_000_000, end - 9, end)),
    )  # fmt: skip
    return replace(base, **values)


def live_bubble(save: Save, seconds: float = 9.5) -> Bubble:
    """Return what a save cost on two GPUs."""
    return Bubble(
        directory=save.directory, save_path=save.path, save_end=save.end, seconds=seconds,
        gpu_seconds={0: seconds, 1: seconds}, phases={"writing": seconds - 1.0, "after_write": 1.0},
        start=save.start - 1.0, end=save.end, depth=0.9, source="power", quality="high",
    )  # fmt: skip


def live_load(number: int = 1, **values: Any) -> Load:
    """Return a load as the detector hands it out, 4 s long, ending at ``number`` * 100 s."""
    end = number * 100.0
    base = Load(
        directory="llama", path=f"/data/llama/checkpoint-{number}", layout="huggingface", step=number,
        start=end - 4.0, end=end, duration_seconds=4.0, bytes=1_000_000_000, files=2, bandwidth=250e6,
        readers=8, pids=(42,), run="pretrain", cached_ratio=0.5, notes=("mapped",),
    )  # fmt: skip
    return replace(base, **values)


def live_stall(number: int = 1, **values: Any) -> Stall:
    """Return a stall of GPU 3 that ended at ``number`` * 100 s."""
    return replace(Stall(3, number * 100.0 - 2.0, number * 100.0, "data_loading", 1.5), **values)
