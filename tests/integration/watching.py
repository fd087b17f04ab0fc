"""A watch on real files for tests: collected facts, and waiting for them."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import platform
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ckpt_exporter.model import DirectorySettings, Fact, FileEvent, Progress, WatchChange
from ckpt_exporter.sources.entry import WatchSettings
from ckpt_exporter.sources.watch import WatchSource

# Short intervals, so that a test sees within a second what takes a minute on a node.
FAST = WatchSettings(
    rearm_seconds=0.3,
    hint_interval_seconds=0.05,
    root_check_seconds=0.5,
    outage_seconds=2.0,
    burst_scan_seconds=0.2,
    unwatched_poll_seconds=0.2,
    retry_seconds=0.5,
    quiet_close_seconds=0.5,
    silent_probe_seconds=1.0,
    restart_seconds=0.1,
    supervise_seconds=0.1,
)


class Recorder:
    """Collects facts and lets a test wait for what it expects."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self._changed = threading.Condition()

    def emit(self, fact: Fact) -> None:
        with self._changed:
            self.facts.append(fact)
            self._changed.notify_all()

    def wait(self, condition: Callable[[], object], seconds: float = 20.0) -> Any:
        """Return the condition's value once it is true; fail after ``seconds``."""
        deadline = time.monotonic() + seconds
        while True:
            begin = time.monotonic()
            value = condition()
            if value:
                return value
            left = deadline - time.monotonic()
            if left <= 0:
                shown = "\n".join(map(str, self.facts[-8:]))
                raise AssertionError(f"not seen within {seconds} s; last facts:\n{shown}")
            # A look through thousands of facts, repeated at each of them, would starve what makes them.
            time.sleep(min(left, 2.0 * (time.monotonic() - begin)))
            with self._changed:
                self._changed.wait(min(left, 0.05))

    def events(self, path: str | None = None) -> list[FileEvent]:
        """Return the file events (of one path, as old or new name) without directories and the start."""
        return [
            fact
            for fact in list(self.facts)
            if isinstance(fact, FileEvent)
            and not fact.is_dir
            and not fact.initial
            and path in (None, fact.path, fact.to)
        ]

    def kinds(self, path: str | None = None) -> list[str]:
        return [event.event for event in self.events(path)]

    def wait_kinds(self, path: str, *kinds: str, seconds: float = 20.0) -> list[FileEvent]:
        """Wait until exactly these kinds were seen of ``path``; return the events."""
        self.wait(lambda: self.kinds(path) == list(kinds), seconds)
        return self.events(path)

    def progress(self, path: str) -> list[Progress]:
        return [fact for fact in list(self.facts) if isinstance(fact, Progress) and fact.path == path]

    def changes(self) -> list[tuple[str, str]]:
        return [(fact.event, fact.reason) for fact in list(self.facts) if isinstance(fact, WatchChange)]


class Watched:
    """A running source, its facts, and one directory of it."""

    def __init__(self, source: WatchSource, seen: Recorder, root: str) -> None:
        self.source, self.seen, self.root = source, seen, root

    def path(self, name: str) -> str:
        return os.path.join(self.root, name)

    def engine(self, name: str = "run") -> Any:
        return self.source._emitters[name].engine

    def idle(self, name: str = "run") -> None:
        """Wait until every directory has the mask that notices an overwrite."""

        def quiet() -> bool:
            engine = self.engine(name)
            nodes = [] if engine is None else list(engine.trees.unarmed)
            if engine is None or any(node.path.startswith(self.root) for node in nodes):
                return False
            # A new directory is in the tree before it is watched.
            root = engine.roots.find(self.root)
            return root is not None and bool(root.armed)

        self.seen.wait(quiet, 40.0)


@contextmanager
def watching(
    *roots: str, settings: WatchSettings = FAST, up: bool = True, **arguments: Any
) -> Iterator[Watched]:
    """Watch directories named ``run``, ``run1``, ... until the block ends."""
    seen = Recorder()
    directories = [
        DirectorySettings("run" if index == 0 else f"run{index}", root) for index, root in enumerate(roots)
    ]
    source = WatchSource(directories, seen.emit, settings=settings, **arguments)
    source.start()
    try:
        if up:
            seen.wait(lambda: sum(change == ("rescan", "start") for change in seen.changes()) >= len(roots))
        yield Watched(source, seen, roots[0])
    finally:
        begin = time.monotonic()
        source.stop()
        assert time.monotonic() - begin < 1.0
        assert source.handler.failures == 0


def fast(**changes: Any) -> WatchSettings:
    """Return the short intervals with some of them changed."""
    return dataclasses.replace(FAST, **changes)


# --- ways to write that Python has no call for ----------------------------------------------------------

LIBC = ctypes.CDLL(None, use_errno=True)
HAS_LIBAIO = platform.machine() == "x86_64"
_IO_SETUP, _IO_DESTROY, _IO_GETEVENTS, _IO_SUBMIT = 206, 207, 208, 209
_RENAME_EXCHANGE = 2
_FALLOC_KEEP_SIZE = 1


def libaio_write(fd: int, data: bytes, offset: int = 0) -> None:
    """Write by ``io_submit``, which raises no MODIFY event."""
    buffer = aligned(data)
    context = ctypes.c_ulong(0)
    assert LIBC.syscall(_IO_SETUP, 1, ctypes.byref(context)) == 0
    control = ctypes.create_string_buffer(
        struct.pack("QIIHhIQQqQII", 0, 0, 0, 1, 0, fd, buffer, len(data), offset, 0, 0, 0)
    )
    pointer = ctypes.c_void_p(ctypes.addressof(control))
    assert LIBC.syscall(_IO_SUBMIT, context, 1, ctypes.byref(pointer)) == 1
    answer = ctypes.create_string_buffer(32)
    assert LIBC.syscall(_IO_GETEVENTS, context, 1, 1, answer, None) == 1
    assert struct.unpack("QQqq", answer.raw)[2] == len(data)
    LIBC.syscall(_IO_DESTROY, context)


_KEPT: list[Any] = []


def aligned(data: bytes) -> int:
    """Return the address of a copy of ``data`` on a page boundary, as O_DIRECT wants it."""
    buffer = ctypes.create_string_buffer(len(data) + 4096)
    address = (ctypes.addressof(buffer) + 4095) // 4096 * 4096
    ctypes.memmove(address, data, len(data))
    _KEPT[:] = [*_KEPT[-3:], buffer]
    return address


def direct_write(fd: int, data: bytes, offset: int) -> None:
    """Write by ``pwrite`` from an aligned buffer."""
    written = LIBC.pwrite(
        fd, ctypes.c_void_p(aligned(data)), ctypes.c_size_t(len(data)), ctypes.c_long(offset)
    )
    assert written == len(data), os.strerror(ctypes.get_errno())


def fallocate_keep_size(fd: int, length: int) -> None:
    LIBC.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
    assert LIBC.fallocate(fd, _FALLOC_KEEP_SIZE, 0, length) == 0


def exchange(one: str, other: str) -> None:
    """Swap two names at once."""
    assert LIBC.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), _RENAME_EXCHANGE) == 0


def link_unnamed(fd: int, path: str) -> None:
    """Give a file made with O_TMPFILE its name."""
    follow = 0x400  # AT_SYMLINK_FOLLOW
    assert LIBC.linkat(-100, f"/proc/self/fd/{fd}".encode(), -100, os.fsencode(path), follow) == 0
