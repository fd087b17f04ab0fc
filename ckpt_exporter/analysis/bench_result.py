"""What ``bench`` stores: its repetitions as saves, beside what the writers themselves measured."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal

from ckpt_exporter.errors import UsageError
from ckpt_exporter.history.records import Measurements, SaveRecord
from ckpt_exporter.logs import one_line

KIND: Final = "ckpt-exporter bench"
# The run that its saves belong to: they follow each other without training in between.
BENCH_RUN: Final = "ckpt-exporter bench"
VERSION: Final = 1
_MAX_FILE_BYTES: Final = 64 << 20

Cache = Literal["cold", "full", "as-is"]
CACHES: Final[tuple[Cache, ...]] = ("as-is", "cold", "full")


@dataclass(frozen=True, slots=True)
class WriterResult:
    """What the writers measured of one burst: first open to last close (and fsync), by their own clock."""

    seconds: float
    bytes: int
    sync_seconds: float = 0.0
    slowest_seconds: float | None = None
    fastest_seconds: float | None = None
    direct: bool = False


@dataclass(frozen=True, slots=True)
class Repetition:
    """One burst: as the detector saw it and as its writers did."""

    cache: Cache
    save: SaveRecord | None
    writers: WriterResult


@dataclass(frozen=True, slots=True)
class BenchResult:
    """A whole bench. ``shape`` and ``options`` say in plain values what was written and how."""

    node: str
    path: str
    begin_unix: float
    end_unix: float
    shape: dict[str, Any]
    options: dict[str, Any]
    mount: dict[str, Any] | None
    repetitions: tuple[Repetition, ...]


def bench_json(result: BenchResult) -> dict[str, Any]:
    """Return the result with its stable keys."""
    return {"kind": KIND, "version": VERSION, **asdict(result)}


def is_bench_result(path: str) -> bool:
    """Tell whether a file looks like a bench result; False where it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return stream.read(256).lstrip().startswith(b"{")
    except OSError:
        return False


def read_bench_result(path: str) -> BenchResult:
    """Read a stored result. Raises UsageError for anything else."""
    shown = one_line(path)
    try:
        with open(path, encoding="utf-8") as stream:
            data = json.loads(stream.read(_MAX_FILE_BYTES))
    except OSError as error:
        raise UsageError(f"{shown}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{shown}: is no bench result: not JSON") from error
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise UsageError(
            f"{shown}: is no bench result: write ckpt-exporter bench DIR --output={shown} to make one"
        )
    if data.get("version") != VERSION:
        raise UsageError(f"{shown}: bench result of another version ({one_line(str(data.get('version')))})")
    try:
        return _result(data)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise UsageError(
            f"{shown}: is no bench result: something in it is missing or of another kind"
        ) from error


def _result(data: dict[str, Any]) -> BenchResult:
    repetitions = tuple(
        Repetition(
            cache=item["cache"] if item["cache"] in CACHES else "as-is",
            save=_save(item["save"]) if item["save"] is not None else None,
            writers=WriterResult(**{f.name: item["writers"].get(f.name) for f in fields(WriterResult)}),
        )
        for item in data["repetitions"]
    )
    return BenchResult(
        node=str(data["node"]),
        path=str(data["path"]),
        begin_unix=float(data["begin_unix"]),
        end_unix=float(data["end_unix"]),
        shape=dict(data["shape"]),
        options=dict(data["options"]),
        mount=dict(data["mount"]) if data["mount"] is not None else None,
        repetitions=repetitions,
    )


def _save(data: dict[str, Any]) -> SaveRecord:
    known = {f.name for f in fields(SaveRecord)} - {"shards", "notes"}
    values = {key: value for key, value in data.items() if key in known}
    for name in ("bubble_gpu_seconds", "drag_gpu_seconds"):  # JSON has no numbers for keys
        values[name] = {int(gpu): seconds for gpu, seconds in data.get(name, {}).items()}
    record = SaveRecord(**values)
    for name in ("start_unix", "end_unix", "bytes", "files"):
        if not isinstance(getattr(record, name), int | float):
            raise TypeError(name)
    return record


def bench_measurements(result: BenchResult) -> Measurements:
    """Return the repetitions as measured saves."""
    saves = tuple(r.save for r in result.repetitions if r.save is not None)
    return Measurements(
        f"bench of {one_line(result.path)} on {one_line(result.node)}",
        result.begin_unix,
        result.end_unix,
        saves,
    )
