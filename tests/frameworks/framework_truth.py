"""Compare what a writer says about its saves with what the exporter says."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DURATION_TOLERANCE_SECONDS = 0.05
DURATION_TOLERANCE_RATIO = 0.01
WRITTEN_TOLERANCE_RATIO = 0.03


@dataclass(frozen=True, slots=True)
class Truth:
    """One save by its writer's own clock and its own look at the finished files.

    ``duration_seconds`` is None where nobody outside the writer can know it: the file appeared by a rename.
    """

    step: int | None
    duration_seconds: float | None
    bytes: int
    files: int
    end_unix: float


@dataclass(frozen=True, slots=True)
class MeasuredSave:
    """One save as ``replay --format=json`` lists it; unknown values are None."""

    step: int | None
    result: str
    reason: str | None
    duration_seconds: float | None
    bytes: int
    files: int
    end: float


Scrape = dict[tuple[str, str], float]
"""Value of each sample of one directory, by sample name and ``result`` label (empty where there is none)."""


def parse_truths(stdout: str) -> list[Truth]:
    """Return the saves a writer printed, in the order in which they ended; frameworks print other lines."""
    rows = [json.loads(line) for line in stdout.splitlines() if line.startswith('{"step": ')]
    return sorted((_select(Truth, row) for row in rows), key=lambda truth: truth.end_unix)


def parse_replay(stdout: str, directory: str) -> list[MeasuredSave]:
    """Return the saves of one directory that a replay printed, in the order in which they ended."""
    rows = [row for row in json.loads(stdout)["saves"] if row["dir"] == directory]
    return sorted((_select(MeasuredSave, row) for row in rows), key=lambda save: save.end)


def _select(kind: Callable[..., Any], row: dict[str, Any]) -> Any:
    return kind(**{name: row[name] for name in kind.__dataclass_fields__})  # type: ignore[attr-defined]


def save_differences(truths: Sequence[Truth], saves: Sequence[MeasuredSave]) -> list[str]:
    """Return one line for every number in which the exporter's saves differ from their writer's."""
    lines = []
    if len(saves) != len(truths):
        lines.append(
            f"{len(saves)} saves instead of {len(truths)}: {[(s.step, s.result, s.reason) for s in saves]}"
        )
    for number, (truth, save) in enumerate(_pairs(truths, saves), start=1):
        name = f"save {number} (step {truth.step})"
        if save is None:
            lines.append(f"{name}: missing")
            continue
        if save.result != "complete":
            lines.append(f"{name}: result {save.result} ({save.reason}) instead of complete")
        for what in ("step", "bytes", "files"):
            got, expected = getattr(save, what), getattr(truth, what)
            if got != expected:
                lines.append(f"{name}: {what} {got} instead of {expected}")
        lines += _duration_difference(name, truth.duration_seconds, save.duration_seconds)
    return lines


def _pairs(truths: Sequence[Truth], saves: Sequence[MeasuredSave]) -> list[tuple[Truth, MeasuredSave | None]]:
    """Pair by order; when the counts differ, by step, so that one missing save leaves the others right."""
    if len(saves) == len(truths):
        return list(zip(truths, saves, strict=True))
    by_step = {save.step: save for save in reversed(saves)}
    return [(truth, by_step.get(truth.step)) for truth in truths]


def _duration_difference(name: str, expected: float | None, got: float | None) -> list[str]:
    if expected is None or got is None:
        return [] if expected is got else [f"{name}: duration {got} instead of {expected}"]
    tolerance = max(DURATION_TOLERANCE_SECONDS, DURATION_TOLERANCE_RATIO * expected)
    if abs(got - expected) <= tolerance:
        return []
    return [f"{name}: duration {got:.3f} s instead of {expected:.3f} s, off by {got - expected:+.3f} s"]


def total_differences(truths: Sequence[Truth], scrape: Scrape) -> list[str]:
    """Return one line for every total on the metrics page that differs from the writer's saves."""
    timed = [truth for truth in truths if truth.duration_seconds is not None]
    total_bytes = sum(truth.bytes for truth in truths)
    expected: dict[tuple[str, str], float | None] = {
        ("ckpt_saves_total", "complete"): len(truths),
        ("ckpt_saves_total", "incomplete"): 0,
        ("ckpt_saves_total", "aborted"): 0,
        ("ckpt_save_bytes_total", ""): total_bytes,
        ("ckpt_save_files_total", ""): sum(truth.files for truth in truths),
        ("ckpt_save_duration_seconds_count", ""): len(timed),
        ("ckpt_saves_in_progress", ""): 0,
        ("ckpt_last_save_bytes", ""): truths[-1].bytes,
        ("ckpt_last_save_files", ""): truths[-1].files,
        ("ckpt_last_save_step", ""): truths[-1].step,
    }
    lines = [
        f"{name}{{{result}}}: {scrape.get((name, result))} instead of {value}"
        for (name, result), value in expected.items()
        if scrape.get((name, result)) != value
    ]
    written = scrape.get(("ckpt_written_bytes_total", ""), 0)
    if timed == list(truths) and abs(written - total_bytes) > WRITTEN_TOLERANCE_RATIO * total_bytes:
        lines.append(f"ckpt_written_bytes_total: {written:.0f} instead of {total_bytes} within 3 %")
    return lines
