"""Records as rows of the history file, and back."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ckpt_exporter.history.records import GpuTimeRecord, LoadRecord, SaveRecord, ShardRecord, StallRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ckpt_exporter.model import BubblePhase, Confidence, StallCause

Value = str | int | float | None
_Record = TypeVar("_Record", SaveRecord, GpuTimeRecord, LoadRecord, StallRecord, ShardRecord)

PHASES: Final[tuple[BubblePhase, ...]] = ("before_write", "writing", "write_gap", "after_write")
CAUSES: Final[tuple[StallCause, ...]] = (
    "checkpoint_save", "checkpoint_load", "data_loading", "communication", "other",
)  # fmt: skip
# Columns that hold a record's value as it is.
PLAIN: Final = (
    "node", "directory", "path", "layout", "step", "result", "reason", "start_unix", "end_unix",
    "duration_seconds", "active_seconds", "bytes", "written_bytes", "files", "average_bandwidth",
    "sustained_bandwidth", "peak_bandwidth", "run", "run_id", "scheduler", "mountpoint", "device", "fstype",
    "transport", "bubble_seconds", "bubble_skipped", "dip_start_unix", "dip_end_unix", "depth", "source",
    "quality",
)  # fmt: skip
_JSON: Final = ("bubble_gpu_seconds", "drag_gpu_seconds", "notes", "shards")
SAVE_COLUMNS: Final = (*PLAIN, *(f"bubble_{phase}_seconds" for phase in PHASES), *_JSON)
GPU_COLUMNS: Final = (
    "node", "uuid", "hour_unix", "gpu", "observed_seconds", *(f"stall_{cause}_seconds" for cause in CAUSES),
)  # fmt: skip
_LOAD_PLAIN: Final = (
    "node", "directory", "path", "layout", "step", "run", "readers", "start_unix", "end_unix",
    "duration_seconds", "bytes", "files", "cached_ratio",
)  # fmt: skip
_LOAD_LATER: Final = ("mountpoint", "device", "fstype", "transport", "cold_start_seconds")
# Later columns come last, as what reads the CSV by position expects.
LOAD_COLUMNS: Final = (*_LOAD_PLAIN, "notes", *_LOAD_LATER)
STALL_COLUMNS: Final = ("node", "gpu", "uuid", "start_unix", "end_unix", "seconds", "cause", "confidence")
CONFIDENCES: Final[tuple[Confidence, ...]] = ("high", "medium", "low")

_MAX_INTEGER: Final = 2**63 - 1
LAST_UNIX: Final = 253_402_300_800  # the year 10000, which no calendar of ours shows


def save_row(record: SaveRecord) -> tuple[Value, ...]:
    """Return the values of one save in the order of ``SAVE_COLUMNS``."""
    phases = (_value(record.bubble_phases.get(phase)) for phase in PHASES)
    return (
        *(_value(getattr(record, name)) for name in PLAIN),
        *phases,
        _numbers(record.bubble_gpu_seconds),
        _numbers(record.drag_gpu_seconds),
        _notes(record.notes),
        _json([_shard(shard) for shard in record.shards]),
    )


def save_of(row: Mapping[str, Any]) -> SaveRecord:
    """Return the save of one row. Raises ValueError, TypeError or KeyError where it is none."""
    plain = {name: row[name] for name in PLAIN}
    phases = {phase: row[f"bubble_{phase}_seconds"] for phase in PHASES}
    record = SaveRecord(
        **plain,
        bubble_phases={phase: seconds for phase, seconds in phases.items() if seconds is not None},
        bubble_gpu_seconds=_by_gpu(row["bubble_gpu_seconds"]),
        drag_gpu_seconds=_by_gpu(row["drag_gpu_seconds"]),
        notes=_notes_of(row["notes"]),
        shards=tuple(_sound(ShardRecord(*entry)) for entry in json.loads(row["shards"])),
    )
    gpus = [*record.bubble_gpu_seconds.values(), *record.drag_gpu_seconds.values(), *phases.values()]
    for seconds in gpus:
        _refuse_other("float | None", seconds)
    return _sound(record)


def gpu_row(record: GpuTimeRecord) -> tuple[Value, ...]:
    """Return the values of one GPU's hour in the order of ``GPU_COLUMNS``."""
    stalls = (float(record.stall_seconds.get(cause, 0.0)) for cause in CAUSES)
    return (
        _text(record.node),
        _text(record.uuid),
        record.hour_unix,
        record.gpu,
        record.observed_seconds,
        *stalls,
    )


