"""Pick up a save that was already being written when watching began."""

from __future__ import annotations

from ckpt_exporter.detect.files import FileRecord
from ckpt_exporter.detect.grouping import OpenSaves
from ckpt_exporter.detect.inventory import Inventory
from ckpt_exporter.detect.progress import SaveInProgress
from ckpt_exporter.model import Progress


def resume(
    saves: OpenSaves,
    inventory: Inventory,
    path: str,
    progress: Progress,
    *,
    start: float,
    quiet_seconds: float,
) -> SaveInProgress:
    """Begin a record for a file that is being written though its opening was not seen.

    If a scan knew the file, the save begins at its birth, and what was finished of the same checkpoint is
    part of it. The bytes that were there before were not seen arriving: the save has them, the live counters
    do not.
    """
    known = inventory.get(path)
    if known is not None and known.started is not None:
        start = known.started
    record = FileRecord(path, progress.t, start=start)
    if known is not None:
        record.advance(progress)
    save = saves.place(record, path, progress.t, quiet_seconds)
    save.bytes_arrived += record.position
    save.notes.add("reconciled")
    unit = inventory.unit(known.key) if known is not None and save.named else None
    if unit is not None:
        unit.complete = False
        for earlier in sorted(unit.files - {path}):
            _include(saves, inventory, save, earlier, quiet_seconds)
    return save


def _include(
    saves: OpenSaves, inventory: Inventory, save: SaveInProgress, path: str, quiet_seconds: float
) -> None:
    """Add a file of the same checkpoint that was finished before watching began."""
    known = inventory.get(path)
    if known is None or path in saves.by_path:
        return
    closed_at = known.modified if known.modified is not None else save.start
    start = closed_at if known.started is None else min(closed_at, known.started)
    record = FileRecord(path, closed_at, start=start)
    record.close(closed_at, known.size, known.modified)
    saves.place(record, path, closed_at, quiet_seconds)
    save.bytes_arrived += record.position
