"""How a save ended: complete, incomplete or aborted, by its commit and by what earlier saves looked like."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

from ckpt_exporter.detect.inventory import Inventory
from ckpt_exporter.detect.layouts import SHARDED_COMMIT, SHARDED_DATA, is_temporary, locate, parent_of
from ckpt_exporter.detect.progress import SaveInProgress
from ckpt_exporter.model import DetectSettings, SaveResult, Space

MAX_PLACES = 256
MAX_COMPONENTS = 1000
# A file this much smaller than in the save before is cut short, not a slightly different model.
TRUNCATED_SHARE = 0.9
# A part of a checkpoint at least this large is one of its main files.
MAIN_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class _Shape:
    key: str
    sizes: dict[str, int]


class EarlierSaves:
    """What the last complete save of each place looked like, and whether saves there use a marker."""

    def __init__(self) -> None:
        self._shapes: OrderedDict[tuple[str, str], _Shape] = OrderedDict()
        self._markers: OrderedDict[tuple[str, str], bool] = OrderedDict()

    def add(self, save: SaveInProgress) -> None:
        """Remember a complete save."""
        place = (save.holder, save.layout)
        if save.late_of is None:
            self._shapes[place] = _Shape(save.key, _sizes(save))
        if save.rules.need != "none" and not save.adds:
            self._markers[place] = save.marker_at is not None or self._markers.get(place, False)
        for bounded in (self._shapes, self._markers):
            while len(bounded) > MAX_PLACES:
                bounded.popitem(last=False)

    def uses_marker(self, save: SaveInProgress) -> bool | None:
        """Tell whether saves of this place and layout come with their marker; None if not yet known."""
        return self._markers.get((save.holder, save.layout))

    def owes_marker(self, save: SaveInProgress) -> bool:
        """Tell whether a save has no sign of the commit that saves of its place and layout come with.

        What there is of it, such as weights alone, may be a model that was saved by hand; but not beside
        others of a training that writes its marker last.
        """
        return save.unproven and save.rules.need == "required" and bool(self.uses_marker(save))

    def cut_short(self, save: SaveInProgress) -> bool:
        """Tell whether a save ends well before the same files of the save before it.

        Writers that lived after their last close were not killed while writing: what they wrote is what they
        meant. Of writers that are known to have ended a shorter file is enough, of unknown ones files must be
        missing as well: a smaller model is no fault.
        """
        before = self._shapes.get((save.holder, save.layout))
        if before is None or save.closed_by_living:
            return False
        sizes = _sizes(save)
        total = sum(before.sizes.values())
        shorter = any(
            size < TRUNCATED_SHARE * before.sizes.get(name, 0) and before.sizes[name] >= MAIN_SHARE * total
            for name, size in sizes.items()
        )
        missing = sizes.keys() < before.sizes.keys()
        if save.writers_alive is False:
            return shorter or missing
        return missing and before.key != save.key and sum(sizes.values()) < TRUNCATED_SHARE * total


def _sizes(save: SaveInProgress) -> dict[str, int]:
    # Numbers differ from save to save (steps) and must not make two names different.
    sizes: dict[str, int] = {}
    for record in list(save.files.values())[:MAX_COMPONENTS]:
        if not record.sidecar:
            name = save.component(record.path)
            step = "" if save.step is None else str(save.step)
            normal = re.sub(rf"(?<!\d)0*{step}(?!\d)", "N", name) if step else name
            sizes[normal] = sizes.get(normal, 0) + record.size
    return sizes


def judge(
    save: SaveInProgress, earlier: EarlierSaves, space: Space | None, *, aborted: bool = False
) -> tuple[SaveResult, str | None]:
    """Decide the result of a save that has ended, and the reason if it is not complete."""
    if aborted:
        return "aborted", "files_removed"
    if save.open_files:
        return "incomplete", "no_close"
    missing = _missing_commit(save, earlier)
    if missing is not None:
        return "incomplete", missing
    if save.marker_at is None and save.published_at is None:
        if space is not None and space.available <= 0 and space.t >= save.start:
            return "incomplete", "disk_full"
        if earlier.cut_short(save):
            return "incomplete", "truncated"
    return "complete", None


def _missing_commit(save: SaveInProgress, earlier: EarlierSaves) -> str | None:
    reason, required = save.unmet()
    if reason is not None and (required or earlier.uses_marker(save)):
        return reason
    died = save.unproven and save.cut_off and earlier.uses_marker(save) is not False
    return "no_commit" if died or earlier.owes_marker(save) else None


def is_due(save: SaveInProgress, now: float, settings: DetectSettings, earlier: EarlierSaves) -> bool:
    """Tell whether a save has ended by ``now``."""
    settle = save.rules.settle_seconds if save.marker_at is not None else None
    soonest = settings.quiet_seconds if settle is None else min(settle, settings.quiet_seconds)
    if now < save.last_activity + soonest:
        return False  # the usual case, and cheap however many files the save has
    return now >= deadline(save, settings, earlier)


def deadline(save: SaveInProgress, settings: DetectSettings, earlier: EarlierSaves) -> float:
    """Return when a save ends if nothing more happens."""
    if save.open_files:
        latest = max(save.files[path].changed_at for path in save.open_paths)
        # Nobody said in all this time that a writer still holds it: its close was lost.
        return max(latest, save.last_activity) + settings.incomplete_seconds
    reason, required = save.unmet()
    if reason is not None and (required or earlier.uses_marker(save) is not False):
        return save.last_activity + settings.incomplete_seconds
    if earlier.owes_marker(save):
        return save.last_activity + settings.incomplete_seconds
    if reason is None and save.marker_at is not None and save.rules.settle_seconds is not None:
        return save.last_activity + min(settings.quiet_seconds, save.rules.settle_seconds)
    if save.named and not big_enough(save, settings):
        # The first small files of a checkpoint whose data is still to come.
        return save.last_activity + settings.incomplete_seconds
    return save.last_activity + settings.quiet_seconds


def big_enough(save: SaveInProgress, settings: DetectSettings) -> bool:
    """Tell whether a burst is a save: by its size, or by a layout's name together with its commit."""
    if save.bytes >= max(1, settings.min_bytes) or save.gone_unsized:
        return True
    committed = save.marker_at is not None or save.published_at is not None
    return save.named and committed and any(not record.sidecar for record in save.files.values())


def take_stock(inventory: Inventory, writing: Collection[str], settings: DetectSettings) -> None:
    """Decide which of the checkpoints found on disk are complete; ``writing`` holds the keys of open ones."""
    for key, unit in inventory.units():
        data = [path for path in unit.files if not is_temporary(path)]
        shards = {parent_of(path) for path in data if SHARDED_DATA.search(path)}
        commits = {parent_of(path) for path in data if SHARDED_COMMIT.search(path)}
        staged = any(found.staged for found in map(locate, data[:1]) if found is not None)
        big = unit.bytes >= max(1, settings.min_bytes)
        unit.complete = bool(data) and big and shards <= commits and not staged and key not in writing
