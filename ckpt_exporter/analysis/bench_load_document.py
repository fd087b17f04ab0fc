"""Loads that a bench made, as people and programs read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ckpt_exporter.analysis.document import Chart, Column, Paragraph, Series, Table
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

    from ckpt_exporter.analysis.bench_result import BenchResult, LoadRepetition
    from ckpt_exporter.analysis.document import Block

# Detector and readers agree within this share, in bytes and in duration, or within so many seconds.
AGREEMENT: Final = 0.02
AGREEMENT_SECONDS: Final = 0.05
# More than this left in the cache is no cold load, more than this missing no warm one.
_NEARLY: Final = 0.01
_WAYS: Final = {"read": "by calls", "mmap": "by mapping", "direct": "around the page cache"}


def load_bandwidth(repetition: LoadRepetition) -> float | None:
    """Return the checkpoint's bytes over the whole load, by whoever measured it slower."""
    seconds = [repetition.readers.seconds]
    if repetition.load is not None:
        seconds.append(repetition.load.duration_seconds)
    slowest = max(seconds)
    return repetition.readers.bytes / slowest if slowest > 0 else None


def load_apart(repetition: LoadRepetition) -> tuple[float, int] | None:
    """Return by how many seconds and bytes the detector exceeds the readers; None where it saw no load."""
    load, readers = repetition.load, repetition.readers
    return None if load is None else (load.duration_seconds - readers.seconds, load.bytes - readers.bytes)


def loads_agree(repetition: LoadRepetition) -> bool:
    """Tell whether detector and readers agree: within 2 % of the bytes, and 2 % or 50 ms of the duration."""
    apart = load_apart(repetition)
    if apart is None:
        return False
    seconds, size = map(abs, apart)
    readers = repetition.readers
    in_time = seconds <= max(AGREEMENT_SECONDS, AGREEMENT * readers.seconds)
    return in_time and size <= AGREEMENT * readers.bytes


def load_summary(result: BenchResult) -> dict[str, Any]:
    """Return what follows from the loads: by state of the cache, and whether both measured the same."""
    summary = {}
    for cache, chosen in _by_cache(result).items():
        speeds = [speed for r in chosen if (speed := load_bandwidth(r)) is not None]
        shares = [r.load.cached_ratio for r in chosen if r.load is not None]
        known = [share for share in shares if share is not None]
        summary[cache] = {
            "loads": len(chosen),
            "median_seconds": median([r.readers.seconds for r in chosen]),
            "median_bandwidth": median(speeds) if speeds else None,
            "slowest_bandwidth": min(speeds, default=None),
            "fastest_bandwidth": max(speeds, default=None),
            "median_cached_ratio": median(known) if known else None,
        }
    return {"load_summary": summary, "loads_agree": all(map(loads_agree, result.loads))}


def load_blocks(result: BenchResult, warnings: list[str]) -> list[Block]:
    """Return what was read and how, the answer, what limits it, and every load."""
    options, mount = result.options, result.mount or {}
    files = counted(int(result.shape["files"]), "file")
    share = "each reads all of it" if options.get("whole") else "they share its files out"
    readers = counted(int(options["readers"]), "reader")
    return [
        Paragraph(
            f"{result.shape['title']}: {files}, {size_text(result.shape['bytes'])}; {readers} "
            f"{_WAYS[options['method']]}, {share}; on {result.path} "
            f"({mount.get('fstype', UNKNOWN)}, {mount.get('transport', UNKNOWN)})."
        ),
        _summary(result),
        Paragraph(_agreement(result)),
        *(Paragraph(text, "warning") for text in warnings),
        _each(result),
        _chart(result),
    ]


def _by_cache(result: BenchResult) -> dict[str, list[LoadRepetition]]:
    found: dict[str, list[LoadRepetition]] = {}
    for repetition in result.loads:
        found.setdefault(repetition.cache, []).append(repetition)
    return found


def _summary(result: BenchResult) -> Table:
    columns = (Column("page cache", "left"), Column("loads"), Column("median"), Column("slowest"),
               Column("fastest"), Column("median duration"), Column("cached"))  # fmt: skip
    rows = [
        (
            cache, plain(found["loads"]),
            *(bandwidth_text(found[f"{key}_bandwidth"]) for key in ("median", "slowest", "fastest")),
            seconds_text(found["median_seconds"]), percent_text(found["median_cached_ratio"], 0),
        )
        for cache, found in load_summary(result)["load_summary"].items()
    ]  # fmt: skip
    return Table("Bandwidth of a whole load, from the first open to the last byte", columns, tuple(rows))


