"""``replay``: a recording through the same code as the live daemon."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from ckpt_exporter.cli.parser import Command, Parser, add_config_file

if TYPE_CHECKING:
    import argparse


def _replay(arguments: argparse.Namespace) -> int:
    from ckpt_exporter.replay import run_replay  # noqa: PLC0415 (loads detector and metrics)

    return run_replay(arguments.recording, arguments.config_file, arguments.output_format, sys.stdout)


def _add_replay(parser: Parser) -> None:
    parser.add_argument("recording", metavar="FILE", help="a recording made by run --record.path=FILE")
    add_config_file(parser, required=False)
    parser.add_argument(
        "--format", dest="output_format", choices=("table", "json", "metrics"), default="table",
        help="how to print the saves (default: table)",
    )  # fmt: skip


REPLAY: Final = Command("Run a recording through the same code and print its saves.", _add_replay, _replay)
