"""A thread per directory that looks at who reads its files, only while something is being read."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ckpt_exporter.logs import log_event
from ckpt_exporter.model import Fact, ReadEvent, Reading
from ckpt_exporter.sources.filestat import lstat
from ckpt_exporter.sources.readers import FileId, ReaderSearch, readers_visible
from ckpt_exporter.sources.residency import PageCache

_LOG = logging.getLogger("ckpt_exporter.reading")

# The end of a load is known to a fiftieth of its duration, and not better than this.
FAST_SECONDS = 0.04
SLOW_SECONDS = 1.0
ERROR_SHARE = 0.02
# Looking may take this share of the time.
LOOK_SHARE = 0.05
# A file that nobody is seen to hold for so long is followed no longer.
UNHELD_SECONDS = 1.0
# A mapping may stay for as long as a model is served: without news for so long it is left alone.
SILENT_SECONDS = 30.0
# A file that was closed, and is opened again after so long, is read anew.
AGAIN_SECONDS = 0.5
OWN_EVENTS_SECONDS = 1.0
# A look at the page cache later than this shows too much of what the reader itself has brought in by then;
# where reads from the storage are counted, that can be worked out for longer.
PROMPT_SECONDS = 0.05
COUNTED_SECONDS = 0.5
MAX_FILES = 4096


@dataclass(slots=True)
class _Followed:
    """One file that is being read, as far as is known."""

    id: FileId
    size: int
    opened: float
    last: float
    looked: bool = False
    closed: bool = False
    own_opens: int = 0
    own_closes: int = 0
    own_until: float = 0.0


class DirectoryReaders:
    """Who reads below one directory. ``note`` returns at once; looking happens in a thread of its own."""

    def __init__(
        self,
        name: str,
        emit: Callable[[Fact], None],
        clock: Callable[[], float],
        *,
        proc: str = "/proc",
        page_cache: PageCache | None = None,
    ) -> None:
        self._name = name
        self._emit = emit
        self._clock = clock
        self._page_cache = page_cache or PageCache()
        self._search = ReaderSearch(clock, proc)
        self._visible = readers_visible(proc)
        self._lock = threading.Lock()
        self._files: dict[str, _Followed] = {}
        self._began = 0.0
        self._news_at = 0.0
        self._opened = False  # a followed file was opened again, by a known reader or another
        # What was told of each last, and whether that was news.
        self._shown: dict[tuple[int, str], tuple[tuple[object, ...], bool]] = {}
        self._due = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def is_own(self, event: ReadEvent) -> bool:
        """Tell whether an open or close was this program's own look at the file; asked once for each."""
        with self._lock:
            file = self._files.get(event.path)
            if file is None or event.t > file.own_until:
                return False
            if event.event == "open" and file.own_opens:
                file.own_opens -= 1
                return True
            if event.event == "close" and file.own_closes:
                file.own_closes -= 1
                return True
            return False

    def note(self, event: ReadEvent) -> None:
        """Take in an open or close by another program."""
        with self._lock:
            file = self._files.get(event.path)
            if file is not None and event.event == "open" and _read_before(file, event.t):
                del self._files[event.path]  # another load of it, whose readers and cache are looked at anew
                file = None
            if file is not None:
                file.last = max(file.last, event.t)
                file.closed = event.event == "close"
                self._opened = self._opened or event.event == "open"
                self._due.set()
            elif event.event == "open":
                self._follow(event)

    def forget(self, path: str) -> None:
        """Leave a file alone that is being written: searching for readers would disturb its own watch."""
        with self._lock:
            self._files.pop(path, None)

    def _follow(self, event: ReadEvent) -> None:
        if len(self._files) >= MAX_FILES or event.size is None:
            return
        if not self._files:
            self._began = event.t
        # Its inode is asked for in the thread: the mount may be dead.
        self._files[event.path] = _Followed((0, 0), event.size, event.t, event.t)
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name=f"readers-{self._name}", daemon=True)
            self._thread.start()
        self._due.set()

    def _run(self) -> None:
        pause: float | None = None
        look_at = 0.0
        while not self._stopping.is_set():
            self._due.wait(pause)
            self._due.clear()
            if self._stopping.is_set():
                return
            try:
                self._look_at_new()
                if self._clock() >= look_at:
                    pause = self._step()
                    look_at = self._clock() + self._search.look_cost_seconds / LOOK_SHARE
            except Exception as error:  # noqa: BLE001 (thread boundary: knowing less must not end the thread)
                log_event(_LOG, logging.ERROR, "looking at readers failed", error=error, dir=self._name)
                pause = SLOW_SECONDS
            if pause is not None:
                pause = max(pause, look_at - self._clock())

    def _step(self) -> float | None:
        """Look once; return how long to wait for the next look, None until something is opened."""
        with self._lock:
            known = {path: (file.id, file.size) for path, file in self._files.items() if file.looked}
            opened, self._opened = self._opened, False
        held = {path for paths in self._search.held.values() for path in paths}
        news = False
        for reading in self._search.look(known, search=opened or bool(known.keys() - held), opened=opened):
            new, tell = self._compare(reading)
            news = news or new
            if tell:
                self._emit(reading)
        return self._forget(news=news)

    def _compare(self, reading: Reading) -> tuple[bool, bool]:
        """Return whether a look shows anything new, and whether to tell of it: also once that it does not."""
        key = (reading.pid, reading.path)
        shown = (
            reading.position, reading.resident_bytes, reading.rchar, reading.read_bytes, reading.held,
        )  # fmt: skip
        before, was_news = self._shown.get(key, (None, True))
        self._shown[key] = (shown, shown != before)
        return shown != before, shown != before or was_news

    def _look_at_new(self) -> None:
        """Look at the page cache before much was read."""
        with self._lock:
            files = {path: file for path, file in self._files.items() if not file.looked}
            self._opened = self._opened or bool(files)
        for path, file in files.items():
            file.looked = True
            st = lstat(path)
            if st is None:
                continue
            truncated = st.st_size < file.size  # by its opener, who writes it anew: a look would disturb that
            file.id, file.size = (st.st_dev, st.st_ino), st.st_size
            cached = None
            # Network and other file systems without a device may not count what they fetch.
            limit = COUNTED_SECONDS if os.major(st.st_dev) else PROMPT_SECONDS
            if self._clock() - file.opened <= limit and not truncated:
                with self._lock:
                    file.own_opens = file.own_closes = 1 if self._page_cache.available else 0
                    file.own_until = self._clock() + OWN_EVENTS_SECONDS
                cached = self._page_cache.cached_bytes(path, file.size)
            t = self._clock()
            self._emit(ReadEvent(t, path, "look", size=file.size, cached_bytes=cached, visible=self._visible))

    def _forget(self, *, news: bool) -> float | None:
        """Leave alone what is read no longer; return when to look again, None for not before an open."""
        held = {path for paths in self._search.held.values() for path in paths}
        now = self._clock()
        with self._lock:
            for path, file in list(self._files.items()):
                file.last = now if news and path in held else file.last
                sought = self._search.thorough_at > file.last  # or too many processes to look at so soon
                limit = UNHELD_SECONDS if path not in held and self._visible and sought else SILENT_SECONDS
                if now - file.last > limit:
                    del self._files[path]
                    self._search.forget(path)
            if not self._files:
                self._shown.clear()
                self._search.forget_all()
                return None
        self._news_at = now if news else self._news_at
        if now - max(self._news_at, self._last_open()) > UNHELD_SECONDS:
            return SLOW_SECONDS
        return min(SLOW_SECONDS, max(FAST_SECONDS, ERROR_SHARE * (now - self._began)))

    def _last_open(self) -> float:
        return max((file.opened for file in list(self._files.values())), default=0.0)

    def stop(self) -> None:
        """End the thread; it is not waited for, since it may hang on a dead mount."""
        self._stopping.set()
        self._due.set()


