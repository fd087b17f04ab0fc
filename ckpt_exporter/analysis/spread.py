"""How values spread, as the report tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckpt_exporter.analysis.statistics import mean, median, quantile

if TYPE_CHECKING:
    from collections.abc import Sequence


def spread(values: Sequence[float | None], *, low_is_bad: bool = False) -> dict[str, Any]:
    """Return how known values spread: median, the 95th percentile and the worst.

    Of bandwidths low ones are bad, so it is the 5th percentile and the lowest.
    """
    known = [value for value in values if value is not None]
    tail = "p5" if low_is_bad else "p95"
    if not known:
        return {"known": 0, "median": None, tail: None, "worst": None, "mean": None, "total": None}
    return {
        "known": len(known),
        "median": median(known),
        tail: quantile(known, 0.05 if low_is_bad else 0.95),
        "worst": min(known) if low_is_bad else max(known),
        "mean": mean(known),
        "total": None if low_is_bad else sum(known),
    }
