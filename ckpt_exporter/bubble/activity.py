"""How much useful work a GPU does, from the best source that it has.

A rank that waits in a collective spins: utilisation says 100 % while power falls to about that of an idle
GPU with a context, tensor cores and memory fall to 0, and about a sixth of the SMs stay busy. So, in order:
the performance counters (gpm), power above its floor, power together with utilisation, utilisation alone.
Other accelerators' counters take the places of these: an Ascend NPU's cube units that of tensor cores, its
vector units that of SMs (collectives may reduce on them), its memory's bandwidth that of DRAM activity. What
they show while it waits has not been seen on hardware, so no figure from them is of high quality.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf, isnan, nan
from statistics import median
from typing import Final

from ckpt_exporter.bubble.curves import Curve
from ckpt_exporter.bubble.track import DRAM, MEMORY, POWER, PROCESSES, SM, TENSOR, UTIL, Rows
from ckpt_exporter.model import ActivitySource, GpuSample, Quality

# Share of the power limit that a GPU draws with a context but no work (150 of 700 W, 77 and 66 of 300 W).
FLOOR_SHARE: Final = 0.22
# How wrong that guess may be, as a share of the limit.
FLOOR_DOUBT: Final = 0.1
# Below this share of the limit between floor and work, noise and the floor's own error are too large.
POWER_RANGE: Final = 0.15
USABLE_RANGE: Final = 0.05
# Beyond this share of the limit a GPU works, whatever else it shows.
WORK_SHARE: Final = 0.6
# An NCCL kernel alone keeps 0.1 to 0.2 of the SMs busy.
SPIN_SM: Final = 0.2
GPM_WEIGHTS: Final = ((TENSOR, 0.5), (DRAM, 0.3), (SM, 0.2))
IDLE_UTIL: Final = 0.05
SPIN_UTIL: Final = 0.98
IDLE_MEMORY: Final = 0.05
MIN_FLOOR_ROWS: Final = 3
COVERAGE: Final = 0.8
# Readings further apart than this place an edge no better than to about a second.
COARSE_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Power:
    """What is known of a GPU's power: ``limit_w``, averaging ``window_s``, learned ``floor_w``.

    ``trusted`` is False where the GPU may hold its power up on purpose, ``waiting_known`` where no such
    hardware was ever seen waiting in a collective.
    """

    limit_w: float | None = None
    window_s: float = 0.0
    floor_w: float | None = None
    trusted: bool = True
    waiting_known: bool = True


@dataclass(frozen=True, slots=True)
class Scale:
    """How readings of one source become activity: (column, offset, factor) each, added up or the least.

    ``lag_s`` is by how much the source's readings are late; None: by half their own distance.
    ``doubt`` is the share by which a guessed floor may make a full dip wrong.
    """

    source: ActivitySource
    quality: Quality
    terms: tuple[tuple[int, float, float], ...]
    lag_s: float | None
    window_s: float | None
    floor_w: float | None = None
    doubt: float = 0.0

    def normalised(self, level: float) -> Scale:
        """Return the scale on which ``level`` is 1."""
        return replace(self, terms=tuple((c, offset, factor / level) for c, offset, factor in self.terms))

    def values(self, rows: Rows) -> list[float]:
        """Return the activity in each row, NaN where it can't be told; may exceed 1."""
        parts = [
            [(value - offset) * factor for value in rows.column(column)]
            for column, offset, factor in self.terms
        ]
        if self.source == "gpm":
            return [_added(row) for row in zip(*parts, strict=True)]
        return parts[0] if len(parts) == 1 else [_least(row) for row in zip(*parts, strict=True)]

    def value(self, reading: Sequence[float | None]) -> float | None:
        """Return the activity of one reading (values by column), None where it can't be told."""
        parts = []
        for column, offset, factor in self.terms:
            value = reading[column]
            if value is None:
                return None
            parts.append((value - offset) * factor)
        return _added(parts) if self.source == "gpm" else min(parts)

    def curve(self, rows: Rows) -> Curve:
        """Return activity over time, set back by what the source's averaging makes it late."""
        return Curve(*self.points(rows))

    def points(self, rows: Rows) -> tuple[list[float], list[float]]:
        """Return the times and values of that curve."""
        values = self.values(rows)
        times = list(self._times(rows))
        kept = [i for i, value in enumerate(values) if not isnan(value)]
        return [times[i] for i in kept], [values[i] for i in kept]

    def _times(self, rows: Rows) -> Iterator[float]:
        if self.lag_s is not None:
            lag = self.lag_s
            yield from (t - lag for t in rows.times)
            return
        previous: float | None = None
        for t in rows.times:
            yield t if previous is None else t - min(t - previous, 1.0) / 2
            previous = t


def _added(row: Sequence[float]) -> float:
    total = 0.0
    for value in row:
        if not value <= 0.0:  # NaN, too: what lacks a part has no sum
            total += value
    return total


def _least(row: Sequence[float]) -> float:
    return nan if any(map(isnan, row)) else min(row)


def reading(sample: GpuSample) -> tuple[float | None, ...]:
    """Return a sample's values in the order of the columns."""
    return sample.util, sample.mem_util, sample.power_w, sample.sm, sample.tensor, sample.dram


