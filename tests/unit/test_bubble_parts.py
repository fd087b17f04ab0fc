"""The pieces that the bubble detector is made of."""

from __future__ import annotations

import random
from math import inf, pi, sin

import pytest

from ckpt_exporter.bubble.activity import Power, learn_floor, no_work, scales
from ckpt_exporter.bubble.attribution import SaveSpan, owned
from ckpt_exporter.bubble.baseline import find_baseline, find_period
from ckpt_exporter.bubble.curves import Curve
from ckpt_exporter.bubble.dips import phase_spans
from ckpt_exporter.bubble.runs import Runs
from ckpt_exporter.bubble.settings import BubbleSettings
from ckpt_exporter.bubble.spans import clip, subtract
from ckpt_exporter.bubble.track import POWER, UTIL, Track
from ckpt_exporter.model import GpuSample, Writers
from tests.gpu_profiles import save

SETTINGS = BubbleSettings()


def track_of(*parts: tuple[float, dict[str, float]], hz: float = 2.0) -> Track:
    """Keep readings: each part lasts some seconds."""
    track, t = Track(9000), 0.0
    for seconds, values in parts:
        end = t + seconds
        while t < end:
            track.append(GpuSample(t, 0, **values), gap=False)  # type: ignore[arg-type]
            t += 1 / hz
    return track


WORK = {"util": 0.92, "mem_util": 0.6, "power_w": 549.0}
SPIN = {"util": 1.0, "mem_util": 0.0, "power_w": 153.0}
H100 = Power(limit_w=700.0, window_s=1.0)


def test_spans_left_after_others_are_taken_away() -> None:
    """Taking the middle out of a span leaves both its sides."""
    assert subtract([(0.0, 10.0)], [(2.0, 3.0), (8.0, 12.0)]) == [(0.0, 2.0), (3.0, 8.0)]
    assert clip([(0.0, 10.0), (20.0, 30.0)], 5.0, 22.0) == [(5.0, 10.0), (20.0, 22.0)]


def test_area_below_a_curve() -> None:
    """The integral is that of the straight pieces, also between samples and beyond the ends."""
    curve = Curve([0.0, 2.0, 4.0], [0.0, 2.0, 0.0])
    assert curve.integral(0.0, 4.0) == 4.0
    assert curve.integral(1.0, 3.0) == 3.0
    assert curve.integral(-5.0, 1.0) == 0.5
    assert curve.at(3.5) == 0.5


def test_edges_are_interpolated() -> None:
    """The threshold is crossed between samples where the straight line crosses it."""
    curve = Curve([0.0, 1.0, 2.0, 3.0], [1.0, 0.0, 0.0, 2.0])
    assert list(curve.below(0.5, 0.0, 3.0)) == [(0.5, 2.25)]


def test_moving_mean_over_one_period_is_flat() -> None:
    """A sine smoothed over its period is its mean."""
    times = [i * 0.25 for i in range(200)]
    smooth = Curve(times, [1.0 + sin(2 * pi * t / 5.0) for t in times]).smoothed(5.0)
    assert smooth.values[40:160] == pytest.approx([1.0] * 120, abs=0.01)


@pytest.mark.parametrize("period", [2.0, 3.3, 3.5, 7.0])
def test_step_period(period: float) -> None:
    """The period found is the step's, or a few steps at once."""
    times = [i * 0.5 for i in range(120)]
    values = [1.0 if (t % period) < 0.75 * period else 0.0 for t in times]
    found = find_period(times, values)
    assert found is not None
    assert found / period == pytest.approx(round(found / period), abs=0.05)


def test_no_step_period_in_noise() -> None:
    """Readings that do not repeat have no period."""
    rng = random.Random(1)
    values = [rng.random() for _ in range(120)]
    assert find_period([i * 0.5 for i in range(120)], values) is None


def test_rows_without_work() -> None:
    """No kernel, or kernels without memory traffic at 100 %, is no work; unknown is not no work."""
    assert no_work(0.0, 0.0)
    assert no_work(1.0, 0.01)
    assert not no_work(0.92, 0.6)
    assert not no_work(1.0, 0.6)
    assert not no_work(1.0, None)
    assert not no_work(None, 0.0)


def test_the_floor_is_learned_from_rows_without_work() -> None:
    """The floor is the power of spinning rows, without the second that still averages over work."""
    ramp = {"util": 1.0, "mem_util": 0.0, "power_w": 400.0}
    rows = track_of((30.0, WORK), (1.0, ramp), (10.0, SPIN)).rows(0.0, inf)
    assert learn_floor(rows, 1.0) == 153.0
    assert learn_floor(track_of((30.0, WORK)).rows(0.0, inf), 1.0) is None


def test_without_a_learned_floor_the_usual_share_of_the_limit_is_taken() -> None:
    """22 % of 700 W is 154 W: a spinning GPU has no activity, and the doubt about the guess is told."""
    scale = next(iter(scales(track_of((30.0, WORK)).rows(0.0, inf), H100)))
    assert (scale.source, scale.value((1.0, 0.0, 154.0))) == ("power", 0.0)
    assert scale.value((0.92, 0.6, 549.0)) == pytest.approx(1.0)
    assert scale.doubt == pytest.approx(70.0 / 395.0)


