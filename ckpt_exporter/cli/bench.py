"""``bench``: a checkpoint-shaped burst, measured by the same detector as real saves."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from ckpt_exporter.cli.output import add_format, print_document
from ckpt_exporter.cli.parser import EXIT_OK, PROGRAM, Command, Parser, file_name
from ckpt_exporter.cli.quantities import bandwidth, count, size
from ckpt_exporter.logs import one_line

if TYPE_CHECKING:
    from types import FrameType

    from ckpt_exporter.analysis.bench_result import BenchResult
    from ckpt_exporter.analysis.bench_shape import Shape

_LAYOUTS: Final = ("dcp", "hf_trainer", "deepspeed", "plain")
_CACHES: Final = ("as-is", "cold", "full")

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

examples:
  # How fast is this storage for our checkpoint, cold and with a full cache?
  ckpt-exporter bench /new --like /data/ckpt/step-1000 --output=new.json
  # A small try, around the page cache
  ckpt-exporter bench /new --bytes=1GB --files=8 --direct --cache=cold
  # Then judge the storage alone
  ckpt-exporter compare old.json new.json --bench=new.json --gate=G2
"""


def _bench(arguments: argparse.Namespace) -> int:
    from ckpt_exporter.analysis.bench import BenchOptions, leftovers, run_bench  # noqa: PLC0415
    from ckpt_exporter.analysis.bench_document import bench_document  # noqa: PLC0415

    shape = _shape(arguments)
    writers = int(arguments.writers) if arguments.writers else min(len(shape.files), 8)
    options = BenchOptions(
        writers, arguments.fsync, arguments.direct, arguments.cache, int(arguments.repetitions),
        float(arguments.limit or 0.0), int(arguments.fill) if arguments.fill else None,
    )  # fmt: skip
    _check_output(arguments.output)
    for name in leftovers(arguments.directory):
        left = one_line(os.path.join(arguments.directory, name))
        print(f"{PROGRAM}: left behind by a bench that was killed: {left}", file=sys.stderr)
    meter = _Meter()
    try:
        with _Signals() as signals:
            stopping = lambda: signals.number != 0  # noqa: E731 (a name for a long line)
            result = run_bench(arguments.directory, shape, options, stopping=stopping, progress=meter.show)
    finally:
        meter.clear()
    if arguments.output is not None:
        _store(result, arguments.output)
    print_document(bench_document(result), arguments.output_format)
    return EXIT_OK


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
        from ckpt_exporter.analysis.bench import StoppedError  # noqa: PLC0415

        for number, handler in self._before.items():
            signal.signal(number, handler)
        if kind is StoppedError and self.number == signal.SIGINT:
            print(f"{PROGRAM}: stopped: everything that was written is removed", file=sys.stderr)
            raise KeyboardInterrupt


class _Meter:
    """One line on a terminal that says how far a burst is; nothing where nobody looks."""

    def __init__(self) -> None:
        self._on = sys.stderr.isatty()
        self._next = 0.0
        self._width = 0

    def show(self, what: str, done: int, total: int) -> None:
        """Show the state, at most four times a second."""
        now = time.monotonic()
        if not self._on or now < self._next:
            return
        self._next = now + 0.25
        line = f"burst {what}: {done / 1e9:.2f} of {total / 1e9:.2f} GB"
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


def _whole(text: str) -> int:
    value = count(text)
    if not float(value).is_integer():
        raise argparse.ArgumentTypeError(f"must be a whole number above 0 (got '{text}')")
    return int(value)


def _add_bench(parser: Parser) -> None:
    parser.add_argument(
        "directory", metavar="DIR", type=file_name, help="a directory on the storage to measure"
    )
    what = parser.add_argument_group("what is written")
    what.add_argument("--like", metavar="DIR", type=file_name, help="the files of this checkpoint")
    what.add_argument("--layout", choices=_LAYOUTS, help="names and commit of this layout (default: dcp)")
    what.add_argument("--bytes", type=size, metavar="SIZE", help="so many bytes (10GB)")
    what.add_argument("--files", type=_whole, metavar="N", help="in so many files (default: 8)")
    what.add_argument(
        "--scale", type=count, metavar="X", help="sizes times X (default: 1 with --like, else 0.01)"
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
        "--limit", type=bandwidth, metavar="RATE", help="hold all writers together to this bandwidth"
    )
    how.add_argument("--cache", type=_caches, metavar="STATE,...", default=("cold", "full"),
                     help="states of the page cache to measure (default: cold,full)")  # fmt: skip
    how.add_argument(
        "--fill", type=size, metavar="SIZE", help="size of a full cache (default: the kernel's limit)"
    )
    how.add_argument(
        "--repetitions", type=_whole, metavar="N", default=3, help="bursts in each state (default: 3)"
    )
    parser.add_argument(
        "--output", metavar="FILE", type=file_name, help="store the result (JSON), for compare --bench"
    )
    add_format(parser)


BENCH: Final = Command(
    "Write a checkpoint-shaped burst and measure it with the detector of real saves.",
    _add_bench,
    _bench,
    EPILOG,
)
