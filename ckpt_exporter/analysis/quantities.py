"""One quantity of two sets side by side, with intervals and a verdict; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from ckpt_exporter.analysis.statistics import Interval, interval, median, quantile, ratio_interval

if TYPE_CHECKING:
    from collections.abc import Sequence

# Below so many saves or loads an arm, chance decides: no verdict.
MIN_SAMPLES: Final = 5

Unit = Literal["seconds", "bytes_per_second"]
Verdict = Literal["better", "worse", "no difference shown", "not enough data"]


@dataclass(frozen=True, slots=True)
class Quantity:
    """One quantity of both arms: medians with intervals, 95th percentiles, and the gain.

    ``gain`` is above 1 where the candidate is better, whichever way the quantity points.
    """

    key: str
    unit: Unit
    baseline: Interval | None
    candidate: Interval | None
    baseline_p95: float | None
    candidate_p95: float | None
    gain: Interval | None
    verdict: Verdict


def quantity(key: str, unit: Unit, before: Sequence[float], after: Sequence[float]) -> Quantity:
    """Compare the values of baseline and candidate; shorter is better, and more a second."""
    gain = None
    if before and after and median(before) > 0 and median(after) > 0:
        gain = ratio_interval(before, after) if unit == "seconds" else ratio_interval(after, before)
    return Quantity(
        key,
        unit,
        interval(before) if before else None,
        interval(after) if after else None,
        quantile(before, 0.95) if before else None,
        quantile(after, 0.95) if after else None,
        gain,
        verdict(gain, len(before), len(after)),
    )


def verdict(gain: Interval | None, *counts: int) -> Verdict:
    """Judge a gain by its interval; fewer than ``MIN_SAMPLES`` of either set show nothing."""
    if gain is None or min(counts) < MIN_SAMPLES or gain.low is None or gain.high is None:
        return "not enough data"
    if gain.low > 1:
        return "better"
    return "worse" if gain.high < 1 else "no difference shown"
