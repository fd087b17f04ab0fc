"""Numbers as people read them: the same in every locale, in SI units, rounded for the eye only."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from typing import Final

UNKNOWN: Final = "-"
_SIZES: Final = ((1e18, "EB"), (1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def plain(value: float | None, decimals: int = 0) -> str:
    """Write a number with thousands separated; ``-`` where it is unknown."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    text = f"{value:,.{decimals}f}"
    return text[1:] if text.startswith("-") and not text.strip("-0.,") else text  # no "-0"


def significant(value: float | None, digits: int = 3) -> str:
    """Write a number with at least so many significant digits, and never fewer before the point."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}")))))
    return plain(value, decimals)


def seconds_text(value: float | None) -> str:
    """Write a duration in seconds: to the second from 1,000 on, to three digits below."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{significant(value) if abs(value) < 1000 else plain(value)} s"


def duration_text(value: float | None) -> str:
    """Write a long duration in the unit that suits it (seconds, minutes, hours, days)."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    for size, unit in ((172_800.0, "days"), (5_400.0, "h"), (120.0, "min")):
        if abs(value) >= size:
            return f"{significant(value / {'days': 86_400.0, 'h': 3_600.0, 'min': 60.0}[unit])} {unit}"
    return seconds_text(value)


def size_text(value: float | None) -> str:
    """Write bytes with a decimal prefix (1 GB = 1,000,000,000 bytes)."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    for size, unit in _SIZES:
        if abs(value) >= size * 0.9995:
            return f"{significant(value / size)} {unit}"
    return f"{plain(value)} B"


def bandwidth_text(value: float | None) -> str:
    """Write bytes per second with a decimal prefix."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    # The unit people compare storage in, as far down as it is readable.
    return f"{significant(value / 1e9)} GB/s" if 1e8 <= value < 1e11 else f"{size_text(value)}/s"


def bandwidth_unit(values: list[float]) -> tuple[float, str]:
    """Return by what to divide bandwidths for one axis, and the unit that makes."""
    return (1e9, "GB/s") if max(values, default=0.0) >= 1e8 else (1e6, "MB/s")


def count_text(value: float | None) -> str:
    """Write a count: whole where it is."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return plain(value) if abs(value - round(value)) < 1e-6 * max(1.0, abs(value)) else significant(value)


def percent_text(ratio: float | None, decimals: int = 2) -> str:
    """Write a ratio as a percentage."""
    return UNKNOWN if ratio is None or not math.isfinite(ratio) else f"{plain(ratio * 100, decimals)} %"


def counted(number: int, noun: str) -> str:
    """Write a number of things, one or several."""
    return f"{plain(number)} {noun}{'' if number == 1 else 's'}"


def factor_text(value: float | None) -> str:
    """Write a factor, such as x1.89."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"x{significant(value)}"


def time_text(unix: float | None) -> str:
    """Write a moment in UTC, to the second."""
    if unix is None or not math.isfinite(unix):
        return UNKNOWN
    return datetime.fromtimestamp(unix, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
