"""Two sets of saves and loads side by side, with intervals, and what limits the comparison; pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ckpt_exporter.analysis.comparability import warnings_of
from ckpt_exporter.analysis.compare_loads import LoadComparison, compare_loads
from ckpt_exporter.analysis.job_saves import JobSave, job_saves
from ckpt_exporter.analysis.project_inputs import measured_inputs
from ckpt_exporter.analysis.quantities import Quantity, Unit, Verdict, quantity, verdict
from ckpt_exporter.analysis.statistics import Interval, interval, mean, ratio_interval
from ckpt_exporter.errors import UsageError

if TYPE_CHECKING:
    from ckpt_exporter.history.records import Measurements


@dataclass(frozen=True, slots=True)
class Arm:
    """One set of saves, joined over nodes. ``saves`` are complete, ``all_saves`` whatever the result.

    ``run_seconds`` is the wall-clock time that the saves stand for, None where it is not known.
    """

    name: str
    measurements: Measurements
    all_saves: tuple[JobSave, ...]
    saves: tuple[JobSave, ...]
    run_seconds: float | None

    @property
    def incomplete(self) -> int:
        """Count saves that were not completed."""
        return len(self.all_saves) - len(self.saves)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes that wrote in any save."""
        return tuple(sorted({node for save in self.all_saves for node in save.nodes}))

    @property
    def gpus(self) -> int | None:
        """Most GPUs that a save had a bubble figure for."""
        return max((save.gpus for save in self.saves if save.gpus is not None), default=None)


@dataclass(frozen=True, slots=True)
class Share:
    """What saves cost the run: lost seconds over the run's own wall-clock time."""

    baseline: Interval | None
    candidate: Interval | None
    baseline_run_with_candidate_saves: Interval | None
    verdict: Verdict
    measured: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both arms, their quantities, the shares, and the warnings that limit what they mean.

    ``loads`` is None where neither arm has any.
    """

    baseline: Arm
    candidate: Arm
    quantities: tuple[Quantity, ...]
    share: Share
    warnings: tuple[str, ...]
    loads: LoadComparison | None = None

    def quantity(self, key: str) -> Quantity:
        """Return one quantity by its key."""
        return next(found for found in self.quantities if found.key == key)


_Value = Callable[[JobSave], "float | None"]
_QUANTITIES: Final[tuple[tuple[str, Unit, _Value], ...]] = (
    ("duration_seconds", "seconds", lambda save: save.duration_seconds),
    ("active_seconds", "seconds", lambda save: save.active_seconds),
    ("bubble_seconds", "seconds", lambda save: save.bubble_seconds),
    ("average_bandwidth", "bytes_per_second", lambda save: save.average_bandwidth),
    ("sustained_bandwidth", "bytes_per_second", lambda save: save.sustained_bandwidth),
    ("peak_bandwidth", "bytes_per_second", lambda save: save.peak_bandwidth),
)


def compare(baseline: Measurements, candidate: Measurements) -> Comparison:
    """Compare two sets of saves and loads."""
    arms = (_arm("baseline", baseline), _arm("candidate", candidate))
    quantities = tuple(
        quantity(key, unit, *(_values(arm, value) for arm in arms)) for key, unit, value in _QUANTITIES
    )
    loads = compare_loads(baseline.loads, candidate.loads)
    # Of arms that only load there is nothing to say about saves.
    warnings = warnings_of(*arms) if any(arm.all_saves for arm in arms) or loads is None else ()
    return Comparison(*arms, quantities, _share(*arms), warnings, loads)


def _arm(name: str, measurements: Measurements) -> Arm:
    joined = job_saves(measurements.saves)
    complete = tuple(save for save in joined if save.complete and not save.seen_only)
    try:
        run_seconds = measured_inputs(measurements).run_seconds
    except UsageError:  # no complete save with a duration: nothing to spread over time
        run_seconds = None
    return Arm(name, measurements, joined, complete, run_seconds)


def _values(arm: Arm, value: _Value) -> list[float]:
    return [found for save in arm.saves if (found := value(save)) is not None]


# --- shares of the run ----------------------------------------------------------------------------------


def lost_seconds(save: JobSave, *, measured: bool) -> float | None:
    """Return what one save costs: its bubble, or without GPU figures its duration."""
    return save.bubble_seconds if measured else save.duration_seconds


def _share(baseline: Arm, candidate: Arm) -> Share:
    """Compare the shares; by bubbles where both arms have them for most saves, else by durations."""
    measured = all(_mostly_measured(arm) for arm in (baseline, candidate))
    lost = [[x for s in arm.saves if (x := lost_seconds(s, measured=measured)) is not None]
            for arm in (baseline, candidate)]  # fmt: skip
    shares = [_arm_share(arm, values) for arm, values in zip((baseline, candidate), lost, strict=True)]
    swapped = None
    training = _training_seconds(baseline, lost[0])
    if training is not None and lost[1]:
        count = len(baseline.saves)
        costs = interval(lost[1], mean)
        swapped = _moved(costs, lambda cost: training + count * cost)
    gain = None
    if shares[0] is not None and shares[1] is not None and shares[1].estimate > 0:
        gain = _share_gain(baseline, candidate, lost)
    return Share(shares[0], shares[1], swapped, verdict(gain, len(lost[0]), len(lost[1])), measured)


def _mostly_measured(arm: Arm) -> bool:
    known = sum(save.bubble_seconds is not None for save in arm.saves)
    return known > 0 and known >= 0.8 * len(arm.saves)


def _training_seconds(arm: Arm, lost: list[float]) -> float | None:
    """Return the run's time outside saves; None where saves seem to fill it."""
    if arm.run_seconds is None or not lost:
        return None
    training = arm.run_seconds - len(arm.saves) * mean(lost)
    return training if training > 0 else None


def _arm_share(arm: Arm, lost: list[float]) -> Interval | None:
    training = _training_seconds(arm, lost)
    if training is None:
        return None
    count = len(arm.saves)
    return _moved(interval(lost, mean), lambda cost: count * cost / (training + count * cost))


def _share_gain(baseline: Arm, candidate: Arm, lost: list[list[float]]) -> Interval | None:
    """Return baseline share over candidate share, drawing both arms' saves anew."""
    shares = []
    for arm, values in zip((baseline, candidate), lost, strict=True):
        training = _training_seconds(arm, values)
        if training is None:
            return None
        each = training / len(arm.saves) + mean(values)
        shares.append([value / each for value in values])
    return ratio_interval(shares[0], shares[1], mean)


def _moved(found: Interval, change: Callable[[float], float]) -> Interval:
    """Carry an interval through a function that only grows."""
    low, high = (None if x is None else change(x) for x in (found.low, found.high))
    return Interval(change(found.estimate), low, high, found.level)
