"""The one mutable state: facts in, saves counted, one consistent snapshot out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from ckpt_exporter.book import Book
from ckpt_exporter.bubble.cold_start import ColdStarts
from ckpt_exporter.bubble.detector import BubbleDetector
from ckpt_exporter.model import (
    Bubble,
    DetectSettings,
    DirectorySettings,
    DirectorySnapshot,
    Fact,
    FileEvent,
    GpuSample,
    GpuSet,
    GpuStatus,
    HostEvidence,
    Load,
    LoadGpus,
    Mount,
    Progress,
    Quiet,
    RemoteFile,
    RemoteLook,
    Save,
    Snapshot,
    Stall,
    StorageStatus,
    Writers,
)
from ckpt_exporter.shelf import FileFact, Shelf
from ckpt_exporter.timeline import Readings

# Saves are judged at most this much later than they could be; their times do not depend on it.
TICK_SECONDS = 0.1


class Ledger:
    """Hold the detectors and counters of all directories behind one lock.

    ``on_save`` is called outside the lock for every finished save; ``on_fact`` (the recorder) inside it, so
    that a recording has the order in which facts were judged; ``on_begin`` outside it when the first save
    begins after none was open, so that who sleeps meanwhile can wake up. ``unix_minus_t`` turns monotonic
    times into Unix seconds. ``on_load`` is called outside the lock for every finished load, ``on_cold_start``
    with the same load once the first work of its GPUs is known, ``on_remote_save`` for every save of another
    host; ``on_low`` inside it (it only wakes someone) when a GPU begins to work little after all worked.
    """

    def __init__(
        self,
        directories: Iterable[DirectorySettings],
        detect: DetectSettings,
        *,
        unix_minus_t: float = 0.0,
        on_save: Callable[[Save], None] | None = None,
        on_fact: Callable[[Fact], None] | None = None,
        on_bubble: Callable[[Bubble | Stall], None] | None = None,
        on_begin: Callable[[], None] | None = None,
        on_load: Callable[[Load], None] | None = None,
        on_remote_save: Callable[[Save], None] | None = None,
        on_low: Callable[[], None] | None = None,
        on_cold_start: Callable[[Load], None] | None = None,
    ) -> None:
        self._lock = threading.Lock()
        self._bubbles = BubbleDetector()
        self._shelf = Shelf(directories, detect, self._bubbles)
        self._storage: dict[str, StorageStatus] = {}
        self._last_tick = float("-inf")
        self.unix_minus_t = unix_minus_t
        self._on_save = on_save
        self._on_fact = on_fact
        self._on_bubble = on_bubble
        self._on_begin = on_begin
        self._on_load = on_load
        self._on_remote_save = on_remote_save
        self._on_low = on_low
        self._on_cold_start = on_cold_start
        self._was_low = False
        self._loads: list[Load] = []  # that ended just now, and those whose GPUs have just begun to work
        self._remote: list[Save] = []
        self._cold_starts = ColdStarts()
        self._saving = False
        self._announced: set[tuple[str, str]] = set()
        self._costs: list[Bubble | Stall] = []

    def feed(self, fact: Fact) -> None:
        """Take in one fact from a source."""
        with self._lock:
            if self._on_fact is not None:
                self._on_fact(fact)
            ticks = fact.t >= self._last_tick + TICK_SECONDS
            if not ticks and isinstance(fact, GpuSample):
                self._feed_gpus(fact)  # most facts are these, and between two ticks nothing comes of one
                self._note_low()
                return
            saves = self._tick(fact.t) if ticks else []
            saves += self._route(fact)
            self._enter(saves)
            told = self._take()
            # Progress comes without an event only where a save was open before the exporter started.
            begins = not self._saving and isinstance(fact, (FileEvent, Progress)) and self._is_saving()
            self._saving = self._saving or begins
            self._note_low()
        self._tell(saves, *told)
        if begins and self._on_begin is not None:
            self._on_begin()

    def tick(self, now: float) -> bool:
        """Let time pass, so that quiet saves end; tell whether any save is still open."""
        with self._lock:
            saves = self._tick(now)
            self._enter(saves)
            saving = self._saving = self._is_saving()
            told = self._take()
            if self._on_fact is not None and (saves or any(told)):
                self._on_fact(Quiet(now))
        self._tell(saves, *told)
        return saving

    @property
    def judging(self) -> bool:
        """Tell whether what a save cost has yet to be judged."""
        return self._bubbles.judging

    @property
    def loading(self) -> bool:
        """Tell whether a load is open or has yet to be judged."""
        return any(book.reads.loading for book in list(self._shelf.books.values()))

    @property
    def awaits_work(self) -> bool:
        """Tell whether the first GPU work after a load has yet to be seen."""
        return self._cold_starts.waiting

    def unexplained(self, now: float) -> tuple[int, ...] | None:
        """Return the GPUs of runs that work little while no save can be why; None if all GPUs work."""
        with self._lock:
            gpus = self._bubbles.unexplained(now)
            self._was_low = self._bubbles.low
            return gpus if self._was_low else None

    def _note_low(self) -> None:
        was, self._was_low = self._was_low, self._bubbles.low
        if self._was_low and not was and self._on_low is not None:
            self._on_low()

    def _is_saving(self) -> bool:
        return any(book.detector.saving for book in self._shelf.books.values())

    def finish(self, now: float) -> None:
        """End what is committed; called once when watching stops."""
        with self._lock:
            saves = self._tick(now)
            for book in self._shelf.books.values():
                saves += book.detector.finish(now)
                self._enter_loads(book, book.reads.finish(now))
            self._enter(saves)
            self._cost(self._bubbles.finish(now))
            told = self._take()
        self._tell(saves, *told)

    def set_storage(self, status: StorageStatus) -> None:
        """Publish the latest storage facts of one directory."""
        with self._lock:
            self._storage[status.directory] = status

    def reconfigure(self, directories: Iterable[DirectorySettings], detect: DetectSettings) -> None:
        """Take over a new configuration: unchanged directories keep their state and counters."""
        with self._lock:
            self._shelf.reconfigure(directories, detect)
            books = self._shelf.books
            self._storage = {name: self._storage[name] for name in books if name in self._storage}

    def restore(self, saves: Iterable[tuple[Save, Bubble | None]]) -> None:
        """Take the last complete saves of before the start from the history; counters stay at 0."""
        with self._lock:
            for save, bubble in saves:
                if save.directory in self._shelf.books:
                    self._shelf.books[save.directory].restore(save, bubble)

    def set_clock(self, unix_minus_t: float) -> None:
        """Follow a clock that was set: times are shown by the new one, durations stay as they are."""
        with self._lock:
            for book in self._shelf.books.values():
                book.clock_stepped(unix_minus_t - self.unix_minus_t)
            self.unix_minus_t = unix_minus_t

    def circumstances(self, name: str) -> tuple[Writers | None, Mount | None]:
        """Return the run that was last seen writing below a directory, and where its bytes go."""
        with self._lock:
            book, storage = self._shelf.books.get(name), self._storage.get(name)
            return book.run if book else None, storage.mount if storage else None

    def gpu_statuses(self, now: float) -> tuple[GpuStatus, ...]:
        """Return every GPU as it is now, with its counters."""
        with self._lock:
            return self._bubbles.statuses(now)

    def directory_of(self, path: str | None) -> str | None:
        """Name the configured directory that a path belongs to."""
        book = self._shelf.owner(path)
        return book.directory.name if book is not None else None

    def saving(self, name: str) -> bool:
        """Tell whether a directory has a save that is open or has yet to be judged."""
        with self._lock:
            book = self._shelf.books.get(name)
            return book is not None and book.detector.saving

    def snapshot(self, now: float, *, timelines: bool = False) -> Snapshot:
        """Copy all state at one moment; ``timelines`` are for people, a scrape needs none."""
        with self._lock:
            directories = tuple(book.snapshot(now, self.unix_minus_t) for book in self._shelf.books.values())
            storage = tuple(self._storage.values())
            gpus = self._bubbles.statuses(now)
        if timelines:
            directories = tuple(self._with_timeline(entry, now) for entry in directories)
        return Snapshot(
            t=now, unix_minus_t=self.unix_minus_t, directories=directories, storage=storage, gpus=gpus
        )

    def _with_timeline(self, entry: DirectorySnapshot, now: float) -> DirectorySnapshot:
        """Add what happened around the latest saves; facts need not wait while it is worked out."""
        begun = [save.start for save in entry.open_saves]
        with self._lock:
            book = self._shelf.books.get(entry.name)
            if book is None:
                return entry
            missing = book.timeline.missing(begun, self._readings(entry.name), now)
        found = [(stretch, stretch.activities()) for stretch in missing]
        with self._lock:
            for stretch, activities in found:
                book.timeline.enter(stretch, activities)
            drawing = book.timeline.drawing(entry.all_recent, begun, now)
        return replace(entry, timeline=drawing.windows())

    def _readings(self, name: str) -> Readings:
        return partial(self._bubbles.readings, name)

    def _tick(self, now: float) -> list[Save]:
        self._last_tick = now
        for name, book in self._shelf.books.items():
            if book.timeline.due(now):
                book.timeline.take_tails(self._readings(name), now)
            book.remote.tick(now)
            self._enter_loads(book, book.reads.tick(now))
            for start, last in book.reads.spans():
                self._bubbles.load_seen(name, start, last)
                self._cold_starts.load_began(name, start)
        self._enter_cold_starts(now)
        saves = [save for book in self._shelf.books.values() for save in book.detector.tick(now)]
        self._announce(now, {(save.directory, save.path) for save in saves})
        self._cost(self._bubbles.tick(now))
        return saves

    def _announce(self, now: float, ended: set[tuple[str, str]]) -> None:
        """Tell the bubble's side which saves are open: their time is no baseline, and no other stall."""
        begun = {
            (open_save.directory, open_save.path): open_save.start
            for book in self._shelf.books.values()
            if book.detector.saving
            for open_save in book.detector.open_saves(now)
        }
        for directory, path in self._announced - begun.keys() - ended:
            self._bubbles.save_dropped(directory, path)
        for (directory, path), start in begun.items():
            if (directory, path) not in self._announced:
                self._bubbles.save_began(directory, path, start)
        self._announced = set(begun)

    def _cost(self, costs: list[Bubble | Stall]) -> None:
        for cost in costs:
            if isinstance(cost, Bubble) and cost.directory in self._shelf.books:
                self._shelf.books[cost.directory].enter_bubble(cost, cost.save_end + self.unix_minus_t)
        self._costs += costs

    def _take(self) -> tuple[list[Bubble | Stall], list[Load], list[Save]]:
        """Take what is to be told outside the lock: costs, loads, and saves of other hosts."""
        told = self._costs, self._loads, self._remote
        self._costs, self._loads, self._remote = [], [], []
        return told

    def _enter_loads(self, book: Book, loads: list[Load]) -> None:
        for load in loads:
            book.enter_load(load, load.end + self.unix_minus_t)
            self._bubbles.load_seen(load.directory, load.start, load.end)
            self._cold_starts.load_ended(load)
        self._loads += loads

    def _enter_cold_starts(self, now: float) -> None:
        for load in self._cold_starts.tick(now):
            if load.directory in self._shelf.books:
                self._shelf.books[load.directory].enter_cold_start(load)
            self._loads.append(load)

    def _route(self, fact: Fact) -> list[Save]:
        if isinstance(fact, FileFact):
            return self._shelf.feed(fact)
        if isinstance(fact, (RemoteFile, RemoteLook)):
            self._feed_remote(fact)
        elif isinstance(fact, HostEvidence):
            self._bubbles.feed(fact)
        elif isinstance(fact, LoadGpus):
            self._cold_starts.feed(fact)
        elif not isinstance(fact, Quiet):
            self._feed_gpus(fact)
        return []

    def _feed_remote(self, fact: RemoteFile | RemoteLook) -> None:
        saves = self._shelf.feed_remote(fact)
        for save in saves:
            timeline = self._shelf.books[fact.directory].timeline
            timeline.save_ended(save, self._readings(fact.directory), fact.t)
        self._remote += saves

    def _feed_gpus(self, fact: GpuSample | GpuSet) -> None:
        self._bubbles.feed(fact)
        self._cold_starts.feed(fact)

    def _enter(self, saves: list[Save]) -> None:
        for save in saves:
            book = self._shelf.books[save.directory]
            book.enter(save, save.end + self.unix_minus_t)
            book.timeline.save_ended(save, self._readings(save.directory), self._last_tick)
            self._bubbles.save_ended(save)
            self._announced.discard((save.directory, save.path))

    def _tell(
        self, saves: list[Save], costs: list[Bubble | Stall], loads: list[Load], remote: Iterable[Save] = ()
    ) -> None:
        for load in loads:
            tell = self._on_load if load.first_gpu_work is None else self._on_cold_start
            if tell is not None:
                tell(load)
        for save in saves:
            if self._on_save is not None:
                self._on_save(save)
        for save in remote:
            if self._on_remote_save is not None:
                self._on_remote_save(save)
        for cost in costs:
            if self._on_bubble is not None:
                self._on_bubble(cost)
