"""``bench``: a checkpoint-shaped burst, or its loading, measured by the same detector as real ones."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ckpt_exporter.cli.output import add_format, print_document
from ckpt_exporter.cli.parser import EXIT_OK, PROGRAM, Command, Parser, file_name
from ckpt_exporter.cli.quantities import bandwidth, count, size
from ckpt_exporter.logs import one_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from ckpt_exporter.analysis.bench_result import BenchResult, Cache
    from ckpt_exporter.analysis.bench_shape import Shape

_METHODS: Final = ("read", "mmap", "direct")
_LAYOUTS: Final = ("dcp", "hf_trainer", "deepspeed", "plain")
# States of the page cache by what is measured; the first two are the default.
_SAVE_CACHES: Final = ("cold", "full", "as-is")
_LOAD_CACHES: Final = ("cold", "warm", "as-is")
_CACHES: Final = ("as-is", "cold", "full", "warm")

EPILOG: Final = """\
The burst has the files, sizes and commit of a checkpoint, and is written by
parallel processes below DIR, in a new subdirectory that is removed again. It is
measured by the detector of real saves and by the writers; the two must agree.

What is written, one of:
  --like DIR                 names and sizes of a checkpoint that exists
  --layout L --bytes S       so many bytes in --files equal shards
  (neither)                  the published case, 8 x 65.6 GB, at --scale (0.01)

State of the page cache before a burst (--cache, as far as rights allow):
  cold    nothing left to write out on that file system
  full    as many dirty pages of another file as the kernel allows (--fill)
  as-is   whatever it is
Caches of other programs are never dropped.

With --load a checkpoint is read instead, by --readers processes, and measured
by the detector of real loads and by the readers: the one in --load=DIR, where
nothing is written, or without DIR a burst that is written first. --cache then:
  cold    nothing of its files left in the page cache, as far as that goes
  warm    read through once before
  as-is   whatever it is

examples:
  # How fast is this storage for our checkpoint, cold and with a full cache?
  ckpt-exporter bench /new --like /data/ckpt/step-1000 --output=new.json
  # A small try, around the page cache
  ckpt-exporter bench /new --bytes=1GB --files=8 --direct --cache=cold
  # How fast is a checkpoint loaded by eight ranks that map it?
  ckpt-exporter bench --load=/ckpt/step-1000 --readers=8 --method=mmap --whole
  # Two mounts: loads of the same burst, then compared
  ckpt-exporter bench /old --load --repetitions=5 --output=old-loads.json
  ckpt-exporter bench /new --load --repetitions=5 --output=new-loads.json
  ckpt-exporter compare old-loads.json new-loads.json --no-gates
  # Then judge the storage alone
  ckpt-exporter compare old.json new.json --bench=new.json --gate=G2
