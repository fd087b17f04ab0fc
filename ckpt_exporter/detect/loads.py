"""From opens and closes of existing files, and looks at their readers, to loads."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ckpt_exporter.detect import layouts
from ckpt_exporter.detect.parts import MAX_BYTES_PER_SECOND, Part
from ckpt_exporter.detect.places import fixed_prefix, relative_to
from ckpt_exporter.detect.readers import Reader
from ckpt_exporter.model import DetectSettings, DirectorySettings, Load, ReadEvent, Reading

MAX_EPISODES = 256
MAX_FILES = 10_000
MAX_CLOSES = 64
# Bytes that no look showed, as a share of those given for a file, beyond which a note says so.
WORKED_OUT_SHARE = 0.001
# A look at the page cache so soon shows what was there before; a later one also what the reader brought in.
PROMPT_SECONDS = 0.05
# How much of a file must have been read under our eyes for what came before it to be worked out.
SEEN_SHARE = 0.5
# Of a file that was not, more than this from before, of which nobody knows whence it came, leaves it open.
UNSURE_SHARE = 0.05
UNSEEN_READERS = "readers_unseen"  # who read is not known; bytes are the sizes of the files opened and closed
FROM_SIZES = "bytes_from_sizes"  # a reader came and went between two looks
PARTLY_SEEN = "partly_seen"  # some of what is given was worked out, since readers were found late or ended
SHARED_RANGES = "ranges_estimated"  # several processes read parts of one file: they may be the same parts


@dataclass(slots=True)
class _File:
    """One file of an episode. ``holds``: opens seen minus closes seen."""

    path: str
    opened: float
    size: int = 0
    cached_bytes: int | None = None
    looked: float | None = None
    holds: int = 0
    closes: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_CLOSES))


@dataclass(slots=True)
class _Episode:
    """Files of one checkpoint being read."""

    key: str
    layout: str
    step: int | None
    last: float
    visible: bool = False
    files: dict[str, _File] = field(default_factory=dict)
    readers: dict[int, Reader] = field(default_factory=dict)

    def parts(self) -> list[tuple[Reader, Part]]:
        """List what every process that loads has read of every file."""
        return [
            (reader, part)
            for reader in self.readers.values()
            if not reader.passes_on
            for part in reader.parts.values()
        ]

    def cached_by_io(self) -> float | None:
        """Return the cached share by the only reader's I/O; that of several is not told apart by file."""
        readers = [reader for reader in self.readers.values() if not reader.passes_on]
        return readers[0].cached_ratio if len(readers) == 1 else None

    @property
    def unfinished(self) -> bool:
        """Tell whether a process still holds a file that it has not read to its end.

        A mapping may be held for ever: it counts while the last look at it showed growth.
        """
        if not self.visible:
            return any(file.holds > 0 for file in self.files.values())
        return any(
            part.gone is None and part.left > 0 and (part.grew_last or not part.mapped)
            for _, part in self.parts()
        )


@dataclass(frozen=True, slots=True)
class _FileLoad:
    """What an episode amounts to for one file."""

    start: float
    end: float
    bytes: int
    size: int
    readers: int | None
    cached_bytes: float | None
    notes: tuple[str, ...] = ()


