"""``report``: what the saves and loads of a window cost, from history files or a Prometheus server."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

from ckpt_exporter.cli.output import add_format, add_source, print_document
from ckpt_exporter.cli.parser import EXIT_OK, Command, Parser, add_config_file
from ckpt_exporter.errors import UsageError

if TYPE_CHECKING:
    import argparse

EPILOG: Final = """\
Without --history and --prometheus the history of this node's daemon is read:
the path in --config.file, else the default one. Several nodes of one job: give
each node's file; their parts of a step count as one save. docs/report.md
explains every number, docs/history.md the records.

examples:
  # The last week of this node
  ckpt-exporter report --since=7d
  # One run on three nodes, as a page for a manager
  ckpt-exporter report --history=n1.db --history=n2.db --history=n3.db \\
      --run=pretrain --format=html > report.html
  # From Prometheus, where no history file is at hand
  ckpt-exporter report --prometheus=http://prometheus:9090 --since=30d
  # Every save as CSV, for a notebook
  ckpt-exporter report --history=history.db --records=csv > saves.csv
"""


def _report(arguments: argparse.Namespace) -> int:
    from ckpt_exporter.analysis.arms import moment  # noqa: PLC0415 (not needed for --help)
    from ckpt_exporter.analysis.report import Scope  # noqa: PLC0415
    from ckpt_exporter.analysis.report_document import report  # noqa: PLC0415
    from ckpt_exporter.analysis.sources import read_measurements  # noqa: PLC0415

    if arguments.history and arguments.prometheus:
        raise UsageError("--history and --prometheus are two sources: write one of them")
    if arguments.records is not None and arguments.output_format is not None:
        raise UsageError(
            f"--records={arguments.records} prints records and --format={arguments.output_format} a report: "
            "write one of them"
        )
    now = time.time()
    since, until = (moment(text, now) if text else None for text in (arguments.since, arguments.until))
    if since is not None and since >= (now if until is None else until):
        raise UsageError("--since must be before --until, and before now")
    if since is not None and until is None:
        until = now  # the last seven days end now, whether or not there was a save lately
    measured = read_measurements(
        history=arguments.history or ([] if arguments.prometheus else [_own_history(arguments.config_file)]),
        prometheus=arguments.prometheus, since=since, until=until, directory=arguments.directory,
        run=arguments.run_name,
    )  # fmt: skip
    if arguments.records is not None:
        from ckpt_exporter.history.export import export  # noqa: PLC0415

        export(measured, arguments.records, sys.stdout)
        return EXIT_OK
    scope = Scope(arguments.directory, arguments.run_name, since is not None, until is not None)
    print_document(report(measured, scope), arguments.output_format or "table")
    return EXIT_OK


def _own_history(config_file: str | None) -> str:
    from ckpt_exporter.config.schema import HistorySettings  # noqa: PLC0415

    settings = HistorySettings()
    if config_file is not None:
        from ckpt_exporter.config.load import load_config  # noqa: PLC0415
        from ckpt_exporter.detect.layouts import LAYOUT_NAMES  # noqa: PLC0415

        settings = load_config(config_file, LAYOUT_NAMES).history
    if settings.path is None:
        raise UsageError(f"{config_file}: history.path keeps none; name another with --history=FILE")
    return settings.path


def _add_report(parser: Parser) -> None:
    add_source(parser)
    add_config_file(parser, required=False)
    add_format(parser)
    parser.set_defaults(output_format=None)  # tells a format that was asked for beside --records
    parser.add_argument(
        "--records", choices=("csv", "gpu-csv", "load-csv", "stall-csv", "jsonl"),
        help="print the records themselves: saves, GPU hours, loads or stalls as CSV, or all as JSON lines",
    )  # fmt: skip


REPORT: Final = Command("Say what the saves of a window cost.", _add_report, _report, EPILOG)
