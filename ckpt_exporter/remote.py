"""What other hosts save in one directory: counted apart, and charged to the GPUs of this one."""

from __future__ import annotations

from collections.abc import Callable

from ckpt_exporter.bubble.detector import BubbleDetector
from ckpt_exporter.detect.elsewhere import ElsewhereDetector
from ckpt_exporter.detect.inventory import Inventory
from ckpt_exporter.detect.places import relative_to
from ckpt_exporter.model import (
    DetectSettings,
    DirectorySettings,
    FileEvent,
    Progress,
    RemoteFile,
    RemoteLook,
    Save,
    SaveResult,
)

RESULTS: tuple[SaveResult, ...] = ("complete", "incomplete", "aborted")


class RemoteSaves:
    """The saves that other hosts make in one directory.

    Nothing of them enters the counters of saves, bytes and files: the host that makes a save counts it, and
    sums over hosts stay right. ``bubbles`` learns when they were made.
    """

    def __init__(
        self, directory: DirectorySettings, settings: DetectSettings, bubbles: BubbleDetector
    ) -> None:
        self._name = directory.name
        self._bubbles = bubbles
        self._detector = ElsewhereDetector(directory, settings)
        self._announced: set[str] = set()
        self._saves = dict.fromkeys(RESULTS, 0)
        self.last_save: Save | None = None

    def reconfigure(self, directory: DirectorySettings, settings: DetectSettings) -> None:
        """Go on under new settings of the same path."""
        self._detector.reconfigure(directory, settings)

    def note_local(self, fact: FileEvent | Progress) -> None:
        """Take in what this host does, which is no other host's save."""
        self._detector.note_local(fact)

    def feed(self, fact: RemoteFile | RemoteLook, is_part: Callable[[Save], bool]) -> list[Save]:
        """Take in what a look told; return the saves that ended and are not parts of this host's."""
        counted = []
        for save in self._detector.feed(fact):
            part = is_part(save)
            self._bubbles.elsewhere_ended(save, part=part)
            self._announced.discard(save.path)
            if not part:
                self._count(save)
                counted.append(save)
        if isinstance(fact, RemoteLook):
            self._announce()
            self._bubbles.elsewhere_looked(self._name, fact.since, fact.t)
        return counted

    def tick(self, now: float) -> None:
        """Let time pass."""
        if self._announced:
            self._detector.tick(now)
            self._announce()

    def _announce(self) -> None:
        """Tell the bubble's side which saves are open, and which turned out to be none."""
        open_now = self._detector.open_saves()
        for path in self._announced - open_now.keys():
            self._bubbles.elsewhere_dropped(self._name, path)
        for path in open_now.keys() - self._announced:
            self._bubbles.elsewhere_began(self._name, path, open_now[path])
        self._announced = set(open_now)

    def _count(self, save: Save) -> None:
        self._saves[save.result] += 1
        if save.result == "complete" and (self.last_save is None or save.end >= self.last_save.end):
            self.last_save = save

    def retain(self, save: Save, inventory: Inventory, base: str) -> None:
        """Let a complete checkpoint of another host count as one that is on disk."""
        key = relative_to(save.path, base)
        unit = self._detector.inventory.unit(key) if key is not None else None
        if key is None or unit is None or save.result != "complete":
            return
        for path in unit.files:
            known = self._detector.inventory.get(path)
            if known is not None and inventory.get(path) is None:
                inventory.put(path, known)
        inventory.complete(key)

    @property
    def counts(self) -> dict[str, int] | None:
        """Saves by result; None before the first look."""
        return (
            None
            if self._detector.known_until is None
            else {str(result): count for result, count in self._saves.items()}
        )

    def offset(self, unix_minus_t: float) -> float | None:
        """Return the file server's clock minus this node's, in seconds; None while nothing is known."""
        return self._detector.offset(unix_minus_t)
