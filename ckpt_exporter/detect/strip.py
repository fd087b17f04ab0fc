"""Amounts over time in little memory: what a timeline is drawn from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_PIECES: Final = 600
# No timeline shows less than this, so what came within it came together.
FINE_SECONDS: Final = 0.5
# Pieces this near to each other have no pause between them.
TOUCHING_SECONDS: Final = 1e-3


@dataclass(slots=True)
class _Piece:
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

    def add(self, start: float, end: float, amount: float) -> None:
        """Add what came between two moments (seconds)."""
        last = self._pieces[-1] if self._pieces else None
        if last is not None and _together(last, start, end):
            last.start, last.end = min(last.start, start), max(last.end, end)
            last.amount += amount
            return
        self._pieces.append(_Piece(start, end, amount))
        if len(self._pieces) > MAX_PIECES:
            self._coarsen()

    def binned(self, start: float, bin_seconds: float, count: int) -> list[tuple[float, float]]:
        """Return for each of ``count`` bins the amount in it and the seconds of it that pieces cover."""
        bins = [(0.0, 0.0)] * count
        end = start + count * bin_seconds
        for piece in self._pieces:
            if piece.end < start or piece.start >= end:
                continue
            first = max(0, int((piece.start - start) // bin_seconds))
            last = min(count - 1, int((piece.end - start) // bin_seconds))
            length = piece.end - piece.start
            for i in range(first, last + 1):
                begin = start + i * bin_seconds
                inside = max(0.0, min(piece.end, begin + bin_seconds) - max(piece.start, begin))
                share = inside / length if length > 0 else 1.0
                bins[i] = (bins[i][0] + piece.amount * share, bins[i][1] + inside)
        return bins

    def _coarsen(self) -> None:
        self._pieces.sort(key=lambda piece: piece.start)
        half = len(self._pieces) // 2
        older: list[_Piece] = []
        paired = False
        for piece in self._pieces[:half]:
            last = older[-1] if older else None
            if last is not None and not paired and piece.start - last.end <= TOUCHING_SECONDS:
                last.end, paired = max(last.end, piece.end), True
                last.amount += piece.amount
            else:
                older.append(piece)
                paired = False
        self._pieces[:half] = older[-(half * 3 // 4) :]


def _together(last: _Piece, start: float, end: float) -> bool:
    """Tell whether a stretch and the last piece are one, for all that a timeline can show."""
    if max(last.end, end) - min(last.start, start) <= FINE_SECONDS:
        return True
    return abs(last.start - start) <= FINE_SECONDS / 2 and abs(last.end - end) <= FINE_SECONDS / 2
