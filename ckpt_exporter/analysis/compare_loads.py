"""Loads of two arms side by side: only what came from storage says anything of storage; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ckpt_exporter.analysis.loads import FROM_STORAGE
from ckpt_exporter.analysis.numbers import counted, percent_text, plain, size_text
from ckpt_exporter.analysis.quantities import MIN_SAMPLES, Quantity, quantity
from ckpt_exporter.analysis.statistics import median

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ckpt_exporter.history.records import LoadRecord

# Loads of one model differ by little.
_SIZE_TOLERANCE: Final = 0.05


@dataclass(frozen=True, slots=True)
class LoadArm:
    """The loads of one arm, each node's its own. ``from_storage`` are those with hardly anything cached.

    ``cached`` counts those of which more came from the page cache, ``unknown`` those of which that is not
    known: both are left out.
    """

    name: str
    loads: tuple[LoadRecord, ...]

    @property
    def from_storage(self) -> tuple[LoadRecord, ...]:
        """Loads whose bandwidth is the storage's, to about a tenth."""
        return tuple(
            load for load in self.loads if load.cached_ratio is not None and load.cached_ratio < FROM_STORAGE
        )

    @property
    def cached(self) -> int:
        """Count loads that came from the page cache in part or in whole."""
        return sum(load.cached_ratio is not None for load in self.loads) - len(self.from_storage)

    @property
    def unknown(self) -> int:
        """Count loads of which it is not known how much was cached."""
        return sum(load.cached_ratio is None for load in self.loads)

    @property
    def median_bytes(self) -> float | None:
        """Unique bytes of a load from storage."""
        return median([float(load.bytes) for load in self.from_storage]) if self.from_storage else None


@dataclass(frozen=True, slots=True)
class LoadComparison:
    """Both arms, duration and bandwidth of their loads from storage, and what limits what they mean."""

    baseline: LoadArm
    candidate: LoadArm
    duration: Quantity
    bandwidth: Quantity
    warnings: tuple[str, ...]

    @property
    def like_sized(self) -> bool:
        """Tell whether loads of both arms are of one size, so that durations can be compared."""
        sizes = [self.baseline.median_bytes, self.candidate.median_bytes]
        return None not in sizes and not _differ(*(size or 0.0 for size in sizes))


def compare_loads(baseline: Sequence[LoadRecord], candidate: Sequence[LoadRecord]) -> LoadComparison | None:
    """Compare the loads of two arms; None where neither has any."""
    if not baseline and not candidate:
        return None
    arms = (LoadArm("baseline", tuple(baseline)), LoadArm("candidate", tuple(candidate)))
    durations = [[load.duration_seconds for load in arm.from_storage] for arm in arms]
    speeds = [[speed for load in arm.from_storage if (speed := load.bandwidth) is not None] for arm in arms]
    return LoadComparison(
        *arms,
        quantity("load_duration_seconds", "seconds", *durations),
        quantity("load_storage_bandwidth", "bytes_per_second", *speeds),
        tuple(_warnings(*arms)),
    )


def _warnings(baseline: LoadArm, candidate: LoadArm) -> Iterator[str]:
    for arm in (baseline, candidate):
        yield from _left_out(arm)
    if not baseline.from_storage or not candidate.from_storage:
        return
    sizes = [arm.median_bytes or 0.0 for arm in (baseline, candidate)]
    if _differ(*sizes):
        yield (
            f"Loads differ in size ({size_text(sizes[0])} against {size_text(sizes[1])}): "
            "compare bandwidths, not durations."
        )
    readers = [
        median([float(load.readers) for load in arm.from_storage if load.readers is not None] or [0.0])
        for arm in (baseline, candidate)
    ]
    if readers[0] and readers[1] and readers[0] != readers[1]:
        yield f"Loads differ in readers of a file ({plain(readers[0])} against {plain(readers[1])})."
    places = [
        {(load.node, load.mountpoint, load.device) for load in arm.from_storage if load.mountpoint}
        for arm in (baseline, candidate)
    ]
    if places[0] and places[0] == places[1]:
        yield "Loads of both arms are from the same mount: this compares times or runs, not storages."
    seen = {(load.node, load.path, load.start_unix) for load in baseline.from_storage}
    both = sum((load.node, load.path, load.start_unix) in seen for load in candidate.from_storage)
    if both:
        yield f"{counted(both, 'load')} in both arms: choose windows or runs that do not overlap."


def _left_out(arm: LoadArm) -> Iterator[str]:
    left = []
    if arm.cached:
        left.append(
            f"{plain(arm.cached)} came to {percent_text(FROM_STORAGE, 0)} or more from the page cache"
        )
    if arm.unknown:
        left.append(f"of {plain(arm.unknown)} it is not known how much was cached")
    if left:
        out = plain(arm.cached + arm.unknown)
        yield (
            f"Left out of {counted(len(arm.loads), 'load')} of the {arm.name}: {out}, since that does not "
            f"tell how fast its storage reads ({' and '.join(left)})."
        )
    if len(arm.from_storage) < MIN_SAMPLES:
        yield (
            f"The {arm.name} has {counted(len(arm.from_storage), 'load')} from storage; "
            f"below {MIN_SAMPLES} there is no verdict on loads."
        )


def _differ(one: float, other: float) -> bool:
    return min(one, other) <= 0 or max(one, other) / min(one, other) - 1 > _SIZE_TOLERANCE
