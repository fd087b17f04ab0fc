"""What one process has read of which file, from its counters, positions and mappings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ckpt_exporter.detect.layouts import COPY_COMMANDS
from ckpt_exporter.model import Reading

# Programs that read a checkpoint for other reasons than to use it: copies, uploads, archives, checksums.
PASSING_COMMANDS = COPY_COMMANDS | frozenset(
    (
        "b2sum", "b3sum", "borg", "bsdtar", "bzip2", "cat", "cksum", "cmp", "cpio", "dd", "diff", "duplicity",
        "file", "gcloud", "gzip", "hf", "huggingface-cli", "lftp", "lz4", "md5sum", "mbuffer", "pigz",
        "restic", "s3cmd", "s5cmd", "sha1sum", "sha224sum", "sha256sum", "sha384sum", "sha512sum", "sum",
        "xxhsum", "xz", "zip", "zstd",
    )
)  # fmt: skip
# A process that writes about as much as it reads hands the bytes on.
COPY_SHARE = 0.8
# What is read before the first and after the last look is worked out from the rate between them; beyond this
# share of the file it was all of it.
WHOLE_SHARE = 0.9
# No process reads faster, not even from memory: a file held for less time was not read.
MAX_BYTES_PER_SECOND = 25e9


@dataclass(slots=True)
class Part:
    """What one process reads of one file. Times in seconds, ``bytes`` as measured between the looks."""

    path: str
    size: int
    opened: float
    first: float
    bytes: int = 0
    last_held: float = 0.0
    gone: float | None = None
    grown: float | None = None  # the look that showed the last bytes
    grew_last: bool = True  # nothing shows yet that it is done
    counted: bool = True  # its counters were read after it let go
    position: int | None = None
    direct: bool = False
    mapped: bool = False
    exact: bool = False  # what was touched before the first look is counted, too
    at_first: int = 0  # of that
    looks: int = 0

    @property
    def left(self) -> int:
        """Bytes not yet seen to be read."""
        return self.size - self.bytes

    def advance(self, amount: int, t: float) -> None:
        """Add bytes seen at a look."""
        self.grew_last = amount > 0
        if amount > 0:
            self.bytes = min(self.size, self.bytes + amount)
            self.grown = t

    def estimate(self, closed: float) -> tuple[int, bool]:
        """Return the bytes read until ``closed``, and whether they are a guess from the file's size."""
        known_until = max(self.last_held, self.gone or 0.0) if self.counted else self.last_held
        if not self.exact and (self.looks < 2 or known_until <= self.first):
            plausible = self.size <= MAX_BYTES_PER_SECOND * max(0.0, closed - self.opened)
            return (max(self.size if plausible else 0, self.bytes), True)
        unseen_seconds = 0.0 if self.exact else self.first - self.opened
        if not self.counted and self.grew_last:
            unseen_seconds += max(0.0, closed - self.last_held)
        flowed_since = self.opened if self.exact else self.first
        flowing_seconds = max((self.grown or self.first) - flowed_since, 1e-6)
        rate = min(self.bytes / flowing_seconds, MAX_BYTES_PER_SECOND)
        total = self.bytes + round(rate * max(0.0, unseen_seconds))
        return (self.size if total >= WHOLE_SHARE * self.size else total), False

    def end(self, closes: Sequence[float], now: float) -> float:
        """Return when the last byte was needed; ``closes`` are the times of the file's closes."""
        closed = self.closed(closes, now)
        if self.grown is not None and (self.left == 0 or not self.grew_last):
            return min(self.grown, closed)
        return closed if self.gone is not None else (self.grown or self.last_held)

    def closed(self, closes: Sequence[float], now: float) -> float:
        """Return when the process let go: the close between two looks, else the look that missed it."""
        if self.gone is None:
            return now
        between = [t for t in closes if self.last_held < t <= self.gone]
        # Never seen to hold it twice: any close since the open may be its own.
        return max(between, default=self.gone)


