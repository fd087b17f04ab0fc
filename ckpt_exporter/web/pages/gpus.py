"""The parts of the status page about GPUs: what saves cost on them, and how they are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_exporter.web.pages.markup import Html, badge, escaped, facts_table, grid_table
from ckpt_exporter.web.pages.units import (
    UNKNOWN,
    count_text,
    duration_text,
    gpu_seconds_text,
    power_text,
    ratio_text,
)

if TYPE_CHECKING:
    from ckpt_exporter.model import Bubble, DirectorySnapshot, GpuStatus, Snapshot

SIMULATED = "simulated"

_COLUMNS = (
    "GPU", "State", "Name", "Activity", "Utilisation", "Power", "Activity from", "Observed", "Bubble",
    "Share",
)  # fmt: skip


def last_bubble_table(entry: DirectorySnapshot, snapshot: Snapshot) -> Html:
    """Return what the last save of one directory cost on its GPUs."""
    return facts_table(_caption("Bubble of last save", snapshot), _last_rows(entry))


def bubble_totals_table(entry: DirectorySnapshot, snapshot: Snapshot) -> Html:
    """Return what the saves of one directory have cost on its GPUs so far."""
    return facts_table(_caption("Bubbles since start", snapshot), _total_rows(entry, snapshot.gpus))


def _caption(text: str, snapshot: Snapshot) -> str:
    return f"{text} ({SIMULATED} GPUs)" if _any_simulated(snapshot) else text


def _last_rows(entry: DirectorySnapshot) -> list[tuple[str, str]]:
    if entry.last_save is None:
        return [("Bubble", "none seen yet")]
    bubble = entry.last_bubble
    if bubble is None:
        return [("Bubble", UNKNOWN)]
    if bubble.skipped is not None:
        return [("Bubble", f"{UNKNOWN} ({_words(bubble.skipped)})")]
    return [
        ("Mean of its GPUs", duration_text(bubble.seconds)),
        ("On its GPUs", _gpu_seconds(bubble)),
        ("Depth", ratio_text(bubble.depth)),
        *((_words(phase).capitalize(), duration_text(seconds)) for phase, seconds in bubble.phases.items()),
        ("Read from", _reading(bubble.source, bubble.quality)),
    ]


def _gpu_seconds(bubble: Bubble) -> str:
    if not bubble.gpu_seconds:
        return UNKNOWN
    count = len(bubble.gpu_seconds)
    return f"{gpu_seconds_text(sum(bubble.gpu_seconds.values()))} on {count} GPU{'s' if count != 1 else ''}"


def _total_rows(entry: DirectorySnapshot, gpus: tuple[GpuStatus, ...]) -> list[tuple[str, str]]:
    # The GPUs that this directory's saves were charged to: another run's time must not thin the share out.
    charged = [status for status in gpus if entry.name in status.bubble_seconds]
    lost = sum(status.bubble_seconds[entry.name] for status in charged)
    drag = sum(status.drag_seconds.get(entry.name, 0.0) for status in charged)
    skipped = ", ".join(
        f"{_words(reason)} {count_text(count)}" for reason, count in entry.bubbles_skipped.items() if count
    )
    measured = sum(entry.bubble.counts) if entry.bubble else 0
    total = sum(entry.bubble_phase_seconds.values()) if measured else None
    return [
        ("Mean of GPUs", duration_text(total)),
        ("On all GPUs", gpu_seconds_text(lost if charged else None)),
        ("Drag, not in it", gpu_seconds_text(drag if charged else None)),
        ("Share of GPU time", _share(lost, sum(status.observed_seconds for status in charged))),
        ("Saves measured", count_text(measured)),
        ("Not measured", skipped or "none"),
    ]


def gpus_section(snapshot: Snapshot) -> str:
    """Return the table of GPUs, empty without a GPU part."""
    backend = snapshot.gpu_backend
    if backend is None:
        return ""
    state = badge("good", f"{backend.backend} up") if backend.up else badge("bad", f"{backend.backend} down")
    notice = "These GPUs are simulated: no figure here comes from a real device."
    notes = f'<p class="note">{notice}</p>' if _any_simulated(snapshot) else ""
    if not backend.mapping_known:
        notes += '<p class="note">Which run a GPU belongs to is unknown: its processes can\'t be seen.</p>'
    body = grid_table("All GPUs", _COLUMNS, [_gpu_row(status, snapshot) for status in snapshot.gpus])
    return (
        f'<section aria-labelledby="gpus"><div class="title"><h2 id="gpus">GPUs</h2>{state}</div>{notes}'
        f"{body if snapshot.gpus else '<p>No GPU seen.</p>'}</section>\n"
    )


def _gpu_row(status: GpuStatus, snapshot: Snapshot) -> list[str]:
    lost = sum(status.bubble_seconds.values())
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
        _share(lost, status.observed_seconds),
    ]


def _name(status: GpuStatus, snapshot: Snapshot) -> str:
    name = status.info.name or UNKNOWN
    if SIMULATED in name or not _is_simulated(status, snapshot):
        return name
    return Html(f"{escaped(name)} {badge('plain', SIMULATED)}")


def _is_simulated(status: GpuStatus, snapshot: Snapshot) -> bool:
    backend = snapshot.gpu_backend
    named = SIMULATED in status.info.name or status.info.driver == SIMULATED
    return named or (backend is not None and backend.backend == SIMULATED)


def _any_simulated(snapshot: Snapshot) -> bool:
    return any(_is_simulated(status, snapshot) for status in snapshot.gpus)


def _share(lost_seconds: float, observed_seconds: float) -> str:
    return ratio_text(lost_seconds / observed_seconds) if observed_seconds > 0 else UNKNOWN


def _reading(source: str | None, quality: str | None) -> str:
    if source is None:
        return UNKNOWN
    return f"{_words(source)}, {quality or UNKNOWN} quality"


def _words(key: str) -> str:
    known = {"gpm": "GPM counters", "no_gpu": "no GPU", "power_utilization": "power and utilisation",
             "utilization": "utilisation"}  # fmt: skip
    return known.get(key, key.replace("_", " "))
