"""Command line: arguments, subcommands, exit status."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import math
import os
import platform
import sys
from typing import TYPE_CHECKING, Final, Literal, NoReturn

from ckpt_exporter import __version__
from ckpt_exporter.config.load import config_from_flags, load_config, web_from_flags
from ckpt_exporter.config.schema import Config, Key, keys
from ckpt_exporter.errors import CkptExporterError, ConfigError, UsageError
from ckpt_exporter.logs import FORMATS, LEVELS, LogFormat, LogLevel, configure_logging, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PROGRAM: Final = "ckpt-exporter"
EXIT_OK: Final = 0
EXIT_FAILURE: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130  # 128 + SIGINT, as shells report it

_NOTHING_TO_WATCH: Final = (
    f"nothing to watch: write {PROGRAM} run --watch /path/to/checkpoints, "
    f"or {PROGRAM} run --config.file=FILE with a list of directories"
)


class Arguments(argparse.Namespace):
    """The parsed command line; a flag that a subcommand does not have keeps its value here."""

    command: Literal["run", "demo", "check", "replay"]
    config_file: str | None = None
    watch: tuple[str, ...] | list[str] = ()
    record_path: str | None = None
    log_level: LogLevel = "info"
    log_format: LogFormat = "logfmt"
    history_path: str | None = None
    gpu_backend: str | None = None
    web_listen_address: str | None = None
    web_telemetry_path: str | None = None
    web_config_file: str | None = None
    duration: float | None = None
    recording: str = ""
    output_format: Literal["table", "json", "metrics"] = "table"


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
    except BrokenPipeError:
        _abandon_stdout()
        return EXIT_FAILURE
    return status


def _complain(*lines: str, status: int) -> int:
    with contextlib.suppress(OSError):  # nobody reads standard error: the status has to say it
        for line in lines:
            print(one_line(line), file=sys.stderr)
    return status


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
    return COMMANDS[arguments.command](arguments)


# --- subcommands ----------------------------------------------------------------------------------------


def _layout_names() -> tuple[str, ...]:
    from ckpt_exporter.detect.layouts import LAYOUT_NAMES  # noqa: PLC0415 (not needed for --help and --version)

    return LAYOUT_NAMES


def _overrides(arguments: Arguments) -> Mapping[str, object]:
    return {
        "history.path": arguments.history_path,
        "gpu.backend": arguments.gpu_backend,
        "web.listen_address": arguments.web_listen_address,
        "web.telemetry_path": arguments.web_telemetry_path,
        "web.config_file": arguments.web_config_file,
    }


def _config_loader(arguments: Arguments) -> Callable[[], Config]:
    """Return what reads the configuration, at start and on reload, always with the same flags."""
    file, layouts, overrides = arguments.config_file, _layout_names(), _overrides(arguments)
    watch, cwd = tuple(arguments.watch), _current_directory()
    if file is None:
        return lambda: config_from_flags(layouts, watch=watch, overrides=overrides, cwd=cwd)
    return lambda: load_config(file, layouts, watch=watch, overrides=overrides, cwd=cwd)


def _current_directory() -> str | None:
    """Return the directory that relative flags start at; None when it is gone, which only they mind."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _run(arguments: Arguments) -> int:
    if arguments.config_file is None and not arguments.watch:
        raise UsageError(_NOTHING_TO_WATCH)
    load = _config_loader(arguments)
    config = load()
    configure_logging(arguments.log_level, arguments.log_format, sys.stderr)
    from ckpt_exporter.app import run_exporter  # noqa: PLC0415 (loads every room)

    return run_exporter(config, arguments.config_file, arguments.record_path, load)


def _demo(arguments: Arguments) -> int:
    web = web_from_flags({"web.listen_address": arguments.web_listen_address})
    configure_logging(arguments.log_level, arguments.log_format, sys.stderr)
    from ckpt_exporter.demo import run_demo  # noqa: PLC0415 (loads every room)

    return run_demo(web, arguments.duration)


def _check(arguments: Arguments) -> int:
    file = str(arguments.config_file)
    count = len(load_config(file, _layout_names()).directories)
    print(f"{one_line(file)}: ok ({count} {'directory' if count == 1 else 'directories'})")
    return EXIT_OK


def _replay(arguments: Arguments) -> int:
    from ckpt_exporter.replay import run_replay  # noqa: PLC0415 (loads detector and metrics)

    return run_replay(arguments.recording, arguments.config_file, arguments.output_format, sys.stdout)


COMMANDS: Final[dict[str, Callable[[Arguments], int]]] = {
    "run": _run,
    "demo": _demo,
    "check": _check,
    "replay": _replay,
}


