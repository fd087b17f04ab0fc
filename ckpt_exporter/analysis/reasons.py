"""Why a save was slow, as far as its phases show it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ckpt_exporter.analysis.numbers import percent_text, seconds_text, significant
from ckpt_exporter.history.rows import PHASES

if TYPE_CHECKING:
    from ckpt_exporter.analysis.job_saves import JobSave
    from ckpt_exporter.analysis.stragglers import Wait
    from ckpt_exporter.model import BubblePhase

# So much more than the usual save makes its size the reason.
LARGER_FACTOR: Final = 1.5
# Waiting for one part, this share of the save, is said before anything else that the phases show.
WAIT_SHARE: Final = 0.2
_FLOWING_SHARE: Final = 0.5

_TEXTS: Final[dict[BubblePhase, str]] = {
    "before_write": "waited before the first byte ({})",
    "writing": "storage: writing took {}",
    "write_gap": "pauses between writes ({})",
    "after_write": "after the last byte: fsync, barrier ({})",
}


@dataclass(frozen=True, slots=True)
class Reason:
    """What made a save slow: a stable ``code`` for programs and a sentence for people.

    ``share`` (0 to 1) is the part of the bubble, or of the duration, that it explains; None unknown.
    """

    code: str
    text: str
    share: float | None = None


def phases_of(save: JobSave) -> dict[BubblePhase, float]:
    """Return the bubble's seconds by phase, mean over the GPUs of all nodes; empty where unknown."""
    known = [record for record in save.records if record.bubble_seconds is not None and record.bubble_phases]
    weights = [max(1, len(record.bubble_gpu_seconds)) for record in known]
    total = sum(weights)
    if not total:
        return {}
    return {
        phase: sum(r.bubble_phases.get(phase, 0.0) * w for r, w in zip(known, weights, strict=True)) / total
        for phase in PHASES
    }


def reasons(save: JobSave, usual_bytes: float, wait: Wait | None) -> tuple[Reason, ...]:
    """Say why a save took long, the strongest sign first. Sizes in bytes."""
    found: list[Reason] = []
    if usual_bytes > 0 and save.bytes >= LARGER_FACTOR * usual_bytes:
        found.append(Reason("larger", f"{significant(save.bytes / usual_bytes, 2)} times the usual bytes"))
    duration = save.duration_seconds
    if wait is not None and duration and wait.seconds >= WAIT_SHARE * duration:
        text = f"waited {seconds_text(wait.seconds)} for {wait.who} alone"
        found.append(Reason("straggler", text, min(1.0, wait.seconds / duration)))
    found.append(_by_phases(phases_of(save)) or _by_flow(save))
    return tuple(found)


def _by_phases(phases: dict[BubblePhase, float]) -> Reason | None:
    total = sum(phases.values())
    if total <= 0:
        return None
    phase = max(PHASES, key=lambda name: phases[name])
    share = phases[phase] / total
    return Reason(phase, _TEXTS[phase].format(percent_text(share, 0)), share)


def _by_flow(save: JobSave) -> Reason:
    """Judge without GPUs: for how much of the save did bytes flow."""
    duration, active = save.duration_seconds, save.active_seconds
    if not duration or active is None:
        return Reason("unknown", "no phases known")
    share = min(1.0, active / duration)
    if share >= _FLOWING_SHARE:
        return Reason("writing", f"storage: writing took {percent_text(share, 0)}", share)
    return Reason("waiting", f"no bytes flowed for {percent_text(1 - share, 0)} of it", 1 - share)
