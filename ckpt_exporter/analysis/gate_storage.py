"""G2: the storage alone reaches what the job needs, with a cold and with a full page cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ckpt_exporter.analysis.gates import Check, verdict_of
from ckpt_exporter.analysis.numbers import UNKNOWN, bandwidth_text, percent_text, plain
from ckpt_exporter.analysis.statistics import median

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckpt_exporter.analysis.bench_result import Repetition
    from ckpt_exporter.analysis.compare import Comparison
    from ckpt_exporter.analysis.gates import Evidence
    from ckpt_exporter.config.gates import Gates, StorageGate

EXACT_SECONDS: Final = 0.25
_MISSING: Final = f"{UNKNOWN} (give --bench)"


def storage_checks(gates: Gates, evidence: Evidence) -> Iterator[Check]:
    """Yield the checks that are switched on."""
    gate = gates.storage
    repetitions = [r for bench in evidence.benches for r in bench.repetitions]
    required = _required(gates, evidence.comparison)
    for cache in gate.caches or ("any",):
        chosen = [r for r in repetitions if cache in ("any", r.cache)]
        if gate.sustained_bandwidth is not None:
            yield from _bandwidth(gate, cache, chosen, required)
    if gate.disagreement is not None:
        yield _agreement(gate.disagreement, repetitions)
    if gate.synced:
        yield _synced(evidence)


def burst_bandwidth(repetition: Repetition) -> float | None:
    """Return bytes over the whole burst, sync included, by whoever measured it slower."""
    seconds = [repetition.writers.seconds]
    if repetition.save is not None and repetition.save.duration_seconds is not None:
        seconds.append(repetition.save.duration_seconds)
    slowest = max(seconds)
    return repetition.writers.bytes / slowest if slowest > 0 else None


def _required(gates: Gates, comparison: Comparison) -> float | None:
    """Return the bandwidth asked for; ``auto``: bytes of a save / (bubble share x interval)."""
    asked = gates.storage.sustained_bandwidth
    if asked != "auto":
        return float(asked) if asked is not None else None
    share = gates.node.bubble_share
    for arm in (comparison.candidate, comparison.baseline):
        if share and arm.run_seconds is not None and arm.saves:
            written = median([float(save.written_bytes or save.bytes) for save in arm.saves])
            return written / (share * arm.run_seconds / len(arm.saves))
    return None


def _bandwidth(
    gate: StorageGate, cache: str, chosen: list[Repetition], required: float | None
) -> Iterator[Check]:
    name = f"bandwidth, {cache} cache"
    speeds = [speed for r in chosen if (speed := burst_bandwidth(r)) is not None]
    if required is None:
        yield Check(name, "auto", f"{UNKNOWN} (no saves to work it out from: set it)", "not enough data")
        return
    threshold = f"at least {bandwidth_text(required)}"
    if not speeds:
        yield Check(name, threshold, _MISSING, "not enough data")
        return
    middle, least = median(speeds), min(speeds)
    told = f"{bandwidth_text(middle)} in {plain(len(speeds))} bursts, slowest {bandwidth_text(least)}"
    holds: bool | None = middle >= required
    if gate.slowest_ratio is not None and least < required * gate.slowest_ratio:
        holds = False
    if holds and gate.repetitions is not None and len(speeds) < gate.repetitions:
        holds, threshold = None, f"{threshold}, {plain(gate.repetitions)} bursts"
    yield Check(name, threshold, told, verdict_of(holds))


def _agreement(limit: float, repetitions: list[Repetition]) -> Check:
    name, threshold = "exporter and writers agree", f"within {percent_text(limit, 0)}"
    if not repetitions:
        return Check(name, threshold, _MISSING, "not enough data")
    unseen = sum(r.save is None or r.save.duration_seconds is None for r in repetitions)
    if unseen:
        return Check(name, threshold, f"{plain(unseen)} bursts were not seen as saves", "fail")
    worst = max(disagreement(r) or 0.0 for r in repetitions)
    return Check(name, threshold, f"at most {percent_text(worst, 1)} apart", verdict_of(worst <= limit))


def disagreement(repetition: Repetition) -> float | None:
    """Return by what share detector and writers differ, in bytes or in duration, whichever is more.

    A quarter of a second is as exact as events are: within it durations are the same.
    """
    save, writers = repetition.save, repetition.writers
    if save is None or save.duration_seconds is None or not writers.seconds or not writers.bytes:
        return None
    apart = abs(save.duration_seconds - writers.seconds)
    in_time = apart / writers.seconds if apart > EXACT_SECONDS else 0.0
    return max(in_time, abs(save.bytes / writers.bytes - 1))


def seconds_apart(repetition: Repetition) -> float | None:
    """Return by how many seconds the detector's duration exceeds the writers', None where one has none."""
    save, writers = repetition.save, repetition.writers
    if save is None or save.duration_seconds is None or not writers.seconds:
        return None
    return save.duration_seconds - writers.seconds


def _synced(evidence: Evidence) -> Check:
    if not evidence.benches:
        return Check("bursts synced or direct", "yes", _MISSING, "not enough data")
    loose = [
        bench for bench in evidence.benches if not (bench.options.get("fsync") or bench.options.get("direct"))
    ]
    told = "no: the page cache was measured" if loose else "yes"
    return Check("bursts synced or direct", "yes", told, verdict_of(not loose))
