"""Where observed GPU time went: the three bubbles of training, loads of checkpoints, the rest, and work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ckpt_exporter.analysis.document import Chart, Column, Heading, Paragraph, Series, Table
from ckpt_exporter.analysis.numbers import UNKNOWN, percent_text, significant
from ckpt_exporter.history.rows import CONFIDENCES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ckpt_exporter.analysis.document import Align, Block
    from ckpt_exporter.history.records import GpuTimeRecord, StallRecord

Data = dict[str, Any]

_LEFT: Final[Align] = "left"
# The published three bubbles first, then what else stops a GPU.
PARTS: Final = ("checkpoint_save", "data_loading", "communication", "checkpoint_load", "other")
_TEXTS: Final = {
    "checkpoint_save": "checkpoint saves",
    "data_loading": "data loading",
    "communication": "gradient synchronisation",
    "checkpoint_load": "checkpoint loads",
    "other": "other stalls",
    "at_work": "at work",
}


def gpu_shares_data(
    hours: Sequence[GpuTimeRecord], stalls: Sequence[StallRecord], saves_gpu_seconds: float | None
) -> Data | None:
    """Return GPU-seconds and share of observed GPU time by where they went; None where none was observed.

    ``saves_gpu_seconds`` is the bubble of the saves; None where saves have no figure, so that what was left
    for work is not known either.
    """
    observed = sum(hour.observed_seconds for hour in hours)
    if observed <= 0:
        return None
    lost: dict[str, float | None] = {
        cause: sum(hour.stall_seconds.get(cause, 0.0) for hour in hours) for cause in PARTS[1:]
    }
    lost = {"checkpoint_save": saves_gpu_seconds, **lost}
    known = [seconds for seconds in lost.values() if seconds is not None]
    at_work = observed - sum(known) if len(known) == len(lost) else None
    parts = {
        **{cause: _part(seconds, observed, _confidence(stalls, cause)) for cause, seconds in lost.items()},
        # A save's bubble is not cut where the window cuts its hour.
        "at_work": _part(None if at_work is None else max(0.0, at_work), observed, None),
    }
    return {"observed_gpu_seconds": observed, "parts": parts}


def _part(seconds: float | None, observed: float, confidence: dict[str, float] | None) -> Data:
    share = None if seconds is None else seconds / observed
    return {"gpu_seconds": seconds, "share": share, "confidence": confidence}


def _confidence(stalls: Sequence[StallRecord], cause: str) -> dict[str, float] | None:
    """Return which share (0..1) of such stalls' seconds has which confidence; None where none says."""
    seconds = dict.fromkeys(CONFIDENCES, 0.0)
    for stall in stalls:
        if stall.cause == cause and stall.confidence is not None:
            seconds[stall.confidence] += stall.seconds
    total = sum(seconds.values())
    return {name: part / total for name, part in seconds.items()} if total > 0 else None


def gpu_shares_blocks(data: Data | None) -> Iterator[Block]:
    """Yield what the report says of where GPU time went."""
    if data is None:
        return
    parts = data["parts"]
    yield Heading("Where GPU time went")
    hours = significant(data["observed_gpu_seconds"] / 3600)
    named = ", ".join(
        f"{_TEXTS[cause]} {percent_text(parts[cause]['share'])}"
        for cause in PARTS[:3]
        if parts[cause]["share"] is not None
    )
    work = parts["at_work"]["share"]
    left = "" if work is None else f"; {percent_text(work)} were left for work"
    yield Paragraph(f"Of {hours} GPU-hours observed in training runs: {named}{left}.")
    rows = [
        (_TEXTS[name], _hours(part["gpu_seconds"]), percent_text(part["share"]), _sureness(name, part))
        for name, part in parts.items()
    ]
    heads = (Column("", _LEFT), Column("GPU-hours"), Column("share"), Column("confidence"))
    yield Table("", heads, tuple(rows))
    series = tuple(
        Series(_TEXTS[name], ((0.0, None if part["share"] is None else part["share"] * 100),))
        for name, part in parts.items()
    )
    yield Chart("Observed GPU time", "shares", "percent", series, labels=("GPU time",))
    yield Paragraph(
        "Checkpoint saves are the measured bubble. The other causes are estimated from what GPUs and hosts "
        "show; confidence is how sure that is, by seconds where it differs."
    )


def _hours(gpu_seconds: float | None) -> str:
    return UNKNOWN if gpu_seconds is None else significant(gpu_seconds / 3600)


def _sureness(name: str, part: Data) -> str:
    if name == "checkpoint_save" and part["gpu_seconds"] is not None:
        return "measured"
    if name == "at_work" or not part["gpu_seconds"]:
        return ""
    if part["confidence"] is None:
        return "unknown"
    shares: dict[str, float] = {name: share for name, share in part["confidence"].items() if share > 0}
    parts = (name if share == 1 else f"{name} {percent_text(share, 0)}" for name, share in shares.items())
    return ", ".join(parts)