def _agreement(result: BenchResult) -> str:
    agreeing = sum(map(loads_agree, result.loads))
    limit = f"{percent_text(AGREEMENT, 0)} or {plain(AGREEMENT_SECONDS * 1000)} ms"
    if agreeing == len(result.loads):
        return f"The exporter and the readers agree on every load, within {limit}."
    loads = counted(len(result.loads), "load")
    return f"The exporter and the readers agree on {plain(agreeing)} of {loads}, within {limit}."


def load_warnings(result: BenchResult) -> Iterator[str]:
    """Yield what could not be done as asked, and what was not measured alike."""
    stayed = [
        share for r in result.loads if r.cache == "cold" and (share := r.readers.cached_before or 0) > _NEARLY
    ]
    direct = result.options["method"] == "direct"
    if stayed and not direct:
        yield (
            f"Up to {percent_text(max(stayed), 0)} of the checkpoint stayed in the page cache before "
            f"{counted(len(stayed), 'cold load')}: another program holds it, or the file system keeps it in "
            "memory. These are no cold loads."
        )
    missing = [r for r in result.loads if r.cache == "warm" and (r.readers.cached_before or 0) < 1 - _NEARLY]
    if any(r.readers.cached_before is None for r in result.loads):
        yield "This kernel does not tell what is cached: whether loads were cold or warm is not known."
    elif missing and not direct:
        least = min(r.readers.cached_before or 0.0 for r in missing)
        yield (
            f"Only {percent_text(least, 0)} of the checkpoint was in the page cache before a warm load: "
            "there is not memory enough, or the file system caches nothing."
        )
    if direct and not all(r.readers.direct for r in result.loads):
        yield "This file system refuses direct reads: they went through the page cache."
    unseen = sum(r.load is None for r in result.loads)
    if unseen:
        yield f"{counted(unseen, 'load')} not seen by the exporter: it would miss that here."
    others = sum(r.others for r in result.loads)
    if others:
        yield f"Another process read the checkpoint during {counted(others, 'load')}."
    wrong = len(result.loads) - sum(map(loads_agree, result.loads)) - unseen
    if wrong:
        yield (
            f"The exporter and the readers differ on {counted(wrong, 'load')}: one of them is wrong. Do not "
            "trust either before that is explained."
        )


def _each(result: BenchResult) -> Table:
    columns = (Column("load"), Column("page cache", "left"), Column("readers"), Column("exporter"),
               Column("apart"), Column("bandwidth"), Column("cached before"), Column("cached"),
               Column("of a file"))  # fmt: skip
    rows = []
    for number, r in enumerate(result.loads, 1):
        load = r.load
        rows.append((
            plain(number), r.cache, seconds_text(r.readers.seconds),
            seconds_text(load.duration_seconds) if load else UNKNOWN, _apart(r),
            bandwidth_text(load_bandwidth(r)), percent_text(r.readers.cached_before, 0),
            percent_text(load.cached_ratio if load else None, 0), plain(load.readers if load else None),
        ))  # fmt: skip
    title = (
        "Each load, as its readers and as the exporter measured it; 'cached before' was looked at before the "
        "load, 'cached' and the readers of a file are the exporter's"
    )
    return Table(title, columns, tuple(rows))


def _apart(repetition: LoadRepetition) -> str:
    apart = load_apart(repetition)
    if apart is None:
        return UNKNOWN
    seconds, size = apart
    told = f"{plain(seconds * 1000)} ms" if abs(seconds) < 1 else seconds_text(seconds)
    return told + (f", {plain(size)} bytes" if size else "")


def _chart(result: BenchResult) -> Chart:
    names = tuple(f"{number} {r.cache}" for number, r in enumerate(result.loads, 1))
    readers = [r.readers.bytes / r.readers.seconds if r.readers.seconds > 0 else None for r in result.loads]
    exporter = [r.load.bandwidth if r.load is not None else None for r in result.loads]
    scale, unit = bandwidth_unit([value for value in readers if value is not None])
    series = tuple(
        Series(name, tuple((float(i), None if v is None else v / scale) for i, v in enumerate(values)))
        for name, values in (("readers", readers), ("exporter", exporter))
    )
    return Chart("Bandwidth of each load", "bars", unit, series, "load", names)
