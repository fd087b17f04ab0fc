"""Which shards, ranks and nodes a save waits for: those that end long after all the others have."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ckpt_exporter.analysis.job_saves import JobSave
    from ckpt_exporter.history.records import SaveRecord

# Smaller files beside the data (settings, tokenizer, state of the trainer) are written last on purpose.
MAIN_SHARE: Final = 0.1
# A lead below both is how ranks end anyway.
WAIT_SECONDS: Final = 1.0
WAIT_SHARE: Final = 0.05

_RANK: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"__(\d+)_\d+\.distcp",
        r"zero_pp_rank_(\d+)_mp_rank_\d+",
        r"(?:^|[^a-z])mp_rank_(\d+)",
        r"(?:^|[^a-z])rank[_-]?(\d+)",
        r"process_(\d+)",
    )
)


@dataclass(frozen=True, slots=True)
class Wait:
    """One save and the one part of it that ended last, ``seconds`` after every other part."""

    save: JobSave
    who: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Straggler:
    """A shard, rank or node for which saves waited: in how many of them it was last, and for how long."""

    who: str
    saves: int
    examined: int
    waited_seconds: float


def waits_for_shards(saves: Iterable[JobSave]) -> tuple[list[Wait], int]:
    """Return the saves that waited for one shard or rank, and how many could be examined."""
    return _waits((save, _shard_ends(save)) for save in saves)


def waits_for_nodes(saves: Iterable[JobSave]) -> tuple[list[Wait], int]:
    """Return the saves that waited for one node, and how many could be examined.

    Their clocks must agree; seconds are only as good as that.
    """
    return _waits((save, {record.node: record.end_unix for record in save.written}) for save in saves)


def stragglers(waits: Sequence[Wait], examined: int) -> tuple[Straggler, ...]:
    """Sum up by whom saves waited for, longest first."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for wait in waits:
        seconds[wait.who].append(wait.seconds)
    found = (Straggler(who, len(each), examined, sum(each)) for who, each in seconds.items())
    return tuple(sorted(found, key=lambda straggler: (-straggler.waited_seconds, straggler.who)))


def _waits(parts: Iterable[tuple[JobSave, dict[str, float]]]) -> tuple[list[Wait], int]:
    waits, examined = [], 0
    for save, ends in parts:
        if len(ends) < 2:
            continue
        examined += 1
        (before, _), (last, who) = sorted((end, name) for name, end in ends.items())[-2:]
        if last - before >= max(WAIT_SECONDS, WAIT_SHARE * (save.duration_seconds or 0.0)):
            waits.append(Wait(save, who, last - before))
    return waits, examined


def _shard_ends(save: JobSave) -> dict[str, float]:
    ends: dict[str, float] = {}
    for record in save.records:
        largest = max((shard.bytes for shard in record.shards), default=0)
        for shard in record.shards:
            if shard.end_unix is not None and shard.bytes >= MAIN_SHARE * largest:
                who = owner(shard.name, record)
                ends[who] = max(ends.get(who, shard.end_unix), shard.end_unix)
    return ends


def owner(name: str, record: SaveRecord) -> str:
    """Name the rank that a shard's name tells, else the shard, alike in every save: its step is ``N``."""
    for pattern in _RANK:
        if found := pattern.search(name):
            return f"rank {int(found[1])}"
    if record.step is None:
        return name
    return re.sub(rf"(?<!\d)0*{record.step}(?!\d)", "N", name)
