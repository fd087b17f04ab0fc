"""Which processes write a save's files, how far their descriptors are, and whether they still live."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from ckpt_exporter.model import Writers
from ckpt_exporter.sources.procfs import (
    list_pids,
    read_descriptor,
    read_io,
    read_process,
    read_shared_maps,
)
from ckpt_exporter.sources.runs import RunIdentity, identify_run

__all__ = [
    "IoCounters",
    "OpenFile",
    "RunIdentity",
    "WriterScan",
    "WritersFound",
    "find_writers",
    "identify_run",
    "io_written",
    "parse_inode",
    "write_position",
]

GROWTH_BYTES = 64 * 1024  # less than this between two scans is a log line, not a checkpoint
FEW_PROCESSES = 64  # so few that looking at all their descriptors costs no more than a baseline
SCAN_INTERVAL_SECONDS = 1.0
SCAN_SHARE = 0.01  # scanning may take this share of the time
# After so many scans without a writer every process is looked at: who writes into a mapped file on tmpfs has
# no I/O counted.
FRUITLESS_SCANS = 2
WRITER_LIMIT = 1024

IoCounters = Mapping[int, tuple[int, int]]
FileId = tuple[int, int]


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A target held by a process; ``fd`` and ``position`` are None for a mapping (its ``fd`` may be closed).

    ``position`` (bytes) grows with write(), not with pwrite(), libaio, io_uring at offsets or mapped writes.
    """

    pid: int
    fd: int | None
    path: str
    position: int | None


@dataclass(frozen=True, slots=True)
class WritersFound:
    """What one scan found; ``counters`` is the baseline for the next one.

    ``inspected`` counts the processes whose descriptors were looked at; 0 after a mere baseline.
    """

    pids: tuple[int, ...] = ()
    files: tuple[OpenFile, ...] = ()
    counters: IoCounters = field(default_factory=dict)
    inspected: int = 0


def find_writers(
    targets: Collection[FileId],
    paths: Collection[str],
    *,
    proc: str = "/proc",
    previous: IoCounters | None,
    known: Collection[int] = (),
    everyone: bool = False,
) -> WritersFound:
    """Find the processes that hold one of the files (``st_dev``, ``st_ino``) open or mapped for writing.

    Looks first at every process's I/O counters, then only at the descriptors of those that wrote more than
    64 KiB since ``previous``, of the ``known`` ones, or of ``everyone``. ``paths`` are the files' names:
    only a descriptor of such a name is compared by ``stat``, which can block if its mount is dead. Without
    ``previous`` and with many processes the answer is empty but for its ``counters``. Processes that
    may not be read or end meanwhile are left out.
    """
    pids = [pid for pid in list_pids(proc) if pid != os.getpid()]
    counters = {pid: io for pid in pids if (io := read_io(pid, proc)) is not None}
    candidates = set(counters) if everyone else set(_grown(counters, previous))
    candidates.update(pid for pid in known if pid in counters)
    wanted = _Wanted(frozenset(targets), frozenset(paths), frozenset(map(os.path.basename, paths)))
    files = [file for pid in sorted(candidates) for file in _held_files(pid, wanted, proc)]
    return WritersFound(
        pids=tuple(sorted({file.pid for file in files})),
        files=tuple(files),
        counters=counters,
        inspected=len(candidates),
    )


def write_position(pid: int, fd: int, proc: str = "/proc") -> int | None:
    """Return the file position of a writable descriptor in bytes; None if gone, unreadable or read-only."""
    descriptor = read_descriptor(pid, fd, proc)
    return descriptor.position if descriptor is not None and descriptor.writable else None


def io_written(pids: Iterable[int], proc: str = "/proc") -> dict[int, tuple[int, int]]:
    """Return ``wchar`` and ``write_bytes`` of each process that may be read (all its files together)."""
    return {pid: io for pid in pids if (io := read_io(pid, proc)) is not None}


