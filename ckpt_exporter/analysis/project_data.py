"""A projection as exact numbers for programs; the keys are stable."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final

from ckpt_exporter.analysis import intervals
from ckpt_exporter.analysis.project import AGREEMENT, bandwidth_factor, changes_anything, with_bandwidth
from ckpt_exporter.analysis.whatif import bandwidth_needed, between_saves_needed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_exporter.analysis.project import Projection
    from ckpt_exporter.analysis.project_inputs import ProjectInputs
    from ckpt_exporter.analysis.whatif import SaveCost, Situation

FACTORS: Final = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 8.0)
# Bubble shares that people aim at; CheckFreq (FAST 2021) bounds the cost of checkpointing at 3.5 %.
TARGET_SHARES: Final = (0.02, 0.035, 0.05)
_NOT_NUMBERS: Final = frozenset({"roundings", "notes", "source"})


def projection_data(p: Projection) -> dict[str, object]:
    """Return everything with its exact numbers; keys are stable, parts that are unknown are null."""
    inputs = {
        key: value for key, value in asdict(p.inputs).items() if key not in ("roundings", "notes", "source")
    }
    return {
        "source": p.inputs.source,
        "inputs": inputs,
        "today": {
            **_cost_data(p, p.today), **_run_data(p, p.run, p.today), "write_share_basis": p.split.basis
        },
        "then": _then_data(p),
        "changes": [{"change": c.name, **_run_data(p, c.situation, c.situation.cost),
                     **_gain_data(p, c.situation)}
                    for c in p.changes],
        "bandwidth": bandwidth_data(p),
        "size": _size_data(p),
        "best_interval": interval_data(p),
        "bandwidths": bandwidth_rows(p),
        "targets": target_rows(p),
    }  # fmt: skip


def _cost_data(p: Projection, cost: SaveCost) -> dict[str, object]:
    known = p.split.known or p.split.write_share < 1
    return {
        "save_seconds": cost.seconds,
        "fixed_seconds": cost.fixed_seconds if known else None,
        "write_seconds": cost.write_seconds if known else None,
        "lost_seconds_per_save": cost.lost_seconds,
    }


def _run_data(p: Projection, run: Situation | None, cost: SaveCost) -> dict[str, object]:
    if run is None:
        return {}
    between = run.between_saves_seconds
    steps = p.inputs.steps / run.saves if p.inputs.steps and run.saves else None
    return {
        "saves": run.saves,
        "run_seconds": run.run_seconds,
        "training_seconds": run.training_seconds,
        "lost_seconds": run.lost_seconds,
        "bubble_share": run.bubble_share,
        "lost_gpu_hours": run.lost_gpu_hours,
        "interval_seconds": between + cost.lost_seconds,
        "interval_steps": steps,
    }


def _then_data(p: Projection) -> dict[str, object] | None:
    cost = p.run_then.cost if p.run_then is not None else p.then
    if cost is None:
        return None
    factor = bandwidth_factor(p.inputs)
    data: dict[str, object] = {
        **_cost_data(p, cost),
        "save_seconds_if_all_scales": p.today.seconds / factor if factor is not None else None,
        **_run_data(p, p.run_then, cost),
        "save_seconds_reduction_share": 1 - cost.seconds / p.today.seconds,
        "save_speedup": p.today.seconds / cost.seconds if cost.seconds else None,
    }
    return {**data, **_gain_data(p, p.run_then)} if p.run_then is not None else data


def _gain_data(p: Projection, then: Situation) -> dict[str, object]:
    """Return what ``then`` wins against today; both denominators of the bubble share are named."""
    run = p.run
    assert run is not None  # noqa: S101 (there is no changed run without one)
    saved = run.run_seconds - then.run_seconds
    more = run.run_seconds / then.run_seconds - 1
    gpus = run.gpus
    # With other GPUs, too, the time won is not that of the saves alone.
    cluster = p.inputs.cluster_gpus if then.gpus == run.gpus else None
    hours = None
    if gpus is not None:
        hours = (run.run_seconds * gpus - then.run_seconds * (then.gpus or gpus)) / 3600
    return {
        "bubble_share_of_own_run": then.bubble_share,
        "bubble_share_of_todays_run": then.lost_seconds / run.run_seconds,
        "saved_seconds": saved,
        "saved_share": saved / run.run_seconds,
        "more_steps_share": more,
        "more_steps": more * p.inputs.steps if p.inputs.steps is not None else None,
        "saved_gpu_hours": hours,
        "cluster_gpus_worth": saved / run.run_seconds * cluster if cluster is not None else None,
        "cluster_gpus_to_add_instead": more * cluster if cluster is not None else None,
    }


def bandwidth_data(p: Projection) -> dict[str, object] | None:
    """Return what is known of bandwidths, and whether they fit bytes (logical, written) and seconds."""
    i = p.inputs
    if i.bandwidth is None and i.bytes is None and i.written_bytes is None:
        return None
    ratio = i.to_bandwidth / i.bandwidth if i.bandwidth and i.to_bandwidth else None
    fixed = p.split.fixed
    return {
        "given": i.bandwidth,
        "to_given": i.to_bandwidth,
        "ratio": ratio,
        "today": _consistency(i, i.bandwidth, i.save_seconds, i.write_seconds),
        "then": _consistency(i, i.to_bandwidth, i.to_save_seconds, None),
        "fixed_seconds": None if fixed is None else fixed.seconds,
        "fixed_seconds_low": None if fixed is None else fixed.low,
        "fixed_seconds_high": None if fixed is None else fixed.high,
    }


def _consistency(
    i: ProjectInputs, bandwidth: float | None, seconds: float | None, flowing: float | None
) -> dict[str, object] | None:
    """Compare a bandwidth with bytes over seconds (those in which bytes flow, where known)."""
    if seconds is None or not seconds:
        return None
    implied = bandwidth * (flowing or seconds) if bandwidth is not None else None
    known = [total for total in (i.bytes, i.written_bytes) if total is not None]
    fits = None
    if implied is not None and known:
        fits = any(abs(implied / total - 1) <= AGREEMENT for total in known)
    return {
        "average_logical": i.bytes / seconds if i.bytes is not None else None,
        "average_written": i.written_bytes / seconds if i.written_bytes is not None else None,
        "implied_bytes": implied,
        "implied_bytes_over_logical": implied / i.bytes if implied is not None and i.bytes else None,
        "implied_flowing_seconds": known[-1] / bandwidth if bandwidth and known else None,
        "fits": fits,
    }


def _size_data(p: Projection) -> dict[str, object] | None:
    i = p.inputs
    total = i.written_bytes if i.bytes is None else i.bytes
    if i.to_bytes is None or not total:
        return None
    factor = i.to_bytes / total
    other = with_bandwidth(i, p.today) if p.then is not None else None
    moved = i.to_save_seconds is not None or bandwidth_factor(i) is not None
    return {
        "factor": factor,
        "save_seconds_by_size_alone": p.today.seconds * factor,
        "save_seconds": p.today.scaled(factor).seconds,
        "to_save_seconds_by_size_alone": other.seconds * factor if other is not None and moved else None,
        "to_save_seconds": other.scaled(factor).seconds if other is not None and moved else None,
    }


def interval_data(p: Projection) -> dict[str, object] | None:
    """Return the best intervals (training time between saves) and what today's loses against the best."""
    if p.inputs.mtbf_seconds is None:
        return None
    found: dict[str, object] = {"today": _best(p, p.run, p.today)}
    cost = p.run_then.cost if p.run_then is not None else p.then
    if cost is not None:
        found["then"] = _best(p, p.run_then or p.run, cost)
    return found


