"""One thread's looks at one shared directory: what other hosts changed in it, with few metadata calls."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable

from ckpt_exporter.detect.layouts import is_noise, locate, strip_temporary
from ckpt_exporter.detect.places import fixed_prefix
from ckpt_exporter.model import DirectorySettings, Fact, RemoteFile, RemoteLook
from ckpt_exporter.sources.freshstat import FileServer, FreshStat
from ckpt_exporter.sources.remotetree import HOT_SECONDS, MAX_FOLDERS, Folder, RemoteName, RemoteTree

# A listing counts as one call more for so many names.
NAMES_A_CALL = 100
# A folder with more names is not compared.
MAX_LISTED = 50_000
# So many files of a folder are asked about when it is listed for the first time.
MAX_FIRST_FILES = 100
_GONE = (errno.ENOENT, errno.ENOTDIR)


class StoppedError(Exception):
    """The worker shall end."""


class Budget:
    """Metadata calls: counted, and held back beyond so many a second (a second's worth may come at once)."""

    def __init__(self, calls_per_second: float, clock: Callable[[], float], stop: threading.Event) -> None:
        self.calls = 0
        self._rate = calls_per_second
        self._clock = clock
        self._stop = stop
        self._paid_until = float("-inf")

    def spend(self, calls: int = 1) -> None:
        """Count calls about to be made, waiting until they are allowed; raises when the worker shall end."""
        now = self._clock()
        self._paid_until = max(self._paid_until, now - 1.0) + calls / self._rate
        self.calls += calls
        if self._stop.wait(max(0.0, self._paid_until - now)) or self._stop.is_set():
            raise StoppedError


class Looker:
    """The looks at one shared directory; used by one thread. ``wall`` is Unix seconds."""

    def __init__(
        self,
        directory: DirectorySettings,
        emit: Callable[[Fact], None],
        budget: Budget,
        *,
        clock: Callable[[], float],
        wall: Callable[[], float] = time.time,
        server: FileServer | None = None,
    ) -> None:
        self._directory = directory
        self._emit = emit
        self._budget = budget
        self._clock = clock
        self._wall = wall
        self._server = server or FileServer()
        self._base = fixed_prefix(directory.path)
        self._tree = self._new_tree()
        self._device: int | None = None
        self._missing_since: float | None = None
        self.call_began: float | None = None
        self.answered = False

    def _new_tree(self) -> RemoteTree:
        below = os.path.normpath(self._directory.path)[len(self._base.rstrip("/")) + 1 :]
        return RemoteTree(self._base, [part for part in below.split("/") if part], self._directory.layout)

    def round(self) -> None:
        """Look at all that is due, and tell that the round is over."""
        begin = self._clock()
        for folder in self._tree.due(begin):
            if folder is self._tree.root:
                if not self._look_at_root(folder):
                    return
            elif folder.parent is None or folder.parent.children.get(folder.name) is folder:
                self._look(folder)
        self.answered = True
        self._emit(RemoteLook(self._clock(), self._directory.name, since=begin, unix=self._wall()))

    # --- folders ----------------------------------------------------------------------------------------

    def _look_at_root(self, root: Folder) -> bool:
        began = self._clock()
        try:
            st = self._stat(root.path, follow=True)
        except OSError as error:
            if error.errno in _GONE and self._device is None:
                self._missing_since = began
            self.answered = False
            return False
        if self._device is None and self._missing_since is not None:
            root.names, root.looked_at = {}, self._missing_since  # what it holds came since
        elif self._device is not None and st.device != self._device:
            # Another file system at its path: nothing of what was known compares with it.
            self._tree = self._new_tree()
            root = self._tree.root
        self._device = st.device
        self._compare(root, st, began)
        return True

    def _look(self, folder: Folder) -> None:
        began = self._clock()
        try:
            st = self._stat(folder.path)
        except OSError:
            return  # its parent's list will tell
        self._compare(folder, st, began)

    def _compare(self, folder: Folder, st: FreshStat, began: float) -> None:
        """Compare a folder with what was known of it, and list it if it changed."""
        before, since = folder.stamp, folder.looked_at
        changed = before is not None and before != st.stamp
        if changed and since is not None:
            self._tell("changed", folder.path, st, since)
        # What an old checkpoint holds matters only if it changes.
        if changed or folder.recheck or (before is None and not folder.in_checkpoint):
            # A second change within the same tick of the server's clock shows by the list alone.
            folder.recheck = changed
            self._list(folder, since)
        folder.stamp, folder.looked_at = st.stamp, began
        self._look_at_files(folder)

    def _list(self, folder: Folder, since: float | None) -> None:
        found = self._names(folder)
        if found is None:
            return
        known, folder.names = folder.names, found
        if known is None:
            self._first_list(folder, found)
            return
        gone = {name: entry for name, entry in known.items() if name not in found}
        fresh = {name: entry for name, entry in found.items() if name not in known}
        fresh.update(self._replaced(known, found))
        if fresh or gone:
            folder.changed_at = self._clock()
            folder.hot_until = folder.changed_at + HOT_SECONDS
        for old, new in self._renamed(folder, gone, fresh):
            self._moved(folder, old, new, since)
            del gone[old], fresh[new]
        for name, (_, is_dir) in gone.items():
            self._gone(folder, name, since, is_dir=is_dir)
        for name, (_, is_dir) in sorted(fresh.items()):
            self._found(folder, name, since, is_dir=is_dir)

    def _replaced(
        self, known: dict[str, tuple[int, bool]], found: dict[str, tuple[int, bool]]
    ) -> dict[str, tuple[int, bool]]:
        """Return the names that stand for another file than before."""
        both = known.keys() & found.keys()
        others = {name: found[name] for name in both if known[name] != found[name]}
        if len(others) > max(3, len(both) // 2):
            self._tree.inodes_last = False
        if self._tree.inodes_last:
            return others
        return {name: entry for name, entry in others.items() if known[name][1] != entry[1]}

    def _first_list(self, folder: Folder, found: dict[str, tuple[int, bool]]) -> None:
        """Take in what is there when looking begins: it is no one's save."""
        files = [name for name, (_, is_dir) in found.items() if not is_dir]
        for name in files if len(files) <= MAX_FIRST_FILES else ():
            self._found(folder, name, None, is_dir=False)
        for name, (_, is_dir) in found.items():
            child = self._tree.add(folder, name) if is_dir and self._has_room() else None
            if child is not None and not child.in_checkpoint:
                self._look(child)

    def _has_room(self) -> bool:
        return self._tree.folders < MAX_FOLDERS

    def _names(self, folder: Folder) -> dict[str, tuple[int, bool]] | None:
        """List a folder: names with inode and whether it is a folder; None if it can't be listed."""
        path = folder.path
        inside = self._tree.holds_files(self._tree.relative(path))
        names: dict[str, tuple[int, bool]] = {}
        try:
            self._spend(2)
            for count, entry in enumerate(self._server.names(self._base, path), 1):
                if count > MAX_LISTED:
                    return None
                if count % NAMES_A_CALL == 0:
                    self._spend()
                if entry.is_dir or (inside and not entry.is_link and not is_noise(entry.name)):
                    names[entry.name] = (entry.inode, entry.is_dir)
        except OSError:
            return None
        finally:
            self.call_began = None
        return names

    def _renamed(
        self, folder: Folder, gone: dict[str, tuple[int, bool]], fresh: dict[str, tuple[int, bool]]
    ) -> list[tuple[str, str]]:
        """Pair names that went with names that came: the same inode, or the same checkpoint by its name."""
        pairs: list[tuple[str, str]] = []
        for old, entry in gone.items():
            same = [new for new, other in fresh.items() if other == entry]
            alike = [
                new
                for new, (_, is_dir) in fresh.items()
                if is_dir == entry[1] and self._alike(folder, old, new)
            ]
            chosen = same if len(same) == 1 and self._tree.inodes_last else alike
            taken = {new for _, new in pairs}
            if len(chosen) == 1 and chosen[0] not in taken and chosen[0] != old:
                pairs.append((old, chosen[0]))
        return pairs

    def _alike(self, folder: Folder, old: str, new: str) -> bool:
        if strip_temporary(old) == strip_temporary(new):
            return True
        below = self._tree.relative(folder.path)
        keys = [locate(f"{below}/{name}" if below else name, self._directory.layout) for name in (old, new)]
        return (
            keys[0] is not None
            and keys[1] is not None
            and keys[0].key == keys[1].key
            and not keys[0].component
        )

    # --- names ------------------------------------------------------------------------------------------

    def _found(self, folder: Folder, name: str, since: float | None, *, is_dir: bool) -> None:
        path = f"{folder.path}/{name}"
        began = self._clock()
        try:
            st = self._stat(path)
        except OSError:
            (folder.names or {}).pop(name, None)  # it is gone again, or told next time
            return
        self._tell("found", path, st, since)
        if not is_dir:
            if st.is_file:
                folder.files[name] = RemoteName(st.stamp, began)
            return
        child = self._tree.add(folder, name) if self._has_room() else None
        if child is not None:
            # All in it came after its own folder was last looked at.
            child.names, child.looked_at = {}, since
            child.hot_until = began + HOT_SECONDS
            child.recheck = True
            self._list(child, since)
            child.stamp, child.looked_at = st.stamp, began

    def _gone(self, folder: Folder, name: str, since: float | None, *, is_dir: bool) -> None:
        folder.children.pop(name, None)
        folder.files.pop(name, None)
        path = f"{folder.path}/{name}"
        self._emit(RemoteFile(self._clock(), "gone", path, self._directory.name, since, is_dir=is_dir))

    def _moved(self, folder: Folder, old: str, new: str, since: float | None) -> None:
        path, to = f"{folder.path}/{old}", f"{folder.path}/{new}"
        began = self._clock()
        try:
            st = self._stat(to)
        except OSError:
            return
        child = folder.children.pop(old, None)
        self._tell("moved", path, st, since, to=to)
        folder.files.pop(old, None)
        if st.is_file:
            folder.files[new] = RemoteName(st.stamp, began)
        elif child is not None:
            child.name, child.recheck = new, True
            child.in_checkpoint = (
                child.in_checkpoint or locate(self._tree.relative(to), self._directory.layout) is not None
            )
            child.hot_until = began + HOT_SECONDS
            folder.children[new] = child

    def _look_at_files(self, folder: Folder) -> None:
        """Ask about the files that may still be written, ever less often while they stay as they are."""
        for name, known in list(folder.files.items()):
            began = self._clock()
            if began < known.due or known.looked_at >= (folder.looked_at or 0.0):
                continue
            try:
                st = self._stat(f"{folder.path}/{name}")
            except OSError:
                folder.files.pop(name, None)
                continue
            since, known.looked_at = known.looked_at, began
            if st.stamp != known.stamp:
                known.stamp, known.calm, known.due = st.stamp, 0, began
                folder.changed_at, folder.hot_until = began, began + HOT_SECONDS
                self._tell("changed", f"{folder.path}/{name}", st, since)
            else:
                if known.calm == 0:
                    self._tell("same", f"{folder.path}/{name}", st, since)
                known.calm += 1
                known.due = began + min(known.calm, 6) * 2.0

    # --- asking and telling -----------------------------------------------------------------------------

    def _spend(self, calls: int = 1) -> None:
        self.call_began = None
        self._budget.spend(calls)
        self.call_began = self._clock()

    def _stat(self, path: str, *, follow: bool = False) -> FreshStat:
        self._spend()
        try:
            return self._server.stat(path, follow=follow)
        finally:
            self.call_began = None

    def _tell(self, event: str, path: str, st: FreshStat, since: float | None, to: str | None = None) -> None:
        self._emit(
            RemoteFile(
                self._clock(),
                event,  # type: ignore[arg-type]
                path,
                self._directory.name,
                since,
                to=to,
                is_dir=st.is_dir,
                size=None if st.is_dir else st.size,
                inode=f"{os.major(st.device)}:{os.minor(st.device)}:{st.inode}",
                born_unix=None if st.born_ns is None else st.born_ns / 1e9,
                modified_unix=st.modified_ns / 1e9,
                changed_unix=st.changed_ns / 1e9,
            )
        )
