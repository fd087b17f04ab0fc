"""The state of the page cache before a burst or load, as far as it can be set without others feeling it."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterable
from typing import Final

from ckpt_exporter.sources.residency import PageCache

_BLOCK: Final = 8 << 20
# What the kernel lets become dirty where it does not say otherwise.
_DIRTY_RATIO: Final = 20


def sync_file_system(path: str) -> None:
    """Write out what is dirty on the file system of ``path``, and on no other."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        ctypes.CDLL(None).syncfs(descriptor)
    finally:
        os.close(descriptor)


def dirty_limit_bytes(proc: str = "/proc") -> int | None:
    """Return how many dirty bytes the kernel allows before writers wait; None where it can't be told."""
    absolute = _number(f"{proc}/sys/vm/dirty_bytes")
    if absolute:
        return absolute
    ratio = _number(f"{proc}/sys/vm/dirty_ratio") or _DIRTY_RATIO
    try:
        with open(f"{proc}/meminfo", encoding="ascii") as stream:
            for line in stream:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024 * ratio // 100
    except (OSError, ValueError, IndexError):
        return None
    return None


def _number(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as stream:
            return int(stream.read())
    except (OSError, ValueError):
        return None


def fill_cache(path: str, size: int, stopping: Callable[[], bool]) -> int:
    """Leave ``size`` bytes of another file in the page cache, to be written out; return how many it became.

    Ends early where the storage is full or the bench is stopping.
    """
    block = os.urandom(_BLOCK)
    done = 0
    with contextlib.suppress(OSError), open(path, "xb", buffering=0) as stream:
        while done < size and not stopping():
            done += stream.write(block[: min(_BLOCK, size - done)])
    return done


def drop_cached(paths: Iterable[str]) -> None:
    """Drop what is cached of these files, after it is written out; what others have mapped stays."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):  # a file system without it has nothing to write out
                os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def read_through(paths: Iterable[str], stopping: Callable[[], bool]) -> None:
    """Bring files into the page cache, as far as memory allows."""
    block = bytearray(_BLOCK)
    for path in paths:
        with open(path, "rb", buffering=0) as stream:
            while not stopping() and stream.readinto(block):
                pass


def cached_bytes(paths: Iterable[str]) -> int | None:
    """Return how many bytes of these files are cached; None where the kernel does not tell."""
    page_cache = PageCache()
    found = [page_cache.cached_bytes(path, os.stat(path).st_size) for path in paths]
    known = [cached for cached in found if cached is not None]
    return sum(known) if len(known) == len(found) else None
