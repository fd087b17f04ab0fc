"""Finished saves on the status page: those of this host, and those that others made on a shared directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ckpt_exporter.web.pages.gpus import any_simulated, bubble_text
from ckpt_exporter.web.pages.markup import Html, badge, escaped, grid_table, paragraph
from ckpt_exporter.web.pages.units import (
    UNKNOWN,
    age_text,
    bandwidth_text,
    count_text,
    duration_text,
    size_text,
    time_text,
)
from ckpt_exporter.words import reason_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ckpt_exporter.model import DirectorySnapshot, RecentSave, Save, Snapshot

SHOWN_SAVES: Final = 6
# A dip may last a while after its save, and its figure comes when it is over.
JUDGED_SECONDS: Final = 120.0
_COLUMNS: Final = (
    "Step", "Started, UTC", "Duration", "Size", "Average", "Sustained", "Peak", "Bubble", "Result",
)  # fmt: skip
_ELSEWHERE_COLUMNS: Final = ("Step", "Started, UTC", "Ended, UTC", "Bubble here", "Result")


def recent_saves(index: int, entry: DirectorySnapshot, snapshot: Snapshot) -> str:
    """Return the latest saves that this host made, or that there are none."""
    if not entry.recent:
        own = " of this host" if entry.recent_remote else ""
        return paragraph(f"No save{own} has ended since the exporter started.")
    rows = [_recent_row(recent, snapshot) for recent in entry.recent]
    return _tables(f"directory-{index}-earlier", "", _COLUMNS, rows, snapshot)


def saves_elsewhere(index: int, entry: DirectorySnapshot, snapshot: Snapshot) -> str:
    """Return the latest saves that other hosts made; nothing where none was noticed."""
    if not entry.recent_remote:
        return ""
    rows = [_elsewhere_row(recent, snapshot) for recent in entry.recent_remote]
    note = (
        "Another host wrote these to the shared directory: they are counted there and in no figure of saves, "
        "bytes or bandwidths here. Their bubble is what the GPUs of this node lost to them."
    )
    tables = _tables(
        f"directory-{index}-elsewhere-earlier", " made elsewhere", _ELSEWHERE_COLUMNS, rows, snapshot
    )
    return f'<div class="elsewhere">{tables}{paragraph(note)}</div>'


def _tables(
    name: str, which: str, columns: Sequence[str], rows: Sequence[Sequence[str]], snapshot: Snapshot
) -> str:
    """Return the first rows, and the others in a table that can be opened."""
    kind = " (simulated GPUs)" if any_simulated(snapshot) else ""
    shown = grid_table(f"Latest saves{which}{kind}", columns, rows[:SHOWN_SAVES])
    if len(rows) <= SHOWN_SAVES:
        return shown
    older = grid_table(f"Earlier saves{which}{kind}", columns, rows[SHOWN_SAVES:])
    summary = f"{plural(len(rows) - SHOWN_SAVES, 'earlier save')}{which}"
    return f'{shown}<details id="{name}"><summary>{summary}</summary>{older}</details>'


def _recent_row(recent: RecentSave, snapshot: Snapshot) -> list[str]:
    save = recent.save
    return [
        UNKNOWN if save.step is None else str(save.step),
        # Of a save that was moved in, nobody knows when it was begun.
        UNKNOWN if save.duration_seconds is None else _when(save.start, snapshot),
        duration_text(save.duration_seconds),
        size_text(save.bytes),
        bandwidth_text(save.average_bandwidth),
        bandwidth_text(save.sustained_bandwidth),
        bandwidth_text(save.peak_bandwidth),
        _bubble_cell(recent, snapshot),
        _result(save),
    ]


def _elsewhere_row(recent: RecentSave, snapshot: Snapshot) -> list[str]:
    save = recent.save
    return [
        UNKNOWN if save.step is None else str(save.step),
        _when(save.start, snapshot),
        _when(save.end, snapshot),
        _bubble_cell(recent, snapshot),
        _result(save),
    ]


def _bubble_cell(recent: RecentSave, snapshot: Snapshot) -> str:
    if recent.bubble is None and may_still_come(recent.save, snapshot):
        return "not known yet"
    return bubble_text(recent.bubble)


def may_still_come(save: Save, snapshot: Snapshot) -> bool:
    """Tell whether the bubble of a save may be told later."""
    return snapshot.gpu_backend is not None and snapshot.t - save.end <= JUDGED_SECONDS


def _when(t: float, snapshot: Snapshot) -> str:
    return time_text(t + snapshot.unix_minus_t).removesuffix(" UTC")


def _result(save: Save) -> Html:
    if save.result == "complete":
        return badge("good", "complete")
    reason = f" {escaped(reason_text(save.reason))}" if save.reason else ""
    return Html(f'<span class="words">{badge("bad", save.result)}{reason}</span>')


def elsewhere_figure(entry: DirectorySnapshot, snapshot: Snapshot) -> Iterator[tuple[str, str, str]]:
    """Yield the last save that another host made, if one was noticed."""
    save = entry.last_remote_save
    if save is not None:
        recent = next((known for known in entry.recent_remote if known.save == save), None)
        told = f", bubble here {_bubble_cell(recent, snapshot)}" if recent is not None else ""
        yield "Last save elsewhere", ago(snapshot, save.end), f"{step_words(save.step)}{told}"


def elsewhere_totals(entry: DirectorySnapshot) -> Iterator[tuple[str, str]]:
    """Yield how many saves other hosts made, where they are looked for."""
    for result, count in (entry.remote_saves or {}).items():
        yield f"Made elsewhere, {result}", count_text(count)


def ago(snapshot: Snapshot, t: float) -> str:
    """Return how long before the snapshot a moment was."""
    return f"{age_text(max(0.0, snapshot.t - t))} ago"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count_text(count)} {noun}" if count == 1 else f"{count_text(count)} {noun}s"


def step_words(step: int | None) -> str:
    """Return a step as people say it."""
    return "step unknown" if step is None else f"step {step}"
