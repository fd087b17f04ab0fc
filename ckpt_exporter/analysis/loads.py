"""What loading checkpoints took, and how much of it came from the page cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ckpt_exporter.analysis.document import Column, Heading, Paragraph, Table
from ckpt_exporter.analysis.numbers import (
    bandwidth_text,
    counted,
    percent_text,
    plain,
    seconds_text,
    size_text,
)
from ckpt_exporter.analysis.spread import spread
from ckpt_exporter.analysis.statistics import median

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ckpt_exporter.analysis.document import Align, Block
    from ckpt_exporter.history.records import LoadRecord

Data = dict[str, Any]

_LEFT: Final[Align] = "left"
# Below this share from the cache a load's bandwidth is the storage's, to about a tenth.
FROM_STORAGE: Final = 0.1
MOSTLY_CACHED: Final = 0.5


def loads_data(loads: Sequence[LoadRecord]) -> Data | None:
    """Return the numbers of loads, each node's its own; None where none was kept, which is not none seen."""
    if not loads:
        return None
    sizes = [float(load.bytes) for load in loads]
    from_storage = [
        load.bandwidth for load in loads
        if load.cached_ratio is not None and load.cached_ratio < FROM_STORAGE
    ]  # fmt: skip
    return {
        "count": len(loads),
        "duration_seconds": spread([load.duration_seconds for load in loads]),
        "bytes": {
            "median": median(sizes), "largest": max(sizes), "total": sum(load.bytes for load in loads),
            "files": sum(load.files for load in loads),
        },
        "bandwidth": spread([load.bandwidth for load in loads], low_is_bad=True),
        "storage_bandwidth": spread(from_storage, low_is_bad=True),
        "cached": _cached(loads),
        "cold_start": _cold_start(loads),
    }  # fmt: skip


def _cached(loads: Sequence[LoadRecord]) -> Data:
    known = [(load.cached_ratio, load.bytes) for load in loads if load.cached_ratio is not None]
    total = sum(size for _, size in known)
    return {
        "known": len(known),
        "mostly_cached": sum(ratio >= MOSTLY_CACHED for ratio, _ in known),
        "share": sum(ratio * size for ratio, size in known) / total if total > 0 else None,
    }


def _cold_start(loads: Sequence[LoadRecord]) -> Data | None:
    """Return the time to the first work of GPUs, and how much of it loading took; None where not known."""
    known = [
        (load.cold_start_seconds, load.duration_seconds)
        for load in loads
        if load.cold_start_seconds is not None
    ]
    total = sum(whole for whole, _ in known)
    if not known:
        return None
    return {
        "seconds": spread([whole for whole, _ in known]),
        "after_load_seconds": spread([whole - loading for whole, loading in known]),
        "loading_share": sum(loading for _, loading in known) / total if total > 0 else None,
    }


def loads_blocks(data: Data | None) -> Iterator[Block]:
    """Yield what the report says of loads."""
    if data is None:
        return
    size, durations = data["bytes"], data["duration_seconds"]
    yield Heading("Loads")
    yield Paragraph(
        f"{counted(data['count'], 'load')} on the nodes, {size_text(size['total'])} in "
        f"{counted(size['files'], 'file')}; {size_text(size['median'])} each (median)."
    )
    rows = [("duration", *(seconds_text(durations[key]) for key in ("median", "p95", "worst")))]
    cold = data["cold_start"]
    if cold is not None:
        rows.append(
            ("cold start", *(seconds_text(cold["seconds"][key]) for key in ("median", "p95", "worst")))
        )
    for name, key in (("as readers saw it", "bandwidth"), ("from storage", "storage_bandwidth")):
        if data[key]["known"]:
            speeds = (bandwidth_text(data[key][part]) for part in ("median", "p5", "worst"))
            rows.append((f"bandwidth {name}", *speeds))
    yield Table(
        "A load: its median, what 95 % of loads are no worse than, and the worst",
        (Column("", _LEFT), Column("median"), Column("95 %"), Column("worst")),
        tuple(rows),
    )
    if cold is not None:
        yield Paragraph(_cold_start_text(data["count"], cold))
    yield Paragraph(_cache_text(data))


def _cold_start_text(count: int, cold: Data) -> str:
    seconds = cold["seconds"]
    text = (
        f"Cold start, from the first open to the first work of the GPUs: {seconds_text(seconds['median'])} "
        f"(median), {seconds_text(seconds['worst'])} at worst"
    )
    if cold["loading_share"] is not None:
        text += (
            f". Loading took {percent_text(cold['loading_share'], 0)} of it: more than that no storage can "
            f"save. Then GPUs began after {seconds_text(cold['after_load_seconds']['median'])} (median)"
        )
    if seconds["known"] < count:
        text += f". Of {counted(count - seconds['known'], 'load')} no work of GPUs followed that is known"
    return text + "."


def _cache_text(data: Data) -> str:
    cached, from_storage = data["cached"], data["storage_bandwidth"]["known"]
    text = "What readers saw includes the page cache, so it is not the speed of the storage."
    if cached["share"] is not None:
        text += f" {percent_text(cached['share'], 0)} of the bytes came from the cache."
    if cached["mostly_cached"]:
        served = counted(cached["mostly_cached"], "load")
        text += f" {served} came mostly from it, which tells nothing of storage."
    if from_storage:
        text += (
            f" Bandwidth from storage is that of {counted(from_storage, 'load')} with less than "
            f"{percent_text(FROM_STORAGE, 0)} from the cache."
        )
    else:
        text += " No load is known to have come from storage, so how fast that reads is not known."
    unknown = data["count"] - cached["known"]
    if unknown:
        text += f" Of {plain(unknown)} it is not known how much was cached."
    return text
