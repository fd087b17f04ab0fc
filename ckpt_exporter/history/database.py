"""The history file as its one writer sees it: SQLite, one small transaction a save."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from ckpt_exporter.history.failures import HistoryError, translated
from ckpt_exporter.history.rows import (
    GPU_COLUMNS,
    LOAD_COLUMNS,
    SAVE_COLUMNS,
    STALL_COLUMNS,
    gpu_row,
    load_row,
    save_of,
    save_row,
    stall_row,
    stored_text,
)
from ckpt_exporter.history.schema import ADDED_COLUMNS, APPLICATION_ID, MIGRATIONS, SCHEMA_VERSION
from ckpt_exporter.logs import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ckpt_exporter.history.failures import Reason
    from ckpt_exporter.history.records import GpuTimeRecord, LoadRecord, SaveRecord, StallRecord

# Daemon writes, a group may read; a stricter umask makes it stricter.
FILE_MODE: Final = 0o640
BUSY_SECONDS: Final = 2.0
# Reading through a larger file at every start would take longer than it is worth; damage shows when met.
CHECK_MAX_BYTES: Final = 64 * 1024 * 1024
_WAL_MAX_BYTES: Final = 4 * 1024 * 1024
# A bubble is judged minutes after its save at the latest: its row is among the newest.
_RECENT_ROWS: Final = 1000
# A clock that was disciplined meanwhile shows the end of a load a little off.
_SAME_END_SECONDS: Final = 1.0
_ROWS_A_DELETE: Final = 500

# Each table with its columns, and the version that has it first.
_TABLES: Final = (
    ("saves", SAVE_COLUMNS, 1),
    ("gpu_time", GPU_COLUMNS, 1),
    ("loads", LOAD_COLUMNS, 2),
    ("stalls", STALL_COLUMNS, 2),
)
# What grows with time, a row an event.
_EVENTS: Final = ("saves", "loads", "stalls")
_OLDEST: Final = " UNION ALL ".join(
    f"SELECT * FROM (SELECT '{table}', id, end_unix FROM {table}{which} ORDER BY end_unix LIMIT :number)"  # noqa: S608
    for table, which in zip(_EVENTS, (" WHERE id <> (SELECT max(id) FROM saves)", "", ""), strict=True)
)
_COUNT: Final = f"SELECT {' + '.join(f'(SELECT count(*) FROM {table})' for table in _EVENTS)}"  # noqa: S608
_NEWEST: Final = (
    "SELECT coalesce((SELECT max(end_unix) FROM saves),"
    " (SELECT max(end_unix) FROM (SELECT max(end_unix) AS end_unix FROM loads"
    " UNION ALL SELECT max(end_unix) FROM stalls)))"
)

_SAVES: Final = ", ".join(SAVE_COLUMNS)
_INSERT_SAVE: Final = f"INSERT INTO saves ({_SAVES}) VALUES ({', '.join('?' * len(SAVE_COLUMNS))})"  # noqa: S608
_INSERT_LOAD: Final = (
    f"INSERT INTO loads ({', '.join(LOAD_COLUMNS)}) VALUES ({', '.join('?' * len(LOAD_COLUMNS))})"  # noqa: S608
)
# Of several loads of one path the one that ended then.
_START_LOAD: Final = (
    "UPDATE loads SET cold_start_seconds = ? WHERE id = (SELECT id FROM loads WHERE node = ?"
    " AND directory = ? AND path = ? AND abs(end_unix - ?) < ? ORDER BY id DESC LIMIT 1)"
)
_INSERT_STALL: Final = (
    f"INSERT INTO stalls ({', '.join(STALL_COLUMNS)}) VALUES ({', '.join('?' * len(STALL_COLUMNS))})"  # noqa: S608
)
_UPDATE_SAVE: Final = f"UPDATE saves SET {', '.join(f'{name} = ?' for name in SAVE_COLUMNS)} WHERE id = ?"  # noqa: S608
_FIND_SAVE: Final = (
    f"SELECT id, {_SAVES} FROM saves WHERE id = (SELECT id FROM saves"  # noqa: S608
    f" WHERE id > (SELECT max(id) FROM saves) - {_RECENT_ROWS} AND directory = ? AND path = ?"
    " ORDER BY abs(end_unix - ?), id DESC LIMIT 1)"
)
# Of this host: the notes of one that another host made say so.
_LAST_SAVES: Final = (
    f"SELECT {_SAVES}, max(end_unix) FROM saves WHERE result = 'complete'"  # noqa: S608
    " AND notes NOT LIKE '%\"elsewhere\"%' GROUP BY directory"
)
_SUMS: Final = ", ".join(f"{name} = {name} + excluded.{name}" for name in GPU_COLUMNS[4:])
_ADD_GPU_TIME: Final = (
    f"INSERT INTO gpu_time ({', '.join(GPU_COLUMNS)}) VALUES ({', '.join('?' * len(GPU_COLUMNS))})"  # noqa: S608
    f" ON CONFLICT (node, uuid, hour_unix) DO UPDATE SET gpu = excluded.gpu, {_SUMS}"
)


class HistoryDatabase:
    """An open history file. Every method raises HistoryError where the file fails, with nothing half done."""

    def __init__(self, path: str, *, wal: bool = True, busy_seconds: float = BUSY_SECONDS) -> None:
        """Open or create the file, check it and bring it to the current version.

        With ``wal`` readers and the writer do not wait for each other, and a killed process loses nothing
        that was committed; it needs memory shared between processes, which network file systems lack.
        """
        self.path = path
        created = _create(path)
        with translated(path):
            self._connection = sqlite3.connect(
                _uri(path, "rw"), uri=True, timeout=busy_seconds, isolation_level=None
            )
        with contextlib.ExitStack() as unless_open, translated(path):
            unless_open.callback(self._connection.close)
            self._connection.row_factory = sqlite3.Row
            self._prepare(wal=wal, created=created)
            self._inode = _inode(path)
            unless_open.pop_all()

    def _prepare(self, *, wal: bool, created: bool) -> None:
        execute = self._connection.execute
        if created:
            execute("PRAGMA auto_vacuum = INCREMENTAL")  # takes effect only before the first table
        check_identity(self._connection, self.path)
        if not created and os.path.getsize(self.path) <= CHECK_MAX_BYTES:
            _check(self._connection, self.path)
        mode = execute(f"PRAGMA journal_mode = {'WAL' if wal else 'TRUNCATE'}").fetchone()[0]
        # A power cut may cost the newest commits in WAL mode, never the file; the other mode needs FULL.
        execute(f"PRAGMA synchronous = {'NORMAL' if mode == 'wal' else 'FULL'}")
        execute(f"PRAGMA journal_size_limit = {_WAL_MAX_BYTES}")
        migrate(self._connection)
        check_columns(self._connection, self.path)

    # --- writing ----------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what is done inside as a whole, or nothing of it."""
        with translated(self.path), _transaction(self._connection):
            yield

    def add_save(self, record: SaveRecord) -> None:
        """Add one save."""
        self._connection.execute(_INSERT_SAVE, save_row(record))

    def find_save(self, directory: str, path: str, end_unix: float) -> tuple[int, SaveRecord] | None:
        """Find a recent save by its path and, of several, the one that ended nearest to a moment."""
        wanted = (stored_text(directory), stored_text(path), end_unix)
        row = self._connection.execute(_FIND_SAVE, wanted).fetchone()
        return None if row is None else (row["id"], _sound_save(self.path, row))

    def replace_save(self, row_id: int, record: SaveRecord) -> None:
        """Write a save again of which more is known now."""
        self._connection.execute(_UPDATE_SAVE, (*save_row(record), row_id))

    def add_load(self, record: LoadRecord) -> None:
        """Add one load."""
        self._connection.execute(_INSERT_LOAD, load_row(record))

    def start_load(self, record: LoadRecord) -> None:
        """Note when GPUs first worked after a load that was added before."""
        wanted = (record.node, record.directory, record.path)
        near = (record.end_unix, _SAME_END_SECONDS)
        self._connection.execute(_START_LOAD, (record.cold_start_seconds, *map(stored_text, wanted), *near))

    def add_stall(self, record: StallRecord) -> None:
        """Add one stall."""
        self._connection.execute(_INSERT_STALL, stall_row(record))

    def add_gpu_time(self, records: Iterable[GpuTimeRecord]) -> None:
        """Add observed time and stalls to each GPU's hour."""
        self._connection.executemany(_ADD_GPU_TIME, map(gpu_row, records))

    # --- reading ----------------------------------------------------------------------------------------

    def last_saves(self) -> tuple[SaveRecord, ...]:
        """Return the last complete save of each directory."""
        with translated(self.path):
            rows = self._connection.execute(_LAST_SAVES).fetchall()
            return tuple(_sound_save(self.path, row) for row in rows)

    @property
    def size_bytes(self) -> int:
        """Bytes of the file that hold something."""
        with translated(self.path):
            pages, free, size = (
                self._connection.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("page_count", "freelist_count", "page_size")
            )
            return int((pages - free) * size)

    @property
    def is_in_place(self) -> bool:
        """Tell whether the path still leads to this file: a deleted one would swallow what is written."""
        return _inode(self.path) == self._inode

    # --- upkeep -----------------------------------------------------------------------------------------

    def forget_before(self, unix: float) -> int:
        """Delete what ended before a moment; return the number of saves, loads and stalls."""
        with self.transaction():
            self._connection.execute("DELETE FROM gpu_time WHERE hour_unix + 3600 <= ?", (unix,))
        return sum(self._forget_rows(table, unix) for table in _EVENTS)

    def newest_end_unix(self) -> float | None:
        """Return when the newest save ended; where there is none, the newest load or stall."""
        with translated(self.path):
            found = self._connection.execute(_NEWEST).fetchone()[0]
            return None if found is None else float(found)

    def shrink_to(self, max_bytes: int) -> int:
        """Delete the oldest saves, loads and stalls until the file holds at most so much.

        The newest save stays. Returns the number of what was deleted.
        """
        deleted = 0
        while self.size_bytes > max_bytes:
            gone = self._delete_oldest()
            if not gone:
                break
            deleted += gone
            self._release_pages()
        return deleted

    def _forget_rows(self, table: str, unix: float) -> int:
        # In small steps: readers and the disk see many short transactions instead of a long one.
        oldest = f"SELECT id FROM {table} WHERE end_unix < ? ORDER BY end_unix LIMIT ?"  # noqa: S608
        deleted, gone = 0, _ROWS_A_DELETE
        while gone == _ROWS_A_DELETE:
            with self.transaction():
                delete = f"DELETE FROM {table} WHERE id IN ({oldest})"  # noqa: S608
                gone = self._connection.execute(delete, (unix, _ROWS_A_DELETE)).rowcount
            deleted += gone
        if deleted:
            self._release_pages()
        return deleted

    def _delete_oldest(self) -> int:
        """Delete the oldest tenth, of whichever table, but not too many at once."""
        with self.transaction():
            count = self._connection.execute(_COUNT).fetchone()[0]
            number = max(1, min(_ROWS_A_DELETE, count // 10))
            select = f"{_OLDEST} ORDER BY end_unix LIMIT :number"
            oldest = self._connection.execute(select, {"number": number}).fetchall()
            for table, row_id, _ in oldest:
                self._connection.execute(f"DELETE FROM {table} WHERE id = ?", (row_id,))  # noqa: S608
        return len(oldest)

    def _release_pages(self) -> None:
        with translated(self.path):
            # It takes one step a page, and only a script is stepped to its end.
            self._connection.executescript("PRAGMA incremental_vacuum")

    def checkpoint(self) -> None:
        """Move what the log holds into the file, as far as readers allow."""
        with translated(self.path):
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def close(self) -> None:
        """Close the file; never raises."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()


def migrate(connection: sqlite3.Connection, migrations: tuple[tuple[str, ...], ...] = MIGRATIONS) -> None:
    """Bring a file to the current version, all of the way or not at all."""
    with _transaction(connection):
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        for statements in migrations[version:]:
            for statement in statements:
                connection.execute(statement)
        if version < len(migrations):
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {len(migrations)}")


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit what is done inside; whatever ends it early, nothing of it stays."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")


def check_identity(connection: sqlite3.Connection, path: str) -> int:
    """Return the version of a history; raise HistoryError for another program's file or a newer one."""
    identity = connection.execute("PRAGMA application_id").fetchone()[0]
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if identity != APPLICATION_ID and (tables or identity):
        raise HistoryError(path, "foreign", "is the database of another program")
    if version > len(MIGRATIONS):
        what = f"is of version {version}, written by a newer ckpt-exporter (this one knows {len(MIGRATIONS)})"
        raise HistoryError(path, "newer", what)
    return version


def check_columns(connection: sqlite3.Connection, path: str, version: int = SCHEMA_VERSION) -> None:
    """Raise HistoryError where a table or a column is missing that a file of this version has."""
    for table, columns, first_version in _TABLES:
        if version < first_version:
            continue
        present = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
        kind = connection.execute("SELECT type FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        if kind is not None and kind[0] != "table":  # a view could compute for ever
            raise HistoryError(path, "damaged", f"is damaged: {table} is no table")
        missing = [
            name for name in columns
            if name not in present and ADDED_COLUMNS.get((table, name), first_version) <= version
        ]  # fmt: skip
        if missing:
            raise HistoryError(path, "damaged", f"is damaged: {table} lacks {missing[0]}")


def _check(connection: sqlite3.Connection, path: str) -> None:
    found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        what = one_line(str(found).splitlines()[-1])
        raise HistoryError(path, "damaged", f"is damaged ({what})")


def _sound_save(path: str, row: sqlite3.Row) -> SaveRecord:
    try:
        return save_of(row)  # type: ignore[arg-type]
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise HistoryError(path, "damaged", "is damaged: a row is no save") from error


def _create(path: str) -> bool:
    """Create the file with its mode if there is none; tell whether it is new or empty."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, FILE_MODE)
    except OSError as error:
        reason: Reason = "full" if error.errno == errno.ENOSPC else "unavailable"
        raise HistoryError(path, reason, f"cannot be opened for writing: {error.strerror}") from error
    # Closing this descriptor here, before SQLite has locks of its own, releases none of them.
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise HistoryError(path, "unavailable", "is no regular file, must be one or not exist")
        return status.st_size == 0
    finally:
        os.close(descriptor)


def _inode(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _uri(path: str, mode: str) -> str:
    return f"file:{quote(os.fsencode(path))}?mode={mode}"