# --- arguments ------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """Report a mistake in one line that names the help to read, instead of a page of usage."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def parse_arguments(argv: Sequence[str]) -> Arguments:
    """Parse the command line. Raises UsageError; --help and --version print and raise SystemExit."""
    parser, commands = _build_parser()
    arguments, unknown = parser.parse_known_args(argv, namespace=Arguments())
    if unknown:
        commands[arguments.command].error(_unknown_argument(unknown[0], commands[arguments.command]))
    return arguments


def _unknown_argument(argument: str, parser: argparse.ArgumentParser) -> str:
    shown = one_line(argument.partition("=")[0] if argument.startswith("-") else argument)
    if not argument.startswith("-"):
        watches = "--watch" in parser._option_string_actions  # noqa: SLF001 (argparse has no public list)
        return f"unexpected argument '{shown}'" + (f", did you mean --watch {shown}?" if watches else "")
    near = difflib.get_close_matches(shown, parser._option_string_actions, n=1)  # noqa: SLF001
    return f"unknown option {shown}" + (f", did you mean {near[0]}?" if near else "")


def _build_parser() -> tuple[argparse.ArgumentParser, dict[str, _Parser]]:
    parser = _Parser(
        prog=PROGRAM,
        description="Measure checkpoint saves of training jobs from outside and export them to Prometheus.",
        allow_abbrev=False,
    )
    version = f"{PROGRAM} {__version__} (python {platform.python_version()})"
    parser.add_argument("--version", action="version", version=version)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(name: str, purpose: str) -> _Parser:
        added = subparsers.add_parser(name, help=purpose, description=purpose, allow_abbrev=False)
        assert isinstance(added, _Parser)  # noqa: S101 (subparsers take the class of their parser)
        return added

    commands = {
        "run": command("run", "Watch directories and serve their metrics."),
        "demo": command("demo", "Run the whole pipeline on a small training that it starts itself."),
        "check": command("check", "Validate a configuration file, print every problem, change nothing."),
        "replay": command("replay", "Run a recording through the same code and print its saves."),
    }
    _add_run(commands["run"])
    _add_demo(commands["demo"])
    _add_config_file(commands["check"], required=True)
    _add_replay(commands["replay"])
    return parser, commands


def _add_run(parser: _Parser) -> None:
    _add_config_file(parser, required=False)
    parser.add_argument(
        "--watch", nargs="+", action="extend", metavar="[NAME=]PATH", default=[],
        help="a directory in which checkpoints appear; may be repeated; adds to the configuration file",
    )  # fmt: skip
    for key in keys(()):
        _add_override(parser, key)
    parser.add_argument(
        "--record.path", dest="record_path", metavar="FILE", type=_file_name,
        help="write what the sources see to this file, for replay",
    )  # fmt: skip
    _add_logging(parser)


def _add_demo(parser: _Parser) -> None:
    for key in keys(()):
        if key.path == "web.listen_address":
            _add_override(parser, key)
    parser.add_argument(
        "--duration",
        metavar="SECONDS",
        type=_seconds,
        help="stop after so long (default: on SIGINT or SIGTERM)",
    )
    _add_logging(parser)


def _add_replay(parser: _Parser) -> None:
    parser.add_argument("recording", metavar="FILE", help="a recording made by run --record.path=FILE")
    _add_config_file(parser, required=False)
    parser.add_argument(
        "--format", dest="output_format", choices=("table", "json", "metrics"), default="table",
        help="how to print the saves (default: table)",
    )  # fmt: skip


def _add_override(parser: _Parser, key: Key) -> None:
    if key.flag is not None:
        kind = key.type.removesuffix(" or null").replace(" ", "_").upper()
        parser.add_argument(
            key.flag, dest=key.path.replace(".", "_"), metavar=kind,
            help=f"{key.help} (default: {key.default if key.default is not None else 'none'})",
        )  # fmt: skip


def _add_config_file(parser: _Parser, *, required: bool) -> None:
    parser.add_argument(
        "--config.file", dest="config_file", metavar="FILE", required=required, type=_file_name,
        help="configuration file (YAML)",
    )  # fmt: skip


def _add_logging(parser: _Parser) -> None:
    parser.add_argument(
        "--log.level", dest="log_level", choices=tuple(LEVELS), default="info",
        help="least important messages to show (default: info)",
    )  # fmt: skip
    parser.add_argument(
        "--log.format", dest="log_format", choices=FORMATS, default="logfmt",
        help="form of the log lines on standard error (default: logfmt)",
    )  # fmt: skip


def _file_name(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("must be a file name (got '')")
    return os.path.expanduser(text)  # shells leave the ~ of --flag=~/x alone


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0 (got '{one_line(text)}')")
    return seconds
