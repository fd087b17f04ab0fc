"""Write a checkpoint-shaped burst and measure it twice: by the detector of real saves, and by its writers."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from ckpt_exporter.analysis.bench_burst import BenchOptions, make_places, write_burst
from ckpt_exporter.analysis.bench_cache import dirty_limit_bytes, fill_cache, sync_file_system
from ckpt_exporter.analysis.bench_place import Progress, check_space, check_stopping, workplace
from ckpt_exporter.analysis.bench_result import BENCH_RUN, BenchResult, Cache, Repetition, WriterResult
from ckpt_exporter.analysis.bench_shape import Shape
from ckpt_exporter.analysis.bench_watch import SaveWatch
from ckpt_exporter.history.records import SaveRecord
from ckpt_exporter.model import Mount, Save
from ckpt_exporter.sources.transport import identify


def run_bench(
    directory: str,
    shape: Shape,
    options: BenchOptions,
    *,
    stopping: Callable[[], bool] = lambda: False,
    progress: Progress = lambda _what, _done, _total: None,
) -> BenchResult:
    """Write every burst, measure it, remove it. Raises UsageError, CkptExporterError and StoppedError.

    Writes nothing outside a new subdirectory of ``directory``, and removes that whatever happens.
    """
    fill = _fill_bytes(shape, options) if "full" in options.caches else 0
    check_space(directory, shape.bytes, fill)
    begin = time.time()
    with workplace(directory) as root, SaveWatch(os.path.join(root, "saves")) as watching:
        repetitions = [
            _repetition(_Burst(root, number, shape, options, watching, stopping, progress), cache, progress)
            for number, cache in enumerate(_schedule(options), 1)
        ]
    mount = identify(directory)
    placed = tuple(replace(r, save=_with_mount(r.save, mount)) for r in repetitions)
    return BenchResult(
        socket.gethostname(), directory, begin, time.time(),
        {"title": shape.title, "bytes": shape.bytes, "files": shape.count},
        asdict(options), asdict(mount), placed,
    )  # fmt: skip


def _fill_bytes(shape: Shape, options: BenchOptions) -> int:
    """Return how much to write before a burst into a full cache: the kernel's own limit of dirty bytes."""
    if options.fill_bytes is not None:
        return options.fill_bytes
    return dirty_limit_bytes() or shape.bytes


def _schedule(options: BenchOptions) -> list[Cache]:
    """Alternate the states, so that whatever drifts meets all of them alike."""
    return [cache for _ in range(options.repetitions) for cache in options.caches]


def _with_mount(save: SaveRecord | None, mount: Mount) -> SaveRecord | None:
    if save is None:
        return None
    return replace(
        save, mountpoint=mount.mountpoint, device=mount.device, fstype=mount.fstype, transport=mount.transport
    )


# --- one burst ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Burst:
    """Everything one burst needs."""

    root: str
    number: int
    shape: Shape
    options: BenchOptions
    watching: SaveWatch
    stopping: Callable[[], bool]
    progress: Progress

    @property
    def place(self) -> str:
        """Directory of this burst alone."""
        return os.path.join(self.root, "saves", f"r{self.number}")


def _repetition(burst: _Burst, cache: Cache, progress: Progress) -> Repetition:
    total = burst.options.repetitions * len(burst.options.caches)
    what = f"{burst.number}/{total} ({cache} cache)"
    filler = os.path.join(burst.root, "filler")
    progress(f"{what} preparing", 0, burst.shape.bytes)
    _prepare(burst, cache, filler)
    try:
        writers = _write_burst(burst, what)
        save = burst.watching.save_below(burst.place, burst.stopping)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(filler)
        shutil.rmtree(burst.place, ignore_errors=True)
    check_stopping(burst.stopping)
    return Repetition(cache, _record(save, burst.watching) if save is not None else None, writers)


def _prepare(burst: _Burst, cache: Cache, filler: str) -> None:
    make_places(burst.place, burst.shape)
    if cache == "cold":
        sync_file_system(burst.root)
    elif cache == "full":
        fill_cache(filler, _fill_bytes(burst.shape, burst.options), burst.stopping)
    # The directories are to be under watch before the first byte, as those of a job that saves again are.
    burst.watching.tick()
    time.sleep(0.1)
    check_stopping(burst.stopping)


def _write_burst(burst: _Burst, what: str) -> WriterResult:
    def meanwhile() -> None:
        burst.watching.tick()
        burst.progress(what, burst.watching.seen_bytes(), burst.shape.bytes)

    return write_burst(
        burst.place, burst.shape, burst.options, lambda: check_stopping(burst.stopping), meanwhile
    )


def _record(save: Save, watching: SaveWatch) -> SaveRecord:
    return SaveRecord(
        node=socket.gethostname(),
        directory=save.directory,
        path=save.path,
        layout=save.layout,
        result=save.result,
        start_unix=save.start + watching.unix_minus_t,
        end_unix=save.end + watching.unix_minus_t,
        bytes=save.bytes,
        files=save.files,
        reason=save.reason,
        duration_seconds=save.duration_seconds,
        active_seconds=save.active_seconds,
        average_bandwidth=save.average_bandwidth,
        sustained_bandwidth=save.sustained_bandwidth,
        peak_bandwidth=save.peak_bandwidth,
        run=BENCH_RUN,
    )
