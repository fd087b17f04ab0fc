"""For what other causes than saves GPUs stood still, stall by stall."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ckpt_exporter.analysis.document import Column, Heading, Paragraph, Table
from ckpt_exporter.analysis.numbers import plain, seconds_text, significant
from ckpt_exporter.analysis.spread import spread
from ckpt_exporter.history.rows import CAUSES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ckpt_exporter.analysis.document import Align, Block
    from ckpt_exporter.history.records import StallRecord

Data = dict[str, Any]

_LEFT: Final[Align] = "left"
CAUSE_TEXTS: Final = {
    "checkpoint_load": "loading a checkpoint",
    "data_loading": "waiting for data",
    "communication": "waiting for other ranks",
    "other": "other",
}


def episodes_data(stalls: Sequence[StallRecord]) -> Data | None:
    """Return by cause how many stalls there were and what they cost; None where none was kept.

    ``seconds`` are GPU-seconds of one stall on one GPU. Causes without a stall are left out.
    """
    by_cause = {cause: [stall.seconds for stall in stalls if stall.cause == cause] for cause in CAUSES}
    return {
        cause: {"count": len(lost), "gpus": _gpus(stalls, cause), "seconds": spread(lost)}
        for cause, lost in by_cause.items()
        if lost
    } or None


def _gpus(stalls: Sequence[StallRecord], cause: str) -> int:
    return len({(stall.node, stall.gpu) for stall in stalls if stall.cause == cause})


def stalls_blocks(data: Data | None) -> Iterator[Block]:
    """Yield what the report says of stalls, by cause."""
    found = {cause: lost for cause, lost in (data or {}).items() if cause in CAUSE_TEXTS}
    if not found:
        return
    yield Heading("Stalls by cause")
    rows = [
        (CAUSE_TEXTS[cause], plain(lost["count"]), plain(lost["gpus"]),
         significant(lost["seconds"]["total"] / 3600),
         *(seconds_text(lost["seconds"][key]) for key in ("median", "p95", "worst")))
        for cause, lost in found.items()
    ]  # fmt: skip
    heads = (
        Column("cause", _LEFT), Column("stalls"), Column("GPUs"), Column("GPU-hours"), Column("median"),
        Column("95 %"), Column("worst"),
    )  # fmt: skip
    yield Table("", heads, tuple(rows))
    yield Paragraph(
        "A stall is one GPU's: what stops eight GPUs at once counts eight times. Causes are estimated. What "
        "saves cost is the bubble and not in here."
    )
