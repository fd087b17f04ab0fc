"""Why a run's GPUs stand still, as its processes and the host show it: looked at only while they do."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ckpt_exporter.logs import log_event
from ckpt_exporter.model import Fact, HostEvidence
from ckpt_exporter.sources.pressure import Pressure, Traffic, read_pressure
from ckpt_exporter.sources.run_processes import RunProcesses, Threads, Totals

_LOG = logging.getLogger("ckpt_exporter.evidence")

LOOK_SECONDS: Final = 1.0
# In a stretch of minutes, looks are as good further apart.
SLOW_LOOK_SECONDS: Final = 10.0
QUICK_LOOKS: Final = 200
# Looks may take this share of a processor, and the first of a stretch so many seconds of it at once.
COST_SHARE: Final = 0.01
FREE_COST_SECONDS: Final = 0.1
MAX_RUNS: Final = 16


@dataclass(frozen=True, slots=True)
class _Look:
    """Totals at one moment."""

    t: float
    totals: Mapping[int, Totals]
    threads: Threads
    pressure: Pressure | None
    network: int | None


class HostLooks:
    """Compare one look at a run and its host with the one before."""

    def __init__(
        self, clock: Callable[[], float], traffic: Traffic, *, proc: str = "/proc", sys: str = "/sys"
    ) -> None:
        self._clock, self._traffic, self._proc, self._sys = clock, traffic, proc, sys
        self._processes = RunProcesses(clock, proc)
        self._counts_delays = _counts_delays(proc)
        self._last: _Look | None = None

    def look(self, gpus: tuple[int, ...], holders: Collection[int]) -> HostEvidence | None:
        """Look at a run, by the processes that hold its GPUs; None the first time: nothing to compare."""
        before, self._last = self._last, self._take(holders)
        return None if before is None else self._compared(before, self._last, gpus, holders)

    def forget(self) -> None:
        """Begin anew with the next look: the time up to then is not of interest."""
        self._last = None

    def _take(self, holders: Collection[int]) -> _Look:
        pids = self._processes.find(holders)
        totals = self._processes.totals(pids)
        threads = self._processes.threads(totals)
        pressure = read_pressure(min(holders, default=None), self._proc, self._sys)
        return _Look(self._clock(), totals, threads, pressure, self._traffic.read())

    def _compared(
        self, before: _Look, now: _Look, gpus: tuple[int, ...], holders: Collection[int]
    ) -> HostEvidence:
        told = HostEvidence(
            t=now.t,
            since=before.t,
            gpus=gpus,
            network_bytes=_bytes(before.network, now.network),
            usual_network_bytes_per_second=self._traffic.usual,
        )
        told = _with_pressure(told, before.pressure, now.pressure)
        pairs = {
            pid: (before.totals[pid], after)
            for pid, after in now.totals.items()
            if pid in before.totals and before.totals[pid].started == after.started
        }
        if not pairs:
            return told
        waited, delays = now.threads.delays, before.threads.delays
        io_wait = sum(waited[thread] - delays[thread] for thread in waited.keys() & delays.keys())
        return replace(
            _with_processes(told, pairs, holders),
            waiting=now.threads.waiting,
            worker_waiting=now.threads.worker_waiting,
            runnable=now.threads.runnable,
            io_wait_seconds=io_wait if self._counts_delays or io_wait > 0 else None,
        )


def _with_pressure(told: HostEvidence, before: Pressure | None, now: Pressure | None) -> HostEvidence:
    if before is None or now is None or before.of != now.of:
        return told
    return replace(
        told,
        pressure_of=now.of,
        io_pressure_seconds=_grown(before.io, now.io),
        memory_pressure_seconds=_grown(before.memory, now.memory),
        cpu_pressure_seconds=_grown(before.cpu, now.cpu),
    )


def _with_processes(
    told: HostEvidence, pairs: Mapping[int, tuple[Totals, Totals]], holders: Collection[int]
) -> HostEvidence:
    used = {pid: now.cpu_seconds - before.cpu_seconds for pid, (before, now) in pairs.items()}
    readable = [(before, now) for before, now in pairs.values() if _readable(before) and _readable(now)]
    return replace(
        told,
        processes=len(pairs),
        unread=len(pairs) - len(readable),
        cpu_seconds=round(sum(used.values()), 3),
        worker_cpu_seconds=round(sum(used[pid] for pid in used.keys() - set(holders)), 3),
        read_bytes=_sum((b.read, n.read) for b, n in readable),
        called_bytes=_sum((b.called, n.called) for b, n in readable),
        written_bytes=_sum((b.written, n.written) for b, n in readable),
    )


def _readable(totals: Totals) -> bool:
    return None not in (totals.read, totals.called, totals.written)


def _sum(pairs: Iterable[tuple[int | None, int | None]]) -> int | None:
    grown = [max(0, now - before) for before, now in pairs if before is not None and now is not None]
    return sum(grown) if grown else None


def _grown(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None or now < before else round(now - before, 6)


def _bytes(before: int | None, now: int | None) -> int | None:
    return None if before is None or now is None or now < before else now - before


def _counts_delays(proc: str) -> bool:
    """Tell whether the kernel counts how long tasks wait for I/O; most do only where asked to."""
    try:
        with open(f"{proc}/sys/kernel/task_delayacct", encoding="ascii") as stream:
            return stream.read().strip() == "1"
    except (OSError, ValueError):
        return False


class HostEvidenceSource:
    """A thread that looks at hosts while GPUs of runs work little and no save explains it, and else sleeps.

    ``unexplained`` returns those GPUs, None when all GPUs work. ``pids_by_gpu`` and ``gpus_of`` tell whose
    they are. ``wake`` is called when a GPU begins to work little.
    """

    def __init__(
        self,
        emit: Callable[[Fact], None],
        clock: Callable[[], float],
        *,
        unexplained: Callable[[], tuple[int, ...] | None],
        pids_by_gpu: Callable[[], Mapping[int, tuple[int, ...]]],
        gpus_of: Callable[[Iterable[int]], tuple[int, ...] | None],
        proc: str = "/proc",
        sys: str = "/sys",
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._emit, self._clock, self._look_seconds = emit, clock, look_seconds
        self._unexplained, self._pids_by_gpu, self._gpus_of = unexplained, pids_by_gpu, gpus_of
        self._proc, self._sys = proc, sys
        self._traffic = Traffic(clock, proc, sys)
        self._looks: dict[tuple[int, ...], HostLooks] = {}
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, asleep."""
        self._thread = threading.Thread(target=self._run, name="evidence", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Begin to look."""
        self._wake.set()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(0.2)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait()
            self._wake.clear()
            try:
                self._follow()
            except Exception as error:  # noqa: BLE001 (thread boundary: causes are less sure, nothing else)
                log_event(_LOG, logging.ERROR, "looking at the host failed", error=error)
                self._stopping.wait(SLOW_LOOK_SECONDS)

    def _follow(self) -> None:
        """Look until all GPUs work again."""
        self._traffic.still()
        began, cost_before, number = self._clock(), time.thread_time(), 0
        while not self._stopping.is_set() and (low := self._unexplained()) is not None:
            number += self._look_at(self._runs(low))
            cost = time.thread_time() - cost_before
            due = began + (cost - FREE_COST_SECONDS) / COST_SHARE
            usual = self._look_seconds if number <= QUICK_LOOKS else SLOW_LOOK_SECONDS
            self._stopping.wait(max(usual, due - self._clock()))
        self._look_at(())
        self._traffic.going()

    def _look_at(self, runs: Collection[tuple[int, ...]]) -> bool:
        """Look at these runs, and at no other: what is known of others is too old by then."""
        self._looks = {gpus: self._looks.get(gpus) or self._new() for gpus in (*self._looks, *runs)}
        self._looks = dict([*self._looks.items()][-MAX_RUNS:])
        for gpus, run in self._looks.items():
            if gpus in runs:
                self._look(gpus, run)
            else:
                run.forget()
        return bool(runs)

    def _new(self) -> HostLooks:
        return HostLooks(self._clock, self._traffic, proc=self._proc, sys=self._sys)

    def _runs(self, low: Iterable[int]) -> list[tuple[int, ...]]:
        """Return the GPUs of each run that some GPUs belong to; empty: a run that is not known."""
        by_gpu = self._pids_by_gpu()
        found: list[tuple[int, ...]] = []
        for gpu in low:
            if not any(gpu in gpus for gpus in found):
                holders = by_gpu.get(gpu, ())
                gpus = (self._gpus_of(holders) if holders else None) or ()
                found += [gpus] if gpus not in found else []
        return found[:MAX_RUNS]

    def _look(self, gpus: tuple[int, ...], run: HostLooks) -> None:
        by_gpu = self._pids_by_gpu()
        fact = run.look(gpus, {pid for gpu in gpus for pid in by_gpu.get(gpu, ())})
        if fact is not None:
            self._emit(fact)
