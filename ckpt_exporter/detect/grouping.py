"""Which file belongs to which save: by a checkpoint's name, else by nearness in time and place."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from ckpt_exporter.detect import layouts
from ckpt_exporter.detect.files import FileRecord
from ckpt_exporter.detect.places import NewDirectories
from ckpt_exporter.detect.progress import SaveInProgress
from ckpt_exporter.model import Save

# More files under a finished save's name within this time are late files of it, not another save.
LATE_SECONDS = 900.0
MAX_FINISHED = 256
# A rewritten file at least this part of its save begins the next version of the checkpoint.
NEW_VERSION_SHARE = 0.1
SAME_BIRTH_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Finished:
    """A complete save of late, and the relative paths of its files."""

    save: Save
    files: frozenset[str]


class OpenSaves:
    """The saves being written below one directory, and the file versions they consist of.

    ``layout`` is the directory's configured layout or ``auto``, ``quiet_seconds`` how long a save without a
    checkpoint's name may pause; ``end`` is called with a save whose files are about to be overwritten by its
    next version.
    """

    def __init__(
        self, layout: str, quiet_seconds: float, end: Callable[[SaveInProgress, float], None]
    ) -> None:
        self.layout = layout
        self.quiet_seconds = quiet_seconds
        self.by_key: dict[str, SaveInProgress] = {}
        self.by_path: dict[str, SaveInProgress] = {}
        self.new_directories = NewDirectories()
        self._by_inode: dict[str, str] = {}
        self._finished: OrderedDict[str, Finished] = OrderedDict()
        self._end = end

    def place(self, record: FileRecord, path: str, t: float) -> SaveInProgress:
        """Put a file version into the save it belongs to, opening or splitting saves as needed."""
        record.rename(path)
        unit = layouts.locate(path, self.layout)
        record.staged = layouts.is_temporary(path) or (unit is not None and unit.staged)
        save = self.named(unit, path, t) if unit is not None else self._near(path, t)
        old = save.files.get(path)
        if old is not None and old is not record:
            save = self._next_version(save, old, record, t)
        save.put(record)
        self.by_path[path] = save
        if record.inode is not None:
            self._by_inode[record.inode] = path
        self._refine_layout(save, path)
        return save

    def renamed_from(self, inode: str | None, path: str, started: float | None) -> str | None:
        """Return the path under which a file that a scan found at ``path`` was known before.

        None unless inode and birth are those of a file of an open save: inodes are used again at once.
        """
        before = self._by_inode.get(inode) if inode is not None else None
        save = self.by_path.get(before) if before is not None else None
        if before is None or save is None or before == path or started is None:
            return None
        start = save.files[before].start
        return before if start is not None and abs(start - started) <= SAME_BIRTH_SECONDS else None

    def take(self, path: str) -> FileRecord:
        """Take a file out of its save, to be moved elsewhere or forgotten."""
        record = self.by_path.pop(path).take(path)
        if record.inode is not None:
            self._by_inode.pop(record.inode, None)
        return record

    def close(self, save: SaveInProgress) -> None:
        """Forget a save that has ended."""
        if self.by_key.get(save.key) is save:
            del self.by_key[save.key]
        for path, record in save.files.items():
            self.by_path.pop(path, None)
            if record.inode is not None:
                self._by_inode.pop(record.inode, None)

    def drop_if_empty(self, save: SaveInProgress) -> None:
        """Forget a group that turned out to hold nothing of a save."""
        if not save.files and self.by_key.get(save.key) is save:
            del self.by_key[save.key]

    def already_at(self, path: str, to: str, inode: str | None, t: float) -> bool:
        """Give up a file's record under its old name if one under its new name was begun meanwhile.

        Its inode tells; only of a file whose size could not be asked under the old name.
        """
        target, save = self.by_path.get(to), self.by_path[path]
        if target is None or inode is None or target.files[to].inode != inode or not save.files[path].unsized:
            return False
        record = self.take(path)
        if record.staged and self._publishes(path, to):
            target.published_at = t
        if record.start is not None:
            target.start = min(target.start, record.start)
        target.touch(t)
        self.drop_if_empty(save)
        return True

    def relocate(self, path: str, to: str, t: float) -> None:
        """Follow a file of an open save to its new name, which may put it into another save."""
        save = self.by_path[path]
        record = self.take(path)
        was_staged = record.staged
        record.changed_at = max(record.changed_at, t)
        if not record.open:
            record.closed_at = max(record.closed_at or t, t)
        target = self.place(record, to, t)
        if was_staged and not record.staged and self._publishes(path, to):
            target.published_at = t
        if target is save:
            return
        if save.files:
            save.restart_from_files()
        elif self.by_key.get(save.key) is save:
            del self.by_key[save.key]
            target.absorb(save)

    def _publishes(self, path: str, to: str) -> bool:
        """Tell whether a rename publishes a checkpoint, and not just one file within it."""
        before, after = layouts.locate(path, self.layout), layouts.locate(to, self.layout)
        if after is None or after.component == "":
            return True
        return before is not None and before.staged

    def below(self, directory: str) -> list[str]:
        """List the files of open saves below a directory."""
        prefix = directory + "/"
        return [path for path in self.by_path if path.startswith(prefix)]

    def key_at_rest(self, path: str) -> str:
        """Return the key under which a file that nobody writes is retained."""
        unit = layouts.locate(path, self.layout)
        if unit is not None:
            return unit.key
        step = layouts.step_of_name(path)
        parent = layouts.parent_of(path)
        return parent if step is None else f"{parent}#{step}"

    def remember(self, save: SaveInProgress, whole: Save) -> None:
        """Remember a complete save, so that files which come late find it."""
        files = frozenset(save.files)
        earlier = self._finished.get(save.key)
        if save.late_of is not None and earlier is not None:
            files |= earlier.files
        self._finished[save.key] = Finished(whole, files)
        self._finished.move_to_end(save.key)
        while len(self._finished) > MAX_FINISHED:
            self._finished.popitem(last=False)

    def forget_finished(self, key: str) -> None:
        """Forget a finished save whose directory was deleted."""
        self._finished.pop(key, None)

    def named(self, unit: layouts.Unit, path: str, t: float) -> SaveInProgress:
        """Find or open the save of a checkpoint's name."""
        save = self.by_key.get(unit.key)
        if save is None:
            layout = "generic" if unit.layout == "dcp" and self.layout == "auto" else unit.layout
            holder = layouts.parent_of(unit.key)
            save = SaveInProgress(unit.key, layout, unit.step, t, named=True, holder=holder)
            self.by_key[unit.key] = save
            finished = self._finished.get(unit.key)
            save.adds = finished is not None and path not in finished.files
            if finished and save.adds and t - finished.save.end <= LATE_SECONDS:
                save.late_of = finished.save
        return save

    def _near(self, path: str, t: float) -> SaveInProgress:
        """Find or open the save of a file without a checkpoint's name."""
        step = layouts.step_of_name(path)
        parent = layouts.parent_of(path)
        near = [
            save
            for save in self.by_key.values()
            if _within(save, parent, step)
            and (save.open_files > 0 or t - save.last_activity <= self.quiet_seconds)
        ]
        exact = [save for save in near if save.step == step]
        chosen = max(exact or near, key=lambda save: save.opened_at, default=None)
        if chosen is not None:
            chosen.step = chosen.step if step is None else step
            return chosen
        # A burst into a directory made for it is one save, however its files are spread below.
        made = self.new_directories.topmost(path, t - self.quiet_seconds)
        place = parent if made is None else made
        key = place if step is None else f"{place}#{step}"
        if key not in self.by_key:
            layout = self.layout if self.layout != "auto" else "generic"
            self.by_key[key] = SaveInProgress(key, layout, step, t, named=False, holder=place)
        return self.by_key[key]

    def _next_version(
        self, save: SaveInProgress, old: FileRecord, new: FileRecord, t: float
    ) -> SaveInProgress:
        """Decide what a second version of a file means: the next save, or a rewrite within this one."""
        begun = new.start if new.start is not None else t
        newer = [r for r in save.files.values() if r is not old and r.start is not None and r.start >= begun]
        rest = [record for record in save.files.values() if record not in newer]
        if old.sidecar or any(record.open for record in rest):
            return save
        if old.bytes < NEW_VERSION_SHARE * sum(record.bytes for record in rest):
            return save
        moved = [self.take(record.path) for record in newer]
        self._end(save, t)
        following = SaveInProgress(save.key, save.layout, save.step, t, named=save.named, holder=save.holder)
        self.by_key[following.key] = following
        for record in moved:
            following.put(record)
            self.by_path[record.path] = following
        return following

    def _refine_layout(self, save: SaveInProgress, path: str) -> None:
        if self.layout != "auto" or save.layout not in layouts.UNSPECIFIC_LAYOUTS:
            return
        said = layouts.layout_of_component(path)
        if said is None or said == save.layout:
            return
        if save.layout == "generic" or said == "dcp" or said not in layouts.UNSPECIFIC_LAYOUTS:
            save.refine(said)


def _within(save: SaveInProgress, parent: str, step: int | None) -> bool:
    """Tell whether a file in directory ``parent`` is near a save in place, and of no other step."""
    if save.named:
        return False
    if parent != save.holder:
        return save.step == step and save.holder != "" and parent.startswith(save.holder + "/")
    if step is None or save.step == step:
        return True
    # A group without a step takes the step of a file beside its files, not of one above them.
    return save.step is None and save.parents() == {parent}
