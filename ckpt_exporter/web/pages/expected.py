"""When an open save will end, if it does as its run's own earlier saves did."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ckpt_exporter.model import DirectorySnapshot, OpenSave

# Storage and model change: what was long ago tells little.
LOOKED_AT: Final = 5


@dataclass(frozen=True, slots=True)
class Expected:
    """Medians over the last ``saves`` complete saves of the run; ``end`` is on the snapshot's clock."""

    size_bytes: float
    duration_seconds: float
    end: float
    saves: int


def expected_of(save: OpenSave, entry: DirectorySnapshot) -> Expected | None:
    """Return what is expected of an open save; None without an earlier one of its run and layout."""
    run = entry.run.run if entry.run is not None else None
    earlier = [
        (recent.save.bytes, recent.save.duration_seconds)
        for recent in entry.recent
        if recent.save.result == "complete" and recent.save.layout == save.layout and recent.run == run
        if recent.save.duration_seconds is not None and recent.save.end <= save.last_byte
    ][:LOOKED_AT]
    if not earlier:
        return None
    duration = median(seconds for _, seconds in earlier)
    return Expected(median(size for size, _ in earlier), duration, save.start + duration, len(earlier))
