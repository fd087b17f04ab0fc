"""The daemon's life: signals, its own files, and the loop that lets time pass."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from ckpt_exporter.app import LOG, TICK_SECONDS, Exporter, refuse_watched
from ckpt_exporter.config.fragments import Fragments
from ckpt_exporter.config.schema import Config
from ckpt_exporter.errors import CkptExporterError
from ckpt_exporter.logs import log_event
from ckpt_exporter.recording import Recorder
from ckpt_exporter.sources.following import Following
from ckpt_exporter.sources.gpu_choice import GpuSourceMaker
from ckpt_exporter.systemd import ServiceManager


@contextmanager
def recording_to(path: str | None, config: Config) -> Iterator[Recorder | None]:
    """Open the recording that was asked for; raises CkptExporterError if it cannot be written there."""
    if path is None:
        yield None
        return
    refuse_watched("record to", path, os.path.abspath(path), config)
    try:
        opened = open(path, "w", encoding="utf-8", opener=_open_recording)  # noqa: SIM115 (closed below)
    except OSError as error:
        raise CkptExporterError(f"cannot record to {path}: {error.strerror}") from error
    with opened:
        yield Recorder(opened)


def _open_recording(path: str, flags: int) -> int:
    """Make a recording that its owner's group may read; no link is followed but below /dev."""
    return os.open(path, flags | (0 if path.startswith("/dev/") else os.O_NOFOLLOW), 0o640)


@contextmanager
def _following(fragments: Fragments | None, notify: Callable[[], None]) -> Iterator[None]:
    """Look after the fragments meanwhile."""
    if fragments is None:
        yield
        return
    following = Following(fragments.due, notify)
    following.start()
    try:
        yield
    finally:
        following.stop()


class Signals:
    """Handlers that only set flags; the main loop acts on them."""

    def __init__(self) -> None:
        self.wake = threading.Event()
        self.stop = False
        self.reload = False
        self.release = False
        self.follow = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGHUP, self._on_reload)
        signal.signal(signal.SIGUSR1, self._on_release)
        # They may have been kept waiting until here.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP, signal.SIGUSR1})

    def on_change(self) -> None:
        """Note that the configuration's fragments have changed."""
        self.follow = True
        self.wake.set()

    def _on_stop(self, _number: int, _frame: FrameType | None) -> None:
        self.stop = True
        self.wake.set()

    def _on_release(self, _number: int, _frame: FrameType | None) -> None:
        self.release = True
        self.wake.set()

    def _on_reload(self, _number: int, _frame: FrameType | None) -> None:
        self.reload = True
        self.wake.set()


def run_exporter(
    config: Config,
    config_file: str | None,
    record_path: str | None,
    read: Callable[[], Config],
    *,
    ends_at: float = float("inf"),
    started: Callable[[Exporter], None] = lambda _exporter: None,
    gpus: tuple[str, GpuSourceMaker] | None = None,
    fragments: Fragments | None = None,
) -> int:
    """Run until SIGTERM, SIGINT or ``ends_at`` (monotonic seconds); return the exit status.

    SIGHUP reads ``config_file`` again, SIGUSR1 releases all GPU handles for a while. ``fragments`` are taken
    over when they change.
    """
    # Handlers of many threads take turns; a shorter turn keeps event times exact while a scrape encodes.
    sys.setswitchinterval(0.002)
    signals = Signals()
    reloadable = config_file is not None or config.include.directory is not None
    service = ServiceManager(os.environ)
    with recording_to(record_path, config) as recorder, _following(fragments, signals.on_change):
        exporter = Exporter(config, recorder=recorder, gpus=gpus, wake=signals.wake.set)
        exporter.start()
        # What is loaded by now stays: nothing to look through again in every collection of garbage.
        gc.freeze()
        started(exporter)
        wait_seconds = TICK_SECONDS
        try:
            while not signals.stop and (left := ends_at - time.monotonic()) > 0:
                signals.wake.wait(min(wait_seconds, left))
                signals.wake.clear()
                if signals.release:
                    signals.release = False
                    exporter.release_gpus()
                if signals.reload:
                    signals.reload = False
                    if reloadable:
                        service.reloading()
                        exporter.reload(read)
                    else:
                        log_event(LOG, logging.WARNING, "nothing to reload: no --config.file was given")
                if signals.follow and fragments is not None:
                    signals.follow = False
                    exporter.follow(fragments)
                wait_seconds = min(exporter.tick(), service.pause_seconds)
                exporter.report(service)
        finally:
            service.stopping()
            exporter.stop()
    log_event(LOG, logging.INFO, "stopped")
    return 0
