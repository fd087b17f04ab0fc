"""Cheap reads of single process facts; what can't be read or has gone is None.

Raw files instead of psutil where every process is asked once a second: reading the I/O counters of 600
processes took 6 ms raw and 10 ms through psutil, and psutil reads another proc root only by a global.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import dataclass

_DEAD_STATES = frozenset({"Z", "X", "x"})
_PF_EXITING = 0x4  # linux/sched.h
_WRITABLE = (os.O_WRONLY, os.O_RDWR)
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_READ_SIZE = 64 * 1024
# A process may lay its environment over all of its memory, and map 65,530 files of 4096-byte names.
_MAX_BYTES = 8 * 1024 * 1024
_MAX_ENVIRONMENT_BYTES = 512 * 1024
_IO_LINES = re.compile(rb"^wchar: (\d+)$.*^write_bytes: (\d+)$", re.MULTILINE | re.DOTALL)
_READ_LINES = re.compile(rb"^rchar: (\d+)$.*^wchar: (\d+)$.*^read_bytes: (\d+)$", re.MULTILINE | re.DOTALL)
_TRANSFER_LINES = re.compile(
    rb"^rchar: (\d+)$.*^read_bytes: (\d+)$.*^write_bytes: (\d+)$", re.MULTILINE | re.DOTALL
)
_MAP_LINE = re.compile(
    rb"^[0-9a-f]+-[0-9a-f]+ .w.s [0-9a-f]+ ([0-9a-f]+):([0-9a-f]+) (\d+) +(/.*)$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Process:
    """What ``/proc/PID/stat`` says; ``started`` is in clock ticks since boot and tells a reused pid apart."""

    pid: int
    command: str
    state: str
    parent: int
    session: int
    terminal: int
    started: int
    exiting: bool = False

    @property
    def alive(self) -> bool:
        """False for one that waits to be reaped, or that is being taken down: its files are closed by that.

        Giving up a GPU's memory can keep a killed process for seconds after its files were closed.
        """
        return not self.exiting and self.state not in _DEAD_STATES


@dataclass(frozen=True, slots=True)
class Descriptor:
    """What ``/proc/PID/fdinfo/FD`` says: position in bytes and the flags of ``open``."""

    position: int
    flags: int

    @property
    def direct(self) -> bool:
        """True if the page cache is bypassed."""
        return bool(self.flags & os.O_DIRECT)

    @property
    def writable(self) -> bool:
        """True if opened for writing or for both."""
        return self.flags & os.O_ACCMODE in _WRITABLE


def read_bytes(path: str, max_bytes: int = _MAX_BYTES) -> bytes | None:
    """Read a file, of a huge one the beginning; None if it has gone or may not be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        # One read is enough for most; a file object would cost three more system calls for each process.
        parts = [os.read(fd, _READ_SIZE)]
        size = len(parts[0])
        # The kernel gives maps a page at a time, however much is asked for.
        while parts[-1] and size < max_bytes:
            parts.append(os.read(fd, _READ_SIZE))
            size += len(parts[-1])
        return b"".join(parts)
    except OSError:  # ESRCH: the process ended between open and read
        return None
    finally:
        os.close(fd)


def read_record(path: str) -> bytes | None:
    """Read a file of one short record, which comes in one piece: asking for more would cost another call."""
    return read_bytes(path, max_bytes=1)


def list_pids(proc: str) -> list[int]:
    """List the processes in numeric order."""
    try:
        return sorted(int(name) for name in os.listdir(proc) if name.isdigit())
    except OSError:
        return []


def list_pids_newest_first(proc: str) -> list[int]:
    """List the processes from the latest to the first; numbers begin anew when there are no higher ones."""
    pids = list_pids(proc)
    last = (read_record(f"{proc}/loadavg") or b"").rpartition(b" ")[2].strip()
    newest = int(last) if last.isdigit() else pids[-1] if pids else 0
    return sorted(pids, key=lambda pid: (pid > newest, -pid))


def read_process(pid: int, proc: str) -> Process | None:
    """Read a process; its command may hold spaces and parentheses, so the last ``)`` ends it."""
    raw = read_record(f"{proc}/{pid}/stat")
    if raw is None:
        return None
    head, _, tail = os.fsdecode(raw).rpartition(")")
    fields = tail.split()
    try:
        return Process(
            pid=pid,
            command=head.partition("(")[2],
            state=fields[0],
            parent=int(fields[1]),
            session=int(fields[3]),
            terminal=int(fields[4]),
            started=int(fields[19]),
            exiting=bool(int(fields[6]) & _PF_EXITING),
        )
    except (IndexError, ValueError):
        return None


def read_parent(pid: int, proc: str) -> int | None:
    """Return the parent of a process, 0 for those that the kernel made."""
    fields = (read_record(f"{proc}/{pid}/stat") or b"").rpartition(b")")[2].split(None, 2)
    return int(fields[1]) if len(fields) > 2 and fields[1].isdigit() else None


