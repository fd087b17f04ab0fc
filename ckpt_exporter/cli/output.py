"""How results leave the program: format, width, and where measurements come from."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Final

from ckpt_exporter.cli.parser import Parser, file_name

if TYPE_CHECKING:
    import argparse

    from ckpt_exporter.analysis.arms import Source
    from ckpt_exporter.analysis.document import Document

_NARROWEST: Final = 40
_WIDEST: Final = 132


def add_format(parser: Parser) -> None:
    """Add ``--format``."""
    parser.add_argument(
        "--format", dest="output_format", choices=("table", "json", "markdown", "html"), default="table",
        help="how to print the result (default: table); html is one file with pictures",
    )  # fmt: skip


def add_source(parser: Parser) -> None:
    """Add the flags that name measurements and select among them."""
    group = parser.add_argument_group("measurements")
    group.add_argument(
        "--history", action="append", default=[], metavar="FILE", type=file_name,
        help="a history file of run --history.path, or a result of bench; repeat it for several nodes",
    )  # fmt: skip
    group.add_argument("--prometheus", metavar="URL", help="a Prometheus server that scrapes the exporters")
    group.add_argument(
        "--since", metavar="TIME", help="from when: 7d (ago), 2026-11-30, 2026-11-30T12:00:00Z"
    )
    group.add_argument("--until", metavar="TIME", help="until when, written alike")
    group.add_argument("--dir", dest="directory", metavar="NAME", help="only this configured directory")
    group.add_argument("--run", dest="run_name", metavar="RUN", help="only this run or job id")


def source_of(arguments: argparse.Namespace, now_unix: float) -> Source | None:
    """Return the measurements that the flags name, None where they name none. Raises UsageError."""
    from ckpt_exporter.analysis.arms import Source, moment  # noqa: PLC0415 (not needed for --help)
    from ckpt_exporter.errors import UsageError  # noqa: PLC0415

    since, until = (moment(text, now_unix) if text else None for text in (arguments.since, arguments.until))
    if not arguments.history and not arguments.prometheus:
        if since or until or arguments.directory or arguments.run_name:
            raise UsageError(
                "--since, --until, --dir and --run select among measurements: write --history=FILE, too"
            )
        return None
    if arguments.history and arguments.prometheus:
        raise UsageError("--history and --prometheus are two sources: write one of them")
    files = tuple(arguments.history)
    return Source(
        ", ".join(files) or arguments.prometheus, files, arguments.prometheus, since, until,
        arguments.directory, arguments.run_name,
    )  # fmt: skip


def print_document(document: Document, output_format: str) -> None:
    """Print a document on standard output, as wide as its terminal (80 cells where there is none)."""
    from ckpt_exporter.analysis.render import render, write  # noqa: PLC0415 (not needed for --help)

    width = shutil.get_terminal_size((80, 24)).columns
    write(render(document, output_format, width=max(_NARROWEST, min(_WIDEST, width))), sys.stdout)  # type: ignore[arg-type]
