"""Command line: one program, its subcommands, exit status."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import platform
import sys
from typing import TYPE_CHECKING, Final

from ckpt_exporter import __version__
from ckpt_exporter.cli.bench import BENCH
from ckpt_exporter.cli.compare import COMPARE
from ckpt_exporter.cli.daemon import CHECK, DEMO, RUN
from ckpt_exporter.cli.parser import (
    EXIT_FAILURE,
    EXIT_OK,
    EXIT_USAGE,
    PROGRAM,
    Command,
    Parser,
    unknown_argument,
)
from ckpt_exporter.cli.project import PROJECT
from ckpt_exporter.cli.replay import REPLAY
from ckpt_exporter.cli.report import REPORT
from ckpt_exporter.errors import CkptExporterError, ConfigError, UsageError
from ckpt_exporter.logs import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_INTERRUPTED: Final = 130  # 128 + SIGINT, as shells report it

# What a full or broken disk says to a write on standard output, which names no file.
_OUTPUT_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})

COMMANDS: Final[dict[str, Command]] = {
    "run": RUN,
    "demo": DEMO,
    "check": CHECK,
    "report": REPORT,
    "compare": COMPARE,
    "project": PROJECT,
    "bench": BENCH,
    "replay": REPLAY,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 fine, 1 run-time failure, 2 usage or configuration."""
    try:
        status = _run_command(sys.argv[1:] if argv is None else argv)
        if sys.stdout is not None:  # closed by the caller, as cron and some supervisors do
            sys.stdout.flush()
    except ConfigError as error:
        return _complain(*error.problems, status=EXIT_USAGE)
    except UsageError as error:
        return _complain(f"{PROGRAM}: {error}", status=EXIT_USAGE)
    except CkptExporterError as error:
        return _complain(f"{PROGRAM}: {error}", status=EXIT_FAILURE)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except OSError as error:
        return _output_lost(error)
    return status


def _complain(*lines: str, status: int) -> int:
    with contextlib.suppress(OSError):  # nobody reads standard error: the status has to say it
        for line in lines:
            print(one_line(line), file=sys.stderr)
    return status


def _output_lost(error: OSError) -> int:
    """Tell why standard output took no more, but not a reader that went away. Raises any other error."""
    if isinstance(error, BrokenPipeError):
        _abandon_stdout()
        return EXIT_FAILURE
    if error.filename is not None or error.errno not in _OUTPUT_ERRORS:
        raise error
    _abandon_stdout()
    return _complain(f"{PROGRAM}: cannot write the output: {error.strerror}", status=EXIT_FAILURE)


def _abandon_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush does not fail on the broken pipe."""
    with contextlib.suppress(OSError, ValueError):
        stdout = sys.stdout.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stdout)
        os.close(nowhere)


def _run_command(argv: Sequence[str]) -> int:
    try:
        arguments = parse_arguments(argv)
    except SystemExit as done:  # --help and --version have printed what was asked for
        return int(done.code or EXIT_OK)
    return COMMANDS[arguments.command].run(arguments)


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line. Raises UsageError; --help and --version print and raise SystemExit."""
    parser, commands = build_parser()
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        commands[arguments.command].error(unknown_argument(unknown[0], commands[arguments.command]))
    return arguments


def build_parser() -> tuple[Parser, dict[str, Parser]]:
    """Return the parser of the program and those of its subcommands."""
    parser = Parser(
        prog=PROGRAM,
        description="Measure checkpoint saves of training jobs from outside and export them to Prometheus.",
        allow_abbrev=False,
    )
    version = f"{PROGRAM} {__version__} (python {platform.python_version()})"
    parser.add_argument("--version", action="version", version=version)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    commands: dict[str, Parser] = {}
    for name, command in COMMANDS.items():
        commands[name] = subparsers.add_parser(
            name,
            help=command.purpose,
            description=command.purpose,
            epilog=command.epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.add_arguments(commands[name])
    return parser, commands
