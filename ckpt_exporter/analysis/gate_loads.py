"""G5: checkpoints load as fast as the move promises; what came from the page cache is no evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_exporter.analysis.gates import Check, above, verdict_of
from ckpt_exporter.analysis.numbers import (
    UNKNOWN,
    bandwidth_text,
    counted,
    factor_text,
    plain,
    seconds_text,
)
from ckpt_exporter.analysis.quantities import MIN_SAMPLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckpt_exporter.analysis.compare_loads import LoadArm, LoadComparison
    from ckpt_exporter.analysis.gates import Evidence
    from ckpt_exporter.config.gates import LoadGate


def load_checks(gate: LoadGate, evidence: Evidence) -> Iterator[Check]:
    """Yield G5's checks, over loads of which hardly anything came from the page cache."""
    loads = evidence.comparison.loads
    if gate.loads is not None:
        yield _enough(loads, gate.loads)
    if gate.duration_seconds is not None:
        yield _longest(loads, gate.duration_seconds)
    if gate.bandwidth is not None:
        yield _bandwidth(loads, gate.bandwidth)
    if gate.speedup is not None:
        yield _speedup(loads, gate.speedup)


def _enough(loads: LoadComparison | None, wanted: int) -> Check:
    """Too few is no failure: more may come."""
    name, threshold = "loads from storage", f"at least {plain(wanted)}"
    if loads is None:
        return Check(name, threshold, plain(0), "not enough data")
    found = len(loads.candidate.from_storage)
    told = plain(found) + _left_out(loads.candidate)
    return Check(name, threshold, told, verdict_of(True if found >= wanted else None))


def _left_out(arm: LoadArm) -> str:
    parts = [f"{plain(arm.cached)} from the page cache"] if arm.cached else []
    parts += [f"{plain(arm.unknown)} unknown"] if arm.unknown else []
    return f" ({', '.join(parts)}, left out)" if parts else ""


def _longest(loads: LoadComparison | None, limit: float) -> Check:
    name, threshold = "longest load from storage", f"at most {seconds_text(limit)}"
    durations = [load.duration_seconds for load in loads.candidate.from_storage] if loads else []
    if not durations:
        return Check(name, threshold, UNKNOWN, "not enough data")
    longest = max(durations)
    holds: bool | None = longest <= limit
    if holds and len(durations) < MIN_SAMPLES:
        holds = None
    return Check(name, threshold, seconds_text(longest), verdict_of(holds))


def _bandwidth(loads: LoadComparison | None, limit: float) -> Check:
    name, threshold = "bandwidth from storage", f"at least {bandwidth_text(limit)}"
    found = loads.bandwidth.candidate if loads is not None else None
    if loads is None or found is None:
        return Check(name, threshold, UNKNOWN, "not enough data")
    told = bandwidth_text(found.estimate)
    if found.low is None or found.high is None:
        return Check(name, threshold, told, "not enough data")
    told += f" ({bandwidth_text(found.low)} to {bandwidth_text(found.high)})"
    enough = len(loads.candidate.from_storage) >= MIN_SAMPLES
    return Check(name, threshold, told, verdict_of(above(found.low, found.high, limit) if enough else None))


def _speedup(loads: LoadComparison | None, limit: float) -> Check:
    """Judge by durations where loads of both arms are of one size, else by bandwidths."""
    threshold = f"at least {factor_text(limit)} as fast"
    some = loads is not None and loads.duration.gain is not None
    by_duration = loads is None or loads.like_sized or not some
    name = f"load {'duration' if by_duration else 'bandwidth'} against the baseline"
    quantity = None if loads is None else loads.duration if by_duration else loads.bandwidth
    if loads is None or quantity is None or quantity.gain is None:
        return Check(name, threshold, f"{UNKNOWN} ({_missing(loads)})", "not enough data")
    gain = quantity.gain
    told = factor_text(gain.estimate)
    if quantity.verdict == "not enough data":
        return Check(name, threshold, f"{told} ({_missing(loads)})", "not enough data")
    told += f" ({factor_text(gain.low)} to {factor_text(gain.high)})"
    return Check(name, threshold, told, verdict_of(above(gain.low, gain.high, limit)))


def _missing(loads: LoadComparison | None) -> str:
    if loads is None:
        return "no loads"
    few = [
        f"{arm.name}: {counted(len(arm.from_storage), 'load')} from storage"
        for arm in (loads.baseline, loads.candidate)
        if len(arm.from_storage) < MIN_SAMPLES
    ]
    return "; ".join(few) or "no bandwidth known"
