"""What the subcommands share: the parser, its option types, and the shape of a command."""

from __future__ import annotations

import argparse
import difflib
import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ckpt_exporter.errors import UsageError
from ckpt_exporter.logs import FORMATS, LEVELS, one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckpt_exporter.config.schema import Key

PROGRAM: Final = "ckpt-exporter"
EXIT_OK: Final = 0
EXIT_FAILURE: Final = 1
EXIT_USAGE: Final = 2


class Parser(argparse.ArgumentParser):
    """Report a mistake in one line that names the help to read, instead of a page of usage."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError."""
        raise UsageError(f"{message} (see {self.prog} --help)")


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand: its purpose in one sentence, its arguments, and what it does.

    ``run`` gets the parsed arguments and returns the exit status; it imports what only it needs.
    ``epilog`` is shown below the options in --help, as it stands.
    """

    purpose: str
    add_arguments: Callable[[Parser], None]
    run: Callable[[Any], int]
    epilog: str | None = None


def unknown_argument(argument: str, parser: argparse.ArgumentParser) -> str:
    """Say what is wrong with an argument that the parser did not take, with a guess at what was meant."""
    shown = one_line(argument.partition("=")[0] if argument.startswith("-") else argument)
    if not argument.startswith("-"):
        watches = "--watch" in parser._option_string_actions  # noqa: SLF001 (argparse has no public list)
        return f"unexpected argument '{shown}'" + (f", did you mean --watch {shown}?" if watches else "")
    near = difflib.get_close_matches(shown, parser._option_string_actions, n=1)  # noqa: SLF001
    return f"unknown option {shown}" + (f", did you mean {near[0]}?" if near else "")


def add_override(parser: Parser, key: Key) -> None:
    """Add the flag that overrides one key of the configuration file, if it has one."""
    if key.type == "switch" and key.flag is not None:
        parser.add_argument(
            key.flag, dest=key.path.replace(".", "_"), action="store_const", const=True, help=key.help
        )
    elif key.flag is not None:
        kind = key.type.removesuffix(" or null").replace(" ", "_").upper()
        parser.add_argument(
            key.flag, dest=key.path.replace(".", "_"), metavar=kind,
            action="append" if key.repeatable else "store",
            help=f"{key.help} (default: {key.default if key.default is not None else 'none'})",
        )  # fmt: skip


def add_config_file(parser: Parser, *, required: bool) -> None:
    """Add ``--config.file``."""
    parser.add_argument(
        "--config.file", dest="config_file", metavar="FILE", required=required, type=file_name,
        help="configuration file (YAML)",
    )  # fmt: skip


def add_logging(parser: Parser) -> None:
    """Add ``--log.level`` and ``--log.format``."""
    parser.add_argument(
        "--log.level", dest="log_level", choices=tuple(LEVELS), default="info",
        help="least important messages to show (default: info)",
    )  # fmt: skip
    parser.add_argument(
        "--log.format", dest="log_format", choices=FORMATS, default="logfmt",
        help="form of the log lines on standard error (default: logfmt)",
    )  # fmt: skip


def file_name(text: str) -> str:
    """Read a file name, with a leading ``~`` that shells leave alone in ``--flag=~/x``."""
    if not text:
        raise argparse.ArgumentTypeError("must be a file name (got '')")
    return os.path.expanduser(text)


def seconds(text: str) -> float:
    """Read a number of seconds above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0 (got '{one_line(text)}')")
    return value
