"""GPU counters as seconds by hour."""

from __future__ import annotations

from ckpt_exporter.history.gpu_time import MAX_WAITING, GpuHours
from ckpt_exporter.model import GpuInfo, GpuStatus
from tests.history_samples import MIDNIGHT


def gpu(observed: float, uuid: str = "GPU-a", **stalls: float) -> GpuStatus:
    return GpuStatus(GpuInfo(0, uuid), up=True, observed_seconds=observed, stall_seconds=dict(stalls))


def hours(kept: GpuHours) -> list[tuple[int, float]]:
    return [(record.hour_unix - MIDNIGHT, record.observed_seconds) for record in kept.waiting]


def test_growth_only() -> None:
    """What grew since the last reading is added; what is written is forgotten; nothing new is nothing."""
    kept = GpuHours("n1", 0.0)
    kept.read([gpu(300.0)], 300.0, MIDNIGHT)
    kept.read([gpu(400.0)], 400.0, MIDNIGHT)
    assert hours(kept) == [(0, 400.0)]
    kept.written()
    kept.read([gpu(400.0)], 700.0, MIDNIGHT)

    assert kept.waiting == ()


def test_counters_that_begin_anew() -> None:
    """A GPU whose counters went back (forgotten and seen again) counts from 0, not backwards."""
    kept = GpuHours("n1", 0.0)
    kept.read([gpu(300.0, other=5.0)], 300.0, MIDNIGHT)
    kept.read([gpu(20.0, other=1.0)], 600.0, MIDNIGHT)
    (record,) = kept.waiting

    assert record.observed_seconds == 320.0
    assert record.stall_seconds == {"other": 6.0}


def test_a_clock_that_is_set() -> None:
    """Seconds observed before a clock was set ahead by a day are not spread over that day."""
    kept = GpuHours("n1", 0.0)
    kept.read([gpu(300.0)], 300.0, MIDNIGHT)
    kept.written()
    kept.read([gpu(600.0)], 600.0, MIDNIGHT + 86_400.0)

    assert hours(kept) == [(86_400, 300.0)]


def test_what_waits_is_bounded() -> None:
    """Of more hours than are kept waiting the oldest are dropped, and counted."""
    kept = GpuHours("n1", 0.0)
    kept.read([gpu(1.0, uuid=str(number)) for number in range(MAX_WAITING + 3)], 1.0, MIDNIGHT)

    assert len(kept.waiting) == MAX_WAITING
    assert kept.dropped == 3
    assert kept.waiting[0].uuid == "3"
