"""Quantiles and bootstrap intervals against values from tables and known distributions."""

from __future__ import annotations

import math
import random

import pytest

from ckpt_exporter.analysis.statistics import (
    interval,
    mean,
    median,
    quantile,
    ratio_interval,
    student_quantile,
)


def test_quantiles() -> None:
    """Quantiles are linear between the order statistics, whatever the order of the values."""
    assert quantile([4, 1, 3, 2], 0.5) == 2.5
    assert quantile([1, 2, 3, 4, 5], 0.95) == pytest.approx(4.8)
    assert (quantile([7], 0.95), quantile([1, 9], 0), quantile([1, 9], 1)) == (7, 1, 9)
    with pytest.raises(ValueError, match="no values"):
        quantile([], 0.5)


@pytest.mark.parametrize(
    ("freedom", "expected"), [(1, 12.706), (2, 4.303), (4, 2.776), (9, 2.262), (30, 2.042), (100, 1.984)]
)
def test_student(freedom: int, expected: float) -> None:
    """Student's quantiles are those of the printed tables."""
    assert student_quantile(0.975, freedom) == pytest.approx(expected, abs=0.001)


def test_the_same_every_time() -> None:
    """The same values give the same interval, to the last digit."""
    values = [178.0, 181.0, 176.0, 179.5, 190.0]

    assert interval(values) == interval(values)


def test_one_value_has_no_interval() -> None:
    """One value alone says nothing about its spread."""
    assert interval([5.0]).low is None
    assert ratio_interval([5.0, 6.0], [2.0]).high is None


def test_no_spread_no_width() -> None:
    """Equal values have an interval of no width around the exact ratio."""
    found = ratio_interval([178.0] * 5, [94.0] * 5)

    assert (found.estimate, found.low, found.high) == (178 / 94,) * 3


def test_mean_interval_is_students() -> None:
    """For many near-normal values the interval of the mean is mean +- t s / sqrt(n)."""
    rng = random.Random(7)
    values = [rng.gauss(100, 10) for _ in range(40)]
    middle = sum(values) / 40
    half = 2.0227 * math.sqrt(sum((v - middle) ** 2 for v in values) / 39 / 40)
    found = interval(values, mean)

    assert found.low == pytest.approx(middle - half, abs=0.2 * half)
    assert found.high == pytest.approx(middle + half, abs=0.2 * half)


@pytest.mark.parametrize("statistic", [mean, median])
def test_five_saves_cover_the_truth(statistic: object) -> None:
    """With five saves an arm the true ratio is inside a 95 % interval nearly always."""
    rng = random.Random(11)
    inside = 0
    for _ in range(30):
        slow = [178 * rng.lognormvariate(0, 0.1) for _ in range(5)]
        fast = [94 * rng.lognormvariate(0, 0.1) for _ in range(5)]
        found = ratio_interval(slow, fast, statistic)  # type: ignore[arg-type]
        assert found.low is not None
        assert found.high is not None
        inside += found.low <= 178 / 94 <= found.high

    assert inside >= 26
