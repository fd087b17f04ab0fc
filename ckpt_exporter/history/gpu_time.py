"""How long each GPU was observed, hour by hour: the denominator of a bubble share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ckpt_exporter.history.records import GpuTimeRecord
from ckpt_exporter.history.rows import CAUSES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ckpt_exporter.model import GpuStatus, StallCause

HOUR_SECONDS: Final = 3600
# Hours that wait for a file that cannot be written; 64 GPUs fill it in a day.
MAX_WAITING: Final = 1536


@dataclass(frozen=True, slots=True)
class _Reading:
    t: float
    observed_seconds: float
    stall_seconds: dict[str, float]


class GpuHours:
    """Turn the growing counters of the GPUs into seconds by hour. All were 0 at ``started`` (monotonic)."""

    def __init__(self, node: str, started: float) -> None:
        self._node = node
        self._started = started
        self._last: dict[str, _Reading] = {}
        self._waiting: dict[tuple[str, int], GpuTimeRecord] = {}
        self._uuids: dict[int, set[str]] = {}
        self.dropped = 0

    def read(self, statuses: Iterable[GpuStatus], t: float, unix_minus_t: float) -> None:
        """Take in the counters as they are now; what grew is spread evenly over the time since the last."""
        self._uuids = {}
        for status in statuses:
            self._uuids.setdefault(status.info.gpu, set()).add(status.info.uuid)
            now = _Reading(t, status.observed_seconds, dict(status.stall_seconds))
            before = self._last.get(status.info.uuid)
            if before is None or now.observed_seconds < before.observed_seconds:
                before = _Reading(before.t if before else self._started, 0.0, {})
            self._last[status.info.uuid] = now
            self._add(status, before, now, unix_minus_t)

    def _add(self, status: GpuStatus, before: _Reading, now: _Reading, unix_minus_t: float) -> None:
        observed = now.observed_seconds - before.observed_seconds
        stalls: dict[StallCause, float] = {
            cause: max(0.0, now.stall_seconds.get(cause, 0.0) - before.stall_seconds.get(cause, 0.0))
            for cause in CAUSES
        }
        if observed <= 0 and not any(stalls.values()):
            return
        # Both moments by today's clock: one that was set in between moves no seconds far.
        for hour, share in _hours(before.t + unix_minus_t, now.t + unix_minus_t):
            part = {cause: seconds * share for cause, seconds in stalls.items() if seconds}
            info = status.info
            self._keep(GpuTimeRecord(self._node, info.gpu, info.uuid, hour, observed * share, part))

    def _keep(self, added: GpuTimeRecord) -> None:
        key = (added.uuid, added.hour_unix)
        known = self._waiting.pop(key, None)
        if known is not None:
            causes = {*known.stall_seconds, *added.stall_seconds}
            stalls = {c: known.stall_seconds.get(c, 0.0) + added.stall_seconds.get(c, 0.0) for c in causes}
            observed = known.observed_seconds + added.observed_seconds
            added = replace(added, observed_seconds=observed, stall_seconds=stalls)
        self._waiting[key] = added
        if len(self._waiting) > MAX_WAITING:
            del self._waiting[next(iter(self._waiting))]
            self.dropped += 1

    def uuid_of(self, gpu: int) -> str | None:
        """Return which GPU had an index when last read; None where none had it, or several."""
        uuids = self._uuids.get(gpu, set())
        return next(iter(uuids)) if len(uuids) == 1 else None

    @property
    def waiting(self) -> tuple[GpuTimeRecord, ...]:
        """What has not been written yet."""
        return tuple(self._waiting.values())

    def written(self) -> None:
        """Forget what is written by now."""
        self._waiting.clear()


def _hours(begin: float, end: float) -> Iterator[tuple[int, float]]:
    """Yield (start of an hour, share of the time between two moments that lies in it)."""
    hour = int(begin // HOUR_SECONDS) * HOUR_SECONDS
    length = end - begin
    if length <= 0:
        yield int(end // HOUR_SECONDS) * HOUR_SECONDS, 1.0
        return
    while hour < end:
        inside = min(end, hour + HOUR_SECONDS) - max(begin, hour)
        if inside > 0:
            yield hour, inside / length
        hour += HOUR_SECONDS
