"""Which save pays for which instant: every instant of a GPU is one save's, or none's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

from ckpt_exporter.bubble.settings import BubbleSettings
from ckpt_exporter.bubble.spans import Span, clip, subtract


@dataclass(frozen=True, slots=True)
class SaveSpan:
    """When a save ran, and on whose GPUs (uuids; None unknown). ``end`` is infinite while it is open."""

    key: int
    start: float
    end: float = inf
    directory: str = ""
    path: str = ""
    gpus: frozenset[str] | None = None

    def touches(self, uuid: str) -> bool:
        """Tell whether this save may have cost this GPU anything."""
        return self.gpus is None or uuid in self.gpus


@dataclass(slots=True)
class Charges:
    """The instants of one GPU that some save has paid for, so that none is paid for twice."""

    spans: list[Span] = field(default_factory=list)

    def add(self, spans: Iterable[Span]) -> None:
        """Note that these instants are paid for."""
        self.spans.extend(spans)

    def forget(self, before: float) -> None:
        """Forget what ended before a moment."""
        self.spans = [span for span in self.spans if span[1] >= before]


def owned(save: SaveSpan, span: Span, saves: Sequence[SaveSpan], settings: BubbleSettings) -> list[Span]:
    """Return the parts of a dip that are this save's.

    While saves are open, an instant is that of the one that began first; between saves, of the one that
    ended last, then of the next to begin.
    """
    start, end = span
    near = [s for s in saves if s.start - settings.lookback_seconds < end]
    near = [s for s in near if s.end + settings.lookahead_seconds > start]
    moments = sorted({start, end, *(_bounds(near, settings))})
    cuts = [t for t in moments if start <= t <= end]
    pieces = []
    for a, b in pairwise(cuts):
        owner = _owner((a + b) / 2, near, start, settings)
        if owner is not None and owner.key == save.key:
            pieces.append((a, b))
    return pieces


def _bounds(saves: Sequence[SaveSpan], settings: BubbleSettings) -> Iterable[float]:
    for save in saves:
        yield from (save.start - settings.lookback_seconds, save.start)
        yield from (save.end, save.end + settings.lookahead_seconds)


def _owner(t: float, saves: Sequence[SaveSpan], dip: float, settings: BubbleSettings) -> SaveSpan | None:
    running = [save for save in saves if save.start <= t <= save.end]
    if running:
        return min(running, key=lambda save: (save.start, save.key))
    ended = [
        save
        for save in saves
        if dip - settings.reach_after_seconds <= save.end < t <= save.end + settings.lookahead_seconds
    ]
    if ended:
        return max(ended, key=lambda save: (save.end, save.key))
    coming = [save for save in saves if t < save.start <= t + settings.lookback_seconds]
    return min(coming, key=lambda save: (save.start, save.key), default=None)


def unpaid(spans: Iterable[Span], charges: Charges, start: float, end: float) -> list[Span]:
    """Return what of these spans no save has paid for, between two moments."""
    return subtract(clip(spans, start, end), charges.spans)
