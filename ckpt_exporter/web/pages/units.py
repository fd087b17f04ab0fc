"""Numbers as people read them; what is unknown says so."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TypeGuard

UNKNOWN = "unknown"
# Of more saves that are open at once the first are shown: the page must not grow with what a job makes.
SHOWN_OPEN_SAVES = 20

_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def size_text(size_bytes: float | None) -> str:
    """Return bytes with an SI prefix and three digits, as ``1.25 GB``."""
    return UNKNOWN if not _known(size_bytes) else _scaled(size_bytes, "B")


def bandwidth_text(bytes_per_second: float | None) -> str:
    """Return bytes per second with an SI prefix and three digits, as ``1.25 GB/s``.

    GB/s, the unit people compare storage in, reaches down to 0.1, as in the report.
    """
    if not _known(bytes_per_second):
        return UNKNOWN
    if 1e8 <= bytes_per_second < 999.5e6:
        return f"{bytes_per_second / 1e9:.3f} GB/s"
    return _scaled(bytes_per_second, "B/s")


def count_text(count: float | None) -> str:
    """Return a count with narrow spaces between thousands."""
    return UNKNOWN if not _known(count) else f"{count:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def duration_text(seconds: float | None) -> str:
    """Return seconds as ``850 ms``, ``1.58 s``, ``12.3 s``, ``2 min 58 s``, ``1 h 5 min`` or ``3 d 4 h``."""
    if _known(seconds) and 0.9995 <= seconds < 9.995:
        return f"{seconds:.2f} s"
    return age_text(seconds)


def age_text(seconds: float | None) -> str:
    """Return how long ago something was: as a duration, with no more digits than a glance needs."""
    if not _known(seconds):
        return UNKNOWN
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def gpu_seconds_text(gpu_seconds: float | None) -> str:
    """Return GPU-seconds as ``12.3 GPU-s`` up to 100, whole beyond that."""
    if not _known(gpu_seconds):
        return UNKNOWN
    if gpu_seconds < 99.95:
        return f"{gpu_seconds:.1f} GPU-s"
    return f"{count_text(round(gpu_seconds))} GPU-s"


def power_text(watts: float | None) -> str:
    """Return whole watts."""
    return UNKNOWN if not _known(watts) else f"{watts:.0f} W"


def time_text(unix: float) -> str:
    """Return a Unix time as a date and time in UTC; ``unknown`` when no calendar has it."""
    try:
        return datetime.fromtimestamp(unix, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return UNKNOWN


def clock_text(unix: float) -> str:
    """Return the time of day of a Unix time in UTC, as ``02:50:00``."""
    text = time_text(unix)
    return text if text == UNKNOWN else text[11:19]


def ratio_text(ratio: float | None) -> str:
    """Return a share of one in percent; only exactly all is 100 %."""
    if not _known(ratio):
        return UNKNOWN
    percent = ratio * 100
    return "100 %" if percent >= 100 else f"{min(percent, 99.9):.1f} %"


def share_text(ratio: float | None) -> str:
    """Return a share of GPU time in percent with two decimals, as the report gives it."""
    return UNKNOWN if not _known(ratio) else f"{ratio * 100:.2f} %"


def _known(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def _scaled(value: float, unit: str) -> str:
    index = 0
    # 999.5 would already be shown as 1000.
    while abs(value) >= 999.5 and index < len(_PREFIXES) - 1:
        value /= 1000
        index += 1
    digits = 0 if index == 0 or abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:.{digits}f} {_PREFIXES[index]}{unit}"
