"""What an event says about a file that is known already."""

from __future__ import annotations

from ckpt_exporter.detect.files import FileRecord
from ckpt_exporter.detect.inventory import KnownFile
from ckpt_exporter.model import FileEvent


def is_rewrite(old: FileRecord, event: FileEvent) -> bool:
    """Tell a new version of a closed file from its being opened again to add to it."""
    if event.event == "create":
        # A version whose inode could not be asked for is the one that the scan finds now.
        return not event.found or (None not in (event.inode, old.inode) and event.inode != old.inode)
    return event.size is None or event.size < old.size


def closed_again(event: FileEvent, record: FileRecord) -> bool:
    """Tell whether a closed file was only opened for writing and closed again, with nothing written."""
    if event.modified is None or record.closed_at is None:
        return False
    return event.modified <= record.closed_at and event.size == record.size


def unchanged(event: FileEvent, known: KnownFile) -> bool:
    """Tell whether a file is still as it was when its save ended."""
    if event.size != known.size or event.modified is None:
        return event.size == known.size
    # What a scan finds is compared across clocks: file times tick in steps of up to 10 ms.
    return event.modified <= (known.modified or 0.0) + (0.01 if event.found else 0.0)


def earliest(t: float, other: float | None) -> float:
    """Return the earlier of two moments, of which the second may be unknown."""
    return t if other is None else min(t, other)
