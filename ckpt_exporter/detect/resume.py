"""Pick up a save that was already being written when watching began."""

from __future__ import annotations

from ckpt_exporter.detect import layouts
from ckpt_exporter.detect.files import FileRecord
from ckpt_exporter.detect.grouping import OpenSaves
from ckpt_exporter.detect.inventory import Inventory, KnownFile
from ckpt_exporter.detect.progress import SaveInProgress
from ckpt_exporter.model import DetectSettings, FileEvent, Progress

# A save whose last file was finished so shortly before it was found at the start may have gone on then.
RECENT_SECONDS = 60.0


def look_at(event: FileEvent) -> Progress:
    """Return what an event about a file that is being written says of how far it is."""
    size_bytes = event.size or 0
    return Progress(event.t, event.path or "", size_bytes, position=size_bytes, inode=event.inode, writers=1)


def resume(
    saves: OpenSaves,
    inventory: Inventory,
    path: str,
    progress: Progress,
    *,
    start: float,
    settings: DetectSettings,
) -> SaveInProgress:
    """Begin a record for a file that is being written though its opening was not seen.

    If a scan knew the file, the save begins at its birth, and what was finished of the same checkpoint is
    part of it. The bytes that were there before were not seen arriving: the save has them, the live counters
    do not.
    """
    known = inventory.get(path)
    begun = _begun(known, path, saves.layout) if known is not None else start
    record = FileRecord(path, progress.t, start=begun)
    if known is not None:
        record.advance(progress)
    save = saves.place(record, path, progress.t)
    save.bytes_arrived += record.position
    save.notes.add("reconciled")
    if known is not None:
        _join(saves, save, _earlier(saves, inventory, save, settings, record))
        _reopen(inventory, save)
    return save


def begin_after_pause(
    saves: OpenSaves, inventory: Inventory, save: SaveInProgress, record: FileRecord, settings: DetectSettings
) -> None:
    """Add to the first file of a save what was finished of it when watching began in a pause of its writer.

    Only where a file inside the checkpoint says that it is committed: others may have been counted before.
    """
    if len(save.files) > 1 or save.removed or save.rules.inside is None:
        return
    earlier = _earlier(saves, inventory, save, settings, record)
    if any(_is_recent(file) for file in earlier.values()):
        _join(saves, save, earlier)
        if "partial" not in save.notes:
            _reopen(inventory, save)


def _reopen(inventory: Inventory, save: SaveInProgress) -> None:
    """Take back that a checkpoint found on disk is complete: it is being written."""
    unit = inventory.unit(save.key) if save.named else None
    if unit is not None:
        unit.complete = False


def _is_recent(known: KnownFile) -> bool:
    if known.found_at is None or known.modified is None:
        return False
    return known.found_at - known.modified <= RECENT_SECONDS


def _earlier(
    saves: OpenSaves, inventory: Inventory, save: SaveInProgress, settings: DetectSettings, record: FileRecord
) -> dict[str, KnownFile]:
    """Choose what was finished of a named checkpoint before watching began, and of which ``record`` goes on.

    It belongs to the save if one that was watched would have gone on over the pause between them.
    """
    unit = inventory.unit(save.key) if save.named else None
    if unit is None:
        return {}
    patience = settings.quiet_seconds if save.rules.need == "none" else settings.incomplete_seconds
    known = {path: inventory.get(path) for path in unit.files if path not in saves.by_path}
    files = {path: file for path, file in known.items() if file is not None}
    earlier = _chain(files, record.seen_at if record.start is None else record.start, patience)
    inside = save.rules.inside
    committed = inside is not None and any(inside.search(save.component(path)) for path in earlier)
    return {} if committed else earlier  # what comes after a commit is added to it


def _join(saves: OpenSaves, save: SaveInProgress, earlier: dict[str, KnownFile]) -> None:
    """Add what was finished before, if this host wrote it.

    Where other hosts write, too, whose it is can't be known: then the save is ``partial``, and how long it
    took and how fast it was is not known either.
    """
    if not all(file.local for file in earlier.values()):
        save.notes.add("partial")
        return
    if earlier:
        save.notes.add("reconciled")
    for path, file in sorted(earlier.items()):
        _include(saves, save, path, file)


def _begun(known: KnownFile, path: str, layout: str) -> float | None:
    """Return when the file began to be written: at its birth, unless all saves write the same file."""
    unit = layouts.locate(path, layout)
    step = unit.step if unit is not None else layouts.step_of_name(path)
    return None if step is None else known.started


def _chain(files: dict[str, KnownFile], reach: float, patience: float) -> dict[str, KnownFile]:
    """Choose the files found at the start that were written up to ``reach`` with no longer pause."""
    moments = {
        path: file.modified
        for path, file in files.items()
        if file.found_at is not None and file.modified is not None
    }
    chosen: dict[str, KnownFile] = {}
    for path in sorted(moments, key=lambda path: moments[path], reverse=True):
        file, modified = files[path], moments[path]
        if modified < reach - patience:
            break
        chosen[path] = file
        reach = min(reach, modified if file.started is None else file.started)
    return chosen


def _include(saves: OpenSaves, save: SaveInProgress, path: str, known: KnownFile) -> None:
    """Add a file of the same checkpoint that was finished before watching began."""
    closed_at = save.start if known.modified is None else known.modified
    start = None if known.started is None else min(closed_at, known.started)
    record = FileRecord(path, closed_at, start=start)
    record.close(closed_at, known.size, known.modified)
    saves.place(record, path, closed_at)
    save.start = min(save.start, closed_at)
    save.bytes_arrived += record.position
