"""Run a recording through the same code as the live daemon, and print its saves."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import IO, Any, Literal

from ckpt_exporter.detect.layouts import LAYOUT_NAMES
from ckpt_exporter.detect.progress import joined_late
from ckpt_exporter.errors import CkptExporterError
from ckpt_exporter.ledger import TICK_SECONDS, Ledger
from ckpt_exporter.model import (
    Bubble,
    DetectSettings,
    DirectorySettings,
    Fact,
    GpuStatus,
    Load,
    Save,
    Snapshot,
    Stall,
)
from ckpt_exporter.recording import Start, Stop, read_recording

# Time is let pass in the live daemon's steps through a silence this long; beyond it every save has ended.
MAX_STEPS_THROUGH_SILENCE = 100
COLUMNS: tuple[str, ...] = (
    "DIR", "STEP", "RESULT", "SECONDS", "BYTES", "FILES", "AVERAGE", "SUSTAINED", "PEAK", "BUBBLE", "LAYOUT",
)  # fmt: skip


@dataclass(slots=True)
class Replayed:
    """What a recording amounts to: its saves in the order they ended, and the state at its end."""

    saves: list[Save] = field(default_factory=list)
    bubbles: dict[tuple[str, str, float], Bubble] = field(default_factory=dict)
    stalls: list[Stall] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    snapshot: Snapshot | None = None

    def add(self, save: Save) -> None:
        """Add a finished save; late files join the save they belong to."""
        if save.late:
            for i, earlier in enumerate(self.saves):
                if earlier.path == save.path and earlier.directory == save.directory:
                    self.saves[i] = joined_late(earlier, save)
                    return
        self.saves.append(save)

    def add_cost(self, cost: Bubble | Stall) -> None:
        """Add what a save cost on its GPUs, or a stall."""
        if isinstance(cost, Stall):
            self.stalls.append(cost)
        else:
            self.bubbles[cost.directory, cost.save_path, cost.save_end] = cost

    def add_cold_start(self, load: Load) -> None:
        """Replace a load by itself with the first work of its GPUs."""
        ended = (load.directory, load.path, load.end)
        self.loads = [
            load if (known.directory, known.path, known.end) == ended else known for known in self.loads
        ]

    def bubble_of(self, save: Save) -> Bubble | None:
        """Return what a save cost on its GPUs; None where there is no figure."""
        bubble = self.bubbles.get((save.directory, save.path, save.end))
        return bubble if bubble is not None and bubble.skipped is None else None


def replay(
    path: str, detect: DetectSettings, directories: tuple[DirectorySettings, ...] | None = None
) -> Replayed:
    """Replay the recording at ``path``; ``directories`` override the ones it names.

    Raises CkptExporterError if the file cannot be read or names no directory.
    """
    replayed = Replayed()
    ledger: Ledger | None = None
    now = 0.0
    for item in read_recording(path):
        if isinstance(item, Start):
            chosen = directories or item.directories
            ledger = Ledger(
                chosen,
                detect,
                unix_minus_t=item.unix - item.t,
                on_save=replayed.add,
                on_bubble=replayed.add_cost,
                on_load=replayed.loads.append,
                on_cold_start=replayed.add_cold_start,
            )
            now = item.t
        elif ledger is None:
            raise CkptExporterError(
                f"{path}: the first line names no directories; was its beginning cut off?"
            )
        elif isinstance(item, Stop):
            now = _pass_time(ledger, now, item.t)
            break
        else:
            now = _pass_time(ledger, now, _time(item))
            ledger.feed(item)
    if ledger is None:
        raise CkptExporterError(f"{path}: no start line, so nothing to replay")
    ledger.finish(now)
    replayed.saves.sort(key=lambda save: (save.start, save.end))
    replayed.snapshot = ledger.snapshot(now)
    return replayed


def _time(fact: Fact) -> float:
    return fact.t


def _pass_time(ledger: Ledger, now: float, t: float) -> float:
    """Tick as the live daemon would between two facts."""
    if t > now + TICK_SECONDS:
        step = max(TICK_SECONDS, (t - now) / MAX_STEPS_THROUGH_SILENCE)
        while now + step < t:
            now += step
            ledger.tick(now)
    ledger.tick(max(now, t))
    return max(now, t)


def run_replay(
    path: str, config_file: str | None, output_format: Literal["table", "json", "metrics"], stdout: IO[str]
) -> int:
    """Print the saves of a recording; return the exit status."""
    detect, directories = DetectSettings(), None
    if config_file is not None:
        from ckpt_exporter.config.load import load_config  # noqa: PLC0415

        config = load_config(config_file, LAYOUT_NAMES)
        detect, directories = config.detect, config.directories or None
    replayed = replay(path, detect, directories)
    if output_format == "json":
        json.dump(as_json(replayed), stdout, indent=2)
        stdout.write("\n")
    elif output_format == "metrics":
        from ckpt_exporter.metrics import render_text  # noqa: PLC0415 (only this format needs it)

        assert replayed.snapshot is not None  # noqa: S101
        stdout.write(render_text(replayed.snapshot))
    else:
        stdout.write(as_table(replayed))
    return 0


def as_json(replayed: Replayed) -> dict[str, Any]:
    """Return the saves with the keys of the recording format; unknown values are None."""
    return {
        "saves": [_save_json(save, replayed.bubble_of(save)) for save in replayed.saves],
        "stalls": [asdict(stall) for stall in replayed.stalls],
        "gpu": [_gpu_json(status) for status in replayed.snapshot.gpus] if replayed.snapshot else [],
        "loads": [_load_json(load) for load in replayed.loads],
    }


def _load_json(load: Load) -> dict[str, Any]:
    values = asdict(load)
    return {"dir": values.pop("directory"), **values, "cold_start_seconds": load.cold_start_seconds}


def _gpu_json(status: GpuStatus) -> dict[str, Any]:
    return {
        "gpu": status.info.gpu,
        "uuid": status.info.uuid,
        "observed_seconds": status.observed_seconds,
        "bubble_seconds": sum(status.bubble_seconds.values()),
        "drag_seconds": sum(status.drag_seconds.values()),
        "stall_seconds": dict(status.stall_seconds),
    }


def _save_json(save: Save, bubble: Bubble | None) -> dict[str, Any]:
    return {
        "dir": save.directory,
        "path": save.path,
        "step": save.step,
        "layout": save.layout,
        "result": save.result,
        "reason": save.reason,
        "start": save.start,
        "end": save.end,
        "duration_seconds": save.duration_seconds,
        "bytes": save.bytes,
        "files": save.files,
        "average_bandwidth": save.average_bandwidth,
        "sustained_bandwidth": save.sustained_bandwidth,
        "peak_bandwidth": save.peak_bandwidth,
        "active_seconds": save.active_seconds,
        "notes": list(save.notes),
        "bubble_seconds": bubble.seconds if bubble else None,
        "bubble_gpu_seconds": sum(bubble.gpu_seconds.values()) if bubble else None,
        "bubble_phases": dict(bubble.phases) if bubble else None,
        "dip_start": bubble.start if bubble else None,
        "dip_end": bubble.end if bubble else None,
        "depth": bubble.depth if bubble else None,
        "source": bubble.source if bubble else None,
        "quality": bubble.quality if bubble else None,
    }


def as_table(replayed: Replayed) -> str:
    """Return the saves as an aligned table for people."""
    rows = [COLUMNS, *(_row(save, replayed.bubble_of(save)) for save in replayed.saves)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return "\n".join(lines) + "\n"


def _row(save: Save, bubble: Bubble | None) -> tuple[str, ...]:
    return (
        save.directory,
        "-" if save.step is None else str(save.step),
        save.result + (f" ({save.reason})" if save.reason else ""),
        "-" if save.duration_seconds is None else f"{save.duration_seconds:.3f}",
        str(save.bytes),
        str(save.files),
        _bandwidth(save.average_bandwidth),
        _bandwidth(save.sustained_bandwidth),
        _bandwidth(save.peak_bandwidth),
        "-" if bubble is None or bubble.seconds is None else f"{bubble.seconds:.1f} s",
        save.layout,
    )


def _bandwidth(bytes_per_second: float | None) -> str:
    return "-" if bytes_per_second is None else f"{bytes_per_second / 1e9:.3f} GB/s"
