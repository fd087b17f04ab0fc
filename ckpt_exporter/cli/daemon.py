"""``run``, ``demo`` and ``check``: the daemon and its configuration."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from ckpt_exporter.cli.parser import (
    EXIT_OK,
    PROGRAM,
    Command,
    Parser,
    add_config_file,
    add_logging,
    add_override,
    file_name,
    seconds,
)
from ckpt_exporter.config.fragments import Fragments
from ckpt_exporter.config.load import config_from_flags, load_config, web_from_flags
from ckpt_exporter.config.schema import Config, keys
from ckpt_exporter.errors import ConfigError, UsageError
from ckpt_exporter.logs import configure_logging, one_line

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

_NOTHING_TO_WATCH: Final = (
    f"nothing to watch: write {PROGRAM} run --watch /path/to/checkpoints, "
    f"or {PROGRAM} run --config.file=FILE with a list of directories"
)


def _layout_names() -> tuple[str, ...]:
    from ckpt_exporter.detect.layouts import LAYOUT_NAMES  # noqa: PLC0415 (not needed for --help and --version)

    return LAYOUT_NAMES


def _overrides(arguments: argparse.Namespace) -> Mapping[str, object]:
    flagged = [key for key in keys(()) if key.flag is not None]
    return {key.path: getattr(arguments, key.path.replace(".", "_")) for key in flagged}


def _config_loader(arguments: argparse.Namespace) -> Callable[[], Config]:
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


def _run(arguments: argparse.Namespace) -> int:
    if arguments.config_file is None and not arguments.watch and arguments.include_directory is None:
        raise UsageError(_NOTHING_TO_WATCH)
    fragments = Fragments(_config_loader(arguments), _layout_names())
    config = fragments.read()
    configure_logging(arguments.log_level, arguments.log_format, sys.stderr)
    from ckpt_exporter.daemon import run_exporter  # noqa: PLC0415 (loads every room)

    return run_exporter(
        config, arguments.config_file, arguments.record_path, fragments.read, fragments=fragments
    )


def _demo(arguments: argparse.Namespace) -> int:
    web = web_from_flags({"web.listen_address": arguments.web_listen_address})
    configure_logging(arguments.log_level, arguments.log_format, sys.stderr)
    from ckpt_exporter.demo import run_demo  # noqa: PLC0415 (loads every room)

    return run_demo(web, arguments.duration)


def _check(arguments: argparse.Namespace) -> int:
    file, web_file = arguments.config_file, arguments.web_config_file
    if file is None and web_file is None:
        raise UsageError("nothing to check: write --config.file=FILE or --web.config.file=FILE")
    layouts = _layout_names()
    said, problems = [], list[str]()
    if file is not None:
        try:
            config = Fragments(lambda: load_config(file, layouts), layouts).read()
            problems += config.refused
            count = len(config.directories)
            said.append(f"{one_line(file)}: ok ({count} {'directory' if count == 1 else 'directories'})")
            web_file = web_file or config.web.config_file
        except ConfigError as error:
            problems += error.problems
    if web_file is not None:
        try:
            said.append(f"{one_line(web_file)}: ok ({_web_summary(web_file)})")
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    print("\n".join(said))
    return EXIT_OK


def _web_summary(file: str) -> str:
    from ckpt_exporter.web.security import read_security  # noqa: PLC0415 (loads the web room)

    settings = read_security(file).settings
    tls = settings.tls if settings is not None else None
    users = len(settings.users) if settings is not None else 0
    clients = f" and {tls.client_auth_type}" if tls is not None else ""
    return f"{'TLS' if tls is not None else 'no TLS'}{clients}, {users} {'user' if users == 1 else 'users'}"


def _add_run(parser: Parser) -> None:
    add_config_file(parser, required=False)
    parser.add_argument(
        "--watch", nargs="+", action="extend", metavar="[NAME=]PATH", default=[],
        help="a directory in which checkpoints appear; may be repeated; adds to the configuration file",
    )  # fmt: skip
    for key in keys(()):
        add_override(parser, key)
    parser.add_argument(
        "--record.path", dest="record_path", metavar="FILE", type=file_name,
        help="write what the sources see to this file, for replay",
    )  # fmt: skip
    add_logging(parser)


def _add_demo(parser: Parser) -> None:
    for key in keys(()):
        if key.path == "web.listen_address":
            add_override(parser, key)
    parser.add_argument(
        "--duration",
        metavar="SECONDS",
        type=seconds,
        help="stop after so long (default: on SIGINT or SIGTERM)",
    )
    add_logging(parser)


def _add_check(parser: Parser) -> None:
    add_config_file(parser, required=False)
    parser.add_argument(
        "--web.config.file", dest="web_config_file", metavar="FILE", type=file_name,
        help="web configuration (certificates, users): alone, or in place of the one that the file names",
    )  # fmt: skip


RUN: Final = Command("Watch directories and serve their metrics.", _add_run, _run)
DEMO: Final = Command("Run the whole pipeline on a small training that it starts itself.", _add_demo, _demo)
CHECK: Final = Command(
    "Validate a configuration file, print every problem, change nothing.", _add_check, _check
)
