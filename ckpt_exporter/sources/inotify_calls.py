"""The kernel's inotify calls, through libc, with paths as bytes."""

from __future__ import annotations

import ctypes
import os
import struct
from typing import NamedTuple

IN_MODIFY = 0x2
IN_CLOSE_WRITE = 0x8
IN_CLOSE_NOWRITE = 0x10
IN_OPEN = 0x20
IN_MOVED_FROM = 0x40
IN_MOVED_TO = 0x80
IN_CREATE = 0x100
IN_DELETE = 0x200
IN_DELETE_SELF = 0x400
IN_MOVE_SELF = 0x800
IN_UNMOUNT = 0x2000
IN_Q_OVERFLOW = 0x4000
IN_IGNORED = 0x8000
IN_ONLYDIR = 0x1000000
IN_DONT_FOLLOW = 0x2000000
IN_MASK_ADD = 0x20000000
IN_ISDIR = 0x40000000

# While a save runs: no MODIFY, because it slows a writer of 64 KiB blocks by a tenth and is blind to
# libaio, GPUDirect and mapped writes anyway.
BASE_MASK = (
    IN_CREATE
    | IN_CLOSE_WRITE
    | IN_MOVED_FROM
    | IN_MOVED_TO
    | IN_DELETE
    | IN_DELETE_SELF
    | IN_MOVE_SELF
    | IN_ONLYDIR
)
# While nothing happens: overwriting an existing name raises no CREATE, so its start is an OPEN or a MODIFY.
IDLE_MASK = BASE_MASK | IN_OPEN | IN_MODIFY
# While a checkpoint file is being read there. Not while idle: whoever lists a tree closes every directory.
READING_MASK = IDLE_MASK | IN_CLOSE_NOWRITE

_HEADER = struct.Struct("iIII")
_READ_BYTES = 256 * 1024


class RawEvent(NamedTuple):
    """One ``struct inotify_event``; ``name`` is empty for an event of the watched directory itself."""

    wd: int
    mask: int
    cookie: int
    name: bytes


class InotifyCalls:
    """Call the kernel; every failure is an ``OSError``. Tests replace single methods."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.inotify_add_watch.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)

    def init(self) -> int:
        """Open an inotify instance and return its descriptor (close-on-exec, non-blocking)."""
        return self._checked(self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))

    def add_watch(self, fd: int, path: bytes, mask: int) -> int:
        """Watch ``path``, or change the mask of its watch; return the watch descriptor."""
        return self._checked(self._libc.inotify_add_watch(fd, path, mask))

    def rm_watch(self, fd: int, wd: int) -> None:
        """Remove a watch; the kernel answers with an IGNORED event."""
        self._checked(self._libc.inotify_rm_watch(fd, wd))

    def read(self, fd: int) -> list[RawEvent]:
        """Return the queued events, none when the queue is empty."""
        try:
            return parse(os.read(fd, _READ_BYTES))
        except BlockingIOError:
            return []

    @staticmethod
    def _checked(result: int) -> int:
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result


def parse(buffer: bytes) -> list[RawEvent]:
    """Split what ``read`` returned into events; see inotify(7) for the layout."""
    events: list[RawEvent] = []
    offset = 0
    while offset < len(buffer):
        wd, mask, cookie, length = _HEADER.unpack_from(buffer, offset)
        offset += _HEADER.size
        events.append(RawEvent(wd, mask, cookie, buffer[offset : offset + length].rstrip(b"\0")))
        offset += length
    return events
