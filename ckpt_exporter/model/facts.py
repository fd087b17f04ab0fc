"""Facts: what sources tell, each with its time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Union

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
    ``initial`` marks what was there when watching (again) began; an ``open`` marked so is of a writer that
    had opened the file before.
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
class Quiet:
    """Nothing came until ``t``, and that ended something: a replay would else not know that time passed."""

    t: float


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
    Quiet,
]
