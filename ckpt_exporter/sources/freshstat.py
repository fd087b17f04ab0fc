"""``stat`` that asks the file server: what this host remembers of other hosts' files may be a minute old."""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from ckpt_exporter.sources.filestat import open_folder

_AT_FDCWD = -100
_NOFOLLOW = 0x100
# The one call that a client of a network file system may not answer from its attribute cache.
_FORCE_SYNC = 0x2000
_BASIC_AND_BIRTH = 0xFFF
_HAS_BIRTH = 0x800
# Offsets in struct statx, see statx(2).
_STATX_BYTES = 256
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class FreshStat:
    """What the server says of one name. Times are its clock's, Unix nanoseconds; ``born_ns`` None unknown."""

    is_dir: bool
    is_file: bool
    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int
    born_ns: int | None = None

    @property
    def stamp(self) -> tuple[int, int, int, int]:
        """What differs once the file or directory has changed."""
        return (self.inode, self.size, self.modified_ns, self.changed_ns)


@dataclass(frozen=True, slots=True)
class Name:
    """One entry of a directory, as its list tells."""

    name: str
    inode: int
    is_dir: bool
    is_link: bool


class FileServer:
    """The questions that a look asks; every one may hang on a dead mount, and raises OSError."""

    def stat(self, path: str, *, follow: bool = False) -> FreshStat:
        """Ask about one name, with one call."""
        return fresh_stat(path, follow=follow)

    def names(self, root: str, path: str) -> Iterator[Name]:
        """List a directory at or below ``root``."""
        descriptor = open_folder(root, path)
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    is_dir = entry.is_dir(follow_symlinks=False)
                    yield Name(entry.name, entry.inode(), is_dir, entry.is_symlink())
        finally:
            os.close(descriptor)


def fresh_stat(path: str, *, follow: bool = False) -> FreshStat:
    """Ask the file server about a name, with one call; raises OSError."""
    statx = getattr(_LIBC, "statx", None)
    if statx is None:  # a C library before 2018
        return _from_stat(os.stat(path) if follow else os.lstat(path))
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    flags = _FORCE_SYNC | (0 if follow else _NOFOLLOW)
    if statx(_AT_FDCWD, os.fsencode(path), flags, _BASIC_AND_BIRTH, buffer) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    (mask,) = struct.unpack_from("I", buffer, 0)
    (mode,) = struct.unpack_from("H", buffer, 28)
    inode, size = struct.unpack_from("QQ", buffer, 32)
    major, minor = struct.unpack_from("II", buffer, 136)
    return FreshStat(
        is_dir=stat.S_ISDIR(mode),
        is_file=stat.S_ISREG(mode),
        device=os.makedev(major, minor),
        inode=inode,
        size=size,
        modified_ns=_time_at(buffer, 112),
        changed_ns=_time_at(buffer, 96),
        born_ns=_time_at(buffer, 80) if mask & _HAS_BIRTH else None,
    )


def _time_at(buffer: ctypes.Array[ctypes.c_char], offset: int) -> int:
    seconds, nanoseconds = struct.unpack_from("qI", buffer, offset)
    return int(seconds) * 1_000_000_000 + int(nanoseconds)


def _from_stat(st: os.stat_result) -> FreshStat:
    return FreshStat(
        stat.S_ISDIR(st.st_mode), stat.S_ISREG(st.st_mode), st.st_dev, st.st_ino, st.st_size,
        st.st_mtime_ns, st.st_ctime_ns,
    )  # fmt: skip
