"""From a load to the first work of the GPUs that it was for: the cold start."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from ckpt_exporter.bubble.activity import (
    FLOOR_DOUBT,
    FLOOR_SHARE,
    IDLE_MEMORY,
    IDLE_UTIL,
    SPIN_SM,
    SPIN_UTIL,
)
from ckpt_exporter.model import GpuSample, GpuSet, Load, LoadGpus

# An engine that compiles and captures graphs after its load works within this; later it is another story.
WAIT_SECONDS: Final = 600.0
MAX_WAITING: Final = 32
MAX_GPUS: Final = 64
MAX_STRETCHES: Final = 64
# Where no reading came for so long, work that was there by then may have begun at any time.
GAP_SECONDS: Final = 5.0


def works(sample: GpuSample, limit_w: float | None) -> bool | None:
    """Tell whether a GPU computed, by its raw readings; None where it can't be told.

    A GPU that is being filled copies, which is no work; one that waits in a collective spins at full
    utilisation with its memory and power near idle.
    """
    limit_w = sample.limit_w or limit_w
    share = sample.power_w / limit_w if sample.power_w is not None and limit_w else None
    if sample.sm is not None:
        return sample.sm > SPIN_SM or (sample.tensor or 0.0) > IDLE_UTIL
    if sample.util is not None:
        idle_memory = sample.mem_util is not None and sample.mem_util < IDLE_MEMORY
        idle_power = share is not None and share < FLOOR_SHARE + FLOOR_DOUBT
        return sample.util > IDLE_UTIL and not (sample.util >= SPIN_UTIL and idle_memory and idle_power)
    return None if share is None else share > FLOOR_SHARE + FLOOR_DOUBT


@dataclass(slots=True)
class _Stretch:
    """Readings in a row that show work; ``before`` is the reading before the first of them."""

    before: float
    start: float
    end: float


@dataclass(slots=True)
class _Gpu:
    limit_w: float | None = None
    last_t: float = -inf
    stretches: deque[_Stretch] = field(default_factory=lambda: deque(maxlen=MAX_STRETCHES))

    def feed(self, sample: GpuSample) -> None:
        working = works(sample, self.limit_w)
        if sample.error is not None or working is None:
            return
        last = self.stretches[-1] if self.stretches else None
        gap = sample.t - self.last_t > GAP_SECONDS
        if working and last is not None and last.end == self.last_t and not gap:
            last.end = sample.t
        elif working:
            self.stretches.append(_Stretch(self.last_t, sample.t, sample.t))
        self.last_t = sample.t

    def first_work(self, t: float) -> tuple[float, bool] | None:
        """Return when the GPU first worked after ``t``, and whether the readings say so closely enough."""
        for stretch in self.stretches:
            if stretch.end > t:
                first = max(stretch.start, t)
                return first, first - max(stretch.before, t) <= GAP_SECONDS
        return None


class ColdStarts:
    """Find the first work of a run's GPUs after each load. Facts come in time order."""

    def __init__(self) -> None:
        self._gpus: dict[int, _Gpu] = {}
        self._waiting: deque[Load] = deque(maxlen=MAX_WAITING)
        self._placed: dict[tuple[str, str, float], tuple[int, ...]] = {}

    def feed(self, fact: GpuSample | GpuSet | LoadGpus) -> None:
        """Take in one fact."""
        if isinstance(fact, GpuSample):
            self._gpu(fact.gpu).feed(fact)
        elif isinstance(fact, GpuSet):
            for info in fact.gpus:
                self._gpu(info.gpu).limit_w = info.limit_w
        elif any(_key(load) == (fact.directory, fact.path, fact.end) for load in self._waiting):
            self._placed[fact.directory, fact.path, fact.end] = fact.gpus

    def _gpu(self, index: int) -> _Gpu:
        if index not in self._gpus and len(self._gpus) >= MAX_GPUS:
            del self._gpus[min(self._gpus, key=lambda gpu: self._gpus[gpu].last_t)]
        return self._gpus.setdefault(index, _Gpu())

    def load_ended(self, load: Load) -> None:
        """Wait for the first work after a load."""
        self.load_began(load.directory, load.start)
        self._waiting.append(load)

    def load_began(self, directory: str, start: float) -> None:
        """Give up the loads that another of their directory followed before there was work."""
        self._waiting = deque(
            (load for load in self._waiting if load.directory != directory or load.end >= start),
            maxlen=MAX_WAITING,
        )

    def tick(self, now: float) -> list[Load]:
        """Return the loads whose first work is known by now."""
        found, rest = [], []
        for load in self._waiting:
            first = self._first_work(load)
            if first is not None:
                found += [replace(load, first_gpu_work=first[0])] if first[1] else []
            elif now <= load.end + WAIT_SECONDS:
                rest.append(load)
        if len(rest) < len(self._waiting):
            self._waiting = deque(rest, maxlen=MAX_WAITING)
        if len(self._placed) > len(rest):
            kept = {_key(load) for load in rest}
            self._placed = {key: gpus for key, gpus in self._placed.items() if key in kept}
        return found

    def _first_work(self, load: Load) -> tuple[float, bool] | None:
        gpus = [self._gpus[gpu] for gpu in self._placed.get(_key(load), ()) if gpu in self._gpus]
        known = [first for gpu in gpus if (first := gpu.first_work(load.end)) is not None]
        return min(known, default=None)

    @property
    def waiting(self) -> bool:
        """Tell whether the first work after a load has yet to be seen."""
        return bool(self._waiting)


def _key(load: Load) -> tuple[str, str, float]:
    return load.directory, load.path, load.end