def spacing_seconds(times: Sequence[float]) -> float:
    """Return the usual distance of readings; 0 of less than two."""
    return median([b - a for a, b in pairwise(times)]) if len(times) > 1 else 0.0


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` of the values lie; NaN of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else nan


def _high(rows: Rows, column: int) -> float:
    """Return a column's level at full work, NaN if too few rows have it."""
    values = [value for value in rows.column(column) if not isnan(value)]
    return quantile(values, 0.9) if len(values) >= COVERAGE * len(rows) else nan


def no_work(util: float | None, memory: float | None) -> bool:
    """Tell whether a reading shows no kernel, or kernels that only spin; NaN and None tell nothing."""
    if util is None or isnan(util):
        return False
    spins = util >= SPIN_UTIL and memory is not None and memory < IDLE_MEMORY
    idle = util <= IDLE_UTIL and not (memory is not None and memory >= IDLE_MEMORY)
    return spins or idle


def learn_floor(rows: Rows, window_s: float, *, attended: bool = False) -> float | None:
    """Learn the power without work from rows that show none (watts); None if there are too few.

    The first ``window_s`` seconds of each such stretch still average over the work before it. ``attended``
    wants rows that are known to have a process: without a context a GPU draws less.
    """
    powers: list[float] = []
    since: float | None = None
    columns = zip(
        rows.times,
        rows.column(UTIL),
        rows.column(MEMORY),
        rows.column(POWER),
        rows.column(PROCESSES),
        strict=True,
    )
    for t, util, memory, power, processes in columns:
        unattended = processes == 0 or (attended and isnan(processes))
        if isnan(power) or unattended or not no_work(util, memory):
            since = None
            continue
        since = t if since is None else since
        if t - since > window_s:
            powers.append(power)
    if len(powers) < MIN_FLOOR_ROWS:
        return None
    low = quantile(powers, 0.25)
    return median([power for power in powers if power <= 1.1 * low])


def _gpm(rows: Rows) -> Scale | None:
    terms = []
    for column, weight in GPM_WEIGHTS:
        high = _high(rows, column)
        offset = SPIN_SM if column == SM else 0.0
        if high - offset > 0.02:
            terms.append((column, offset, weight / (high - offset)))
    whole = sum(weight for column, weight in GPM_WEIGHTS if any(term[0] == column for term in terms))
    if not terms:
        return None
    # SM activity alone still counts resident, waiting warps.
    quality: Quality = "low" if terms[0][0] == SM else "high"
    scaled = tuple((column, offset, factor / whole) for column, offset, factor in terms)
    return Scale("gpm", quality, scaled, None, None)


def _power(rows: Rows, power: Power) -> Scale | None:
    high = _high(rows, POWER)
    if not power.trusted or isnan(high) or power.limit_w is None:
        return None
    floor = _sane_floor(power, high)
    if floor is None or high - floor < POWER_RANGE * power.limit_w:
        return None
    doubt = FLOOR_DOUBT * power.limit_w / (high - floor) if floor != power.floor_w else 0.0
    factor = 1 / (high - floor)
    window = power.window_s
    return Scale("power", "high", ((POWER, floor, factor),), window / 2, window, floor, doubt)


def _sane_floor(power: Power, high: float) -> float | None:
    """Return the learned floor, or the usual one; None where the highest power is about the floor itself.

    Work that looks like spinning (all kernels, no memory traffic) draws far more than a floor.
    """
    limit, learned = power.limit_w or 0.0, power.floor_w
    if learned is None or high - learned >= USABLE_RANGE * limit:
        return FLOOR_SHARE * limit if learned is None else learned
    return FLOOR_SHARE * limit if high >= WORK_SHARE * limit else None


def _utilization(rows: Rows) -> tuple[tuple[int, float, float], ...]:
    util, memory = _high(rows, UTIL), _high(rows, MEMORY)
    if isnan(util) or util <= IDLE_UTIL:
        return ()
    terms = [(UTIL, 0.0, 1 / util)]
    if memory >= 2 * IDLE_MEMORY:
        terms.append((MEMORY, 0.0, 1 / memory))
    return tuple(terms)


def _power_utilization(rows: Rows, power: Power) -> Scale | None:
    terms = _utilization(rows)
    high = _high(rows, POWER)
    if not power.trusted or not terms or isnan(high):
        return None
    limit, floor = power.limit_w, power.floor_w
    if limit is not None and floor is not None and high - floor >= USABLE_RANGE * limit:
        terms = (*terms, (POWER, floor, 1 / (high - floor)))
    elif len(terms) == 1:
        return None
    return Scale("power_utilization", "low", terms, 0.0, power.window_s, floor)


def scales(rows: Rows, power: Power) -> Iterator[Scale]:
    """Offer the scales that these rows allow, best source first; 1 is about full work.

    None is of high quality where readings are coarse, or where it was never seen what waiting looks like.
    """
    doubtful = not power.waiting_known or spacing_seconds(rows.times) > COARSE_SECONDS
    for scale in (_gpm(rows), _power(rows, power), _power_utilization(rows, power)):
        if scale is not None:
            yield replace(scale, quality="low") if doubtful else scale
    terms = _utilization(rows)
    if terms and not _tells_work(rows, power):
        yield Scale("utilization", "low", terms, 0.0, inf)


def _tells_work(rows: Rows, power: Power) -> bool:
    """Tell whether a better source is there: if it shows no work, full utilisation is no work either."""
    counters = any(not isnan(_high(rows, column)) for column, _ in GPM_WEIGHTS)
    watts = power.trusted and power.limit_w is not None and not isnan(_high(rows, POWER))
    return counters or watts
