"""Write one file at a steady pace, and keep the truth: ``python writer_methods.py METHOD PATH``.

Waits for a line on standard input, writes, and prints ``MONOTONIC BYTES`` before and after each block.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import sys
import time

BLOCK_BYTES = 512 * 1024
BLOCKS = 160
SECONDS = 3.0
TOTAL_BYTES = BLOCK_BYTES * BLOCKS
METHODS = ("append", "fallocate", "sparse", "mmap", "direct", "libaio", "overwrite")
# x86_64 system calls
IO_SETUP, IO_GETEVENTS, IO_SUBMIT = 206, 208, 209
IOCB_CMD_PWRITE = 1


class Libaio:
    """One context of Linux asynchronous I/O with one request at a time."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.syscall.restype = ctypes.c_long
        self._context = ctypes.c_ulong(0)
        self._call(IO_SETUP, ctypes.c_long(1), ctypes.byref(self._context))

    def _call(self, *arguments: object) -> int:
        number, *rest = arguments
        answer = int(self._libc.syscall(ctypes.c_long(number), *rest))  # type: ignore[arg-type]
        if answer < 0:
            raise OSError(ctypes.get_errno(), "libaio")
        return answer

    def pwrite(self, fd: int, address: int, size: int, offset: int) -> None:
        """Submit one write and wait for it."""
        request = struct.pack("QIIHhIQQqQII", 0, 0, 0, IOCB_CMD_PWRITE, 0, fd, address, size, offset, 0, 0, 0)
        control = ctypes.create_string_buffer(request, 64)
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(control))
        self._call(IO_SUBMIT, self._context, ctypes.c_long(1), pointers)
        event = ctypes.create_string_buffer(32)
        self._call(IO_GETEVENTS, self._context, ctypes.c_long(1), ctypes.c_long(1), event, None)
        written = struct.unpack("QQqq", event.raw)[2]
        if written != size:
            raise OSError(-written, "libaio write")


def main(method: str, path: str) -> None:
    """Write and tell the truth."""
    flags = {"append": os.O_CREAT | os.O_WRONLY, "overwrite": os.O_WRONLY}.get(method, os.O_CREAT | os.O_RDWR)
    if method == "direct":
        flags |= os.O_DIRECT
    area = mmap.mmap(-1, BLOCK_BYTES)  # aligned, as O_DIRECT asks for
    area.write(b"x" * BLOCK_BYTES)
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    aio = Libaio() if method == "libaio" else None
    print("ready", flush=True)
    sys.stdin.readline()
    fd = os.open(path, flags, 0o644)
    if method == "fallocate":
        os.posix_fallocate(fd, 0, TOTAL_BYTES)
    if method in ("sparse", "mmap"):
        os.ftruncate(fd, TOTAL_BYTES)
    mapped = mmap.mmap(fd, TOTAL_BYTES) if method == "mmap" else None
    began, truth = time.monotonic(), []
    for block in range(BLOCKS):
        time.sleep(max(0.0, began + block * SECONDS / BLOCKS - time.monotonic()))
        offset = block * BLOCK_BYTES
        truth.append((time.monotonic(), offset))
        if mapped is not None:
            mapped[offset : offset + BLOCK_BYTES] = area[:]
        elif aio is not None:
            aio.pwrite(fd, address, BLOCK_BYTES, offset)
        else:
            os.pwrite(fd, area, offset)
        truth.append((time.monotonic(), offset + BLOCK_BYTES))
    if mapped is not None:
        mapped.close()
    os.close(fd)
    for t, written in truth:
        print(t, written)


if __name__ == "__main__":
    main(*sys.argv[1:])
