"""Composition root: builds, starts, reloads and stops everything; the only module that sees all rooms."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import IO

from ckpt_exporter import __version__
from ckpt_exporter.config.schema import Config
from ckpt_exporter.detect.layouts import is_ignored, is_noise
from ckpt_exporter.detect.places import fixed_prefix, relative_to
from ckpt_exporter.errors import CkptExporterError
from ckpt_exporter.ledger import Ledger
from ckpt_exporter.logs import log_event
from ckpt_exporter.metrics.registry import build_registry
from ckpt_exporter.model import (
    ConfigStatus,
    DirectorySettings,
    Fact,
    FileEvent,
    Progress,
    ProgressMethod,
    Save,
    Snapshot,
)
from ckpt_exporter.recording import Recorder
from ckpt_exporter.sources.storage import StorageSource
from ckpt_exporter.sources.watch import WatchSource
from ckpt_exporter.sources.who import WritersSource
from ckpt_exporter.web.pages.status import StatusPage
from ckpt_exporter.web.server import WebServer

_LOG = logging.getLogger("ckpt_exporter")

# How often quiet saves are looked at; a save's times do not depend on it.
TICK_SECONDS = 0.25


class Exporter:
    """Everything that runs, wired together. ``clock`` is monotonic seconds."""

    def __init__(
        self, config: Config, *, recorder: Recorder | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.config = config
        self._clock = clock
        self._recorder = recorder
        self._config_status = ConfigStatus(successful=True, success_unix=time.time())
        self.ledger = Ledger(
            config.directories,
            config.detect,
            unix_minus_t=time.time() - clock(),
            on_save=self._log_save,
            on_fact=recorder.write if recorder is not None else None,
        )
        self._writers = WritersSource(self.ledger.feed, clock)
        self._watch = WatchSource(
            config.directories,
            self._emit,
            clock=clock,
            ignored=_is_ignored,
            overwrite_position=self._overwrite_position,
        )
        self._storage = StorageSource(
            config.directories,
            publish=self.ledger.set_storage,
            emit=self.ledger.feed,
            clock=clock,
            saving=lambda name: self._watch.saving(name) or self.ledger.saving(name),
        )
        self._web = WebServer(
            config.web.listen_address,
            config.web.telemetry_path,
            build_registry(self.snapshot),
            StatusPage(self.snapshot, started=clock(), telemetry_path=config.web.telemetry_path),
            healthy=lambda: self._watch.healthy,
            ready=lambda: True,
        )

    @property
    def address(self) -> str:
        """``HOST:PORT`` where metrics are served."""
        return self._web.address

    def start(self) -> None:
        """Start everything; raises CkptExporterError if the address cannot be had, with nothing started."""
        self._web.start()
        if self._recorder is not None:
            self._recorder.start(self._clock(), time.time(), self.config.directories)
        self._writers.replace_directories(directory.name for directory in self.config.directories)
        self._storage.start()
        self._watch.start()
        count = len(self.config.directories)
        log_event(
            _LOG, logging.INFO, "listening", address=self.address, version=__version__, directories=count
        )

    def tick(self) -> None:
        """Let saves that have gone quiet end, and say if the recording had to stop."""
        self.ledger.tick(self._clock())
        recorder = self._recorder
        if recorder is not None and recorder.failed is not None:
            self._recorder = None
            log_event(_LOG, logging.ERROR, "recording stopped", error=recorder.failed)

    def stop(self) -> None:
        """Stop everything, in less than two seconds; what is committed by now is counted."""
        self._watch.stop()
        self._writers.stop()
        self._storage.stop(timeout=0.2)
        self.ledger.finish(self._clock())
        if self._recorder is not None:
            self._recorder.stop(self._clock())
        self._web.stop()

    def reload(self, read: Callable[[], Config]) -> None:
        """Take over the configuration that ``read`` returns; a bad one leaves the old one in force."""
        try:
            config = read()
        except CkptExporterError as error:
            self._config_status = replace(self._config_status, successful=False)
            for problem in str(error).splitlines():
                log_event(_LOG, logging.ERROR, "configuration not reloaded", problem=problem)
            return
        for setting in ("web", "gpu", "history"):
            if getattr(config, setting) != getattr(self.config, setting):
                log_event(_LOG, logging.WARNING, "setting takes effect after a restart only", key=setting)
        self.config = config
        self.ledger.reconfigure(config.directories, config.detect)
        self._writers.replace_directories(directory.name for directory in config.directories)
        self._storage.replace_directories(config.directories)
        self._watch.update(config.directories)
        self._config_status = ConfigStatus(successful=True, success_unix=time.time())
        log_event(_LOG, logging.INFO, "configuration reloaded", directories=len(config.directories))

    def snapshot(self) -> Snapshot:
        """Copy all state from memory."""
        return replace(
            self.ledger.snapshot(self._clock()),
            watches=self._watch.statuses(),
            counters=self._watch.counters(),
            config=self._config_status,
            sources_healthy={"watch": self._watch.healthy, "storage": self._storage.healthy},
        )

    def _emit(self, fact: Fact) -> None:
        self.ledger.feed(fact)
        if isinstance(fact, (FileEvent, Progress)):
            name = self.ledger.directory_of(fact.path)
            if name is not None:
                self._writers.note(name, fact)

    def _overwrite_position(self, path: str, _inode: str) -> tuple[int, ProgressMethod] | None:
        name = self.ledger.directory_of(path)
        return self._writers.overwrite_position(name, path) if name is not None else None

    def _log_save(self, save: Save) -> None:
        level = logging.INFO if save.result == "complete" else logging.WARNING
        log_event(
            _LOG,
            level,
            "files of a finished save" if save.late else "save ended",
            dir=save.directory,
            step=save.step,
            result=save.result,
            reason=save.reason,
            duration_seconds=_rounded(save.duration_seconds),
            bytes=save.bytes,
            files=save.files,
            layout=save.layout,
            path=save.path,
            notes=",".join(save.notes) or None,
        )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _is_ignored(directory: DirectorySettings, path: str) -> bool:
    return is_noise(path) or is_ignored(path, directory.ignore)


@contextmanager
def recording_to(path: str | None, config: Config) -> Iterator[Recorder | None]:
    """Open the recording that was asked for; raises CkptExporterError if it cannot be written there."""
    if path is None:
        yield None
        return
    absolute = os.path.abspath(path)
    for directory in config.directories:
        if relative_to(absolute, fixed_prefix(directory.path)) is not None:
            raise CkptExporterError(f"cannot record to {path}: it lies below the watched {directory.path}")
    try:
        stream: IO[str] = open(path, "w", encoding="utf-8", buffering=1)
    except OSError as error:
        raise CkptExporterError(f"cannot record to {path}: {error.strerror}") from error
    with stream:
        yield Recorder(stream)


class _Signals:
    """Handlers that only set flags; the main loop acts on them."""

    def __init__(self) -> None:
        self.wake = threading.Event()
        self.stop = False
        self.reload = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGHUP, self._on_reload)

    def _on_stop(self, _number: int, _frame: FrameType | None) -> None:
        self.stop = True
        self.wake.set()

    def _on_reload(self, _number: int, _frame: FrameType | None) -> None:
        self.reload = True
        self.wake.set()


def run_exporter(
    config: Config,
    config_file: str | None,
    record_path: str | None,
    read: Callable[[], Config],
    until: Callable[[], bool] = lambda: False,
    started: Callable[[Exporter], None] = lambda _exporter: None,
) -> int:
    """Run until SIGTERM, SIGINT or ``until``; SIGHUP reads ``config_file`` again. Returns the exit status."""
    # Handlers of many threads take turns; a shorter turn keeps event times exact while a scrape encodes.
    sys.setswitchinterval(0.002)
    signals = _Signals()
    with recording_to(record_path, config) as recorder:
        exporter = Exporter(config, recorder=recorder)
        exporter.start()
        started(exporter)
        try:
            while not signals.stop and not until():
                signals.wake.wait(TICK_SECONDS)
                signals.wake.clear()
                if signals.reload:
                    signals.reload = False
                    if config_file is None:
                        log_event(_LOG, logging.WARNING, "nothing to reload: no --config.file was given")
                    else:
                        exporter.reload(read)
                exporter.tick()
        finally:
            exporter.stop()
    log_event(_LOG, logging.INFO, "stopped")
    return 0
