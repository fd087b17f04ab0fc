"""What one save cost its run: the GPUs' figures put together, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

from ckpt_exporter.bubble.gpus import Gpu
from ckpt_exporter.bubble.judge import Case, Cost, Measured, cost, least_of, may_spin, measure
from ckpt_exporter.bubble.settings import BubbleSettings
from ckpt_exporter.model import ActivitySource, Bubble, BubblePhase, Quality, Save, SkipReason

SOURCES: Final[tuple[ActivitySource, ...]] = ("gpm", "power", "power_utilization", "utilization")
PHASES: Final[tuple[BubblePhase, ...]] = ("before_write", "writing", "write_gap", "after_write")
# Notes that say more about the run than about the figure.
HARMLESS: Final = frozenset({"all_gpus"})


@dataclass(frozen=True, slots=True)
class RunGpus:
    """The GPUs that a save may have stopped; ``known``: they are known to be the run's."""

    gpus: Sequence[Gpu]
    known: bool


def judge(save: Save, run: RunGpus, cases: Sequence[tuple[Gpu, Case]], settings: BubbleSettings) -> Bubble:
    """Put a bubble together from the GPUs of a run, charge it to them, or say why it can't be known."""
    present = [(gpu, case) for gpu, case in cases if not gpu.latched(gpu.last_t)]
    if not present:
        return skipped(save, "no_gpu")
    found = [(measure(gpu, case, settings), case) for gpu, case in present]
    case = present[0][1]
    measured = least_of([m for m, _ in found if m is not None], case, settings)
    whole = [m for m in measured if m.whole and not may_spin(m, case)]
    if not whole:
        return skipped(save, _reason(measured, present, settings))
    by_gpu = {gpu.info.uuid: case for gpu, case in present}
    costs = [(m, cost(m, by_gpu[m.gpu.info.uuid], settings)) for m in measured if m in whole or not m.whole]
    bubble = _bubble(save, costs, whole, _notes(run, measured, whole, present))
    for m, paid in costs:
        m.gpu.charge(save.directory, paid.seconds, paid.drag_seconds, sure=bubble.quality == "high")
        m.gpu.charges.add(paid.paid)
    return bubble


def skipped(save: Save, reason: SkipReason) -> Bubble:
    """Say why there is no figure for a save."""
    return Bubble(save.directory, save.path, save.end, skipped=reason, elsewhere=save.elsewhere)


def _reason(
    measured: Sequence[Measured], present: Sequence[tuple[Gpu, Case]], settings: BubbleSettings
) -> SkipReason:
    if any(not m.whole for m in measured):
        return "sampler_gap"
    if measured:
        return "low_quality"
    first = min(case.span.start for _, case in present) - settings.guard_seconds
    silent = all(gpu.last_t < first for gpu, _ in present)
    return "sampler_gap" if silent else "no_baseline"


def _notes(
    run: RunGpus,
    measured: Sequence[Measured],
    whole: Sequence[Measured],
    present: Sequence[tuple[Gpu, Case]],
) -> set[str]:
    notes = set() if run.known else {"all_gpus"}
    if any(not m.whole and m.holes[-1][1] >= m.activity.raw.times[-1] for m in measured):
        notes.add("gpu_lost")
    elif any(not m.whole for m in measured):
        notes.add("gpu_gap")
    if run.known and len(measured) < len(present):
        notes.add("gpu_without_baseline")
    if sum(m.whole for m in measured) > len(whole):
        notes.add("gpu_blind")
    return notes


def _bubble(
    save: Save, costs: Sequence[tuple[Measured, Cost]], whole: Sequence[Measured], notes: set[str]
) -> Bubble:
    sure = [paid for m, paid in costs if m in whole]
    notes = notes.union(*(paid.notes for paid in sure))
    starts = [min(a for a, _ in paid.edges) for paid in sure if paid.edges]
    ends = [max(b for _, b in paid.edges) for paid in sure if paid.edges]
    length = sum(b - a for paid in sure for a, b in paid.edges)
    area = sum(paid.seconds for paid in sure)
    doubtful = notes - HARMLESS or any(m.baseline.scale.quality == "low" for m in whole)
    quality: Quality = "low" if doubtful else "high"
    return Bubble(
        directory=save.directory,
        save_path=save.path,
        save_end=save.end,
        seconds=fmean(paid.seconds for paid in sure),
        gpu_seconds={m.gpu.info.gpu: paid.seconds for m, paid in costs},
        drag_gpu_seconds={m.gpu.info.gpu: paid.drag_seconds for m, paid in costs},
        phases={phase: fmean(paid.phases[phase] for paid in sure) for phase in PHASES},
        start=median(starts) if starts else None,
        end=median(ends) if ends else None,
        depth=min(1.0, area / length) if length > 0 else 0.0,
        source=max((m.baseline.scale.source for m in whole), key=SOURCES.index),
        quality=quality,
        notes=tuple(sorted(notes)),
        elsewhere=save.elsewhere,
    )
