"""Loading: a file and the command line in, checked settings or every problem at once out."""

from __future__ import annotations

import difflib
import os
import reprlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ckpt_exporter.config.document import Document, Path, given_once, read_document
from ckpt_exporter.config.schema import (
    SECTIONS,
    Config,
    GpuSettings,
    HistorySettings,
    IncludeSettings,
    Key,
    Required,
    WebSettings,
    keys,
)
from ckpt_exporter.config.values import MAX_NAME_CHARACTERS, InvalidValueError, read_file_path, read_name
from ckpt_exporter.errors import ConfigError, UsageError
from ckpt_exporter.logs import one_line
from ckpt_exporter.model import DetectSettings, DirectorySettings

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

_GOT_CHARACTERS: Final = 60
_LIST_SECTION: Final = "directories"
_NO_DIRECTORY: Final = "must name at least one directory"


def load_config(
    path: str,
    layouts: Collection[str],
    *,
    watch: Sequence[str] = (),
    overrides: Mapping[str, object] | None = None,
    cwd: str | None = None,
) -> Config:
    """Read the file, add the ``--watch`` directories, and let flags override its keys.

    ``overrides`` maps key paths such as ``web.listen_address`` to values of flags; None means not given.
    Relative paths of flags start at ``cwd`` (the process's when None). Raises UsageError for the flags and
    ConfigError, with every problem, for the file.
    """
    table = keys(layouts)
    flags = _read_overrides(table, overrides or {}, cwd)
    watched = parse_watch(watch, cwd)
    reading = _Reading(one_line(path), table, read_document(path))
    sections = reading.read()
    found = sections.pop(_LIST_SECTION, [])
    directories = tuple(DirectorySettings(**values) for values in found) if not reading.problems else ()
    directories = _with_watched(directories, watched, reading)
    included = {**sections.get("include", {}), **flags.get("include", {})}.get("directory")
    if not directories and not reading.problems and included is None:
        reading.problem((_LIST_SECTION,), _NO_DIRECTORY)
    if reading.problems:
        raise ConfigError(reading.problems)
    return _build(directories, sections, flags)


def config_from_flags(
    layouts: Collection[str],
    *,
    watch: Sequence[str],
    overrides: Mapping[str, object] | None = None,
    cwd: str | None = None,
) -> Config:
    """Make settings without a file: ``--watch`` directories, flags, and defaults. Raises UsageError."""
    flags = _read_overrides(keys(layouts), overrides or {}, cwd)
    return _build(_with_watched((), parse_watch(watch, cwd), None), {}, flags)


def load_fragment(path: str, layouts: Collection[str]) -> tuple[DirectorySettings, ...]:
    """Read a file that holds directories and nothing else; raises ConfigError with every problem."""
    reading = _Reading(
        one_line(path), keys(layouts), read_document(path, wait=False), sections=(_LIST_SECTION,)
    )
    found = reading.read().get(_LIST_SECTION, [])
    if not found and not reading.problems:
        reading.problem((_LIST_SECTION,), _NO_DIRECTORY)
    if reading.problems:
        raise ConfigError(reading.problems)
    return tuple(DirectorySettings(**values) for values in found)


def web_from_flags(overrides: Mapping[str, object], *, cwd: str | None = None) -> WebSettings:
    """Make the web settings alone from flags. Raises UsageError."""
    return WebSettings(**_read_overrides(keys(()), overrides, cwd).get("web", {}))


def _build(
    directories: tuple[DirectorySettings, ...],
    sections: Mapping[str, dict[str, Any]],
    flags: Mapping[str, dict[str, Any]],
) -> Config:
    def settings(name: str) -> dict[str, Any]:
        return {**sections.get(name, {}), **flags.get(name, {})}

    return Config(
        directories,
        DetectSettings(**settings("detect")),
        GpuSettings(**settings("gpu")),
        HistorySettings(**settings("history")),
        WebSettings(**settings("web")),
        IncludeSettings(**settings("include")),
    )


# --- the file -------------------------------------------------------------------------------------------


