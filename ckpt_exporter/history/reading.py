"""The history file as readers see it: read-only, while the daemon may be writing."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from ckpt_exporter.history.database import check_columns, check_identity
from ckpt_exporter.history.failures import HistoryError, translated
from ckpt_exporter.history.gpu_time import HOUR_SECONDS
from ckpt_exporter.history.records import GpuTimeRecord, LoadRecord, SaveRecord, StallRecord
from ckpt_exporter.history.rows import (
    GPU_COLUMNS,
    LAST_UNIX,
    LOAD_COLUMNS,
    SAVE_COLUMNS,
    STALL_COLUMNS,
    gpu_time_of,
    load_of,
    save_of,
    stall_of,
)
from ckpt_exporter.history.schema import ADDED_COLUMNS
from ckpt_exporter.logs import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    _Record = TypeVar("_Record")

_BUSY_SECONDS: Final = 5.0
# A writer that starts while a file at rest is read makes it be read again.
_TRIES: Final = 3
_WAL_FORMAT: Final = 2  # byte 18 of the header, in SQLite's file format
_ENDED: Final = "WHERE end_unix >= ? AND end_unix <= ? ORDER BY end_unix, id"
# The first version whose files have loads and stalls.
_WITH_LOADS: Final = 2
_GPU_TIME: Final = (
    f"SELECT {', '.join(GPU_COLUMNS)} FROM gpu_time WHERE hour_unix > ? AND hour_unix < ?"  # noqa: S608
    " ORDER BY hour_unix, node, gpu"
)


@dataclass(frozen=True, slots=True)
class Kept:
    """What a history file holds of a window; ``first_unix`` and ``last_unix`` are the ends of all its saves.

    ``notes`` say what limits it.
    """

    saves: tuple[SaveRecord, ...]
    gpu_time: tuple[GpuTimeRecord, ...]
    first_unix: float | None
    last_unix: float | None
    notes: tuple[str, ...] = ()
    loads: tuple[LoadRecord, ...] = ()
    stalls: tuple[StallRecord, ...] = ()


def read_history(path: str, *, since_unix: float = 0.0, until_unix: float = float("inf")) -> Kept:
    """Read what ended in a window (Unix seconds) and the GPU hours that touch it.

    A file of an older version is read as it is, without what that version did not keep. Holds one short read
    transaction, which never blocks the daemon in WAL mode. Raises HistoryError.
    """
    try:
        _refuse_what_is_no_file(path)
        return _read_at_rest_or_live(path, since_unix, until_unix)
    except (
        sqlite3.Error,
        UnicodeError,
        OverflowError,
    ) as error:  # a file made to be no history has its own ways
        raise HistoryError(path, "damaged", f"is damaged ({one_line(str(error)[:200])})") from error
    except OSError as error:  # it went away meanwhile
        raise HistoryError(path, "unavailable", f"cannot be read: {error.strerror}") from error


def _read_at_rest_or_live(path: str, since_unix: float, until_unix: float) -> Kept:
    with translated(path):
        for _ in range(_TRIES):
            before = _state(path)
            connection, notes = _connect(path, before)
            try:
                kept = _read(connection, path, since_unix, until_unix, notes)
            finally:
                connection.close()
            if not before.at_rest or _state(path) == before:
                break
        return kept


@dataclass(frozen=True, slots=True)
class _State:
    """What tells that a file in WAL mode is at rest: nobody has it open, so it has no log."""

    at_rest: bool
    size_bytes: int
    modified_ns: int


def _state(path: str) -> _State:
    with open(path, "rb") as stream:
        header = stream.read(20)
        status = os.fstat(stream.fileno())
    wal = len(header) == 20 and header[18] == _WAL_FORMAT
    return _State(wal and not os.path.exists(f"{path}-wal"), status.st_size, status.st_mtime_ns)


def _read(
    connection: sqlite3.Connection, path: str, since: float, until: float, notes: tuple[str, ...]
) -> Kept:
    connection.row_factory = sqlite3.Row
    connection.execute("BEGIN")
    version = check_identity(connection, path)
    if version == 0:
        raise HistoryError(path, "foreign", "is not a history of ckpt-exporter")
    check_columns(connection, path, version)
    first, last = connection.execute("SELECT min(end_unix), max(end_unix) FROM saves").fetchone()
    saves = connection.execute(_ended("saves", SAVE_COLUMNS, version), (since, until)).fetchall()
    hours = connection.execute(_GPU_TIME, (since - HOUR_SECONDS, until)).fetchall()
    loads, stalls = (
        connection.execute(_ended(table, columns, version), (since, until)).fetchall()
        if version >= _WITH_LOADS
        else []
        for table, columns in (("loads", LOAD_COLUMNS), ("stalls", STALL_COLUMNS))
    )
    connection.execute("COMMIT")
    for unix in (first, last):
        if unix is not None and not (isinstance(unix, (int, float)) and 0 <= unix < LAST_UNIX):
            raise HistoryError(path, "damaged", "is damaged: a save ended at no time")
    return Kept(
        _all(path, save_of, saves), _all(path, gpu_time_of, hours), first, last, notes,
        _all(path, load_of, loads), _all(path, stall_of, stalls),
    )  # fmt: skip


def _ended(table: str, columns: Sequence[str], version: int) -> str:
    """Return the query for what ended in a window; a column that a later version added is unknown."""
    known = (
        name if ADDED_COLUMNS.get((table, name), 0) <= version else f"NULL AS {name}" for name in columns
    )
    return f"SELECT {', '.join(known)} FROM {table} {_ENDED}"  # noqa: S608


def _all(path: str, read: Callable[[Any], _Record], rows: list[sqlite3.Row]) -> tuple[_Record, ...]:
    try:
        return tuple(read(row) for row in rows)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise HistoryError(path, "damaged", "is damaged: a row cannot be read") from error


def _connect(path: str, state: _State) -> tuple[sqlite3.Connection, tuple[str, ...]]:
    """Open the file for reading, leaving nothing beside it that its writer might not be able to use.

    In WAL mode even a reader needs a file of shared memory. Of a file at rest none is made; where there is a
    log but no right to use it, the file is read as it stands and the note says what is missing.
    """
    uri = f"file:{quote(os.fsencode(path))}?mode=ro"
    at_rest = f"{uri}&immutable=1"
    if state.at_rest:
        return _opened(at_rest), ()
    try:
        return _opened(uri), ()
    except sqlite3.OperationalError as error:
        log = f"{path}-wal"
        if not any(text in str(error) for text in ("unable to open", "readonly")):
            raise
        behind = os.path.exists(log) and os.path.getsize(log) > 0
        note = (
            f"{one_line(path)}: its newest saves are still in {one_line(log)}, which only a user who may"
            " write its directory can read; they are missing here"
        )
        return _opened(at_rest), (note,) if behind else ()


def _opened(uri: str) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None)
    with contextlib.ExitStack() as unless_read:
        unless_read.callback(connection.close)
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        unless_read.pop_all()
    return connection


def _refuse_what_is_no_file(path: str) -> None:
    if not os.path.lexists(path):
        raise HistoryError(
            path, "unavailable", "no such file; give the daemon's history.path with --history=FILE"
        )
    if os.path.isdir(path):
        raise HistoryError(path, "unavailable", "is a directory, must be a history file")
    if not os.access(path, os.R_OK):
        who = f"user id {os.geteuid()}"
        raise HistoryError(path, "unavailable", f"permission denied, must be readable for {who}")
    if os.path.getsize(path) == 0:
        raise HistoryError(path, "foreign", "is empty, not a history of ckpt-exporter")
