"""When bytes flowed, and how fast: active time, sustained and peak bandwidth of one save."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from ckpt_exporter.detect.strip import Strip

MAX_CHUNKS_PER_FILE = 512
MAX_CHUNKS_EXACT = 2048
MAX_FLOW_STRETCHES = 1024
PEAK_WINDOW_SECONDS = 1.0
# Shorter than any clock here can tell: bytes that came within it came at once.
INSTANT_SECONDS = 1e-6


class Chunk(NamedTuple):
    """``size_bytes`` arrived evenly between ``start`` and ``end`` (seconds)."""

    start: float
    end: float
    size_bytes: float


@dataclass(frozen=True, slots=True)
class Flow:
    """``active_seconds`` of bytes flowing, its ``stretches``, and the ``peak`` in bytes per second.

    ``peak`` is None when no time passed while bytes arrived.
    """

    active_seconds: float
    stretches: tuple[tuple[float, float], ...]
    peak: float | None


class Arrivals:
    """The chunks of one file, bounded: neighbours of like rate, and then the closest, become one."""

    __slots__ = ("_chunks",)

    def __init__(self) -> None:
        self._chunks: list[Chunk] = []

    def add(self, start: float, end: float, size_bytes: float) -> None:
        """Add bytes that arrived between two moments; an ``end`` before ``start`` counts as ``start``."""
        chunk = Chunk(start, max(start, end), size_bytes)
        if self._chunks and _alike(self._chunks[-1], chunk):
            chunk = _joined(self._chunks.pop(), chunk)
        self._chunks.append(chunk)
        if len(self._chunks) > MAX_CHUNKS_PER_FILE:
            self._halve()

    @property
    def last(self) -> Chunk:
        """Return the latest chunk as it was joined."""
        return self._chunks[-1]

    def clear(self) -> None:
        """Forget everything: the file was truncated."""
        self._chunks.clear()

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self._chunks)

    def _halve(self) -> None:
        # Pairs that touch lose nothing but the shape of the rate; a pause between two is kept.
        halved: list[Chunk] = []
        for chunk in self._chunks:
            last = halved[-1] if halved else None
            if (
                last
                and chunk.start - last.end < 1e-3
                and last.end - last.start < 2 * (chunk.end - chunk.start)
            ):
                halved[-1] = _joined(last, chunk)
            else:
                halved.append(chunk)
        if len(halved) > MAX_CHUNKS_PER_FILE * 3 // 4:
            halved = [
                _joined(halved[i], halved[i + 1]) if i + 1 < len(halved) else halved[i]
                for i in range(0, len(halved), 2)
            ]
        self._chunks = halved


class Meter:
    """Live counters of one directory: bytes seen arriving, and the time in which bytes were flowing.

    ``strip`` keeps when the latest of them arrived.
    """

    def __init__(self) -> None:
        self.written_bytes = 0
        self.strip = Strip()
        self.write_active_seconds = 0.0
        self._active_until = float("-inf")

    def add(self, size_bytes: int, chunk: Chunk) -> None:
        """Add bytes that arrived at the end of ``chunk``; time in which several files grew counts once."""
        self.written_bytes += size_bytes
        # A chunk that was joined with earlier ones of like rate is longer than what has just arrived.
        share = min(1.0, size_bytes / chunk.size_bytes) if chunk.size_bytes > 0 else 1.0
        self.strip.add(chunk.end - (chunk.end - chunk.start) * share, chunk.end, size_bytes)
        begin = max(chunk.start, self._active_until)
        if chunk.end > begin:
            self.write_active_seconds += chunk.end - begin
            self._active_until = chunk.end


def _alike(first: Chunk, second: Chunk) -> bool:
    first_seconds, second_seconds = first.end - first.start, second.end - second.start
    if first_seconds <= 0 or second_seconds <= 0 or second.start - first.end > 1e-6:
        return False
    first_rate, second_rate = first.size_bytes / first_seconds, second.size_bytes / second_seconds
    return abs(first_rate - second_rate) <= 0.02 * max(first_rate, second_rate)


def _joined(first: Chunk, second: Chunk) -> Chunk:
    return Chunk(first.start, max(first.end, second.end), first.size_bytes + second.size_bytes)


def measure(chunks: Sequence[Chunk]) -> Flow:
    """Measure the flow of a whole save from the chunks of all its files.

    Active time is the union of the chunks. The peak is the highest rate over any window of 1 s, and never
    less than bytes over active time (a save shorter than a second has no full window).
    """
    stretches = union(chunks)
    active_seconds = sum(end - start for start, end in stretches)
    if active_seconds <= 0:
        return Flow(0.0, stretches, None)
    total = sum(chunk.size_bytes for chunk in chunks)
    return Flow(active_seconds, stretches, max(total / active_seconds, _peak(_coarse(chunks))))


def union(chunks: Iterable[Chunk]) -> tuple[tuple[float, float], ...]:
    """Join the chunks' times into disjoint stretches in time order; pauses under 1 ms are no pauses."""
    stretches: list[tuple[float, float]] = []
    for start, end, _ in sorted(chunks):
        if stretches and start <= stretches[-1][1] + 1e-3:
            stretches[-1] = (stretches[-1][0], max(stretches[-1][1], end))
        else:
            stretches.append((start, end))
    return _bounded(stretches)


