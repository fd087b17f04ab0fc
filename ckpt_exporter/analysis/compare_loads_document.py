"""What a comparison says of loads, for people and programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_exporter.analysis.document import Chart, Column, Heading, Paragraph, Series, Table
from ckpt_exporter.analysis.numbers import UNKNOWN, plain, size_text
from ckpt_exporter.analysis.quantities_document import quantities_table, quantity_data, told_gain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckpt_exporter.analysis.compare_loads import LoadArm, LoadComparison
    from ckpt_exporter.analysis.document import Block


def loads_answer(loads: LoadComparison | None) -> Iterator[str]:
    """Yield the answer: by durations where loads are of one size, else by bandwidths."""
    if loads is None:
        return
    like_sized = loads.like_sized
    quantity = loads.duration if like_sized else loads.bandwidth
    if quantity.gain is None:
        yield "There is not enough data to compare loads from storage."
        return
    name = "Median duration of a load" if like_sized else "Median bandwidth of a load"
    yield told_gain("Loads from storage", f"{name} from storage", quantity)


def loads_blocks(loads: LoadComparison | None) -> Iterator[Block]:
    """Yield loads side by side; nothing where neither arm has any."""
    if loads is None:
        return
    arms = (loads.baseline, loads.candidate)
    yield Heading("Loads from storage")
    for text in loads.warnings:
        yield Paragraph(text, "warning")
    rows = (
        ("loads", *(plain(len(arm.loads)) for arm in arms)),
        ("from storage", *(plain(len(arm.from_storage)) for arm in arms)),
        ("from the page cache, left out", *(plain(arm.cached) for arm in arms)),
        ("unknown, left out", *(plain(arm.unknown) for arm in arms)),
        ("size of a load", *(size_text(arm.median_bytes) for arm in arms)),
        ("mount", *(_mounts(arm) for arm in arms)),
    )
    yield Table("", (Column("", "left"), Column("baseline"), Column("candidate")), rows)
    yield quantities_table(
        "Each node's load is one of its own; better is above x1", (loads.duration, loads.bandwidth)
    )
    series = tuple(
        Series(
            arm.name, tuple((float(i), load.duration_seconds) for i, load in enumerate(arm.from_storage, 1))
        )
        for arm in arms
    )
    yield Chart("Duration of each load from storage", "line", "seconds", series, "load, in order")


def _mounts(arm: LoadArm) -> str:
    return ", ".join(sorted({load.mountpoint for load in arm.loads if load.mountpoint})) or UNKNOWN


def loads_data(loads: LoadComparison | None) -> dict[str, object] | None:
    """Return everything with exact numbers; keys are stable, unknown values null."""
    if loads is None:
        return None
    return {
        "baseline": _arm_data(loads.baseline),
        "candidate": _arm_data(loads.candidate),
        "quantities": {found.key: quantity_data(found) for found in (loads.duration, loads.bandwidth)},
        "warnings": list(loads.warnings),
    }


def _arm_data(arm: LoadArm) -> dict[str, object]:
    return {
        "loads": len(arm.loads),
        "from_storage": len(arm.from_storage),
        "cached": arm.cached,
        "unknown": arm.unknown,
        "median_bytes": arm.median_bytes,
        "durations_seconds": [load.duration_seconds for load in arm.from_storage],
    }
