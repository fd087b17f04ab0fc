"""What one process has read of all its files, from its counters, positions and mappings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ckpt_exporter.detect.layouts import COPY_COMMANDS
from ckpt_exporter.detect.parts import Part
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
    _unshared: int = 0  # called by the last look, and maybe after the positions were read, which are first
    _last: float | None = None  # look at its calls
    _looks: int = 0  # that showed its I/O
    _fetched: int = 0
    _fetched_step: int = 0  # the most between two looks
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

    def fetched_by(self, part: Part) -> float:
        """Return the most that it can have fetched of a file before its first look at it, in bytes.

        What a process fetched before it was known may be its own program: of a file that came from the page
        cache later on, nothing came from the storage before; else it went on at its rate, and read ahead.
        """
        rate = self.fetched_per_second
        return rate * (part.first - part.opened) + self._fetched_step if rate else 0.0

    @property
    def passes_on(self) -> bool:
        """Tell whether this process copies, uploads or checks what it reads instead of loading it."""
        if self.command in PASSING_COMMANDS:
            return True
        return self.read >= 1024 * 1024 and self.written >= COPY_SHARE * self.read

    def take(self, readings: Sequence[Reading], opened: dict[str, float]) -> bool:
        """Take in all that one look showed of this process; tell whether it has read anything since."""
        first, last = readings[0], self._last
        fetched, called = self._fetched, self._called
        grown = self._count(first)
        before = sum(part.seen for part in self.parts.values())
        for reading in readings:
            at = opened.get(reading.path, reading.t)
            known = last is not None and last <= at
            self._hold(reading, at, self._fetched - fetched if known else first.read_bytes)
        if first.resident_bytes is not None:
            self._share_pages(readings)
        if first.rchar is not None:  # else it has ended, or may not be asked: that shows no rest
            self._share(grown, self._called - called, readings, last)
        return sum(part.seen for part in self.parts.values()) > before

    def _count(self, reading: Reading) -> int:
        """Return by how much the process's reads have grown since the last look."""
        if reading.rchar is None:
            return 0
        self._called += _growth(self._rchar, reading.rchar)
        fetched = _growth(self._read_bytes, reading.read_bytes)
        self._fetched += fetched
        self._fetched_step = max(self._fetched_step, fetched)
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
        self._last = reading.t
        return grown

    def _hold(self, reading: Reading, opened: float, fetched: int | None) -> None:
        part = self.parts.get(reading.path)
        if part is None:
            part = Part(reading.path, reading.size, min(opened, reading.t), reading.t)
            part.early_fetched = fetched
            self.parts[reading.path] = part
        part.looks += 1
        part.direct = part.direct or reading.direct
        if reading.held:
            if part.gone is not None:
                part.position = 0  # opened again
            part.last_held, part.gone = reading.t, None
        elif part.gone is None:
            part.gone, part.counted = reading.t, reading.rchar is not None and not part.mapped

    def _share(self, grown: int, called: int, readings: Sequence[Reading], last: float | None) -> None:
        """Give what the process has read since the last look to its files, first where positions tell."""
        t, left = readings[0].t, called + self._unshared
        files = [(self.parts[reading.path], reading) for reading in readings]
        held = [(part, reading) for part, reading in files if reading.held and not part.mapped]
        gone = [part for part, reading in files if not reading.held and not part.mapped]
        for part, reading in held:
            left -= part.follow(reading.position, left, t) if part.looks > 1 else 0
        # Of a file read to its end the rest is known; of another the next file's position tells more.
        rests = [part for part in gone if part.steady]
        for part in [part for part in rests if part.left <= left]:
            rests.remove(part)
            left -= part.let_go(left, t)
        for part, reading in held:
            if part.looks == 1:
                known = last is not None and last <= part.opened and all(p.from_start for p in gone)
                budget = min(left, called) if known else reading.rchar or 0
                left -= part.place(reading.position, budget, known=known)
        for part in rests:
            left -= part.let_go(left, t)
        rest = max(0, grown - (called + self._unshared - left))
        others = [part for part in gone if not part.steady] + [part for part, _ in held]
        for part in [part for part in others if part.by_calls]:
            amount = min(rest, part.left)
            part.advance(amount, t)
            rest, left = rest - amount, max(0, left - amount)
        self._unshared = min(left, called)
        for part, _ in held:
            part.last_look = t

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


def _growth(before: int | None, now: int | None) -> int:
    return max(0, now - before) if before is not None and now is not None else 0
