"""What can be asked about one file without disturbing its writer."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import signal
import stat
import struct
import time
from collections.abc import Iterable

from ckpt_exporter.sources.mounts import parse_mountinfo

_AT_FDCWD = -100
_AT_SYMLINK_NOFOLLOW = 0x100
_STATX_BTIME = 0x800
# Offsets in struct statx, see statx(2).
_BTIME_OFFSET = 80
_STATX_BYTES = 256
_LIBC = ctypes.CDLL(None, use_errno=True)
_OPENAT2 = 437  # on every architecture
_RESOLVE_NO_SYMLINKS = 0x04
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC
_OPEN_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


class Births:
    """Birth times of files by ``statx``, which Python's ``os.stat`` leaves out."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._statx = getattr(libc, "statx", None)
        self._buffer = ctypes.create_string_buffer(_STATX_BYTES)

    def unix(self, path: str) -> float | None:
        """Return the birth of ``path`` in Unix seconds, None where it can't be known. Not thread-safe."""
        if self._statx is None:
            return None
        buffer = self._buffer
        name = os.fsencode(path)
        if self._statx(_AT_FDCWD, name, _AT_SYMLINK_NOFOLLOW, _STATX_BTIME, buffer) != 0:
            return None
        (mask,) = struct.unpack_from("I", buffer, 0)
        if not mask & _STATX_BTIME:
            return None
        seconds, nanoseconds = struct.unpack_from("qI", buffer, _BTIME_OFFSET)
        birth: float = seconds + nanoseconds / 1e9
        return birth


def is_reused(born: float | None, now: tuple[int, int, int], before: tuple[int, int, int]) -> bool:
    """Tell whether a file has only the inode in common with one that was known under another name.

    It was born (Unix seconds; None: unknown, which tells nothing) after that one last changed. ``now`` and
    ``before`` are size, modification in nanoseconds, inode: equal ones are the same file, whose times a
    tool may have set.
    """
    return born is not None and now != before and born > before[1] / 1e9 + 1e-6


def inode_name(st: os.stat_result) -> str:
    """Return ``major:minor:inode``, the name of a file that survives renames."""
    return f"{os.major(st.st_dev)}:{os.minor(st.st_dev)}:{st.st_ino}"


def lstat(path: str) -> os.stat_result | None:
    """Return the stat result of a name itself, None when it can't be had."""
    try:
        return os.lstat(path)
    except OSError:
        return None


def ignore_lease_signal() -> None:
    """Ignore SIGIO, which would kill this process when a writer opens a file during a lease probe.

    Only the main thread may set a handler; elsewhere the caller of the main thread has to.
    """
    try:
        signal.signal(signal.SIGIO, signal.SIG_IGN)
    except ValueError:
        # Not the main thread. Without this the default action stays, so see what is in force.
        if signal.getsignal(signal.SIGIO) is signal.SIG_DFL:
            ctypes.CDLL(None).signal(signal.SIGIO, ctypes.c_void_p(1))  # SIG_IGN


def open_quietly(path: str) -> int:
    """Open a regular file for reading without following a link or changing the access time where allowed.

    What the name stands for may change between a look and the open, and opening a pipe or a device does
    something: so the name is only pointed at, and opened when it proves to be a file. Raises OSError.
    """
    pointer = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(pointer).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        held = f"/proc/self/fd/{pointer}"
        try:
            return os.open(held, _OPEN_FLAGS | os.O_NOATIME)
        except PermissionError:
            # O_NOATIME is for the owner and the privileged alone.
            return os.open(held, _OPEN_FLAGS)
    finally:
        os.close(pointer)


def open_folder(root: str, path: str) -> int:
    """Open a directory at or below ``root`` for listing; only the way to the root itself may lead over links.

    Someone who may rename directories could else lay a link where one was a moment ago, and lead a walk out
    of the tree. Raises OSError, ELOOP for such a link.
    """
    if path == root:
        return os.open(path, _FOLDER_FLAGS)
    base = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        name = os.fsencode(path[len(root.rstrip("/")) + 1 :])
        how = struct.pack("QQQ", _FOLDER_FLAGS, 0, _RESOLVE_NO_SYMLINKS)
        descriptor = int(_LIBC.syscall(_OPENAT2, base, name, how, len(how)))
    finally:
        os.close(base)
    if descriptor >= 0:
        return descriptor
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EPERM):  # before Linux 5.6, or filtered: the last part alone is sure
        return os.open(path, _FOLDER_FLAGS | os.O_NOFOLLOW)
    raise OSError(number, os.strerror(number), path)


