"""Where the ticks of an axis stand and what they say."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from itertools import pairwise
from typing import Final

from ckpt_exporter.analysis.numbers import plain

_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
_TIME_STEPS: Final = (
    1, 2, 5, 10, 15, 30, _MINUTE, 2 * _MINUTE, 5 * _MINUTE, 10 * _MINUTE, 15 * _MINUTE, 30 * _MINUTE,
    _HOUR, 2 * _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR, _DAY, 2 * _DAY, 7 * _DAY, 14 * _DAY, 30 * _DAY,
    90 * _DAY, 365 * _DAY,
)  # fmt: skip


def number_ticks(low: float, high: float, count: int = 5, *, whole: bool = False) -> tuple[float, ...]:
    """Return about ``count`` round numbers (``whole`` ones) that span ``low`` to ``high``, both included."""
    if high <= low:
        high = low + (abs(low) or 1.0)
    rough = (high - low) / count
    size = 10.0 ** math.floor(math.log10(rough))
    factors = (1, 2, 5, 10) if whole else (1, 2, 2.5, 5, 10)
    step = next(size * factor for factor in factors if size * factor >= rough * 0.999)
    step = max(1.0, step) if whole else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return tuple(index * step for index in range(first, last + 1))


def time_ticks(low: float, high: float, count: int = 6) -> tuple[float, ...]:
    """Return round moments (UTC) inside ``low`` to ``high``, in Unix seconds."""
    rough = max(high - low, 1.0) / count
    step = next((step for step in _TIME_STEPS if step >= rough), _TIME_STEPS[-1])
    return tuple(float(index * step) for index in range(math.ceil(low / step), math.floor(high / step) + 1))


def tick_text(value: float, ticks: tuple[float, ...]) -> str:
    """Write a tick with as many decimals as tell it from its neighbours."""
    step = min((abs(b - a) for a, b in pairwise(ticks)), default=1.0)
    for decimals in range(10):
        if abs(round(step, decimals) - step) < step * 1e-6:
            return plain(value, decimals)
    return f"{value:.3g}"


def time_tick_text(value: float, ticks: tuple[float, ...]) -> str:
    """Write a moment as far as the ticks around it differ."""
    step = min((b - a for a, b in pairwise(ticks)), default=float(_DAY))
    moment = datetime.fromtimestamp(value, tz=timezone.utc)
    if step >= _DAY:
        return moment.strftime("%Y-%m-%d")
    return moment.strftime("%m-%d %H:%M" if step >= _MINUTE else "%H:%M:%S")
