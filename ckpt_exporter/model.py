"""Frozen values that the rooms hand to each other.

Facts (what the sources saw) come first, then what the detector makes of them, then the snapshot that the
readers get. Times named ``t``, ``start``, ``end`` or ``modified`` are seconds on one monotonic clock; a
wall-clock time has ``unix`` in its name. Paths are absolute ``str`` decoded with ``os.fsdecode``
(``surrogateescape``), so that any file name the kernel allows survives the round trip.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Union

# --- settings


@dataclass(frozen=True, slots=True)
class DirectorySettings:
    """One configured directory: ``name`` is the ``dir`` label, ``path`` may hold ``*`` and ``**``.

    ``elsewhere`` says whether saves of other hosts are looked for: ``auto`` (where they can write), ``on``
    or ``off``.
    """

    name: str
    path: str
    layout: str = "auto"
    ignore: tuple[str, ...] = ()
    elsewhere: str = "auto"


@dataclass(frozen=True, slots=True)
class DetectSettings:
    """When a burst of writes is a save, and when it has ended (seconds, bytes).

    The last two bound how often directories that other hosts write are looked at.
    """

    quiet_seconds: float = 10.0
    min_bytes: int = 1024 * 1024
    stall_seconds: float = 60.0
    incomplete_seconds: float = 600.0
    elsewhere_interval_seconds: float = 5.0
    elsewhere_max_calls_per_second: float = 20.0


# --- facts

FileEventKind = Literal["create", "open", "close_write", "moved", "deleted", "link"]


@dataclass(frozen=True, slots=True)
class FileEvent:
    """Something happened to one name.

    ``open`` means opened for writing (or truncated) while it existed already. For ``moved``, ``path`` is the
    old name (None: from outside every watched directory) and ``to`` the new one (None: moved out of sight).
    ``link`` is a hard or symbolic link: no bytes were written. ``size`` and ``inode`` are what ``lstat`` said
    right after the event, None when not asked or no longer there. ``found`` marks what a scan found instead
    of an event; ``local`` is False when no process of this host is known to have written it. ``started`` is
    the file's birth on the monotonic clock where the file system tells it; ``modified`` its last data change.
    ``initial`` marks what was there when watching (again) began.
    """

    t: float
    event: FileEventKind
    path: str | None
    to: str | None = None
    is_dir: bool = False
    pid: int | None = None
    size: int | None = None
    inode: str | None = None
    found: bool = False
    local: bool = True
    initial: bool = False
    started: float | None = None
    modified: float | None = None


ProgressMethod = Literal["size", "data", "descriptor", "io", "allocated"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one open file is.

    ``size`` and ``allocated`` are bytes from ``stat``; ``position`` is the source's best knowledge of the
    bytes written so far, by ``method``; None when it can't tell. ``writers`` counts local processes that hold
    the file open for writing: 0 none, 1 at least one, None unknown.
    """

    t: float
    path: str
    size: int
    allocated: int | None = None
    position: int | None = None
    inode: str | None = None
    writers: int | None = None
    modified: float | None = None
    method: ProgressMethod | None = None


@dataclass(frozen=True, slots=True)
class Writers:
    """The processes seen writing below a directory, and the run they belong to.

    ``run_id`` is the scheduler's job id, or None; ``scheduler`` is ``slurm``, ``kubernetes``, ...
    or None; ``run`` is a short stable name for people. ``alive`` is False once every one of ``pids`` ended.
    ``gpus`` are the indices of the GPUs that the run holds; None when that could not be found out.
    """

    t: float
    directory: str
    pids: tuple[int, ...]
    run: str | None = None
    scheduler: str | None = None
    run_id: str | None = None
    commands: tuple[str, ...] = ()
    alive: bool = True
    paths: tuple[str, ...] = ()
    gpus: tuple[int, ...] | None = None


RemoteEventKind = Literal["found", "changed", "same", "moved", "gone"]


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """What one look at a name in a shared directory told: the name and its ``stat``, never content.

    The look was over at ``t``, and what differs from the look before it happened after ``since`` (None: there
    was none before). ``same`` is a file that was as before. Times named ``_unix`` are the file server's
    clock's: ``born`` where it tells, ``modified`` the last data change, ``changed`` the last change of all.
    """

    t: float
    event: RemoteEventKind
    path: str
    directory: str
    since: float | None = None
    to: str | None = None
    is_dir: bool = False
    size: int | None = None
    inode: str | None = None
    born_unix: float | None = None
    modified_unix: float | None = None
    changed_unix: float | None = None