def local_writers(path: str) -> int | None:
    """Return 1 when a process of this host holds ``path`` open for writing, 0 when none, None when unknown.

    The kernel refuses a read lease (EAGAIN) while the file is open for writing or mapped writable; the
    lease is given back at once, so an opening writer waits microseconds at most.
    """
    try:
        fd = open_quietly(path)
    except OSError:
        return None
    try:
        return lease_tells_writers(fd)
    finally:
        os.close(fd)


def lease_tells_writers(fd: int) -> int | None:
    """Return what ``local_writers`` does, of the file that a descriptor for reading stands for."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return 1 if error.errno == errno.EAGAIN else None
    return 0


def is_filled(path: str, size: int, points: int = 9) -> bool:
    """Tell whether ``path`` has data at evenly spaced places up to its last page.

    An appended file has, one that was allocated or stretched ahead of its writer has not; and asking at a few
    places costs the same however large the file is. Raises OSError like ``open``.
    """
    fd = open_quietly(path)
    try:
        last = max(0, size - 1)
        return all(_has_data(fd, last * i // max(1, points - 1)) for i in range(points))
    finally:
        os.close(fd)


def _has_data(fd: int, offset: int) -> bool:
    try:
        # The answer is the offset itself, or the beginning of the page for some file systems.
        return os.lseek(fd, offset, os.SEEK_DATA) == offset
    except OSError:
        return False


def data_bytes(path: str, limit_seconds: float = 0.05) -> tuple[int | None, float]:
    """Count the bytes of ``path`` that are not holes; return them and the seconds it took.

    Unwritten (preallocated) extents count as holes until they are dirty, so this grows with the writes
    also for preallocated, sparse and mapped files. None: more than ``limit_seconds``, or no such answer.
    Raises OSError when the file can't be opened.
    """
    begin = time.thread_time()
    fd = open_quietly(path)
    try:
        total: int | None = _walk(fd, begin + limit_seconds)
    finally:
        os.close(fd)
    return total, time.thread_time() - begin


def _walk(fd: int, deadline: float) -> int | None:
    total = offset = 0
    while True:
        try:
            start = os.lseek(fd, offset, os.SEEK_DATA)
            offset = os.lseek(fd, start, os.SEEK_HOLE)
        except OSError as error:
            return total if error.errno == errno.ENXIO else None
        total += offset - start
        if time.thread_time() > deadline:
            return None


class FileSystems:
    """Types of the mounted file systems by device number, read from mountinfo when first asked."""

    def __init__(self, mountinfo: str = "/proc/self/mountinfo") -> None:
        self._mountinfo = mountinfo
        self._types: dict[int, str] = {}

    def type_of(self, path: str, device: int) -> str:
        """Return the type of the file system that holds ``path`` (whose ``st_dev`` is ``device``)."""
        known = self._types.get(device)
        if known is None:
            known = self._types[device] = _mount_type(self._mountinfo, os.path.realpath(path))
        return known

    def forget(self) -> None:
        """Read again from now on: the mounts changed."""
        self._types.clear()


def mount_lines(mountinfo: str) -> frozenset[bytes]:
    """Return the lines of mountinfo, unread: two lists of hundreds of mounts differ in a few."""
    try:
        with open(mountinfo, "rb") as file:
            return frozenset(file.read().split(b"\n"))
    except OSError:
        return frozenset()


def changed_mounts(before: frozenset[bytes], after: frozenset[bytes]) -> set[str]:
    """Return the mount points at which something was mounted or unmounted between two lists of lines."""
    gone, come = _mounts_in(before - after), _mounts_in(after - before)
    return {point for _, point, _ in gone ^ come}


def _mounts_in(lines: Iterable[bytes]) -> set[tuple[int, str, str]]:
    entries = parse_mountinfo(os.fsdecode(b"\n".join(lines)))
    return {(entry.mount_id, entry.mountpoint, entry.fstype) for entry in entries}


def _mount_points(mountinfo: str) -> list[tuple[str, str]]:
    """Return (mount point, type) of every mount, in mount order."""
    try:
        with open(mountinfo, "rb") as file:
            text = os.fsdecode(file.read())
    except OSError:
        return []
    return [(entry.mountpoint, entry.fstype) for entry in parse_mountinfo(text)]


def _mount_type(mountinfo: str, real_path: str) -> str:
    best, kind = -1, "unknown"
    for point, fstype in _mount_points(mountinfo):
        prefix = point.rstrip("/") + "/"
        if (real_path + "/").startswith(prefix) and len(prefix) >= best:
            best, kind = len(prefix), fstype
    return kind
