"""A thread per directory that finds out who writes there, while something is being written."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from ckpt_exporter.logs import log_event
from ckpt_exporter.model import Fact, FileEvent, Progress, ProgressMethod
from ckpt_exporter.sources.writers import WriterScan, io_written, write_position

_LOG = logging.getLogger("ckpt_exporter.writers")

# While a save is open; the scan itself bounds its cost.
SCAN_SECONDS = 1.0
# How long writers are asked after once the last file is closed: whether they still live decides how a save
# without a commit ended.
LINGER_SECONDS = 15.0
MAX_FILES = 4096
MAX_UNKNOWN_SECONDS = 0.5
MIN_KNOWN_SECONDS = 0.25
FILE_TIME_SECONDS = 0.01  # file times tick

# The GPUs of the run that processes belong to; None where it cannot be told.
GpusOf = Callable[[Iterable[int]], "tuple[int, ...] | None"]


class DirectoryWriters:
    """Who writes below one directory.

    ``note`` is told every fact and returns at once; scanning happens in a thread of its own, since looking
    at another process's descriptors can wait for a dead mount.
    """

    def __init__(
        self, name: str, emit: Callable[[Fact], None], clock: Callable[[], float], gpus_of: GpusOf
    ) -> None:
        self._name = name
        self._emit = emit
        self._clock = clock
        self._gpus_of = gpus_of
        self._scan = WriterScan(name, clock=clock)
        self._lock = threading.Lock()
        self._files: dict[str, str | None] = {}
        self._last_open = float("-inf")
        self._closed = False
        self._gpus: tuple[int, ...] | None = None
        self._opened_at: dict[str, float] = {}
        # I/O of each writer when it was found, and when that was.
        self._io_before: dict[int, tuple[int, int]] = {}
        self._io_at: dict[int, float] = {}
        self._written_before: set[str] = set()  # before its writer was found
        self._due = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def note(self, fact: Fact) -> None:
        """Take in a fact of this directory."""
        if isinstance(fact, FileEvent):
            if not fact.is_dir and fact.local and (not fact.initial or fact.event == "open"):
                self._note_event(fact)
        elif isinstance(fact, Progress) and fact.writers:
            with self._lock:
                self._remember(fact.path, fact.inode)

    def _note_event(self, event: FileEvent) -> None:
        with self._lock:
            if event.event in ("create", "open") and event.path is not None:
                self._remember(event.path, event.inode)
            elif event.event in ("close_write", "deleted") and event.path is not None:
                self._opened_at.pop(event.path, None)
                if self._files.pop(event.path, None) is not None and event.event == "close_write":
                    self._closed = True
                    self._due.set()
            elif event.event == "moved" and event.path in self._files:
                inode = self._files.pop(event.path)
                opened_at = self._opened_at.pop(event.path, None)
                if event.to is not None:
                    self._files[event.to] = inode
                    if opened_at is not None:
                        self._opened_at[event.to] = opened_at

    def _remember(self, path: str, inode: str | None) -> None:
        if path not in self._files and len(self._files) >= MAX_FILES:
            return
        new = path not in self._files
        self._files[path] = inode or self._files.get(path)
        self._last_open = self._clock()
        if new:
            self._opened_at[path] = self._last_open
            self._start()
            self._due.set()

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name=f"writers-{self._name}", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._due.wait(None if self._idle() else SCAN_SECONDS)
            self._due.clear()
            if self._stopping.is_set():
                return
            try:
                self._look()
            except Exception as error:  # noqa: BLE001 (thread boundary: knowing less must not end the thread)
                log_event(_LOG, logging.ERROR, "scan for writers failed", error=error, dir=self._name)

    def _idle(self) -> bool:
        with self._lock:
            return not self._files and self._clock() - self._last_open > LINGER_SECONDS

    def _look(self) -> None:
        with self._lock:
            files, closed, self._closed = dict(self._files), self._closed, False
        if closed:
            self._tell_if_alive()
        writers = self._scan.scan(self._clock(), files)
        if writers is not None:
            fresh = [pid for pid in writers.pids if pid not in self._io_before]
            self._io_before = {p: self._io_before[p] for p in writers.pids if p in self._io_before}
            self._io_before.update(io_written(fresh))
            now = self._clock()
            self._io_at = {pid: self._io_at.get(pid, now) for pid in writers.pids}
            if fresh:
                self._written_before |= {path for path in writers.paths if self._is_written(path)}
                self._written_before &= files.keys()
            self._gpus = self._gpus_of(writers.pids) if writers.alive else self._gpus
            self._emit(replace(writers, gpus=self._gpus))

    def _is_written(self, path: str) -> bool:
        """Tell whether a file has been written to since it was opened."""
        try:
            age_seconds = time.time() - os.stat(path).st_mtime
        except OSError:
            return False
        opened_seconds = self._clock() - self._opened_at.get(path, float("-inf"))
        return age_seconds < opened_seconds - FILE_TIME_SECONDS

    def _tell_if_alive(self) -> None:
        """Say at once after a close whether the writers live: a killed one closes its files by dying."""
        last = self._scan.last
        if last is not None and self._scan.is_alive():
            self._gpus = self._gpus or self._gpus_of(last.pids)
            self._emit(replace(last, t=self._clock(), alive=True, gpus=self._gpus))

    def overwrite_position(self, path: str) -> tuple[int, ProgressMethod] | None:
        """Tell how many bytes were written over a file in place, by its writer's descriptor or its I/O.

        None when no writer of it is known. The descriptor's offset is exact for sequential writes; the I/O
        of the writers counts from the moment they were found, and includes their other files.
        """
        holders = [file for file in self._scan.last_files if file.path == path]
        offsets = [write_position(f.pid, f.fd) for f in holders if f.fd is not None]
        offset = max((o for o in offsets if o is not None), default=0)
        if offset > 0:
            return offset, "descriptor"
        opened_at = self._opened_at.get(path, self._clock())
        grown = [
            self._grown(pid, now, opened_at) for pid, now in io_written({f.pid for f in holders}).items()
        ]
        return (sum(grown), "io") if grown else None

    def _grown(self, pid: int, now: tuple[int, int], opened_at: float) -> int:
        """Return what a writer has written since the file was opened.

        Its I/O is known from the moment it was found; if it wrote before, it is taken to have been as fast.
        """
        before, found_at = self._io_before.get(pid, now), self._io_at.get(pid, opened_at)
        grown = max(max(0, a - b) for a, b in zip(now, before, strict=True))
        known_seconds = self._clock() - found_at
        unknown_seconds = min(max(0.0, found_at - opened_at), MAX_UNKNOWN_SECONDS, 2 * known_seconds)
        return round(grown * (1 + unknown_seconds / known_seconds)) if known_seconds > 0 else grown

    def stop(self) -> None:
        """End the thread; it is not waited for, since it may hang on a dead mount."""
        self._stopping.set()
        self._due.set()


class WritersSource:
    """The writers of all directories."""

    def __init__(
        self,
        emit: Callable[[Fact], None],
        clock: Callable[[], float],
        gpus_of: GpusOf = lambda _pids: None,
    ) -> None:
        self._emit = emit
        self._clock = clock
        self._gpus_of = gpus_of
        self._directories: Mapping[str, DirectoryWriters] = {}

    def replace_directories(self, names: Iterable[str]) -> None:
        """Watch over the writers of these directories from now on."""
        before = self._directories
        self._directories = {
            name: before.get(name) or DirectoryWriters(name, self._emit, self._clock, self._gpus_of)
            for name in names
        }
        for name in before.keys() - self._directories.keys():
            before[name].stop()

    def note(self, name: str, fact: Fact) -> None:
        """Tell what happened below a directory."""
        directory = self._directories.get(name)
        if directory is not None:
            directory.note(fact)

    def overwrite_position(self, name: str, path: str) -> tuple[int, ProgressMethod] | None:
        """Tell how many bytes were written over a file in place; None if unknown."""
        directory = self._directories.get(name)
        return directory.overwrite_position(path) if directory is not None else None

    def stop(self) -> None:
        """End all threads."""
        for directory in self._directories.values():
            directory.stop()