@pytest.mark.parametrize("level", [SPIN, {"util": 0.0, "mem_util": 0.0, "power_w": 70.0}])
def test_a_gpu_that_does_not_work_has_no_steady_state(level: dict[str, float]) -> None:
    """A minute of spinning or idling is no baseline."""
    rows = track_of((62.0, level)).rows(0.0, inf)
    assert find_baseline(rows, H100, [], 62.0, SETTINGS) is None


def test_unsteady_work_is_no_baseline() -> None:
    """Readings that jump about, most of them far from their median, are no steady state of any source."""
    rng = random.Random(1)
    shares = [rng.uniform(0.05, 1.0) for _ in range(120)]
    parts = [(0.5, {"util": s, "mem_util": 0.6 * s, "power_w": 150.0 + 400.0 * s}) for s in shares]
    assert find_baseline(track_of(*parts).rows(0.0, inf), H100, [], 62.0, SETTINGS) is None


def test_other_saves_are_no_baseline() -> None:
    """What lies within other saves is left out; too little left is no baseline."""
    rows = track_of((60.0, WORK)).rows(0.0, inf)
    assert find_baseline(rows, H100, [(0.0, 30.0)], 62.0, SETTINGS) is not None
    assert find_baseline(rows, H100, [(0.0, 55.0)], 62.0, SETTINGS) is None


def test_an_instant_belongs_to_one_save() -> None:
    """Open saves: to the first that began. Between: to the last that ended. Before all: to the next."""
    first, second = SaveSpan(1, 10.0, 20.0), SaveSpan(2, 15.0, 30.0)
    assert owned(first, (5.0, 40.0), [first, second], SETTINGS) == [(5.0, 10.0), (10.0, 15.0), (15.0, 20.0)]
    assert owned(second, (5.0, 40.0), [first, second], SETTINGS) == [(20.0, 30.0), (30.0, 40.0)]


def test_an_open_save_owns_what_comes() -> None:
    """A save that has not ended owns the rest of a dip that an earlier one began."""
    first, second = SaveSpan(1, 10.0, 20.0), SaveSpan(2, 15.0)
    assert owned(first, (10.0, 40.0), [first, second], SETTINGS)[-1][1] == 20.0


def test_an_instant_too_far_from_any_save_belongs_to_none() -> None:
    """Two minutes before the first byte and one after the commit is as far as a save reaches."""
    only = SaveSpan(1, 1000.0, 1010.0)
    spans = owned(only, (0.0, 5000.0), [only], SETTINGS)
    assert (spans[0][0], spans[-1][1]) == (880.0, 1070.0)


def test_phases_of_a_save() -> None:
    """Before the first byte, flowing, pausing, after the last; without known flow all of it is writing."""
    spans = phase_spans(save(10.0, 30.0, flow=((12.0, 15.0), (20.0, 25.0))))
    assert spans["before_write"] == [(-inf, 12.0)]
    assert spans["writing"] == [(12.0, 15.0), (20.0, 25.0)]
    assert spans["write_gap"] == [(15.0, 20.0)]
    assert spans["after_write"] == [(25.0, inf)]
    assert phase_spans(save(10.0, 30.0, flow=()))["writing"] == [(10.0, 30.0)]


def writers(directory: str, pid: int, *paths: str) -> Writers:
    return Writers(0.0, directory, (pid,), run_id=str(pid), paths=paths)


def test_a_save_is_its_writers() -> None:
    """Of two runs in one directory, the one whose process wrote the save pays; else the one with its path."""
    runs = Runs()
    runs.note(writers("d", 7, "/data/d/step-1/a"), frozenset({"A"}))
    runs.note(writers("d", 8, "/data/d/step-2/a"), frozenset({"B"}))
    assert runs.of_save(save(0.0, 1.0, pids=(7,), name="other")) == {"A"}
    assert runs.of_save(save(0.0, 1.0, name="step-2")) == {"B"}
    assert runs.of_save(save(0.0, 1.0, pids=(9,), name="other")) is None
    assert runs.of_save(save(0.0, 1.0, directory="elsewhere")) is None


def test_gpus_of_other_runs() -> None:
    """A directory's own run is not another's, though it writes below two directories."""
    runs = Runs()
    runs.note(writers("d", 7), frozenset({"A"}))
    runs.note(writers("log", 7), frozenset({"A"}))
    runs.note(writers("e", 8), frozenset({"B"}))
    assert runs.held_by_others("d") == {"B"}
    assert runs.held() == {"A", "B"}


def test_a_coarser_track_keeps_its_means() -> None:
    """Where too many rows are needed, neighbours become their means; unknown values spoil none."""
    track = Track(100)
    for i in range(101):
        track.append(GpuSample(float(i), 0, util=0.5, power_w=None if i % 2 else 100.0 + i), gap=False)
    track.trim(-inf)
    rows = track.rows(-inf, inf)
    assert len(rows) == 76
    assert rows.times[0] == 0.5
    assert rows.column(POWER)[0] == 100.0
    assert set(rows.column(UTIL)) == {0.5}
