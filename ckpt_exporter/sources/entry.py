"""What all parts of the watch of one configured directory share: settings, clock, the way facts go out."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from ckpt_exporter.model import (
    DirectorySettings,
    Fact,
    FileEvent,
    FileEventKind,
    ProgressMethod,
    WatchChange,
    WatchEvent,
)
from ckpt_exporter.sources.filestat import Births, FileSystems, inode_name
from ckpt_exporter.sources.inotify_calls import InotifyCalls
from ckpt_exporter.sources.mounts import is_shared

LOG = logging.getLogger("ckpt_exporter.watch")

OverwritePosition = Callable[[str, str], "tuple[int, ProgressMethod] | None"]
Ignored = Callable[[DirectorySettings, str], bool]
InodeKey = tuple[int, int]


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """Intervals (seconds) and limits of the watching; tests shorten them."""

    queue_size: int = 65_536
    batch_events: int = 256
    batch_sleep_seconds: float = 0.02
    scan_slice_seconds: float = 0.02
    move_hold_seconds: float = 0.1
    rearm_seconds: float = 2.0
    hint_seconds: float = 30.0
    hint_interval_seconds: float = 0.5
    max_hints: int = 1024
    root_check_seconds: float = 15.0
    gather_seconds: float = 0.5
    mounts_seconds: float = 0.5
    mounts_cost_factor: float = 200.0
    outage_seconds: float = 60.0
    reconcile_seconds: float = 60.0
    reconcile_cost_factor: float = 1000.0
    # Of a core, for either kind of look without a reason.
    upkeep_share: float = 0.0001
    remote_upkeep_share: float = 0.001
    burst_scan_seconds: float = 1.0
    burst_scan_max_files: int = 10_000
    unwatched_poll_seconds: float = 1.0
    poll_cost_factor: float = 100.0
    retry_seconds: float = 60.0
    canary_seconds: float = 15.0
    canary_wait_seconds: float = 1.0
    fast_probe_seconds: float = 0.2
    slow_probe_seconds: float = 0.5
    fast_probe_age_seconds: float = 10.0
    progress_repeat_seconds: float = 1.0
    walk_check_seconds: float = 5.0
    memory_walk_seconds: float = 1.0
    quiet_close_seconds: float = 2.0
    silent_probe_seconds: float = 30.0
    recent_seconds: float = 60.0
    max_active: int = 20_000
    max_known_files: int = 200_000
    max_directories: int = 1_000_000
    max_roots: int = 1_000
    restart_seconds: float = 1.0
    max_restart_seconds: float = 60.0
    hung_seconds: float = 60.0
    supervise_seconds: float = 1.0
    supervise_calm_seconds: float = 5.0


class SharedInodes:
    """Where files last were, for all watched directories together: joins a rename between two of them.

    Each directory has its own inotify instance, so such a rename is a departure here and an arrival there.
    Bounded; thread-safe.
    """

    def __init__(self, capacity: int = 20_000) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._seen: OrderedDict[InodeKey, tuple[str, str]] = OrderedDict()
        self._claimed: OrderedDict[tuple[InodeKey, str], None] = OrderedDict()

    def note(self, key: InodeKey, path: str, owner: str) -> None:
        """Remember that directory ``owner`` has this inode at ``path``."""
        with self._lock:
            self._seen[key] = (path, owner)
            self._seen.move_to_end(key)
            if len(self._seen) > self._capacity:
                self._seen.popitem(last=False)

    def claim(self, key: InodeKey, owner: str) -> str | None:
        """Return the path from which this inode came to ``owner``; the other directory reports nothing."""
        with self._lock:
            path, other = self._seen.get(key, ("", owner))
            if other == owner:
                return None
            self._claimed[key, path] = None
            if len(self._claimed) > self._capacity:
                self._claimed.popitem(last=False)
            return path

    def take_claim(self, key: InodeKey, path: str) -> bool:
        """Tell (once) whether another directory already reported that ``path`` moved to it."""
        with self._lock:
            return self._claimed.pop((key, path), False) is None


@dataclass(slots=True)
class Counts:
    """Counters of one source, over all its directories; guarded by the interpreter's lock per operation."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    overflows: int = 0
    dropped: int = 0
    rescans: dict[str, int] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)

    def rescan(self, reason: str) -> None:
        """Count one finished rescan."""
        with self.lock:
            self.rescans[reason] = self.rescans.get(reason, 0) + 1

    def event(self, kind: str) -> None:
        """Count one file event."""
        with self.lock:
            self.events[kind] = self.events.get(kind, 0) + 1


