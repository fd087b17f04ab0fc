"""How far each file that is being written is, and whether a local process still holds it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING

from ckpt_exporter.model import Progress, ProgressMethod
from ckpt_exporter.sources.filestat import data_bytes, inode_name, is_filled, local_writers, lstat

if TYPE_CHECKING:
    from ckpt_exporter.sources.entry import Entry, InodeKey

# A close event comes before the kernel lets go of the write access, so ask a little later.
_CLOSING_RETRY_SECONDS = 0.02
_CLOSING_GIVE_UP_SECONDS = 0.5
# Walking a file in memory takes turns with its writer: beyond some 200 MiB it would be felt.
_MEMORY_WALK_BUDGET_SECONDS = 0.002
_MEMORY_TYPES = frozenset({"tmpfs", "ramfs", "devtmpfs"})
# Memory file systems are walked page by page: 10 ms per GiB, and it slows their writer.
_WALK_BUDGET_SECONDS = 0.005
_PROBE_SPREAD_SECONDS = 0.00025

# Called with the file, its last stat (None: gone), the time of the close.
Closed = Callable[["ActiveFile", "os.stat_result | None", float], None]


class ActiveFile:
    """A file that was created or opened for writing and whose close was not seen yet."""

    __slots__ = (
        "allocated",
        "checked_at",
        "closing",
        "emitted_at",
        "evented",
        "fresh",
        "in_place_size",
        "key",
        "lease_at",
        "lease_wait",
        "method",
        "mtime_ns",
        "opened_at",
        "path",
        "probe_at",
        "quiet_since",
        "size",
        "steps",
        "walk_at",
        "walked",
        "writers",
    )

    def __init__(self, path: str, t: float, *, evented: bool) -> None:
        self.path = path
        self.opened_at = t
        self.evented = evented  # its close will be seen
        self.key: InodeKey | None = None
        self.closing: float | None = None  # time of a close after which another writer may hold it
        self.in_place_size: int | None = None  # size of the file that is being overwritten in place
        self.size = -1
        self.mtime_ns = 0
        self.allocated = 0
        self.steps = 0
        self.method: ProgressMethod | None = None
        self.fresh = True
        self.writers: int | None = 1 if evented else None
        self.checked_at = float("-inf")
        self.walk_at = float("-inf")
        self.walked: tuple[int, int] | None = None  # data and allocated bytes at the last walk
        self.quiet_since = t
        self.emitted_at = float("-inf")
        self.probe_at = t
        self.lease_at = t
        self.lease_wait = 1.0


class ActiveFiles:
    """The open files of one directory, found by path and by inode; probes them within a budget."""

    def __init__(self, entry: Entry, closed: Closed) -> None:
        self._entry = entry
        self._settings = entry.settings
        self._closed = closed
        self.by_path: dict[str, ActiveFile] = {}
        self.by_key: dict[InodeKey, ActiveFile] = {}
        self.in_directory: dict[str, int] = {}
        # A file waits for its first answer: probe right after the events at hand.
        self.urgent = False

    # --- bookkeeping ------------------------------------------------------------------------------------

    def add(self, path: str, t: float, st: os.stat_result | None, *, evented: bool = True) -> ActiveFile:
        """Follow a file from now on; the oldest is given up when there are too many."""
        self.drop(path)
        if len(self.by_path) >= self._settings.max_active:
            self.drop(next(iter(self.by_path)))
            self._entry.log(30, "too many open files to follow", every_seconds=600, limit=len(self.by_path))
        file = ActiveFile(path, t, evented=evented)
        self.urgent = self.urgent or not evented
        self._insert(path, file)
        self.identify(file, st)
        return file

    def consider(self, path: str, t: float, st: os.stat_result) -> None:
        """Follow a file that was there already only if a local process is still writing it."""
        if self._entry.is_shared(path, st.st_dev) or path in self.by_path or local_writers(path) != 1:
            return
        self.add(path, t, st)

    def identify(self, file: ActiveFile, st: os.stat_result | None) -> None:
        """Note the inode of a followed file once it is known."""
        if st is None:
            return
        file.key = (st.st_dev, st.st_ino)
        self.by_key[file.key] = file
        self._entry.shared.inodes.note(file.key, file.path, self._entry.name)

    def drop(self, path: str) -> ActiveFile | None:
        """Stop following a file."""
        file = self.by_path.pop(path, None)
        if file is None:
            return None
        folder = os.path.dirname(path)
        left = self.in_directory.get(folder, 1) - 1
        if left:
            self.in_directory[folder] = left
        else:
            self.in_directory.pop(folder, None)
        if file.key is not None and self.by_key.get(file.key) is file:
            del self.by_key[file.key]
        return file

    def put(self, file: ActiveFile, path: str, st: os.stat_result | None) -> None:
        """Follow a dropped file again, under another name."""
        self.drop(path)
        self._insert(path, file)
        if file.key is None:
            self.identify(file, st)
        else:
            self.by_key[file.key] = file
            self._entry.shared.inodes.note(file.key, path, self._entry.name)

    def move(self, path: str, to: str) -> ActiveFile | None:
        """Follow a file to its new name; what had that name is gone."""
        file = self.drop(path)
        self.drop(to)
        if file is not None:
            self.put(file, to, None)
        return file

    def doubt(self) -> None:
        """Take no close for granted any more: events may have been lost."""
        now = self._entry.clock()
        for file in self.by_path.values():
            file.evented, file.lease_at, file.probe_at = False, now, now
        self.urgent = True

    def below(self, directory: str) -> list[str]:
        """List the followed files below a directory."""
        prefix = directory + "/"
        return [path for path in self.by_path if path.startswith(prefix)]

    def _insert(self, path: str, file: ActiveFile) -> None:
        file.path = path
        self.by_path[path] = file
        folder = os.path.dirname(path)
        self.in_directory[folder] = self.in_directory.get(folder, 0) + 1

    # --- probing ----------------------------------------------------------------------------------------

    def probe_due(self, now: float) -> float:
        """Probe every file whose time has come; return when the next one is due."""
        if not self.by_path:
            return float("inf")
        # Many open files share the budget: 10,000 of them are asked every 2.5 s.
        spread = len(self.by_path) * _PROBE_SPREAD_SECONDS
        for file in [file for file in self.by_path.values() if file.probe_at <= now]:
            self.probe(file, spread)
        self._entry.beat()
        return min((file.probe_at for file in self.by_path.values()), default=float("inf"))

    def probe(self, file: ActiveFile, spread: float = 0.0) -> None:
        """Look at one file once: emit its progress, or its close when no writer holds it any more."""
        now = self._entry.clock()
        young = now - file.opened_at < self._settings.fast_probe_age_seconds
        interval = self._settings.fast_probe_seconds if young else self._settings.slow_probe_seconds
        file.probe_at = now + max(interval, spread)
        try:
            st = os.lstat(file.path)
        except OSError as error:
            self._unseen(file, error, now)
            return
        if not stat.S_ISREG(st.st_mode):
            self.drop(file.path)
            return
        if file.key is None:
            self.identify(file, st)
        elif file.key != (st.st_dev, st.st_ino):
            return  # another file has this name now; the event about it is on its way
        changed = self._take_in(file, st, now)
        position = self._position(file, st, changed=changed)
        if self._writers(file, st, now) == 0:
            st = lstat(file.path) or st  # it may have grown between the two questions
            position = st.st_size if file.method == "size" else position
            self._emit(file, st, now, position)
            self._close(file, st, now)
        elif (changed and file.fresh) or now - file.emitted_at >= self._settings.progress_repeat_seconds:
            self._emit(file, st, now, position)

    def _take_in(self, file: ActiveFile, st: os.stat_result, now: float) -> bool:
        allocated = st.st_blocks * 512
        changed = (st.st_size, st.st_mtime_ns, allocated) != (file.size, file.mtime_ns, file.allocated)
        if changed:
            if file.size >= 0:
                file.quiet_since = now
                file.steps += st.st_size > file.size
            if file.in_place_size is not None and st.st_size < file.in_place_size:
                file.in_place_size = None  # truncated: written anew
        return changed

    def _emit(self, file: ActiveFile, st: os.stat_result, now: float, position: int | None) -> None:
        file.size, file.mtime_ns, file.allocated = st.st_size, st.st_mtime_ns, st.st_blocks * 512
        file.emitted_at = now
        self._entry.emit(
            Progress(
                now,
                file.path,
                st.st_size,
                allocated=st.st_blocks * 512,
                position=position,
                inode=inode_name(st),
                writers=file.writers,
                modified=self._entry.modified(st),
                method=file.method if position is not None else None,
            )
        )

    def close_event(self, file: ActiveFile, t: float, st: os.stat_result | None) -> None:
        """Take in a close at ``t``: the file is closed unless another writer still holds it."""
        held = (
            st is not None
            and not self._entry.is_shared(file.path, st.st_dev)
            and local_writers(file.path) == 1
        )
        if not held:
            file.closing = t
            self.drop(file.path)
            self._closed(file, st if st is None else lstat(file.path) or st, t)
            return
        file.closing = t
        self.urgent = True
        file.lease_at = t
        file.probe_at = t + _CLOSING_RETRY_SECONDS

    def _close(self, file: ActiveFile, st: os.stat_result, now: float) -> None:
        t = file.closing
        if t is None:
            t = self._entry.modified(st)
        self.drop(file.path)
        self._closed(file, st, now if t is None else min(max(t, file.opened_at), now))

    def _unseen(self, file: ActiveFile, error: OSError, now: float) -> None:
        """Wait for the event about a name that is gone, for a while: it may have been lost."""
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            return
        if now - max(file.quiet_since, file.emitted_at) > self._settings.silent_probe_seconds:
            self.drop(file.path)
            self._entry.file("deleted", file.path, now, found=True)

    # --- writers ----------------------------------------------------------------------------------------

    def _writers(self, file: ActiveFile, st: os.stat_result, now: float) -> int | None:
        """Tell whether a local process holds the file: by its events, else by a lease, else by quiet."""
        if now < file.lease_at:
            return file.writers
        if self._entry.is_shared(file.path, st.st_dev):
            if not file.evented and now - file.quiet_since >= self._settings.quiet_close_seconds:
                file.writers = 0
            return file.writers
        quiet = now - file.quiet_since
        if file.evented and file.closing is None and quiet < self._settings.silent_probe_seconds:
            return file.writers
        answer = local_writers(file.path)
        if answer is None and not file.evented and quiet >= self._settings.quiet_close_seconds:
            answer = 0
        if answer is not None:
            file.writers = answer
        if answer == 1:
            self._held(file, now)
        return file.writers

    def _held(self, file: ActiveFile, now: float) -> None:
        """Ask again after a silence, or soon when the close of the held file may go unseen."""
        if file.closing is None:
            wait = self._settings.silent_probe_seconds if file.evented else 1.0
            file.lease_at = now + wait
        elif now - file.closing > _CLOSING_GIVE_UP_SECONDS:
            file.closing = None  # that close was one of several
            file.lease_at = now + self._settings.silent_probe_seconds
        else:
            file.probe_at = now + _CLOSING_RETRY_SECONDS

    # --- position ---------------------------------------------------------------------------------------

    def _position(self, file: ActiveFile, st: os.stat_result, *, changed: bool) -> int | None:
        """Return the bytes written so far; sets ``method``, and ``fresh`` False when it was not measured."""
        file.fresh = True
        if file.in_place_size is not None:
            return self._in_place(file, st)
        if st.st_size == 0 or self._entry.is_shared(file.path, st.st_dev):
            file.method = "size" if st.st_size == 0 else self._settle(file, "size")
            return st.st_size
        if not self._needs_walk(file, st, changed=changed):
            return st.st_size
        return self._walk(file, st)

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
        answer = self._entry.shared.overwrite_position(file.path, inode_name(st))
        if answer is not None:
            position, file.method = answer
            return position
        if file.in_place_size is not None and st.st_size > file.in_place_size:
            file.method = "size"
            return st.st_size
        file.method = None
        return None

    @staticmethod
    def _settle(file: ActiveFile, method: ProgressMethod) -> ProgressMethod:
        file.checked_at = 0.0
        return method