def _best(p: Projection, run: Situation | None, cost: SaveCost) -> dict[str, object]:
    mtbf = p.inputs.mtbf_seconds
    assert mtbf is not None  # noqa: S101 (asked by the caller)
    if p.inputs.to_gpus is not None and p.inputs.gpus and run is not None and run is p.run_then:
        mtbf = mtbf * p.inputs.gpus / p.inputs.to_gpus  # each GPU may fail
    lost = max(cost.lost_seconds, 1e-6)
    background = cost.seconds if p.inputs.blocking_seconds is not None and run is p.run_then else 0.0
    restart = (p.inputs.restart_seconds or 0.0) + background
    best = intervals.optimum_seconds(lost, mtbf)
    least = intervals.slowdown(best, lost, mtbf, restart)
    between = run.between_saves_seconds if run is not None else None
    present = intervals.slowdown(between, lost, mtbf, restart) if between is not None else None
    step = run.training_seconds / p.inputs.steps if run is not None and p.inputs.steps else None
    return {
        "mtbf_seconds": mtbf,
        "restart_seconds": restart,
        "young_seconds": intervals.young_seconds(lost, mtbf),
        "daly_seconds": intervals.daly_seconds(lost, mtbf),
        "optimum_seconds": best,
        "optimum_steps": best / step if step else None,
        "optimum_bubble_share": lost / (best + lost),
        "optimum_expected_slowdown": least,
        "present_seconds": between,
        "present_expected_slowdown": present,
        "present_loses_share": present / least - 1 if present is not None else None,
    }


