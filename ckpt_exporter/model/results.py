"""What detectors make of facts: saves, loads, bubbles, stalls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ckpt_exporter.model.facts import GpuInfo

SaveResult = Literal["complete", "incomplete", "aborted"]


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of a save: its name relative to the checkpoint, first write-open and last close."""

    name: str
    bytes: int
    start: float | None = None
    end: float | None = None


@dataclass(frozen=True, slots=True)
class Save:
    """One finished save. Durations in seconds, bandwidths in bytes per second, unknown values None.

    ``duration_seconds`` = ``end`` - ``start``: commit minus first write-open, without the quiet time the
    detector waited. ``active_seconds`` is the time in which bytes flowed, ``flow`` its stretches.
    ``late`` marks files that arrived for a save already counted: their bytes and files add to the totals,
    but no save is counted twice. ``written_bytes`` were seen arriving, overwritten ones included; ``shards``
    are the files that ended last, in that order, as many as are kept. ``elsewhere``: another host made it,
    and counts it; here its times are known, and nothing else.
    """

    directory: str
    path: str
    layout: str
    step: int | None
    result: SaveResult
    reason: str | None
    start: float
    end: float
    duration_seconds: float | None
    bytes: int
    files: int
    active_seconds: float | None
    average_bandwidth: float | None
    sustained_bandwidth: float | None
    peak_bandwidth: float | None
    flow: tuple[tuple[float, float], ...] = ()
    pids: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    late: bool = False
    written_bytes: int | None = None
    shards: tuple[Shard, ...] = ()
    elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class OpenSave:
    """One save that is still being written. ``bytes`` seen so far; ``stalled``: no new byte for long."""

    directory: str
    path: str
    layout: str
    step: int | None
    start: float
    bytes: int
    files: int
    open_files: int
    last_byte: float
    stalled: bool


@dataclass(frozen=True, slots=True)
class Load:
    """One finished load: an episode of checkpoint files being read.

    ``bytes`` are unique: a file that eight processes read counts once. ``end`` is the last byte needed,
    ``duration_seconds`` = ``end`` - ``start``, without the quiet time the detector waited. ``readers`` is
    the highest number of processes that read the same file, None where processes can't be seen.
    ``cached_ratio`` is the share (0..1) of the bytes that was in the page cache before. ``bandwidth`` is
    bytes per second as the readers saw it, page cache included. ``first_gpu_work`` is when the GPUs of the
    run that loaded first worked after ``end``. Unknown values are None.
    """

    directory: str
    path: str
    layout: str
    step: int | None
    start: float
    end: float
    duration_seconds: float
    bytes: int
    files: int
    bandwidth: float | None
    readers: int | None = None
    pids: tuple[int, ...] = ()
    run: str | None = None
    cached_ratio: float | None = None
    notes: tuple[str, ...] = ()
    first_gpu_work: float | None = None

    @property
    def cold_start_seconds(self) -> float | None:
        """The time from the first open to the first work of the GPUs; None while not known."""
        return None if self.first_gpu_work is None else self.first_gpu_work - self.start


ActivitySource = Literal["gpm", "power", "power_utilization", "utilization"]
Quality = Literal["high", "low"]
BubblePhase = Literal["before_write", "writing", "write_gap", "after_write"]
Confidence = Literal["high", "medium", "low"]
SkipReason = Literal["no_gpu", "no_baseline", "sampler_gap", "low_quality"]
StallCause = Literal["checkpoint_save", "checkpoint_load", "data_loading", "communication", "other"]


@dataclass(frozen=True, slots=True)
class Bubble:
    """GPU activity lost to one save. Either ``skipped`` says why there is no figure, or the others hold.

    ``gpu_seconds`` and ``drag_gpu_seconds`` are per GPU index; ``seconds`` is the mean over the
    run's GPUs and ``phases`` splits it; ``start`` and ``end`` are the dip's edges as the GPUs show them;
    ``depth`` is the mean share of activity lost between them. ``elsewhere``: another host made the save.
    """

    directory: str
    save_path: str
    save_end: float
    skipped: SkipReason | None = None
    seconds: float | None = None
    gpu_seconds: dict[int, float] = field(default_factory=dict)
    drag_gpu_seconds: dict[int, float] = field(default_factory=dict)
    phases: dict[BubblePhase, float] = field(default_factory=dict)
    start: float | None = None
    end: float | None = None
    depth: float | None = None
    source: ActivitySource | None = None
    quality: Quality | None = None
    notes: tuple[str, ...] = ()
    elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class Stall:
    """A stretch of lost activity on one GPU of a training run; ``seconds`` is its area, not its length.

    ``confidence`` tells how sure the cause is, ``evidence`` names the signs that were seen of it.
    """

    gpu: int
    start: float
    end: float
    cause: StallCause
    seconds: float
    confidence: Confidence = "low"
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuStatus:
    """What the readers may know about one GPU. Counters are seconds; unknown readings are None.

    ``bubble_seconds`` and ``drag_seconds`` are by directory, ``stall_seconds`` by cause;
    ``confident_seconds`` are the part of these whose cause is of high confidence.
    """

    info: GpuInfo
    up: bool
    activity: float | None = None
    util: float | None = None
    power_w: float | None = None
    source: ActivitySource | None = None
    quality: Quality | None = None
    observed_seconds: float = 0.0
    bubble_seconds: dict[str, float] = field(default_factory=dict)
    drag_seconds: dict[str, float] = field(default_factory=dict)
    stall_seconds: dict[str, float] = field(default_factory=dict)
    confident_seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GpuRun:
    """The run whose processes hold a GPU, named as in ``Writers``; unknown parts are None."""

    run: str | None
    scheduler: str | None
    run_id: str | None
