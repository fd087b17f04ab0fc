"""What the reader makes of single values; the rest is tested with a library under it."""

from __future__ import annotations

import math

import pytest

from ckpt_exporter.sources.nvml_gpu import power_usage_window, share


@pytest.mark.parametrize(
    ("architecture", "name", "seconds"),
    [
        (9, "NVIDIA H100 80GB HBM3", 1.0),
        (7, "NVIDIA A10G", 1.0),
        (7, "NVIDIA RTX A3000 Laptop GPU", 1.0),
        (7, "NVIDIA A100-SXM4-80GB", 0.0),
        (7, "NVIDIA A100X", 0.0),
        (7, "NVIDIA A30", 0.0),
        (7, "NVIDIA A800-SXM4-80GB", 0.0),
        (7, "GRID A100D-10C", 0.0),
        (6, "Tesla T4", 0.0),
        (5, "Tesla V100-SXM2-16GB", 0.0),
        (10, "NVIDIA B200", 1.0),
    ],
)
def test_the_window_of_the_plain_power_reading(architecture: int, name: str, seconds: float) -> None:
    """Averaged over a second on Ampere and later, but for the GA100 chip; instantaneous before."""
    assert power_usage_window(architecture, name) == seconds


@pytest.mark.parametrize(
    ("percent", "expected"),
    [(0, 0.0), (92, 0.92), (100, 1.0), (100.4, 1.0), (math.nan, None), (math.inf, None), (-1, None)],
)
def test_percent_becomes_a_share_or_nothing(percent: float, expected: float | None) -> None:
    """Never above 1; what is no share is absent."""
    assert share(percent) == expected
