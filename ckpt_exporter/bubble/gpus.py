"""One GPU as the bubble detector knows it: its readings, its live activity, its counters."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from math import inf, isnan
from statistics import median
from typing import Final

from ckpt_exporter.bubble.activity import SPIN_UTIL, Power, learn_floor, no_work, reading
from ckpt_exporter.bubble.attribution import Charges
from ckpt_exporter.bubble.baseline import FEWEST_SAMPLES, Baseline, find_baseline
from ckpt_exporter.bubble.episodes import SPIN_ACTIVITY, Episode, Seen, StallWatch
from ckpt_exporter.bubble.settings import BubbleSettings
from ckpt_exporter.bubble.spans import Span
from ckpt_exporter.bubble.track import PROCESSES, UTIL, Track
from ckpt_exporter.model import GpuInfo, GpuSample, GpuStatus

FIRST_LOOK_SECONDS: Final = 5.0
NEXT_LOOK_SECONDS: Final = 30.0
# Activity that stays low for so long may be a new steady state (another model, another job).
NEW_STATE_SECONDS: Final = 120.0
# Processes are looked up about once a minute.
PROCESSES_SECONDS: Final = 180.0
# A GPU without a reading for so long is not up.
SILENT_SECONDS: Final = 10.0
WORKING: Final = 0.2
# So much less work over so long, and what a save cost is not over.
SLOWED: Final = 0.05
SLOWED_SECONDS: Final = 5.0
# A run's steps may leave a GPU without kernels for so long.
LULL_SECONDS: Final = 5.0
# No source looks for processes less often.
MAX_UNCLAIMED_SECONDS: Final = 60.0
MAX_FLOORS: Final = 9


class Unclaimed:
    """Time of a GPU that works while no process is known to hold it yet: processes are told now and then.

    Only a process makes a GPU work, so that time is the run's once it is known that there is one.
    """

    def __init__(self) -> None:
        self._worked = 0.0
        self._since = inf

    def note(self, sample: GpuSample, step: float) -> None:
        """Take in one reading; spinning alone is no work: utilisation can be stuck with no process there."""
        self._since += step
        util, memory = sample.util, sample.mem_util
        stuck = util is not None and util >= SPIN_UTIL and memory is None
        if util is not None and not stuck and not no_work(util, memory):
            self._worked += self._since if self._since <= LULL_SECONDS else step
            self._since = 0.0
        elif self._since > LULL_SECONDS:
            self._worked = 0.0  # whoever comes later is another
        self._worked = min(self._worked, MAX_UNCLAIMED_SECONDS)

    def take(self) -> float:
        """Return that time, up to now, and forget it."""
        if not self._worked:
            return 0.0
        seconds, self._worked, self._since = self._worked + self._since, 0.0, inf
        return seconds


class Gpu:
    """Readings in, activity and counters out. ``held``: a living run is known to hold this GPU.

    ``saving``: a save is open that may be this GPU's; ``masks`` are the times of saves, no steady state.
    """

    def __init__(self, info: GpuInfo, settings: BubbleSettings) -> None:
        self.info = info
        self.settings = settings
        self.track = Track(settings.ring_rows)
        self.stalls = StallWatch()
        self.charges = Charges()
        self.held = False
        self.saving = False
        self.masks: Sequence[Span] = ()
        self.baseline: Baseline | None = None
        self.processes: int | None = None
        self.observed_seconds = 0.0
        self.bubble_seconds: dict[str, float] = {}
        self.drag_seconds: dict[str, float] = {}
        self.stall_seconds: dict[str, float] = {}
        self.confident_seconds: dict[str, float] = {}
        self._activity: float | None = None
        self._processes_t = -inf
        self._floors: deque[float] = deque(maxlen=MAX_FLOORS)
        self._steps: deque[float] = deque(maxlen=9)
        self._sample: GpuSample | None = None
        self._error: str | None = None
        self._window_s = 0.0
        self._worked = -inf
        self._workless = -inf
        self._next_look = -inf
        self._unclaimed = Unclaimed()

    # --- in ---------------------------------------------------------------------------------------------

    def feed(self, sample: GpuSample) -> Episode | None:
        """Take in one reading; return the stretch of low activity that it ended."""
        self._error = sample.error
        if sample.error is not None:
            return self.stalls.cut() if sample.t - self.last_t > self.gap_seconds else None
        step = sample.t - self.last_t
        if step <= 0:
            return None
        gap = step > 3.0 * self.settings.sample_seconds and step > self.gap_seconds
        ended = self.stalls.cut() if gap and self._sample is not None else None
        self._note(sample, step)
        if sample.processes and no_work(sample.util, sample.mem_util):
            self._workless = sample.t
        self.track.append(sample, gap=gap)
        return self._follow(sample, 0.0 if gap else step) or ended

    def _note(self, sample: GpuSample, step: float) -> None:
        self._sample = sample
        if step < inf:
            self._steps.append(step)
        if sample.processes is not None:
            self.processes, self._processes_t = sample.processes, sample.t
        if sample.power_window_s is not None:
            self._window_s = sample.power_window_s
        if sample.limit_w is not None and sample.limit_w != self.info.limit_w:
            self.info = replace(self.info, limit_w=sample.limit_w)

    def _follow(self, sample: GpuSample, step: float) -> Episode | None:
        if sample.t >= self._next_look:
            self._look(sample.t)
        if self.belongs(sample.t):
            self.observed_seconds += step + self._unclaimed.take()
        else:
            self._unclaimed.note(sample, step)
        self._activity = self.baseline.scale.value(reading(sample)) if self.baseline else None
        if self._activity is None:
            return None
        if self._activity >= WORKING:
            self._worked = sample.t
        processes = self.known_processes(sample.t)
        if processes is None and self.held:
            processes = 1
        lag = self.baseline.scale.lag_s if self.baseline else None
        lag = min(step, 1.0) / 2 if lag is None else lag
        seen = Seen(sample.util, processes, sample.nvlink_bytes_per_second)
        return self.stalls.feed(sample.t - lag, self._activity, seen)

    def _look(self, t: float) -> None:
        """Look for the present steady state; what is low now is not taken for it too soon."""
        low = self.stalls.low_since
        known = self.baseline is not None
        self._next_look = t + (NEXT_LOOK_SECONDS if known else FIRST_LOOK_SECONDS)
        if known and low is not None and t - low < NEW_STATE_SECONDS:
            return
        guard = self.settings.guard_seconds
        window = max(self.settings.baseline_seconds, 1.5 * FEWEST_SAMPLES * self.spacing_seconds)
        rows = self.track.rows(t - window, t)
        found = find_baseline(rows, self.power(None), self.masks, t + guard, self.settings)
        self.baseline = found or self.baseline

    # --- what is known ----------------------------------------------------------------------------------

    @property
    def last_t(self) -> float:
        """Time of the last good reading."""
        return self._sample.t if self._sample else -inf

    @property
    def gap_seconds(self) -> float:
        """A distance of readings beyond which some are missing."""
        return 3.0 * max(self.settings.sample_seconds, self.spacing_seconds) + 0.05

    @property
    def spacing_seconds(self) -> float:
        """The usual distance of readings; 0 while that is not known."""
        return median(self._steps) if self._steps else 0.0

    @property
    def failed(self) -> bool:
        """Tell whether the last reading was an error."""
        return self._error is not None

    def known_processes(self, t: float) -> int | None:
        """Return the number of processes on this GPU, None if that was not told lately."""
        return self.processes if t - self._processes_t <= PROCESSES_SECONDS else None

    def had_processes(self, start: float, end: float) -> bool | None:
        """Tell whether a process held this GPU between two moments; None unknown."""
        told = [value for value in self.track.rows(start, end).column(PROCESSES) if not isnan(value)]
        return any(told) if told else None

    def waited(self, start: float, end: float) -> bool | None:
        """Tell whether between two moments this GPU mostly spun in a collective; None unknown."""
        if self.baseline is None:
            return None
        rows = self.track.rows(start, end)
        pairs = zip(self.baseline.scale.values(rows), rows.column(UTIL), strict=True)
        known = [(value, util) for value, util in pairs if not isnan(value + util)]
        spun = [util >= SPIN_UTIL and value <= SPIN_ACTIVITY for value, util in known]
        return sum(spun) > len(spun) / 2 if len(spun) >= 2 else None

    def latched(self, t: float) -> bool:
        """Tell whether utilisation is stuck at 100 % with no process there."""
        util = self._sample.util if self._sample else None
        return util is not None and util >= SPIN_UTIL and self.known_processes(t) == 0

    def slowed(self, now: float) -> bool:
        """Tell whether in the last seconds this GPU worked clearly less than in its steady state."""
        base = self.baseline
        if base is None:
            return False
        curve = base.scale.curve(self.track.rows(now - SLOWED_SECONDS - (base.period or 0.0), now))
        if len(curve) < 2:
            return False
        seconds = curve.times[-1] - curve.times[0]
        independent = max(1.0, seconds / max(1.0, self.spacing_seconds, base.period or 0.0))
        deficit = base.mean - curve.integral(curve.times[0], curve.times[-1]) / seconds
        return bool(deficit > max(SLOWED, 3 * base.deviation / independent**0.5))

    def belongs(self, t: float) -> bool:
        """Tell whether this GPU is part of a training run, as far as can be known."""
        if self.latched(t):
            return False
        if self.held:
            return True
        processes = self.known_processes(t)
        if processes is not None:
            return processes > 0
        return t - self._worked <= self.settings.recent_seconds or (self.saving and self._worked > -inf)

    def power(self, span: Span | None) -> Power:
        """Return what is known of this GPU's power; the floor as seen in a span of time, if told there."""
        learned = None
        if span is not None:
            learned = learn_floor(self.track.rows(*span), self._window_s)
        elif self.processes and not self._floors:
            since = self.last_t - self.settings.recent_seconds
            if self._workless >= since:  # else no row shows a floor
                self.remember_floor(learn_floor(self.track.rows(since, inf), self._window_s, attended=True))
        if learned is None and self._floors:
            learned = median(self._floors)
        info = self.info
        trusted = info.power_smoothing is not True
        return Power(info.limit_w, self._window_s, learned, trusted, info.waiting_known)

    def remember_floor(self, floor_w: float | None) -> None:
        """Keep the floor that a save showed, for saves that show none."""
        if floor_w is not None:
            self._floors.append(floor_w)

    # --- out --------------------------------------------------------------------------------------------

    def charge(self, directory: str, seconds: float, drag_seconds: float, *, sure: bool) -> None:
        """Add what a save cost this GPU to the counters."""
        self.bubble_seconds[directory] = self.bubble_seconds.get(directory, 0.0) + seconds
        self.drag_seconds[directory] = self.drag_seconds.get(directory, 0.0) + drag_seconds
        self.add_stall("checkpoint_save", seconds, sure=sure)

    def add_stall(self, cause: str, seconds: float, *, sure: bool) -> None:
        """Add a stretch of lost activity to the counters; ``sure``: its cause is."""
        self.stall_seconds[cause] = self.stall_seconds.get(cause, 0.0) + seconds
        if sure:
            self.confident_seconds[cause] = self.confident_seconds.get(cause, 0.0) + seconds

    def status(self, now: float) -> GpuStatus:
        """Return a copy of what is known now."""
        up = not self.failed and now - self.last_t <= max(SILENT_SECONDS, self.gap_seconds)
        sample = self._sample if up else None
        scale = self.baseline.scale if self.baseline else None
        activity = self._activity if sample and not self.latched(now) else None
        return GpuStatus(
            info=self.info,
            up=up,
            activity=None if activity is None else min(1.0, max(0.0, activity)),
            util=sample.util if sample else None,
            power_w=sample.power_w if sample else None,
            source=scale.source if scale else None,
            quality=scale.quality if scale else None,
            observed_seconds=self.observed_seconds,
            bubble_seconds=dict(self.bubble_seconds),
            drag_seconds=dict(self.drag_seconds),
            stall_seconds=dict(self.stall_seconds),
            confident_seconds=dict(self.confident_seconds),
        )
