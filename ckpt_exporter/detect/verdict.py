"""How a save ended: complete, incomplete or aborted, by its commit and by what earlier saves looked like."""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass

from ckpt_exporter.detect.progress import SaveInProgress
from ckpt_exporter.model import SaveResult, Space

MAX_PLACES = 256
MAX_COMPONENTS = 1000
# A file this much smaller than in the save before is cut short, not a slightly different model.
TRUNCATED_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class _Shape:
    key: str
    sizes: dict[str, int]


class EarlierSaves:
    """What the last complete save of each place looked like, and whether saves there use a marker."""

    def __init__(self) -> None:
        self._shapes: OrderedDict[tuple[str, str], _Shape] = OrderedDict()
        self._markers: OrderedDict[tuple[str, str], bool] = OrderedDict()

    def add(self, save: SaveInProgress) -> None:
        """Remember a complete save."""
        place = (save.holder, save.layout)
        if save.late_of is None:
            self._shapes[place] = _Shape(save.key, _sizes(save))
        if save.rules.need == "expected":
            self._markers[place] = save.marker_at is not None or self._markers.get(place, False)
        for bounded in (self._shapes, self._markers):
            while len(bounded) > MAX_PLACES:
                bounded.popitem(last=False)

    def uses_marker(self, save: SaveInProgress) -> bool | None:
        """Tell whether saves of this place and layout come with their marker; None if not yet known."""
        return self._markers.get((save.holder, save.layout))

    def cut_short(self, save: SaveInProgress) -> bool:
        """Tell whether a file of this save ends well before the same file of the save before.

        A smaller version under the very same name may be a smaller model: only writers known to have ended
        make it a truncation.
        """
        before = self._shapes.get((save.holder, save.layout))
        if before is None or save.writers_alive:
            return False
        if before.key == save.key and save.writers_alive is None:
            return False
        sizes = _sizes(save)
        shorter = [n for n, size in sizes.items() if size < TRUNCATED_SHARE * before.sizes.get(n, 0)]
        main = [n for n in shorter if before.sizes[n] >= 0.1 * sum(before.sizes.values())]
        missing = before.sizes.keys() - sizes.keys()
        fewer = bool(missing) and sizes.keys() < before.sizes.keys() and save.writers_alive is False
        return bool(main) or fewer


def _sizes(save: SaveInProgress) -> dict[str, int]:
    # Numbers differ from save to save (steps) and must not make two names different.
    sizes: dict[str, int] = {}
    for record in list(save.files.values())[:MAX_COMPONENTS]:
        if not record.sidecar:
            name = save.component(record.path)
            step = "" if save.step is None else str(save.step)
            normal = re.sub(rf"(?<!\d)0*{step}(?!\d)", "N", name) if step else name
            sizes[normal] = sizes.get(normal, 0) + record.size
    return sizes


def judge(
    save: SaveInProgress, earlier: EarlierSaves, space: Space | None, *, aborted: bool = False
) -> tuple[SaveResult, str | None]:
    """Decide the result of a save that has ended, and the reason if it is not complete."""
    if aborted:
        return "aborted", "files_removed"
    if save.open_files:
        return "incomplete", "no_close"
    reason, required = save.unmet()
    if reason is not None and (required or earlier.uses_marker(save)):
        return "incomplete", reason
    if save.marker_at is None and save.published_at is None:
        if space is not None and space.available <= 0 and space.t >= save.start:
            return "incomplete", "disk_full"
        if earlier.cut_short(save):
            return "incomplete", "truncated"
    return "complete", None
