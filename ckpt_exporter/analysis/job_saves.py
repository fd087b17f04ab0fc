"""Saves of a job: what several nodes wrote of one step is one save."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ckpt_exporter.analysis.statistics import mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ckpt_exporter.history.records import SaveRecord

# Nodes begin a save together, and their clocks agree to a second or so.
_APART_SECONDS: Final = 60.0
# These give each node's part of a job (a pod, a unit) an id of its own.
_AN_ID_A_NODE: Final = frozenset({"kubernetes", "systemd"})
# So many jobs may write the same step of the same directory's name at the same time.
_MOST_AT_ONCE: Final = 7


@dataclass(frozen=True, slots=True)
class JobSave:
    """One save of a job over all its nodes; None is unknown.

    It takes as long as its slowest node (``duration_seconds``, ``active_seconds``), and is as fast as the
    slowest node is (bandwidths, bytes per second): the other ranks wait. Bytes and files are summed.
    ``bubble_seconds`` is the mean over all GPUs of all nodes. A node that wrote nothing of it and only saw it
    made elsewhere takes part by its bubble alone.
    """

    records: tuple[SaveRecord, ...]

    @property
    def written(self) -> tuple[SaveRecord, ...]:
        """The parts of the nodes that wrote; where none of them told, what the others saw."""
        return tuple(record for record in self.records if not record.elsewhere) or self.records

    @property
    def seen_only(self) -> bool:
        """True where no record is of a node that wrote: its size and its duration are not known."""
        return all(record.elsewhere for record in self.records)

    @property
    def complete(self) -> bool:
        """True where every node's part is."""
        return all(record.result == "complete" for record in self.written)

    @property
    def start_unix(self) -> float:
        """First write-open on any node."""
        return min(record.start_unix for record in self.written)

    @property
    def end_unix(self) -> float:
        """Last commit on any node."""
        return max(record.end_unix for record in self.written)

    @property
    def step(self) -> int | None:
        """Training step."""
        return self.records[0].step

    @property
    def layout(self) -> str:
        """Framework's layout."""
        return self.written[0].layout

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes that wrote."""
        return tuple(sorted(record.node for record in self.written))

    @property
    def bytes(self) -> int:
        """Logical bytes of the checkpoint."""
        return sum(record.bytes for record in self.written)

    @property
    def files(self) -> int:
        """Files of the checkpoint."""
        return sum(record.files for record in self.written)

    @property
    def written_bytes(self) -> int | None:
        """Bytes seen arriving."""
        known = [record.written_bytes for record in self.written if record.written_bytes is not None]
        return sum(known) if len(known) == len(self.written) else None

    @property
    def duration_seconds(self) -> float | None:
        """Duration on the slowest node."""
        return _extreme(max, [record.duration_seconds for record in self.written])

    @property
    def active_seconds(self) -> float | None:
        """Time in which bytes flowed, on the node where that was longest."""
        return _extreme(max, [record.active_seconds for record in self.written])

    @property
    def average_bandwidth(self) -> float | None:
        """Of the slowest node."""
        return _extreme(min, [record.average_bandwidth for record in self.written])

    @property
    def sustained_bandwidth(self) -> float | None:
        """Of the slowest node."""
        return _extreme(min, [record.sustained_bandwidth for record in self.written])

    @property
    def peak_bandwidth(self) -> float | None:
        """Of the slowest node."""
        return _extreme(min, [record.peak_bandwidth for record in self.written])

    @property
    def gpus(self) -> int | None:
        """GPUs that had a bubble figure."""
        count = sum(len(record.bubble_gpu_seconds) for record in self.records)
        return count or None

    @property
    def bubble_seconds(self) -> float | None:
        """Mean over the job's GPUs; a node without a figure is left out, unless none has one."""
        seconds = [s for record in self.records for s in record.bubble_gpu_seconds.values()]
        if seconds:
            return mean(seconds)
        means = [r.bubble_seconds for r in self.records if r.bubble_seconds is not None]
        return mean(means) if means else None

    @property
    def writing_bubble_seconds(self) -> float | None:
        """Part of the bubble in which bytes flowed."""
        known = [r.bubble_phases["writing"] for r in self.records if "writing" in r.bubble_phases]
        return mean(known) if known else None

    @property
    def drag_seconds(self) -> float | None:
        """Mean over GPUs of the seconds by which the save slowed training without stopping it."""
        seconds = [s for record in self.records for s in record.drag_gpu_seconds.values()]
        gpus = self.gpus or len(seconds)
        return sum(seconds) / gpus if gpus else None


def _extreme(choose: Callable[[list[float]], float], values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return choose(known) if known else None


def job_saves(records: Iterable[SaveRecord]) -> tuple[JobSave, ...]:
    """Join what several nodes wrote of one checkpoint at about the same time; in the order of their ends."""
    groups: list[list[SaveRecord]] = []
    recent: dict[tuple[object, ...], list[list[SaveRecord]]] = {}
    for record in sorted(records, key=lambda r: (r.start_unix, r.end_unix)):
        key = (record.directory, record.step, record.path if record.step is None else None)
        candidates = recent.setdefault(key, [])
        group = next((each for each in candidates if _together(each, record)), None)
        if group is None:
            group = []
            groups.append(group)
            recent[key] = [*candidates[-_MOST_AT_ONCE:], group]
        group.append(record)
    return tuple(sorted((JobSave(tuple(group)) for group in groups), key=lambda s: s.end_unix))


def _together(group: list[SaveRecord], record: SaveRecord) -> bool:
    if any(other.node == record.node for other in group):
        return False
    jobs = {job for each in (*group, record) if (job := _job(each)) is not None}
    if len(jobs) > 1:
        return False
    return record.start_unix <= max(other.end_unix for other in group) + _APART_SECONDS


def _job(record: SaveRecord) -> str | None:
    """Return what tells a job from others on every node; None where it is not known."""
    return None if record.scheduler in _AN_ID_A_NODE else record.run_id