def parse_inode(inode: str | None) -> FileId | None:
    """Turn ``major:minor:inode`` into (``st_dev``, ``st_ino``); None if it is not of that form."""
    try:
        major, minor, number = (int(part) for part in (inode or "").split(":"))
    except ValueError:
        return None
    return os.makedev(major, minor), number


def _grown(counters: IoCounters, previous: IoCounters | None) -> Iterable[int]:
    if previous is None:
        return counters if len(counters) <= FEW_PROCESSES else ()
    return [pid for pid, io in counters.items() if _has_grown(io, previous.get(pid, (0, 0)))]


def _has_grown(now: tuple[int, int], before: tuple[int, int]) -> bool:
    # A counter that fell belongs to a new process with an old pid: all it has written counts.
    return any(
        (current - past if current >= past else current) > GROWTH_BYTES
        for current, past in zip(now, before, strict=True)
    )


@dataclass(frozen=True, slots=True)
class _Wanted:
    ids: frozenset[FileId]
    paths: frozenset[str]
    names: frozenset[str]

    def may_be(self, path: str) -> bool:
        # By name alone: another mount namespace or a bind mount shows another path to the same file.
        return path.rpartition("/")[2] in self.names


def _held_files(pid: int, wanted: _Wanted, proc: str) -> Iterable[OpenFile]:
    try:
        names = os.listdir(f"{proc}/{pid}/fd")
    except OSError:
        return
    for name in names:
        if (held := _held_descriptor(pid, int(name), wanted, proc)) is not None:
            yield held
    yield from _held_mappings(pid, wanted, proc)


def _held_descriptor(pid: int, fd: int, wanted: _Wanted, proc: str) -> OpenFile | None:
    link = f"{proc}/{pid}/fd/{fd}"
    try:
        path = os.readlink(link).removesuffix(" (deleted)")
        if not wanted.may_be(path):
            return None
        descriptor = read_descriptor(pid, fd, proc)
        if descriptor is None or not descriptor.writable:
            return None
        status = os.stat(link)
    except OSError:
        return None
    if (status.st_dev, status.st_ino) not in wanted.ids:
        return None
    return OpenFile(pid=pid, fd=fd, path=path, position=descriptor.position)


def _held_mappings(pid: int, wanted: _Wanted, proc: str) -> Iterable[OpenFile]:
    # btrfs and overlayfs give stat() an anonymous device that a mapping does not show: then the path counts.
    anonymous = {inode for device, inode in wanted.ids if os.major(device) == 0}
    for device, inode, name in sorted(read_shared_maps(pid, proc)):
        path = name.removesuffix(" (deleted)")
        if (device, inode) in wanted.ids or (inode in anonymous and path in wanted.paths):
            yield OpenFile(pid=pid, fd=None, path=path, position=None)


class _Budget:
    """Says when something that costs time may be done again: no sooner than its cost allows."""

    def __init__(self, share: float, interval_seconds: float) -> None:
        self._share = share
        self._interval_seconds = interval_seconds
        self._next = float("-inf")

    def allows(self, now: float) -> bool:
        return now >= self._next

    def spend(self, now: float, cost_seconds: float) -> None:
        self._next = now + max(self._interval_seconds, cost_seconds / self._share)