@dataclass(slots=True)
class Reader:
    """One process of a load: its counters, and its parts by path."""

    pid: int
    command: str
    run: str | None
    parts: dict[str, Part] = field(default_factory=dict)
    _rchar: int | None = None
    _read_bytes: int | None = None
    _wchar: int | None = None
    read: int = 0
    written: int = 0
    _called: int = 0
    _looks: int = 0  # that showed its I/O
    _fetched: int = 0
    _fetching: tuple[float, float] | None = None  # since when its I/O is known, and until when it fetched
    _resident: int | None = None
    _reclaimed: bool = False  # the kernel took pages back: what is touched now is less than what was

    @property
    def cached_ratio(self) -> float | None:
        """The share of what it read that did not come from the storage, by its own I/O counters.

        None where nothing was fetched: the file system may not count.
        """
        measured = sum(part.bytes for part in self.parts.values())
        return max(0.0, 1 - self._fetched / measured) if self._fetched and measured else None

    @property
    def fetched_per_second(self) -> float | None:
        """Bytes a second that came from the storage while it was looked at; None if it never was twice."""
        if self._fetching is None or self._looks < 2:
            return None
        since, until = self._fetching
        return self._fetched / (until - since) if until > since else 0.0

    @property
    def passes_on(self) -> bool:
        """Tell whether this process copies, uploads or checks what it reads instead of loading it."""
        if self.command in PASSING_COMMANDS:
            return True
        return self.read >= 1024 * 1024 and self.written >= COPY_SHARE * self.read

    def take(self, readings: Sequence[Reading], opened: dict[str, float]) -> bool:
        """Take in all that one look showed of this process; tell whether it has read anything since."""
        grown = self._count(readings[0])
        before = sum(part.bytes for part in self.parts.values())
        for reading in readings:
            self._hold(reading, opened.get(reading.path, reading.t))
        self._share(grown, readings)
        return sum(part.bytes for part in self.parts.values()) > before

    def _count(self, reading: Reading) -> int:
        """Return by how much the process's reads have grown since the last look."""
        if reading.rchar is None:
            return 0
        self._called += _growth(self._rchar, reading.rchar)
        fetched = _growth(self._read_bytes, reading.read_bytes)
        self._fetched += fetched
        if reading.read_bytes is not None:
            self._looks += 1
            since, until = self._fetching or (reading.t, reading.t)
            self._fetching = since, reading.t if fetched else until
        # Asynchronous reads show only in what was fetched, which otherwise runs ahead of the reader.
        read = self._called if self._called >= self._fetched / 2 else self._fetched
        grown = max(0, read - self.read)
        self.read = max(self.read, read)
        # Only what is written while it reads: a run that saves right after it has loaded copies nothing.
        self.written += min(grown, _growth(self._wchar, reading.wchar))
        self._rchar, self._read_bytes, self._wchar = reading.rchar, reading.read_bytes, reading.wchar
        return grown

    def _hold(self, reading: Reading, opened: float) -> None:
        part = self.parts.get(reading.path)
        if part is None:
            part = Part(reading.path, reading.size, min(opened, reading.t), reading.t)
            self.parts[reading.path] = part
        part.looks += 1
        part.direct = part.direct or reading.direct
        if reading.held:
            part.last_held, part.gone = reading.t, None
        elif part.gone is None:
            part.gone, part.counted = reading.t, reading.rchar is not None and not part.mapped

    def _share(self, grown: int, readings: Sequence[Reading]) -> None:
        """Give what the process has read to the files it held, before others to those it moved on in."""
        t = readings[0].t
        if readings[0].resident_bytes is not None:
            self._share_pages(readings)
        if readings[0].rchar is None:
            return  # it has ended, or may not be asked: that shows no rest
        others = [reading for reading in readings if not self.parts[reading.path].mapped]
        for reading in sorted(others, key=self._has_moved, reverse=True):
            part = self.parts[reading.path]
            amount = min(grown, part.left)
            part.advance(amount, t)
            grown -= amount
            part.position = reading.position

    def _share_pages(self, readings: Sequence[Reading]) -> None:
        """Give the pages that the process has touched to the files it has mapped, to the newest first."""
        now, t = readings[0].resident_bytes, readings[0].t
        parts = [self.parts[reading.path] for reading in readings if reading.held and reading.mapped]
        left = [self.parts[reading.path] for reading in readings if not reading.held]
        # What was unmapped is resident no more, and hides as much growth.
        before = None if self._resident is None else self._resident - sum(p.bytes for p in left if p.mapped)
        grown = _growth(before, now)
        self._reclaimed = self._reclaimed or (before is not None and now is not None and now < before)
        self._resident = now
        exact = {r.path: r.mapped_bytes for r in readings if r.mapped_bytes is not None}
        for part in parts:
            if part.path in exact:
                amount = max(0, exact[part.path] - part.bytes)
                part.mapped = part.exact = True
                part.advance(amount, t)
                part.at_first = part.bytes if part.looks == 1 else part.at_first
                grown = max(0, grown - amount)
                if not self._reclaimed:  # some of what grew was libraries, not this file
                    part.bytes = min(part.size, exact[part.path])
        for part in sorted(parts, key=lambda part: part.opened, reverse=True):
            if part.path not in exact:
                part.mapped = True
                amount = min(grown, part.left)
                part.advance(amount, t)
                grown -= amount

    def _has_moved(self, reading: Reading) -> bool:
        before = self.parts[reading.path].position
        return before is not None and reading.position is not None and reading.position != before


def _growth(before: int | None, now: int | None) -> int:
    return max(0, now - before) if before is not None and now is not None else 0
