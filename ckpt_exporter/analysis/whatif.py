"""What a run costs today and with other saves: plain arithmetic, no input or output."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class SaveCost:
    """One save: how long it takes and how much training time is lost to it (seconds).

    ``fixed_seconds`` does not depend on the storage's bandwidth, ``write_seconds`` goes with bytes over
    bandwidth. ``lost_fixed`` and ``lost_write`` are what of the two the training loses.
    """

    fixed_seconds: float
    write_seconds: float
    lost_fixed: float
    lost_write: float

    @property
    def seconds(self) -> float:
        """Duration of the save."""
        return self.fixed_seconds + self.write_seconds

    @property
    def lost_seconds(self) -> float:
        """Training time lost to the save."""
        return self.lost_fixed + self.lost_write

    def scaled(self, factor: float) -> SaveCost:
        """Return the save with its write-bound part ``factor`` times as long."""
        return replace(self, write_seconds=self.write_seconds * factor, lost_write=self.lost_write * factor)


def blocking(seconds: float, write_share: float, lost_seconds: float | None = None) -> SaveCost:
    """Return a save of ``seconds`` of which ``write_share`` is write-bound; all of it is lost if not said."""
    lost = seconds if lost_seconds is None else lost_seconds
    write = seconds * write_share
    return SaveCost(seconds - write, write, lost - lost * write_share, lost * write_share)


@dataclass(frozen=True, slots=True)
class Situation:
    """A run: its pure training time and its saves. ``gpus`` is None where unknown."""

    training_seconds: float
    saves: float
    cost: SaveCost
    gpus: float | None = None

    @property
    def lost_seconds(self) -> float:
        """Training time lost to all saves."""
        return self.saves * self.cost.lost_seconds

    @property
    def run_seconds(self) -> float:
        """Wall-clock time of the run."""
        return self.training_seconds + self.lost_seconds

    @property
    def bubble_share(self) -> float:
        """Share of the run's own wall-clock time that is lost."""
        return self.lost_seconds / self.run_seconds

    @property
    def between_saves_seconds(self) -> float:
        """Training time from one save to the next."""
        return self.training_seconds / self.saves if self.saves else math.inf

    @property
    def lost_gpu_hours(self) -> float | None:
        """GPU-hours lost to all saves."""
        return None if self.gpus is None else self.lost_seconds * self.gpus / SECONDS_PER_HOUR


def run_of(run_seconds: float, saves: float, cost: SaveCost, gpus: float | None = None) -> Situation:
    """Return the run that takes ``run_seconds`` with its saves."""
    return Situation(run_seconds - saves * cost.lost_seconds, saves, cost, gpus)


def bandwidth_needed(situation: Situation, share: float) -> float | None:
    """Return how many times today's bandwidth brings the bubble share down to ``share``; None: none does.

    ``share`` = n l / (T + n l), solved for l.
    """
    lost = share * situation.training_seconds / (situation.saves * (1 - share))
    room = lost - situation.cost.lost_fixed
    if room <= 0:
        return None
    return situation.cost.lost_write / room


def between_saves_needed(situation: Situation, share: float) -> float:
    """Return the training time between saves that brings the bubble share down to ``share``."""
    return situation.cost.lost_seconds * (1 - share) / share


@dataclass(frozen=True, slots=True)
class FixedPart:
    """What two saves at two bandwidths tell: the part that does not scale, between ``low`` and ``high``."""

    seconds: float
    low: float
    high: float


def fixed_part(
    seconds: tuple[float, float],
    bandwidths: tuple[float, float],
    rounding: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0),
) -> FixedPart | None:
    """Solve d = f + v and d' = f + v b/b' for f; None where the two saves do not fit that.

    ``rounding`` is by how much each of d, d', b, b' may be off; ``low`` and ``high`` are the extremes.
    """
    exact = _fixed(seconds, bandwidths)
    if exact is None:
        return None
    corners = [
        _fixed((seconds[0] + a * rounding[0], seconds[1] + b * rounding[1]),
               (bandwidths[0] + c * rounding[2], bandwidths[1] + d * rounding[3]))
        for a in (-1, 1) for b in (-1, 1) for c in (-1, 1) for d in (-1, 1)
    ]  # fmt: skip
    known = [corner for corner in corners if corner is not None]
    return FixedPart(exact, min(known), max(known))


def _fixed(seconds: tuple[float, float], bandwidths: tuple[float, float]) -> float | None:
    if bandwidths[0] <= 0 or bandwidths[1] <= 0 or bandwidths[0] == bandwidths[1]:
        return None
    return seconds[0] - (seconds[0] - seconds[1]) / (1 - bandwidths[0] / bandwidths[1])
