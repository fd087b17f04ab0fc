"""How saves change over a window: period by period, and its first half against its second."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from ckpt_exporter.analysis.statistics import median

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckpt_exporter.analysis.job_saves import JobSave
    from ckpt_exporter.history.records import Measurements

_HOUR: Final = 3600
_DAY: Final = 24 * _HOUR
_WEEK: Final = 7 * _DAY
# Longest window of each period, so that a table stays readable.
_PERIODS: Final = ((2 * _DAY, "hour", _HOUR), (62 * _DAY, "day", _DAY))
# 1970-01-05 was a Monday.
_MONDAY: Final = 4 * _DAY


def trend(measured: Measurements, jobs: Sequence[JobSave]) -> dict[str, Any]:
    """Return saves, median duration, bytes and bubble of each hour, day or week (UTC) that has a save.

    Durations and bytes are those of complete saves.
    """
    window = measured.until_unix - measured.since_unix
    name, length = next(((n, size) for most, n, size in _PERIODS if window <= most), ("week", _WEEK))
    saves: dict[int, list[JobSave]] = defaultdict(list)
    observed: dict[int, float] = defaultdict(float)
    for save in jobs:
        saves[_begin(save.end_unix, length)].append(save)
    for hour in measured.gpu_time:
        observed[_begin(hour.hour_unix, length)] += hour.observed_seconds
    periods = [_period(begin, saves[begin], observed.get(begin)) for begin in sorted(saves)]
    return {"by": name, "periods": periods, **_halves(jobs)}


def _begin(unix: float, length: int) -> int:
    offset = _MONDAY if length == _WEEK else 0
    return int((unix - offset) // length) * length + offset


def _period(begin: int, saves: list[JobSave], observed: float | None) -> dict[str, Any]:
    complete = [save for save in saves if save.complete]
    durations = [save.duration_seconds for save in complete if save.duration_seconds is not None]
    per_gpu = [seconds for save in saves for r in save.records for seconds in r.bubble_gpu_seconds.values()]
    lost = sum(per_gpu) if per_gpu else None
    return {
        "start_unix": begin, "saves": len(saves),
        "duration_median_seconds": median(durations) if durations else None,
        "bytes": sum(save.bytes for save in complete),
        "bubble_gpu_seconds": lost, "observed_gpu_seconds": observed,
        "bubble_share": lost / observed if lost is not None and observed else None,
    }  # fmt: skip


def _halves(jobs: Sequence[JobSave]) -> dict[str, Any]:
    """Compare the first and the second half of the complete saves; fewer than four a half say nothing."""
    complete = (save for save in jobs if save.complete)
    durations = [save.duration_seconds for save in complete if save.duration_seconds is not None]
    if len(durations) < 8:
        return {"first_half_median_seconds": None, "second_half_median_seconds": None, "change_ratio": None}
    half = len(durations) // 2
    first, second = median(durations[:half]), median(durations[-half:])
    return {
        "first_half_median_seconds": first, "second_half_median_seconds": second,
        "change_ratio": second / first - 1 if first > 0 else None,
    }  # fmt: skip
