"""One burst: files shared out among writers that begin together, then the file that commits."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckpt_exporter.analysis.bench_processes import Check, Workers
from ckpt_exporter.analysis.bench_result import Cache, WriterResult
from ckpt_exporter.analysis.bench_shape import Shape, ShapeFile, shares_of

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """How to write. ``bytes_per_second`` holds all writers together to a rate, 0 does not."""

    writers: int
    fsync: bool
    direct: bool
    caches: tuple[Cache, ...]
    repetitions: int
    bytes_per_second: float = 0.0
    fill_bytes: int | None = None


def make_places(place: str, shape: Shape) -> None:
    """Make the directories of a burst."""
    for file in (*shape.files, *((shape.marker,) if shape.marker else ())):
        os.makedirs(os.path.dirname(os.path.join(place, file.name)), mode=0o700, exist_ok=True)


def write_burst(
    place: str, shape: Shape, options: BenchOptions, check: Check, meanwhile: Callable[[], None]
) -> WriterResult:
    """Write a burst into directories that exist; return what its writers measured.

    ``check`` raises where the bench was asked to stop. Raises CkptExporterError where writing fails.
    """
    shares = shares_of(shape.files, options.writers)
    rate = options.bytes_per_second / len(shares)
    tasks = [_task(place, options, share, rate) for share in shares]
    with Workers("ckpt_exporter.analysis.bench_writer", "writer", tasks, check) as writers:
        answers = writers.work(meanwhile)
        marker = _write_marker(place, shape, fsync=options.fsync)
    return _writer_result(answers, marker, shape)


def _task(place: str, options: BenchOptions, share: list[ShapeFile], rate: float) -> dict[str, Any]:
    files = [(file.name, file.bytes) for file in share]
    return {"root": place, "files": files, "fsync": options.fsync, "direct": options.direct,
            "bytes_per_second": rate}  # fmt: skip


def _write_marker(place: str, shape: Shape, *, fsync: bool) -> float | None:
    """Write the file that commits the checkpoint, when all shards are there; return when it was closed."""
    marker = shape.marker
    if marker is None:
        return None
    with open(os.path.join(place, marker.name), "xb", buffering=0) as stream:
        stream.write(b"\0" * marker.bytes)
        if fsync:
            os.fsync(stream.fileno())
    return time.monotonic()


def _writer_result(answers: list[dict[str, Any]], marker: float | None, shape: Shape) -> WriterResult:
    begin = min(answer["begin"] for answer in answers)
    ends = [answer["end"] for answer in answers]
    seconds = [answer["end"] - answer["begin"] for answer in answers]
    written = sum(answer["bytes"] for answer in answers) + (shape.marker.bytes if shape.marker else 0)
    return WriterResult(
        seconds=(marker if marker is not None else max(ends)) - begin,
        bytes=written,
        sync_seconds=max(answer["sync_seconds"] for answer in answers),
        slowest_seconds=max(seconds),
        fastest_seconds=min(seconds),
        direct=all(answer["direct"] for answer in answers),
    )