@dataclass(frozen=True, slots=True)
class RemoteLook:
    """A round of looks at a shared directory is over: what other hosts did before ``since`` is told by now.

    ``unix`` is this node's clock at ``t``.
    """

    t: float
    directory: str
    since: float
    unix: float


ReadEventKind = Literal["open", "close", "look"]


@dataclass(frozen=True, slots=True)
class ReadEvent:
    """An existing file was opened, or closed without having been writable; who did it is not known here.

    ``look`` is one look at the page cache right after the first open: ``cached_bytes`` of the file were in
    it, None where that can't be known; ``visible`` tells whether readers of other users can be seen.
    """

    t: float
    path: str
    event: ReadEventKind
    size: int | None = None
    inode: str | None = None
    cached_bytes: int | None = None
    visible: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """How far one process is with one file that it holds open for reading or mapped.

    ``position`` is the descriptor's offset in bytes. ``mapped_bytes`` is what of the file's mapping the
    process has touched, asked for of a new one and once nothing grows any more; meanwhile its
    ``resident_bytes`` of all files tell. ``rchar``, ``wchar`` and ``read_bytes`` are the process's own
    counters over all its files. ``held`` is False once it has let go. ``direct``: the page cache is bypassed.
    None is unknown.
    """

    t: float
    path: str
    pid: int
    size: int
    position: int | None = None
    mapped: bool = False
    mapped_bytes: int | None = None
    resident_bytes: int | None = None
    rchar: int | None = None
    wchar: int | None = None
    read_bytes: int | None = None
    direct: bool = False
    held: bool = True
    command: str = ""
    run: str | None = None


