"""One reader of a checkpoint, as a process of its own: ``python -m ckpt_exporter.analysis.bench_reader``.

It gets its task as one JSON line, says ``ready``, waits for a line, reads, and answers with one JSON line;
then it keeps what it has mapped until it is ended, as a process that has loaded a model does. It imports
nothing of the detector. Times are CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
from typing import Any

from ckpt_exporter.analysis.bench_writer import Pace, end_with_parent

_BLOCK_BYTES = 8 << 20
_PAGE_BYTES = 4096


def main() -> None:
    """Do one task."""
    end_with_parent()
    task = json.loads(sys.stdin.readline())
    block = mmap.mmap(-1, _BLOCK_BYTES)  # on a page boundary, as O_DIRECT wants it
    kept: list[mmap.mmap] = []
    print("ready", flush=True)
    if not sys.stdin.readline():
        return
    try:
        answer = read_files(task, block, kept)
    except OSError as error:
        answer = {"error": f"{error.strerror}: {error.filename or ''}"}
    print(json.dumps(answer), flush=True)
    sys.stdin.readline()


def read_files(task: dict[str, Any], block: mmap.mmap, kept: list[mmap.mmap]) -> dict[str, Any]:
    """Read every file of the task, one after the other; return when, how much, and what the storage gave.

    ``fetched_bytes`` are those that this process's reads brought in from the storage, null where that is not
    counted. What is mapped is added to ``kept``.
    """
    before = _fetched_bytes()
    begin = time.monotonic()
    pace = Pace(task["bytes_per_second"], begin)
    read, end, direct = 0, begin, task["method"] == "direct"
    for path in task["files"]:
        if task["method"] == "mmap":
            count, end = _read_mapped(path, pace, kept)
        else:
            count, end, was_direct = _read(path, block, pace, direct=task["method"] == "direct")
            direct = direct and was_direct
        read += count
    after = _fetched_bytes()
    fetched = None if before is None or after is None else after - before
    return {"begin": begin, "end": end, "bytes": read, "direct": direct, "fetched_bytes": fetched}


def _read(path: str, block: mmap.mmap, pace: Pace, *, direct: bool) -> tuple[int, float, bool]:
    """Read a file to its end; return how much, when its last byte was there, and whether directly."""
    descriptor, is_direct = _open(path, direct=direct)
    done, last = 0, time.monotonic()
    try:
        view = memoryview(block)[: max(_PAGE_BYTES, pace.chunk_bytes)]
        while count := os.readv(descriptor, [view]):
            done, last = done + count, time.monotonic()
            pace.wait(count)
            # Past a last piece that is no whole page some file systems refuse to read directly.
            if is_direct and count % _PAGE_BYTES:
                break
        view.release()
    finally:
        os.close(descriptor)
    return done, last, is_direct


def _open(path: str, *, direct: bool) -> tuple[int, bool]:
    flags = os.O_RDONLY | os.O_CLOEXEC
    if direct:
        try:
            return os.open(path, flags | os.O_DIRECT), True
        except OSError as error:
            if error.errno != 22:  # EINVAL: this file system has no direct reads
                raise
    return os.open(path, flags), False


def _read_mapped(path: str, pace: Pace, kept: list[mmap.mmap]) -> tuple[int, float]:
    """Map a file and touch every page of it; return its size, and when the last one was there."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        view = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)
    kept.append(view)
    step, last = max(_PAGE_BYTES, pace.chunk_bytes), time.monotonic()
    for at in range(0, size, step):
        view[at : at + step : _PAGE_BYTES]  # one byte of each page brings in all of it
        last = time.monotonic()
        pace.wait(min(step, size - at))
    return size, last


def _fetched_bytes() -> int | None:
    """Return what the storage has given this process so far; None where the kernel does not count."""
    try:
        with open("/proc/self/io", encoding="ascii") as stream:
            counters = dict(line.split(": ") for line in stream)
        return int(counters["read_bytes"])
    except (OSError, ValueError, KeyError):
        return None


if __name__ == "__main__":
    main()
