"""Saves of other hosts beside those of this one: how much of them is known, and parts of one save."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from ckpt_exporter.bubble.attribution import SaveSpan
from ckpt_exporter.bubble.spans import Span
from ckpt_exporter.model import Save

# What looks that do not come back may have to tell is waited for no longer than so.
MAX_PATIENCE_SECONDS = 120.0


class Looks:
    """Until when looks at one shared directory have told all, and how late they come."""

    def __init__(self) -> None:
        self.known_until = -inf
        self._patience = 0.0

    def note(self, known_until: float, now: float) -> None:
        """Take in that all before ``known_until`` is known ``now``."""
        if self.known_until > -inf:
            # What happens right after a look is told by the next one.
            late = now - self.known_until
            self._patience = min(MAX_PATIENCE_SECONDS, max(2.0 * late + 1.0, 0.9 * self._patience))
        self.known_until = known_until

    def may_tell(self, t: float, now: float) -> bool:
        """Tell whether a look to come may show what happened up to ``t``."""
        return self.known_until < t and now < t + self._patience


def joined(span: SaveSpan, parts: Sequence[SaveSpan]) -> SaveSpan:
    """Return the time of a save with what other hosts wrote of it."""
    everything = (span, *parts)
    return replace(span, start=min(s.start for s in everything), end=max(s.end for s in everything))


def with_parts(save: Save, parts: Sequence[SaveSpan]) -> Save:
    """Return a save in which bytes also flow while other hosts write their parts; its end stays its own."""
    if not parts:
        return save
    own = [span for span in save.flow if span[1] > span[0]] or [(save.start, save.end)]
    return replace(save, flow=_union([*own, *((part.start, part.end) for part in parts)]))


def _union(spans: list[Span]) -> tuple[Span, ...]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return tuple(merged)
