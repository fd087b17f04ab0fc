"""The state of the page cache before a burst, as far as anyone may set it: nothing that others would feel."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable
from typing import Final

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
