"""Recordings: what the sources saw, one JSON object a line, and back."""

from __future__ import annotations

import json
import threading
import types
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import IO, Any, Literal, Union, get_args, get_origin, get_type_hints

from ckpt_exporter.errors import CkptExporterError
from ckpt_exporter.model import (
    DirectorySettings,
    Fact,
    FileEvent,
    GpuInfo,
    GpuSample,
    GpuSet,
    HostEvidence,
    LoadGpus,
    Progress,
    Quiet,
    ReadEvent,
    Reading,
    RemoteFile,
    RemoteLook,
    Space,
    WatchChange,
    Writers,
)

FLUSH_SECONDS = 0.2
# Beyond these a line is damaged: a century of uptime, the year 9999, 64 bits.
_MAX_SECONDS = 3.2e9
_MAX_UNIX = 253_402_300_800.0
_MAX_NUMBER = 1 << 63
MAX_QUEUED_LINES = 200_000


_KINDS: dict[str, type[Fact]] = {
    "file": FileEvent,
    "progress": Progress,
    "run": Writers,
    "read": ReadEvent,
    "reading": Reading,
    "load": LoadGpus,
    "space": Space,
    "watch": WatchChange,
    "gpu": GpuSample,
    "remote": RemoteFile,
    "looked": RemoteLook,
    "host": HostEvidence,
    "quiet": Quiet,
}


@dataclass(frozen=True, slots=True)
class _Declared:
    """What a field may hold: types of values, of a tuple's items, and the words that are meant by a str."""

    types: frozenset[type]
    items: frozenset[type] = frozenset()
    words: frozenset[str] = frozenset()


def _declared(hint: Any) -> _Declared:
    origin, choices = get_origin(hint), get_args(hint)
    if origin is Literal:
        return _Declared(frozenset({str}), words=frozenset(choices))
    if origin is tuple:
        return _Declared(frozenset({tuple}), items=_declared(choices[0]).types)
    if origin in (Union, types.UnionType):
        parts = [_declared(choice) for choice in choices]
        return _Declared(
            frozenset().union(*(part.types for part in parts)),
            frozenset().union(*(part.items for part in parts)),
            frozenset().union(*(part.words for part in parts)),
        )
    return _Declared(frozenset({int, float}) if hint is float else frozenset({hint}))


def _refuse(constant: str) -> None:
    raise ValueError(constant)


_DECLARED: dict[type, dict[str, _Declared]] = {
    cls: {name: _declared(hint) for name, hint in get_type_hints(cls).items()}
    for cls in (*_KINDS.values(), GpuInfo)
}
# No source has a reading that is no number.
_DECODER = json.JSONDecoder(parse_constant=_refuse)
_KIND_OF: dict[type, str] = {cls: kind for kind, cls in _KINDS.items()}
# Short keys of the format where the value's own name is longer.
_SHORT = {"is_dir": "dir", "directory": "name"}
_LONG = {short: long for long, short in _SHORT.items()}


