"""Read a checkpoint and measure it twice: by the detector of real loads, and by its readers."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from ckpt_exporter.analysis.bench_burst import BenchOptions, make_places, write_burst
from ckpt_exporter.analysis.bench_cache import cached_bytes, drop_cached, read_through
from ckpt_exporter.analysis.bench_place import Progress, check_space, check_stopping, workplace
from ckpt_exporter.analysis.bench_processes import Workers
from ckpt_exporter.analysis.bench_result import (
    BENCH_RUN,
    BenchResult,
    Cache,
    LoadRepetition,
    Method,
    ReaderResult,
)
from ckpt_exporter.analysis.bench_shape import Shape, ShapeFile, existing_files, shares_of
from ckpt_exporter.analysis.bench_watch import LoadWatch
from ckpt_exporter.history.gathering import load_record
from ckpt_exporter.sources.transport import identify

if TYPE_CHECKING:
    from ckpt_exporter.history.records import LoadRecord
    from ckpt_exporter.model import Load, Mount

# The cached share of a load is what the bench saw before it, not what the detector saw at its beginning.
LOOKED_BEFORE: Final = "cached_looked_before"


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How to read. ``whole``: every reader reads all files, else they share them out.

    ``bytes_per_second`` holds all readers together to a rate, 0 does not.
    """

    readers: int
    method: Method
    whole: bool
    caches: tuple[Cache, ...]
    repetitions: int
    bytes_per_second: float = 0.0


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """What is read: its files below ``base``, and of ``base`` only ``name`` where that is given."""

    base: str
    name: str | None
    files: tuple[ShapeFile, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.bytes for file in self.files)

    @property
    def paths(self) -> tuple[str, ...]:
        """Where the files are."""
        return tuple(os.path.join(self.base, file.name) for file in self.files)


def run_load_bench(
    directory: str,
    shape: Shape | None,
    options: LoadOptions,
    *,
    stopping: Callable[[], bool] = lambda: False,
    progress: Progress = lambda _what, _done, _total: None,
) -> BenchResult:
    """Read a checkpoint as often as asked, and measure it. Raises as ``run_bench`` does.

    Without a shape it is the one in ``directory``, where nothing is written; with one it is written there
    first, in a new subdirectory that is removed afterwards.
    """
    begin = time.time()
    with _checkpoint(directory, shape, stopping, progress) as checkpoint:
        mount = identify(directory)
        loads = []
        schedule = [cache for _ in range(options.repetitions) for cache in options.caches]
        for number, cache in enumerate(schedule, 1):
            what = f"{number}/{len(schedule)} ({cache} cache)"
            progress(f"{what} preparing", 0, checkpoint.bytes)
            loads.append(_load(checkpoint, cache, options, mount, stopping))
            progress(what, checkpoint.bytes, checkpoint.bytes)
    title = shape.title if shape is not None else f"the checkpoint {os.path.basename(directory)}"
    return BenchResult(
        socket.gethostname(), directory, begin, time.time(),
        {"title": title, "bytes": checkpoint.bytes, "files": len(checkpoint.files)},
        asdict(options), asdict(mount), (), tuple(loads),
    )  # fmt: skip


@contextmanager
def _checkpoint(
    directory: str, shape: Shape | None, stopping: Callable[[], bool], progress: Progress
) -> Iterator[_Checkpoint]:
    if shape is None:
        base, name = os.path.split(os.path.abspath(directory))
        yield _Checkpoint(base, name, existing_files(directory))
        return
    check_space(directory, shape.bytes)
    with workplace(directory) as root:
        base = os.path.join(root, "loads")
        make_places(base, shape)
        progress("writing what is read", 0, shape.bytes)
        options = BenchOptions(min(len(shape.files), 8), fsync=True, direct=False, caches=(), repetitions=1)
        write_burst(base, shape, options, lambda: check_stopping(stopping), lambda: None)
        files = (*shape.files, *((shape.marker,) if shape.marker else ()))
        yield _Checkpoint(base, None, tuple(file for file in files if file.bytes))


def _load(
    checkpoint: _Checkpoint, cache: Cache, options: LoadOptions, mount: Mount, stopping: Callable[[], bool]
) -> LoadRepetition:
    check_stopping(stopping)
    if cache == "cold":
        drop_cached(checkpoint.paths)
    elif cache == "warm":
        read_through(checkpoint.paths, stopping)
    before = cached_bytes(checkpoint.paths)
    # Begun anew for each load: what was done to the files so far is not to be taken for a reader.
    with LoadWatch(checkpoint.base, checkpoint.name) as watch:
        tasks = [_task(checkpoint, share, options) for share in _shares(checkpoint, options)]
        module = "ckpt_exporter.analysis.bench_reader"
        with Workers(module, "reader", tasks, lambda: check_stopping(stopping)) as readers:
            answers = readers.work(watch.tick)
            load = watch.load(stopping)
            others = load is not None and not readers.pids.issuperset(load.pids)
    check_stopping(stopping)
    share = None if before is None else before / checkpoint.bytes
    record = None if load is None else _placed(load, watch.unix_minus_t, mount, share)
    return LoadRepetition(cache, record, _reader_result(answers, checkpoint, share), others)


def _shares(checkpoint: _Checkpoint, options: LoadOptions) -> list[list[ShapeFile]]:
    if options.whole:
        return [list(checkpoint.files) for _ in range(options.readers)]
    return shares_of(checkpoint.files, options.readers)


def _task(checkpoint: _Checkpoint, share: list[ShapeFile], options: LoadOptions) -> dict[str, Any]:
    readers = options.readers if options.whole else min(options.readers, len(checkpoint.files))
    paths = [os.path.join(checkpoint.base, file.name) for file in share]
    return {"files": paths, "method": options.method, "bytes_per_second": options.bytes_per_second / readers}


def _placed(load: Load, unix_minus_t: float, mount: Mount, cached_before: float | None) -> LoadRecord:
    record = replace(load_record(load, socket.gethostname(), unix_minus_t, mount=mount), run=BENCH_RUN)
    if record.cached_ratio is not None or cached_before is None:
        return record
    # The detector came too late to look; the bench looked before it let the readers begin.
    return replace(record, cached_ratio=cached_before, notes=(*record.notes, LOOKED_BEFORE))


def _reader_result(
    answers: list[dict[str, Any]], checkpoint: _Checkpoint, cached_before: float | None
) -> ReaderResult:
    fetched = [answer["fetched_bytes"] for answer in answers]
    return ReaderResult(
        seconds=max(answer["end"] for answer in answers) - min(answer["begin"] for answer in answers),
        bytes=checkpoint.bytes,
        readers=len(answers),
        read_bytes=sum(answer["bytes"] for answer in answers),
        fetched_bytes=None if None in fetched else sum(fetched),
        cached_before=cached_before,
        direct=all(answer["direct"] for answer in answers),
    )
