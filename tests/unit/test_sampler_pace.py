"""How often the GPU driver is asked, and how its answers' times are counted."""

from __future__ import annotations

import pytest

from ckpt_exporter.sources.sampler_pace import CALL_BOUNDS_SECONDS, CallTimes, Pace, bucket_of, percentile_95

FAST_CALLS = [0.001] * 24
SLOW_CALLS = [0.021] * 24


def test_a_save_raises_the_rate() -> None:
    """2 Hz is every half second, 5 Hz while saving every fifth of one."""
    pace = Pace(2.0, 5.0)
    assert pace.interval_seconds(saving=False) == 0.5
    assert pace.interval_seconds(saving=True) == pytest.approx(0.2)


def test_a_save_never_lowers_the_rate() -> None:
    """Who asks for 10 Hz all the time keeps it while saving."""
    assert Pace(10.0, 5.0).interval_seconds(saving=True) == pytest.approx(0.1)


def test_slow_calls_halve_the_rate_down_to_its_floor() -> None:
    """Each slow tick doubles the interval, up to five seconds."""
    pace = Pace(2.0, 5.0)
    intervals = []
    for _ in range(8):
        pace.note_tick(SLOW_CALLS)
        intervals.append(pace.interval_seconds(saving=False))
    assert intervals == [1.0, 2.0, 4.0, 5.0, 5.0, 5.0, 5.0, 5.0]
    assert pace.interval_seconds(saving=True) == 5.0


def test_a_rate_wanted_below_the_floor_is_kept() -> None:
    """One reading in ten seconds, asked for, is not made more by the floor."""
    pace = Pace(0.1, 0.1)
    pace.note_tick(SLOW_CALLS)
    assert pace.interval_seconds(saving=False) == 10.0


def test_one_slow_call_among_many_is_no_reason() -> None:
    """The 95th percentile of 24 calls is the second slowest: a single one does not count."""
    pace = Pace(2.0, 5.0)
    pace.note_tick([0.001] * 23 + [1.0])
    assert pace.interval_seconds(saving=False) == 0.5
    pace.note_tick([0.001] * 22 + [1.0] * 2)
    assert pace.interval_seconds(saving=False) == 1.0


def test_ten_calm_ticks_double_the_rate_again() -> None:
    """It comes back a step at a time, and ticks neither slow nor calm begin the count anew."""
    pace = Pace(2.0, 5.0)
    for _ in range(2):
        pace.note_tick(SLOW_CALLS)
    for _ in range(9):
        pace.note_tick(FAST_CALLS)
    pace.note_tick([0.015] * 24)
    for _ in range(9):
        pace.note_tick(FAST_CALLS)
    assert pace.interval_seconds(saving=False) == 2.0
    pace.note_tick(FAST_CALLS)
    assert pace.interval_seconds(saving=False) == 1.0
    for _ in range(10):
        pace.note_tick(FAST_CALLS)
    assert pace.interval_seconds(saving=False) == 0.5


@pytest.mark.parametrize(
    ("values", "expected"),
    [([], 0.0), ([3.0], 3.0), ([1.0, 2.0], 2.0), (list(range(1, 101)), 95), (list(range(1, 21)), 19)],
)
def test_the_95th_percentile_is_a_value_that_occurred(values: list[float], expected: float) -> None:
    """Nearest rank: of 100 values the 95th, of 20 the 19th."""
    assert percentile_95(values) == expected


@pytest.mark.parametrize(
    ("seconds", "bucket"), [(0.0, 0), (1e-5, 0), (1.1e-5, 1), (0.02, 6), (5.0, 11), (5.1, 12)]
)
def test_an_edge_belongs_to_the_bucket_below_it(seconds: float, bucket: int) -> None:
    """As Prometheus counts: less than or equal."""
    assert bucket_of(seconds) == bucket


def test_call_times_are_handed_over_once() -> None:
    """What was taken is not counted again."""
    times = CallTimes()
    times.note(0.03)
    times.note(0.00001)
    assert times.tick == [0.03, 0.00001]
    counts, total = times.take()
    assert (counts[7], counts[0], sum(counts), len(counts)) == (1, 1, 2, len(CALL_BOUNDS_SECONDS) + 1)
    assert total == pytest.approx(0.03001)
    assert times.take() == ([0] * 13, 0.0)
    assert times.tick == []