@dataclass(frozen=True, slots=True)
class Start:
    """First line of a recording: when it began (Unix seconds at ``t``) and what was watched."""

    t: float
    unix: float
    directories: tuple[DirectorySettings, ...]
    gpus: tuple[GpuInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class Stop:
    """Last line of a recording that was ended on purpose."""

    t: float


class Recorder:
    """Write facts to a stream as they come.

    ``write`` only queues, so that a slow disk delays nobody; a thread of its own does the rest. A full
    disk, or a queue that no longer empties, ends the recording and never the measuring: ``failed`` then
    says why.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._lines: deque[str] = deque()
        self._wake = threading.Event()
        self._done = False
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self.failed: str | None = None

    def start(self, t: float, unix: float, directories: Sequence[DirectorySettings]) -> None:
        """Write the first line and go on in a thread."""
        listed = [_without_defaults(directory) for directory in directories]
        self._queue({"t": round(t, 6), "kind": "start", "unix": unix, "directories": listed})
        self._thread.start()

    def write(self, fact: Fact) -> None:
        """Queue one fact; keys that the source does not have are left out."""
        if isinstance(fact, GpuSet):
            gpus = [_without_defaults(info) for info in fact.gpus]
            self._queue({"t": round(fact.t, 6), "kind": "gpus", "gpus": gpus})
            return
        line: dict[str, Any] = {"t": round(fact.t, 6), "kind": _KIND_OF[type(fact)]}
        for key, value in _without_defaults(fact).items():
            if key != "t":
                line[_SHORT.get(key, key)] = value
        self._queue(line)

    def stop(self, t: float, timeout_seconds: float = 0.5) -> None:
        """Write the last line and end the thread; what a hung disk does not take in time is lost."""
        self._queue({"t": round(t, 6), "kind": "stop"})
        self._done = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    def _queue(self, line: dict[str, Any]) -> None:
        if self.failed is not None:
            return
        if len(self._lines) >= MAX_QUEUED_LINES:
            self.failed = "the disk does not keep up"
            return
        # ASCII with escapes: names are bytes, and lone surrogates survive the round trip.
        self._lines.append(json.dumps(line, separators=(", ", ": ")) + "\n")

    def _run(self) -> None:
        while self.failed is None:
            done = self._done
            try:
                while self._lines:
                    self._stream.write(self._lines.popleft())
                self._stream.flush()
            except (OSError, ValueError) as error:
                self.failed = str(error)
            if done:
                return
            self._wake.wait(FLUSH_SECONDS)


def _without_defaults(value: Any) -> dict[str, Any]:
    return {
        field.name: getattr(value, field.name)
        for field in fields(value)
        if getattr(value, field.name) != field.default and getattr(value, field.name) is not None
    }


def read_recording(path: str) -> Iterator[Start | Fact | Stop]:
    """Read a recording in order.

    Unknown kinds and keys and damaged lines are skipped. Raises CkptExporterError if the file cannot be
    read or holds no recording at all.
    """
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as stream:
            yield from parse_recording(stream, path)
    except OSError as error:
        raise CkptExporterError(f"cannot read recording {path}: {error.strerror}") from error


def parse_recording(lines: Iterable[str], name: str) -> Iterator[Start | Fact | Stop]:
    """Parse the lines of a recording; ``name`` is for the error message."""
    understood = False
    for line in lines:
        parsed = _parse_line(line)
        if parsed is not None:
            understood = True
            yield parsed
        if isinstance(parsed, Start) and parsed.gpus:
            yield GpuSet(parsed.t, parsed.gpus)
    if not understood:
        raise CkptExporterError(
            f"{name}: not a recording (no line could be read); make one with --record.path"
        )


def _parse_line(line: str) -> Start | Fact | Stop | None:
    try:
        value = _DECODER.decode(line)
        kind, t = value["kind"], float(value["t"])
        if not abs(t) < _MAX_SECONDS:
            return None
        if kind == "start":
            directories, gpus = _directories(value.get("directories", [])), _gpus(value.get("gpus", []))
            unix = float(value.get("unix", 0.0))
            return Start(t, unix, directories, gpus) if 0 <= unix < _MAX_UNIX else None
        if kind == "gpus":
            return GpuSet(t, _gpus(value["gpus"]))
        if kind == "stop":
            return Stop(t)
        return _fact(_KINDS[kind], value)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _directories(values: list[dict[str, Any]]) -> tuple[DirectorySettings, ...]:
    return tuple(
        DirectorySettings(
            name=str(value["name"]),
            path=str(value["path"]),
            layout=str(value.get("layout", "auto")),
            ignore=tuple(map(str, value.get("ignore", ()))),
            elsewhere=str(value.get("elsewhere", "auto")),
        )
        for value in values
    )


def _gpus(values: list[dict[str, Any]]) -> tuple[GpuInfo, ...]:
    known = {field.name for field in fields(GpuInfo)}
    kept = [{key: item for key, item in value.items() if key in known} for value in values]
    named = [{"uuid": f"gpu-{value.get('gpu')}", **value} for value in kept]
    return tuple(GpuInfo(**_checked(GpuInfo, value)) for value in named)


def _checked(cls: type, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments if all are of the kinds that ``cls`` declares; else raise ValueError."""
    kinds = _DECLARED[cls]
    for name, value in arguments.items():
        kind = kinds[name]
        if type(value) is float and float not in kind.types and value.is_integer():
            arguments[name] = int(value)  # JSON knows one kind of number: 1e9 bytes are bytes, too
            value = arguments[name]  # noqa: PLW2901 (the value as it counts)
        if type(value) not in kind.types or (kind.words and type(value) is str and value not in kind.words):
            raise ValueError(name)
        if type(value) in (int, float) and not abs(value) < _MAX_NUMBER:
            raise ValueError(name)
        if type(value) is tuple and not all(type(item) in kind.items for item in value):
            raise ValueError(name)
    return arguments


def _fact(cls: type[Fact], value: dict[str, Any]) -> Fact:
    known = {field.name for field in fields(cls)}
    arguments: dict[str, Any] = {}
    for key, item in value.items():
        name = _LONG.get(key, key)
        if name in known and item is not None:
            arguments[name] = tuple(item) if isinstance(item, list) else item
    arguments["t"] = float(arguments["t"])
    if cls is Writers:
        arguments.setdefault("directory", "")
        arguments.setdefault("pids", ())
    if cls is FileEvent:
        arguments.setdefault("path", None)
    return cls(**_checked(cls, arguments))