"""


def _bench(arguments: argparse.Namespace) -> int:
    from ckpt_exporter.analysis.bench_document import bench_document  # noqa: PLC0415 (not needed for --help)
    from ckpt_exporter.analysis.bench_place import leftovers  # noqa: PLC0415

    measure = _saves(arguments) if arguments.load is None else _loads(arguments)
    _check_output(arguments.output)
    place = arguments.directory or arguments.load
    for name in leftovers(place):
        left = one_line(os.path.join(place, name))
        print(f"{PROGRAM}: left behind by a bench that was killed: {left}", file=sys.stderr)
    meter = _Meter("burst" if arguments.load is None else "load")
    try:
        with _Signals() as signals:
            result = measure(stopping=lambda: signals.number != 0, progress=meter.show)
    finally:
        meter.clear()
    if arguments.output is not None:
        _store(result, arguments.output)
    print_document(bench_document(result), arguments.output_format)
    return EXIT_OK


def _saves(arguments: argparse.Namespace) -> Callable[..., BenchResult]:
    """Return what writes and measures bursts. Raises UsageError."""
    from ckpt_exporter.analysis.bench import run_bench  # noqa: PLC0415
    from ckpt_exporter.analysis.bench_burst import BenchOptions  # noqa: PLC0415
    from ckpt_exporter.errors import UsageError  # noqa: PLC0415

    if arguments.directory is None:
        raise UsageError("bench needs a directory on the storage to measure: write bench DIR")
    if arguments.readers or arguments.method or arguments.whole:
        raise UsageError("--readers, --method and --whole say how to read: write --load, too")
    shape = _shape(arguments)
    options = BenchOptions(
        int(arguments.writers) if arguments.writers else min(len(shape.files), 8),
        arguments.fsync, arguments.direct, _caches_of(arguments, _SAVE_CACHES), int(arguments.repetitions),
        float(arguments.limit or 0.0), int(arguments.fill) if arguments.fill else None,
    )  # fmt: skip
    return partial(run_bench, arguments.directory, shape, options)


def _loads(arguments: argparse.Namespace) -> Callable[..., BenchResult]:
    """Return what reads and measures a checkpoint. Raises UsageError."""
    from ckpt_exporter.analysis.bench_load import LoadOptions, run_load_bench  # noqa: PLC0415
    from ckpt_exporter.analysis.bench_shape import existing_files  # noqa: PLC0415
    from ckpt_exporter.errors import UsageError  # noqa: PLC0415

    existing = arguments.load or None
    if existing is not None and arguments.directory is not None:
        raise UsageError(
            f"--load={one_line(existing)} reads the checkpoint there: leave {one_line(arguments.directory)} "
            "out, or write --load without a directory, last, to read a burst that is written first"
        )
    if existing is None and arguments.directory is None:
        raise UsageError("--load needs a checkpoint, or a directory to write one to: write --load=DIR")
    asked = [
        f"--{name}" for name in ("like", "layout", "bytes", "files", "scale") if getattr(arguments, name)
    ]
    if existing is not None and asked:
        raise UsageError(f"--load={one_line(existing)} reads what is there: leave {asked[0]} out")
    if arguments.direct or arguments.writers or arguments.fill or not arguments.fsync:
        raise UsageError(
            "--direct, --writers, --fill and --no-fsync say how to write: leave them out with --load; "
            "--method=direct reads around the page cache"
        )
    shape = _shape(arguments) if existing is None else None
    files = shape.files if shape is not None else existing_files(existing or "")
    options = LoadOptions(
        int(arguments.readers) if arguments.readers else min(len(files), 8),
        arguments.method or "read", arguments.whole, _caches_of(arguments, _LOAD_CACHES),
        int(arguments.repetitions), float(arguments.limit or 0.0),
    )  # fmt: skip
    return partial(run_load_bench, existing or arguments.directory, shape, options)


def _caches_of(arguments: argparse.Namespace, known: tuple[str, ...]) -> tuple[Cache, ...]:
    """Return the states of the page cache that were asked for. Raises UsageError."""
    from ckpt_exporter.errors import UsageError  # noqa: PLC0415

    chosen: tuple[Any, ...] = arguments.cache or known[:2]
    for cache in chosen:
        if cache not in known:
            what = "loads" if "warm" in known else "bursts"
            raise UsageError(f"--cache={cache} is no state before {what}: choose of {', '.join(known)}")
    return chosen


def _shape(arguments: argparse.Namespace) -> Shape:
    from ckpt_exporter.analysis.bench_shape import (  # noqa: PLC0415 (not needed for --help)
        DEFAULT_SCALE,
        layout_shape,
        like_shape,
        published_shape,
    )
    from ckpt_exporter.errors import UsageError  # noqa: PLC0415

    if arguments.like is not None:
        if arguments.bytes or arguments.layout or arguments.files:
            raise UsageError("--like says what to write already: leave --layout, --bytes and --files out")
        return like_shape(arguments.like, float(arguments.scale or 1.0))
    if arguments.bytes is not None:
        if arguments.scale is not None:
            raise UsageError("--bytes says how much to write already: leave --scale out")
        return layout_shape(arguments.layout or "dcp", int(arguments.bytes), int(arguments.files or 8))
    if arguments.layout or arguments.files:
        raise UsageError("--layout and --files need --bytes: write --bytes=10GB, too")
    return published_shape(float(arguments.scale or DEFAULT_SCALE))


def _check_output(path: str | None) -> None:
    """Find out before the work, not after it, that the result cannot be stored."""
    from ckpt_exporter.errors import UsageError  # noqa: PLC0415

    if path is not None:
        parent = os.path.dirname(os.path.abspath(path))
        if not os.access(parent, os.W_OK) or os.path.isdir(path):
            raise UsageError(f"--output={path} cannot be written: name a file in a directory that can")


def _store(result: BenchResult, path: str) -> None:
    from ckpt_exporter.analysis.bench_document import bench_data  # noqa: PLC0415
    from ckpt_exporter.errors import CkptExporterError  # noqa: PLC0415

    try:
        with open(path, "w", encoding="utf-8") as stream:
            json.dump(bench_data(result), stream, indent=2)
            stream.write("\n")
    except OSError as error:
        raise CkptExporterError(f"cannot store the result in {path}: {error.strerror}") from error


class _Signals:
    """Handlers that only note the signal; afterwards the program ends as the signal asks."""

    def __init__(self) -> None:
        self.number = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.number = number

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        from ckpt_exporter.analysis.bench_place import StoppedError  # noqa: PLC0415

        for number, handler in self._before.items():
            signal.signal(number, handler)
        if kind is StoppedError and self.number == signal.SIGINT:
            print(f"{PROGRAM}: stopped: everything that was written is removed", file=sys.stderr)
            raise KeyboardInterrupt


class _Meter:
    """One line on a terminal that says how far a burst is; nothing where nobody looks."""

    def __init__(self, noun: str) -> None:
        self._noun = noun
        self._on = sys.stderr.isatty()
        self._next = 0.0
        self._width = 0

    def show(self, what: str, done: int, total: int) -> None:
        """Show the state, at most four times a second."""
        now = time.monotonic()
        if not self._on or now < self._next:
            return
        self._next = now + 0.25
        line = f"{self._noun} {what}: {done / 1e9:.2f} of {total / 1e9:.2f} GB"
        print(f"\r{line:<{self._width}}", end="", file=sys.stderr, flush=True)
        self._width = max(self._width, len(line))

    def clear(self) -> None:
        """Take the line away."""
        if self._on and self._width:
            print(f"\r{' ' * self._width}\r", end="", file=sys.stderr, flush=True)


def _caches(text: str) -> tuple[str, ...]:
    chosen = tuple(part.strip() for part in text.split(","))
    if not chosen or any(part not in _CACHES for part in chosen):
        raise argparse.ArgumentTypeError(
            f"must be some of {', '.join(_CACHES)} with commas between (got '{text}')"
        )
    return tuple(dict.fromkeys(chosen))


def _optional_file_name(text: str) -> str:
    return file_name(text) if text else text


def _whole(text: str) -> int:
    value = count(text)
    if not float(value).is_integer():
        raise argparse.ArgumentTypeError(f"must be a whole number above 0 (got '{text}')")
    return int(value)


def _add_bench(parser: Parser) -> None:
    parser.add_argument(
        "directory", nargs="?", metavar="DIR", type=file_name, help="a directory on the storage to measure"
    )
    what = parser.add_argument_group("what is written")
    what.add_argument("--like", metavar="DIR", type=file_name, help="the files of this checkpoint")
    what.add_argument("--layout", choices=_LAYOUTS, help="names and commit of this layout (default: dcp)")
    what.add_argument("--bytes", type=size, metavar="SIZE", help="so many bytes (10GB)")
    what.add_argument("--files", type=_whole, metavar="N", help="in so many files (default: 8)")
    what.add_argument(
        "--scale", type=count, metavar="X", help="sizes times X (default: 1 with --like, else 0.01)"
    )
    read = parser.add_argument_group("what is read")
    read.add_argument(
        "--load", nargs="?", const="", metavar="DIR", type=_optional_file_name,
        help="read instead of write: the checkpoint DIR, or without DIR the burst, written first",
    )  # fmt: skip
    read.add_argument(
        "--readers", type=_whole, metavar="N", help="parallel readers (default: one a file, up to 8)"
    )
    read.add_argument(
        "--method",
        choices=_METHODS,
        help="read by calls, by mapping, or around the page cache (default: read)",
    )
    read.add_argument(
        "--whole", action="store_true", help="each reader reads all files (default: they share them out)"
    )
    how = parser.add_argument_group("how")
    how.add_argument(
        "--writers", type=_whole, metavar="N", help="parallel writers (default: one a file, up to 8)"
    )
    how.add_argument("--fsync", action=argparse.BooleanOptionalAction, default=True, help="sync every file")
    how.add_argument(
        "--direct", action="store_true", help="write around the page cache where that is possible"
    )
    how.add_argument(
        "--limit",
        type=bandwidth,
        metavar="RATE",
        help="hold all writers (readers) together to this bandwidth",
    )
    how.add_argument(
        "--cache", type=_caches, metavar="STATE,...",
        help="states of the page cache to measure (default: cold,full; of loads cold,warm)",
    )  # fmt: skip
    how.add_argument(
        "--fill", type=size, metavar="SIZE", help="size of a full cache (default: the kernel's limit)"
    )
    how.add_argument(
        "--repetitions",
        type=_whole,
        metavar="N",
        default=3,
        help="bursts or loads in each state (default: 3)",
    )
    parser.add_argument(
        "--output", metavar="FILE", type=file_name, help="store the result (JSON), for compare --bench"
    )
    add_format(parser)


BENCH: Final = Command(
    "Write or load a checkpoint-shaped burst, measured by the detector of real ones.",
    _add_bench,
    _bench,
    EPILOG,
)