class LoadDetector:
    """Turn the facts about reading below one directory into loads.

    Facts come in time order; ``tick`` returns the loads that ended. Nothing here reads a clock.
    """

    def __init__(self, directory: DirectorySettings, settings: DetectSettings) -> None:
        self._base = fixed_prefix(directory.path)
        self._directory = directory
        self._settings = settings
        self._episodes: dict[str, _Episode] = {}
        self._look: list[Reading] = []  # of one process, at one moment

    def reconfigure(self, directory: DirectorySettings, settings: DetectSettings) -> None:
        """Go on under new settings of the same path."""
        self._directory, self._settings = directory, settings

    @property
    def loading(self) -> bool:
        """Tell whether a load is open or has yet to be judged."""
        return bool(self._episodes)

    def spans(self) -> list[tuple[float, float]]:
        """Return start and last activity of the open loads."""
        return [
            (min(part.opened for _, part in parts), episode.last)
            for episode in self._episodes.values()
            if (parts := [entry for entry in episode.parts() if entry[1].seen > 0])
        ]

    def feed(self, fact: ReadEvent | Reading) -> None:
        """Take in one fact."""
        if isinstance(fact, Reading):
            if self._look and (self._look[0].t, self._look[0].pid) != (fact.t, fact.pid):
                self._take_look()
            self._look.append(fact)
            return
        self._take_look()
        path = relative_to(fact.path, self._base)
        if path is not None:
            self._on_event(path, fact)

    def tick(self, now: float) -> list[Load]:
        """Let time pass until ``now``; return the loads that ended by it."""
        if not self._episodes:
            self._look.clear()
            return []
        self._take_look()
        return self._ended([episode for episode in self._episodes.values() if self._is_over(episode, now)])

    def finish(self, _now: float) -> list[Load]:
        """Stop watching: return the loads whose files nobody is reading any more."""
        self._take_look()
        return self._ended([episode for episode in self._episodes.values() if not episode.unfinished])

    # --- in ---------------------------------------------------------------------------------------------

    def _on_event(self, path: str, event: ReadEvent) -> None:
        episode = self._episode(path, event)
        if episode is None:
            return
        file = episode.files.get(event.path)
        if file is None:
            if event.event == "close" or len(episode.files) >= MAX_FILES:
                return
            file = episode.files[event.path] = _File(event.path, event.t)
        file.size = event.size if event.size is not None else file.size
        if event.event == "open":
            file.holds += 1
        elif event.event == "close":
            file.holds -= 1
            file.closes.append(event.t)
        else:
            episode.visible = episode.visible or event.visible
            if file.looked is None:
                file.cached_bytes, file.looked = event.cached_bytes, event.t
            return
        episode.last = max(episode.last, event.t)

    def _episode(self, path: str, event: ReadEvent) -> _Episode | None:
        unit = layouts.locate(path, self._directory.layout)
        key = unit.key if unit is not None else layouts.parent_of(path)
        episode = self._episodes.get(key)
        if episode is None and event.event == "open":
            if len(self._episodes) >= MAX_EPISODES:
                return None
            layout, step = (unit.layout, unit.step) if unit is not None else ("generic", None)
            episode = self._episodes[key] = _Episode(key, layout, step, event.t)
        return episode

    def _take_look(self) -> None:
        """Take in what one look showed of one process."""
        look, self._look = self._look, []
        for episode in self._episodes.values() if look else ():
            here = [reading for reading in look if reading.path in episode.files]
            if not here:
                continue
            first = here[0]
            reader = episode.readers.setdefault(first.pid, Reader(first.pid, first.command, first.run))
            opened = {reading.path: episode.files[reading.path].opened for reading in here}
            if reader.take(here, opened):
                episode.last = max(episode.last, first.t)

    # --- out --------------------------------------------------------------------------------------------

    def _is_over(self, episode: _Episode, now: float) -> bool:
        quiet_seconds = now - episode.last
        if episode.unfinished:
            return quiet_seconds > max(self._settings.stall_seconds, self._settings.quiet_seconds)
        return quiet_seconds > self._settings.quiet_seconds

    def _ended(self, episodes: list[_Episode]) -> list[Load]:
        for episode in episodes:
            del self._episodes[episode.key]
        loads = [self._judge(episode) for episode in episodes]
        return [load for load in loads if load is not None]

    def _judge(self, episode: _Episode) -> Load | None:
        """Add an episode up; None where nothing was loaded."""
        files = [
            found for file in episode.files.values() if (found := _file_load(episode, file)) and found.bytes
        ]
        total = sum(file.bytes for file in files)
        if not files or total < self._settings.min_bytes:
            return None
        start, end = min(file.start for file in files), max(file.end for file in files)
        counts = [file.readers for file in files if file.readers is not None]
        pids = tuple(sorted({reader.pid for reader, part in episode.parts() if part.seen or part.looks < 2}))
        return Load(
            directory=self._directory.name,
            path=f"{self._base.rstrip('/')}/{episode.key}" if episode.key else self._base,
            layout=episode.layout,
            step=episode.step,
            start=start,
            end=end,
            duration_seconds=end - start,
            bytes=total,
            files=len(files),
            bandwidth=total / (end - start) if end > start else None,
            readers=max(counts, default=None),
            pids=pids,
            run=next((reader.run for reader, _ in episode.parts() if reader.run), None),
            cached_ratio=ratio if (ratio := _cached_ratio(files)) is not None else episode.cached_by_io(),
            notes=tuple(sorted({note for file in files for note in file.notes})),
        )


