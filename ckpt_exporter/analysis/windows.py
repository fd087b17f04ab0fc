"""From when to when a part of the saves stands for training, and which GPU time goes with it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from ckpt_exporter.analysis.statistics import median
from ckpt_exporter.history.gpu_time import HOUR_SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckpt_exporter.history.records import GpuTimeRecord, SaveRecord


def part_window(saves: Sequence[SaveRecord], begin: float, end: float) -> tuple[float, float]:
    """Return the part of a window (Unix seconds) in which these saves were made, other saves left aside.

    It begins before the first save with as much training as lies between two of them (median), so that as
    many saves as intervals count, and ends with the last one.
    """
    ordered = sorted({(save.start_unix, save.end_unix) for save in saves})
    starts = [start for start, _ in ordered]
    gaps = [after - before_end for (_, before_end), (after, _) in pairwise(ordered) if after > before_end]
    lead = median(gaps) if gaps else 0.0
    return max(begin, starts[0] - lead), min(end, max(stop for _, stop in ordered))


def clipped(hour: GpuTimeRecord, begin: float, end: float) -> GpuTimeRecord | None:
    """Return not more of an hour than fits into the window, None where it lies outside."""
    inside = min(end, hour.hour_unix + HOUR_SECONDS) - max(begin, hour.hour_unix)
    if inside <= 0:
        return None
    if hour.observed_seconds <= inside:
        return hour
    share = inside / hour.observed_seconds
    stalls = {cause: seconds * share for cause, seconds in hour.stall_seconds.items()}
    return replace(hour, observed_seconds=inside, stall_seconds=stalls)


def of_stopped_gpus(hours: Sequence[GpuTimeRecord], saves: Sequence[SaveRecord]) -> tuple[GpuTimeRecord, ...]:
    """Return the time of the GPUs that these saves stopped: of all where no save says which."""
    stopped = {(save.node, gpu) for save in saves for gpu in save.bubble_gpu_seconds}
    return tuple(hour for hour in hours if not stopped or (hour.node, hour.gpu) in stopped)
