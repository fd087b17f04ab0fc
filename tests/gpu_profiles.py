"""A simulation of GPUs under training: a history that knows its truth, read as a driver would give it.

Nothing here was recorded. The levels (549 W at work, 153 W spinning, 150 W idle with a context, 700 W limit)
are those of published 8-GPU training traces. A history is a list of ``Stop``s of work; values are constant
between changes of a GPU's state, so means over a driver's averaging window are exact, and so is the truth:
the area of the stops.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import floor
from typing import NamedTuple

from ckpt_exporter.bubble.detector import BubbleDetector
from ckpt_exporter.model import Bubble, GpuInfo, GpuSample, GpuSet, GpuStatus, Save, Stall, Writers


class Level(NamedTuple):
    """What a GPU shows in one state: shares, and watts."""

    util: float
    mem: float
    power: float
    sm: float
    tensor: float
    dram: float


TRAIN = Level(0.92, 0.61, 549.0, 0.80, 0.50, 0.55)
SPIN = Level(1.00, 0.00, 153.0, 0.15, 0.00, 0.02)
IDLE = Level(0.03, 0.00, 150.0, 0.02, 0.00, 0.00)
OFF = Level(0.00, 0.00, 70.0, 0.00, 0.00, 0.00)
LATCHED = Level(1.00, 0.00, 100.0, 0.00, 0.00, 0.00)
LEVELS = {"idle": IDLE, "spin": SPIN, "off": OFF, "latched": LATCHED}


@dataclass(frozen=True)
class Stop:
    """Work lost on some GPUs between two moments; ``kind`` ``slow`` loses ``share`` of it, the others all."""

    gpus: tuple[int, ...]
    start: float
    end: float
    kind: str = "spin"
    share: float = 1.0

    @property
    def lost(self) -> float:
        return (self.end - self.start) * self.share


@dataclass(frozen=True)
class Noise:
    """Relative deviation of power and counters, absolute deviation of utilisation."""

    power: float = 0.0
    util: float = 0.0


RECORDED_NOISE = Noise(power=0.02, util=0.04)


@dataclass(frozen=True)
class Profile:
    """A history of some GPUs, and how they are read.

    ``window_s``: power is the mean over it; 0: a sensor that looks for 25 ms in each 100 ms. ``fast_hz``: the
    rate while a save is open. ``step``: period and idle share of training steps. ``errors``: from when on a
    GPU can't be read. ``silences``: no reading at all.
    """

    name: str
    seconds: float
    gpus: int = 8
    stops: tuple[Stop, ...] = ()
    saves: tuple[Save, ...] = ()
    writers: tuple[Writers, ...] = ()
    train: Level = TRAIN
    limit_w: float = 700.0
    smoothing: bool = False
    window_s: float = 1.0
    hz: float = 2.0
    fast_hz: float | None = None
    gpm: bool = False
    power: bool = True
    memory: bool = True
    processes: bool = True
    step: tuple[float, float] | None = None
    errors: dict[int, float] = field(default_factory=dict)
    silences: tuple[tuple[float, float], ...] = ()
    noise: Noise = RECORDED_NOISE
    seed: int = 1


def save(start: float, end: float, *, name: str = "step-1", directory: str = "d", **more: object) -> Save:
    """One complete save of a directory; bytes flow all the time unless told otherwise."""
    flow = more.pop("flow", ((start, end),))
    return Save(
        directory=directory,
        path=f"/data/{directory}/{name}",
        layout="torch",
        step=1,
        result="complete",
        reason=None,
        start=start,
        end=end,
        duration_seconds=end - start,
        bytes=1 << 30,
        files=8,
        active_seconds=None,
        average_bandwidth=None,
        sustained_bandwidth=None,
        peak_bandwidth=None,
        flow=flow,  # type: ignore[arg-type]
        **more,  # type: ignore[arg-type]
    )


def job(
    gpus: Sequence[int], *, directory: str = "d", pids: tuple[int, ...] = (7,), t: float = 0.0
) -> Writers:
    """Tell which run writes below a directory, on which GPUs."""
    return Writers(t, directory, pids, run=directory, run_id=directory, gpus=tuple(gpus))


class Trace:
    """The states of one GPU over time, constant between changes."""

    def __init__(self, profile: Profile, gpu: int) -> None:
        self.starts: list[float] = []
        self.levels: list[Level] = []
        self._profile = profile
        self._part = 0  # of a step: 0 working, 1 idle
        self._worked = 0.0  # seconds into it
        t = 0.0
        for stop in sorted((s for s in profile.stops if gpu in s.gpus), key=lambda s: s.start):
            self._train(t, stop.start)
            self._add(stop.start, self._level(stop))
            t = stop.end
        self._train(t, profile.seconds)
        self._sums = [[0.0] for _ in TRAIN]
        for i in range(1, len(self.starts)):
            for sums, value in zip(self._sums, self.levels[i - 1], strict=True):
                sums.append(sums[-1] + value * (self.starts[i] - self.starts[i - 1]))

    def _level(self, stop: Stop) -> Level:
        if stop.kind != "slow":
            return LEVELS[stop.kind]
        pairs = zip(self._profile.train, IDLE, strict=True)
        return Level(*(a + (b - a) * stop.share for a, b in pairs))

    def _add(self, t: float, level: Level) -> None:
        self.starts.append(t)
        self.levels.append(level)

    def _train(self, start: float, end: float) -> None:
        """Go on training where it stopped: a step that was interrupted goes on too."""
        if end <= start:
            return
        if self._profile.step is None:
            self._add(start, self._profile.train)
            return
        period, idle = self._profile.step
        parts = (period * (1 - idle), period * idle)
        t = start
        while t < end:
            self._add(t, IDLE if self._part else self._profile.train)
            left = parts[self._part] - self._worked
            self._worked += min(left, end - t)
            if left <= end - t:
                self._part, self._worked = 1 - self._part, 0.0
            t += left

    def _sum(self, column: int, t: float) -> float:
        i = max(0, bisect_right(self.starts, t) - 1)
        return self._sums[column][i] + (t - self.starts[i]) * self.levels[i][column]

    def mean(self, column: int, t: float, window: float) -> float:
        """Mean of one value over the window before ``t``."""
        return (self._sum(column, t) - self._sum(column, t - window)) / window

    def state(self, t: float) -> Level:
        """Return what the GPU shows at a moment."""
        return self.levels[max(0, bisect_right(self.starts, t) - 1)]


def ticks(profile: Profile, rng: random.Random) -> Iterator[float]:
    """When the readings are taken, with some jitter."""
    t = 0.0
    while t < profile.seconds:
        if not any(a <= t < b for a, b in profile.silences):
            yield t + rng.uniform(0.0, 0.01)
        fast = profile.fast_hz and any(s.start + 0.2 <= t <= s.end + 20.0 for s in profile.saves)
        t += 1.0 / (profile.fast_hz if fast else profile.hz)  # type: ignore[operator]


class Reader:
    """Reads one GPU of a profile as its driver would."""

    def __init__(self, profile: Profile, gpu: int, rng: random.Random) -> None:
        self.trace = Trace(profile, gpu)
        self.gpu = gpu
        self._profile = profile
        self._rng = rng
        self._last = -0.5

    def read(self, t: float) -> GpuSample:
        if t >= self._profile.errors.get(self.gpu, float("inf")):
            return GpuSample(t, self.gpu, f"GPU-{self.gpu}", error="GPU is lost")
        profile, state = self._profile, self.trace.state(t)
        util = self._share(self.trace.mean(0, t, 0.2), profile.noise.util, exact=state.util >= 1.0)
        mem = self._share(self.trace.mean(1, t, 0.2), profile.noise.util / 2)
        counters = [self._relative(self.trace.mean(c, t, t - self._last)) for c in (3, 4, 5) if profile.gpm]
        self._last = t
        return GpuSample(
            t,
            self.gpu,
            f"GPU-{self.gpu}",
            util=util,
            mem_util=mem if profile.memory else None,
            power_w=self._relative(self._watts(t)) if profile.power else None,
            power_window_s=profile.window_s,
            sm=counters[0] if profile.gpm else None,
            tensor=counters[1] if profile.gpm else None,
            dram=counters[2] if profile.gpm else None,
            processes=(0 if state in (OFF, LATCHED) else 1) if profile.processes else None,
        )

    def _watts(self, t: float) -> float:
        if self._profile.smoothing:
            return self._profile.train.power
        if self._profile.window_s:
            return self.trace.mean(2, t, self._profile.window_s)
        return self.trace.mean(2, floor(t / 0.1) * 0.1, 0.025)

    def _relative(self, value: float) -> float:
        deviation = self._profile.noise.power
        return value * (1.0 + self._rng.gauss(0.0, deviation)) if deviation else value

    def _share(self, value: float, deviation: float, *, exact: bool = False) -> float:
        noise = 0.0 if exact or not deviation or value < 0.01 else self._rng.gauss(0.0, deviation)
        return min(1.0, max(0.0, value + noise * min(1.0, 2 * value)))


def gpu_set(profile: Profile, t: float = 0.0) -> GpuSet:
    """Return the GPUs of a profile."""
    infos = [
        GpuInfo(i, f"GPU-{i}", "simulated", limit_w=profile.limit_w, power_smoothing=profile.smoothing)
        for i in range(profile.gpus)
    ]
    return GpuSet(t, tuple(infos))


@dataclass
class Outcome:
    """What came out of one profile."""

    detector: BubbleDetector
    bubbles: list[Bubble] = field(default_factory=list)
    stalls: list[Stall] = field(default_factory=list)
    end: float = 0.0

    def take(self, results: list[Bubble | Stall]) -> None:
        for result in results:
            (self.bubbles if isinstance(result, Bubble) else self.stalls).append(result)  # type: ignore[arg-type]

    @property
    def bubble(self) -> Bubble:
        assert len(self.bubbles) == 1
        return self.bubbles[0]

    def statuses(self) -> tuple[GpuStatus, ...]:
        return self.detector.statuses(self.end)


def play(profile: Profile, detector: BubbleDetector | None = None, told_after: float = 0.6) -> Outcome:
    """Play a profile; a save is told ``told_after`` seconds after its end."""
    outcome = Outcome(detector or BubbleDetector())
    rng = random.Random(profile.seed)
    readers = [Reader(profile, gpu, rng) for gpu in range(profile.gpus)]
    begins = sorted(profile.saves, key=lambda s: s.start)
    ends = sorted(profile.saves, key=lambda s: s.end)
    writers = sorted(profile.writers, key=lambda w: w.t)
    outcome.detector.feed(gpu_set(profile))
    for t in ticks(profile, rng):
        while writers and writers[0].t <= t:
            outcome.detector.feed(writers.pop(0))
        while begins and begins[0].start <= t:
            began = begins.pop(0)
            outcome.detector.save_began(began.directory, began.path, began.start)
        for reader in readers:
            outcome.detector.feed(reader.read(t))
        while ends and ends[0].end + told_after <= t:
            outcome.detector.save_ended(ends.pop(0))
        outcome.take(outcome.detector.tick(t))
        outcome.end = t
    outcome.take(outcome.detector.finish(outcome.end))
    return outcome


def lost(profile: Profile, gpu: int, kinds: tuple[str, ...] = ("idle", "spin")) -> float:
    """Seconds of full work that one GPU of a profile loses in stops of these kinds."""
    return sum(stop.lost for stop in profile.stops if gpu in stop.gpus and stop.kind in kinds)


__all__ = ["Noise", "Outcome", "Profile", "Stop", "gpu_set", "job", "lost", "play", "replace", "save"]
