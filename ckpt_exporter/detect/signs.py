"""Signs of commit: markers inside a checkpoint, pointers beside it, NeMo's file that goes away."""

from __future__ import annotations

from ckpt_exporter.detect import layouts
from ckpt_exporter.detect.grouping import OpenSaves
from ckpt_exporter.detect.inventory import Inventory
from ckpt_exporter.detect.progress import SaveInProgress

REPEATED_POINTER_SECONDS = 1.0
UNFINISHED = "-unfinished"


def note_sign(saves: OpenSaves, path: str, t: float) -> None:
    """Note that ``path`` was written, linked or renamed to at ``t``, if that means something to a save."""
    save = saves.by_path.get(path)
    if save is None:
        unit = layouts.locate(path, saves.layout)
        save = saves.by_key.get(unit.key) if unit is not None else None
    if save is None:
        _note_pointer(saves, path, t)
        return
    inside = save.rules.inside
    if inside is not None and inside.search(save.component(path)):
        save.mark(t)


def note_remote_commit(saves: OpenSaves, path: str) -> None:
    """Note that another host wrote what commits the shards beside it."""
    unit = layouts.locate(path, saves.layout)
    save = saves.by_key.get(unit.key) if unit is not None else None
    if save is not None and layouts.SHARDED_COMMIT.search(path):
        save.commit_elsewhere(layouts.parent_of(path))


def _note_pointer(saves: OpenSaves, path: str, t: float) -> None:
    parent, _, name = path.rpartition("/")
    beside = [s for s in saves.by_key.values() if parent in (s.holder, layouts.parent_of(s.key))]
    pointed = [s for s in beside if s.rules.beside is not None and s.rules.beside.search(name)]
    for save in _chosen(pointed, t):
        save.mark(t)
    if layouts.is_pointer(path):
        for save in beside:
            if save not in pointed:
                save.pointer_at = t


def _chosen(saves: list[SaveInProgress], t: float) -> list[SaveInProgress]:
    """Choose the save that a pointer beside it commits: which, only its content would say.

    It is one not yet pointed at, before others one whose files are all closed, and of these the one written
    last: an older one without its pointer was given up by its writer. Without any, a pointer written twice
    in a row belongs to the save it has just been written for.
    """
    unmarked = [save for save in saves if save.marker_at is None]
    if unmarked:
        return [min(unmarked, key=lambda save: (save.open_files > 0, -save.last_activity))]
    again = [s for s in saves if s.marker_at is not None and t - s.marker_at <= REPEATED_POINTER_SECONDS]
    return [max(again, key=lambda save: save.start)] if again else []


def begin_unfinished(saves: OpenSaves, inventory: Inventory, path: str, t: float) -> bool:
    """Take in NeMo's sibling file that stands while a checkpoint is written; False if ``path`` is none.

    The same file stands beside a checkpoint that is being deleted: then it announces no save.
    """
    if not path.endswith(UNFINISHED):
        return False
    unit = layouts.locate(path, saves.layout)
    if unit is None:
        return False
    if inventory.unit(unit.key) is None:
        save = saves.named(unit, path, t)
        save.unfinished = True
        save.touch(t)
    return True


def end_unfinished(saves: OpenSaves, path: str, t: float) -> None:
    """Take in that such a file was deleted: the checkpoint beside it is committed."""
    if not path.endswith(UNFINISHED):
        return
    unit = layouts.locate(path, saves.layout)
    save = saves.by_key.get(unit.key) if unit is not None else None
    if save is not None and save.unfinished:
        save.unfinished = False
        save.mark(t)
