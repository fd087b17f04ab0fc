"""How many bytes of a file that is being written are there: by its size, its data, or its writers' I/O."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ckpt_exporter.model import ProgressMethod
from ckpt_exporter.sources.filestat import data_bytes, inode_name, is_filled

if TYPE_CHECKING:
    from ckpt_exporter.sources.entry import Entry
    from ckpt_exporter.sources.progress import ActiveFile

# Walking a file in memory takes turns with its writer: beyond some 200 MiB it would be felt.
_MEMORY_WALK_BUDGET_SECONDS = 0.002
_MEMORY_TYPES = frozenset({"tmpfs", "ramfs", "devtmpfs"})
# Memory file systems are walked page by page: 10 ms per GiB, and it slows their writer.
_WALK_BUDGET_SECONDS = 0.005


class Positions:
    """Measures the open files of one directory; what was found is kept with each file."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._settings = entry.settings

    def measure(self, file: ActiveFile, st: os.stat_result, *, changed: bool) -> int | None:
        """Return the bytes written so far; sets ``method``, and ``fresh`` False when it was not measured."""
        file.fresh = True
        if file.in_place_size is not None:
            return self._in_place(file, st)
        if st.st_size == 0 or self._entry.is_shared(file.path, st.st_dev):
            file.method = "size" if st.st_size == 0 else self._settle(file, "size")
            return st.st_size
        if file.truncated:
            return self._growing(file, st)
        if not self._needs_walk(file, st, changed=changed):
            return st.st_size
        return self._walk(file, st)

    def _growing(self, file: ActiveFile, st: os.stat_result) -> int | None:
        """Believe a size that grows in steps, without a look into the file.

        Whoever closes any descriptor of a truncated file makes the kernel flush it, and the close of its
        writer then no longer does: less would survive a power failure than without this program.
        """
        if file.steps >= 2:
            file.method = "size"
            return st.st_size
        # One that has grown once and then stands is looked into after all: else nothing is known of it.
        file.truncated = self._entry.clock() - file.opened_at < self._settings.walk_check_seconds
        file.fresh = False
        return None

    def _needs_walk(self, file: ActiveFile, st: os.stat_result, *, changed: bool) -> bool:
        """Size alone is trusted while it grows steadily, after the data agreed with it."""
        if file.method != "size" or file.checked_at == float("-inf"):
            return True
        jumped = st.st_size > file.size * 1.25 + 4096
        stands = changed and st.st_size == file.size
        stale = changed and self._entry.clock() - file.checked_at >= self._settings.walk_check_seconds
        return jumped or stands or stale

    def _walk(self, file: ActiveFile, st: os.stat_result) -> int | None:
        now = self._entry.clock()
        kind = self._entry.systems.type_of(file.path, st.st_dev)
        if now < file.walk_at:
            return self._between_walks(file, st, kind)
        try:
            # A file once seen with holes is measured to the last of them.
            if file.method != "data" and is_filled(file.path, st.st_size):
                file.method, file.checked_at, file.walked = "size", now, None
                return st.st_size
            data, cost = data_bytes(file.path)
        except OSError:
            return self._denied(file, st, kind)
        pause = cost * 100 if cost > _WALK_BUDGET_SECONDS else 0.0
        if kind in _MEMORY_TYPES:
            pause = max(
                cost * 100, self._settings.memory_walk_seconds if cost > _MEMORY_WALK_BUDGET_SECONDS else 0.0
            )
        file.walk_at = now + pause
        file.checked_at = now
        if data is None:
            file.fresh = False
            return None
        file.walked = (data, st.st_blocks * 512)
        agrees = data >= st.st_size - max(4096, st.st_size // 100)
        file.method = "size" if agrees else "data"
        return st.st_size if agrees else data

    @staticmethod
    def _between_walks(file: ActiveFile, st: os.stat_result, kind: str) -> int | None:
        """In memory a page is allocated when it is written, unless it was preallocated; elsewhere unknown."""
        if kind in _MEMORY_TYPES and file.method == "data" and file.walked is not None:
            data, allocated = file.walked
            if st.st_blocks * 512 > allocated:
                return min(st.st_size, data + st.st_blocks * 512 - allocated)
        file.fresh = False
        return None

    @staticmethod
    def _denied(file: ActiveFile, st: os.stat_result, kind: str) -> int | None:
        """Judge by ``stat`` alone, without the right to open the file (or its name just went)."""
        if kind != "xfs":
            file.method = "allocated"
            return min(st.st_size, st.st_blocks * 512)
        # XFS allocates far ahead of an appending writer, so only a size that grows in steps is believed.
        if file.steps < 2:
            return None
        file.method = "size"
        return st.st_size

    def _in_place(self, file: ActiveFile, st: os.stat_result) -> int | None:
        if file.in_place_size is not None and st.st_size > file.in_place_size:
            # Added to, or truncated and past its old size before anyone looked.
            file.in_place_size, file.truncated = None, True
            return self._growing(file, st)
        answer = self._entry.shared.overwrite_position(file.path, inode_name(st))
        if answer is not None:
            position, file.method = answer
            return position
        file.method = None
        return None

    @staticmethod
    def _settle(file: ActiveFile, method: ProgressMethod) -> ProgressMethod:
        file.checked_at = 0.0
        return method
