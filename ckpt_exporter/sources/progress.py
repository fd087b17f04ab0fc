"""How far each file that is being written is, and whether a local process still holds it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING

from ckpt_exporter.model import Progress, ProgressMethod
from ckpt_exporter.sources.closing import Closing
from ckpt_exporter.sources.filestat import inode_name, local_writers, lstat
from ckpt_exporter.sources.position import Positions

if TYPE_CHECKING:
    from ckpt_exporter.sources.entry import Entry, InodeKey

# So many closes are followed through a descriptor of their own at a time.
_MAX_KEPT = 64
_MAX_DENIED = 1000
# A truncated file is believed by the steps in which it grows: the sooner, the more of them are seen.
_STEP_SECONDS = 0.05
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
        "looked",
        "method",
        "mtime_ns",
        "opened_at",
        "path",
        "probe_at",
        "quiet_since",
        "size",
        "steps",
        "truncated",
        "walk_at",
        "walked",
        "writers",
    )

    def __init__(self, path: str, t: float, *, evented: bool) -> None:
        self.path = path
        self.opened_at = t
        self.evented = evented  # its close will be seen
        self.key: InodeKey | None = None
        self.closing: Closing | None = None  # the last close that was seen
        self.in_place_size: int | None = None  # size of the file that is being overwritten in place
        self.truncated = False  # its old content was thrown away: its close will flush it
        self.size = -1
        self.mtime_ns = 0
        self.allocated = 0
        self.looked: tuple[int, int] | None = None  # size and modification at the last look
        self.steps = 0  # looks at which it had grown
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


class ActiveFiles:
    """The open files of one directory, found by path and by inode; probes them within a budget."""

    def __init__(self, entry: Entry, closed: Closed) -> None:
        self._entry = entry
        self._settings = entry.settings
        self._closed = closed
        self._positions = Positions(entry)
        self._kept: set[Closing] = set()
        # Users about whose files, by the file system they are on, no lease tells anything.
        self._denied: set[tuple[int, int]] = set()
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
        self._let_go(file)
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
        if file.closing is not None:
            self._await_release(file, file.closing, st, now, spread)
            return
        changed = self._take_in(file, st, now)
        position = self._positions.measure(file, st, changed=changed)
        if self._writers(file, st, now) == 0:
            st = lstat(file.path) or st  # it may have grown between the two questions
            position = st.st_size if file.method == "size" else position
            self._emit(file, st, now, position)
            self._close(file, st, now)
        elif file.truncated and position is None:
            file.probe_at = now + max(_STEP_SECONDS, spread)
        elif (changed and file.fresh) or now - file.emitted_at >= self._settings.progress_repeat_seconds:
            self._emit(file, st, now, position)

    def _take_in(self, file: ActiveFile, st: os.stat_result, now: float) -> bool:
        before, file.looked = file.looked, (st.st_size, st.st_mtime_ns)
        if before is not None:
            file.steps += st.st_size > before[0]
            # Written behind its end: its size says nothing.
            file.truncated = file.truncated and (st.st_size != before[0] or st.st_mtime_ns == before[1])
        allocated = st.st_blocks * 512
        changed = (st.st_size, st.st_mtime_ns, allocated) != (file.size, file.mtime_ns, file.allocated)
        if changed:
            if file.size >= 0:
                file.quiet_since = now
            if file.in_place_size is not None and st.st_size < file.in_place_size:
                file.in_place_size, file.truncated = None, True  # written anew
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

    # --- closes -----------------------------------------------------------------------------------------

    def close_event(self, file: ActiveFile, t: float, st: os.stat_result | None) -> None:
        """Take in a close at ``t``: the file is closed once no writer holds it any more."""
        self._let_go(file)
        file.closing = Closing(t, st)
        if st is not None and self._is_held(file, file.closing, st):
            self.urgent = True
            file.probe_at = t + file.closing.pause_seconds(t)
            return
        self.drop(file.path)
        self._closed(file, st if st is None else lstat(file.path) or st, t)

    def _is_held(self, file: ActiveFile, closing: Closing, st: os.stat_result) -> bool:
        place = (st.st_uid, st.st_dev)
        if place in self._denied or self._entry.is_shared(file.path, st.st_dev):
            return False
        if len(self._kept) < _MAX_KEPT:
            closing.keep(file.path)
            self._kept.add(closing)
        answer = closing.writers(file.path)
        if answer is None and closing.stat() is not None and len(self._denied) < _MAX_DENIED:
            self._denied.add(place)
        return answer == 1

    def _let_go(self, file: ActiveFile) -> None:
        if file.closing is not None:
            file.closing.end()
            self._kept.discard(file.closing)

    def _await_release(
        self, file: ActiveFile, closing: Closing, st: os.stat_result, now: float, spread: float
    ) -> None:
        """Ask whether the writer whose close was seen is through with it."""
        if closing.is_one_of_several(st, now):
            self._let_go(file)
            file.closing = None
            file.lease_at = now + self._settings.silent_probe_seconds
        elif closing.writers(file.path) != 1:
            self.drop(file.path)
            self._closed(file, st, now)
        else:
            file.probe_at = now + max(closing.pause_seconds(now), spread)
            if now - file.emitted_at >= self._settings.progress_repeat_seconds:
                self._emit(file, st, now, self._positions.measure(file, st, changed=False))

    def settle(self, path: str, t: float) -> None:
        """Close a file that leaves its name at ``t`` if its writer is through: a rename follows the close."""
        file = self.by_path.get(path)
        st = file.closing.stat() if file is not None and file.closing is not None else None
        if file is None or file.closing is None or st is None or file.closing.writers(path) == 1:
            return
        self.drop(path)
        self._closed(file, st, t)

    def give_back(self) -> None:
        """Keep no descriptor any longer: watching ends, or begins anew."""
        for closing in self._kept:
            closing.end()
        self._kept.clear()

    def _close(self, file: ActiveFile, st: os.stat_result, now: float) -> None:
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
        if file.evented and quiet < self._settings.silent_probe_seconds:
            return file.writers
        answer = local_writers(file.path)
        if answer is None and not file.evented and quiet >= self._settings.quiet_close_seconds:
            answer = 0
        if answer is not None:
            file.writers = answer
        if answer == 1:
            # Its close will be told; where that may have been missed, it is asked for.
            file.lease_at = now + (self._settings.silent_probe_seconds if file.evented else 1.0)
        return file.writers
