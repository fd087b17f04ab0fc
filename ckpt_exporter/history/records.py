"""What is kept of finished saves, loads and stalls, and of the time in which GPUs were observed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ckpt_exporter.model import (
        ActivitySource,
        BubblePhase,
        Confidence,
        Quality,
        SaveResult,
        SkipReason,
        StallCause,
    )

# The note of a save that another host made.
ELSEWHERE: Final = "elsewhere"


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """One file of a save. ``name`` is relative to the checkpoint; times are Unix seconds, None unknown."""

    name: str
    bytes: int
    start_unix: float | None = None
    end_unix: float | None = None


@dataclass(frozen=True, slots=True)
class SaveRecord:
    """One finished save on one node, with what it cost once that is known.

    Times are Unix seconds, durations seconds, bandwidths bytes per second; None is unknown, never 0.
    ``bytes`` is the final size of the checkpoint (logical bytes); ``written_bytes`` what was seen arriving.
    ``bubble_seconds`` is the mean over the run's GPUs and ``bubble_phases`` splits it; ``bubble_gpu_seconds``
    is per GPU index. ``shards`` holds the files that ended last, as far as they were kept.
    """

    node: str
    directory: str
    path: str
    layout: str
    result: SaveResult
    start_unix: float
    end_unix: float
    bytes: int
    files: int
    step: int | None = None
    reason: str | None = None
    duration_seconds: float | None = None
    active_seconds: float | None = None
    written_bytes: int | None = None
    average_bandwidth: float | None = None
    sustained_bandwidth: float | None = None
    peak_bandwidth: float | None = None
    run: str | None = None
    run_id: str | None = None
    scheduler: str | None = None
    mountpoint: str | None = None
    device: str | None = None
    fstype: str | None = None
    transport: str | None = None
    bubble_seconds: float | None = None
    bubble_gpu_seconds: dict[int, float] = field(default_factory=dict)
    drag_gpu_seconds: dict[int, float] = field(default_factory=dict)
    bubble_phases: dict[BubblePhase, float] = field(default_factory=dict)
    bubble_skipped: SkipReason | None = None
    dip_start_unix: float | None = None
    dip_end_unix: float | None = None
    depth: float | None = None
    source: ActivitySource | None = None
    quality: Quality | None = None
    notes: tuple[str, ...] = ()
    shards: tuple[ShardRecord, ...] = ()

    @property
    def elsewhere(self) -> bool:
        """True where another host made the save, and its own history has its bytes; here is what it cost."""
        return ELSEWHERE in self.notes


@dataclass(frozen=True, slots=True)
class GpuTimeRecord:
    """How long one GPU was observed in a training run during the hour that begins at ``hour_unix``."""

    node: str
    gpu: int
    uuid: str
    hour_unix: int
    observed_seconds: float
    stall_seconds: dict[StallCause, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoadRecord:
    """One finished load on one node. Times are Unix seconds, None is unknown.

    ``bytes`` are unique: a file that eight processes read counts once. ``cached_ratio`` is the share (0..1)
    of the bytes that was in the page cache before; ``readers`` the most processes that read the same file.
    ``cold_start_seconds`` is the time from the first open to the first work of the run's GPUs after the load.
    """

    node: str
    directory: str
    path: str
    layout: str
    start_unix: float
    end_unix: float
    duration_seconds: float
    bytes: int
    files: int
    step: int | None = None
    run: str | None = None
    readers: int | None = None
    cached_ratio: float | None = None
    notes: tuple[str, ...] = ()
    mountpoint: str | None = None
    device: str | None = None
    fstype: str | None = None
    transport: str | None = None
    cold_start_seconds: float | None = None

    @property
    def bandwidth(self) -> float | None:
        """Bytes per second as the readers saw it, page cache included."""
        if self.duration_seconds <= 0:
            return None
        bandwidth = self.bytes / self.duration_seconds
        return bandwidth if math.isfinite(bandwidth) else None


@dataclass(frozen=True, slots=True)
class StallRecord:
    """A stretch of lost activity on one GPU that no save caused; ``seconds`` is its area, not its length.

    ``confidence`` tells how sure the cause is, None where it was not kept.
    """

    node: str
    gpu: int
    start_unix: float
    end_unix: float
    seconds: float
    cause: StallCause
    uuid: str | None = None
    confidence: Confidence | None = None


@dataclass(frozen=True, slots=True)
class Measurements:
    """A set of records to reason about. ``source`` says in words where they come from.

    ``since_unix`` and ``until_unix`` bound the window; the records are in the order in which they ended.
    ``notes`` say in words what limits them. ``loads`` and ``stalls`` are those that were kept.
    """

    source: str
    since_unix: float
    until_unix: float
    saves: tuple[SaveRecord, ...]
    gpu_time: tuple[GpuTimeRecord, ...] = ()
    notes: tuple[str, ...] = ()
    loads: tuple[LoadRecord, ...] = ()
    stalls: tuple[StallRecord, ...] = ()
