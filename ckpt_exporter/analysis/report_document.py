"""The report as people read it: what the saves cost first, then where it went, then which saves stand out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ckpt_exporter.analysis.document import Chart, Column, Document, Heading, Paragraph, Series, Table
from ckpt_exporter.analysis.gpu_shares import gpu_shares_blocks
from ckpt_exporter.analysis.job_saves import job_saves
from ckpt_exporter.analysis.loads import loads_blocks
from ckpt_exporter.analysis.numbers import (
    UNKNOWN,
    bandwidth_text,
    counted,
    duration_text,
    percent_text,
    plain,
    seconds_text,
    significant,
    size_text,
    time_text,
)
from ckpt_exporter.analysis.report import Scope, report_data
from ckpt_exporter.analysis.report_gpus import gpus_blocks
from ckpt_exporter.analysis.stalls import stalls_blocks
from ckpt_exporter.history.rows import PHASES
from ckpt_exporter.words import PHASES as PHASE_TEXTS
from ckpt_exporter.words import SKIPPED, reason_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckpt_exporter.analysis.document import Align, Block
    from ckpt_exporter.history.records import Measurements

Data = dict[str, Any]
_LEFT: Final[Align] = "left"
_STRAGGLERS: Final = 5
# A save that is not slower than this is not slow.
_SLOWER_FACTOR: Final = 1.05


def report(measured: Measurements, scope: Scope) -> Document:
    """Return what the saves of a window cost; ``data`` has the keys that docs/report.md lists."""
    data = report_data(measured, scope)
    if not measured.saves:
        return _without_saves(data)
    blocks: list[Block] = [
        *_answer(data), *_warnings(data), *_summary(data), *_durations(measured), *_phases(data),
        *gpu_shares_blocks(data["gpu_time"]), *gpus_blocks(data), *_trend(data), *_slowest(data),
        *_unfinished(data), *_stragglers(data), *loads_blocks(data["loads"]),
        *stalls_blocks(data["stall_episodes"]), *_notes(data),
    ]  # fmt: skip
    return Document("What the saves cost", tuple(blocks), data)


def _without_saves(data: Data) -> Document:
    """Return what can be said of a node that only loads, as one that serves a model does."""
    window = data["window"]
    blocks: list[Block] = [
        Paragraph(
            f"No save ended from {time_text(window['since_unix'])} to {time_text(window['until_unix'])} "
            f"({duration_text(window['seconds'])}), but {counted(data['loads']['count'], 'load')} did."
        ),
        *_note_warnings(data), *loads_blocks(data["loads"]), *gpu_shares_blocks(data["gpu_time"]),
        *stalls_blocks(data["stall_episodes"]), *_notes(data),
    ]  # fmt: skip
    return Document("What loading took", tuple(blocks), data)


# --- the answer -----------------------------------------------------------------------------------------


def _answer(data: Data) -> Iterator[Block]:
    saves, durations, bubble = data["saves"], data["duration_seconds"], data["bubble"]
    window = data["window"]
    yield Paragraph(
        f"{counted(saves['count'], 'save')} of {_which(data)} from {time_text(window['since_unix'])} to "
        f"{time_text(window['until_unix'])} ({duration_text(window['seconds'])})."
    )
    if durations["known"]:
        yield Paragraph(
            f"A save took {seconds_text(durations['median'])} (median), {seconds_text(durations['worst'])} at"
            f" worst, for {size_text(data['bytes']['median'])}. {_elapsed(data['save_time'])}"
        )
    if bubble["gpu_seconds"] is not None:
        share = (
            "" if bubble["share"] is None
            else f": {percent_text(bubble['share'])} of the {bubble['denominator']} "
            f"({significant(bubble['observed_gpu_seconds'] / 3600)} GPU-hours)"
        )  # fmt: skip
        yield Paragraph(f"The GPUs lost {significant(bubble['gpu_hours'])} GPU-hours to saves{share}.")
    yield Paragraph(_faster(data))


def _which(data: Data) -> str:
    saves, chosen = data["saves"], data["filter"]
    of = ", ".join(saves["directories"][:3]) + (" ..." if len(saves["directories"]) > 3 else "")
    run = f", run {chosen['run']}," if chosen["run"] is not None else ""
    nodes = f" on {len(saves['nodes'])} nodes" if len(saves["nodes"]) > 1 else ""
    return of + run + nodes


def _elapsed(save_time: Data) -> str:
    if save_time["share"] is None:
        return ""
    of = "" if save_time["basis"] == "window" else ", from the first save's start to the last one's"
    return (
        f"Saves were being written for {percent_text(save_time['share'])} of the time "
        f"({seconds_text(save_time['seconds'])} of {seconds_text(save_time['of_seconds'])}{of})."
    )


def _faster(data: Data) -> str:
    faster = data["faster_storage"]
    if faster["at_most_seconds"] is None:
        return "What faster storage could win back is not known: no save's write time is."
    if faster["basis"] == "save_time":
        return (
            f"Faster storage could shorten these saves by at most {percent_text(faster['share'], 0)} "
            f"({seconds_text(faster['at_most_seconds'])}): for that part bytes flowed. What that is worth in "
            "GPU time is not known, because no GPU was measured."
        )
    hours = faster["at_most_gpu_hours"]
    worth = "" if hours is None else f"{significant(hours)} GPU-hours, "
    return (
        f"Faster storage could win back at most {worth}{percent_text(faster['share'], 0)} of the bubble: the "
        "part in which bytes flowed. The rest are waits in which storage may have a part (fsync) or none "
        "(barriers, staging)."
    )


def _warnings(data: Data) -> Iterator[Block]:
    bubble, saves = data["bubble"], data["saves"]
    without = saves["count"] - bubble["saves_with_figure"]
    if bubble["gpu_seconds"] is not None and without:
        why = "; ".join(f"{SKIPPED.get(name, name)}: {n}" for name, n in bubble["skipped"].items())
        yield Paragraph(
            f"{counted(without, 'save')} without a bubble figure{f' ({why})' if why else ''}: what the GPUs "
            "lost to them is not in these numbers.",
            "warning",
        )
    partly = bubble["saves_with_part_of_a_figure"]
    if partly:
        yield Paragraph(
            f"{counted(partly, 'save')} with a bubble figure from some nodes only: what other nodes' GPUs "
            "lost is not in these numbers.",
            "warning",
        )
    if bubble["gpu_seconds"] is None:
        yield Paragraph("No bubble was measured, so what the GPUs lost is not known.", "warning")
    alone = bubble["utilisation_alone"]
    if alone:
        yield Paragraph(
            f"{counted(alone, 'bubble')} told from utilisation alone, which misses GPUs that wait in a "
            "collective: the true loss is larger.",
            "warning",
        )
    if bubble["low_quality"] > alone:
        yield Paragraph(
            f"{counted(bubble['low_quality'] - alone, 'bubble')} of low quality (an old baseline, "
            "for example): what the GPUs really lost may be more or less.",
            "warning",
        )
    yield from _note_warnings(data)


def _note_warnings(data: Data) -> Iterator[Block]:
    for note in data["notes"]:
        yield Paragraph(note[:1].upper() + note[1:] + ".", "warning")


# --- tables and pictures --------------------------------------------------------------------------------


def _summary(data: Data) -> Iterator[Block]:
    saves, size = data["saves"], data["bytes"]
    results = ", ".join(
        f"{count} {name}" for name, count in saves["results"].items() if count or name == "complete"
    )
    rows = [("saves", results)]
    rows += [("nodes", ", ".join(saves["nodes"]))] if len(saves["nodes"]) > 1 else []
    rows += [("storage", "; ".join(saves["storage"]))] if saves["storage"] else []
    rows.append(("bytes", f"{size_text(size['total'])} in {plain(size['files'])} files"))
    if size["written_total"] is not None:
        rows.append(("bytes seen arriving", size_text(size["written_total"])))
    yield Heading("Saves")
    yield Table("", (Column("what", _LEFT), Column("value", _LEFT)), tuple(rows))
    bands, durations = data["bandwidth"], data["duration_seconds"]
    table = [
        ("duration", *(seconds_text(durations[key]) for key in ("median", "p95", "worst"))),
        *(
            (f"{kind} bandwidth", *(bandwidth_text(bands[kind][key]) for key in ("median", "p5", "worst")))
            for kind in ("average", "sustained", "peak")
        ),
    ]
    bubble = data["bubble"]["seconds"]
    if bubble["known"]:
        table.append(("bubble", *(seconds_text(bubble[key]) for key in ("median", "p95", "worst"))))
    yield Table(
        "A save: its median, what 95 % of saves are no worse than, and the worst",
        (Column("", _LEFT), Column("median"), Column("95 %"), Column("worst")),
        tuple(table),
    )
    yield Paragraph(
        "Average bandwidth is bytes over the whole duration, sustained bandwidth over the time in which "
        "bytes flowed, peak the best second."
        + (" Of several nodes the slowest counts; bytes are summed." if len(saves["nodes"]) > 1 else "")
    )


def _durations(measured: Measurements) -> Iterator[Block]:
    jobs = [save for save in job_saves(measured.saves) if save.complete]
    by_directory: dict[str, list[tuple[float, float | None]]] = {}
    for save in jobs:
        points = by_directory.setdefault(save.records[0].directory, [])
        points.append((save.end_unix, save.duration_seconds))
    if len(jobs) > 1:
        series = tuple(Series(name, tuple(points)) for name, points in sorted(by_directory.items()))
        yield Chart("Duration of each save", "line", "seconds", series, x_is_time=True)


def _phases(data: Data) -> Iterator[Block]:
    phases = data["phases"]
    if phases is None:
        return
    yield Heading("Where the bubble went")
    rows = [
        (PHASE_TEXTS[phase], seconds_text(phases[phase]["seconds"]), _hours(phases[phase]["gpu_seconds"]),
         percent_text(phases[phase]["share"], 1))
        for phase in PHASES
    ]  # fmt: skip
    heads = (Column("phase", _LEFT), Column("seconds"), Column("GPU-hours"), Column("share"))
    yield Table("Seconds are the mean over the GPUs of the run, summed over saves", heads, tuple(rows))
    points = tuple((float(i), phases[phase]["seconds"]) for i, phase in enumerate(PHASES))
    labels = tuple(PHASE_TEXTS[phase] for phase in PHASES)
    yield Chart("Bubble by phase of the save", "bars", "seconds", (Series("bubble", points),), labels=labels)


def _trend(data: Data) -> Iterator[Block]:
    trend = data["trend"]
    periods = trend["periods"]
    if len(periods) > 1:
        yield Heading("Trend")
        rows = [
            (_period(period["start_unix"], trend["by"]), plain(period["saves"]),
             seconds_text(period["duration_median_seconds"]), size_text(period["bytes"]),
             _hours(period["bubble_gpu_seconds"]), percent_text(period["bubble_share"]))
            for period in periods
        ]  # fmt: skip
        heads = (
            Column(f"{trend['by']} (UTC)", _LEFT), Column("saves"), Column("median"), Column("bytes"),
            Column("GPU-hours lost"), Column("share"),
        )  # fmt: skip
        yield Table("", heads, tuple(rows))
        shares = tuple((float(period["start_unix"]), period["bubble_share"]) for period in periods)
        if any(share is not None for _, share in shares):
            percent = tuple((x, None if share is None else share * 100) for x, share in shares)
            title = f"Bubble share by {trend['by']}"
            yield Chart(title, "line", "percent", (Series("bubble share", percent),), x_is_time=True)
    if trend["change_ratio"] is not None:
        change = trend["change_ratio"]
        yield Paragraph(
            f"The second half of the saves took {seconds_text(trend['second_half_median_seconds'])} "
            f"(median), the first {seconds_text(trend['first_half_median_seconds'])}: "
            f"{'+' if change >= 0 else ''}{percent_text(change, 1)}."
        )


def _period(unix: float, by: str) -> str:
    text = time_text(unix)
    return text[:16] if by == "hour" else text[:10]


def _slowest(data: Data) -> Iterator[Block]:
    slowest = data["slowest"]
    if not slowest:
        return
    yield Heading("Slowest saves")
    slowest = [save for save in slowest if (save["times_median"] or 0.0) >= _SLOWER_FACTOR]
    if not slowest:
        yield Paragraph(
            f"No save took more than {percent_text(_SLOWER_FACTOR - 1, 0)} longer than the median."
        )
        return
    several = len(data["saves"]["directories"]) > 1
    rows = [
        (time_text(save["end_unix"])[:16], *_who(save, several=several),
         seconds_text(save["duration_seconds"]),
         UNKNOWN if save["times_median"] is None else f"x{significant(save['times_median'])}", save["reason"])
        for save in slowest
    ]  # fmt: skip
    who = (Column("dir", _LEFT), Column("step")) if several else (Column("step"),)
    heads = (
        Column("ended (UTC)", _LEFT), *who, Column("took"), Column("against median"),
        Column("what the phases show", _LEFT),
    )  # fmt: skip
    yield Table("", heads, tuple(rows))


def _who(save: Data, *, several: bool) -> tuple[str, ...]:
    step = UNKNOWN if save["step"] is None else str(save["step"])
    return (save["directory"], step) if several else (step,)


def _unfinished(data: Data) -> Iterator[Block]:
    rows = [
        (
            time_text(save["end_unix"])[:16],
            *_who(save, several=True),
            save["result"],
            UNKNOWN if save["reason"] is None else reason_text(save["reason"]),
        )
        for save in data["unfinished"]
    ]
    if rows:
        yield Heading("Saves that were not completed")
        heads = (
            Column("ended (UTC)", _LEFT), Column("dir", _LEFT), Column("step"), Column("result", _LEFT),
            Column("reason", _LEFT),
        )  # fmt: skip
        yield Table("", heads, tuple(rows))


def _stragglers(data: Data) -> Iterator[Block]:
    found = data["stragglers"]
    if not found["shards_examined"] and not found["nodes_examined"]:
        return
    yield Heading("Stragglers")
    for kind, part in (("shards", "shard or rank"), ("nodes", "node")):
        examined, stragglers = found[f"{kind}_examined"], found[kind]
        if not examined:
            continue
        if not stragglers:
            yield Paragraph(f"No save of {examined} waited for one {part} alone.")
            continue
        rows = [
            (s["who"], f"{s['saves']} of {examined}", seconds_text(s["waited_seconds"]))
            for s in stragglers[:_STRAGGLERS]
        ]
        heads = (Column(part, _LEFT), Column("last in"), Column("waited for it alone"))
        yield Table(f"Saves that waited for one {part} after all others had ended", heads, tuple(rows))


def _notes(data: Data) -> Iterator[Block]:
    window, bubble = data["window"], data["bubble"]
    if bubble["share"] is not None:
        yield Paragraph(
            "Bubble share = GPU-seconds lost to saves / GPU-seconds in which the GPUs were observed in a "
            "training run. GPU time is kept by the hour."
        )
    if not (window["since_given"] and window["until_given"]):
        yield Paragraph("The window is as long as the records are; choose another with --since and --until.")
    yield Paragraph(f"Source: {data['source']}.")


def _hours(gpu_seconds: float | None) -> str:
    return UNKNOWN if gpu_seconds is None else significant(gpu_seconds / 3600)
