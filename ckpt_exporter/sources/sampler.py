"""Accelerators: facts from a sampler in a process of its own, and that process's life."""

from __future__ import annotations

import logging
import os
import select
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ckpt_exporter.logs import log_event
from ckpt_exporter.model import Fact, GpuInfo, GpuSample, GpuSet, Histogram
from ckpt_exporter.sources.gpus import CallHistogram, SourceThread, pids_by_index
from ckpt_exporter.sources.sampler_process import ChildProcess

_LOG = logging.getLogger("ckpt_exporter.gpu")

# Failures of what is mounted into a container or sits in a process: a fresh container may cure them.
CURED_BY_RESTART = frozenset({"unknown_error", "version_mismatch", "stalled", "crashed"})
MAX_STUCK = 2
WAKE_SECONDS = 1.0  # how late a save's beginning is noticed where readings come seldom


@dataclass(frozen=True, slots=True)
class SamplerSettings:
    """Intervals in seconds, rates in Hz; ``environment`` is added to the sampler's.

    ``url``, ``poll_seconds`` and ``stale_seconds`` are for the backend that reads another exporter: where its
    metrics are, how often it is asked at most, and after how long of nothing new a GPU counts as unread.
    """

    saving_hz: float = 5.0
    identity_seconds: float = 60.0
    process_seconds: float = 10.0
    hang_seconds: float = 10.0
    init_hang_seconds: float = 120.0  # without persistence mode each GPU takes seconds to wake
    retry_seconds: float = 5.0
    retry_max_seconds: float = 300.0
    library_retry_seconds: float = 60.0
    stable_seconds: float = 60.0  # up for so long, the next failure is a new one
    unhealthy_seconds: float = 300.0
    release_seconds: float = 600.0
    url: str | None = None
    # By default no exporter makes its figures anew more often than each second, or less than each minute.
    poll_seconds: float = 1.0
    stale_seconds: float = 65.0
    environment: Mapping[str, str] = field(default_factory=dict)


