"""The end of a close: the kernel tells that a file was closed before its work for the close is done.

A file that was truncated and written anew is flushed by its last close (ext4, xfs and btrfs do so), and its
writer waits in ``close`` meanwhile: the longer, the slower the storage. Until it is through, the file counts
as open for writing, so a lease asked for again and again shows when that is.
"""

from __future__ import annotations

import contextlib
import os

from ckpt_exporter.sources.filestat import lease_tells_writers, local_writers, open_quietly

# Asked so often that the end is known to a fiftieth of the time that the close takes.
_FIRST_PAUSE_SECONDS = 0.001
_PAUSE_SHARE = 0.02
# What holds the file for longer is taken for another writer: memory full of dirty pages takes minutes.
_GIVE_UP_SECONDS = 600.0


class Closing:
    """A close that was seen at ``at`` (monotonic seconds), of a file that was then as ``st`` says.

    Any descriptor that is closed flushes such a file, a reader's too. So the one through which is asked is
    kept until the writer is through: what its close does to the file is left to it alone.
    """

    __slots__ = ("_descriptor", "_state", "at")

    def __init__(self, at: float, st: os.stat_result | None) -> None:
        self.at = at
        self._state = _state(st)
        self._descriptor = -1

    def keep(self, path: str) -> None:
        """Open the file, to ask about it by the descriptor; without the right to it, by its name."""
        with contextlib.suppress(OSError):
            self._descriptor = open_quietly(path)

    def writers(self, path: str) -> int | None:
        """Return 1 while the file is held for writing, 0 when it is not, None when that can't be known."""
        return local_writers(path) if self._descriptor < 0 else lease_tells_writers(self._descriptor)

    def stat(self) -> os.stat_result | None:
        """Return what the file is, whatever its name is now; None without a descriptor."""
        return None if self._descriptor < 0 else os.fstat(self._descriptor)

    def is_one_of_several(self, st: os.stat_result, now: float) -> bool:
        """Tell whether another writer goes on with the file."""
        return _state(st) != self._state or now - self.at > _GIVE_UP_SECONDS

    def pause_seconds(self, now: float) -> float:
        """Return how long to wait before asking again."""
        return max(_FIRST_PAUSE_SECONDS, _PAUSE_SHARE * (now - self.at))

    def end(self) -> None:
        """Give the descriptor back."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _state(st: os.stat_result | None) -> tuple[int, int] | None:
    return None if st is None else (st.st_size, st.st_mtime_ns)
