"""Quantities of two arms as people and programs read them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from ckpt_exporter.analysis.document import Column, Table
from ckpt_exporter.analysis.numbers import UNKNOWN, bandwidth_text, factor_text, seconds_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ckpt_exporter.analysis.quantities import Quantity
    from ckpt_exporter.analysis.statistics import Interval

NAMES: Final = {
    "duration_seconds": "save duration",
    "active_seconds": "time in which bytes flowed",
    "bubble_seconds": "bubble of a save",
    "average_bandwidth": "average bandwidth",
    "sustained_bandwidth": "sustained bandwidth",
    "peak_bandwidth": "peak bandwidth",
    "load_duration_seconds": "load duration",
    "load_storage_bandwidth": "bandwidth from storage",
}


def told_gain(what: str, quantity_name: str, quantity: Quantity) -> str:
    """Say in a sentence how a quantity of two arms differs; both must have it."""
    show = shown(quantity)
    arms = [found.estimate for found in (quantity.baseline, quantity.candidate) if found is not None]
    told = " to ".join(map(show, arms))
    if quantity.verdict == "not enough data" or quantity.gain is None:
        return f"{quantity_name}: {told}, but there is not enough data for a verdict."
    words = {
        "better": f"{what} are faster",
        "worse": f"{what} are slower",
        "no difference shown": f"No difference of {what.lower()} is shown",
    }
    return (
        f"{words[quantity.verdict]}: {told} (median), {factor_text(quantity.gain.estimate)} as fast "
        f"({range_text(quantity.gain, factor_text)} with 95 % confidence)."
    )


def range_text(found: Interval, show: Callable[[float | None], str]) -> str:
    """Write between what an estimate lies."""
    return UNKNOWN if found.low is None else f"{show(found.low)} to {show(found.high)}"


def shown(quantity: Quantity) -> Callable[[float | None], str]:
    """Return how the values of a quantity are written."""
    return seconds_text if quantity.unit == "seconds" else bandwidth_text


def quantities_table(title: str, quantities: Sequence[Quantity]) -> Table:
    """Return quantities side by side; those that neither arm has are left out."""
    columns = (Column("median", "left"), Column("baseline"), Column("candidate"), Column("better by"),
               Column("95 % interval"), Column("verdict", "left"))  # fmt: skip
    rows = []
    for quantity in quantities:
        if quantity.baseline is None and quantity.candidate is None:
            continue
        show, gain = shown(quantity), quantity.gain
        arms = [
            show(found.estimate) if found is not None else UNKNOWN
            for found in (quantity.baseline, quantity.candidate)
        ]
        told = (
            [factor_text(gain.estimate), range_text(gain, factor_text)]
            if gain is not None
            else [UNKNOWN, UNKNOWN]
        )
        rows.append((NAMES[quantity.key], *arms, *told, quantity.verdict))
        tails = (show(quantity.baseline_p95), show(quantity.candidate_p95))
        if quantity.unit == "seconds":
            rows.append(("... 95th percentile", *tails, "", "", ""))
    return Table(title, columns, tuple(rows))


def quantity_data(quantity: Quantity) -> dict[str, object]:
    """Return a quantity without its key."""
    data = asdict(quantity)
    del data["key"]
    return data
