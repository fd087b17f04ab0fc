"""States, and the one snapshot that all readers get."""

from __future__ import annotations

from dataclasses import dataclass, field

from ckpt_exporter.model.facts import Writers
from ckpt_exporter.model.results import (
    Bubble,
    BubblePhase,
    GpuRun,
    GpuStatus,
    Load,
    OpenSave,
    Save,
    SkipReason,
)


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
    recent_remote: tuple[RecentSave, ...] = ()  # finished saves that other hosts made, newest first
    server_clock_offset_seconds: float | None = None  # file server's clock minus this node's

    @property
    def all_recent(self) -> tuple[RecentSave, ...]:
        """Finished saves of this and of other hosts, newest first."""
        return tuple(sorted((*self.recent, *self.recent_remote), key=lambda known: -known.save.end))


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