@dataclass(frozen=True, slots=True)
class LoadGpus:
    """The GPUs of the run that loaded: of the load of ``path`` that ended at ``end``."""

    t: float
    directory: str
    path: str
    end: float
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Space:
    """Free and total bytes of the file system below a directory; 0 ``available`` means full."""

    t: float
    directory: str
    available: int
    size: int


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """One GPU as it is when its source (re)starts. ``uuid`` is its identity, ``gpu`` its present index.

    ``limit_w`` is the enforced power limit in watts; ``power_smoothing`` tells that the GPU may hold its
    power up on purpose, so that power says nothing about work; None unknown. ``waiting_known``: it has been
    seen on such hardware what its readings are while it waits in a collective.
    """

    gpu: int
    uuid: str
    name: str = ""
    driver: str = ""
    limit_w: float | None = None
    mig: bool = False
    power_smoothing: bool | None = None
    waiting_known: bool = True


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One reading of one GPU; shares are 0..1, power in watts, None where the GPU does not tell.

    ``power_window_s`` is the time over which the driver averaged ``power_w`` (0: instantaneous). ``sm``,
    ``tensor`` and ``dram`` are shares of active streaming multiprocessors, tensor cores and memory
    bandwidth. ``processes`` counts compute processes; ``error`` says why the GPU could not be read.
    """

    t: float
    gpu: int
    uuid: str = ""
    util: float | None = None
    mem_util: float | None = None
    power_w: float | None = None
    power_window_s: float | None = None
    sm: float | None = None
    tensor: float | None = None
    dram: float | None = None
    pcie_bytes_per_second: float | None = None
    limit_w: float | None = None
    processes: int | None = None
    error: str | None = None
    nvlink_bytes_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class GpuSet:
    """The GPUs that a source sees from ``t`` on (its first fact, and after every change)."""

    t: float
    gpus: tuple[GpuInfo, ...]


@dataclass(frozen=True, slots=True)
class HostEvidence:
    """What a run's processes and their host did between ``since`` and ``t``, while GPUs of it worked little.

    ``gpus`` are the indices of the run's GPUs. ``processes`` of it were there all the time, None where it is
    not known which are its; the I/O of ``unread`` of them may not be read. ``cpu_seconds`` they used, of
    these ``worker_cpu_seconds`` those without a GPU. At ``t``, ``waiting`` of their threads were in
    uninterruptible sleep; of those without a GPU ``worker_waiting`` were, and ``runnable`` ran or wanted to.
    ``io_wait_seconds`` is what the kernel counted, where it counts. ``read_bytes`` came from storage,
    ``called_bytes`` through read calls of any kind. Pressures are seconds in which a task stood still, in the
    run's own group or on the whole host. Network bytes are of real interfaces, both ways.
    """

    t: float
    since: float
    gpus: tuple[int, ...] = ()
    processes: int | None = None
    unread: int = 0
    cpu_seconds: float | None = None
    worker_cpu_seconds: float | None = None
    waiting: int | None = None
    worker_waiting: int | None = None
    runnable: int | None = None
    io_wait_seconds: float | None = None
    read_bytes: int | None = None
    called_bytes: int | None = None
    written_bytes: int | None = None
    io_pressure_seconds: float | None = None
    memory_pressure_seconds: float | None = None
    cpu_pressure_seconds: float | None = None
    pressure_of: Literal["run", "host"] | None = None
    network_bytes: int | None = None
    usual_network_bytes_per_second: float | None = None


WatchEvent = Literal["up", "down", "overflow", "rescan"]


@dataclass(frozen=True, slots=True)
class WatchChange:
    """The watch of a directory changed: events may be lost before this moment."""

    t: float
    directory: str
    event: WatchEvent
    reason: str = ""


Fact = Union[  # noqa: UP007 (a runtime alias on 3.10)
    FileEvent,
    Progress,
    Writers,
    ReadEvent,
    Reading,
    LoadGpus,
    Space,
    WatchChange,
    GpuSample,
    GpuSet,
    RemoteFile,
    RemoteLook,
    HostEvidence,
]

# --- what the detector makes of them

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


# --- storage


@dataclass(frozen=True, slots=True)
class Mount:
    """Where a directory's bytes go. ``device`` is a name as in /dev without the prefix, or the remote source.

    ``shared`` is True where other hosts can write the same file system.
    """

    mountpoint: str
    device: str
    fstype: str
    transport: str
    shared: bool = False


@dataclass(frozen=True, slots=True)
class StorageStatus:
    """Latest storage facts of one directory; None where unknown or the mount does not answer."""

    directory: str
    mount: Mount | None = None
    available_bytes: int | None = None
    size_bytes: int | None = None
    device_written_bytes: int | None = None
    dirty_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class WatchStatus:
    """State of the watch of one directory. ``backend`` is ``inotify`` or ``poll``.

    ``watched_directories`` counts directories under watch (or polled); ``coverage`` is the share (0..1) of
    the tree's directories that inotify covers; ``limit_reached``: a kernel limit keeps it below 1;
    ``truncated``: the tree has more directories than are followed at all.
    """

    directory: str
    backend: str
    up: bool
    watched_directories: int = 0
    limit_reached: bool = False
    coverage: float = 1.0
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class ElsewhereStatus:
    """Looks for other hosts' saves: whether they are answered, and calls made to the file server so far."""

    directory: str
    up: bool
    calls: int = 0


# --- the snapshot


