"""Watch all configured directories and keep the threads that do it alive."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence

from ckpt_exporter.model import DirectorySettings, Fact, WatchChange, WatchCounters, WatchStatus
from ckpt_exporter.sources.emitter import (
    CheckpointObserver,
    DirectoryEmitter,
    EmitterPlan,
    FactHandler,
    as_event,
)
from ckpt_exporter.sources.entry import Counts, Ignored, OverwritePosition, Shared, WatchSettings
from ckpt_exporter.sources.filestat import ignore_lease_signal
from ckpt_exporter.sources.inotify_calls import InotifyCalls

_LOG = logging.getLogger("ckpt_exporter.watch")
_EVENT_KINDS = ("create", "open", "close_write", "moved", "deleted", "link")


class WatchSource:
    """Hands everything that happens below the configured directories to ``emit``, in order."""

    def __init__(
        self,
        directories: Sequence[DirectorySettings],
        emit: Callable[[Fact], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        ignored: Ignored = lambda _directory, _path: False,
        settings: WatchSettings | None = None,
        overwrite_position: OverwritePosition = lambda _path, _inode: None,
        calls: InotifyCalls | None = None,
        mountinfo: str = "/proc/self/mountinfo",
        canary_parent: str | None = None,
    ) -> None:
        self._settings = settings or WatchSettings()
        self._clock = clock
        self._directories = tuple(directories)
        self._counts = Counts(events=dict.fromkeys(_EVENT_KINDS, 0))
        self._shared = Shared(
            self._settings,
            clock,
            ignored,
            overwrite_position,
            calls or InotifyCalls(),
            self._counts,
            mountinfo=mountinfo,
            canary_parent=canary_parent,
            directories=lambda: len(self._directories),
        )
        self.handler = FactHandler(emit)
        self._lock = threading.RLock()
        self._observer: CheckpointObserver | None = None
        self._emitters: dict[str, DirectoryEmitter] = {}
        self._restarts: dict[str, tuple[float, float]] = {}  # name -> (not before, pause)
        self._stopping = threading.Event()
        self._supervisor: threading.Thread | None = None
        self._hung: set[str] = set()

    # --- life cycle -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start watching; a directory that can't be watched is a state and no error."""
        ignore_lease_signal()
        with self._lock:
            self._start_observer()
        self._supervisor = threading.Thread(target=self._supervise, name="watch-supervisor", daemon=True)
        self._supervisor.start()

    def _start_observer(self) -> None:
        observer = self._observer = CheckpointObserver(self._shared)
        for directory in self._directories:
            self._schedule(directory, self._emitters.get(directory.name))
        observer.start()

    def _schedule(self, directory: DirectorySettings, failed: DirectoryEmitter | None = None) -> None:
        previous = failed.last_engine if failed is not None and not failed.is_alive() else None
        if self._observer is not None:
            plan = EmitterPlan(directory, self._shared, previous)
            self._emitters[directory.name] = self._observer.schedule_directory(self.handler, plan)

    def stop(self) -> None:
        """Stop all threads; returns within a second even when one hangs in a dead mount."""
        self._stopping.set()
        self._shared.thread_ended.set()
        with self._lock:
            observer, self._observer = self._observer, None
            emitters = list(self._emitters.values())
        if observer is None:
            return
        for emitter in emitters:
            emitter.stop()
        deadline = time.monotonic() + 0.6
        for emitter in emitters:
            emitter.join(max(0.0, deadline - time.monotonic()))
        # Only what is still alive is left to watchdog, which waits for one after the other.
        for emitter in [emitter for emitter in emitters if emitter.is_alive()]:
            _forget(observer, emitter)
        observer.stop()
        observer.join(0.3)
        if self._supervisor is not None:
            self._supervisor.join(0.1)

    def update(self, directories: Sequence[DirectorySettings]) -> None:
        """Take over a new list of directories; the unchanged ones go on untouched."""
        with self._lock:
            wanted = {directory.name: directory for directory in directories}
            for name, emitter in list(self._emitters.items()):
                if wanted.get(name) != emitter.directory:
                    self._unschedule(name, emitter)
            self._directories = tuple(directories)
            for directory in directories:
                if directory.name not in self._emitters:
                    self._schedule(directory)

    def _unschedule(self, name: str, emitter: DirectoryEmitter) -> None:
        del self._emitters[name]
        self._restarts.pop(name, None)
        if self._observer is not None:
            with contextlib.suppress(KeyError):
                self._observer.unschedule(emitter.watch)

    # --- state ------------------------------------------------------------------------------------------

    def statuses(self) -> tuple[WatchStatus, ...]:
        """Describe the watch of every directory."""
        with self._lock:
            emitters = dict(self._emitters)
        return tuple(self._status(directory, emitters.get(directory.name)) for directory in self._directories)

    def _status(self, directory: DirectorySettings, emitter: DirectoryEmitter | None) -> WatchStatus:
        engine = emitter.engine if emitter is not None and emitter.is_alive() else None
        if engine is None or directory.name in self._hung:
            return WatchStatus(directory.name, "inotify", up=False)
        return engine.status()

    def counters(self) -> WatchCounters:
        """Return what was counted since the start."""
        counts = self._counts
        with counts.lock:
            return WatchCounters(counts.overflows, counts.dropped, dict(counts.rescans), dict(counts.events))

    @property
    def healthy(self) -> bool:
        """True while every thread lives and answers, and no fact was refused."""
        with self._lock:
            observer, emitters = self._observer, list(self._emitters.values())
        if observer is None or not observer.is_alive():
            return False
        now = self._clock()
        alive = all(
            emitter.is_alive() and now - emitter.beat_at < self._settings.hung_seconds for emitter in emitters
        )
        return alive and now - observer.beat_at < self._settings.hung_seconds

    @property
    def dispatching(self) -> bool:
        """True while facts are handed on, whatever single mounts do: a restart could mend no more."""
        with self._lock:
            observer = self._observer
        if observer is None or not observer.is_alive():
            return False
        return self._clock() - observer.beat_at < self._settings.hung_seconds

    def saving(self, name: str) -> bool:
        """Tell whether a file is open for writing below the directory of that name."""
        emitter = self._emitters.get(name)
        engine = emitter.engine if emitter is not None else None
        return engine is not None and bool(engine.active.by_path)

    # --- supervision ------------------------------------------------------------------------------------

    def _supervise(self) -> None:
        while not self._stopping.is_set():
            # A thread that says that it ends is looked at when it has ended; a hang is only seen by looking.
            if self._shared.thread_ended.wait(self._calm_seconds()):
                self._shared.thread_ended.clear()
                self._stopping.wait(self._settings.supervise_seconds)
            self._supervise_once()

    def _calm_seconds(self) -> float:
        settings = self._settings
        with self._lock:
            ended = not all(emitter.is_alive() for emitter in self._emitters.values())
        if ended or self._hung:
            return settings.supervise_seconds
        calm = min(settings.supervise_calm_seconds, settings.hung_seconds / 4)
        return max(settings.supervise_seconds, calm)

    def _supervise_once(self) -> None:
        with self._lock:
            if self._observer is None:
                return
            try:
                self._check_threads(self._clock())
            except Exception:  # noqa: BLE001  (thread boundary: the supervisor must outlive what it supervises)
                _LOG.exception("supervision failed")

    def _check_threads(self, now: float) -> None:
        if self._observer is not None and not self._observer.is_alive():
            _LOG.error("the dispatcher ended: starting it anew")
            for emitter in self._emitters.values():
                emitter.stop()
            for emitter in self._emitters.values():
                emitter.join()
            self._start_observer()
            return
        for name, emitter in list(self._emitters.items()):
            if not emitter.is_alive():
                self._restart(name, emitter, now)
            else:
                self._check_beat(name, emitter, now)

    def _restart(self, name: str, emitter: DirectoryEmitter, now: float) -> None:
        not_before, pause = self._restarts.get(name, (now, self._settings.restart_seconds))
        if now < not_before:
            return
        longer = min(pause * 2.0, self._settings.max_restart_seconds)
        repeated = name in self._restarts and now - not_before < self._settings.max_restart_seconds
        self._restarts[name] = (now + pause, longer if repeated else self._settings.restart_seconds * 2.0)
        directory = emitter.directory
        _LOG.warning("watching anew after a failure", extra={"fields": {"dir": name}})
        if self._observer is not None:
            with contextlib.suppress(KeyError):
                self._observer.unschedule(emitter.watch)
        # What it knew may be what made it fail: the second time begin from nothing.
        self._schedule(directory, None if repeated else emitter)

    def _check_beat(self, name: str, emitter: DirectoryEmitter, now: float) -> None:
        """Say so when a thread hangs in a dead mount; it can't be ended, and a second would hang too."""
        hung = now - emitter.beat_at >= self._settings.hung_seconds
        if hung and name not in self._hung:
            self._hung.add(name)
            _LOG.warning("the file system does not answer", extra={"fields": {"dir": name}})
            self.handler.dispatch(as_event(WatchChange(now, name, "down", "hung")))
        elif not hung and name in self._hung:
            self._hung.discard(name)
            self.handler.dispatch(as_event(WatchChange(now, name, "up", "answers")))


def _forget(observer: CheckpointObserver, emitter: DirectoryEmitter) -> None:
    observer.emitters.discard(emitter)
