"""The thread that keeps the history: a bounded queue in, one small transaction a save out."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ckpt_exporter.history.database import BUSY_SECONDS, HistoryDatabase
from ckpt_exporter.history.failures import REASONS, HistoryError
from ckpt_exporter.history.gathering import (
    as_bubble,
    as_save,
    load_record,
    save_record,
    stall_record,
    with_bubble,
    with_late_files,
)
from ckpt_exporter.history.gpu_time import GpuHours
from ckpt_exporter.history.place import WriterLock, lies_on_network, move_aside
from ckpt_exporter.logs import log_event
from ckpt_exporter.model import Bubble, HistoryStatus, Load, Save, Stall

if TYPE_CHECKING:
    from ckpt_exporter.ledger import Ledger

_LOG = logging.getLogger(__name__)

# What waits for a file that cannot be written, stalls apart; the oldest is given up first.
MAX_WAITING: Final = 1000
# A file that failed is tried again so often.
RETRY_SECONDS: Final = 60.0
# GPU time goes along with every save, and by itself so often: a kill costs that much of it.
GPU_TIME_SECONDS: Final = 300.0
UPKEEP_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How often what happens, and how long another process's lock is waited for, in seconds."""

    retry_seconds: float = RETRY_SECONDS
    gpu_time_seconds: float = GPU_TIME_SECONDS
    upkeep_seconds: float = UPKEEP_SECONDS
    busy_seconds: float = BUSY_SECONDS


@dataclass(frozen=True, slots=True)
class Place:
    """Where the history is kept, of which node, for how long and in how much space."""

    path: str
    node: str
    retention_seconds: float
    max_bytes: int


# One thing to write; it runs inside a transaction.
_Write = Callable[[HistoryDatabase], None]