class WriterScan:
    """Keeps track of who writes the files of one directory, at a bounded cost.

    At most one scan a second, and no more than one percent of the time on the injected ``clock``
    (half of it for the ordinary scan, half for the wide ones: the first, which takes all that a process ever
    wrote for new, as a short save would be over before a second reading, and a look at every process after
    fruitless scans).
    Call ``scan`` from a thread that may wait for the directory's mount.
    """

    def __init__(self, directory: str, *, clock: Callable[[], float], proc: str = "/proc") -> None:
        self._directory = directory
        self._clock = clock
        self._proc = proc
        self._counters: IoCounters | None = None
        self._pids: dict[int, int] = {}  # pid -> start time: a reused pid is another process
        self._commands: dict[int, str] = {}
        self._run: RunIdentity | None = None
        self._fruitless = 0
        self._scan_budget = _Budget(SCAN_SHARE / 2, SCAN_INTERVAL_SECONDS)
        self._wide_budget = _Budget(SCAN_SHARE / 2, SCAN_INTERVAL_SECONDS)
        self.last: Writers | None = None
        self.last_files: tuple[OpenFile, ...] = ()

    def scan(self, now: float, files: Mapping[str, str | None]) -> Writers | None:
        """Look for writers of ``files`` (path -> ``major:minor:inode``); None if there is nothing new.

        Between two scans it only notices that the last writer has ended.
        """
        if files and self._scan_budget.allows(now):
            self._look(now, files)
        return self._report(now)

    def is_alive(self) -> bool:
        """Tell if one of the known writers lives: not ended, not a zombie, not another with its pid."""
        return any(self._lives(pid) for pid in self._pids)

    def forget(self) -> None:
        """Drop what is known of the writers, for a save that has nothing to do with the last one."""
        self._pids.clear()
        self._commands.clear()
        self._fruitless = 0
        self.last, self.last_files = None, ()

    def _look(self, now: float, files: Mapping[str, str | None]) -> None:
        began = self._clock()
        first = self._counters is None
        everyone = self._fruitless >= FRUITLESS_SCANS and self._wide_budget.allows(now)
        targets = {file_id for inode in files.values() if (file_id := parse_inode(inode)) is not None}
        found = find_writers(
            targets,
            files.keys(),
            proc=self._proc,
            previous=self._counters or {},
            known=self._pids,
            everyone=everyone,
        )
        self._counters = found.counters
        self._fruitless = 0 if found.pids or everyone else self._fruitless + 1
        self.last_files = found.files
        self._remember(found.pids)
        cost_seconds = self._clock() - began
        wide = first or everyone
        self._scan_budget.spend(now, 0.0 if wide else cost_seconds)
        if wide:
            self._wide_budget.spend(now, cost_seconds)

    def _remember(self, pids: Iterable[int]) -> None:
        seen = {pid: process for pid in pids if (process := read_process(pid, self._proc)) is not None}
        if not seen:
            return
        # The dead make room for the living, so that a job of many short writers does not grow for ever.
        kept = {pid: started for pid, started in self._pids.items() if pid not in seen and self._lives(pid)}
        kept.update({pid: process.started for pid, process in seen.items()})
        self._pids = dict(sorted(kept.items())[:WRITER_LIMIT])
        known = {**self._commands, **{pid: process.command for pid, process in seen.items()}}
        self._commands = {pid: known[pid] for pid in self._pids}

    def _lives(self, pid: int) -> bool:
        process = read_process(pid, self._proc)
        return process is not None and process.alive and process.started == self._pids[pid]

    def _report(self, now: float) -> Writers | None:
        if not self._pids:
            return None
        pids = tuple(sorted(self._pids))
        paths = tuple(sorted({file.path for file in self.last_files}))
        alive = self.is_alive()
        last = self.last
        if last is not None and (last.pids, last.paths, last.alive) == (pids, paths, alive):
            return None
        run = self._identity(last, pids)
        self.last = Writers(
            t=now,
            directory=self._directory,
            pids=pids,
            run=run.run,
            scheduler=run.scheduler,
            run_id=run.run_id,
            commands=tuple(sorted(set(self._commands.values()))),
            alive=alive,
            paths=paths,
        )
        return self.last

    def _identity(self, last: Writers | None, pids: tuple[int, ...]) -> RunIdentity:
        """Keep the run of unchanged writers: ended ones can't be asked any more."""
        if self._run is None or last is None or last.pids != pids:
            self._run = identify_run(pids, proc=self._proc)
        return self._run