@dataclass(frozen=True, slots=True)
class Shared:
    """What the watches of all directories have in common."""

    settings: WatchSettings
    clock: Callable[[], float]
    ignored: Ignored
    overwrite_position: OverwritePosition
    calls: InotifyCalls
    counts: Counts
    inodes: SharedInodes = field(default_factory=SharedInodes)
    wall: Callable[[], float] = time.time
    # Processor time of the calling thread, and how many directories share what upkeep may cost.
    busy: Callable[[], float] = time.thread_time
    directories: Callable[[], int] = lambda: 1
    mountinfo: str = "/proc/self/mountinfo"
    canary_parent: str | None = None
    # Set when one of the watch's threads ends, so that nobody has to look every second.
    thread_ended: threading.Event = field(default_factory=threading.Event)


class Entry:
    """One configured directory while it is watched; used by its own thread only."""

    def __init__(self, directory: DirectorySettings, shared: Shared, put: Callable[[Fact], None]):
        self.directory = directory
        self.name = directory.name
        self.shared = shared
        self.settings = shared.settings
        self.clock = shared.clock
        self.systems = FileSystems(shared.mountinfo)
        self.births = Births()
        # Called between slices of long work, so that the supervisor sees this thread alive.
        self.beat: Callable[[], None] = lambda: None
        self.up: bool | None = None
        self.put = put
        self.began = shared.clock()
        # The time of the events at hand; what a scan finds on their account happened then, not later.
        self.batch_t: float | None = None
        self._logged: dict[str, float] = {}

    # --- facts out --------------------------------------------------------------------------------------

    def emit(self, fact: Fact) -> None:
        """Queue one fact."""
        self.put(fact)

    def file(
        self,
        event: FileEventKind,
        path: str | None,
        t: float,
        st: os.stat_result | None = None,
        *,
        to: str | None = None,
        is_dir: bool = False,
        found: bool = False,
        local: bool = True,
        initial: bool = False,
        started: float | None = None,
        size: int | None = None,
    ) -> None:
        """Queue a file event, with size, inode and modification time of ``st`` when there is one.

        ``size`` replaces that of ``st``.
        """
        known = st is not None and not is_dir
        if size is None and known and st is not None:
            size = st.st_size
        fact = FileEvent(
            t,
            event,
            path,
            to=to,
            is_dir=is_dir,
            size=size,
            inode=inode_name(st) if st is not None else None,
            found=found,
            local=local,
            initial=initial,
            started=started,
            modified=self.modified(st, initial=initial) if known and st is not None else None,
        )
        self.shared.counts.event(event)
        self.emit(fact)

    def change(self, event: WatchEvent, reason: str) -> None:
        """Queue a change of the watch itself."""
        self.emit(WatchChange(self.clock(), self.name, event, reason))

    def set_up(self, *, up: bool, reason: str) -> None:
        """Queue ``up`` or ``down`` when that is news."""
        if up == self.up:
            return
        self.up = up
        self.change("up" if up else "down", reason)
        level = logging.INFO if up or reason == "missing" else logging.WARNING
        self.log(level, "watching" if up else "not watching", reason=reason, path=self.directory.path)

    def log(self, level: int, message: str, *, every_seconds: float = 0.0, **fields: object) -> None:
        """Log one line with fields; with ``every_seconds`` at most once in so long."""
        now = self.clock()
        if every_seconds and now - self._logged.get(message, float("-inf")) < every_seconds:
            return
        if every_seconds:
            self._logged[message] = now
        LOG.log(level, message, extra={"fields": {"dir": self.name, **fields}})

    def stamp(self) -> float:
        """Return the time for a fact: that of the events at hand, else now."""
        return self.clock() if self.batch_t is None else self.batch_t

    # --- questions --------------------------------------------------------------------------------------

    def hidden(self, root: str, path: str) -> bool:
        """Tell whether the caller wants no facts about this file (noise such as event logs)."""
        return self.shared.ignored(self.directory, path[len(root) :].lstrip("/"))

    def is_shared(self, path: str, device: int) -> bool:
        """Tell whether other hosts can change the file system of ``path`` unseen."""
        return is_shared(self.systems.type_of(path, device))

    def monotonic(self, unix_seconds: float) -> float:
        """Convert a time of the wall clock, as file systems keep it, to the monotonic clock."""
        return self.clock() - (self.shared.wall() - unix_seconds)

    def modified(self, st: os.stat_result, *, initial: bool = False) -> float | None:
        """Return the last data change on the monotonic clock; None when it can't be true (set by a tool)."""
        now = self.clock()
        modified = self.monotonic(st.st_mtime_ns / 1e9)
        if modified > now:
            # The file system's clock ticks coarsely; a few ms ahead is now.
            return now if modified - now < 0.05 else None
        return modified if initial or modified >= now - 3600.0 else None

    def birth(self, path: str) -> float | None:
        """Return the birth of a file on the monotonic clock, None where unknown."""
        unix = self.births.unix(path)
        return None if unix is None else self.monotonic(unix)

    def started(self, path: str, t: float) -> float | None:
        """Return the birth of a file if it lies shortly before the event at ``t``."""
        birth = self.birth(path)
        if birth is None or not t - 2.0 <= birth <= t + 0.05:
            return None
        return min(birth, t)