def list_kernel_threads(proc: str) -> set[int]:
    """List the kernel's threads, all children of process 2; where that is another one, none can be seen."""
    if read_parent(2, proc) != 0:
        return set()
    return {2, *map(int, (read_bytes(f"{proc}/2/task/2/children") or b"").split())}


def read_io(pid: int, proc: str) -> tuple[int, int] | None:
    """Return the process's ``wchar`` and ``write_bytes`` since its start.

    ``wchar`` misses io_uring, libaio and mapped writes; ``write_bytes`` has all of them but is 0 on tmpfs.
    """
    hit = _IO_LINES.search(read_record(f"{proc}/{pid}/io") or b"")
    return (int(hit[1]), int(hit[2])) if hit else None


def read_reads(pid: int, proc: str) -> tuple[int, int, int] | None:
    """Return the process's ``rchar``, ``wchar`` and ``read_bytes`` since its start.

    ``rchar`` misses mapped and asynchronous reads, ``read_bytes`` what came from the page cache.
    """
    hit = _READ_LINES.search(read_record(f"{proc}/{pid}/io") or b"")
    return (int(hit[1]), int(hit[2]), int(hit[3])) if hit else None


def read_transfers(pid: int, proc: str) -> tuple[int, int, int] | None:
    """Return the process's ``rchar``, ``read_bytes`` and ``write_bytes`` since its start."""
    hit = _TRANSFER_LINES.search(read_record(f"{proc}/{pid}/io") or b"")
    return (int(hit[1]), int(hit[2]), int(hit[3])) if hit else None


def read_activity(pid: int, proc: str) -> tuple[int, int, int] | None:
    """Return ``rchar``, ``read_bytes`` and the page faults of a process since its start.

    Who reads a mapped file from the page cache shows only by its faults.
    """
    reads = read_reads(pid, proc)
    fields = (read_record(f"{proc}/{pid}/stat") or b"").rpartition(b")")[2].split()
    if reads is None or len(fields) < 11:
        return None
    return reads[0], reads[2], int(fields[7]) + int(fields[9])


def read_memory(pid: int, proc: str) -> tuple[int, int] | None:
    """Return a process's bytes of addresses, and the resident ones of its mapped files, all together."""
    fields = (read_record(f"{proc}/{pid}/statm") or b"").split()
    return (int(fields[0]) * _PAGE_BYTES, int(fields[2]) * _PAGE_BYTES) if len(fields) > 2 else None


def read_mapped(pid: int, names: Collection[bytes], proc: str) -> dict[int, list[tuple[int, int]]]:
    """Return by inode where a process has mapped the files of some last names: (first address, end)."""
    maps = read_bytes(f"{proc}/{pid}/maps") or b""
    found: dict[int, list[tuple[int, int]]] = {}
    if not any(name in maps for name in names):
        return found
    for fields in (line.split(None, 5) for line in maps.splitlines() if b"/" in line):
        if fields[5].removesuffix(b" (deleted)").rpartition(b"/")[2] in names:
            first, _, end = fields[0].partition(b"-")
            found.setdefault(int(fields[4]), []).append((int(first, 16), int(end, 16)))
    return found


def read_descriptor(pid: int, fd: int, proc: str) -> Descriptor | None:
    """Read position and flags of an open file without touching its file system."""
    raw = read_record(f"{proc}/{pid}/fdinfo/{fd}")
    if raw is None:
        return None
    fields = dict(line.partition(b":")[::2] for line in raw.splitlines())
    try:
        return Descriptor(
            position=int(fields[b"pos"]),
            flags=int(fields[b"flags"], 8),
        )
    except (KeyError, ValueError):
        return None


def read_environment(pid: int, proc: str) -> dict[str, str]:
    """Return the environment a process was started with; empty if it may not be read."""
    raw = read_bytes(f"{proc}/{pid}/environ", _MAX_ENVIRONMENT_BYTES) or b""
    pairs = (item.partition(b"=") for item in raw.split(b"\0") if b"=" in item)
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}


def read_cgroups(pid: int, proc: str) -> tuple[str, ...]:
    """Return a process's cgroup paths of every hierarchy (v1 and v2), longest first."""
    text = os.fsdecode(read_bytes(f"{proc}/{pid}/cgroup") or b"")
    paths = {line.split(":", 2)[2] for line in text.splitlines() if line.count(":") >= 2}
    return tuple(sorted(paths, key=lambda path: (-len(path), path)))


def read_shared_maps(pid: int, proc: str) -> set[tuple[int, int, str]]:
    """Return (device number, inode, path) of the files that a process has mapped shared and writable.

    The device is the file system's own: on btrfs it is not the ``st_dev`` of ``stat``.
    """
    raw = read_bytes(f"{proc}/{pid}/maps") or b""
    return {
        (os.makedev(int(major, 16), int(minor, 16)), int(inode), os.fsdecode(path))
        for major, minor, inode, path in _MAP_LINE.findall(raw)
    }