class _Repr(reprlib.Repr):
    """Bounded in depth, length and time, because the values come from any file."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxdict, self.maxlist = 2, 3, 4
        self.maxstring = self.maxother = self.maxlong = _GOT_CHARACTERS

    def repr_int(self, x: int, level: int) -> str:
        try:
            return super().repr_int(x, level)
        except ValueError:  # Python does not write out numbers of more than 4300 digits
            return "a very long number"


def got(value: object) -> str:
    """Show a value in a message: one line, about 60 characters, YAML's words for nothing and switches."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = one_line(_Repr().repr(value))
    return text if len(text) <= _GOT_CHARACTERS else text[: _GOT_CHARACTERS - 3] + "..."


def _join(path: Path) -> str:
    text = ""
    for part in path:
        if isinstance(part, int) and not isinstance(part, bool) and text == _LIST_SECTION:
            text += f"[{part}]"
        else:
            shown = one_line(part) if isinstance(part, str) and part and len(part) <= 60 else got(part)
            text += f".{shown}" if text else shown
    return text


class _Reading:
    """One pass over one document: what it holds, and everything that is wrong with it in its order."""

    def __init__(
        self, file: str, table: tuple[Key, ...], document: Document, sections: Collection[str] = SECTIONS
    ) -> None:
        self.file = file
        self.problems: list[str] = []
        self._document = document
        self._blocks: dict[str, dict[str, Key]] = {section: {} for section in sections}
        for key in table:
            if key.section in self._blocks:
                self._blocks[key.section][key.name] = key

    def problem(self, path: Path, what: str, value: object = Required, hint: str = "") -> None:
        """Note one problem; ``hint`` goes behind the value."""
        shown = "" if value is Required else f" (got {got(value)})"
        self.problems.append(f"{self.file}: {_join(path)}: {what}{shown}{hint}")

    def read(self) -> dict[str, Any]:
        """Return the settings of each section that the file has, as keyword arguments."""
        document = self._document.value
        if document is None:
            self.problems.append(f"{self.file}: is empty, must have at least a list of directories")
            return {}
        if not isinstance(document, dict):
            self.problems.append(
                f"{self.file}: must be keys and values at the top level (got {got(document)})"
            )
            return {}
        sections: dict[str, Any] = {}
        for name, value in self._known((), document, self._blocks):
            if value is None:  # every key of the block is commented out
                continue
            reader = self._directories if name == _LIST_SECTION else self._section
            sections[name] = reader(name, value)
        return sections

    def _known(
        self, path: Path, block: Mapping[object, object], known: Collection[str]
    ) -> Iterable[tuple[str, object]]:
        """Yield the known keys of a block; note the unknown ones and those given twice."""
        for name, value in block.items():
            lines = self._document.repeated.get((*path, name), ())
            if lines:
                self.problem((*path, name), given_once(lines))
            if isinstance(name, str) and name in known:
                yield name, value
            else:
                self.problem((*path, name), "unknown key", value, hint=self._hint(name, known))

    def _hint(self, name: object, known: Collection[str]) -> str:
        elsewhere = [f"{section}.{name}" for section, block in self._blocks.items() if name in block]
        near = difflib.get_close_matches(name, known, n=1) if isinstance(name, str) else []
        if elsewhere or near:
            return f"; did you mean '{(elsewhere or near)[0]}'?"
        return f"; known keys: {', '.join(known)}"

    def _section(self, name: str, value: object) -> dict[str, Any]:
        return self._block((name,), self._blocks[name], value)

    def _block(self, path: Path, known: Mapping[str, Key], block: object) -> dict[str, Any]:
        if not isinstance(block, dict):
            self.problem(path, "must be keys and values", block)
            return {}
        values: dict[str, Any] = {}
        for name, given in self._known(path, block, known):
            key = known[name]
            value = (self._read_list if key.many else self._read_value)(key, (*path, name), given)
            if value is not Required:
                values[key.attribute] = value
        for name, key in known.items():
            if key.default is Required and name not in block:
                self.problem((*path, name), "is missing")
        return values

    def _read_value(self, key: Key, path: Path, given: object) -> object:
        """Return the checked value, or Required after noting what is wrong with it."""
        try:
            return key.read(given)
        except InvalidValueError as wrong:
            self.problem(path, str(wrong), given)
            return Required

    def _read_list(self, key: Key, path: Path, given: object) -> object:
        if not isinstance(given, list):
            self.problem(path, f"must be a {key.type}", given)
            return Required
        items = ((*path[:-1], f"{path[-1]}[{index}]") for index in range(len(given)))
        return tuple(self._read_value(key, place, item) for place, item in zip(items, given, strict=True))

    def _directories(self, name: str, value: object) -> list[dict[str, Any]]:
        if not isinstance(value, list):
            self.problem((name,), "must be a list", value)
            return []
        first_with: dict[tuple[str, str], int] = {}
        blocks: list[dict[str, Any]] = []
        for index, item in enumerate(value):
            block = self._block((name, index), self._blocks[name], item)
            for key in ("name", "path"):
                first = first_with.setdefault((key, block[key]), index) if key in block else index
                if first != index:
                    self.problem((name, index, key), f"must be unique, {name}[{first}] has it", block[key])
            blocks.append(block)
        return blocks


