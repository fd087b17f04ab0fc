"""G3 and G4: the real job's saves, on its slowest node and in production."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ckpt_exporter.analysis.compare import compare
from ckpt_exporter.analysis.gates import Check, below, verdict_of
from ckpt_exporter.analysis.numbers import (
    UNKNOWN,
    duration_text,
    factor_text,
    percent_text,
    plain,
    seconds_text,
    significant,
)
from ckpt_exporter.analysis.quantities import MIN_SAMPLES
from ckpt_exporter.analysis.statistics import median, quantile, ratio_interval

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckpt_exporter.analysis.compare import Arm, Comparison
    from ckpt_exporter.analysis.gates import Evidence
    from ckpt_exporter.config.gates import NodeGate, ProductionGate
    from ckpt_exporter.history.records import Measurements

_SECONDS_PER_DAY = 86_400.0


def node_checks(gate: NodeGate, evidence: Evidence) -> Iterator[Check]:
    """Yield G3's checks, over the candidate's node whose saves take longest."""
    both = evidence.comparison
    node = _slowest_node(both.candidate)
    one = both
    if node is not None and len(both.candidate.nodes) > 1:
        one = compare(both.baseline.measurements, _of_node(both.candidate.measurements, node))
    arm = one.candidate
    durations = _durations(arm)
    if gate.saves is not None:
        yield _enough(f"complete saves on {node or 'a node'}", len(arm.saves), gate.saves)
    if gate.duration_seconds is not None:
        yield _longest(durations, gate.duration_seconds)
    if gate.duration_ratio is not None:
        yield _ratio(one, gate.duration_ratio)
    if gate.bubble_share is not None:
        yield _bubble(one, gate.bubble_share)
    if gate.incomplete is not None:
        holds = arm.incomplete <= gate.incomplete if arm.all_saves else None
        yield Check(
            "saves not completed",
            f"at most {plain(gate.incomplete)}",
            plain(arm.incomplete),
            verdict_of(holds),
        )


def production_checks(gate: ProductionGate, evidence: Evidence) -> Iterator[Check]:
    """Yield G4's checks, over all nodes."""
    both = evidence.comparison
    arm = both.candidate
    durations = _durations(arm)
    if gate.saves is not None:
        yield _enough("complete saves", len(arm.saves), gate.saves)
    if gate.days is not None:
        days = (arm.saves[-1].end_unix - arm.saves[0].start_unix) / _SECONDS_PER_DAY if arm.saves else 0.0
        told = duration_text(days * _SECONDS_PER_DAY)
        verdict = verdict_of(True if days >= gate.days else None)
        yield Check("first to last save", f"at least {significant(gate.days)} days", told, verdict)
    if gate.nodes is not None:
        wanted = len(both.baseline.nodes) if isinstance(gate.nodes, str) else gate.nodes
        yield _enough("nodes", len(arm.nodes), wanted)
    if gate.duration_ratio is not None:
        yield _ratio(both, gate.duration_ratio)
    if gate.p95_over_median is not None:
        yield _tail(durations, gate.p95_over_median)
    if gate.drift_ratio is not None:
        yield _drift(durations, gate.drift_ratio)
    if gate.incomplete_share is not None:
        yield _incomplete_share(arm, gate.incomplete_share)
    if gate.bubble_share is not None:
        yield _bubble(both, gate.bubble_share)


def _durations(arm: Arm) -> list[float]:
    return [save.duration_seconds for save in arm.saves if save.duration_seconds is not None]


def _slowest_node(arm: Arm) -> str | None:
    by_node: dict[str, list[float]] = {}
    for save in arm.saves:
        for record in save.records:
            if record.duration_seconds is not None:
                by_node.setdefault(record.node, []).append(record.duration_seconds)
    return max(by_node, key=lambda node: (median(by_node[node]), node)) if by_node else None


def _of_node(measurements: Measurements, node: str) -> Measurements:
    return replace(
        measurements,
        saves=tuple(s for s in measurements.saves if s.node == node),
        gpu_time=tuple(g for g in measurements.gpu_time if g.node == node),
    )


def _enough(name: str, found: int, wanted: int) -> Check:
    """Too few is no failure: more may come."""
    return Check(
        name, f"at least {plain(wanted)}", plain(found), "pass" if found >= wanted else "not enough data"
    )


def _longest(durations: list[float], limit: float) -> Check:
    told = seconds_text(max(durations)) if durations else UNKNOWN
    holds = max(durations) <= limit if durations else None
    if holds and len(durations) < MIN_SAMPLES:
        holds = None
    return Check("longest save", f"at most {seconds_text(limit)}", told, verdict_of(holds))


def _ratio(both: Comparison, limit: float) -> Check:
    """Candidate over baseline: the inverse of the gain, whose interval turns around."""
    name, threshold = "duration against the baseline", f"at most {factor_text(limit)}"
    quantity = both.quantity("duration_seconds")
    gain = quantity.gain
    if gain is None or not gain.low or not gain.high:
        return Check(name, threshold, UNKNOWN, "not enough data")
    low, high = 1 / gain.high, 1 / gain.low
    told = f"{factor_text(1 / gain.estimate)} ({factor_text(low)} to {factor_text(high)})"
    if quantity.verdict == "not enough data":
        return Check(name, threshold, told, "not enough data")
    return Check(name, threshold, told, verdict_of(below(low, high, limit)))


def _bubble(both: Comparison, limit: float) -> Check:
    share = both.share.candidate
    name = "bubble share" if both.share.measured else "share of the run spent saving (no GPU figures)"
    threshold = f"at most {percent_text(limit, 1)}"
    if share is None or share.low is None or share.high is None:
        return Check(name, threshold, UNKNOWN, "not enough data")
    told = f"{percent_text(share.estimate)} ({percent_text(share.low)} to {percent_text(share.high)})"
    holds = below(share.low, share.high, limit) if len(both.candidate.saves) >= MIN_SAMPLES else None
    if holds is False and not both.share.measured:
        holds = None  # durations are only the most that saves can cost
    return Check(name, threshold, told, verdict_of(holds))


def _tail(durations: list[float], limit: float) -> Check:
    name, threshold = "tail: 95th percentile over median", f"at most {factor_text(limit)}"
    if len(durations) < MIN_SAMPLES:
        return Check(name, threshold, UNKNOWN, "not enough data")
    tail = quantile(durations, 0.95) / median(durations)
    return Check(name, threshold, factor_text(tail), verdict_of(tail <= limit))


def _drift(durations: list[float], limit: float) -> Check:
    name, threshold = "later half over earlier half", f"at most {factor_text(limit)}"
    half = len(durations) // 2
    if half < MIN_SAMPLES:
        return Check(name, threshold, UNKNOWN, "not enough data")
    found = ratio_interval(durations[-half:], durations[:half])
    told = f"{factor_text(found.estimate)} ({factor_text(found.low)} to {factor_text(found.high)})"
    return Check(name, threshold, told, verdict_of(below(found.low, found.high, limit)))


def _incomplete_share(arm: Arm, limit: float) -> Check:
    """Judge the share seen; with too few saves to see one bad one, none seen is no proof."""
    name, threshold = "saves not completed", f"at most {percent_text(limit, 1)}"
    if not arm.all_saves:
        return Check(name, threshold, UNKNOWN, "not enough data")
    share = arm.incomplete / len(arm.all_saves)
    told = f"{plain(arm.incomplete)} of {plain(len(arm.all_saves))}"
    return Check(name, threshold, told, verdict_of(share <= limit))
