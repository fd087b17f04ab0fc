"""Which GPUs belong to the run that writes or loads: processes on GPUs joined with its processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

from ckpt_exporter.bubble.cold_start import WAIT_SECONDS
from ckpt_exporter.model import Load, LoadGpus
from ckpt_exporter.sources.procfs import read_process
from ckpt_exporter.sources.runs import RunIdentity, identify_run

MAX_REMEMBERED = 1024
MAX_UNPLACED = 16


class GpuOwners:
    """Join by run, not by process: a writer is often a child or a sibling of the process on the GPU.

    ``pids_by_gpu`` gives the compute processes of each GPU, ``mapping_known`` whether those pids are this
    namespace's (a container needs hostPID for that).
    """

    def __init__(
        self,
        pids_by_gpu: Callable[[], Mapping[int, tuple[int, ...]]],
        mapping_known: Callable[[], bool],
        *,
        proc: str = "/proc",
    ) -> None:
        self._pids_by_gpu = pids_by_gpu
        self._mapping_known = mapping_known
        self._proc = proc
        self._runs: dict[tuple[int, int], RunIdentity] = {}

    def gpus_of(self, pids: Iterable[int]) -> tuple[int, ...] | None:
        """Return the indices of the GPUs that hold a process of the same run as ``pids``.

        None where it cannot be told: unknown pids, no processes on any GPU, or none of this run's.
        """
        if not self._mapping_known():
            return None
        by_gpu = self._pids_by_gpu()
        wanted = {key for pid in pids if (key := _key(self._identify(pid))) is not None}
        found = tuple(
            sorted(
                gpu
                for gpu, holders in by_gpu.items()
                if any((key := _key(self._identify(pid))) is not None and key in wanted for pid in holders)
            )
        )
        return found or None

    def runs(self) -> dict[int, RunIdentity]:
        """Return the run that holds each GPU, by index.

        A GPU is left out that nobody holds, that several runs hold, or one of whose processes can't be seen:
        it might be another run's.
        """
        if not self._mapping_known():
            return {}
        found = {}
        for gpu, holders in self._pids_by_gpu().items():
            owners = {_key(owner): owner for pid in holders for owner in (self._identify(pid),)}
            if len(owners) == 1 and (owner := owners.popitem()[1]) is not None:
                found[gpu] = owner
        return found

    def _identify(self, pid: int) -> RunIdentity | None:
        process = read_process(pid, self._proc)
        if process is None:
            return None
        # A pid that is used again belongs to another process: its start time differs.
        known = self._runs.get((pid, process.started))
        if known is None:
            if len(self._runs) >= MAX_REMEMBERED:
                self._runs.clear()
            known = self._runs[pid, process.started] = identify_run((pid,), proc=self._proc)
        return None if known.root_pid is None else known


def _key(run: RunIdentity | None) -> tuple[str, str] | None:
    """Name a run: its scheduler's job, or else the topmost process of its tree."""
    if run is None:
        return None
    return ("process", str(run.root_pid)) if run.run_id is None else (run.scheduler or "", run.run_id)


class UnplacedLoads:
    """Loads whose GPUs have yet to be found; a process may first load, and take its GPU then.

    ``gpus_of`` gives the GPUs of the run of some processes. Loads may be added from any thread.
    """

    def __init__(self, gpus_of: Callable[[Iterable[int]], tuple[int, ...] | None]) -> None:
        self._gpus_of = gpus_of
        self._loads: deque[Load] = deque(maxlen=MAX_UNPLACED)

    def add(self, load: Load) -> None:
        """Look for the GPUs of a load from now on, if its processes are known."""
        if load.pids:
            self._loads.append(load)

    def place(self, now: float) -> Iterator[LoadGpus]:
        """Yield the GPUs that are found by now; give up loads that ended too long ago."""
        for _ in range(len(self._loads)):
            load = self._loads.popleft()
            gpus = self._gpus_of(load.pids)
            if gpus:
                yield LoadGpus(now, load.directory, load.path, load.end, gpus)
            elif now < load.end + WAIT_SECONDS:
                self._loads.append(load)
