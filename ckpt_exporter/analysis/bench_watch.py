"""The watch and the detectors of real saves and loads, for a bench."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Final

from ckpt_exporter.detect.layouts import is_noise
from ckpt_exporter.errors import CkptExporterError
from ckpt_exporter.ledger import TICK_SECONDS, Ledger
from ckpt_exporter.logs import one_line
from ckpt_exporter.model import DetectSettings, DirectorySettings, Fact, FileEvent, Load, ReadEvent, Save
from ckpt_exporter.sources.reading import ReadersSource
from ckpt_exporter.sources.watch import WatchSource

# The bench knows when its writers are done, so silence need not be long to mean the end.
_QUIET_SECONDS: Final = 1.0
# Readers are looked at now and then, and seldom where looking takes long: quiet has to outlast that.
_QUIET_LOAD_SECONDS: Final = 3.0
# How long after the last close a save or load may be looked for.
_PATIENCE_SECONDS: Final = 30.0
_START_SECONDS: Final = 15.0
_NAME: Final = "bench"


class SaveWatch:
    """The watch and the detector of real saves, on the bench's own directory."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._changed = threading.Condition()
        self._saves: list[Save] = []
        self.unix_minus_t = time.time() - time.monotonic()
        settings = DirectorySettings(_NAME, path)
        self.ledger = Ledger(
            (settings,),
            DetectSettings(quiet_seconds=_QUIET_SECONDS, min_bytes=1),
            unix_minus_t=self.unix_minus_t,
            on_save=self._add,
        )
        # The watch's own trial file, too, stays below the bench's directory.
        self._watch = WatchSource(
            (settings,),
            self.ledger.feed,
            ignored=lambda _directory, path: is_noise(path),
            canary_parent=os.path.dirname(path),
        )

    def __enter__(self) -> SaveWatch:
        os.mkdir(self._path, 0o700)
        _start(self._watch, self._path)
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.stop()

    def _add(self, save: Save) -> None:
        with self._changed:
            self._saves.append(save)
            self._changed.notify_all()

    def seen_bytes(self) -> int:
        """Return the bytes of the open save, as the detector sees them."""
        return sum(s.bytes for s in self.ledger.snapshot(time.monotonic()).directories[0].open_saves)

    def tick(self) -> None:
        """Let time pass for the detector."""
        self.ledger.tick(time.monotonic())

    def save_below(self, path: str, stopping: Callable[[], bool]) -> Save | None:
        """Wait for the save of one burst; None if it was not seen."""
        ends = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < ends and not stopping():
            self.tick()
            with self._changed:
                found = [save for save in self._saves if _is_in(save.path, path) and not save.late]
                if found:
                    return max(found, key=lambda save: save.bytes)
                self._changed.wait(TICK_SECONDS)
        return None


def _start(watch: WatchSource, path: str) -> None:
    """Start a watch and wait until it sees; raise CkptExporterError where it never does."""
    watch.start()
    ends = time.monotonic() + _START_SECONDS
    while not (watch.statuses()[0].up and watch.statuses()[0].watched_directories):
        if time.monotonic() > ends:
            watch.stop()
            raise CkptExporterError(f"{one_line(path)} cannot be watched")
        time.sleep(0.02)


def _is_in(path: str, place: str) -> bool:
    # A place that the watch saw being made is the checkpoint itself; one that it found holds the checkpoint.
    return path == place or path.startswith(place + "/")


class LoadWatch:
    """The watch and the detector of real loads; nothing is written there.

    ``base`` is what is watched, and of it nothing but ``name`` where that is given.
    """

    def __init__(self, base: str, name: str | None = None) -> None:
        self._base, self._only = base, name
        self._changed = threading.Condition()
        self._loads: list[Load] = []
        self.unix_minus_t = time.time() - time.monotonic()
        settings = DirectorySettings(_NAME, self._base)
        self.ledger = Ledger(
            (settings,),
            DetectSettings(quiet_seconds=_QUIET_LOAD_SECONDS, min_bytes=1),
            unix_minus_t=self.unix_minus_t,
            on_load=self._add,
        )
        self._readers = ReadersSource(self.ledger.feed, time.monotonic)
        self._readers.replace_directories([_NAME])
        self._watch = WatchSource((settings,), self._emit, ignored=self._is_ignored)

    def __enter__(self) -> LoadWatch:
        try:
            _start(self._watch, self._base)
        except CkptExporterError:
            self._readers.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.stop()
        self._readers.stop()

    def _is_ignored(self, _directory: DirectorySettings, path: str) -> bool:
        return is_noise(path) or not (self._only is None or _is_in(path, self._only))

    def _emit(self, fact: Fact) -> None:
        if not isinstance(fact, ReadEvent):
            self.ledger.feed(fact)
            if isinstance(fact, FileEvent) and fact.path is not None:
                self._readers.forget(_NAME, fact.path)
        elif not self._readers.is_own(_NAME, fact):
            self.ledger.feed(fact)
            self._readers.note(_NAME, fact)

    def _add(self, load: Load) -> None:
        with self._changed:
            self._loads.append(load)
            self._changed.notify_all()

    def tick(self) -> None:
        """Let time pass for the detector."""
        self.ledger.tick(time.monotonic())

    def load(self, stopping: Callable[[], bool]) -> Load | None:
        """Wait for the load of the checkpoint; None if it was not seen."""
        ends = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < ends and not stopping():
            self.tick()
            with self._changed:
                if self._loads and not self.ledger.loading:
                    return max(self._loads, key=lambda load: load.bytes)
                self._changed.wait(TICK_SECONDS)
        return max(self._loads, key=lambda load: load.bytes, default=None)