def _file_load(episode: _Episode, file: _File) -> _FileLoad | None:
    parts = [part for reader, part in episode.parts() if part.path == file.path]
    if not parts:
        return _unseen(episode, file)
    now = episode.last
    known = [(part, *part.estimate(part.closed(file.closes, now))) for part in parts]
    read = [(part, amount, guessed) for part, amount, guessed in known if amount > 0]
    if not read:
        return None
    whole = any(amount >= file.size for _, amount, _ in read)
    from_start = all(part.from_start for part, _, _ in read)
    amounts = [amount for _, amount, _ in read]
    total = max(amounts) if from_start else min(file.size, sum(amounts))
    notes = [FROM_SIZES] if all(guessed for _, _, guessed in read) else []
    if len(read) > 1 and not whole and not from_start:
        notes.append(SHARED_RANGES)
    seen = (max if from_start else sum)(part.seen for part, _, _ in read)
    if not notes and seen < (1 - WORKED_OUT_SHARE) * total:
        notes.append(PARTLY_SEEN)
    return _FileLoad(
        start=min(part.opened for part, _, _ in read),
        end=max(part.end(file.closes, now) for part, _, _ in read),
        bytes=total,
        size=file.size,
        readers=len(read),
        cached_bytes=0.0 if all(part.direct for part, _, _ in read) else _cached(episode, file, total),
        notes=tuple(notes),
    )


def _unseen(episode: _Episode, file: _File) -> _FileLoad | None:
    """Judge a file by its events alone.

    Where readers can be seen, one that nobody was seen to read counts only beside others that were loaded.
    """
    copied = any(file.path in reader.parts for reader in episode.readers.values())
    if copied or not file.closes or file.size <= 0:
        return None
    if episode.visible and not episode.parts():
        return None
    start, end = file.opened, file.closes[-1]
    if file.size > MAX_BYTES_PER_SECOND * (end - start):
        return None
    note = FROM_SIZES if episode.visible else UNSEEN_READERS
    return _FileLoad(start, end, file.size, file.size, None, _cached(episode, file, file.size), (note,))


def _cached(episode: _Episode, file: _File, amount: int) -> float | None:
    """Return how much of what was read of a file was cached before, None where that can't be told.

    By the time of the look its readers have brought in some, reading ahead of themselves.
    """
    if file.cached_bytes is None or file.looked is None or file.size <= 0:
        return None
    parts = [(reader, part) for reader, part in episode.parts() if part.path == file.path]
    if any(t <= file.looked for t in file.closes) and not any(part.mapped for _, part in parts):
        return None  # whoever closed it may have read all of it by then
    seen = max((part.bytes - part.at_first for _, part in parts), default=0) >= SEEN_SHARE * file.size
    late = file.looked - file.opened > PROMPT_SECONDS
    if late and not (seen and any(reader.fetched_per_second is not None for reader, _ in parts)):
        return None
    most = min(file.cached_bytes, sum(part.early_fetched or 0 for _, part in parts))
    if not seen and most > UNSURE_SHARE * file.size:
        return None
    brought = min(most, sum(reader.fetched_by(part) for reader, part in parts)) if seen else 0
    return amount * (file.cached_bytes - brought) / file.size


def _cached_ratio(files: list[_FileLoad]) -> float | None:
    """Return the share of the bytes that was in the page cache; None unless known of most of them."""
    known = [(file.bytes, file.cached_bytes) for file in files if file.cached_bytes is not None]
    total = sum(amount for amount, _ in known)
    if not total or total < sum(file.bytes for file in files) / 2:
        return None
    return sum(cached for _, cached in known) / total