def _bounded(stretches: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Close the shortest pauses until few enough stretches are left."""
    excess = len(stretches) - MAX_FLOW_STRETCHES
    if excess <= 0:
        return tuple(stretches)
    pauses = sorted((stretches[i + 1][0] - stretches[i][1], i) for i in range(len(stretches) - 1))
    closed = {i for _, i in pauses[:excess]}
    kept: list[tuple[float, float]] = []
    for i, (start, end) in enumerate(stretches):
        if i - 1 in closed:
            kept[-1] = (kept[-1][0], end)
        else:
            kept.append((start, end))
    return tuple(kept)


def _coarse(chunks: Sequence[Chunk]) -> Sequence[Chunk]:
    """Spread many chunks over equal bins, so that a save of 10,000 files costs no more than one of ten."""
    if len(chunks) <= MAX_CHUNKS_EXACT:
        return chunks
    start = min(chunk.start for chunk in chunks)
    span = max(chunk.end for chunk in chunks) - start
    width = max(0.05, span / MAX_CHUNKS_EXACT)
    bins = [0.0] * (int(span / width) + 1)
    for chunk in chunks:
        first, last = int((chunk.start - start) / width), int((chunk.end - start) / width)
        share = chunk.size_bytes / (last - first + 1)
        for i in range(first, last + 1):
            bins[i] += share
    return [Chunk(start + i * width, start + (i + 1) * width, size) for i, size in enumerate(bins) if size]


def _peak(chunks: Sequence[Chunk]) -> float:
    """Return the highest sum over a window of one second.

    The cumulative sum is piecewise linear, so the best window begins or ends where some chunk does.
    """
    times, sums = _cumulative(chunks)
    edges = [*times, *(t - PEAK_WINDOW_SECONDS for t in times)]
    best = max(_at(times, sums, t + PEAK_WINDOW_SECONDS) - _at(times, sums, t, before=True) for t in edges)
    return best / PEAK_WINDOW_SECONDS


def _cumulative(chunks: Sequence[Chunk]) -> tuple[list[float], list[float]]:
    """Turn chunks into (times, bytes arrived by then); a jump has two entries of one time."""
    slopes: dict[float, float] = {}
    jumps: dict[float, float] = {}
    for start, end, size in chunks:
        if end - start > INSTANT_SECONDS:
            slopes[start] = slopes.get(start, 0.0) + size / (end - start)
            slopes[end] = slopes.get(end, 0.0) - size / (end - start)
        else:
            jumps[start] = jumps.get(start, 0.0) + size
    moments = sorted(slopes.keys() | jumps.keys())
    times: list[float] = []
    sums: list[float] = []
    total = 0.0
    rates = accumulate(slopes.get(t, 0.0) for t in moments)
    rate, previous = 0.0, moments[0]
    for t, next_rate in zip(moments, rates, strict=True):
        total += rate * (t - previous)
        times.append(t)
        sums.append(total)
        if t in jumps:
            total += jumps[t]
            times.append(t)
            sums.append(total)
        rate, previous = next_rate, t
    return times, sums


def _at(times: Sequence[float], sums: Sequence[float], t: float, *, before: bool = False) -> float:
    """Interpolate the cumulative sum at ``t``; at a jump after it, or ``before`` it."""
    i = bisect_right(times, t)
    if before:
        while i > 0 and times[i - 1] == t:
            i -= 1
        if i < len(times) and times[i] == t:
            return sums[i]
    if i == 0:
        return 0.0
    if i == len(times):
        return sums[-1]
    span = times[i] - times[i - 1]
    share = (t - times[i - 1]) / span if span > 0 else 1.0
    return sums[i - 1] + share * (sums[i] - sums[i - 1])
