"""What one process has read of one file, by its counters, its position and its mapping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# What neither counters nor the position tell of is worked out from the rate between the looks. A file of
# which that leaves less than this, and no more than the rate may be wrong by, was read whole.
WHOLE_SHARE = 0.9
# No process reads faster, not even from memory: a file held for less time was not read.
MAX_BYTES_PER_SECOND = 25e9
# A position is read a moment before the process's counters, later still where the looker was kept waiting.
SKEW_SECONDS = 0.005
SKEW_BYTES = 64 * 1024
# A reader found late stands no further than so many times its best rate, and its largest step, could bring
# it: beyond that a seek has put it there.
RATE_FACTOR = 3.0
# Of what a position moves, a process that has called for less than this only shares the descriptor.
SHARED_SHARE = 0.1


def slack_bytes(amount: int, seconds: float) -> int:
    """Return by how much a position and the counters read after it may disagree, at so much in that time."""
    return max(SKEW_BYTES, round(SKEW_SECONDS * amount / max(seconds, 1e-3)))


@dataclass(slots=True)
class Part:
    """What one process reads of one file. Times in seconds, ``bytes`` as measured since the first look.

    A process that reads on from where it stands has read what the position of its descriptor says; ``ahead``
    is what it stood past at the first look. But a position may come from a seek, or from another process with
    the same descriptor: it is trusted while the process's own counters explain it (``steady``), and only once
    they have (``placed``).
    """

    path: str
    size: int
    opened: float
    first: float
    bytes: int = 0
    last_held: float = 0.0
    last_look: float = 0.0
    gone: float | None = None
    grown: float | None = None  # the look that showed the last bytes
    grew_last: bool = True  # nothing shows yet that it is done
    counted: bool = True  # its counters were read after it let go
    position: int | None = None
    ahead: int = 0
    steady: bool = False
    placed: bool = False
    certain: bool = False  # of what it had read at first: its process was known before the open
    early: int | None = None  # at most so much it had read at first
    moves: bool = False  # not by calls that name their own offset
    idle: bool = False  # another process, with the same descriptor, moves its position
    unexplained: int = 0  # by how much the position has moved further than the counters
    step: int = 0  # the most seen between two looks
    peak: float = 0.0  # bytes a second, of that
    direct: bool = False
    mapped: bool = False
    exact: bool = False  # what was touched before the first look is counted, too
    at_first: int = 0  # of that
    early_fetched: int | None = None  # at most so much its process had fetched of it by the first look
    looks: int = 0

    @property
    def left(self) -> int:
        """Bytes not yet seen to be read."""
        return self.size - self.bytes - self.ahead

    @property
    def seen(self) -> int:
        """Bytes that counters, page tables or the position show."""
        return self.bytes + (self.ahead if self._is_placed else 0)

    @property
    def by_calls(self) -> bool:
        """Tell whether only the process's counters show what it reads of this file."""
        return not self.idle and not (self.moves and self.steady)

    @property
    def from_start(self) -> bool:
        """Tell whether what it has read are the first bytes of the file, without a gap."""
        return self.steady and self._is_placed

    @property
    def _is_placed(self) -> bool:
        reach = RATE_FACTOR * self.peak * (self.first - self.opened) + self.step + SKEW_BYTES
        return self.placed and (self.certain or self.ahead <= reach)

    def place(self, position: int | None, budget: int, *, known: bool) -> int:
        """Take the first position, within what the process has called; return how much of that explains it.

        ``known``: the process had been looked at before the open, and has called so much since.
        """
        self.position, self.early = position, 0 if known else budget
        self.placed = self.certain = known
        self.steady = position is not None and position <= min(self.size, budget)
        if position is None or not self.steady:
            return 0
        self.ahead = position
        return position if known else 0

    def follow(self, position: int | None, budget: int, t: float) -> int:
        """Follow the position; return how much of what the process has called explains it."""
        before, self.position = self.position, position
        if before is None or position is None:
            return self._loosen()
        moved = position - before
        self.idle = budget < SHARED_SHARE * moved if moved > 0 else self.idle
        if not self.steady:
            return 0
        if moved < 0:
            return self._go_back(before, position, budget, t)
        explained = min(moved, budget)
        self.unexplained += moved - explained
        if self.unexplained > slack_bytes(moved, t - self.last_look):
            return self._loosen()
        if moved:
            self.placed = self.placed or 2 * explained >= moved
            # What was taken for calls that name their offset was another file's, or read ahead.
            self.bytes = self.bytes if self.moves else 0
            self.moves = True
        if self.moves:
            self.advance(position - self.ahead - self.bytes, t)
        return explained

    def _go_back(self, before: int, position: int, budget: int, t: float) -> int:
        """Follow a reader that began anew, by a seek or by another open, after it had read on for a while."""
        if not self.placed:
            return self._loosen()
        explained = min(budget, self.size - before + position)
        self.moves = True
        self.advance(max(before + explained - position, before) - self.ahead - self.bytes, t)
        return explained

    def _loosen(self) -> int:
        """Trust the position no longer: it was moved by a seek, or by others."""
        self.steady = False
        self.ahead = self.ahead if self.placed else 0
        return 0

    def let_go(self, budget: int, t: float) -> int:
        """Take what the process has called until it let go; return how much of that was this file."""
        if self.position is None or not (self.moves or self.ahead):
            amount = min(budget, self.left)
            self.advance(amount, t)
            return amount
        # It may have gone back before, to what it has read already.
        amount = min(budget, self.size - self.position)
        self.placed = self.placed or 0 < amount == self.left
        self.advance(self.position + amount - self.ahead - self.bytes, t)
        return amount

    def advance(self, amount: int, t: float) -> None:
        """Add bytes seen at a look."""
        self.grew_last = amount > 0
        if amount > 0:
            amount = min(amount, self.left)
            self.bytes += amount
            self.step = max(self.step, amount)
            self.peak = max(self.peak, amount / max(t - self.last_look, 1e-3))
            self.grown = t

    def estimate(self, closed: float) -> tuple[int, bool]:
        """Return the bytes read until ``closed``, and whether they are a guess from the file's size."""
        known_until = max(self.last_held, self.gone or 0.0) if self.counted else self.last_held
        since_open = self.exact or self._is_placed
        only_once = self.looks < 2 or known_until <= self.first
        if not since_open and (only_once or (self.bytes == 0 and self.ahead == self.size)):
            plausible = self.size <= MAX_BYTES_PER_SECOND * max(0.0, closed - self.opened)
            return (max(self.size if plausible else 0, self.bytes), True)
        flowing_seconds = max((self.grown or self.first) - (self.opened if since_open else self.first), 1e-6)
        rate = min(self.seen / flowing_seconds, MAX_BYTES_PER_SECOND)
        before = 0.0 if since_open else rate * (self.first - self.opened)
        after = 0.0 if self.counted or not self.grew_last else rate * max(0.0, closed - self.last_held)
        worked_out = round(after + (before if self.early is None else min(before, self.early)))
        worked_out = min(worked_out, self.size - self.seen)
        rest = self.size - self.seen - worked_out
        whole = rest <= min((1 - WHOLE_SHARE) * self.size, RATE_FACTOR * worked_out + self.step)
        return (self.size if worked_out and whole else self.seen + worked_out), False

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
