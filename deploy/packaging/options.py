"""The command line as data, read from the parsers that also print --help."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ckpt_exporter.cli import COMMANDS, build_parser

if TYPE_CHECKING:
    from collections.abc import Iterator

_FILES: Final = frozenset({"FILE", "PATH", "[NAME=]PATH", "DIR"})


@dataclass(frozen=True, slots=True)
class Option:
    """One option or, without ``flags``, one positional argument.

    ``value`` is how the help calls its value, None for a switch; ``choices`` are all values that it takes,
    when they are few; ``is_file``: its value is a file or directory.
    """

    flags: tuple[str, ...]
    value: str | None
    choices: tuple[str, ...]
    is_file: bool
    help: str


@dataclass(frozen=True, slots=True)
class Described:
    """One command, or the program itself with the name ``""``."""

    name: str
    purpose: str
    options: tuple[Option, ...]
    epilog: str


def describe() -> tuple[Described, ...]:
    """Return the program and its commands, in the order of --help."""
    parser, commands = build_parser()
    program = Described("", parser.description or "", tuple(_options(parser)), "")
    return (
        program,
        *(
            Described(
                name, COMMANDS[name].purpose, tuple(_options(commands[name])), COMMANDS[name].epilog or ""
            )
            for name in COMMANDS
        ),
    )


def _options(parser: argparse.ArgumentParser) -> Iterator[Option]:
    formatter = argparse.HelpFormatter(parser.prog)
    for action in parser._actions:  # noqa: SLF001 (argparse has no public list)
        if isinstance(action, argparse._SubParsersAction) or action.help == argparse.SUPPRESS:  # noqa: SLF001
            continue
        choices = tuple(map(str, action.choices)) if action.choices else ()
        value = None
        if action.nargs != 0:
            value = str(action.metavar or "{" + ",".join(choices) + "}")
        text = formatter._expand_help(action) if action.help else ""  # noqa: SLF001
        yield Option(tuple(action.option_strings), value, choices, value in _FILES, " ".join(text.split()))