# --- the command line -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Watch:
    """One ``--watch`` value; ``name`` is None where the program picks one."""

    name: str | None
    path: str


def _absolute(path: str, cwd: str | None) -> str:
    """Complete a path as its writer meant it; shells leave the ~ of --flag=~/x and NAME=~/x alone."""
    path = os.path.expanduser(path)
    if not path or path.startswith("/"):
        return path
    try:
        return os.path.normpath(os.path.join(os.getcwd() if cwd is None else cwd, path))
    except FileNotFoundError as error:
        raise UsageError(f"{path}: the current directory is gone, give an absolute path") from error


def _usage(flag: str, wrong: InvalidValueError, value: object) -> NoReturn:
    raise UsageError(f"{flag}: {wrong} (got {got(value)})") from wrong


def _read_overrides(
    table: tuple[Key, ...], overrides: Mapping[str, object], cwd: str | None
) -> dict[str, dict[str, Any]]:
    sections: dict[str, dict[str, Any]] = {}
    by_path = {key.path: key for key in table if key.flag is not None}
    for path, given in overrides.items():
        if given is None:
            continue
        key = by_path[path]
        # A flag that may be repeated and was not is one value.
        value = given[0] if key.repeatable and isinstance(given, list) and len(given) == 1 else given
        try:
            read = key.read(_absolute(value, cwd) if key.is_path and isinstance(value, str) else value)
        except InvalidValueError as wrong:
            _usage(str(key.flag), wrong, value)
        sections.setdefault(key.section, {})[key.attribute] = read
    return sections


def parse_watch(values: Sequence[str], cwd: str | None = None) -> tuple[Watch, ...]:
    """Read ``[NAME=]PATH`` values. Raises UsageError.

    The first ``=`` divides, unless a ``/`` stands before it.
    """
    return tuple(_parse_watch(value, cwd) for value in values)


def _parse_watch(value: str, cwd: str | None) -> Watch:
    before, divider, after = value.partition("=")
    named = bool(divider) and "/" not in before
    try:
        path = read_file_path(_absolute(after if named else value, cwd))
        return Watch(read_name(before) if named else None, path)
    except InvalidValueError as wrong:
        _usage("--watch", wrong, value)


def _with_watched(
    directories: tuple[DirectorySettings, ...], watched: tuple[Watch, ...], reading: _Reading | None
) -> tuple[DirectorySettings, ...]:
    """Add the watched paths; one that is configured already keeps its settings and takes the flag's name."""
    by_path = {directory.path: directory for directory in directories}
    for watch in watched:
        known = by_path.get(watch.path, DirectorySettings("", watch.path))
        by_path[watch.path] = replace(known, name=watch.name) if watch.name is not None else known
    taken: dict[str, str] = {}
    for directory in by_path.values():
        first = taken.setdefault(directory.name, directory.path) if directory.name else directory.path
        if first != directory.path:
            _name_taken(directory, first, reading)
    return tuple(
        directory if directory.name else replace(directory, name=_free_name(directory.path, taken))
        for directory in by_path.values()
    )


def _name_taken(directory: DirectorySettings, first: str, reading: _Reading | None) -> None:
    what = f"name must be unique, {one_line(first)} has it too"
    if reading is None:
        raise UsageError(f"--watch: {what} (got {got(directory.name)})")
    reading.problem((_LIST_SECTION,), f"{what} (--watch {one_line(directory.path)})", directory.name)


def _free_name(path: str, taken: dict[str, str]) -> str:
    """Make a label of the last path component, with a number where it is taken, and take it."""
    base = one_line(os.path.basename(path))[: MAX_NAME_CHARACTERS - 8]  # room for the number
    name, number = base, 2
    while name in taken:
        name, number = f"{base}-{number}", number + 1
    taken[name] = path
    return name
