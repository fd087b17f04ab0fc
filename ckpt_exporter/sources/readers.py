"""Which processes read checkpoint files, and how far they are."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ckpt_exporter.model import Reading
from ckpt_exporter.sources.procfs import (
    list_pids,
    read_descriptor,
    read_process,
    read_reads,
    read_resident,
)
from ckpt_exporter.sources.runs import identify_run

# So few that looking at all their descriptors costs no more than finding out which of them read.
FEW_PROCESSES = 64
GROWTH_BYTES = 64 * 1024
# Searching for readers may take this share of the time; looking at known ones that share.
SEARCH_SHARE = 0.02
# After so many searches without one, every process is looked at: who reads a mapped file from the page cache
# has no I/O counted.
FRUITLESS_SEARCHES = 2
MAX_READERS = 256
# Number of the first process-id namespace, the host's, since namespaces have numbers.
_HOST_NAMESPACE = "pid:[4026531836]"

FileId = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Held:
    """How one process holds one file."""

    position: int | None = None
    mapped_bytes: int | None = None
    direct: bool = False


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The files that are looked for: their last names, and their paths by id."""

    names: frozenset[str]
    ids: Mapping[FileId, str]

    @property
    def encoded(self) -> frozenset[bytes]:
        return frozenset(os.fsencode(name) for name in self.names)


def readers_visible(proc: str = "/proc") -> bool:
    """Tell whether the descriptors of every process on this host may be looked at."""
    try:
        os.listdir(f"{proc}/1/fd")
        return os.readlink(f"{proc}/self/ns/pid") == _HOST_NAMESPACE
    except OSError:
        return False


class ReaderSearch:
    """Find the readers of some files, and look at them, at a bounded cost."""

    def __init__(self, clock: Callable[[], float], proc: str = "/proc") -> None:
        self._clock = clock
        self._proc = proc
        self._counters: dict[int, tuple[int, ...]] = {}
        self._fruitless = 0
        self._search_at = float("-inf")
        self._commands: dict[int, tuple[str, str | None]] = {}
        self.held: dict[int, dict[str, int]] = {}  # pid -> path -> size at the last look

    def look(self, files: Mapping[str, tuple[FileId, int]], *, search: bool) -> list[Reading]:
        """Return what the known readers, and with ``search`` others, hold of ``files`` (path -> id, size)."""
        pids = set(self.held)
        now = self._clock()
        if search and now >= self._search_at:
            pids |= self._candidates()
        wanted = _Wanted(
            frozenset(path.rpartition("/")[2] for path in files),
            {file_id: path for path, (file_id, _) in files.items()},
        )
        readings: list[Reading] = []
        for pid in sorted(pids):
            readings += self._look_at(pid, files, wanted)
        if search and now >= self._search_at:
            self._fruitless = 0 if self.held else self._fruitless + 1
            self._search_at = now + (self._clock() - now) / SEARCH_SHARE
        return readings

    def _candidates(self) -> set[int]:
        """Return the processes that may be readers: few, or those that have read since the last search."""
        pids = [pid for pid in list_pids(self._proc) if pid != os.getpid()]
        if len(pids) <= FEW_PROCESSES or self._fruitless >= FRUITLESS_SEARCHES:
            self._fruitless = 0
            return set(pids)
        before = self._counters
        self._counters = {pid: reads for pid in pids if (reads := read_reads(pid, self._proc)) is not None}
        return {
            pid
            for pid, (rchar, _, stored) in self._counters.items()
            if max(rchar - before.get(pid, (0, 0, 0))[0], stored - before.get(pid, (0, 0, 0))[2])
            > GROWTH_BYTES
        }

    def _look_at(self, pid: int, files: Mapping[str, tuple[FileId, int]], wanted: _Wanted) -> list[Reading]:
        before = self.held.get(pid, {})
        held = self._held_by(pid, wanted)
        if not held and not before:
            return []
        t = self._clock()
        rchar, wchar, stored = read_reads(pid, self._proc) or (None, None, None)
        command, run = self._identity(pid)
        self.held[pid] = {path: files[path][1] for path in held}
        if not held:
            del self.held[pid]
            self._commands.pop(pid, None)
        # In the order of opening, as far as that shows: what was let go of was read before.
        listed = [*((path, None) for path in before.keys() - held.keys()), *held.items()]
        return [
            Reading(
                t,
                path,
                pid,
                size=before[path] if how is None else files[path][1],
                position=how.position if how else None,
                mapped_bytes=how.mapped_bytes if how else None,
                rchar=rchar,
                wchar=wchar,
                read_bytes=stored,
                direct=how.direct if how else False,
                held=how is not None,
                command=command,
                run=run,
            )
            for path, how in listed
        ]

    def _identity(self, pid: int) -> tuple[str, str | None]:
        if pid not in self._commands:
            process = read_process(pid, self._proc)
            run = identify_run([pid], proc=self._proc).run
            self._commands[pid] = (process.command if process else "", run)
        return self._commands[pid]

    def _held_by(self, pid: int, wanted: _Wanted) -> dict[str, Held]:
        try:
            descriptors = os.listdir(f"{self._proc}/{pid}/fd")
        except OSError:
            return {}
        held: dict[str, Held] = {}
        for descriptor in descriptors:
            found = self._descriptor(pid, int(descriptor), wanted)
            if found is not None:
                path, how = found
                before = held.get(path)
                if before is None or (how.position or 0) > (before.position or 0):
                    held[path] = how
        by_inode = {inode: path for (_, inode), path in wanted.ids.items()}
        for inode, size in read_resident(pid, wanted.encoded, self._proc).items():
            if (mapped := by_inode.get(inode)) is not None:
                before = held.get(mapped, Held())
                held[mapped] = Held(before.position, size, before.direct)
        return held

    def _descriptor(self, pid: int, fd: int, wanted: _Wanted) -> tuple[str, Held] | None:
        link = f"{self._proc}/{pid}/fd/{fd}"
        try:
            # By the last name: another mount namespace shows another path to the same file.
            if os.readlink(link).removesuffix(" (deleted)").rpartition("/")[2] not in wanted.names:
                return None
            status = os.stat(link)
        except OSError:
            return None
        path = wanted.ids.get((status.st_dev, status.st_ino))
        descriptor = read_descriptor(pid, fd, self._proc)
        if path is None or descriptor is None or descriptor.writable:
            return None
        return path, Held(position=descriptor.position, direct=descriptor.direct)
