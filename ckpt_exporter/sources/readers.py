"""Which processes read checkpoint files, and how far they are."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from ckpt_exporter.model import Reading
from ckpt_exporter.sources.pagemap import touched_bytes
from ckpt_exporter.sources.procfs import (
    list_kernel_threads,
    list_pids,
    list_pids_newest_first,
    read_activity,
    read_descriptor,
    read_mapped,
    read_memory,
    read_process,
    read_reads,
)
from ckpt_exporter.sources.runs import identify_run

# So few that looking at all their descriptors costs no more than finding out which of them read.
FEW_PROCESSES = 64
# Growth of the counters since older readings tells nothing of who reads now.
STALE_SECONDS = 10.0
GROWTH_BYTES = 64 * 1024
GROWTH_FAULTS = 16
# Searching for readers may take this share of the time (of one processor).
SEARCH_SHARE = 0.05
# The first search after a file was opened looks at the descriptors of one process after the other, the newest
# first, for so long (of processor time): a short load is over before counters could be compared.
FIRST_SEARCH_SECONDS = 0.05
# First searches for another load may come so much before they are paid for: short loads follow each other.
CREDIT_SECONDS = 5.0
COMPARE_SECONDS = 0.05
# After so many searches without one, every process is looked at: who reads a mapped file from the page cache
# has no I/O counted.
FRUITLESS_SEARCHES = 2
MAX_READERS = 256
# Number of the first process-id namespace, the host's, since namespaces have numbers.
_HOST_NAMESPACE = "pid:[4026531836]"

FileId = tuple[int, int]
_Mapped = dict[int, list[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class Held:
    """How one process holds one file."""

    position: int | None = None
    direct: bool = False
    ranges: tuple[tuple[int, int], ...] = ()  # of addresses, where it is mapped

    @property
    def mapped(self) -> bool:
        """Tell whether the process reads through memory."""
        return bool(self.ranges)


@dataclass(slots=True)
class _Pages:
    """What of its mapped files a process has touched: the files, and its resident pages then and lately."""

    files: frozenset[str]
    counted: int | None
    last: int | None


def _reads(now: tuple[int, int, int], before: tuple[int, int, int]) -> bool:
    rchar, stored, faults = (a - b for a, b in zip(now, before, strict=True))
    return rchar > GROWTH_BYTES or stored > GROWTH_BYTES or faults > GROWTH_FAULTS


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

    def __init__(
        self,
        clock: Callable[[], float],
        proc: str = "/proc",
        *,
        cost_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._clock = clock
        self._proc = proc
        self._cost_clock = cost_clock
        self._counters: dict[int, tuple[int, int, int]] = {}
        self._counted_at = float("-inf")
        self._fruitless = 0
        self._paid_at = float("-inf")  # when what searches have cost so far is no more than their share
        self._first_paid_at = float("-inf")
        self._compare_at = float("inf")
        self._commands: dict[int, tuple[str, str | None]] = {}
        self._pages: dict[int, _Pages] = {}
        self._maps: dict[int, tuple[int | None, _Mapped]] = {}
        # By which descriptors a known reader held files when all of its were looked through: a trainer has
        # hundreds, and who opens another file is told of.
        self._descriptors: dict[int, tuple[int, ...]] = {}
        self._idle = True
        self._counting = False
        self.look_cost_seconds = 0.0  # of the last look at the known readers, without searching for others
        self.thorough_at = float("-inf")  # when no process was left out for the last time
        self.held: dict[int, dict[str, int]] = {}  # pid -> path -> size at the last look

    def look(
        self, files: Mapping[str, tuple[FileId, int]], *, search: bool, opened: bool = False
    ) -> list[Reading]:
        """Return what the known readers, and with ``search`` others, hold of ``files`` (path -> id, size).

        ``opened``: one of them was opened since the last look.
        """
        wanted = _Wanted(
            frozenset(path.rpartition("/")[2] for path in files),
            {file_id: path for path, (file_id, _) in files.items()},
        )
        if opened:
            self._maps.clear()  # what is opened may be mapped where something else was
            self._descriptors.clear()
        began = self._cost_clock()
        known = set(self.held)
        readings = [reading for pid in sorted(known) for reading in self._look_at(pid, files, wanted)]
        self.look_cost_seconds = self._cost_clock() - began
        if search and files:
            readings += self._search(files, wanted, known, opened=opened)
        return readings

    def _search(
        self, files: Mapping[str, tuple[FileId, int]], wanted: _Wanted, known: set[int], *, opened: bool
    ) -> list[Reading]:
        now = self._clock()
        credit = CREDIT_SECONDS if not self.held else 0.0  # more readers of the same load can wait
        first = (opened or self._idle) and now >= self._first_paid_at - credit
        if not first and now < min(self._paid_at, self._compare_at):
            return []
        began, self._idle = self._cost_clock(), False
        readings: list[Reading] = []
        # Each is looked at as soon as it is found: what it has read by then no counter tells.
        for pid in self._holders(wanted, known) if first else sorted(self._candidates() - known):
            readings += self._look_at(pid, files, wanted)
        if first:
            # It has a share of its own: a short load soon after another would go unseen else.
            paid_at = max(now, self._first_paid_at)
            self._first_paid_at = paid_at + (self._cost_clock() - began) / SEARCH_SHARE
            began = self._cost_clock()
            if now >= self._paid_at:
                self._count()  # what has grown at the second search tells who reads
                self._compare_at = now + COMPARE_SECONDS
        else:
            self._fruitless = 0 if self.held or self._counting else self._fruitless + 1
            # Every search pays for what came before it, but what was only counted is compared soon after.
            self._compare_at = now + COMPARE_SECONDS if self._counting else float("inf")
        self._paid_at = max(now, self._paid_at) + (self._cost_clock() - began) / SEARCH_SHARE
        return readings

    def _holders(self, wanted: _Wanted, known: set[int]) -> Iterator[int]:
        """Find the processes that hold one of the files open, as many as are met in time, then others if few.

        The newest come first, and threads of the kernel are not told apart: they hold nothing.
        """
        until = self._cost_clock() + FIRST_SEARCH_SECONDS
        found = {os.getpid(), *known}
        for pid in list_pids_newest_first(self._proc):
            if self._cost_clock() > until:
                break
            if pid not in found and self._open_by(pid, wanted):
                found.add(pid)
                yield pid
        else:
            self.thorough_at = self._clock()
        pids = self._processes()
        if len(pids) <= FEW_PROCESSES:
            yield from sorted(pids - found, reverse=True)

    def _count(self) -> None:
        pids = self._processes()
        if len(pids) > FEW_PROCESSES:
            self._counters, self._counted_at = self._activity(pids), self._clock()

    def forget(self, path: str) -> None:
        """Look at no reader of a file any more."""
        for pid in [pid for pid, paths in self.held.items() if path in paths]:
            self.held[pid].pop(path)
            self._pages.pop(pid, None)

    def forget_all(self) -> None:
        """Look at no reader any more."""
        self._idle = True
        self.held.clear()
        self._pages.clear()
        self._maps.clear()
        self._descriptors.clear()
        self._commands.clear()

    def _candidates(self) -> set[int]:
        """Return the processes that may be readers: all if there are few, or those that read lately.

        None where there was nothing to compare with: then they are ``_counting``.
        """
        self._counting = False
        pids = self._processes()
        if len(pids) <= FEW_PROCESSES or self._fruitless >= FRUITLESS_SEARCHES:
            self._fruitless, self.thorough_at = 0, self._clock()
            return pids
        before, self._counters = self._counters, self._activity(pids)
        self._counting = self._clock() - self._counted_at > STALE_SECONDS
        self._counted_at = self._clock()
        if self._counting:
            return set()
        return {pid for pid, now in self._counters.items() if _reads(now, before.get(pid, (0, 0, 0)))}

    def _processes(self) -> set[int]:
        """Return the processes with memory of their own; the kernel's threads are half of all."""
        return set(list_pids(self._proc)) - list_kernel_threads(self._proc) - {os.getpid()}

    def _activity(self, pids: set[int]) -> dict[int, tuple[int, int, int]]:
        return {pid: counts for pid in pids if (counts := read_activity(pid, self._proc)) is not None}

    def _look_at(self, pid: int, files: Mapping[str, tuple[FileId, int]], wanted: _Wanted) -> list[Reading]:
        before = self.held.get(pid, {})
        held = self._open_by(pid, wanted)
        # At once after the positions, which are compared with them.
        counters = read_reads(pid, self._proc) if held or before else None
        t = self._clock()
        memory = read_memory(pid, self._proc)
        held = self._with_mapped(held, pid, wanted, memory[0] if memory else None)
        if not held and not before:
            return []
        rchar, wchar, stored = counters or read_reads(pid, self._proc) or (None, None, None)
        resident = memory[1] if memory else None
        touched = self._touched(pid, held, resident)
        command, run = self._identity(pid)
        self.held[pid] = {path: files[path][1] for path in held}
        if not held:
            del self.held[pid]
            self._commands.pop(pid, None)
            self._maps.pop(pid, None)
            self._descriptors.pop(pid, None)
        # In the order of opening, as far as that shows: what was let go of was read before.
        listed = [*((path, None) for path in before.keys() - held.keys()), *held.items()]
        return [
            Reading(
                t,
                path,
                pid,
                size=before[path] if how is None else files[path][1],
                position=how.position if how else None,
                mapped=how.mapped if how else False,
                mapped_bytes=touched.get(path),
                resident_bytes=resident,
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

    def _with_mapped(
        self, held: dict[str, Held], pid: int, wanted: _Wanted, size: int | None
    ) -> dict[str, Held]:
        by_inode = {inode: path for (_, inode), path in wanted.ids.items()}
        for inode, ranges in self._mapped_by(pid, wanted, size).items():
            if (mapped := by_inode.get(inode)) is not None:
                held[mapped] = replace(held.get(mapped, Held()), ranges=tuple(ranges))
        return held

    def _mapped_by(self, pid: int, wanted: _Wanted, size: int | None) -> _Mapped:
        """Return where a known reader has mapped files; asked again when its size shows that this changed."""
        known = self._maps.get(pid)
        if known is None or known[0] != size:
            known = (size, read_mapped(pid, wanted.encoded, self._proc))
            if pid in self.held:
                self._maps[pid] = known
        return known[1]

    def _open_by(self, pid: int, wanted: _Wanted) -> dict[str, Held]:
        before = self._descriptors.pop(pid, ())
        found = self._held_through(pid, before, wanted)
        if not found or len(found) < len(before):
            # One was closed: the file may have another that was not looked at.
            found = self._held_through(pid, self._list_descriptors(pid), wanted)
        if pid in self.held:
            self._descriptors[pid] = tuple(found)
        held: dict[str, Held] = {}
        for path, how in found.values():
            other = held.get(path, how)
            # Descriptors that stand in different places read different parts: no position tells of both.
            at = how.position if how.position == other.position else None
            held[path] = replace(how, position=at, direct=how.direct or other.direct)
        return held

    def _list_descriptors(self, pid: int) -> list[int]:
        try:
            return [int(name) for name in os.listdir(f"{self._proc}/{pid}/fd")]
        except OSError:
            return []

    def _held_through(
        self, pid: int, descriptors: Iterable[int], wanted: _Wanted
    ) -> dict[int, tuple[str, Held]]:
        looked = {number: self._descriptor(pid, number, wanted) for number in descriptors}
        return {number: found for number, found in looked.items() if found is not None}

    def _touched(self, pid: int, held: Mapping[str, Held], resident: int | None) -> dict[str, int]:
        """Return what the process has touched of its mapped files.

        Asked for new ones, and of all once the process touches no more: what it touched meanwhile may have
        been its own libraries.
        """
        mapped = frozenset(path for path, how in held.items() if how.mapped)
        known = self._pages.get(pid)
        if not mapped:
            self._pages.pop(pid, None)
            return {}
        if known is None:
            known = self._pages[pid] = _Pages(frozenset(), None, None)
        settled = resident == known.last and resident != known.counted
        asked = mapped if settled else mapped - known.files
        if mapped <= asked:
            known.counted = resident
        known.files, known.last = mapped, resident
        counts = {path: touched_bytes(pid, held[path].ranges, self._proc) for path in sorted(asked)}
        return {path: count for path, count in counts.items() if count is not None}

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
