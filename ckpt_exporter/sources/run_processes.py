"""The processes of a run, from those that hold its GPUs, and what they do, look by look."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from ckpt_exporter.sources.procfs import list_pids, read_bytes, read_process, read_transfers
from ckpt_exporter.sources.runs import identify_run

# Workers begin with an epoch, and GPUs wait for them; looking for them means reading a line of every process.
SEARCH_SECONDS: Final = 3.0
MAX_PROCESSES: Final = 512
# A thread costs 25 us on a busy host; workers come first, and most of them have one thread at work.
MAX_THREADS: Final = 192
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Totals:
    """What one process did since its start; ``started`` tells a reused pid apart. None: may not be read."""

    started: int
    cpu_seconds: float
    read: int | None
    called: int | None
    written: int | None


@dataclass(frozen=True, slots=True)
class Threads:
    """How many threads were in uninterruptible sleep, and how many of those without a GPU.

    ``runnable``: how many of the latter ran or wanted to. ``delays`` are seconds that each thread, named by
    its id and start, has waited for I/O since it began; they stay 0 where the kernel does not count them.
    """

    waiting: int
    worker_waiting: int
    runnable: int
    delays: dict[tuple[int, int], float]


class RunProcesses:
    """A run's processes on this host: all below its topmost one, its data workers among them."""

    def __init__(self, clock: Callable[[], float], proc: str) -> None:
        self._clock, self._proc = clock, proc
        self._pids: tuple[int, ...] = ()
        self._holders: frozenset[int] = frozenset()
        self._root: int | None = None
        self._search_at = float("-inf")

    def find(self, holders: Collection[int]) -> tuple[int, ...]:
        """Return the run's processes, those without a GPU first; ``holders`` hold its GPUs."""
        now = self._clock()
        if frozenset(holders) != self._holders:
            self._holders, self._search_at = frozenset(holders), now
            self._root = identify_run(self._holders, proc=self._proc).root_pid
        if now >= self._search_at:
            self._search_at = now + SEARCH_SECONDS
            self._pids = self._search()
        return self._pids

    def _search(self) -> tuple[int, ...]:
        if not self._holders:
            return ()
        children: dict[int, list[int]] = {}
        for pid in list_pids(self._proc):
            process = read_process(pid, self._proc)
            if process is not None and process.alive:
                children.setdefault(process.parent, []).append(pid)
        tops = [*self._holders, *([self._root] if self._root is not None and self._root > 1 else [])]
        children.pop(os.getpid(), None)  # what this program starts is no part of a run
        found = self._below(tops, children) - {os.getpid()}
        workers = sorted(found - self._holders)
        return tuple([*workers, *sorted(found & self._holders)][:MAX_PROCESSES])

    @staticmethod
    def _below(tops: Iterable[int], children: dict[int, list[int]]) -> set[int]:
        found: set[int] = set()
        left = list(tops)
        while left:
            pid = left.pop()
            if pid not in found:
                found.add(pid)
                left += children.get(pid, ())
        return found

    def totals(self, pids: Iterable[int]) -> dict[int, Totals]:
        """Read what each process did since its start; those that ended are left out."""
        found = {}
        for pid in pids:
            fields = _stat(f"{self._proc}/{pid}/stat")
            if len(fields) < 20:
                continue
            moved = read_transfers(pid, self._proc)
            found[pid] = Totals(
                started=int(fields[19]),
                cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICKS,
                called=moved[0] if moved else None,
                read=moved[1] if moved else None,
                written=moved[2] if moved else None,
            )
        return found

    def threads(self, pids: Iterable[int]) -> Threads:
        """Look at the threads of some processes, at most at ``MAX_THREADS``."""
        waiting, by_workers = 0, {b"D": 0, b"R": 0}
        delays: dict[tuple[int, int], float] = {}
        for pid in pids:
            for thread in _threads(f"{self._proc}/{pid}/task"):
                if len(delays) >= MAX_THREADS:
                    return Threads(waiting, by_workers[b"D"], by_workers[b"R"], delays)
                fields = _stat(f"{self._proc}/{pid}/task/{thread}/stat")
                if len(fields) > 39:
                    waiting += fields[0] == b"D"
                    if pid not in self._holders and fields[0] in by_workers:
                        by_workers[fields[0]] += 1
                    delays[thread, int(fields[19])] = int(fields[39]) / _TICKS
        return Threads(waiting, by_workers[b"D"], by_workers[b"R"], delays)


def _stat(path: str) -> list[bytes]:
    return (read_bytes(path) or b"").rpartition(b")")[2].split()


def _threads(path: str) -> list[int]:
    try:
        return [int(name) for name in os.listdir(path)]
    except OSError:
        return []
