"""One version of one file of an open save: how many bytes arrived, when, and whether it is closed."""

from __future__ import annotations

from ckpt_exporter.detect.bandwidth import Arrivals
from ckpt_exporter.detect.layouts import SIDECAR
from ckpt_exporter.model import Progress


class FileRecord:
    """A file version being written.

    ``start`` is its first write-open, None for a file that arrived finished from outside. ``existing`` is
    its size when an existing file was opened (0 for a new or truncated one); ``position`` the bytes known to
    have been written so far; ``changed_at`` the last moment at which anything about it changed. It is
    ``unwitnessed`` while a scan found it and nothing was seen of it since, ``unsized`` if it was gone when
    its size was asked.
    """

    __slots__ = (
        "appended",
        "arrivals",
        "changed_at",
        "closed_at",
        "data_bytes",
        "existing",
        "full_look_at",
        "growing",
        "inode",
        "last_byte",
        "open",
        "path",
        "position",
        "seen_at",
        "sidecar",
        "size",
        "staged",
        "start",
        "unsized",
        "unwitnessed",
    )

    def __init__(self, path: str, t: float, *, start: float | None, existing: int = 0) -> None:
        self.path = path
        self.start = start
        self.existing = existing
        self.appended = False
        self.open = True
        self.staged = False
        self.unwitnessed = False
        self.unsized = False
        self.inode: str | None = None
        self.size = existing
        self.position = 0
        self.closed_at: float | None = None
        self.data_bytes = 0
        self.growing = False
        self.full_look_at = float("-inf")
        self.seen_at = t if start is None else start
        self.changed_at = t
        self.last_byte = t
        self.arrivals = Arrivals()
        self.sidecar = SIDECAR.search(path) is not None

    @property
    def bytes(self) -> int:
        """Size of this version in bytes; only what was added if the file was appended to."""
        return self.size - self.existing if self.appended else self.size

    def rename(self, path: str) -> None:
        """Follow the file to its new name."""
        self.path = path
        self.sidecar = SIDECAR.search(path) is not None

    def arrive_finished(self, t: float, size: int) -> None:
        """Take in a file that was renamed in with all its bytes at ``t``."""
        self.size = self.position = self.data_bytes = size
        self.open = False
        self.closed_at = t

    def advance(self, progress: Progress) -> int:
        """Take in how far the file is; return the bytes that arrived since the last look."""
        position = _position(progress)
        if progress.size < self.size and progress.size < self.position:
            self.truncate(progress.t)
        if position < self.existing:
            self.existing = 0
        self.size = progress.size
        self.unsized = False
        self.unwitnessed = self.unwitnessed and not progress.writers
        self.inode = progress.inode or self.inode
        grown = position - self.existing - self.position
        if grown > 0:
            seen = progress.t if self.closed_at is None or self.open else min(progress.t, self.closed_at)
            self._arrive(seen, progress.modified, grown)
        self.growing = grown > 0
        self.seen_at = max(self.seen_at, progress.t)
        self.data_bytes = max(0, position - self.existing)
        if progress.method in ("data", None) and position < progress.size:
            self.full_look_at = progress.t
        return max(0, grown)

    def close(self, t: float, size: int | None, modified: float | None) -> int:
        """Close the file at ``t``; return the bytes not yet seen arriving.

        Without a known size the last known position is the size.
        """
        self.unsized = size is None and self.size == self.position == 0
        if size is None:
            size = max(self.size, self.position + self.existing)
        self.appended = 0 < self.existing < size
        if not self.appended:
            self.existing = 0
        self.size = size
        grown = self.bytes - self.position
        if self._looked_after_last_write(t, modified):
            grown = 0  # the rest of the size are holes
        else:
            self.data_bytes = self.bytes
        if grown > 0:
            self._arrive(t, modified, grown)
        self.open = False
        self.closed_at = t
        self.changed_at = max(self.changed_at, t)
        self.seen_at = max(self.seen_at, t)
        return max(0, grown)

    def _looked_after_last_write(self, t: float, modified: float | None) -> bool:
        # File times tick in steps of up to 10 ms.
        return self.full_look_at >= t or (modified is not None and self.full_look_at > modified + 0.01)

    def truncate(self, t: float) -> None:
        """Start over: the file was cut to nothing and is written anew."""
        self.existing = 0
        self.size = 0
        self.position = 0
        self.arrivals.clear()
        self.seen_at = max(self.seen_at, t)

    def _arrive(self, t: float, modified: float | None, grown: int) -> None:
        # Bytes at this look and at the last: they flowed all the time between. File times say when the last
        # write began, so they can end a stretch, but not tell that it paused.
        start = self.last_byte if self.growing else self.seen_at
        end = modified if modified is not None and self.seen_at <= modified < t else t
        self.arrivals.add(min(start, end), end, grown)
        self.position += grown
        self.last_byte = max(self.last_byte, end)
        self.changed_at = max(self.changed_at, end)


def _position(progress: Progress) -> int:
    """Read how many bytes are in the file: what the source says, else the lesser of size and allocation.

    Never more than its size: a writer's I/O may include its other files.
    """
    if progress.position is not None:
        return min(progress.position, progress.size)
    if progress.allocated is not None:
        return min(progress.size, progress.allocated)
    return progress.size