def bandwidth_rows(p: Projection) -> list[dict[str, object]]:
    """Return what other bandwidths would bring, everything else as today."""
    factors = set(FACTORS)
    given = bandwidth_factor(p.inputs)
    if given is not None:
        factors.add(given)
    rows: list[dict[str, object]] = []
    for factor in sorted(factors):
        cost = p.today.scaled(1 / factor)
        row: dict[str, object] = {
            "factor": factor,
            "bandwidth": p.inputs.bandwidth * factor if p.inputs.bandwidth is not None else None,
            **_cost_data(p, cost),
        }
        if p.run is not None:
            then = replace(p.run, cost=cost)
            row |= {"run_seconds": then.run_seconds, **_gain_data(p, then)}
        rows.append(row)
    return rows


def target_rows(p: Projection) -> list[dict[str, object]]:
    """Return which bandwidth, or which interval, alone brings the bubble share down to what people aim at."""
    if p.run is None:
        return []
    rows: list[dict[str, object]] = []
    for share in TARGET_SHARES:
        factor = bandwidth_needed(p.run, share)
        between = between_saves_needed(p.run, share)
        rows.append({
            "bubble_share": share,
            "bandwidth_factor": factor,
            "bandwidth": factor * p.inputs.bandwidth if factor is not None and p.inputs.bandwidth else None,
            "interval_seconds": between + p.run.cost.lost_seconds,
            "interval_steps": between / (p.run.training_seconds / p.inputs.steps) if p.inputs.steps else None,
        })  # fmt: skip
    return rows


def further(inputs: ProjectInputs) -> Mapping[str, str]:
    """Return flag -> answer for what was not given."""
    asked: list[tuple[bool, str, str]] = [
        (inputs.run_seconds is None, "--run-seconds, --saves", "bubble share, time and GPU-hours lost"),
        (not changes_anything(inputs), "--to-bandwidth or --to-save-seconds", "what other storage is worth"),
        (inputs.bytes is None, "--bytes", "average bandwidth, and whether a given bandwidth fits"),
        (inputs.bandwidth is None, "--bandwidth", "bandwidths in the tables, not only factors"),
        (inputs.write_seconds is None and inputs.to_save_seconds is None and inputs.bandwidth is None,
         "--write-seconds", "the part of a save that faster storage can shorten"),
        (inputs.gpus is None, "--gpus", "GPU-hours"),
        (inputs.cluster_gpus is None, "--cluster-gpus", "the gain as GPUs' worth in a cluster"),
        (inputs.steps is None, "--steps or --interval-steps", "steps won, and intervals in steps"),
        (inputs.mtbf_seconds is None, "--mtbf", "the best interval, and what today's loses against it"),
        (inputs.mtbf_seconds is not None and inputs.restart_seconds is None,
         "--restart-seconds", "the cost of failures with the time to start again"),
        (inputs.blocking_seconds is None, "--blocking-seconds (and --drag-ratio)", "asynchronous saves"),
        (inputs.to_bytes is None and inputs.bytes is not None, "--to-bytes", "another checkpoint size"),
    ]  # fmt: skip
    return {flags: answer for missing, flags, answer in asked if missing}