def _read_before(file: _Followed, t: float) -> bool:
    return file.closed and t - file.last > AGAIN_SECONDS


class ReadersSource:
    """The readers of all directories."""

    def __init__(self, emit: Callable[[Fact], None], clock: Callable[[], float]) -> None:
        self._emit = emit
        self._clock = clock
        self._directories: Mapping[str, DirectoryReaders] = {}

    def replace_directories(self, names: Iterable[str]) -> None:
        """Look at the readers of these directories from now on."""
        before = self._directories
        self._directories = {
            name: before.get(name) or DirectoryReaders(name, self._emit, self._clock) for name in names
        }
        for name in before.keys() - self._directories.keys():
            before[name].stop()

    def is_own(self, name: str, event: ReadEvent) -> bool:
        """Tell whether an open or close was this program's own look at the file; asked once for each."""
        directory = self._directories.get(name)
        return directory is not None and directory.is_own(event)

    def note(self, name: str, event: ReadEvent) -> None:
        """Tell of an open or close below a directory by another program."""
        directory = self._directories.get(name)
        if directory is not None:
            directory.note(event)

    def forget(self, name: str, path: str) -> None:
        """Leave a file alone that is being written."""
        directory = self._directories.get(name)
        if directory is not None:
            directory.forget(path)

    def stop(self) -> None:
        """End all threads."""
        for directory in self._directories.values():
            directory.stop()