class HistoryRecorder:
    """Keep every finished save, load and stall of a ledger, and how long its GPUs were observed.

    The ``add_`` methods only queue. A file that is damaged is moved aside; one that cannot be written is
    tried again, and what waits meanwhile is bounded. Nothing here stops or delays the measuring.
    """

    def __init__(
        self,
        place: Place,
        ledger: Ledger,
        *,
        pace: Pace = Pace(),
        clock: Callable[[], float] = time.monotonic,
        on_network: Callable[[str], bool] = lies_on_network,
    ) -> None:
        self._place = place
        self._ledger = ledger
        self._pace = pace
        self._clock = clock
        self._on_network = on_network
        self._lock = threading.Lock()
        self._waiting: deque[_Write] = deque()
        # Apart, so that many GPUs standing still push no save out.
        self._waiting_stalls: deque[_Write] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._writer: WriterLock | None = None
        self._database: HistoryDatabase | None = None
        self._hours = GpuHours(place.node, clock())
        self._restored = False
        self._retry_at = self._gpu_time_at = self._upkeep_at = float("-inf")
        self._moved_at = float("-inf")
        self._found_damaged: HistoryError | None = None
        self._told: str | None = None
        self._up = False
        self._size_bytes: int | None = None
        self._dropped = 0
        self._errors = dict.fromkeys((*REASONS, "other"), 0)

    # --- in ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the file in a thread; the last saves it holds are given to the ledger."""
        self._gpu_time_at = self._clock() + self._pace.gpu_time_seconds
        self._thread.start()

    def add_save(self, save: Save) -> None:
        """Queue a finished save, or the late files of one."""
        offset = self._ledger.unix_minus_t
        if save.late:
            self._queue(lambda database: _join(database, save, offset))
            return
        run, mount = self._ledger.circumstances(save.directory)
        record = save_record(save, self._place.node, offset, run=run, mount=mount)
        self._queue(lambda database: database.add_save(record))

    def add_bubble(self, bubble: Bubble) -> None:
        """Queue what a save that was queued before has cost."""
        offset = self._ledger.unix_minus_t
        self._queue(lambda database: _charge(database, bubble, offset))

    def add_load(self, load: Load) -> None:
        """Queue a finished load."""
        _, mount = self._ledger.circumstances(load.directory)
        record = load_record(load, self._place.node, self._ledger.unix_minus_t, mount=mount)
        self._queue(lambda database: database.add_load(record))

    def add_cold_start(self, load: Load) -> None:
        """Queue when GPUs first worked after a load that was queued before."""
        record = load_record(load, self._place.node, self._ledger.unix_minus_t)
        self._queue(lambda database: database.start_load(record))

    def add_stall(self, stall: Stall) -> None:
        """Queue a stall, unless a save caused it: that save's bubble holds it, GPU by GPU."""
        if stall.cause == "checkpoint_save":
            return
        record = stall_record(stall, self._place.node, self._ledger.unix_minus_t)
        self._queue(
            # Written right after the GPUs were read, in the thread that reads them.
            lambda database: database.add_stall(replace(record, uuid=self._hours.uuid_of(record.gpu))),
            self._waiting_stalls,
        )

    def stop(self, timeout_seconds: float = 0.5) -> None:
        """Write what waits and close; what a hung disk does not take in time is lost."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    def status(self) -> HistoryStatus:
        """Return the state from memory."""
        with self._lock:
            dropped = self._dropped + self._hours.dropped
            return HistoryStatus(self._up, dict(self._errors), dropped, self._size_bytes)

    def _queue(self, write: _Write, queue: deque[_Write] | None = None) -> None:
        waiting = self._waiting if queue is None else queue
        with self._lock:
            waiting.append(write)
            if len(waiting) > MAX_WAITING:
                waiting.popleft()
                self._dropped += 1
        self._wake.set()

    # --- the thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            stopping = self._stopping
            self._wake.clear()
            self._guarded(stopping=stopping)
            if stopping:
                self._close()
                return
            self._wake.wait(self._pause())

    def _pause(self) -> float:
        """Return in how many seconds there is something to do if nothing new comes."""
        now = self._clock()
        due = min(self._gpu_time_at, self._upkeep_at) if self._up else self._retry_at
        return min(max(0.0, due - now), self._pace.upkeep_seconds)

    def _guarded(self, *, stopping: bool) -> None:
        try:
            self._work(stopping=stopping)
        except HistoryError as error:
            # Damage that opening did not see: opening again would not see it either.
            met = self._database is not None and error.reason == "damaged"
            self._found_damaged = error if met else None
            self._failed(error.reason, error.what, at_once=met)
            if error.reason not in ("locked", "full"):
                self._close()
        except Exception as error:  # noqa: BLE001 (boundary of the thread: measuring goes on without a history)
            self._failed("other", "the history thread failed", error)
            self._close()

    def _work(self, *, stopping: bool) -> None:
        now = self._clock()
        if now < self._retry_at and not stopping:
            return
        if self._database is not None and not self._database.is_in_place:
            self._count("unavailable")
            log_event(_LOG, logging.WARNING, "history file is gone, beginning anew", path=self._place.path)
            self._close()
        database = self._database or self._open()
        if now >= self._gpu_time_at or stopping or self._waiting or self._waiting_stalls:
            self._hours.read(self._ledger.gpu_statuses(now), now, self._ledger.unix_minus_t)
        self._drain(database, self._waiting)
        self._drain(database, self._waiting_stalls)
        if now >= self._gpu_time_at or stopping:
            self._write_hours(database)
        if now >= self._upkeep_at:
            self._upkeep_at = now + self._pace.upkeep_seconds
            self._tidy(database)
        self._succeeded(database)

    def _drain(self, database: HistoryDatabase, waiting: deque[_Write]) -> None:
        while waiting:
            write = waiting[0]
            try:
                self._write(database, write)
            except HistoryError:
                raise
            except Exception as error:  # noqa: BLE001 (one record that cannot be written must not hold up the rest)
                self._give_up(waiting, write, dropped=True)
                self._count("other")
                log_event(_LOG, logging.ERROR, "record not kept", path=self._place.path, error=error)
            else:
                self._give_up(waiting, write)

    def _write(self, database: HistoryDatabase, write: _Write) -> None:
        with database.transaction():
            write(database)
            database.add_gpu_time(self._hours.waiting)
        self._hours.written()

    def _write_hours(self, database: HistoryDatabase) -> None:
        self._gpu_time_at = self._clock() + self._pace.gpu_time_seconds
        if self._hours.waiting:
            with database.transaction():
                database.add_gpu_time(self._hours.waiting)
            self._hours.written()

    def _give_up(self, waiting: deque[_Write], write: _Write, *, dropped: bool = False) -> None:
        with self._lock:
            # While it was being written it may have been dropped from a queue that overflowed.
            if waiting and waiting[0] is write:
                waiting.popleft()
                self._dropped += dropped

    def _tidy(self, database: HistoryDatabase) -> None:
        newest = database.newest_end_unix()
        if newest is not None:
            # By the newest record as well: a machine that was off for long keeps what it has.
            now = min(self._clock() + self._ledger.unix_minus_t, newest)
            database.forget_before(now - self._place.retention_seconds)
        database.shrink_to(self._place.max_bytes)
        database.checkpoint()

    # --- the file ---------------------------------------------------------------------------------------

    def _open(self) -> HistoryDatabase:
        path = self._place.path
        if self._writer is None:
            self._writer = WriterLock(path)
        wal = not self._on_network(path)
        if self._found_damaged is not None:
            self._move_aside(self._found_damaged)
            self._found_damaged = None
        busy = self._pace.busy_seconds
        try:
            database = HistoryDatabase(path, wal=wal, busy_seconds=busy)
        except HistoryError as error:
            if error.reason not in ("damaged", "newer"):
                raise
            self._count(error.reason)
            self._move_aside(error)
            database = HistoryDatabase(path, wal=wal, busy_seconds=busy)
        self._database = database
        self._upkeep_at = float("-inf")
        if not self._restored:
            self._restore(database)
        return database

    def _move_aside(self, error: HistoryError) -> None:
        self._moved_at = self._clock()
        aside = move_aside(self._place.path, error.reason, self._clock() + self._ledger.unix_minus_t)
        log_event(
            _LOG, logging.ERROR, "history moved aside, beginning anew",
            path=self._place.path, reason=error.what, moved_to=aside,
        )  # fmt: skip

    def _restore(self, database: HistoryDatabase) -> None:
        offset = self._ledger.unix_minus_t
        last = database.last_saves()
        self._ledger.restore((as_save(record, offset), as_bubble(record, offset)) for record in last)
        self._restored = True
        log_event(
            _LOG, logging.INFO, "history opened", path=self._place.path, directories=len(last),
            bytes=database.size_bytes,
        )  # fmt: skip

    def _close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.release()

    # --- state ------------------------------------------------------------------------------------------

    def _succeeded(self, database: HistoryDatabase) -> None:
        self._size_bytes = database.size_bytes
        self._up = True
        if self._told is not None:
            self._told = None
            log_event(_LOG, logging.INFO, "history is kept again", path=self._place.path)

    def _failed(
        self, reason: str, what: str, error: BaseException | None = None, *, at_once: bool = False
    ) -> None:
        self._count(reason)
        self._up = False
        now = self._clock()
        # A disk that damages one file after the other gets no new one every moment.
        wait = not at_once or now < self._moved_at + self._pace.retry_seconds
        self._retry_at = now + (self._pace.retry_seconds if wait else 0.0)
        if self._told != what:
            self._told = what
            log_event(
                _LOG, logging.WARNING, "history is not kept for now, saves wait in memory",
                path=self._place.path, reason=what, error=error,
            )  # fmt: skip

    def _count(self, reason: str) -> None:
        with self._lock:
            self._errors[reason] += 1


def _join(database: HistoryDatabase, late: Save, unix_minus_t: float) -> None:
    found = database.find_save(late.directory, late.path, late.start + unix_minus_t)
    if found is not None:
        database.replace_save(found[0], with_late_files(found[1], late, unix_minus_t))


def _charge(database: HistoryDatabase, bubble: Bubble, unix_minus_t: float) -> None:
    found = database.find_save(bubble.directory, bubble.save_path, bubble.save_end + unix_minus_t)
    if found is not None:
        database.replace_save(found[0], with_bubble(found[1], bubble, unix_minus_t))
