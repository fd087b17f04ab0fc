"""The man page, from the same parsers as --help."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ckpt_exporter.cli.parser import EXIT_FAILURE, EXIT_OK, EXIT_USAGE, PROGRAM
from deploy.packaging.options import describe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deploy.packaging.options import Described, Option

_STATUSES: Final = (
    (EXIT_OK, "All is well."),
    (EXIT_FAILURE, "A failure at run time, or a gate that fails."),
    (EXIT_USAGE, "A mistake on the command line or in a configuration file."),
)
_SIGNALS: Final = (
    ("SIGHUP", "run reads its configuration file again; a bad one leaves the old one in force."),
    ("SIGTERM, SIGINT", "run and demo stop, in less than two seconds."),
    ("SIGUSR1", "run lets go of all GPU handles for a while, so that a GPU can be reset."),
)
_FILES: Final = (
    ("/etc/ckpt-exporter/config.yml", "The configuration, by convention."),
    ("/var/lib/ckpt-exporter/history.db", "Finished saves."),
    ("/run/ckpt-exporter.d/*.yml", "Fragments of the configuration, by convention."),
)


def man_page() -> str:
    """Return the man page of the program, section 1."""
    program, *commands = describe()
    lines = [
        f'.\\" Made from the parsers of {PROGRAM}: do not edit.',
        f'.TH {PROGRAM.upper()} 1 "" "{PROGRAM}" "User Commands"',
        ".SH NAME",
        f"{_text(PROGRAM)} \\- {_text(program.purpose.rstrip('.'))}",
        ".SH SYNOPSIS",
        *_synopsis(commands),
        ".SH DESCRIPTION",
        _text(program.purpose),
        "A long option takes its value behind an equals sign or as the next word.",
        ".SH OPTIONS",
        *_options(program),
        ".SH COMMANDS",
    ]
    for command in commands:
        lines += [f".SS {_text(command.name)}", _text(command.purpose), *_options(command), *_epilog(command)]
    lines += [".SH EXIT STATUS", *_terms((str(code), text) for code, text in _STATUSES)]
    lines += [".SH SIGNALS", *_terms(_SIGNALS), ".SH FILES", *_terms(_FILES)]
    return "\n".join(lines) + "\n"


def _text(text: str) -> str:
    """Make plain text safe for roff; every hyphen stays the one that can be copied."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return "\\&" + escaped if escaped.startswith((".", "'")) else escaped


def _synopsis(commands: list[Described]) -> Iterator[str]:
    for number, command in enumerate(commands):
        if number:
            yield ".br"
        arguments = [option.value or "" for option in command.options if not option.flags]
        shown = "".join(f" {_text(argument)}" for argument in arguments)
        yield f".B {_text(PROGRAM)} {_text(command.name)}\\fR [\\fIoptions\\fR]\\fI{shown}\\fR"


def _options(command: Described) -> Iterator[str]:
    for option in command.options:
        yield ".TP"
        yield _tag(option)
        yield _text(option.help)


def _tag(option: Option) -> str:
    value = f" \\fI{_text(option.value)}\\fR" if option.value else ""
    return ", ".join(f"\\fB{_text(flag)}\\fR" for flag in option.flags) + (
        value if option.flags else value[1:]
    )


def _epilog(command: Described) -> Iterator[str]:
    """Show the epilog as it stands: it is laid out by hand."""
    if command.epilog:
        yield ".PP"
        yield ".nf"
        yield from (re.sub(r"^$", r"\\&", _text(line)) for line in command.epilog.splitlines())
        yield ".fi"


def _terms(terms: Iterator[tuple[str, str]] | tuple[tuple[str, str], ...]) -> Iterator[str]:
    for term, text in terms:
        yield ".TP"
        yield f"\\fB{_text(term)}\\fR"
        yield _text(text)
