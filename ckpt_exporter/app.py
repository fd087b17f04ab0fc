"""Composition root: builds, starts, reloads and stops everything; the only module that sees all rooms."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ckpt_exporter import __version__
from ckpt_exporter.chronicle import Chronicle
from ckpt_exporter.config.fragments import Fragments
from ckpt_exporter.config.schema import Config, HistorySettings
from ckpt_exporter.detect.layouts import is_ignored, is_noise
from ckpt_exporter.detect.places import fixed_prefix, relative_to
from ckpt_exporter.errors import CkptExporterError
from ckpt_exporter.history.place import why_unusable
from ckpt_exporter.history.recorder import HistoryRecorder, Place
from ckpt_exporter.ledger import Ledger
from ckpt_exporter.logs import log_event
from ckpt_exporter.metrics.registry import build_registry
from ckpt_exporter.model import (
    ConfigStatus,
    DirectorySettings,
    Fact,
    FileEvent,
    GpuBackendStatus,
    Load,
    Progress,
    ProgressMethod,
    ReadEvent,
    RecordingStatus,
    Snapshot,
    StorageStatus,
    WebStatus,
)
from ckpt_exporter.recording import Recorder
from ckpt_exporter.sources.elsewhere import ElsewhereSource
from ckpt_exporter.sources.gpu_choice import GpuSourceMaker, choose_gpus
from ckpt_exporter.sources.gpu_runs import GpuRuns
from ckpt_exporter.sources.host_evidence import HostEvidenceSource
from ckpt_exporter.sources.ownership import GpuOwners, UnplacedLoads
from ckpt_exporter.sources.reading import ReadersSource
from ckpt_exporter.sources.storage import StorageSource
from ckpt_exporter.sources.watch import WatchSource
from ckpt_exporter.sources.who import WritersSource
from ckpt_exporter.systemd import ServiceManager, take_sockets
from ckpt_exporter.web.connections import Limits
from ckpt_exporter.web.pages.status import StatusPage
from ckpt_exporter.web.server import WebServer

LOG = logging.getLogger("ckpt_exporter")

# How often quiet saves are looked at; a save's times do not depend on it. Nothing can end while none is open,
# and the first to begin ends the long wait.
TICK_SECONDS = 0.25
JUDGING_TICK_SECONDS = 1.0
IDLE_TICK_SECONDS = 10.0
# A directory that is not there by then is a state like any other, and the start is over.
SETTLE_SECONDS = 5.0
# A clock that differs from the monotonic one by more than this since the start was set, not disciplined.
CLOCK_STEP_SECONDS = 0.5


class Exporter:
    """Everything that runs, wired together. ``clock`` is monotonic seconds.

    ``gpus`` replaces the configured source of GPU readings. ``wake`` is called when ``tick`` should come
    sooner than it said.
    """

    def __init__(
        self,
        config: Config,
        *,
        recorder: Recorder | None = None,
        gpus: tuple[str, GpuSourceMaker] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.config = config
        self._wake = wake
        self._clock = clock
        self._started = clock()
        self._recorder = recorder
        self._recording_status = RecordingStatus() if recorder is not None else None
        self._config_status = _loaded(config, ConfigStatus())
        self._main_refused = False
        gpu = config.gpu
        self._gpu_backend, make_gpus = gpus or choose_gpus(gpu.backend, gpu.sample_hz, gpu.url)
        self._chronicle = Chronicle(measures_gpus=make_gpus is not None)
        self.ledger = self._make_ledger(config)
        self._history = self._chronicle.history = _history(config, self.ledger)
        self._gpus = make_gpus(self.ledger.feed, self._is_saving) if make_gpus is not None else None
        owners = GpuOwners(self._gpu_processes, lambda: self._gpus is not None and self._gpus.mapping_known)
        self._gpu_runs = GpuRuns(owners.runs)
        self._unplaced = UnplacedLoads(owners.gpus_of)
        self._writers = WritersSource(self.ledger.feed, clock, owners.gpus_of)
        self._readers = ReadersSource(self.ledger.feed, clock)
        self._evidence = self._make_evidence(owners)
        self._watch = self._make_watch(config)
        self._elsewhere = ElsewhereSource(config.directories, config.detect, self.ledger.feed, clock=clock)
        self._storage = self._make_storage(config)
        self._web = self._make_web(config)

    def _make_ledger(self, config: Config) -> Ledger:
        return Ledger(
            config.directories,
            config.detect,
            unix_minus_t=time.time() - self._clock(),
            on_save=self._chronicle.add_save,
            on_fact=self._recorder.write if self._recorder is not None else None,
            on_bubble=self._chronicle.add_cost,
            on_begin=self._on_begin,
            on_load=self._on_load,
            on_remote_save=self._chronicle.add_save,
            on_low=self._on_low,
            on_cold_start=self._chronicle.add_cold_start,
        )

    def _make_evidence(self, owners: GpuOwners) -> HostEvidenceSource:
        return HostEvidenceSource(
            self.ledger.feed,
            self._clock,
            unexplained=lambda: self.ledger.unexplained(self._clock()),
            pids_by_gpu=lambda: self._gpu_processes() if self._gpus and self._gpus.mapping_known else {},
            gpus_of=owners.gpus_of,
        )

    def _make_watch(self, config: Config) -> WatchSource:
        return WatchSource(
            config.directories,
            self._emit,
            clock=self._clock,
            ignored=_is_ignored,
            overwrite_position=self._overwrite_position,
        )

    def _make_storage(self, config: Config) -> StorageSource:
        return StorageSource(
            config.directories,
            publish=self._on_storage,
            emit=self.ledger.feed,
            clock=self._clock,
            saving=lambda name: self._watch.saving(name) or self.ledger.saving(name),
        )

    def _make_web(self, config: Config) -> WebServer:
        return WebServer(
            config.web.listen_address,
            config.web.telemetry_path,
            build_registry(self.snapshot),
            StatusPage(
                partial(self.snapshot, timelines=True),
                started=self._started,
                telemetry_path=config.web.telemetry_path,
                node=socket.gethostname(),
            ),
            healthy=lambda: self._watch.healthy,
            ready=lambda: True,
            limits=Limits(requests=config.web.max_requests),
            config_file=config.web.config_file,
            sockets=take_sockets(os.environ) if config.web.systemd_socket else (),
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
        if self._history is not None:
            self._history.start()
        elif reason := _why_no_history(self.config.history):
            message = "no history is kept: set history.path to a file that can be written"
            log_event(LOG, logging.INFO, message, reason=reason)
        self._writers.replace_directories(directory.name for directory in self.config.directories)
        self._readers.replace_directories(directory.name for directory in self.config.directories)
        self._elsewhere.start()
        self._storage.start()
        if self._gpus is not None:
            self._evidence.start()
            self._gpus.start()
            self._gpu_runs.start()
        elif self.config.gpu.backend == "auto":
            log_event(LOG, logging.INFO, "no accelerator found: saves are measured, bubbles are not")
        self._watch.start()
        count = len(self.config.directories)
        log_event(
            LOG, logging.INFO, "listening", address=self.address, version=__version__, directories=count
        )

    def tick(self) -> float:
        """Let saves that have gone quiet end; return in how many seconds to come again."""
        self._follow_clock()
        saving = self.ledger.tick(self._clock())
        self._place_loads()
        recorder = self._recorder
        if recorder is not None and recorder.failed is not None:
            self._recorder = None
            self._recording_status = RecordingStatus(failed=recorder.failed)
            log_event(LOG, logging.ERROR, "recording stopped", reason=recorder.failed)
        if saving:
            return TICK_SECONDS
        busy = self.ledger.judging or self.ledger.loading or self.ledger.awaits_work
        return JUDGING_TICK_SECONDS if busy else IDLE_TICK_SECONDS

    def _follow_clock(self) -> None:
        before, unix, after = self._clock(), time.time(), self._clock()
        step = unix - before - self.ledger.unix_minus_t
        # A thread that had to wait between the readings has not seen a clock being set.
        if abs(step) > CLOCK_STEP_SECONDS and after - before < CLOCK_STEP_SECONDS / 2:
            log_event(LOG, logging.WARNING, "the clock was set", seconds=round(step, 3))
            self.ledger.set_clock(unix - before)

    def stop(self) -> None:
        """Stop everything, in less than two seconds; what is committed by now is counted."""
        self._watch.stop()
        self._writers.stop()
        self._readers.stop()
        self._evidence.stop()
        self._gpu_runs.stop()
        if self._gpus is not None:
            self._gpus.stop()
        self._elsewhere.stop(timeout=0.2)
        self._storage.stop(timeout=0.2)
        self.ledger.finish(self._clock())
        if self._history is not None:
            self._history.stop()
        if self._recorder is not None:
            self._recorder.stop(self._clock())
        self._web.stop()

    def reload(self, read: Callable[[], Config]) -> None:
        """Take over the configuration that ``read`` returns; a bad one leaves the old one in force."""
        self._web.reload()
        try:
            config = read()
        except CkptExporterError as error:
            self._main_refused = True
            self._config_status = replace(self._config_status, successful=False)
            for problem in str(error).splitlines():
                log_event(LOG, logging.ERROR, "configuration not reloaded", problem=problem)
            return
        for setting in ("web", "gpu", "history"):
            if getattr(config, setting) != getattr(self.config, setting):
                log_event(LOG, logging.WARNING, "setting takes effect after a restart only", key=setting)
        self._main_refused = False
        self._take_over(config)

    def follow(self, fragments: Fragments) -> None:
        """Take over what the fragments say now; the configuration file is not read."""
        config = fragments.reread()
        if config != self.config:
            self._take_over(config)

    def _take_over(self, config: Config) -> None:
        refused, self.config = self.config.refused, config
        self.ledger.reconfigure(config.directories, config.detect)
        self._writers.replace_directories(directory.name for directory in config.directories)
        self._readers.replace_directories(directory.name for directory in config.directories)
        self._storage.replace_directories(config.directories)
        self._elsewhere.update(config.directories, config.detect)
        self._watch.update(config.directories)
        self._config_status = _loaded(config, self._config_status, known=refused)
        if self._main_refused:
            self._config_status = replace(self._config_status, successful=False)
        log_event(LOG, logging.INFO, "configuration reloaded", directories=len(config.directories))

    def snapshot(self, *, timelines: bool = False) -> Snapshot:
        """Copy all state from memory; ``timelines`` are for people, a scrape needs none."""
        return replace(
            self.ledger.snapshot(self._clock(), timelines=timelines),
            watches=self._watch.statuses(),
            elsewhere=self._elsewhere.statuses(),
            counters=self._watch.counters(),
            config=self._config_status,
            gpu_backend=self._gpu_status(),
            gpu_runs=self._gpu_runs.by_gpu(),
            sources_healthy={"watch": self._watch.healthy, "storage": self._storage.healthy},
            history=self._history.status() if self._history is not None else None,
            recording=self._recording_status,
            web=self._web_status(),
        )

    def release_gpus(self) -> None:
        """Give all GPU handles back for a while, so that a reset, MIG change or driver unload can go on."""
        if self._gpus is not None:
            self._gpus.release()
            log_event(LOG, logging.INFO, "GPU handles released for a while", backend=self._gpu_backend)

    def report(self, service: ServiceManager) -> None:
        """Tell the service manager how it goes. What it could not mend by a restart is no reason for one."""
        watches = self._watch.statuses()
        up = sum(watch.up for watch in watches)
        service.update(
            ready=up == len(watches) or self._clock() - self._started >= SETTLE_SECONDS,
            healthy=self._watch.dispatching and self._storage.healthy,
            status=f"watching {up} of {len(watches)} directories" + (", saving" if self._is_saving() else ""),
        )

    def _web_status(self) -> WebStatus:
        read = self._web.config_status
        config = ConfigStatus(read.successful, read.success_unix) if read is not None else None
        return WebStatus(self._web.rejected, config)

    def _gpu_status(self) -> GpuBackendStatus | None:
        gpus = self._gpus
        if gpus is None:
            return None
        return GpuBackendStatus(self._gpu_backend, gpus.up, gpus.call_seconds, gpus.mapping_known)

    def _gpu_processes(self) -> dict[int, tuple[int, ...]]:
        return self._gpus.pids_by_gpu() if self._gpus is not None else {}

    def _is_saving(self) -> bool:
        return any(self._watch.saving(directory.name) for directory in self.config.directories)

    def _on_begin(self) -> None:
        self._wake()
        self._storage.wake()

    def _on_low(self) -> None:
        self._evidence.wake()

    def _emit(self, fact: Fact) -> None:
        if isinstance(fact, ReadEvent):
            self._emit_read(fact)
            return
        self.ledger.feed(fact)
        if isinstance(fact, (FileEvent, Progress)):
            name = self.ledger.directory_of(fact.path)
            if name is not None:
                self._readers.forget(name, fact.path or "")
                self._writers.note(name, fact)

    def _emit_read(self, event: ReadEvent) -> None:
        name = self.ledger.directory_of(event.path)
        if name is not None and not self._readers.is_own(name, event):
            self.ledger.feed(event)
            self._readers.note(name, event)

    def _overwrite_position(self, path: str, _inode: str) -> tuple[int, ProgressMethod] | None:
        name = self.ledger.directory_of(path)
        return self._writers.overwrite_position(name, path) if name is not None else None

    def _on_storage(self, status: StorageStatus) -> None:
        self.ledger.set_storage(status)
        self._elsewhere.note_mount(status)

    def _on_load(self, load: Load) -> None:
        self._chronicle.add_load(load)
        if self._gpus is not None:
            self._unplaced.add(load)

    def _place_loads(self) -> None:
        for placed in self._unplaced.place(self._clock()):
            self.ledger.feed(placed)


def _loaded(config: Config, before: ConfigStatus, known: tuple[str, ...] = ()) -> ConfigStatus:
    """Tell of refused fragments, each once; while there is one, the configuration is not as asked for."""
    for problem in config.refused:
        if problem not in known:
            log_event(LOG, logging.ERROR, "configuration fragment refused", problem=problem)
    if config.refused:
        return replace(before, successful=False)
    return ConfigStatus(successful=True, success_unix=time.time())


def _is_ignored(directory: DirectorySettings, path: str) -> bool:
    return is_noise(path) or is_ignored(path, directory.ignore)


def _why_no_history(settings: HistorySettings) -> str | None:
    """Say why a default place cannot be used: that means no history, and is no error."""
    if settings.path is None or settings.path != HistorySettings().path:
        return None
    return why_unusable(settings.path)


def _history(config: Config, ledger: Ledger) -> HistoryRecorder | None:
    """Make what keeps the history, if one is to be kept.

    Raises CkptExporterError for a place that is watched: the history would be seen as a checkpoint.
    """
    settings = config.history
    if settings.path is None or _why_no_history(settings) is not None:
        return None
    refuse_watched("keep the history in", settings.path, settings.path, config)
    # In a container the host name is the container's; the node's name comes from its specification.
    node = os.environ.get("NODE_NAME") or socket.gethostname()
    place = Place(settings.path, node, settings.retention_seconds, settings.max_bytes)
    return HistoryRecorder(place, ledger)


def refuse_watched(what: str, shown: str, path: str, config: Config) -> None:
    """Raise CkptExporterError for a file of our own that would be taken for a checkpoint's."""
    for directory in config.directories:
        if relative_to(path, fixed_prefix(directory.path)) is not None:
            raise CkptExporterError(f"cannot {what} {shown}: it lies below the watched {directory.path}")
