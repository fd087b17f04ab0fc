"""Measured saves for tests, made by hand."""

from __future__ import annotations

import random
from typing import Any

from ckpt_exporter.history.records import GpuTimeRecord, Measurements, SaveRecord

BYTES = 65_600_000_000


def save_record(number: int, duration: float, node: str = "n1", **changes: Any) -> SaveRecord:
    """Return the complete save of step 500 x ``number``, begun half an hour after the one before."""
    values: dict[str, Any] = {
        "node": node, "directory": "llama", "path": f"/ckpt/step-{number * 500}", "layout": "dcp",
        "result": "complete", "start_unix": number * 1800.0, "end_unix": number * 1800.0 + duration,
        "bytes": BYTES, "files": 8, "step": number * 500, "duration_seconds": duration,
        "active_seconds": duration * 0.9, "average_bandwidth": BYTES / duration,
        "sustained_bandwidth": BYTES / duration / 0.9, "mountpoint": "/old", "device": "nvme0n1",
        "fstype": "xfs", "transport": "nvme-tcp", "bubble_seconds": duration,
        "bubble_gpu_seconds": dict.fromkeys(range(8), duration), "source": "power", "quality": "high",
    } | changes  # fmt: skip
    return SaveRecord(**values)


def durations(middle: float, count: int, seed: int = 1) -> list[float]:
    """Return durations that scatter by 3 % around a middle."""
    rng = random.Random(seed)
    return [middle * rng.lognormvariate(0, 0.03) for _ in range(count)]


def measurements(saves: list[SaveRecord], hours: int = 10, gpus: int = 8) -> Measurements:
    """Return measurements over so many hours, every node's GPUs observed all the time."""
    time = [
        GpuTimeRecord(node, gpu, f"GPU-{node}-{gpu}", 3600 * hour, 3600.0)
        for node in sorted({save.node for save in saves})
        for gpu in range(gpus)
        for hour in range(hours)
    ]
    return Measurements("test", 0.0, 3600.0 * hours, tuple(saves), tuple(time))


def arm(middle: float, count: int = 20, seed: int = 1, **changes: Any) -> Measurements:
    """Return ``count`` saves around a duration, half an hour apart, with the GPU time that goes with them."""
    saves = [save_record(n, d, **changes) for n, d in enumerate(durations(middle, count, seed))]
    hours = max(1, count // 2)
    return measurements(saves, hours)
