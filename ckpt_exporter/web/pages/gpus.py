"""The parts of the status page about GPUs: what saves cost on them, and how they are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ckpt_exporter.web.pages.markup import Html, badge, facts_table, grid_table, paragraph
from ckpt_exporter.web.pages.units import (
    UNKNOWN,
    count_text,
    duration_text,
    gpu_seconds_text,
    power_text,
    ratio_text,
    share_text,
)
from ckpt_exporter.words import PHASES, SKIPPED

if TYPE_CHECKING:
    from ckpt_exporter.model import Bubble, DirectorySnapshot, GpuStatus, Snapshot

SIMULATED: Final = "simulated"
LOW_QUALITY: Final = "low quality"

_COLUMNS: Final = (
    "GPU", "State", "Name", "Activity", "Utilisation", "Power", "Activity from", "Observed", "Bubble",
    "Share",
)  # fmt: skip
_WORDS: Final[dict[str, str]] = {
    "gpm": "GPM counters",
    **{str(phase): text for phase, text in PHASES.items()},
    **{str(reason): text for reason, text in SKIPPED.items()},
    "power_utilization": "power and utilisation",
    "utilization": "utilisation",
}


@dataclass(frozen=True, slots=True)
class Cost:
    """What the saves of one directory cost its GPUs since the start, in GPU-seconds."""

    lost: float
    drag: float
    observed: float
    gpus: int
    low_quality: bool

    @property
    def share(self) -> float | None:
        """Bubble over observed time; None while nothing was observed."""
        return self.lost / self.observed if self.observed > 0 else None


def cost_of(entry: DirectorySnapshot, snapshot: Snapshot) -> Cost | None:
    """Sum up the GPUs that a directory's saves were charged to; None if there is none yet."""
    # Another run's time must not thin the share out.
    charged = [status for status in snapshot.gpus if entry.name in status.bubble_seconds]
    if not charged:
        return None
    return Cost(
        lost=sum(status.bubble_seconds[entry.name] for status in charged),
        drag=sum(status.drag_seconds.get(entry.name, 0.0) for status in charged),
        observed=sum(status.observed_seconds for status in charged),
        gpus=len(charged),
        low_quality=any(status.quality == "low" for status in charged),
    )


def bubble_text(bubble: Bubble | None) -> str:
    """Return what one save cost in a table's cell, and why that is not known."""
    if bubble is None:
        return UNKNOWN
    if bubble.skipped is not None:
        return f"{UNKNOWN} ({words(bubble.skipped)})"
    text = duration_text(bubble.seconds)
    return f"{text} ({LOW_QUALITY})" if bubble.quality == "low" else text


def last_bubble_table(entry: DirectorySnapshot, snapshot: Snapshot) -> Html:
    """Return what the last save of one directory cost on its GPUs."""
    return facts_table(_caption("Bubble of last save", snapshot), _last_rows(entry))


def bubble_totals_table(entry: DirectorySnapshot, snapshot: Snapshot) -> Html:
    """Return what the saves of one directory have cost on its GPUs so far."""
    return facts_table(_caption("Bubbles since start", snapshot), _total_rows(entry, snapshot))


def _caption(text: str, snapshot: Snapshot) -> str:
    return f"{text} ({SIMULATED} GPUs)" if any_simulated(snapshot) else text


def _last_rows(entry: DirectorySnapshot) -> list[tuple[str, str]]:
    if entry.last_save is None:
        return [("Bubble", "none seen yet")]
    bubble = entry.last_bubble
    if bubble is None or bubble.skipped is not None:
        return [("Bubble", bubble_text(bubble))]
    return [
        ("Mean of its GPUs", duration_text(bubble.seconds)),
        ("On its GPUs", gpu_seconds_of(bubble)),
        ("Depth", ratio_text(bubble.depth)),
        *((words(phase).capitalize(), duration_text(seconds)) for phase, seconds in bubble.phases.items()),
        ("Read from", _reading(bubble.source, bubble.quality)),
    ]


def gpu_seconds_of(bubble: Bubble) -> str:
    """Return the GPU-seconds of one bubble and on how many GPUs they were lost."""
    if not bubble.gpu_seconds:
        return UNKNOWN
    return f"{gpu_seconds_text(sum(bubble.gpu_seconds.values()))} on {gpus_text(len(bubble.gpu_seconds))}"


def gpus_text(count: int, kind: str = "") -> str:
    """Return a number of GPUs, of a kind."""
    return f"{count_text(count)} {kind}GPU{'s' if count != 1 else ''}"


def _total_rows(entry: DirectorySnapshot, snapshot: Snapshot) -> list[tuple[str, str]]:
    cost = cost_of(entry, snapshot)
    skipped = ", ".join(
        f"{words(reason)} {count_text(count)}" for reason, count in entry.bubbles_skipped.items() if count
    )
    measured = sum(entry.bubble.counts) if entry.bubble else 0
    total = sum(entry.bubble_phase_seconds.values()) if measured else None
    return [
        ("Mean of GPUs", duration_text(total)),
        ("On all GPUs", gpu_seconds_text(cost.lost if cost else None)),
        ("Drag, not in it", gpu_seconds_text(cost.drag if cost else None)),
        ("Share of GPU time", share_text(cost.share if cost else None)),
        ("Saves measured", count_text(measured)),
        ("Not measured", skipped or "none"),
    ]


def gpus_section(snapshot: Snapshot) -> str:
    """Return the table of GPUs, empty without a GPU part."""
    backend = snapshot.gpu_backend
    if backend is None:
        return ""
    state = badge("good", f"{backend.backend} up") if backend.up else badge("bad", f"{backend.backend} down")
    body = grid_table("All GPUs", _COLUMNS, [_gpu_row(status, snapshot) for status in snapshot.gpus])
    return (
        f'<section id="gpus" aria-labelledby="gpus-title"><div class="title">'
        f'<h2 id="gpus-title">GPUs</h2>{state}</div>{body if snapshot.gpus else paragraph("No GPU seen.")}'
        "</section>\n"
    )


def _gpu_row(status: GpuStatus, snapshot: Snapshot) -> list[str]:
    lost = sum(status.bubble_seconds.values())
    share = lost / status.observed_seconds if status.observed_seconds > 0 else None
    return [
        str(status.info.gpu),
        badge("good", "up") if status.up else badge("bad", "down"),
        _name(status, snapshot),
        ratio_text(status.activity),
        ratio_text(status.util),
        power_text(status.power_w),
        _reading(status.source, status.quality),
        duration_text(status.observed_seconds),
        gpu_seconds_text(lost),
        share_text(share),
    ]


def _name(status: GpuStatus, snapshot: Snapshot) -> str:
    name = status.info.name or UNKNOWN
    if SIMULATED in name or not _is_simulated(status, snapshot):
        return name
    return f"{name} ({SIMULATED})"


def _is_simulated(status: GpuStatus, snapshot: Snapshot) -> bool:
    backend = snapshot.gpu_backend
    named = SIMULATED in status.info.name or status.info.driver == SIMULATED
    return named or (backend is not None and backend.backend == SIMULATED)


def any_simulated(snapshot: Snapshot) -> bool:
    """Tell whether figures of this page come from GPUs that do not exist."""
    return any(_is_simulated(status, snapshot) for status in snapshot.gpus)


def _reading(source: str | None, quality: str | None) -> str:
    if source is None:
        return UNKNOWN
    return f"{words(source)}, {quality or UNKNOWN} quality"


def words(key: str) -> str:
    """Return a key of the model as people say it."""
    return _WORDS.get(key, key.replace("_", " "))
