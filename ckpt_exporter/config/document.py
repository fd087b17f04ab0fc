"""YAML text to plain values: reading the file, broken YAML, and keys given twice."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Final

import yaml

from ckpt_exporter.errors import ConfigError
from ckpt_exporter.logs import one_line

_MAX_FILE_BYTES: Final = 1024 * 1024
_MAX_LINES_SHOWN: Final = 5
_MAX_TOLD: Final = 300  # PyYAML quotes what it does not know, however long it is
_MAX_KEY_DEPTH: Final = 4  # directories, number, key, item: nothing known stands deeper
_MAX_DEPTH: Final = 32  # known values stand at most 5 deep; the cost of nesting grows with its square
_MAX_REPEATED_VALUES: Final = 100_000  # by aliases, of which few may stand for billions of values

Path = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """The values of one file. ``repeated`` holds the lines (from 1) of every key given more than once."""

    value: object
    repeated: dict[Path, tuple[int, ...]]


def given_once(lines: tuple[int, ...]) -> str:
    """Say that a key must be given once, and on which lines it stands, of many the first few."""
    shown = [str(line) for line in lines[:_MAX_LINES_SHOWN]]
    shown += [f"{len(lines) - len(shown)} more"] if len(lines) > len(shown) else []
    return f"must be given once, stands on lines {', '.join(shown[:-1])} and {shown[-1]}"


class _Loader(yaml.SafeLoader):
    """SafeLoader whose every failure is a YAML error with a place, and to which a date is text."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (PyYAML's own attribute)
        first: [entry for entry in entries if entry[0] != "tag:yaml.org,2002:timestamp"]
        for first, entries in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, f"nested more than {_MAX_DEPTH} deep", mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, KeyError, IndexError, AttributeError, TypeError, OverflowError) as error:
            # PyYAML lets the errors of int(), float() and friends through, for !!int x and very long numbers.
            kind = str(node.tag).rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                None, None, f"this cannot be read as {kind}", node.start_mark
            ) from error


def read_document(path: str, *, wait: bool = True) -> Document:
    """Read one configuration file; raises ConfigError with the line and column of broken YAML.

    Without ``wait`` a pipe without a writer is an empty file.
    """
    file = one_line(path)
    text = _decode(file, _read_bytes(path, file, 0 if wait else os.O_NONBLOCK))
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        # Before construction, which copies merged keys into the nodes.
        if node is not None:
            _check_aliases(node)
        repeated = {} if node is None else _repeated_keys(node)
        value = None if node is None else loader.construct_document(node)
    except yaml.YAMLError as error:
        raise ConfigError([f"{file}: {_yaml_problem(error, text)}"]) from error
    except RecursionError as error:
        raise ConfigError([f"{file}: is nested too deeply"]) from error
    return Document(value, repeated)


def _read_bytes(path: str, file: str, more_flags: int) -> bytes:
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | more_flags)) as stream:
            content = stream.read(_MAX_FILE_BYTES + 1) or b""
    except FileNotFoundError as error:
        raise ConfigError([f"{file}: no such file"]) from error
    except IsADirectoryError as error:
        raise ConfigError([f"{file}: is a directory, must be a file"]) from error
    except PermissionError as error:
        user = os.geteuid()
        raise ConfigError([f"{file}: permission denied, must be readable for user id {user}"]) from error
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the name
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise ConfigError([f"{file}: cannot be read: {reason}"]) from error
    if len(content) > _MAX_FILE_BYTES:
        raise ConfigError([f"{file}: is larger than 1 MiB, must be a configuration file"])
    return content


def _decode(file: str, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = error.object[: error.start]
        place = f"line {before.count(bytes([10])) + 1}"
        raise ConfigError(
            [f"{file}: {place}: must be UTF-8 (got byte 0x{error.object[error.start]:02x})"]
        ) from error


def _yaml_problem(error: yaml.YAMLError, text: str) -> str:
    if isinstance(error, yaml.reader.ReaderError):
        before = text[: error.position]
        line, column = before.count("\n") + 1, error.position - before.rfind("\n")
        return f"line {line}, column {column}: character U+{ord(text[error.position]):04X} is not allowed"
    if not isinstance(error, yaml.MarkedYAMLError):
        return one_line(str(error))
    mark = error.problem_mark or error.context_mark
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    told = one_line(", ".join(part for part in (error.context, error.problem) if part))
    return place + (told if len(told) <= _MAX_TOLD else told[:_MAX_TOLD] + "...")


def _check_aliases(root: yaml.Node) -> None:
    """Refuse aliases that stand for what they are part of, or for far more than the file holds."""
    sizes: dict[yaml.Node, int] = {}

    def size(node: yaml.Node) -> int:
        if node not in sizes:
            sizes[node] = 0  # until it is known: then it stands in itself
            sizes[node] = 1 + sum(map(size, _parts(node)))
        if not sizes[node]:
            raise _refused(node, "this stands for what it is part of")
        return sizes[node]

    if size(root) > len(sizes) + _MAX_REPEATED_VALUES:
        raise _refused(root, f"aliases stand for more than {_MAX_REPEATED_VALUES} values")


def _parts(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


def _refused(node: yaml.Node, why: str) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, why, node.start_mark)


def _repeated_keys(root: yaml.Node) -> dict[Path, tuple[int, ...]]:
    """Find keys that stand twice in one mapping, of which YAML would silently keep the last."""
    repeated: dict[Path, tuple[int, ...]] = {}
    pending: list[tuple[Path, yaml.Node]] = [((), root)]
    while pending:
        path, node = pending.pop()
        if len(path) >= _MAX_KEY_DEPTH:
            continue
        if isinstance(node, yaml.SequenceNode):
            pending.extend(((*path, index), item) for index, item in enumerate(node.value))
        elif isinstance(node, yaml.MappingNode):
            lines: dict[str, list[int]] = defaultdict(list)
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode):
                    lines[key.value].append(key.start_mark.line + 1)
                    pending.append(((*path, key.value), value))
            repeated.update({(*path, key): tuple(found) for key, found in lines.items() if len(found) > 1})
    return repeated
