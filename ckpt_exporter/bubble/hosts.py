"""What the host showed during a stretch of lost activity, put together from looks at it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ckpt_exporter.bubble.episodes import LEAST_USUAL
from ckpt_exporter.model import HostEvidence

# Looks that cover less of a stretch than this say nothing about it.
COVERED: Final = 0.4


@dataclass(frozen=True, slots=True)
class HostShare:
    """Means over the covered part of a stretch; None unknown.

    ``cores``: processors that the run's processes used, ``worker_cores`` of these by processes without a GPU.
    ``waiting``: its threads in uninterruptible sleep, ``worker_waiting`` of these those without a GPU;
    ``runnable``: those without a GPU that ran or wanted to; ``io_wait``: seconds of waiting for I/O per
    second. ``read``, ``called`` and ``written`` are bytes per second: from storage, by read calls of any
    kind, and written. Pressures are shares of time in which a task stood still for want of I/O, memory or a
    processor, ``own_pressure``: of this run alone. ``network`` is traffic as a share of what it was before.
    ``whole``: all of the run's processes could be looked at.
    """

    whole: bool = False
    cores: float | None = None
    worker_cores: float | None = None
    waiting: float | None = None
    worker_waiting: float | None = None
    runnable: float | None = None
    io_wait: float | None = None
    read: float | None = None
    called: float | None = None
    written: float | None = None
    io_pressure: float | None = None
    memory_pressure: float | None = None
    cpu_pressure: float | None = None
    own_pressure: bool = False
    network: float | None = None


def host_share(facts: Iterable[HostEvidence], start: float, end: float) -> HostShare | None:
    """Put the looks that lie in a stretch together; None if they cover too little of it."""
    parts = [(fact, min(end, fact.t) - max(start, fact.since)) for fact in facts]
    parts = [(fact, seconds) for fact, seconds in parts if seconds > 0]
    if end <= start or sum(seconds for _, seconds in parts) < COVERED * (end - start):
        return None
    told = [fact.usual_network_bytes_per_second or 0.0 for fact, _ in parts]
    usual = [rate for rate in told if rate >= LEAST_USUAL]
    network = _rate(parts, "network_bytes")
    return HostShare(
        whole=all(fact.processes and not fact.unread for fact, _ in parts),
        cores=_rate(parts, "cpu_seconds"),
        worker_cores=_rate(parts, "worker_cpu_seconds"),
        waiting=_mean([(fact.waiting, seconds) for fact, seconds in parts]),
        worker_waiting=_mean([(fact.worker_waiting, seconds) for fact, seconds in parts]),
        runnable=_mean([(fact.runnable, seconds) for fact, seconds in parts]),
        io_wait=_rate(parts, "io_wait_seconds"),
        read=_rate(parts, "read_bytes"),
        called=_rate(parts, "called_bytes"),
        written=_rate(parts, "written_bytes"),
        io_pressure=_rate(parts, "io_pressure_seconds"),
        memory_pressure=_rate(parts, "memory_pressure_seconds"),
        cpu_pressure=_rate(parts, "cpu_pressure_seconds"),
        own_pressure=all(fact.pressure_of == "run" for fact, _ in parts),
        network=network / usual[-1] if usual and network is not None else None,
    )


def _rate(parts: Sequence[tuple[HostEvidence, float]], name: str) -> float | None:
    """Return a total's mean rate; what a look holds is taken as evenly spread over its time."""
    told = [(getattr(fact, name), fact.t - fact.since, seconds) for fact, seconds in parts]
    known = [(value / length, seconds) for value, length, seconds in told if value is not None and length > 0]
    covered = sum(seconds for _, seconds in known)
    return sum(rate * seconds for rate, seconds in known) / covered if covered > 0 else None


def _mean(parts: Sequence[tuple[int | None, float]]) -> float | None:
    known = [(count, seconds) for count, seconds in parts if count is not None]
    covered = sum(seconds for _, seconds in known)
    return sum(count * seconds for count, seconds in known) / covered if covered > 0 else None
