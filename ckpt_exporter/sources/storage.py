"""Where a directory's bytes go and how much room is left there."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import psutil

from ckpt_exporter.model import DirectorySettings, Fact, Space, StorageStatus
from ckpt_exporter.sources.mounts import (
    SHARED_FSTYPES,
    MountEntry,
    find_mount,
    follow_links,
    is_shared,
    parse_mountinfo,
    read_mountinfo,
)
from ckpt_exporter.sources.transport import Backing, identify, read_dirty_bytes, sum_written, trace_backing

__all__ = [
    "SHARED_FSTYPES",
    "MountEntry",
    "StorageSource",
    "find_mount",
    "fixed_part",
    "identify",
    "is_shared",
    "parse_mountinfo",
    "read_space",
    "read_written_bytes",
]

CALL_DEADLINE_SECONDS = 5.0
SAVING_INTERVAL_SECONDS = 1.0
# How often the time of each directory is looked at while a save is open or a question is out; else the next
# question's time is known.
TICK_SECONDS = 1.0
# A round that is late by so much will not come.
LATE_SECONDS = 10.0
# So many calls may wait on dead mounts at a time; beyond it the space of mounts not yet asked stays unknown.
STUCK_LIMIT = 64

_log = logging.getLogger(__name__)

StatVfs = Callable[[str], os.statvfs_result]


def read_space(path: str, statvfs: StatVfs = os.statvfs) -> tuple[int, int] | None:
    """Return the available and the total bytes of the file system at a path; may block on a dead mount.

    Available is what an unprivileged writer can still use, so 0 while root may go on writing into the
    reserve of the file system. None if the path does not exist or may not be read, or if the file
    system does not count blocks (it then reports a size of 0, which is not the same as being full).
    """
    try:
        answer = statvfs(path)
    except OSError:
        return None
    unit = answer.f_frsize or answer.f_bsize
    if answer.f_blocks <= 0 or unit <= 0:
        return None
    return max(0, answer.f_bavail) * unit, answer.f_blocks * unit


def read_written_bytes() -> Mapping[str, int]:
    """Return the bytes written to each block device since boot, by kernel name, partitions included."""
    try:
        # nowrap=False: raw kernel counters; psutil's wrap detection keeps a growing process-wide cache.
        counters = psutil.disk_io_counters(perdisk=True, nowrap=False)
    except (OSError, NotImplementedError, ValueError) as error:
        _log.debug("no block device counters: %s", error)
        return {}
    return {name: counter.write_bytes for name, counter in (counters or {}).items()}


def fixed_part(path: str) -> str:
    """Return the part of a configured path above its first component with a wildcard."""
    parts = os.path.normpath(path).split("/")
    wild = next((index for index, part in enumerate(parts) if "*" in part), len(parts))
    return "/".join(parts[:wild]) or "/"


@dataclass(frozen=True, slots=True)
class _Call:
    """One directory's blocking questions: asked by a worker, answered by ``deliver``."""

    path: str
    want_real_path: bool
    deliver: Callable[[tuple[int, int] | None, str | None], None]


class _MountWorker:
    """One daemon thread that makes the calls on one mount, so that only it waits if the mount is dead."""

    def __init__(self, name: str, clock: Callable[[], float], statvfs: StatVfs) -> None:
        self._clock = clock
        self._statvfs = statvfs
        self._batches: queue.SimpleQueue[Sequence[_Call] | None] = queue.SimpleQueue()
        self._call_started: float | None = None
        self.busy = False
        self.announced = False  # a mount that went silent has been published as unknown
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, calls: Sequence[_Call]) -> None:
        self.busy = True
        self.announced = False
        self._batches.put(calls)

    def stop(self) -> None:
        self._batches.put(None)

    def is_stuck(self, now: float) -> bool:
        started = self._call_started
        return started is not None and now - started >= CALL_DEADLINE_SECONDS

    def _run(self) -> None:
        while (batch := self._batches.get()) is not None:
            self._make_all(batch)
            self.busy = False

    def _make_all(self, calls: Sequence[_Call]) -> None:
        try:
            for call in calls:
                self._make(call)
        except Exception:  # noqa: BLE001 (thread boundary: one failed answer must not end the worker)
            _log.exception("storage worker: a question failed")
        finally:
            self._call_started = None

    def _make(self, call: _Call) -> None:
        self._call_started = self._clock()
        space = read_space(call.path, self._statvfs)
        real_path = os.path.realpath(call.path) if call.want_real_path else None
        self._call_started = None
        call.deliver(space, real_path)


