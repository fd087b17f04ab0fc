"""A bench as people and programs read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ckpt_exporter.analysis.bench_load_document import load_blocks, load_summary, load_warnings
from ckpt_exporter.analysis.bench_result import bench_json
from ckpt_exporter.analysis.document import Chart, Column, Document, Paragraph, Series, Table
from ckpt_exporter.analysis.gate_storage import burst_bandwidth, disagreement, seconds_apart
from ckpt_exporter.analysis.numbers import (
    UNKNOWN,
    bandwidth_text,
    bandwidth_unit,
    counted,
    percent_text,
    plain,
    seconds_text,
    size_text,
)
from ckpt_exporter.analysis.statistics import median

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckpt_exporter.analysis.bench_result import BenchResult, Repetition
    from ckpt_exporter.analysis.document import Block

# Detector and writers must agree better than this, in bytes and in duration.
AGREEMENT: Final = 0.05


def bench_document(result: BenchResult) -> Document:
    """Return the answer, what limits it, and every burst or load."""
    if result.loads:
        warnings = list(load_warnings(result))
        data = {**bench_data(result), "warnings": warnings}
        return Document("Loading from the storage", tuple(load_blocks(result, warnings)), data)
    blocks: list[Block] = [
        Paragraph(
            f"{result.shape['title']}: {plain(result.shape['files'])} files, "
            f"{size_text(result.shape['bytes'])} a burst, {plain(result.options['writers'])} writers, "
            f"{_way(result)}, on {_place(result)}."
        ),
        _summary(result),
    ]
    warnings = list(_warnings(result))
    blocks += [Paragraph(text, "warning") for text in warnings]
    blocks += [_bursts(result), _chart(result)]
    return Document("The storage alone", tuple(blocks), {**bench_data(result), "warnings": warnings})


def bench_data(result: BenchResult) -> dict[str, Any]:
    """Return the stored form, and what follows from it."""
    summary = {}
    for cache, chosen in _by_cache(result).items():
        speeds = [speed for r in chosen if (speed := burst_bandwidth(r)) is not None]
        summary[cache] = {
            "bursts": len(chosen),
            "median_bandwidth": median(speeds) if speeds else None,
            "slowest_bandwidth": min(speeds, default=None),
            "fastest_bandwidth": max(speeds, default=None),
        }
    worst = [found for r in result.repetitions if (found := disagreement(r)) is not None]
    seconds = [abs(found) for r in result.repetitions if (found := seconds_apart(r)) is not None]
    return {
        **bench_json(result),
        "summary": summary,
        "largest_disagreement": max(worst, default=None),
        "largest_seconds_apart": max(seconds, default=None),
        **(load_summary(result) if result.loads else {}),
    }


def _by_cache(result: BenchResult) -> dict[str, list[Repetition]]:
    found: dict[str, list[Repetition]] = {}
    for repetition in result.repetitions:
        found.setdefault(repetition.cache, []).append(repetition)
    return found


def _way(result: BenchResult) -> str:
    ways = [name for name, key in (("direct", "direct"), ("fsync", "fsync")) if result.options.get(key)]
    return " and ".join(ways) or "into the page cache"


def _place(result: BenchResult) -> str:
    mount = result.mount or {}
    return f"{result.path} ({mount.get('fstype', UNKNOWN)}, {mount.get('transport', UNKNOWN)})"


def _summary(result: BenchResult) -> Table:
    columns = (Column("page cache", "left"), Column("bursts"), Column("median"), Column("slowest"),
               Column("fastest"), Column("median duration"))  # fmt: skip
    rows = []
    for cache, chosen in _by_cache(result).items():
        speeds = [speed for r in chosen if (speed := burst_bandwidth(r)) is not None]
        seconds = median([r.writers.seconds for r in chosen])
        shown = (
            [bandwidth_text(v) for v in (median(speeds), min(speeds), max(speeds))]
            if speeds
            else [UNKNOWN] * 3
        )
        rows.append((cache, plain(len(chosen)), *shown, seconds_text(seconds)))
    return Table("Bandwidth of a whole burst, sync and commit included", columns, tuple(rows))


def _warnings(result: BenchResult) -> Iterator[str]:
    if not result.options.get("fsync") and not result.options.get("direct"):
        yield (
            "Nothing was synced: this is the bandwidth of the page cache, as a job that does not sync sees "
            "it, not that of the storage."
        )
    if result.options.get("direct") and not all(r.writers.direct for r in result.repetitions):
        yield "This file system refuses direct writes: they went through the page cache."
    unseen = sum(r.save is None for r in result.repetitions)
    if unseen:
        yield f"{counted(unseen, 'burst')} not seen as a save: the exporter would miss that here."
    worst = max((found for r in result.repetitions if (found := disagreement(r)) is not None), default=0.0)
    if worst > AGREEMENT:
        yield (
            f"The exporter and the writers differ by up to {percent_text(worst, 1)}: one of them is wrong. "
            "Do not trust either before that is explained."
        )
    odd = [r for r in result.repetitions if r.save is not None and r.save.result != "complete"]
    if odd:
        yield f"{counted(len(odd), 'burst')} taken for a save that was not completed."


def _bursts(result: BenchResult) -> Table:
    columns = (Column("burst"), Column("page cache", "left"), Column("writers"), Column("exporter"),
               Column("apart"), Column("of it sync"), Column("sustained"), Column("peak"))  # fmt: skip
    rows = []
    for number, r in enumerate(result.repetitions, 1):
        save = r.save
        rows.append((
            plain(number), r.cache, seconds_text(r.writers.seconds),
            seconds_text(save.duration_seconds) if save else UNKNOWN,
            _apart(r), seconds_text(r.writers.sync_seconds),
            bandwidth_text(save.sustained_bandwidth) if save else UNKNOWN,
            bandwidth_text(save.peak_bandwidth) if save else UNKNOWN,
        ))  # fmt: skip
    return Table("Each burst, as its writers and as the exporter measured it", columns, tuple(rows))


def _apart(repetition: Repetition) -> str:
    """Return what lies between both durations as measured, and between both counts of bytes if anything."""
    seconds = seconds_apart(repetition)
    if seconds is None or repetition.save is None:
        return UNKNOWN
    more = repetition.save.bytes - repetition.writers.bytes
    told = f"{plain(seconds * 1000)} ms" if abs(seconds) < 1 else seconds_text(seconds)
    return told + (f", {plain(more)} bytes" if more else "")


def _chart(result: BenchResult) -> Chart:
    names = tuple(f"{number} {r.cache}" for number, r in enumerate(result.repetitions, 1))
    writers = [r.writers.bytes / r.writers.seconds for r in result.repetitions]
    exporter = [_rate(r) for r in result.repetitions]
    scale, unit = bandwidth_unit(writers)
    series = (
        Series("writers", tuple((float(i), value / scale) for i, value in enumerate(writers))),
        Series("exporter", tuple((float(i), v / scale if v else None) for i, v in enumerate(exporter))),
    )
    return Chart("Bandwidth of each burst", "bars", unit, series, "burst", names)


def _rate(repetition: Repetition) -> float | None:
    save = repetition.save
    return save.bytes / save.duration_seconds if save is not None and save.duration_seconds else None
