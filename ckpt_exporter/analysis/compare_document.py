"""A comparison and its gates as people and programs read them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from ckpt_exporter.analysis.compare_loads_document import loads_answer, loads_blocks, loads_data
from ckpt_exporter.analysis.document import Chart, Column, Document, Heading, Paragraph, Series, Table
from ckpt_exporter.analysis.gates import TITLES
from ckpt_exporter.analysis.numbers import (
    UNKNOWN,
    bandwidth_unit,
    percent_text,
    plain,
    seconds_text,
    size_text,
    time_text,
)
from ckpt_exporter.analysis.quantities_document import (
    NAMES,
    quantities_table,
    quantity_data,
    range_text,
    told_gain,
)
from ckpt_exporter.analysis.statistics import median

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ckpt_exporter.analysis.compare import Arm, Comparison
    from ckpt_exporter.analysis.document import Block
    from ckpt_exporter.analysis.gates import GateResult
    from ckpt_exporter.analysis.statistics import Interval


def compare_document(comparison: Comparison, gates: Sequence[GateResult] = ()) -> Document:
    """Return the comparison: answer and gates first, then what they rest on."""
    blocks: list[Block] = [Paragraph(text) for text in _answer(comparison)]
    blocks += _gate_summary(gates)
    blocks += [Paragraph(text, "warning") for text in comparison.warnings]
    if comparison.baseline.all_saves or comparison.candidate.all_saves:
        blocks.append(Heading("Side by side"))
        blocks.append(_arms(comparison))
        title = "Each quantity is that of the slowest node of a save; better is above x1"
        blocks.append(quantities_table(title, comparison.quantities))
        blocks += _shares(comparison)
        blocks += _charts(comparison)
    blocks += loads_blocks(comparison.loads)
    for gate in gates:
        blocks += _gate(gate)
    blocks.append(_method())
    return Document("Baseline against candidate", tuple(blocks), comparison_data(comparison, gates))


# --- the answer -----------------------------------------------------------------------------------------


def _answer(comparison: Comparison) -> Iterator[str]:
    if comparison.baseline.all_saves or comparison.candidate.all_saves or comparison.loads is None:
        yield from _saves_answer(comparison)
    yield from loads_answer(comparison.loads)


def _saves_answer(comparison: Comparison) -> Iterator[str]:
    duration = comparison.quantity("duration_seconds")
    if duration.gain is None or duration.baseline is None or duration.candidate is None:
        yield "There is not enough data to compare save durations."
        return
    yield told_gain("Saves", "Median save duration", duration)
    share = comparison.share
    decided = duration.verdict != "not enough data"
    if decided and share.baseline is not None and share.candidate is not None:
        name = "bubble share" if share.measured else "share of the run spent saving"
        yield (
            f"The {name} goes from {percent_text(share.baseline.estimate)} to "
            f"{percent_text(share.candidate.estimate)}: {share.verdict}."
        )


def _gate_summary(gates: Sequence[GateResult]) -> Iterator[Block]:
    if gates:
        rows = tuple((gate.gate, TITLES[gate.gate], gate.verdict, _reasons(gate)) for gate in gates)
        columns = (
            Column("gate", "left"),
            Column("", "left"),
            Column("verdict", "left"),
            Column("because of", "left"),
        )
        yield Table("Acceptance gates", columns, rows)


def _reasons(gate: GateResult) -> str:
    """Name what decided: the checks that failed, else those that could not be judged."""
    if gate.verdict == "pass":
        return "all checks pass"
    deciding = [check.name for check in gate.checks if check.verdict == gate.verdict]
    return "; ".join(deciding) or "no check is switched on"


# --- side by side ---------------------------------------------------------------------------------------

_ARM_COLUMNS: Final = (Column("", "left"), Column("baseline"), Column("candidate"))


def _arms(comparison: Comparison) -> Table:
    arms = (comparison.baseline, comparison.candidate)
    rows: list[tuple[str, ...]] = [
        ("complete saves", *(plain(len(arm.saves)) for arm in arms)),
        ("not completed", *(plain(arm.incomplete) for arm in arms)),
        ("first save", *(time_text(arm.saves[0].start_unix) if arm.saves else UNKNOWN for arm in arms)),
        ("last save", *(time_text(arm.saves[-1].end_unix) if arm.saves else UNKNOWN for arm in arms)),
        ("nodes", *(plain(len(arm.nodes)) for arm in arms)),
        ("GPUs", *(plain(arm.gpus) for arm in arms)),
        ("size of a checkpoint", *(size_text(_median_bytes(arm)) for arm in arms)),
        ("run, wall clock", *(seconds_text(arm.run_seconds) for arm in arms)),
        ("mount", *(_mounts(arm) for arm in arms)),
        ("transport", *(_distinct(arm, "transport") for arm in arms)),
        ("layout", *(_distinct(arm, "layout") for arm in arms)),
    ]
    return Table("What is compared", _ARM_COLUMNS, tuple(rows))


def _median_bytes(arm: Arm) -> float | None:
    return median([float(save.bytes) for save in arm.saves]) if arm.saves else None


def _distinct(arm: Arm, name: str) -> str:
    found = {
        str(value) for save in arm.saves for r in save.records if (value := getattr(r, name)) is not None
    }
    return ", ".join(sorted(found)) or UNKNOWN


def _mounts(arm: Arm) -> str:
    return _distinct(arm, "mountpoint")


def _shares(comparison: Comparison) -> Iterator[Block]:
    share = comparison.share
    if share.baseline is None and share.candidate is None:
        return
    name = "bubble share of the run" if share.measured else "share of the run spent saving"
    rows = [
        (name, *(_withrange_text(found, percent_text) for found in (share.baseline, share.candidate))),
    ]
    if share.baseline_run_with_candidate_saves is not None:
        rows.append((
            "baseline's run, with its own and the candidate's saves",
            seconds_text(comparison.baseline.run_seconds),
            _withrange_text(share.baseline_run_with_candidate_saves, seconds_text),
        ))  # fmt: skip
    yield Table("Training time", _ARM_COLUMNS, tuple(rows))


def _withrange_text(found: Interval | None, show: Callable[[float | None], str]) -> str:
    if found is None:
        return UNKNOWN
    return show(found.estimate) + (f" ({range_text(found, show)})" if found.low is not None else "")


def _charts(comparison: Comparison) -> Iterator[Block]:
    arms = (comparison.baseline, comparison.candidate)
    series = tuple(
        Series(arm.name, tuple((float(i), save.duration_seconds) for i, save in enumerate(arm.saves, 1)))
        for arm in arms
    )
    yield Chart("Duration of each save", "line", "seconds", series, "save, in order")
    shown = [q for q in comparison.quantities if q.unit == "bytes_per_second" and q.baseline and q.candidate]
    if not shown:
        return
    medians = {name: [getattr(q, name).estimate for q in shown] for name in ("baseline", "candidate")}
    scale, unit = bandwidth_unit([*medians["baseline"], *medians["candidate"]])
    yield Chart(
        "Median bandwidths",
        "bars",
        unit,
        tuple(
            Series(name, tuple((float(i), value / scale) for i, value in enumerate(values)))
            for name, values in medians.items()
        ),
        labels=tuple(NAMES[q.key] for q in shown),
    )


def _gate(gate: GateResult) -> Iterator[Block]:
    yield Heading(f"{gate.gate}, {TITLES[gate.gate]}: {gate.verdict}")
    columns = (
        Column("check", "left"),
        Column("asked", "left"),
        Column("found", "left"),
        Column("verdict", "left"),
    )
    yield Table("", columns, tuple((c.name, c.threshold, c.evidence, c.verdict) for c in gate.checks))


def _method() -> Paragraph:
    return Paragraph(
        "Intervals are 95 % bootstrap intervals of the ratio of medians (of means for shares), widened for "
        "small samples; below five saves an arm there is no verdict. Saves of one step on several nodes are "
        "one save, as long as its slowest node takes. A load is one node's."
    )


# --- the numbers for programs ---------------------------------------------------------------------------


def comparison_data(comparison: Comparison, gates: Sequence[GateResult]) -> dict[str, object]:
    """Return everything with exact numbers; keys are stable, unknown values null."""
    return {
        "baseline": _arm_data(comparison.baseline),
        "candidate": _arm_data(comparison.candidate),
        "quantities": {quantity.key: quantity_data(quantity) for quantity in comparison.quantities},
        "share": asdict(comparison.share),
        "warnings": list(comparison.warnings),
        "loads": loads_data(comparison.loads),
        "gates": [
            {
                "gate": g.gate,
                "title": TITLES[g.gate],
                "verdict": g.verdict,
                "checks": [asdict(c) for c in g.checks],
            }
            for g in gates
        ],
    }


def _arm_data(arm: Arm) -> dict[str, object]:
    return {
        "source": arm.measurements.source,
        "saves": len(arm.saves),
        "not_completed": arm.incomplete,
        "nodes": list(arm.nodes),
        "gpus": arm.gpus,
        "median_bytes": _median_bytes(arm),
        "run_seconds": arm.run_seconds,
        "first_start_unix": arm.saves[0].start_unix if arm.saves else None,
        "last_end_unix": arm.saves[-1].end_unix if arm.saves else None,
        "durations_seconds": [save.duration_seconds for save in arm.saves],
    }
