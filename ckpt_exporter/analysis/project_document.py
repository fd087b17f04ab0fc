"""A projection as people read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ckpt_exporter.analysis.document import Chart, Column, Document, Heading, Paragraph, Series, Table
from ckpt_exporter.analysis.numbers import (
    UNKNOWN,
    bandwidth_text,
    bandwidth_unit,
    count_text,
    duration_text,
    factor_text,
    percent_text,
    plain,
    seconds_text,
    significant,
    size_text,
)
from ckpt_exporter.analysis.project import bandwidth_factor
from ckpt_exporter.analysis.project_data import further, projection_data
from ckpt_exporter.analysis.project_inputs import GIVEN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ckpt_exporter.analysis.document import Align, Block
    from ckpt_exporter.analysis.project import Projection

Data = dict[str, Any]
_LEFT: Final[Align] = "left"


def project_document(p: Projection) -> Document:
    """Return the projection, the answer first, then how it comes about, then what else could be asked."""
    data = projection_data(p)
    blocks: list[Block] = [*_answer(p, data), _comparison(data)]
    blocks += _bandwidths_told(p, data)
    blocks += _size(data)
    blocks += _best_interval(data)
    blocks += _changes(data)
    blocks += _other_bandwidths(p, data)
    blocks += _targets(p, data)
    blocks += _assumptions(p)
    blocks += _further(p)
    warnings = [block.text for block in blocks if isinstance(block, Paragraph) and block.kind == "warning"]
    return Document(
        "What other saves would be worth",
        tuple(blocks),
        {**data, "warnings": warnings, "further_flags": dict(further(p.inputs))},
    )


# --- the answer -----------------------------------------------------------------------------------------


def _answer(p: Projection, data: Data) -> Iterator[Block]:
    today, then = data["today"], data["then"]
    if p.run is None:
        yield Paragraph(f"A save takes {seconds_text(today['save_seconds'])}.")
    else:
        yield Paragraph(
            f"{count_text(today['saves'])} saves that cost "
            f"{seconds_text(today['lost_seconds_per_save'])} each take {seconds_text(today['lost_seconds'])} "
            f"of a run of {seconds_text(today['run_seconds'])}: "
            f"a bubble share of {percent_text(today['bubble_share'])}"
            + (f", {significant(today['lost_gpu_hours'])} GPU-hours." if today["lost_gpu_hours"] else ".")
        )
    if then is None:
        return
    if "saves" not in then:
        yield Paragraph(
            f"Then it takes {seconds_text(then['save_seconds'])}, "
            f"{factor_text(then['save_speedup'])} as fast."
        )
        return
    yield Paragraph(
        f"Then it would be {seconds_text(then['lost_seconds'])}: "
        f"{percent_text(then['bubble_share_of_own_run'])} of a run "
        f"that then takes {seconds_text(then['run_seconds'])} "
        f"({percent_text(then['bubble_share_of_todays_run'])} of today's run)."
    )
    yield Paragraph(_gain(then, p))


def _gain(then: Data, p: Projection) -> str:
    saved = then["saved_seconds"]
    if saved < 0:
        return f"The run gets {seconds_text(-saved)} longer, {percent_text(-then['saved_share'])} of today's."
    text = (
        f"That saves {seconds_text(saved)}, {percent_text(then['saved_share'])} of today's run, "
        f"or in the same time trains {percent_text(then['more_steps_share'], 1)} more steps"
    )
    if then["more_steps"] is not None:
        text += f" ({plain(then['more_steps'])})"
    if then["saved_gpu_hours"] is not None:
        text += f"; {significant(then['saved_gpu_hours'])} GPU-hours a run"
    if then["cluster_gpus_worth"] is not None:
        text += (
            f". In a cluster of {plain(p.inputs.cluster_gpus)} GPUs it is "
            f"{_between(then['cluster_gpus_worth'])} GPUs' worth; "
            f"{plain(then['cluster_gpus_to_add_instead'])} more GPUs would do the same"
        )
    return text + "."


def _between(value: float) -> str:
    """Write a count of GPUs as the whole numbers around it."""
    low = int(value)
    return plain(value) if abs(value - round(value)) < 0.05 else f"{plain(low)}-{plain(low + 1)}"


_ROWS: Final = (
    ("save duration", "save_seconds", seconds_text),
    ("... of it independent of the bandwidth", "fixed_seconds", seconds_text),
    ("... of it write-bound", "write_seconds", seconds_text),
    ("training time lost per save", "lost_seconds_per_save", seconds_text),
    ("saves", "saves", count_text),
    ("run, wall clock", "run_seconds", seconds_text),
    ("training time lost to saves", "lost_seconds", seconds_text),
    ("bubble share of that run", "bubble_share", percent_text),
    ("bubble share of today's run", "bubble_share_of_todays_run", percent_text),
    ("GPU-hours lost to saves", "lost_gpu_hours", significant),
    ("start of a save to start of the next", "interval_seconds", duration_text),
    ("steps between saves", "interval_steps", count_text),
)


def _comparison(data: Data) -> Table:
    arms: list[Data] = [data["today"]] + ([data["then"]] if data["then"] is not None else [])
    today = {**data["today"], "bubble_share_of_todays_run": data["today"].get("bubble_share")}
    arms[0] = today
    rows = [
        (name, *(show(arm.get(key)) for arm in arms))
        for name, key, show in _ROWS
        if any(arm.get(key) is not None for arm in arms)
    ]
    if len(arms) > 1:
        less = arms[1]["save_seconds_reduction_share"]
        told = f"{percent_text(abs(less), 0)} {'shorter' if less >= 0 else 'longer'}"
        speed = factor_text(arms[1]["save_speedup"])
        rows.insert(1, ("... against today", factor_text(1.0), f"{speed} as fast, {told}"))
    columns = (Column("", _LEFT), Column("today"), Column("then"))[: len(arms) + 1]
    return Table("Today and then" if len(arms) > 1 else "Today", columns, tuple(rows))


# --- bandwidths -----------------------------------------------------------------------------------------


def _bandwidths_told(p: Projection, data: Data) -> Iterator[Block]:
    told = data["bandwidth"]
    if told is None:
        return
    yield Heading("Bandwidths")
    yield Table("", (Column("", _LEFT), Column("today"), Column("then")), tuple(_bandwidth_table(p, told)))
    arms = [(name, arm) for name in ("today", "then") if (arm := told[name]) is not None]
    unfit = [(name, arm) for name, arm in arms if arm["fits"] is False]
    if unfit:
        yield Paragraph(_unfit(p, told, unfit), "warning")
    if told["fixed_seconds"] is not None:
        yield Paragraph(_fixed_told(p, told))
    elif not p.split.known and bandwidth_factor(p.inputs) is not None:
        yield Paragraph(_unknown_split(p, data), "warning")


def _bandwidth_table(p: Projection, told: Data) -> Iterator[tuple[str, ...]]:
    arms = [told["today"] or {}, told["then"] or {}]
    for name, values in (
        (_sustained_name(p), [told["given"], told["to_given"]]),
        ("average, of logical bytes (bytes / duration)", [arm.get("average_logical") for arm in arms]),
        ("average, of written bytes", [arm.get("average_written") for arm in arms]),
    ):
        if any(value is not None for value in values):
            yield (name, *(bandwidth_text(value) for value in values))
    if p.inputs.bytes is not None:
        other = p.inputs.to_bytes if p.inputs.to_save_seconds is None else None
        yield ("logical bytes of a save", size_text(p.inputs.bytes), size_text(other or p.inputs.bytes))
    if p.inputs.written_bytes is not None:
        yield ("bytes seen arriving", size_text(p.inputs.written_bytes), UNKNOWN)
    implied = [arm.get("implied_bytes") for arm in arms]
    if any(value is not None for value in implied):
        yield ("that bandwidth times its seconds", *(size_text(value) for value in implied))


def _sustained_name(p: Projection) -> str:
    return "as given" if p.inputs.source == GIVEN else "sustained, as measured or given"


def _unfit(p: Projection, told: Data, unfit: list[tuple[str, Data]]) -> str:
    given = {"today": told["given"], "then": told["to_given"]}
    quoted = " and ".join(bandwidth_text(given[name]) for name, _ in unfit)
    real = " and ".join(bandwidth_text(arm["average_logical"] or arm["average_written"]) for _, arm in unfit)
    implied = " and ".join(size_text(arm["implied_bytes"]) for _, arm in unfit)
    flowing = " and ".join(seconds_text(arm["implied_flowing_seconds"]) for _, arm in unfit)
    total = size_text(p.inputs.bytes or p.inputs.written_bytes)
    return (
        f"The given {quoted} are not {total} over the duration, which is {real}. They count other bytes "
        f"({implied} in the whole duration, such as one copy per rank) or other seconds (a peak, or only "
        f"the time in which bytes flowed, {flowing} of the save). "
        + ("Only their ratio is used here. " if p.split.fixed is not None else "")
        + "Ask which bytes and which seconds a bandwidth counts; this program keeps logical and written "
        "bytes apart, and average, sustained and peak bandwidth."
    )


def _fixed_told(p: Projection, told: Data) -> str:
    fixed = p.split.fixed
    assert fixed is not None  # noqa: S101 (asked by the caller)
    speedup = p.today.seconds / (p.inputs.to_save_seconds or p.today.seconds)
    text = (
        f"Saves get {factor_text(speedup)} as fast from {factor_text(told['ratio'])} the bandwidth: about "
        f"{significant(fixed.seconds, 2)} s of each save do not scale with the storage"
    )
    if fixed.high - fixed.low > 0.05:
        low, high = significant(max(0.0, fixed.low), 2), significant(fixed.high, 2)
        text += f" ({low} to {high} s, as the given numbers are rounded)"
    return text + ". No storage makes a save shorter than that."


def _unknown_split(p: Projection, data: Data) -> str:
    then = data["then"]
    flow, factor = p.inputs.flow_seconds, bandwidth_factor(p.inputs)
    ends = [then["save_seconds"], then["save_seconds_if_all_scales"]]
    if flow is not None and factor is not None:
        ends.append(p.today.seconds - flow + flow / factor)
    low, high = min(ends), max(ends)
    if high - low > 0.01 * high:
        return (
            "How much of the save is write-bound is not known for sure, so it would take "
            f"{seconds_text(low)} (if all of it is) to {seconds_text(high)}. Give --write-seconds, or "
            "measure both storages with bench."
        )
    return (
        f"The whole save is taken to be write-bound: {seconds_text(low)} is the best that this bandwidth can "
        "bring. Give --write-seconds (the time in which bytes flow), or measure with --history."
    )


def _size(data: Data) -> Iterator[Block]:
    size = data["size"]
    if size is None:
        return
    yield Heading("Another size")
    rows = [("all of a save goes with its size",
             "save_seconds_by_size_alone", "to_save_seconds_by_size_alone"),
            ("only its write-bound part does", "save_seconds", "to_save_seconds")]  # fmt: skip
    columns = (Column("", _LEFT), Column("today's storage"), Column("then"))
    table = tuple((name, seconds_text(size[a]), seconds_text(size[b])) for name, a, b in rows)
    yield Table(f"A checkpoint {factor_text(size['factor'])} as large", columns, table)


# --- intervals ------------------------------------------------------------------------------------------


def _best_interval(data: Data) -> Iterator[Block]:
    best = data["best_interval"]
    if best is None:
        return
    arms = [best[name] for name in ("today", "then") if name in best]
    yield Heading("The best interval between saves")
    rows = (
        ("failures: one in", "mtbf_seconds", duration_text),
        ("time to start again", "restart_seconds", duration_text),
        ("Young: sqrt(2 x cost x time between failures)", "young_seconds", duration_text),
        ("Daly, higher order", "daly_seconds", duration_text),
        ("exact optimum", "optimum_seconds", duration_text),
        ("... in steps", "optimum_steps", plain),
        ("... bubble share there", "optimum_bubble_share", percent_text),
        ("training time between saves now", "present_seconds", duration_text),
        ("... loses against the optimum", "present_loses_share", percent_text),
    )
    table = tuple(
        (name, *(show(arm[key]) for arm in arms))
        for name, key, show in rows
        if any(arm[key] is not None for arm in arms)
    )
    columns = (Column("", _LEFT), Column("today"), Column("then"))[: len(arms) + 1]
    yield Table("Training time between two saves", columns, table)
    loses = arms[0]["present_loses_share"]
    if loses is not None:
        direction = "longer" if arms[0]["optimum_seconds"] > arms[0]["present_seconds"] else "shorter"
        yield Paragraph(
            f"Today's interval loses {percent_text(loses)} against the best one, saves and failures taken "
            f"together; the best is {direction}. This needs no new storage: weigh it first."
        )


# --- tables of alternatives -----------------------------------------------------------------------------


def _changes(data: Data) -> Iterator[Block]:
    if not data["changes"]:
        return
    yield Heading("Each change alone")
    columns = (
        Column("change", _LEFT),
        Column("run"),
        Column("bubble share"),
        Column("saved"),
        Column("of today's run"),
    )
    yield Table("", columns, tuple(
        (c["change"], seconds_text(c["run_seconds"]), percent_text(c["bubble_share"]),
         seconds_text(c["saved_seconds"]), percent_text(c["saved_share"])) for c in data["changes"]
    ))  # fmt: skip


def _other_bandwidths(p: Projection, data: Data) -> Iterator[Block]:
    rows: list[Data] = data["bandwidths"]
    yield Heading("Other bandwidths")
    known = p.inputs.bandwidth is not None
    columns = [Column("factor"), *([Column("bandwidth")] if known else []), Column("save")]
    if p.run is not None:
        columns += [Column("bubble share"), Column("run"), Column("saved"), Column("of today's run")]
        columns += [Column("GPUs' worth")] if p.inputs.cluster_gpus is not None else []
    yield Table(
        "Everything else as today; only the write-bound part of a save shrinks",
        tuple(columns),
        tuple(tuple(_bandwidth_row(p, row)) for row in rows),
    )
    yield _bandwidth_chart(p, rows)


def _bandwidth_row(p: Projection, row: Data) -> Iterator[str]:
    yield factor_text(row["factor"])
    if p.inputs.bandwidth is not None:
        yield bandwidth_text(row["bandwidth"])
    yield seconds_text(row["save_seconds"])
    if p.run is not None:
        yield percent_text(row["bubble_share_of_own_run"])
        yield seconds_text(row["run_seconds"])
        yield seconds_text(row["saved_seconds"])
        yield percent_text(row["saved_share"])
        if p.inputs.cluster_gpus is not None:
            yield significant(row["cluster_gpus_worth"])


def _bandwidth_chart(p: Projection, rows: list[Data]) -> Chart:
    scale, unit = bandwidth_unit([row["bandwidth"] or 0.0 for row in rows])

    def x(row: Data) -> float:
        return float(row["bandwidth"] / scale if row["bandwidth"] is not None else row["factor"])

    x_label = f"bandwidth ({unit})" if p.inputs.bandwidth is not None else "bandwidth, times today's"
    if p.run is None:
        series = [
            Series("save", tuple((x(row), row["save_seconds"]) for row in rows)),
            Series("not write-bound", tuple((x(row), row["fixed_seconds"]) for row in rows)),
        ]
        return Chart("Duration of a save by bandwidth", "line", "seconds", tuple(series), x_label)
    floor = p.run.saves * p.today.lost_fixed
    least = 100 * floor / (p.run.training_seconds + floor)
    series = [
        Series("bubble share", tuple((x(row), 100 * row["bubble_share_of_own_run"]) for row in rows)),
        Series("least that any storage can reach", tuple((x(row), least) for row in rows)),
    ]
    return Chart("Bubble share by bandwidth", "line", "% of the run", tuple(series), x_label)


def _targets(p: Projection, data: Data) -> Iterator[Block]:
    if not data["targets"]:
        return
    steps = p.inputs.steps is not None
    columns = [Column("bubble share"), Column("bandwidth, times today's"), Column("or a save every")]
    columns += [Column("or every so many steps")] if steps else []
    rows = []
    for row in data["targets"]:
        factor = row["bandwidth_factor"]
        told = "no bandwidth does" if factor is None else "reached" if factor <= 1 else factor_text(factor)
        if row["bandwidth"] is not None and factor > 1:
            told += f" ({bandwidth_text(row['bandwidth'])})"
        cells = [percent_text(row["bubble_share"], 1), told, duration_text(row["interval_seconds"])]
        rows.append(tuple(cells + ([plain(row["interval_steps"])] if steps else [])))
    yield Table("What would bring the bubble share down to", tuple(columns), tuple(rows))


def _assumptions(p: Projection) -> Iterator[Block]:
    yield Heading("What this rests on")
    yield Paragraph(f"Source: {p.inputs.source}.")
    if p.inputs.bubble_seconds is None and p.inputs.blocking_seconds is None:
        yield Paragraph("All of a save is counted as lost: training is taken to stand still while it runs.")
    yield Paragraph(f"Write-bound part of a save: {percent_text(p.split.write_share, 1)} ({p.split.basis}).")
    for note in p.inputs.notes:
        yield Paragraph(note)


def _further(p: Projection) -> Iterator[Block]:
    more: Mapping[str, str] = further(p.inputs)
    if more:
        columns = (Column("give", _LEFT), Column("to learn", _LEFT))
        yield Table("What else can be answered", columns, tuple(more.items()))
