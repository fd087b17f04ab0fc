"""Stretches of time as (start, end) pairs: what is left of some after others are taken away."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

Span: TypeAlias = tuple[float, float]


def clip(spans: Iterable[Span], start: float, end: float) -> list[Span]:
    """Keep what lies between ``start`` and ``end``."""
    return [(max(a, start), min(b, end)) for a, b in spans if min(b, end) > max(a, start)]


def subtract(spans: Iterable[Span], taken: Iterable[Span]) -> list[Span]:
    """Take ``taken`` away from ``spans``."""
    left = list(spans)
    for start, end in taken:
        cut: list[Span] = []
        for a, b in left:
            cut += [(x, y) for x, y in ((a, min(b, start)), (max(a, end), b)) if y > x]
        left = cut
    return left


def inside(t: float, spans: Iterable[Span]) -> bool:
    """Tell whether a moment lies in one of the spans."""
    return any(a <= t <= b for a, b in spans)


def total(spans: Iterable[Span]) -> float:
    """Add up the lengths of spans that do not overlap."""
    return sum(b - a for a, b in spans)