@dataclass(slots=True)
class _Directory:
    """What the source remembers of one directory between two ticks (times on the injected clock)."""

    name: str
    path: str
    local_path: str | None = None
    real_path: str | None = None
    traced_path: str | None = None
    backing: Backing | None = None
    worker_key: tuple[str, int] = ("", 0)
    identified: float = float("-inf")
    asked: float = float("-inf")


class StorageSource:
    """Publishes each directory's mount, space and device counters; a dead mount stops only its own worker.

    Space comes every ``interval_seconds``, and every second while ``saving(name)`` says that a save is
    open. A mount that does not answer for 5 seconds is published with its space unknown and is not
    asked again before it has answered. ``publish`` and ``emit`` are called from several threads, one at
    a time.
    """

    def __init__(
        self,
        directories: Sequence[DirectorySettings],
        *,
        publish: Callable[[StorageStatus], None],
        emit: Callable[[Fact], None],
        clock: Callable[[], float],
        saving: Callable[[str], bool],
        interval_seconds: float = 15.0,
        proc: str = "/proc",
        sys: str = "/sys",
        statvfs: StatVfs = os.statvfs,
        written_bytes: Callable[[], Mapping[str, int]] = read_written_bytes,
    ) -> None:
        self._publish = publish
        self._emit = emit
        self._clock = clock
        self._saving = saving
        self._interval_seconds = interval_seconds
        self._proc = proc
        self._sys = sys
        self._statvfs = statvfs
        self._written_bytes = written_bytes
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._woken = threading.Event()
        self._thread: threading.Thread | None = None
        self._workers: dict[tuple[str, int], _MountWorker] = {}
        self._entries: Sequence[MountEntry] = ()
        self._next_round = float("-inf")
        self._failing = False
        self._directories: tuple[_Directory, ...] = ()
        self.replace_directories(directories)

    def replace_directories(self, directories: Sequence[DirectorySettings]) -> None:
        """Watch these directories from the next tick on; workers of mounts still in use are kept."""
        self._directories = tuple(_Directory(item.name, fixed_part(item.path)) for item in directories)
        self.wake()

    def wake(self) -> None:
        """Look at once which directories are due, as when a save has begun; callable from any thread."""
        self._woken.set()

    def start(self) -> None:
        """Start the thread; a second call does nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="storage", daemon=True)
            self._thread.start()

    def stop(self, timeout: float = 1.0) -> None:
        """End the thread within ``timeout`` seconds; a worker stuck in the kernel is left behind, silent."""
        self._stop.set()
        self.wake()
        if self._thread is not None:
            self._thread.join(timeout)
        for worker in list(self._workers.values()):
            worker.stop()

    @property
    def healthy(self) -> bool:
        """True while the thread runs and its last round went well; dead mounts do not change it."""
        alive = self._thread is not None and self._thread.is_alive()
        fresh = self._clock() - self._next_round < LATE_SECONDS
        return alive and fresh and not self._failing

    def tick(self) -> None:
        """Ask about every directory whose time has come; return without waiting for an answer."""
        now = self._clock()
        self._next_round = now + TICK_SECONDS
        due = [item for item in self._directories if self._is_due(item, now)]
        if not due:
            return
        renew = {id(item) for item in due if now - item.identified >= self._interval_seconds}
        if renew:
            self._identify([item for item in due if id(item) in renew], now)
        self._ask(due, renew, now)
        self._drop_idle_workers()

    def _run(self) -> None:
        while not self._stop.is_set():
            pause = TICK_SECONDS
            try:
                self.tick()
                pause = self._pause()
                self._failing = False
            except Exception:  # noqa: BLE001 (thread boundary: report, count as unhealthy, try again)
                self._failing = True
                _log.exception("storage: a round failed")
            self._woken.wait(pause)
            self._woken.clear()

    def _pause(self) -> float:
        """Return in how many seconds the next round is due."""
        now, directories = self._clock(), self._directories
        pause = TICK_SECONDS
        asking = any(worker.busy for worker in self._workers.values())
        if not asking and not any(self._saving(item.name) for item in directories):
            due = min((item.asked for item in directories), default=now) + self._interval_seconds
            pause = max(TICK_SECONDS, due - now)
        self._next_round = now + pause
        return pause

    def _is_due(self, item: _Directory, now: float) -> bool:
        worker = self._workers.get(item.worker_key)
        if worker is not None and worker.is_stuck(now) and not worker.announced:
            return True
        interval = self._interval_seconds
        if self._saving(item.name):
            interval = min(interval, SAVING_INTERVAL_SECONDS)
        return now - item.asked >= interval

    def _identify(self, items: Sequence[_Directory], now: float) -> None:
        """Find out the mount of each directory anew: mounts come and go under a path."""
        entries = read_mountinfo(self._proc)
        same, self._entries = entries == self._entries, entries
        for item in items:
            local_path = follow_links(item.path, entries)
            if same and local_path == item.local_path and (item.real_path or local_path) == item.traced_path:
                item.identified = now  # nothing was mounted or turned: the same device
                continue
            if local_path != item.local_path:
                # A link was turned to another place: what lay behind the old one no longer counts.
                item.local_path, item.real_path = local_path, None
            path = item.real_path or local_path
            entry = find_mount(path, entries)
            item.backing = trace_backing(path, entries, sys=self._sys)
            item.traced_path = path
            item.worker_key = (entry.mountpoint, entry.mount_id) if entry else ("", 0)
            item.identified = now

    def _ask(self, due: Sequence[_Directory], renew: set[int], now: float) -> None:
        written = self._written_bytes()
        batches: dict[tuple[str, int], list[_Call]] = {}
        silent: set[tuple[str, int]] = set()
        for item in due:
            item.asked = now
            status = self._known(item, written)
            worker = self._worker(item.worker_key, now)
            if worker is None or worker.is_stuck(now):
                self._publish_silent(worker, status)
                silent.add(item.worker_key)
            elif not worker.busy:
                call = _Call(item.path, id(item) in renew, self._receiver(item, status))
                batches.setdefault(item.worker_key, []).append(call)
        for key, calls in batches.items():
            self._workers[key].submit(calls)
        for key in silent & self._workers.keys():
            self._workers[key].announced = True

    def _known(self, item: _Directory, written: Mapping[str, int]) -> StorageStatus:
        backing = item.backing
        if backing is None:
            return StorageStatus(item.name)
        return StorageStatus(
            directory=item.name,
            mount=backing.mount,
            device_written_bytes=sum_written(backing.devices, written.get),
            dirty_bytes=read_dirty_bytes(backing.writeback, sys=self._sys),
        )

    def _worker(self, key: tuple[str, int], now: float) -> _MountWorker | None:
        if key not in self._workers:
            if sum(worker.is_stuck(now) for worker in self._workers.values()) >= STUCK_LIMIT:
                return None
            self._workers[key] = _MountWorker(f"storage {key[0]}", self._clock, self._statvfs)
        return self._workers[key]

    def _publish_silent(self, worker: _MountWorker | None, status: StorageStatus) -> None:
        with self._lock:
            # Asked again under the lock: an answer that came meanwhile must not be overwritten.
            silent = worker is None or worker.is_stuck(self._clock())
            if silent and not self._stop.is_set():
                self._publish(status)

    def _receiver(
        self, item: _Directory, status: StorageStatus
    ) -> Callable[[tuple[int, int] | None, str | None], None]:
        def receive(space: tuple[int, int] | None, real_path: str | None) -> None:
            with self._lock:
                if self._stop.is_set():
                    return
                item.real_path = real_path or item.real_path
                available, size = space if space is not None else (None, None)
                self._publish(replace(status, available_bytes=available, size_bytes=size))
                if available is not None and size is not None:
                    self._emit(Space(self._clock(), item.name, available=available, size=size))

        return receive

    def _drop_idle_workers(self) -> None:
        used = {item.worker_key for item in self._directories}
        for key in [key for key, worker in self._workers.items() if key not in used and not worker.busy]:
            self._workers.pop(key).stop()
