"""Saves that a node only waits for, from Prometheus: when they ended, and which node wrote them; pure."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ckpt_exporter.history.records import ELSEWHERE, SaveRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# The end of a save is seen on other nodes within some seconds, and their clocks agree to a second or so.
_APART_SECONDS: Final = 60.0


def made_elsewhere(node: str, directory: str, end_unix: float) -> SaveRecord:
    """Return what a node that only waits knows of a save: when it ended, and later what it cost there."""
    return SaveRecord(
        node=node, directory=directory, path=directory, layout="", result="complete",
        start_unix=end_unix, end_unix=end_unix, bytes=0, files=0, notes=(ELSEWHERE,),
    )  # fmt: skip


def with_figure(save: SaveRecord) -> SaveRecord:
    """Give a save made elsewhere its bubble: no gauge tells it, but its phases add up to it."""
    if not save.elsewhere or not save.bubble_phases:
        return save
    return replace(save, bubble_seconds=sum(save.bubble_phases.values()))


def told_by_writers(saves: Sequence[SaveRecord]) -> Iterator[SaveRecord]:
    """Give saves made elsewhere the step, start and run that the node that wrote them tells.

    It is the one whose save in a directory of that name, best at the same place, ended nearest; each is taken
    once by a node. Saves that no node in Prometheus wrote stay as they are.
    """
    written: dict[str, list[SaveRecord]] = {}
    for save in sorted(saves, key=lambda save: save.end_unix):
        if not save.elsewhere:
            written.setdefault(save.directory, []).append(save)
    seen = [save for save in saves if save.elsewhere]
    pairs = sorted(pair for number, save in enumerate(seen) for pair in _pairs(number, save, written))
    found: dict[int, SaveRecord] = {}
    taken: set[tuple[str, str, int]] = set()
    for _, _, number, at in pairs:
        save = seen[number]
        if number not in found and (save.node, save.directory, at) not in taken:
            taken.add((save.node, save.directory, at))
            found[number] = written[save.directory][at]
    yield from (save for save in saves if not save.elsewhere)
    yield from (_told(save, found[n]) if n in found else save for n, save in enumerate(seen))


def _pairs(
    number: int, seen: SaveRecord, written: dict[str, list[SaveRecord]]
) -> Iterator[tuple[int, float, int, int]]:
    """Yield (how unlike the places are, seconds apart, number, place in ``written``) of what may be it."""
    others = written.get(seen.directory, [])
    first = bisect_left(others, seen.end_unix - _APART_SECONDS, key=lambda save: save.end_unix)
    for at in range(first, len(others)):
        own = others[at]
        if own.end_unix > seen.end_unix + _APART_SECONDS:
            return
        if own.node != seen.node:
            # One file server may have several addresses, and be mounted in several places: no condition.
            unlike = (own.path != seen.path) + (own.device != seen.device)
            yield unlike, abs(own.end_unix - seen.end_unix), number, at


def _told(seen: SaveRecord, own: SaveRecord) -> SaveRecord:
    return replace(
        seen, step=own.step, path=own.path, start_unix=own.start_unix, end_unix=own.end_unix, run=own.run,
        run_id=own.run_id, scheduler=own.scheduler,
    )  # fmt: skip
