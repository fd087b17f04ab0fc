"""Write a checkpoint-shaped burst and measure it twice: by the detector of real saves, and by its writers."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import IO, Any, Final

from ckpt_exporter.analysis.bench_cache import dirty_limit_bytes, fill_cache, sync_file_system
from ckpt_exporter.analysis.bench_result import BENCH_RUN, BenchResult, Cache, Repetition, WriterResult
from ckpt_exporter.analysis.bench_shape import Shape, ShapeFile, shares_of
from ckpt_exporter.analysis.numbers import size_text
from ckpt_exporter.detect.layouts import is_noise
from ckpt_exporter.errors import CkptExporterError, UsageError
from ckpt_exporter.history.records import SaveRecord
from ckpt_exporter.ledger import TICK_SECONDS, Ledger
from ckpt_exporter.logs import one_line
from ckpt_exporter.model import DetectSettings, DirectorySettings, Mount, Save
from ckpt_exporter.sources.storage import read_space
from ckpt_exporter.sources.transport import identify
from ckpt_exporter.sources.watch import WatchSource

PREFIX: Final = "ckpt-exporter-bench-"
# The bench knows when its writers are done, so silence need not be long to mean the end.
_QUIET_SECONDS: Final = 1.0
# How long after the last close a save may be looked for.
_PATIENCE_SECONDS: Final = 30.0
_START_SECONDS: Final = 15.0
_STOP_SECONDS: Final = 10.0
# Room that is left free beside the burst: a file system that is full to the brim is slow for everyone.
_SPARE: Final = 1.05


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


class StoppedError(CkptExporterError):
    """The bench was asked to stop; everything it wrote is gone."""


Progress = Callable[[str, int, int], None]  # what is done, bytes seen so far, bytes of the burst


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
    _check_space(directory, shape, options)
    try:
        root = tempfile.mkdtemp(prefix=PREFIX, dir=directory)
    except OSError as error:
        raise UsageError(f"cannot write to {one_line(directory)}: {error.strerror}") from error
    begin = time.time()
    try:
        with _Watching(os.path.join(root, "saves")) as watching:
            repetitions = [
                _repetition(
                    _Burst(root, number, shape, options, watching, stopping, progress), cache, progress
                )
                for number, cache in enumerate(_schedule(options), 1)
            ]
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if os.path.lexists(root):
        raise CkptExporterError(f"{one_line(root)} could not be removed: remove it by hand")
    mount = identify(directory)
    placed = tuple(replace(r, save=_with_mount(r.save, mount)) for r in repetitions)
    return BenchResult(
        socket.gethostname(), directory, begin, time.time(),
        {"title": shape.title, "bytes": shape.bytes, "files": shape.count},
        asdict(options), asdict(mount), placed,
    )  # fmt: skip


def _check_space(directory: str, shape: Shape, options: BenchOptions) -> None:
    space = read_space(directory)
    if space is None:
        raise UsageError(
            f"{one_line(directory)} is no directory on a file system with room: name one on the storage"
        )
    fill = _fill_bytes(shape, options) if "full" in options.caches else 0
    needed = int((shape.bytes + fill) * _SPARE)
    if needed > space[0]:
        filler = f" and {size_text(fill)} to fill the page cache" if fill else ""
        hint = ", or a smaller --fill" if fill else ""
        raise UsageError(
            f"a burst of {size_text(shape.bytes)}{filler} needs {size_text(needed)}, and "
            f"{one_line(directory)} has {size_text(space[0])} free: write a smaller --scale or --bytes{hint}"
        )


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


# --- the detector ---------------------------------------------------------------------------------------


class _Watching:
    """The watch and the detector of real saves, on the bench's own directory."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._changed = threading.Condition()
        self._saves: list[Save] = []
        self.unix_minus_t = time.time() - time.monotonic()
        settings = DirectorySettings("bench", path)
        self.ledger = Ledger(
            (settings,),
            DetectSettings(quiet_seconds=_QUIET_SECONDS, min_bytes=1),
            unix_minus_t=self.unix_minus_t,
            on_save=self._add,
        )
        # The watch's own trial file, too, stays below the bench's directory.
        self._watch = WatchSource(
            (settings,),
            self.ledger.feed,
            ignored=lambda _directory, path: is_noise(path),
            canary_parent=os.path.dirname(path),
        )

    def __enter__(self) -> _Watching:
        os.mkdir(self._path, 0o700)
        self._watch.start()
        ends = time.monotonic() + _START_SECONDS
        while not (self._watch.statuses()[0].up and self._watch.statuses()[0].watched_directories):
            if time.monotonic() > ends:
                self._watch.stop()
                raise CkptExporterError(f"{one_line(self._path)} cannot be watched")
            time.sleep(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.stop()

    def _add(self, save: Save) -> None:
        with self._changed:
            self._saves.append(save)
            self._changed.notify_all()

    def seen_bytes(self) -> int:
        """Return the bytes of the open save, as the detector sees them."""
        return sum(s.bytes for s in self.ledger.snapshot(time.monotonic()).directories[0].open_saves)

    def tick(self) -> None:
        """Let time pass for the detector."""
        self.ledger.tick(time.monotonic())

    def save_below(self, path: str, stopping: Callable[[], bool]) -> Save | None:
        """Wait for the save of one burst; None if it was not seen."""
        ends = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < ends and not stopping():
            self.tick()
            with self._changed:
                found = [save for save in self._saves if _is_in(save.path, path) and not save.late]
                if found:
                    return max(found, key=lambda save: save.bytes)
                self._changed.wait(TICK_SECONDS)
        return None


def _is_in(path: str, place: str) -> bool:
    # A place that the watch saw being made is the checkpoint itself; one that it found holds the checkpoint.
    return path == place or path.startswith(place + "/")


# --- one burst ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Burst:
    """Everything one burst needs."""

    root: str
    number: int
    shape: Shape
    options: BenchOptions
    watching: _Watching
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
    _check_stopping(burst)
    return Repetition(cache, _record(save, burst.watching) if save is not None else None, writers)


def _prepare(burst: _Burst, cache: Cache, filler: str) -> None:
    for file in (*burst.shape.files, *((burst.shape.marker,) if burst.shape.marker else ())):
        os.makedirs(os.path.dirname(os.path.join(burst.place, file.name)), mode=0o700, exist_ok=True)
    if cache == "cold":
        sync_file_system(burst.root)
    elif cache == "full":
        fill_cache(filler, _fill_bytes(burst.shape, burst.options), burst.stopping)
    # The directories are to be under watch before the first byte, as those of a job that saves again are.
    burst.watching.tick()
    time.sleep(0.1)
    _check_stopping(burst)


def _check_stopping(burst: _Burst) -> None:
    if burst.stopping():
        raise StoppedError("stopped: everything that was written is removed")


def _write_burst(burst: _Burst, what: str) -> WriterResult:
    shares = shares_of(burst.shape.files, burst.options.writers)
    rate = burst.options.bytes_per_second / len(shares)
    processes = [_start_writer() for _ in shares]
    try:
        for process, share in zip(processes, shares, strict=True):
            _send(process, _task(burst, share, rate))
        for process in processes:
            _expect(process, burst)
        for process in processes:
            _send(process, "go")
        answers = _collect(processes, burst, what)
        marker = _write_marker(burst)
    finally:
        for process in processes:
            _end(process)
    return _writer_result(answers, marker, burst.shape)


def _start_writer() -> subprocess.Popen[str]:
    # A session of its own: Ctrl-C reaches the bench alone, which then ends its writers.
    return subprocess.Popen(
        [sys.executable, "-m", "ckpt_exporter.analysis.bench_writer"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd="/",
        env={**os.environ, "PYTHONPATH": _package_root()},
    )


def _package_root() -> str:
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def _task(burst: _Burst, share: list[ShapeFile], rate: float) -> dict[str, Any]:
    files = [(file.name, file.bytes) for file in share]
    options = burst.options
    return {"root": burst.place, "files": files, "fsync": options.fsync, "direct": options.direct,
            "bytes_per_second": rate}  # fmt: skip


def _send(process: subprocess.Popen[str], message: object) -> None:
    with contextlib.suppress(BrokenPipeError):  # told by its exit status
        stream: IO[str] | None = process.stdin
        if stream is not None:
            stream.write(json.dumps(message) + "\n")
            stream.flush()


def _expect(process: subprocess.Popen[str], burst: _Burst) -> None:
    """Wait until a writer is ready, so that all begin together."""
    stream = process.stdout
    if stream is None or stream.readline().strip() != "ready":
        _check_stopping(burst)
        raise CkptExporterError("a writer could not be started")


def _collect(processes: list[subprocess.Popen[str]], burst: _Burst, what: str) -> list[dict[str, Any]]:
    """Wait for all writers, letting the detector's time pass and showing how far it sees them."""
    answers: list[dict[str, Any]] = []
    threads = [threading.Thread(target=_read_answer, args=(p, answers), daemon=True) for p in processes]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        _check_stopping(burst)
        burst.watching.tick()
        burst.progress(what, burst.watching.seen_bytes(), burst.shape.bytes)
        next((thread for thread in threads if thread.is_alive()), threads[0]).join(TICK_SECONDS)
    failed = [answer["error"] for answer in answers if "error" in answer]
    if failed or len(answers) < len(processes):
        raise CkptExporterError(
            f"writing failed: {one_line(failed[0] if failed else 'a writer ended early')}"
        )
    return answers


def _read_answer(process: subprocess.Popen[str], answers: list[dict[str, Any]]) -> None:
    line = process.stdout.readline() if process.stdout is not None else ""
    if line:
        answers.append(json.loads(line))


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):  # hangs in a dead mount: it ends when that answers
        process.wait(_STOP_SECONDS)
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def _write_marker(burst: _Burst) -> float | None:
    """Write the file that commits the checkpoint, when all shards are there; return when it was closed."""
    marker = burst.shape.marker
    if marker is None:
        return None
    path = os.path.join(burst.place, marker.name)
    with open(path, "xb", buffering=0) as stream:
        stream.write(b"\0" * marker.bytes)
        if burst.options.fsync:
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


def _record(save: Save, watching: _Watching) -> SaveRecord:
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


def leftovers(directory: str) -> list[str]:
    """Return what benches that were killed left behind."""
    with contextlib.suppress(OSError):
        return sorted(name for name in os.listdir(directory) if name.startswith(PREFIX))
    return []
