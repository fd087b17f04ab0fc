"""What ``bench`` stores: its repetitions as saves, beside what the writers themselves measured."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal

from ckpt_exporter.errors import UsageError
from ckpt_exporter.history.records import LoadRecord, Measurements, SaveRecord
from ckpt_exporter.logs import one_line

KIND: Final = "ckpt-exporter bench"
# The run that its saves belong to: they follow each other without training in between.
BENCH_RUN: Final = "ckpt-exporter bench"
VERSION: Final = 1
_MAX_FILE_BYTES: Final = 64 << 20

Cache = Literal["cold", "full", "as-is", "warm"]
CACHES: Final[tuple[Cache, ...]] = ("as-is", "cold", "full", "warm")
Method = Literal["read", "mmap", "direct"]
METHODS: Final[tuple[Method, ...]] = ("read", "mmap", "direct")


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
class ReaderResult:
    """What the readers measured of one load: first open to last byte, by their own clock.

    ``bytes`` are those of the checkpoint, ``read_bytes`` what all readers read of it together,
    ``fetched_bytes`` what they brought in from the storage. ``cached_before`` is the share (0..1) that was in
    the page cache when they began. None is unknown.
    """

    seconds: float
    bytes: int
    readers: int
    read_bytes: int
    fetched_bytes: int | None = None
    cached_before: float | None = None
    direct: bool = False


@dataclass(frozen=True, slots=True)
class LoadRepetition:
    """One load: as the detector saw it and as its readers did. ``others``: another process read along."""

    cache: Cache
    load: LoadRecord | None
    readers: ReaderResult
    others: bool = False


@dataclass(frozen=True, slots=True)
class BenchResult:
    """A whole bench. ``shape`` and ``options`` say in plain values what was written or read, and how."""

    node: str
    path: str
    begin_unix: float
    end_unix: float
    shape: dict[str, Any]
    options: dict[str, Any]
    mount: dict[str, Any] | None
    repetitions: tuple[Repetition, ...]
    loads: tuple[LoadRepetition, ...] = ()


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
        loads=tuple(map(_load_repetition, data.get("loads", ()))),
    )


def _load_repetition(item: dict[str, Any]) -> LoadRepetition:
    return LoadRepetition(
        cache=item["cache"] if item["cache"] in CACHES else "as-is",
        load=_load(item["load"]) if item["load"] is not None else None,
        readers=ReaderResult(**{f.name: item["readers"].get(f.name) for f in fields(ReaderResult)}),
        others=bool(item.get("others")),
    )


def _load(data: dict[str, Any]) -> LoadRecord:
    known = {f.name for f in fields(LoadRecord)} - {"notes"}
    record = LoadRecord(**{key: value for key, value in data.items() if key in known})
    _check_numbers(record, "start_unix", "end_unix", "duration_seconds", "bytes", "files")
    return record


def _save(data: dict[str, Any]) -> SaveRecord:
    known = {f.name for f in fields(SaveRecord)} - {"shards", "notes"}
    values = {key: value for key, value in data.items() if key in known}
    for name in ("bubble_gpu_seconds", "drag_gpu_seconds"):  # JSON has no numbers for keys
        values[name] = {int(gpu): seconds for gpu, seconds in data.get(name, {}).items()}
    record = SaveRecord(**values)
    _check_numbers(record, "start_unix", "end_unix", "bytes", "files")
    return record


def _check_numbers(record: SaveRecord | LoadRecord, *names: str) -> None:
    for name in names:
        if not isinstance(getattr(record, name), int | float):
            raise TypeError(name)


def bench_measurements(result: BenchResult) -> Measurements:
    """Return the repetitions as measured saves and loads."""
    saves = tuple(r.save for r in result.repetitions if r.save is not None)
    loads = tuple(r.load for r in result.loads if r.load is not None)
    return Measurements(
        f"bench of {one_line(result.path)} on {one_line(result.node)}",
        result.begin_unix,
        result.end_unix,
        saves,
        loads=loads,
    )