class SampledGpus(SourceThread):
    """Facts of a backend's GPUs for ``emit``, which one thread of this source calls and must return at once.

    Whatever fails is a state, told by ``state``, ``up`` and ``healthy`` and one log line per change:
    the daemon goes on without GPU figures, and the sampler is started anew with growing pauses. After
    ``release`` it stays away until ``resume``, or for ``release_seconds``.
    """

    def __init__(
        self,
        emit: Callable[[Fact], None],
        *,
        backend: str = "nvml",
        clock: Callable[[], float] = time.monotonic,
        sample_hz: float = 2.0,
        saving: Callable[[], bool],
        settings: SamplerSettings | None = None,
    ) -> None:
        super().__init__("sampler")
        self._emit = emit
        self._backend = backend
        self._clock = clock
        self._sample_hz = sample_hz
        self._saving = saving
        self._settings = settings or SamplerSettings()
        self._calls = CallHistogram()
        self._gpus: tuple[GpuInfo, ...] = ()
        self._errors: dict[tuple[int, str], str] = {}
        self._pids: dict[int, tuple[int, ...]] = {}
        self._mapping_known = False
        self._collected = 0
        self._state = "stopped"
        self._down_since: float | None = None
        self._up_since = float("-inf")
        self._child: ChildProcess | None = None
        self._stuck: list[ChildProcess] = []
        self._told_saving = False
        self._last_line = 0.0
        self._initialising = False
        self._failures = 0
        self._start_at = float("-inf")
        self._released_until: float | None = None
        self._waker = _Waker()

    # --- for everyone

    def start(self) -> None:
        """Start sampling in a thread and a child process of its own."""
        self._down_since = self._clock()
        super().start()

    def _wake(self) -> None:
        self._waker.wake()

    def _stopped(self) -> None:
        self._waker.close()

    def _set_released(self, *, released: bool) -> None:
        # Whoever forgets to resume gets the GPUs back after a while.
        self._released_until = self._clock() + self._settings.release_seconds if released else None

    @property
    def state(self) -> str:
        """One word: ``up``, ``starting``, ``released``, ``stopped`` or what keeps readings from arriving."""
        return self._state

    @property
    def up(self) -> bool:
        """Whether readings arrive."""
        return self._state == "up"

    @property
    def healthy(self) -> bool:
        """False once a failure that a new container may cure has lasted for ``unhealthy_seconds``."""
        since = self._down_since
        lasting = since is not None and self._clock() - since > self._settings.unhealthy_seconds
        return not (lasting and self._state in CURED_BY_RESTART)

    @property
    def stalled(self) -> bool:
        """Whether the driver kept the sampler from answering, and no new one has come up since."""
        return self._state == "stalled"

    @property
    def collected(self) -> int:
        """Readings of single GPUs so far."""
        return self._collected

    @property
    def call_seconds(self) -> Histogram:
        """Durations of driver calls so far, over all sampler processes."""
        return self._calls.histogram()

    @property
    def gpus(self) -> tuple[GpuInfo, ...]:
        """The GPUs last seen."""
        return self._gpus

    @property
    def sampler_pid(self) -> int | None:
        """Process id of the sampler while there is one."""
        child = self._child
        return None if child is None else child.pid

    def pids_by_gpu(self) -> dict[int, tuple[int, ...]]:
        """Return the compute processes last seen on each GPU, by index."""
        return dict(self._pids)

    @property
    def mapping_known(self) -> bool:
        """Whether those pids exist here: not so in a pid namespace of one's own."""
        return self._mapping_known

    # --- the thread

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._guarded_step()
        self._end_child()
        self._state = "stopped"

    def _guarded_step(self) -> None:
        try:
            self._step()
        except Exception as error:  # noqa: BLE001 (thread boundary: the GPU part may fail, the daemon not)
            log_event(_LOG, logging.ERROR, "GPU sampling failed", error=error)
            self._fail("crashed", str(error))

    def _step(self) -> None:
        self._stuck = [child for child in self._stuck if child.status is None]
        if self._is_released():
            self._stay_away()
        elif self._child is None and self._clock() >= self._start_at and len(self._stuck) < MAX_STUCK:
            self._spawn()
        child = self._child
        self._waker.wait(None if child is None else child.descriptor, WAKE_SECONDS)
        if child is None:
            return
        self._tell_saving(child)
        messages, more = child.read()
        for message in messages:
            if self._child is child and not self._stopping.is_set():
                self._take(message)
        if self._child is child:
            self._check(child, more=more)

    def _is_released(self) -> bool:
        until = self._released_until
        if until is not None and self._clock() >= until:
            self._released_until = None
        return self._released_until is not None

    def _stay_away(self) -> None:
        if self._state != "released":
            self._end_child()
            self._go_down("released", "GPU handles are released")
            self._failures, self._start_at = 0, float("-inf")
        self._away.set()

    def _spawn(self) -> None:
        settings = self._settings
        wanted = {
            "backend": self._backend,
            "url": settings.url,
            "poll_seconds": settings.poll_seconds,
            "stale_seconds": settings.stale_seconds,
            "sample_hz": self._sample_hz,
            "saving_hz": settings.saving_hz,
            "identity_seconds": settings.identity_seconds,
            "process_seconds": settings.process_seconds,
        }
        self._child = ChildProcess(wanted, settings.environment)
        self._told_saving, self._initialising, self._last_line = False, True, self._clock()
        if self._state in ("stopped", "released"):
            self._state = "starting"

    def _tell_saving(self, child: ChildProcess) -> None:
        saving = self._saving()
        if saving != self._told_saving:
            self._told_saving = saving
            child.tell(saving=saving)

    def _check(self, child: ChildProcess, *, more: bool) -> None:
        """Notice that the sampler has ended or does not answer."""
        settings = self._settings
        allowed = settings.init_hang_seconds if self._initialising else settings.hang_seconds
        if not more:
            self._fail("crashed", f"the sampler ended with status {child.status}")
        elif self._clock() - self._last_line > allowed:
            self._fail("stalled", f"the driver has not answered for {allowed:g} s")

    # --- messages

    def _take(self, message: Mapping[str, Any]) -> None:
        self._last_line = self._clock()
        kind = message["kind"]
        if kind == "tick":
            self._take_tick(message)
        elif kind == "gpus":
            self._initialising = False
            self._gpus = tuple(GpuInfo(**identity) for identity in message["gpus"])
            self._tell(GpuSet(t=message["t"], gpus=self._gpus))
            if not self._gpus:
                self._go_up()
        elif kind == "pids":
            self._pids, self._mapping_known = pids_by_index(message["pids"]), message["known"]
        elif kind == "down":
            self._fail(message["state"], message["text"])

    def _take_tick(self, message: Mapping[str, Any]) -> None:
        self._calls.add(message["calls"], message["call_seconds"])
        for t, gpu, *told in message["rows"]:
            sample = GpuSample(t, gpu, self._gpus[gpu].uuid, *told)
            if sample.error is None:
                self._go_up()
            self._collected += 1
            self._note_error(sample)
            self._tell(sample)

    def _note_error(self, sample: GpuSample) -> None:
        key = (sample.gpu, sample.uuid)
        if sample.error is None:
            if self._errors.pop(key, None) is not None:
                log_event(_LOG, logging.INFO, "GPU can be read again", gpu=sample.gpu, uuid=sample.uuid)
        elif key not in self._errors:
            self._errors[key] = sample.error
            log_event(
                _LOG,
                logging.WARNING,
                "GPU can't be read",
                gpu=sample.gpu,
                uuid=sample.uuid,
                reason=sample.error,
            )

    def _tell(self, fact: Fact) -> None:
        try:
            self._emit(fact)
        except Exception as error:  # noqa: BLE001 (room boundary: the next reading may find a taker)
            log_event(_LOG, logging.ERROR, "a GPU reading was not taken in", error=error)

    # --- states

    def _go_up(self) -> None:
        if self._state == "up":
            if self._failures and self._clock() - self._up_since > self._settings.stable_seconds:
                self._failures = 0
            return
        self._state, self._down_since, self._up_since = "up", None, self._clock()
        driver = self._gpus[0].driver if self._gpus else ""
        log_event(_LOG, logging.INFO, "GPU sampling is up", gpus=len(self._gpus), driver=driver)

    def _fail(self, state: str, reason: str) -> None:
        """End the sampler and plan the next one, after a pause that doubles with each failure."""
        self._end_child()
        settings = self._settings
        pause = min(settings.retry_max_seconds, settings.retry_seconds * 2 ** min(self._failures, 16))
        if state == "library_missing":  # a machine without GPUs: each attempt costs a process for nothing
            pause = max(pause, settings.library_retry_seconds)
        self._failures += 1
        self._start_at = self._clock() + pause
        self._go_down(state, reason)

    def _go_down(self, state: str, reason: str) -> None:
        before = self._state
        if self._down_since is None:
            self._down_since = self._clock()
        if before != state:
            level = logging.INFO if state in ("released", "library_missing") else logging.WARNING
            log_event(_LOG, level, "GPU sampling is down", state=state, reason=reason)
        self._errors.clear()
        if before == "up":
            # Nobody shall take the last readings for present ones.
            now = self._clock()
            for gpu in self._gpus:
                self._tell(GpuSample(t=now, gpu=gpu.gpu, uuid=gpu.uuid, error=state))
        self._state = state  # last: who sees it finds the readings told

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None and not child.end():
            # In the driver for good (state D): it goes when the driver lets it go.
            self._stuck.append(child)
        self._pids, self._mapping_known = {}, False


class _Waker:
    """Waits for a descriptor, and can be woken from another thread."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._closed = False

    def wake(self) -> None:
        """End the present wait, or the next one."""
        if not self._closed:
            try:
                os.write(self._write, b"w")
            except BlockingIOError:
                return

    def wait(self, descriptor: int | None, seconds: float) -> None:
        """Wait until the descriptor has data, ``wake`` was called, or the time is over."""
        poll = select.poll()
        for wanted in (self._read, descriptor):
            if wanted is not None:
                poll.register(wanted, select.POLLIN)
        ready = {found for found, _ in poll.poll(seconds * 1000)}
        if self._read in ready:
            os.read(self._read, 4096)

    def close(self) -> None:
        """Give both ends back."""
        if not self._closed:
            self._closed = True
            os.close(self._read)
            os.close(self._write)