def gpu_time_of(row: Mapping[str, Any]) -> GpuTimeRecord:
    """Return the GPU's hour of one row. Raises ValueError, TypeError or KeyError where it is none."""
    stalls = {cause: float(row[f"stall_{cause}_seconds"]) for cause in CAUSES}
    record = GpuTimeRecord(
        node=row["node"],
        gpu=row["gpu"],
        uuid=row["uuid"],
        hour_unix=row["hour_unix"],
        observed_seconds=float(row["observed_seconds"]),
        stall_seconds={cause: seconds for cause, seconds in stalls.items() if seconds},
    )
    for seconds in stalls.values():
        _refuse_other("float", seconds)
    return _sound(record)


def load_row(record: LoadRecord) -> tuple[Value, ...]:
    """Return the values of one load in the order of ``LOAD_COLUMNS``."""
    plain, later = ([_value(getattr(record, name)) for name in names] for names in (_LOAD_PLAIN, _LOAD_LATER))
    return (*plain, _notes(record.notes), *later)


def load_of(row: Mapping[str, Any]) -> LoadRecord:
    """Return the load of one row. Raises ValueError, TypeError or KeyError where it is none."""
    plain = {name: row[name] for name in (*_LOAD_PLAIN, *_LOAD_LATER)}
    return _sound(LoadRecord(**plain, notes=_notes_of(row["notes"])))


def stall_row(record: StallRecord) -> tuple[Value, ...]:
    """Return the values of one stall in the order of ``STALL_COLUMNS``."""
    return tuple(_value(getattr(record, name)) for name in STALL_COLUMNS)


def stall_of(row: Mapping[str, Any]) -> StallRecord:
    """Return the stall of one row. Raises ValueError, TypeError or KeyError where it is none."""
    record = _sound(StallRecord(**{name: row[name] for name in STALL_COLUMNS}))
    if record.cause not in CAUSES:
        raise ValueError(record.cause)
    if record.confidence is not None and record.confidence not in CONFIDENCES:
        raise ValueError(record.confidence)
    return record


def _sound(record: _Record) -> _Record:
    """Return a record whose every value is of its kind and within reason. Raises ValueError.

    A file may come from elsewhere, and SQLite keeps any value in any column.
    """
    for item in fields(record):
        value = getattr(record, item.name)
        if item.name.endswith("_unix") and value is not None and not 0 <= value < LAST_UNIX:
            raise ValueError(item.name)
        if not isinstance(value, tuple | dict):
            _refuse_other(str(item.type), value)
    return record


def _refuse_other(kind: str, value: object) -> None:
    if value is None and kind.endswith("None"):
        return
    if kind.startswith(("int", "float")):
        wanted: type | tuple[type, ...] = int if kind.startswith("int") else (int, float)
        if isinstance(value, wanted) and abs(value) <= _MAX_INTEGER:  # type: ignore[arg-type]
            return
    elif isinstance(value, str):
        return
    raise ValueError(kind)


def stored_text(text: str) -> str:
    r"""Return a name as the history keeps it: an undecodable byte 0xNN of a file name becomes ``\xNN``."""
    if text.isascii():
        return text
    try:
        raw = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a lone surrogate that stands for no byte
        raw = text.encode("utf-8", "backslashreplace")
    return raw.decode("utf-8", "backslashreplace")


_text = stored_text


def _value(value: Value) -> Value:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int) and abs(value) > _MAX_INTEGER:
        return None  # a number in a name that no step has
    return value


def _shard(shard: ShardRecord) -> list[Value]:
    return [_text(shard.name), shard.bytes, _milliseconds(shard.start_unix), _milliseconds(shard.end_unix)]


def _milliseconds(unix: float | None) -> float | None:
    return None if unix is None or not math.isfinite(unix) else round(unix, 3)


def _numbers(by_gpu: Mapping[int, float]) -> str:
    return _json({str(gpu): seconds for gpu, seconds in sorted(by_gpu.items()) if math.isfinite(seconds)})


def _by_gpu(text: str) -> dict[int, float]:
    return {int(gpu): float(seconds) for gpu, seconds in json.loads(text).items()}


def _notes(notes: Iterable[str]) -> str:
    return _json([_text(note) for note in notes])


def _notes_of(text: str) -> tuple[str, ...]:
    return tuple(str(note) for note in json.loads(text))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
