"""Watch all configured directories: watchdog's observer with emitters of ours, supervised."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from watchdog.events import (
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
    FileClosedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
    FileOpenedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers.api import BaseObserver, EventDispatcher, EventEmitter, EventQueue, ObservedWatch

from ckpt_exporter.model import DirectorySettings, Fact, FileEvent, WatchChange, WatchCounters, WatchStatus
from ckpt_exporter.sources.entry import Counts, Entry, Ignored, OverwritePosition, Shared, WatchSettings
from ckpt_exporter.sources.filestat import ignore_lease_signal
from ckpt_exporter.sources.inotify import InotifyEngine, NoInotifyError
from ckpt_exporter.sources.inotify_calls import InotifyCalls
from ckpt_exporter.sources.poll import PollEngine

_LOG = logging.getLogger("ckpt_exporter.watch")
_EVENT_KINDS = ("create", "open", "close_write", "moved", "deleted", "link")
_FILE_TYPES: dict[str, type[FileSystemEvent]] = {
    "create": FileCreatedEvent,
    "open": FileOpenedEvent,
    "close_write": FileClosedEvent,
    "moved": FileMovedEvent,
    "deleted": FileDeletedEvent,
    "link": FileCreatedEvent,
}
_DIRECTORY_TYPES: dict[str, type[FileSystemEvent]] = {
    "create": DirCreatedEvent,
    "moved": DirMovedEvent,
    "deleted": DirDeletedEvent,
}


def _as_event(fact: Fact) -> FileSystemEvent:
    """Wrap a fact into the event type that watchdog has for it; the fact rides along."""
    event: FileSystemEvent
    if isinstance(fact, FileEvent):
        kinds = _DIRECTORY_TYPES if fact.is_dir else _FILE_TYPES
        event = kinds[fact.event](fact.path or "", fact.to or "", is_synthetic=fact.found)
    else:
        event = FileModifiedEvent(getattr(fact, "path", ""), is_synthetic=True)
    event.fact = fact  # type: ignore[attr-defined]
    return event


class FactHandler(FileSystemEventHandler):
    """Hands the fact of each event to ``emit``; a failure there is counted and logged, no more."""

    def __init__(self, emit: Callable[[Fact], None]) -> None:
        self._emit = emit
        self.failures = 0
        self._logged_at = float("-inf")

    def dispatch(self, event: FileSystemEvent) -> None:
        """Take one event from the queue."""
        try:
            self._emit(event.fact)  # type: ignore[attr-defined]
        except Exception:  # noqa: BLE001  (thread boundary: a fault in the reader must not end the watch)
            self.failures += 1
            now = time.monotonic()
            if now - self._logged_at > 60.0:
                self._logged_at = now
                _LOG.exception("a fact was not taken in", extra={"fields": {"failures": self.failures}})


class BoundedQueue(EventQueue):
    """watchdog's queue with a bound, and without dropping what equals its neighbour."""

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:  # noqa: FBT001, FBT002
        """Add an item; raises ``queue.Full``."""
        queue.Queue.put(self, item, block, timeout)


