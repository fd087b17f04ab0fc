"""What a change of storage, interval, size or scale would be worth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ckpt_exporter.analysis.numbers import seconds_text
from ckpt_exporter.analysis.project_inputs import ProjectInputs, completed
from ckpt_exporter.analysis.whatif import (
    FixedPart,
    SaveCost,
    Situation,
    blocking,
    fixed_part,
    run_of,
)

if TYPE_CHECKING:
    from ckpt_exporter.analysis.document import Document

# Two ways to say one bandwidth that differ by less than this are the same number, rounded.
AGREEMENT: Final = 0.05


@dataclass(frozen=True, slots=True)
class Split:
    """How much of a save is write-bound (0..1), and how that is known."""

    write_share: float
    basis: str
    known: bool = True
    fixed: FixedPart | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that changes, in words, and the situation after it."""

    name: str
    situation: Situation


@dataclass(frozen=True, slots=True)
class Projection:
    """All that follows from the inputs; parts whose inputs are missing are None or empty."""

    inputs: ProjectInputs
    split: Split
    today: SaveCost
    then: SaveCost | None
    run: Situation | None
    run_then: Situation | None
    changes: tuple[Change, ...]


def project(inputs: ProjectInputs) -> Document:
    """Return the projection as a document. Raises UsageError for numbers that cannot be."""
    from ckpt_exporter.analysis.project_document import project_document  # noqa: PLC0415 (it needs this module)

    return project_document(projection(inputs))


def projection(given: ProjectInputs) -> Projection:
    """Work out everything that the inputs allow. Raises UsageError for numbers that cannot be."""
    inputs = completed(given)
    split = split_of(inputs)
    today = _today(inputs, split)
    run = None
    if inputs.run_seconds is not None and inputs.saves:
        run = run_of(inputs.run_seconds, inputs.saves, today, inputs.gpus)
    changes = tuple(_changes(inputs, today, run))
    then = _all_changes(inputs, today)
    run_then = _changed_run(inputs, run, then) if run is not None and changes_anything(inputs) else None
    return Projection(inputs, split, today, then if _changes_cost(inputs) else None, run, run_then, changes)


# --- one save -------------------------------------------------------------------------------------------


def split_of(inputs: ProjectInputs) -> Split:
    """Say how much of today's save is write-bound: measured, from two saves, from bytes, or unknown."""
    seconds = inputs.save_seconds or 0.0
    if inputs.flow_seconds is not None and inputs.write_seconds is None:
        told = f"not known: bytes flowed in {seconds_text(inputs.flow_seconds)}, the rest may be syncing"
        return Split(1.0, told, known=False)
    if inputs.write_seconds is not None:
        return Split(inputs.write_seconds / seconds, "the time in which bytes flowed")
    if inputs.to_save_seconds is not None and inputs.bandwidth and inputs.to_bandwidth:
        rounding = tuple(
            inputs.roundings.get(name, 0.0)
            for name in ("save_seconds", "to_save_seconds", "bandwidth", "to_bandwidth")
        )
        fixed = fixed_part(
            (seconds, inputs.to_save_seconds), (inputs.bandwidth, inputs.to_bandwidth),
            (rounding[0], rounding[1], rounding[2], rounding[3]),
        )  # fmt: skip
        if fixed is not None and 0 <= fixed.seconds < seconds:
            return Split(1 - fixed.seconds / seconds, "the two saves at their two bandwidths", fixed=fixed)
    total = inputs.written_bytes if inputs.written_bytes is not None else inputs.bytes
    if inputs.to_save_seconds is None and total is not None and inputs.bandwidth:
        flowing = total / inputs.bandwidth
        if flowing <= seconds * (1 + AGREEMENT):
            # A bandwidth that explains little of the save may count other bytes: then more of it scales.
            return Split(min(1.0, flowing / seconds), "bytes over bandwidth", known=flowing >= seconds / 2)
    return Split(1.0, "not known: all of it is taken to be", known=False)


def _today(inputs: ProjectInputs, split: Split) -> SaveCost:
    seconds = inputs.save_seconds or 0.0
    cost = blocking(seconds, split.write_share, inputs.bubble_seconds)
    if inputs.bubble_seconds is not None and inputs.writing_bubble_seconds is not None:
        write = min(inputs.writing_bubble_seconds, inputs.bubble_seconds)
        cost = replace(cost, lost_write=write, lost_fixed=inputs.bubble_seconds - write)
    return cost