@dataclass(frozen=True, slots=True)
class Histogram:
    """Histogram: ``counts[i]`` observations in bucket ``bounds[i]`` alone, the last beyond all bounds.

    ``exemplars[i]`` is (value, unix time, step) of the latest observation in that bucket, or None.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float
    exemplars: tuple[tuple[float, float, int] | None, ...] = ()


@dataclass(frozen=True, slots=True)
class RecentSave:
    """One of the latest finished saves, without its ``flow`` and ``pids``.

    ``bubble`` is None until it is known; ``run`` names the run that wrote it, None unknown.
    """

    save: Save
    bubble: Bubble | None = None
    run: str | None = None


@dataclass(frozen=True, slots=True)
class TimelineWindow:
    """What happened around saves that lie near each other, in bins of ``bin_seconds`` from ``start`` on.

    ``write_rates`` are bytes per second, 0 where none arrived; ``activities`` are means (0..1) over ``gpus``
    GPUs, None where none was read. ``gpus_known``: they are the run's, else all that may be.
    """

    start: float
    bin_seconds: float
    write_rates: tuple[float, ...]
    activities: tuple[float | None, ...]
    gpus: int = 0
    gpus_known: bool = False

    @property
    def end(self) -> float:
        """The end of the last bin."""
        return self.start + self.bin_seconds * len(self.write_rates)


@dataclass(frozen=True, slots=True)
class DirectorySnapshot:
    """Everything the readers may know about one configured directory at one moment."""

    name: str
    path: str
    saves: dict[str, int]  # result -> count; every result is present
    save_bytes: int
    save_files: int
    written_bytes: int
    write_active_seconds: float
    duration: Histogram
    open_saves: tuple[OpenSave, ...]
    last_save: Save | None
    retained_checkpoints: int | None  # None until the tree has been scanned
    retained_bytes: int | None
    deleted_checkpoints: int
    run: Writers | None = None
    bubble_phase_seconds: dict[BubblePhase, float] = field(default_factory=dict)  # every phase is present
    bubble: Histogram | None = None  # seconds, one observation a save with a figure
    bubbles_skipped: dict[SkipReason, int] = field(default_factory=dict)  # every reason is present
    last_bubble: Bubble | None = None  # of the last complete save; None while not known
    recent: tuple[RecentSave, ...] = ()  # finished saves, newest first
    timeline: tuple[TimelineWindow, ...] = ()  # oldest first; only in a snapshot that was asked for it
    loads: int = 0
    load_bytes: int = 0
    load_duration: Histogram | None = None  # seconds, one observation a load
    last_load: Load | None = None
    remote_saves: dict[str, int] | None = None  # result -> count; None where none are looked for
    last_remote_save: Save | None = None  # the last complete one that another host made
    server_clock_offset_seconds: float | None = None  # file server's clock minus this node's


@dataclass(frozen=True, slots=True)
class WatchCounters:
    """Counters of the watching itself, over all directories."""

    overflows: int = 0
    dropped: int = 0
    rescans: dict[str, int] = field(default_factory=dict)  # reason -> count
    events: dict[str, int] = field(default_factory=dict)  # event kind -> count


@dataclass(frozen=True, slots=True)
class ConfigStatus:
    """Outcome of the last configuration (re)load."""

    successful: bool = True
    success_unix: float = 0.0


@dataclass(frozen=True, slots=True)
class WebStatus:
    """The web server: what it turned away by reason, and the last (re)load of its file, None without one."""

    rejected: dict[str, int] = field(default_factory=dict)
    config: ConfigStatus | None = None


@dataclass(frozen=True, slots=True)
class GpuBackendStatus:
    """State of the source of GPU readings. ``mapping_known``: processes on GPUs can be told apart by run."""

    backend: str
    up: bool
    call_seconds: Histogram
    mapping_known: bool = True


@dataclass(frozen=True, slots=True)
class HistoryStatus:
    """State of the file in which finished saves are kept; ``errors`` counts failures by reason.

    ``dropped`` counts records given up because the file could not be written for too long.
    """

    up: bool
    errors: dict[str, int] = field(default_factory=dict)
    dropped: int = 0
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class RecordingStatus:
    """State of the recording that was asked for; ``failed`` says why it ended before the program."""

    failed: str | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One consistent copy of all state. ``unix_minus_t`` turns a monotonic time into Unix seconds."""

    t: float
    unix_minus_t: float
    directories: tuple[DirectorySnapshot, ...]
    storage: tuple[StorageStatus, ...] = ()
    watches: tuple[WatchStatus, ...] = ()
    elsewhere: tuple[ElsewhereStatus, ...] = ()
    counters: WatchCounters = field(default_factory=WatchCounters)
    config: ConfigStatus = field(default_factory=ConfigStatus)
    gpu_backend: GpuBackendStatus | None = None  # None: no GPU part
    gpus: tuple[GpuStatus, ...] = ()
    gpu_runs: dict[int, GpuRun] = field(default_factory=dict)  # index -> run; unknown ones are left out
    sources_healthy: dict[str, bool] = field(default_factory=dict)
    history: HistoryStatus | None = None  # None: no history is kept
    recording: RecordingStatus | None = None  # None: nothing is recorded
    web: WebStatus = field(default_factory=WebStatus)
