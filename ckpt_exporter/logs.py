"""Log lines: one safe line per event, logfmt or JSON, whatever a file is called."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import sys
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final, Literal, TextIO, Union

LogLevel = Literal["debug", "info", "warn", "error"]
LogFormat = Literal["logfmt", "json"]

_Plain = Union[str, int, float, bool]  # noqa: UP007 (a runtime alias on 3.10)

LEVELS: Final[Mapping[LogLevel, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
}
FORMATS: Final[tuple[LogFormat, ...]] = ("logfmt", "json")

_RESERVED: Final = frozenset({"ts", "level", "msg"})
_IDENTITY_FIELDS: Final = ("dir", "source", "collector", "gpu", "problem", "key")
_MAX_VALUE_CHARACTERS: Final = (
    4096  # the longest path the kernel takes; an exception's text may be far longer
)
_BARE: Final = re.compile(r'[^\s"=\\]+')
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_KEY_NOISE: Final = re.compile(r"[^A-Za-z0-9_.]")


# --- any text as one line -------------------------------------------------------------------------------


def _surrogate_text(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


def encodable(text: str) -> str:
    r"""Write out lone surrogates, so that the text has a UTF-8 form.

    ``os.fsdecode`` turns an undecodable byte into a surrogate; here the byte 0xff becomes the text ``\xff``.
    """
    return _SURROGATE.sub(_surrogate_text, text)


def _escape_unprintable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def one_line(text: str) -> str:
    r"""Return the text without control characters and lone surrogates; a newline becomes ``\n``."""
    return _escape_unprintable(encodable(text))


# --- values of one record -------------------------------------------------------------------------------


def _plain(value: object) -> _Plain:
    """Turn any value into what both formats can show."""
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        value = os.fsdecode(value)
    elif isinstance(value, tuple | list | set | frozenset):
        value = ",".join(str(_plain(item)) for item in value)
    text = encodable(str(value))
    if len(text) > _MAX_VALUE_CHARACTERS:
        text = text[:_MAX_VALUE_CHARACTERS] + "..."
    return text


def _key(name: str) -> str:
    key = _KEY_NOISE.sub("_", name) or "_"
    return key + "_" if key in _RESERVED else key


def _level_name(level: int) -> str:
    if level >= logging.ERROR:
        return "error"
    if level >= logging.WARNING:
        return "warn"
    return "info" if level >= logging.INFO else "debug"


def _timestamp(unix: float) -> str:
    moment = datetime.fromtimestamp(unix, tz=timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError, KeyError):  # another package's format string and arguments disagree
        return f"{record.msg} {record.args!r}"


def _location(error: BaseException) -> str | None:
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return None
    innermost = frames[-1]
    return f"{os.path.basename(innermost.filename)}:{innermost.lineno} {innermost.name}"


def _error_values(error: BaseException, *, with_traceback: bool) -> dict[str, object]:
    values: dict[str, object] = {
        "error": "".join(traceback.format_exception_only(type(error), error)).strip(),
        "at": _location(error),
    }
    if with_traceback:
        values["traceback"] = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return values


def _values(record: logging.LogRecord, *, with_traceback: bool) -> dict[str, _Plain]:
    """Collect what the line says, in order. None is left out: unknown is not a value."""
    values: dict[str, object] = {
        "ts": _timestamp(record.created),
        "level": _level_name(record.levelno),
        "msg": _message(record),
    }
    fields = getattr(record, "fields", None)
    if isinstance(fields, Mapping):
        values.update((_key(str(name)), value) for name, value in fields.items())
    if record.exc_info and record.exc_info[1] is not None:
        values.update(_error_values(record.exc_info[1], with_traceback=with_traceback))
    values["suppressed"] = getattr(record, "suppressed", None)
    return {key: _plain(value) for key, value in values.items() if value is not None}


# --- formats --------------------------------------------------------------------------------------------


def _logfmt_value(value: _Plain) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    if _BARE.fullmatch(text) and text.isprintable():
        return text
    return _escape_unprintable(json.dumps(text, ensure_ascii=False))


class LogfmtFormatter(logging.Formatter):
    """Format a record as ``ts=... level=... msg=... key=value``; quoted values are JSON strings."""

    def __init__(self, *, with_traceback: bool = False) -> None:
        super().__init__()
        self._with_traceback = with_traceback

    def format(self, record: logging.LogRecord) -> str:
        """Return one line without its end."""
        values = _values(record, with_traceback=self._with_traceback)
        return " ".join(f"{key}={_logfmt_value(value)}" for key, value in values.items())


class JsonFormatter(logging.Formatter):
    """Format a record as one JSON object in ASCII."""

    def __init__(self, *, with_traceback: bool = False) -> None:
        super().__init__()
        self._with_traceback = with_traceback

    def format(self, record: logging.LogRecord) -> str:
        """Return one line without its end."""
        return json.dumps(_values(record, with_traceback=self._with_traceback))


# --- output ---------------------------------------------------------------------------------------------


class RepeatFilter(logging.Filter):
    """Let the same message through once per interval; the next one says how many were ``suppressed``.

    Two messages are the same when logger, level, text before formatting and the fields that say what it is
    about (``dir``, ``source``, ``collector``, ``gpu``, ``problem``, ``key``) agree. Records below
    ``min_level`` always pass. At most ``max_messages`` are remembered; the one logged longest ago is
    forgotten first.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        interval_seconds: float = 60.0,
        min_level: int = logging.NOTSET,
        max_messages: int = 1024,
    ) -> None:
        super().__init__()
        self._clock = clock
        self._interval_seconds = interval_seconds
        self._min_level = min_level
        self._max_messages = max_messages
        self._lock = threading.Lock()
        self._seen: OrderedDict[tuple[str, ...], tuple[float, int]] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Decide on one record; sets ``record.suppressed`` when earlier ones were held back."""
        if record.levelno < self._min_level:
            return True
        key = _identity(record)
        with self._lock:
            suppressed = self._admit(key, self._clock())
        if suppressed:
            record.suppressed = suppressed
        return suppressed is not None

    def _admit(self, key: tuple[str, ...], now: float) -> int | None:
        """Return how many were held back since the last one, None to hold this one back too."""
        last = self._seen.get(key)
        if last is not None and now - last[0] < self._interval_seconds:
            self._seen[key] = (last[0], last[1] + 1)
            return None
        self._seen[key] = (now, 0)
        self._seen.move_to_end(key)
        if len(self._seen) > self._max_messages:
            self._seen.popitem(last=False)
        return last[1] if last is not None else 0


def _identity(record: logging.LogRecord) -> tuple[str, ...]:
    fields = getattr(record, "fields", None)
    known = fields if isinstance(fields, Mapping) else {}
    fixed = (record.name, str(record.levelno), str(record.msg)[:200])
    return fixed + tuple(str(known.get(name))[:500] for name in _IDENTITY_FIELDS)


if TYPE_CHECKING:
    _StreamHandler = logging.StreamHandler[TextIO]
else:
    _StreamHandler = logging.StreamHandler  # takes no type before Python 3.11


class LineHandler(_StreamHandler):
    """Write lines to a stream of any encoding; a stream that is gone or full loses the line, nothing more."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, with what the stream cannot encode written as an escape."""
        encoding = getattr(self.stream, "encoding", None) or "utf-8"
        return super().format(record).encode(encoding, "backslashreplace").decode(encoding)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (the name is logging's)
        """Stay silent when the stream itself fails: there is nowhere left to say so."""
        if not self.stream.closed and not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


def configure_logging(
    level: LogLevel,
    format: LogFormat,  # noqa: A002 (named as the flag)
    stream: TextIO,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Send everything at or above the level to the stream, warnings and errors at most once a minute each.

    Calling it again replaces the earlier choice. Tracebacks appear only at level ``debug``.
    """
    formatter = (JsonFormatter if format == "json" else LogfmtFormatter)(with_traceback=level == "debug")
    handler = LineHandler(stream)
    handler.setFormatter(formatter)
    # Information such as one line per finished save is wanted every time; only complaints repeat for nothing.
    handler.addFilter(RepeatFilter(clock, min_level=logging.WARNING))
    root = logging.getLogger()
    for earlier in [known for known in root.handlers if isinstance(known, LineHandler)]:
        root.removeHandler(earlier)
    root.addHandler(handler)
    root.setLevel(LEVELS[level])


def log_event(
    logger: logging.Logger,
    level: int,
    message: str,
    /,
    *,
    error: BaseException | None = None,
    **fields: object,
) -> None:
    """Log a constant message with its values as keys; ``error`` adds type, text and place of an exception."""
    if logger.isEnabledFor(level):
        logger.log(level, message, exc_info=error, extra={"fields": fields})
