"""What the log says of finished saves and loads, and of what saves cost."""

from __future__ import annotations

import logging

from ckpt_exporter.logs import log_event
from ckpt_exporter.model import Bubble, Load, Save, Stall

_LOG = logging.getLogger("ckpt_exporter")
TOLD_SECONDS = 30.0


def log_save(save: Save) -> None:
    """Log a finished save."""
    level = logging.INFO if save.result == "complete" else logging.WARNING
    log_event(
        _LOG,
        level,
        _what(save),
        dir=save.directory,
        step=save.step,
        result=save.result,
        reason=save.reason,
        duration_seconds=_rounded(save.duration_seconds),
        bytes=None if save.elsewhere else save.bytes,
        files=None if save.elsewhere else save.files,
        layout=save.layout,
        path=save.path,
        notes=",".join(save.notes) or None,
    )


def _what(save: Save) -> str:
    if save.elsewhere:
        return "save of another host ended"
    return "files of a finished save" if save.late else "save ended"


def log_load(load: Load) -> None:
    """Log a finished load."""
    log_event(
        _LOG,
        logging.INFO,
        "load ended",
        dir=load.directory,
        step=load.step,
        duration_seconds=_rounded(load.duration_seconds),
        bytes=load.bytes,
        files=load.files,
        readers=load.readers,
        run=load.run,
        cached_ratio=_rounded(load.cached_ratio),
        path=load.path,
        notes=",".join(load.notes) or None,
    )


def log_cold_start(load: Load) -> None:
    """Log that GPUs have begun to work after a load."""
    log_event(
        _LOG,
        logging.INFO,
        "first GPU work after a load",
        dir=load.directory,
        step=load.step,
        cold_start_seconds=_rounded(load.cold_start_seconds),
        path=load.path,
    )


def log_bubble(bubble: Bubble, level: int) -> None:
    """Log what a save cost on its GPUs, or why that is not known."""
    log_event(
        _LOG,
        level,
        "bubble of a save" if bubble.skipped is None else "no bubble figure",
        dir=bubble.directory,
        path=bubble.save_path,
        reason=bubble.skipped,
        bubble_seconds=_rounded(bubble.seconds),
        bubble_gpu_seconds=_rounded(sum(bubble.gpu_seconds.values())) if bubble.gpu_seconds else None,
        depth=_rounded(bubble.depth),
        source=bubble.source,
        quality=bubble.quality,
        notes=",".join(bubble.notes) or None,
    )


def log_stall(stall: Stall) -> None:
    """Log a stretch of lost activity that no save caused; short ones, which may be many, for debugging."""
    log_event(
        _LOG,
        logging.INFO if stall.seconds >= TOLD_SECONDS else logging.DEBUG,
        "GPU stall",
        gpu=stall.gpu,
        cause=stall.cause,
        confidence=stall.confidence,
        seconds=_rounded(stall.seconds),
        evidence=",".join(stall.evidence) or None,
    )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
