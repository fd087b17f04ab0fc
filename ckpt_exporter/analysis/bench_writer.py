"""One writer of a burst, as a process of its own: ``python -m ckpt_exporter.analysis.bench_writer``.

It reads its task as one JSON line, says ``ready``, waits for a line, writes, and answers with one JSON line.
It imports nothing of the program: what it measures is independent of the detector. Times are CLOCK_MONOTONIC,
which all processes of a machine share.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import signal
import sys
import time
from typing import Any

_BLOCK_BYTES = 8 << 20
_PAGE_BYTES = 4096
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Do one task."""
    end_with_parent()
    task = json.loads(sys.stdin.readline())
    block = _random_block()
    print("ready", flush=True)
    if not sys.stdin.readline():
        return
    try:
        answer = write_files(task, block)
    except OSError as error:
        answer = {"error": f"{error.strerror}: {error.filename or ''}"}
    print(json.dumps(answer), flush=True)


def end_with_parent() -> None:
    """Make sure that this process does not outlive the bench, however that ends."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _random_block() -> mmap.mmap:
    """Return twice a block of random bytes on page boundaries, as O_DIRECT wants them."""
    block = mmap.mmap(-1, 2 * _BLOCK_BYTES)
    for _ in range(2):
        block.write(os.urandom(_BLOCK_BYTES))
    return block


def write_files(task: dict[str, Any], block: mmap.mmap) -> dict[str, Any]:
    """Write every file of the task, one after the other; return when and how long."""
    begin = time.monotonic()
    sync_seconds, written, direct = 0.0, 0, bool(task["direct"])
    pace = Pace(task["bytes_per_second"], begin)
    for name, size in task["files"]:
        path = os.path.join(task["root"], name)
        descriptor, is_direct = _open(path, direct=bool(task["direct"]))
        direct = direct and is_direct
        try:
            written += _write(descriptor, size, block, pace, direct=is_direct)
            if task["fsync"]:
                before = time.monotonic()
                os.fsync(descriptor)
                sync_seconds += time.monotonic() - before
        finally:
            os.close(descriptor)
    end = time.monotonic()
    return {"begin": begin, "end": end, "bytes": written, "sync_seconds": sync_seconds, "direct": direct}


def _open(path: str, *, direct: bool) -> tuple[int, bool]:
    """Make a new file, around the page cache where that is asked for and possible."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    if direct:
        try:
            return os.open(path, flags | os.O_DIRECT, 0o600), True
        except OSError as error:
            if error.errno != 22:  # EINVAL: this file system has no direct writes
                raise
            with contextlib.suppress(FileNotFoundError):  # some make the file all the same
                os.unlink(path)
    return os.open(path, flags, 0o600), False


def _write(descriptor: int, size: int, block: mmap.mmap, pace: Pace, *, direct: bool) -> int:
    view = memoryview(block)
    done = 0
    while done < size:
        count = min(_BLOCK_BYTES, size - done, pace.chunk_bytes)
        if direct and count % _PAGE_BYTES:
            count = count // _PAGE_BYTES * _PAGE_BYTES
            if count == 0:  # the last piece is no whole page: it goes through the page cache
                _leave_direct(descriptor)
                direct, count = False, size - done
        # Another start for each block, so that no two blocks are the same to a storage that looks for that.
        start = (done // _PAGE_BYTES * 7919 % (_BLOCK_BYTES // _PAGE_BYTES)) * _PAGE_BYTES
        done += os.write(descriptor, view[start : start + count])
        pace.wait(count)
    view.release()
    return done


def _leave_direct(descriptor: int) -> None:
    import fcntl  # noqa: PLC0415 (only direct writes need it)

    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~os.O_DIRECT)


class Pace:
    """Holds a writer or reader to a rate, as a slower storage would; 0 is no limit."""

    def __init__(self, bytes_per_second: float, begin: float) -> None:
        """Begin at a moment of the monotonic clock."""
        self._rate = bytes_per_second
        self._begin = begin
        self._bytes = 0
        self.chunk_bytes = _BLOCK_BYTES
        if bytes_per_second:
            # A tenth of a second at a time, in whole pages.
            self.chunk_bytes = max(_PAGE_BYTES, min(_BLOCK_BYTES, int(bytes_per_second / 10) // 4096 * 4096))

    def wait(self, count: int) -> None:
        """Sleep until ``count`` more bytes are due."""
        if self._rate:
            self._bytes += count
            time.sleep(max(0.0, self._begin + self._bytes / self._rate - time.monotonic()))


if __name__ == "__main__":
    main()