def bandwidth_factor(inputs: ProjectInputs) -> float | None:
    """Return by how much the bandwidth grows; None where that is not said."""
    if inputs.bandwidth and inputs.to_bandwidth:
        return inputs.to_bandwidth / inputs.bandwidth
    if inputs.nodes and inputs.to_nodes:
        return inputs.to_nodes / inputs.nodes
    return None


def with_bandwidth(inputs: ProjectInputs, cost: SaveCost) -> SaveCost:
    """Return the save on the other storage: as long as was given, else with its write-bound part scaled."""
    if inputs.to_save_seconds is not None:
        write = inputs.to_save_seconds - cost.fixed_seconds
        if cost.write_seconds > 0 and write > 0:
            # Not by a factor: what was given stays to the last digit.
            lost = write * (cost.lost_write / cost.write_seconds)
            return replace(cost, write_seconds=write, lost_write=lost)
        return blocking(
            inputs.to_save_seconds, 1.0, cost.lost_seconds * inputs.to_save_seconds / cost.seconds
        )
    factor = bandwidth_factor(inputs)
    return cost if factor is None else cost.scaled(1 / factor)


def with_size(inputs: ProjectInputs, cost: SaveCost) -> SaveCost:
    """Return the save of the other size: its write-bound part goes with the bytes."""
    total = inputs.written_bytes if inputs.bytes is None else inputs.bytes
    return cost if inputs.to_bytes is None or not total else cost.scaled(inputs.to_bytes / total)


def with_background(inputs: ProjectInputs, cost: SaveCost) -> SaveCost:
    """Return the save done beside training: it blocks for a moment, then drags."""
    if inputs.blocking_seconds is None:
        return cost
    background = max(0.0, cost.seconds - inputs.blocking_seconds)
    return replace(
        cost, lost_fixed=inputs.blocking_seconds, lost_write=background * (inputs.drag_ratio or 0.0)
    )


def _all_changes(inputs: ProjectInputs, cost: SaveCost) -> SaveCost:
    moved = with_bandwidth(inputs, cost)
    # A duration that was given for then is that of then's checkpoint already.
    return with_background(inputs, moved if inputs.to_save_seconds is not None else with_size(inputs, moved))


def _changes_cost(inputs: ProjectInputs) -> bool:
    return any(
        value is not None
        for value in (inputs.to_save_seconds, inputs.to_bandwidth, inputs.to_nodes, inputs.to_bytes,
                      inputs.blocking_seconds)
    )  # fmt: skip


def changes_anything(inputs: ProjectInputs) -> bool:
    """Tell whether anything is to be other than today."""
    others = (inputs.to_interval_seconds, inputs.to_interval_steps, inputs.to_gpus)
    return _changes_cost(inputs) or any(value is not None for value in others)


# --- the run --------------------------------------------------------------------------------------------


def _changed_run(inputs: ProjectInputs, run: Situation, cost: SaveCost) -> Situation:
    """Return the run with that save, that interval and that many GPUs; the steps to train stay."""
    training, gpus = run.training_seconds, run.gpus
    if inputs.to_gpus is not None and inputs.gpus:
        training, gpus = training * inputs.gpus / inputs.to_gpus, inputs.to_gpus
    saves = run.saves
    if inputs.to_interval_steps is not None and inputs.interval_steps:
        saves = saves * inputs.interval_steps / inputs.to_interval_steps
    elif inputs.to_interval_seconds is not None:
        saves = training / (inputs.to_interval_seconds - cost.lost_seconds)
    return Situation(training, saves, cost, gpus)


def _changes(inputs: ProjectInputs, cost: SaveCost, run: Situation | None) -> list[Change]:
    """Return each change alone, where there are several."""
    if run is None:
        return []
    quiet = replace(inputs, to_interval_seconds=None, to_interval_steps=None, to_gpus=None)
    found = [
        Change("other storage", _changed_run(quiet, run, with_bandwidth(inputs, cost))),
        Change("other size", _changed_run(quiet, run, with_size(inputs, cost))),
        Change("asynchronous saves", _changed_run(quiet, run, with_background(inputs, cost))),
        Change("other interval", _changed_run(replace(inputs, to_gpus=None), run, cost)),
        Change("other number of GPUs", _changed_run(replace(quiet, to_gpus=inputs.to_gpus), run, cost)),
    ]
    real = [change for change in found if change.situation != run]
    return real if len(real) > 1 else []
