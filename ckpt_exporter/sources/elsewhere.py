"""Look for what other hosts write in shared directories, with few calls to the file server.

No event tells of another host's writes. So each shared directory has a worker that asks the file server every
few seconds whether its folders changed, lists only those that did, and asks about the files that may still be
written. A mount that hangs holds up its own worker and nothing else.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from ckpt_exporter.logs import log_event
from ckpt_exporter.model import (
    DetectSettings,
    DirectorySettings,
    ElsewhereStatus,
    Fact,
    StorageStatus,
)
from ckpt_exporter.sources.looker import Budget, Looker, StoppedError

_LOG = logging.getLogger(__name__)

# A call that is out for so long: the file server does not answer.
HUNG_SECONDS = 10.0


class _Worker:
    """One daemon thread that looks at one directory."""

    def __init__(
        self, directory: DirectorySettings, emit: Callable[[Fact], None], detect: DetectSettings,
        clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self.directory = directory
        self._clock = clock
        self._interval = detect.elsewhere_interval_seconds
        self._stop = threading.Event()
        self._emit_or_not = emit
        self.budget = Budget(detect.elsewhere_max_calls_per_second, clock, self._stop)
        self.looker = Looker(directory, self._emit, self.budget, clock=clock)
        self._thread = threading.Thread(target=self._run, name=f"elsewhere-{directory.name}", daemon=True)
        self._thread.start()

    def _emit(self, fact: Fact) -> None:
        if not self._stop.is_set():  # one that hung and came back when it was no longer wanted
            self._emit_or_not(fact)

    def stop(self) -> None:
        self._stop.set()

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)

    @property
    def up(self) -> bool:
        began = self.looker.call_began
        hung = began is not None and self._clock() - began > HUNG_SECONDS
        return self.looker.answered and self._thread.is_alive() and not hung

    def _run(self) -> None:
        while not self._stop.is_set():
            began = self._clock()
            try:
                self.looker.round()
            except StoppedError:
                return
            except Exception:  # noqa: BLE001 (thread boundary: report, and look again)
                self.looker.answered = False
                _LOG.exception("a look for other hosts' saves failed")
            self._stop.wait(max(self._interval / 10, began + self._interval - self._clock()))


class ElsewhereSource:
    """Looks for other hosts' saves in every directory that wants it, as facts to ``emit``."""

    def __init__(
        self,
        directories: Sequence[DirectorySettings],
        detect: DetectSettings,
        emit: Callable[[Fact], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._emit = emit
        self._clock = clock
        self._lock = threading.Lock()
        self._workers: dict[str, _Worker] = {}
        self._calls: dict[str, int] = {}
        self._shared: dict[str, bool] = {}
        self._started = False
        self._directories = {directory.name: directory for directory in directories}
        self._detect = detect

    def start(self) -> None:
        """Begin to look where that is asked for; ``auto`` waits for ``note_mount``."""
        with self._lock:
            self._started = True
            self._adjust()

    def stop(self, timeout: float = 0.2) -> None:
        """End all looks; a worker that hangs in a dead mount is left behind, silent."""
        with self._lock:
            self._started = False
            workers, self._workers = list(self._workers.values()), {}
        for worker in workers:
            worker.stop()
        deadline = time.monotonic() + timeout
        for worker in workers:
            worker.join(max(0.0, deadline - time.monotonic()))

    def update(self, directories: Sequence[DirectorySettings], detect: DetectSettings) -> None:
        """Take over a new configuration."""
        with self._lock:
            if detect != self._detect:
                self._retire(lambda _: True)
            self._directories = {directory.name: directory for directory in directories}
            self._detect = detect
            self._adjust()

    def note_mount(self, status: StorageStatus) -> None:
        """Take in what a directory lies on: ``auto`` looks where other hosts can write."""
        if status.mount is None:
            return
        with self._lock:
            if self._shared.get(status.directory) != status.mount.shared:
                self._shared[status.directory] = status.mount.shared
                self._adjust()

    def statuses(self) -> tuple[ElsewhereStatus, ...]:
        """Describe the looks at every directory that is looked at."""
        with self._lock:
            return tuple(
                ElsewhereStatus(name, worker.up, self._calls.get(name, 0) + worker.budget.calls)
                for name, worker in self._workers.items()
            )

    def _adjust(self) -> None:
        wanted = {name: item for name, item in self._directories.items() if self._is_wanted(item)}
        self._retire(lambda worker: wanted.get(worker.directory.name) != worker.directory)
        for name, directory in wanted.items():
            if self._started and name not in self._workers:
                log_event(
                    _LOG, logging.INFO, "looking for saves of other hosts", dir=name, path=directory.path
                )
                self._workers[name] = _Worker(directory, self._emit, self._detect, self._clock)

    def _is_wanted(self, directory: DirectorySettings) -> bool:
        if directory.elsewhere == "auto":
            return self._shared.get(directory.name, False)
        return directory.elsewhere == "on"

    def _retire(self, which: Callable[[_Worker], bool]) -> None:
        for name, worker in list(self._workers.items()):
            if which(worker):
                worker.stop()
                self._calls[name] = self._calls.get(name, 0) + worker.budget.calls
                del self._workers[name]
