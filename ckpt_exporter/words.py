"""Words for what has a short name in metrics and records: the same on the status page and in the report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ckpt_exporter.model import BubblePhase, SkipReason

PHASES: Final[dict[BubblePhase, str]] = {
    "before_write": "before the first byte",
    "writing": "while bytes flowed",
    "write_gap": "pauses between writes",
    "after_write": "after the last byte",
}
SKIPPED: Final[dict[SkipReason, str]] = {
    "no_gpu": "no GPU of the run was seen",
    "no_baseline": "no steady training before the save",
    "sampler_gap": "readings are missing",
    "low_quality": "the readings cannot carry a figure",
}
_NOT_COMPLETE: Final = {
    "files_removed": "its files were removed before the commit",
    "no_close": "its files were never closed",
    "no_commit": "it was never committed, and its writers are gone",
    "disk_full": "the disk was full",
    "truncated": "it is much smaller than the saves before it",
}


def reason_text(reason: str) -> str:
    """Return why a save is not complete, in words."""
    return _NOT_COMPLETE.get(reason, reason.replace("_", " "))
