"""How much of a file is in the page cache, by cachestat(2)."""

from __future__ import annotations

import ctypes
import os
import struct

from ckpt_exporter.sources.filestat import open_quietly

# One number on every architecture, since Linux 6.5.
_SYS_CACHESTAT = 451
_RANGE = struct.Struct("=QQ")
_ANSWER = struct.Struct("=QQQQQ")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class PageCache:
    """Ask the kernel; where it has no such call, it is asked once."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.available = True

    def cached_bytes(self, path: str, size: int) -> int | None:
        """Return how many bytes of a file are cached, None where that can't be known.

        Opens the file for a moment, which a watch of its directory sees.
        """
        if not self.available:
            return None
        try:
            fd = open_quietly(path)
        except OSError:
            return None
        try:
            pages = self._pages(fd)
        finally:
            os.close(fd)
        return None if pages is None else min(size, pages * _PAGE_BYTES)

    def _pages(self, fd: int) -> int | None:
        whole = ctypes.create_string_buffer(_RANGE.pack(0, 0), _RANGE.size)
        answer = ctypes.create_string_buffer(_ANSWER.size)
        result = self._libc.syscall(
            ctypes.c_long(_SYS_CACHESTAT), ctypes.c_int(fd), whole, answer, ctypes.c_uint(0)
        )
        if result != 0:
            self.available = False
            return None
        cached: int = _ANSWER.unpack(answer.raw)[0]
        return cached
