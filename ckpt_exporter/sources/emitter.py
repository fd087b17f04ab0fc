"""watchdog's observer with emitters of ours: a thread per directory, a bounded queue, one dispatcher."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable
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

from ckpt_exporter.model import DirectorySettings, Fact, FileEvent, Progress
from ckpt_exporter.sources.entry import Entry, Shared
from ckpt_exporter.sources.inotify import InotifyEngine, NoInotifyError
from ckpt_exporter.sources.poll import PollEngine

_LOG = logging.getLogger("ckpt_exporter.watch")
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


def as_event(fact: Fact) -> FileSystemEvent:
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


@dataclass(frozen=True, slots=True)
class EmitterPlan:
    """What the next emitter is for; the observer makes emitters itself and only knows paths."""

    directory: DirectorySettings
    shared: Shared
    previous: InotifyEngine | PollEngine | None = None


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
            self._shared.thread_ended.set()

    def _work(self) -> None:
        self.entry.put, self.entry.beat = self._put, self._beat
        self.engine = self._continue() or self._open_inotify() or PollEngine(self.entry, initial=True)
        while self.should_keep_running():
            self._beat()
            if self.fail_next_step:
                raise RuntimeError("asked to fail")
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

    def _put(self, fact: Fact) -> None:
        """Queue a fact for the reader.

        While the queue is full this thread waits and the kernel's own queue fills: if that overflows, it says
        so and the tree is compared with the disk. Only looks at progress are dropped, since others follow.
        """
        item = (as_event(fact), self.watch)
        while self.should_keep_running():
            try:
                self._event_queue.put(item, timeout=0.2)
            except queue.Full:
                self._beat()
                if isinstance(fact, Progress):
                    with self._shared.counts.lock:
                        self._shared.counts.dropped += 1
                    return
            else:
                return


class CheckpointObserver(BaseObserver):
    """watchdog's observer with a bounded queue and one emitter of ours per configured directory."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(DirectoryEmitter)
        self._shared = shared
        self._event_queue = BoundedQueue(shared.settings.queue_size)
        self._clock = clock = shared.clock
        self.name = "watch-dispatch"
        self.beat_at = clock()

    def run(self) -> None:
        """Hand events over until stopped."""
        try:
            super().run()
        finally:
            self._shared.thread_ended.set()

    def schedule_directory(self, handler: FileSystemEventHandler, plan: EmitterPlan) -> DirectoryEmitter:
        """Watch one directory from now on (or from the start of the observer)."""
        watch = ObservedWatch(f"{plan.directory.name}\0{plan.directory.path}", recursive=True)
        with self._lock:
            emitter = DirectoryEmitter(self.event_queue, watch, plan=plan)
            self._add_emitter(emitter)
            self._add_handler_for_watch(handler, watch)
            self._watches.add(watch)
            # Last: what it tells before it has a handler would go nowhere.
            if self.is_alive():
                emitter.start()
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
