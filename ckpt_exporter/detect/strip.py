"""Amounts over time in little memory: what a timeline is drawn from."""

from __future__ import annotations

from typing import Final, NamedTuple

MAX_PIECES: Final = 600
# No timeline shows less than this, so what came within it came together.
FINE_SECONDS: Final = 0.5
# Pieces this near to each other have no pause between them.
TOUCHING_SECONDS: Final = 1e-3


class _Piece(NamedTuple):
    """An amount that came evenly between two moments."""

    start: float
    end: float
    amount: float


class Strip:
    """Amounts that came evenly during stretches of time, bounded.

    Stretches that are nearly one become one. Of too many, those of the older half that touch are joined in
    pairs, and where pauses forbid that the oldest are forgotten: amounts are never smeared over a pause.
    """

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []

    def __len__(self) -> int:
        return len(self._pieces)

    def copy(self) -> Strip:
        """Return a copy that no longer changes."""
        other = Strip()
        other._pieces = self._pieces.copy()
        return other

    def add(self, start: float, end: float, amount: float) -> None:
        """Add what came between two moments (seconds)."""
        if self._pieces and _together(self._pieces[-1], start, end):
            last = self._pieces.pop()
            start, end, amount = min(last.start, start), max(last.end, end), last.amount + amount
        self._pieces.append(_Piece(start, end, amount))
        if len(self._pieces) > MAX_PIECES:
            self._coarsen()

    def binned(self, start: float, bin_seconds: float, count: int) -> tuple[list[float], list[float]]:
        """Return for each of ``count`` bins the amount in it and the seconds of it that pieces cover."""
        amounts, seconds = [0.0] * count, [0.0] * count
        end = start + count * bin_seconds
        for begun, ended, amount in self._pieces:
            if ended < start or begun >= end:
                continue
            length = ended - begun
            first = int((begun - start) / bin_seconds) if begun > start else 0
            last = min(count - 1, int((ended - start) / bin_seconds))
            if first == last and begun >= start and ended <= end:
                amounts[first] += amount
                seconds[first] += length
                continue
            for i in range(first, last + 1):
                edge = start + i * bin_seconds
                inside = max(0.0, min(ended, edge + bin_seconds) - max(begun, edge))
                amounts[i] += amount * inside / length if length > 0 else amount
                seconds[i] += inside
        return amounts, seconds

    def _coarsen(self) -> None:
        self._pieces.sort()
        half = len(self._pieces) // 2
        older: list[_Piece] = []
        paired = False
        for piece in self._pieces[:half]:
            last = older[-1] if older else None
            if last is not None and not paired and piece.start - last.end <= TOUCHING_SECONDS:
                older[-1] = _Piece(last.start, max(last.end, piece.end), last.amount + piece.amount)
                paired = True
            else:
                older.append(piece)
                paired = False
        self._pieces[:half] = older[-(half * 3 // 4) :]


def _together(last: _Piece, start: float, end: float) -> bool:
    """Tell whether a stretch and the last piece are one, for all that a timeline can show."""
    if max(last.end, end) - min(last.start, start) <= FINE_SECONDS:
        return True
    return abs(last.start - start) <= FINE_SECONDS / 2 and abs(last.end - end) <= FINE_SECONDS / 2