class DirectoryEmitter(EventEmitter):
    """The thread that watches one configured directory, by inotify or else by polling."""

    def __init__(self, event_queue: EventQueue, watch: ObservedWatch, *, plan: EmitterPlan, **_: Any) -> None:
        super().__init__(event_queue, watch)
        self._shared = plan.shared
        self._previous = plan.previous
        self.directory = plan.directory
        self.name = f"watch-{plan.directory.name}"
        self.entry = plan.previous.entry if plan.previous else Entry(plan.directory, plan.shared, self._put)
        self.beat_at = plan.shared.clock()
        self.engine: InotifyEngine | PollEngine | None = None
        # What a successor may go on with after a failure.
        self.last_engine: InotifyEngine | PollEngine | None = None
        self._retry_at = float("inf")
        self._full = False
        self.fail_next_step = False  # for tests of the supervisor

    # --- thread -----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Watch until stopped; what goes wrong is logged and left to the supervisor."""
        try:
            self._work()
        except Exception:  # noqa: BLE001  (thread boundary; the supervisor starts a new one)
            if self.should_keep_running():
                _LOG.exception("the watch failed", extra={"fields": {"dir": self.directory.name}})
        finally:
            engine, self.engine = self.engine, None
            if engine is not None:
                engine.close()
            self.last_engine = engine

    def _work(self) -> None:
        self.entry.put, self.entry.beat = self._put, self._beat
        self.engine = self._continue() or self._open_inotify() or PollEngine(self.entry, initial=True)
        while self.should_keep_running():
            self._beat()
            if self.fail_next_step:
                raise RuntimeError("asked to fail")
            if self._full and self._event_queue.empty():
                self._full = False
                self.engine.rescan("dropped")
            try:
                self.engine.step()
            except NoInotifyError:
                self._fall_back()
            if self.entry.clock() >= self._retry_at:
                self._try_inotify()

    def _continue(self) -> InotifyEngine | PollEngine | None:
        """Go on with what a failed thread knew."""
        previous, self._previous = self._previous, None
        if isinstance(previous, PollEngine):
            self._retry_at = self.entry.clock() + self._shared.settings.retry_seconds
        elif previous is not None:
            try:
                previous.reopen()
            except NoInotifyError:
                previous.close()
                return None
        return previous

    def _beat(self) -> None:
        self.beat_at = self._shared.clock()

    def _open_inotify(self) -> InotifyEngine | None:
        engine = InotifyEngine(self.entry)
        try:
            engine.open()
        except NoInotifyError:
            engine.close()
            self._retry_at = self.entry.clock() + self._shared.settings.retry_seconds
            return None
        self._retry_at = float("inf")
        return engine

    def _fall_back(self) -> None:
        """Go on by polling, with what is known."""
        old = self.engine
        if isinstance(old, InotifyEngine):
            polling = PollEngine(self.entry, initial=False)
            old.hand_over(polling)
            old.close()
            self.engine = polling
        self._retry_at = self.entry.clock() + self._shared.settings.retry_seconds

    def _try_inotify(self) -> None:
        old = self.engine
        engine = self._open_inotify()
        if engine is not None and isinstance(old, PollEngine):
            engine.take_over(old)
            old.close()
            self.engine = engine

    def on_thread_stop(self) -> None:
        """Wake the thread, so that it sees that it shall stop."""
        engine = self.engine
        if engine is not None:
            engine.wake()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the thread, but not for one that hangs in a dead mount."""
        super().join(0.3 if timeout is None else timeout)

    # --- queue ------------------------------------------------------------------------------------------

    def _put(self, fact: Fact, wait: bool) -> bool:  # noqa: FBT001  (a callback's second argument)
        item = (_as_event(fact), self.watch)
        while True:
            try:
                if wait:
                    self._event_queue.put(item, timeout=0.2)
                else:
                    self._event_queue.put(item, block=False)
            except queue.Full:
                self._beat()
                if wait and self.should_keep_running():
                    continue
                with self._shared.counts.lock:
                    self._shared.counts.dropped += 1
                self._full = True
                return False
            return True


@dataclass(frozen=True, slots=True)
class EmitterPlan:
    """What the next emitter is for; the observer makes emitters itself and only knows paths."""

    directory: DirectorySettings
    shared: Shared
    previous: InotifyEngine | PollEngine | None = None


class CheckpointObserver(BaseObserver):
    """watchdog's observer with a bounded queue and one emitter of ours per configured directory."""

    def __init__(self, queue_size: int, clock: Callable[[], float]) -> None:
        super().__init__(DirectoryEmitter)
        self._event_queue = BoundedQueue(queue_size)
        self._clock = clock
        self.name = "watch-dispatch"
        self.beat_at = clock()

    def schedule_directory(self, handler: FileSystemEventHandler, plan: EmitterPlan) -> DirectoryEmitter:
        """Watch one directory from now on (or from the start of the observer)."""
        watch = ObservedWatch(f"{plan.directory.name}\0{plan.directory.path}", recursive=True)
        with self._lock:
            emitter = DirectoryEmitter(self.event_queue, watch, plan=plan)
            if self.is_alive():
                emitter.start()
            self._add_emitter(emitter)
            self._add_handler_for_watch(handler, watch)
            self._watches.add(watch)
        return emitter

    def dispatch_events(self, event_queue: EventQueue) -> None:
        """Hand over one event; wakes up now and then to show that it lives."""
        self.beat_at = self._clock()
        entry = event_queue.get(timeout=15.0)
        if entry is EventDispatcher.stop_event:
            return
        event, watch = entry
        # Without watchdog's lock: a reload that waits for a hung thread must not hold up the others.
        for handler in tuple(self._handlers.get(watch, ())):
            handler.dispatch(event)


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
        observer = self._observer = CheckpointObserver(self._settings.queue_size, self._clock)
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

    def saving(self, name: str) -> bool:
        """Tell whether a file is open for writing below the directory of that name."""
        emitter = self._emitters.get(name)
        engine = emitter.engine if emitter is not None else None
        return engine is not None and bool(engine.active.by_path)

    # --- supervision ------------------------------------------------------------------------------------

    def _supervise(self) -> None:
        while not self._stopping.wait(self._settings.supervise_seconds):
            try:
                with self._lock:
                    if self._observer is not None:
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
            self.handler.dispatch(_as_event(WatchChange(now, name, "down", "hung")))
        elif not hung and name in self._hung:
            self._hung.discard(name)
            self.handler.dispatch(_as_event(WatchChange(now, name, "up", "answers")))


def _forget(observer: CheckpointObserver, emitter: DirectoryEmitter) -> None:
    observer.emitters.discard(emitter)
