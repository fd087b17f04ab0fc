"""The history file: rows, versions, upkeep, and every way in which it can be no history."""

from __future__ import annotations

import os
import sqlite3
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from ckpt_exporter.history.database import HistoryDatabase, migrate
from ckpt_exporter.history.failures import HistoryError
from ckpt_exporter.history.reading import Kept, read_history
from ckpt_exporter.history.records import LoadRecord, SaveRecord, StallRecord
from ckpt_exporter.history.schema import MIGRATIONS, SCHEMA_VERSION
from tests.history_samples import FULL, HOURS, LOAD, MIDNIGHT, PLAIN, STALL, numbered

GOLDEN = Path(__file__).parents[1] / "golden"


def written(path: Path, *records: SaveRecord) -> Path:
    """Write some saves and close the file."""
    database = HistoryDatabase(str(path))
    for record in records:
        with database.transaction():
            database.add_save(record)
    database.close()
    return path


def with_events(path: Path, *records: LoadRecord | StallRecord) -> Path:
    """Write some loads and stalls and close the file."""
    database = HistoryDatabase(str(path))
    with database.transaction():
        for record in records:
            if isinstance(record, LoadRecord):
                database.add_load(record)
            else:
                database.add_stall(record)
    database.close()
    return path


def kept(path: Path, since: float = 0.0, until: float = float("inf")) -> Kept:
    return read_history(str(path), since_unix=since, until_unix=until)


def failure(path: Path) -> tuple[str, str]:
    """Open for writing, which must fail; return reason and message."""
    with pytest.raises(HistoryError) as caught:
        HistoryDatabase(str(path))
    return caught.value.reason, str(caught.value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


class TestRows:
    def test_everything_comes_back(self, path: Path) -> None:
        """A record comes back as it was, whatever it holds and whatever it lacks."""
        assert kept(written(path, PLAIN, FULL)).saves == (PLAIN, FULL)

    def test_undecodable_names(self, path: Path) -> None:
        """A byte of a path that is no UTF-8 is kept readable, as the log and the metrics write it."""
        (save,) = kept(written(path, replace(PLAIN, path="/data/\udcff\udcfeé"))).saves

        assert save.path == "/data/\\xff\\xfeé"

    def test_what_sqlite_cannot_hold_is_unknown(self, path: Path) -> None:
        """A step beyond 64 bits and a number that is none are kept as unknown; the save is kept."""
        odd = replace(PLAIN, step=10**30, peak_bandwidth=float("inf"), average_bandwidth=float("nan"))
        (save,) = kept(written(path, odd)).saves

        assert (save.step, save.peak_bandwidth, save.average_bandwidth) == (None, None, None)
        assert save.bytes == 8_000_000_000

    def test_order_and_window(self, path: Path) -> None:
        """A window gives the saves that ended in it, edges included, in the order of their ends."""
        written(path, numbered(2), numbered(0), numbered(1), numbered(3))
        window = kept(path, MIDNIGHT + 120, MIDNIGHT + 180)

        assert [save.step for save in window.saves] == [1, 2]
        assert (window.first_unix, window.last_unix) == (MIDNIGHT + 60, MIDNIGHT + 240)

    def test_loads_and_stalls_come_back(self, path: Path) -> None:
        """Loads and stalls come back as they were, whatever they hold and whatever they lack."""
        bare = LoadRecord("n2", "vision", "/v", "generic", MIDNIGHT + 1.0, MIDNIGHT + 2.0, 1.0, 5, 1)
        nameless = replace(STALL, uuid=None, cause="other", confidence="low", end_unix=STALL.end_unix + 1)
        found = kept(with_events(path, LOAD, nameless, bare, STALL))

        assert found.loads == (bare, LOAD)
        assert found.stalls == (STALL, nameless)

    def test_window_of_loads_and_stalls(self, path: Path) -> None:
        """A window gives the loads and stalls that ended in it, edges included."""
        ends = [MIDNIGHT + 10.0 * number for number in range(4)]
        with_events(path, *(replace(LOAD, end_unix=end) for end in ends))
        with_events(path, *(replace(STALL, end_unix=end) for end in ends))
        found = kept(path, MIDNIGHT + 10, MIDNIGHT + 20)

        assert [load.end_unix for load in found.loads] == ends[1:3]
        assert [stall.end_unix for stall in found.stalls] == ends[1:3]

    def test_a_bubble_updates_its_save(self, path: Path) -> None:
        """Of two saves of one path the one that ended at that moment is found and written again."""
        database = HistoryDatabase(str(path))
        first, second = replace(PLAIN, step=1), replace(PLAIN, step=2, end_unix=PLAIN.end_unix + 50)
        with database.transaction():
            database.add_save(first)
            database.add_save(second)
            row, found = database.find_save("llama", PLAIN.path, PLAIN.end_unix + 0.5) or (0, FULL)
            database.replace_save(row, replace(found, bubble_seconds=3.0))
            assert database.find_save("vision", PLAIN.path, PLAIN.end_unix) is None
        database.close()

        assert kept(path).saves == (replace(first, bubble_seconds=3.0), second)

    def test_gpu_time_adds_up(self, path: Path) -> None:
        """Time added to an hour that is there already adds up; each GPU and hour is one row."""
        database = HistoryDatabase(str(path))
        for _ in range(2):
            with database.transaction():
                database.add_gpu_time(HOURS)
        database.close()

        doubled = [(hour.gpu, hour.observed_seconds, hour.stall_seconds) for hour in kept(path).gpu_time]
        assert doubled == [(0, 7200.0, {"data_loading": 25.0}), (1, 7000.0, {})]

    def test_last_saves(self, path: Path) -> None:
        """The last complete save of each directory is found, not the last row and not an incomplete one."""
        latest, early = numbered(5), numbered(1)
        written(
            path, latest, early, replace(numbered(9), result="incomplete", reason="no_commit"),
            replace(numbered(3), directory="vision"),
        )  # fmt: skip
        database = HistoryDatabase(str(path))
        last = {record.directory: record.step for record in database.last_saves()}
        database.close()

        assert last == {"llama": 5, "vision": 3}

    def test_nothing_half_done(self, path: Path) -> None:
        """A transaction that fails leaves nothing of itself, and the next one works."""
        database = HistoryDatabase(str(path))

        def half() -> None:
            with database.transaction():
                database.add_save(numbered(1))
                database.add_gpu_time(None)  # type: ignore[arg-type]

        with pytest.raises(TypeError):
            half()
        with database.transaction():
            database.add_save(numbered(2))
        database.close()

        assert [save.step for save in kept(path).saves] == [2]


class TestUpkeep:
    def test_by_age(self, path: Path) -> None:
        """What ended before a moment goes, GPU hours that lie wholly before it too."""
        database = HistoryDatabase(str(path))
        with database.transaction():
            for number in range(1200):
                database.add_save(numbered(number))
            database.add_gpu_time(HOURS)
        gone = database.forget_before(MIDNIGHT + 60.0 * 1100)
        database.close()

        assert gone == 1099  # number n ends at minute n + 1: 0 to 1098 ended before minute 1100
        assert [save.step for save in kept(path).saves] == list(range(1099, 1200))
        assert kept(path).gpu_time == ()

    def test_by_size(self, path: Path) -> None:
        """Beyond the limit the oldest saves go, the file really shrinks, and the newest save stays."""
        database = HistoryDatabase(str(path))
        for number in range(300):
            with database.transaction():
                database.add_save(replace(FULL, step=number, end_unix=MIDNIGHT + number, notes=("x" * 4000,)))
        full_bytes = database.size_bytes
        database.shrink_to(full_bytes // 2)
        database.checkpoint()
        assert database.size_bytes <= full_bytes // 2
        assert os.path.getsize(path) <= full_bytes // 2 + 65_536
        left = [save.step for save in kept(path).saves]
        assert 100 <= len(left) <= 150
        assert left == list(range(300 - len(left), 300))
        database.shrink_to(1)
        database.close()

        assert [save.step for save in kept(path).saves] == [299]

    def test_loads_and_stalls_by_age(self, path: Path) -> None:
        """Loads and stalls that ended before a moment go with the saves of that time."""
        ends = [MIDNIGHT + 60.0 * number for number in range(1200)]
        with_events(path, *(replace(LOAD, end_unix=end) for end in ends))
        with_events(path, *(replace(STALL, end_unix=end) for end in ends))
        database = HistoryDatabase(str(path))
        gone = database.forget_before(ends[1100])
        newest = database.newest_end_unix()
        database.close()

        assert gone == 2 * 1100
        assert [load.end_unix for load in kept(path).loads] == ends[1100:]
        assert [stall.end_unix for stall in kept(path).stalls] == ends[1100:]
        assert newest == ends[-1]  # no save is there to count from

    def test_newest_is_a_save(self, path: Path) -> None:
        """Where there are saves the newest of them counts, not a later load or stall."""
        with_events(path, replace(LOAD, end_unix=MIDNIGHT + 900.0), replace(STALL, end_unix=MIDNIGHT + 901.0))
        database = HistoryDatabase(str(path))
        newest = [database.newest_end_unix()]
        with database.transaction():
            database.add_save(numbered(1))
        newest.append(database.newest_end_unix())
        database.close()

        assert newest == [MIDNIGHT + 901, MIDNIGHT + 120]

    def test_all_kinds_by_size(self, path: Path) -> None:
        """Beyond the limit the oldest rows go, of whichever kind; in the end only the newest save stays."""
        written(path, *(numbered(n, end_unix=MIDNIGHT + 3.0 * n, notes=("x" * 2000,)) for n in range(100)))
        with_events(path, *(replace(LOAD, end_unix=MIDNIGHT + 3.0 * n + 1) for n in range(100)))
        with_events(path, *(replace(STALL, end_unix=MIDNIGHT + 3.0 * n + 2) for n in range(100)))
        database = HistoryDatabase(str(path))
        half = database.size_bytes // 2
        database.shrink_to(half)
        assert database.size_bytes <= half
        found = kept(path)
        left = sorted(record.end_unix for record in (*found.saves, *found.loads, *found.stalls))
        assert left == [MIDNIGHT + n for n in range(300 - len(left), 300)]
        assert 100 <= len(left) <= 170
        database.shrink_to(1)
        database.close()

        last = kept(path)
        assert ([save.step for save in last.saves], last.loads, last.stalls) == ([99], (), ())

    def test_permissions(self, path: Path) -> None:
        """The file and its log can be read by the group and by nobody else, and a stricter umask holds."""
        before = os.umask(0o022)
        try:
            database = HistoryDatabase(str(path))
            with database.transaction():
                database.add_save(PLAIN)
            modes = {stat.S_IMODE(os.stat(f"{path}{end}").st_mode) for end in ("", "-wal", "-shm")}
            os.umask(0o077)
            HistoryDatabase(f"{path}.strict").close()
        finally:
            os.umask(before)
        database.close()

        assert modes == {0o640}
        assert stat.S_IMODE(os.stat(f"{path}.strict").st_mode) == 0o600

    def test_deleted_file(self, path: Path) -> None:
        """A file that was deleted or replaced is told, so that nothing is written into the void."""
        database = HistoryDatabase(str(path))
        assert database.is_in_place
        path.unlink()
        assert not database.is_in_place
        path.write_bytes(b"")
        assert not database.is_in_place
        database.close()

    def test_without_shared_memory(self, path: Path) -> None:
        """Where memory cannot be shared the file is written without a WAL, and an older WAL goes."""
        written(path, numbered(1))
        database = HistoryDatabase(str(path), wal=False)
        with database.transaction():
            database.add_save(numbered(2))
        assert not os.path.exists(f"{path}-wal")
        assert [save.step for save in kept(path).saves] == [1, 2]
        database.close()


class TestVersions:
    def test_older(self, tmp_path: Path) -> None:
        """An older file gets the missing steps, in one transaction, and keeps what it holds."""
        steps = (("CREATE TABLE a (x)",), ("ALTER TABLE a ADD COLUMN y", "CREATE TABLE b (z)"))
        connection = sqlite3.connect(tmp_path / "old.db", isolation_level=None)
        migrate(connection, steps[:1])
        connection.execute("INSERT INTO a VALUES (7)")
        broken = (*steps[:1], (*steps[1], "CREATE TABLE b (again)"))
        with pytest.raises(sqlite3.OperationalError):
            migrate(connection, broken)
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert connection.execute("SELECT * FROM a").fetchall() == [(7,)]
        migrate(connection, steps)

        assert connection.execute("SELECT x, y FROM a").fetchall() == [(7, None)]
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)
        connection.close()

    def test_of_version_1(self, path: Path) -> None:
        """A file that version 1 wrote keeps its rows, gets the new tables, and takes loads and stalls."""
        version_1(path)
        with_events(path, LOAD, STALL)
        found = kept(path)

        assert (found.saves, found.gpu_time) == ((PLAIN, FULL), HOURS)
        assert (found.loads, found.stalls) == ((LOAD,), (STALL,))
        assert _value(path, "PRAGMA user_version") == SCHEMA_VERSION

    def test_of_version_2(self, path: Path) -> None:
        """A file that version 2 wrote is read as it is and kept when written on; new columns are unknown."""
        before = version_2(path).read_bytes()
        new = ("mountpoint", "device", "fstype", "transport", "cold_start_seconds")
        old = replace(LOAD, **dict.fromkeys(new))
        found = kept(path)
        assert path.read_bytes() == before
        with_events(path, LOAD, STALL)
        again = kept(path)

        assert (found.saves, found.gpu_time, found.loads, found.stalls) == (
            (PLAIN, FULL), HOURS, (old,), (STALL,),
        )  # fmt: skip
        assert (again.saves, again.loads, again.stalls) == (found.saves, (old, LOAD), (STALL, STALL))
        assert _value(path, "PRAGMA user_version") == SCHEMA_VERSION

    def test_of_version_1_is_read_as_it_is(self, path: Path) -> None:
        """A reader takes a file of version 1 without changing it; it holds no load and no stall."""
        before = version_1(path).read_bytes()
        found = kept(path)

        assert (found.saves, found.gpu_time, found.loads, found.stalls) == ((PLAIN, FULL), HOURS, (), ())
        assert path.read_bytes() == before

    def test_of_version_1_with_a_table_it_cannot_have(self, path: Path) -> None:
        """A file of version 1 that has a table of version 2 is damaged, and stays as it is."""
        version_1(path)
        _drop(path, "CREATE TABLE stalls (x)")

        assert failure(path)[0] == "damaged"
        assert _value(path, "PRAGMA user_version") == 1
        assert _value(path, "SELECT count(*) FROM sqlite_master WHERE name = 'loads'") == 0

    def test_newer(self, path: Path) -> None:
        """A file of a newer version is neither written nor read, and says so."""
        written(path, PLAIN)
        connection = sqlite3.connect(path)
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
        connection.close()

        assert failure(path)[0] == "newer"
        with pytest.raises(HistoryError, match="written by a newer ckpt-exporter"):
            kept(path)

    def test_begun_and_killed(self, path: Path) -> None:
        """An empty file, as a process leaves it that is killed at its first step, becomes a history."""
        path.write_bytes(b"")

        assert kept(written(path, PLAIN)).saves == (PLAIN,)


def version_2(path: Path) -> Path:
    """Make the file that the code of version 2 wrote with the sample records."""
    return _golden(path, 2)


def version_1(path: Path) -> Path:
    """Make the file that the code of version 1 wrote with the sample records."""
    return _golden(path, 1)


def _golden(path: Path, version: int) -> Path:
    connection = sqlite3.connect(path)
    connection.executescript((GOLDEN / f"history_version_{version}.sql").read_text(encoding="utf-8"))
    connection.close()
    return path


def _value(path: Path, statement: str) -> object:
    connection = sqlite3.connect(path)
    value = connection.execute(statement).fetchone()[0]
    connection.close()
    return value


def _zero(path: Path, begin: int, end: int) -> None:
    with open(path, "r+b") as stream:
        stream.seek(begin)
        stream.write(bytes(end - begin))


def _drop(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


DAMAGES = {
    "truncated": lambda path: os.truncate(path, os.path.getsize(path) // 2),
    "cut within its first page": lambda path: os.truncate(path, 700),
    "zeroed header": lambda path: _zero(path, 0, 100),
    "zeroed pages": lambda path: _zero(path, 8192, os.path.getsize(path)),
    "garbage": lambda path: path.write_bytes(os.urandom(50_000)),
    "text": lambda path: path.write_text("not a database, but somebody's notes\n" * 100),
    "a missing table": lambda path: _drop(path, "DROP TABLE gpu_time"),
    "a missing table of version 2": lambda path: _drop(path, "DROP TABLE loads"),
    "a missing column of version 2": lambda path: _drop(path, "ALTER TABLE stalls RENAME COLUMN uuid TO x"),
    "a missing column": lambda path: _drop(path, "ALTER TABLE saves RENAME COLUMN shards TO other"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_at_the_start(path: Path, name: str) -> None:
    """Damage of every kind is found when the file is opened, by the writer and by a reader, in one line."""
    written(path, *(replace(FULL, step=number, notes=("x" * 3000,)) for number in range(40)))
    DAMAGES[name](path)

    reason, message = failure(path)
    assert reason == "damaged", message
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    with pytest.raises(HistoryError):
        kept(path)


def test_another_programs_database(path: Path) -> None:
    """The database of another program is refused and left exactly as it is."""
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE accounts (name)")
    connection.commit()
    connection.close()
    before = path.read_bytes()

    assert failure(path) == ("foreign", f"{path}: is the database of another program")
    assert path.read_bytes() == before


def test_a_directory_and_a_missing_directory(path: Path) -> None:
    """A directory instead of a file, and a missing directory, are told as what they are."""
    path.mkdir()

    assert failure(path) == ("unavailable", f"{path}: cannot be opened for writing: Is a directory")
    below = path / "no" / "history.db"
    assert failure(below) == (
        "unavailable",
        f"{below}: cannot be opened for writing: No such file or directory",
    )


class TestReading:
    def test_while_it_is_written(self, path: Path) -> None:
        """A reader sees what is committed, and neither waits for the writer nor makes it wait."""
        database = HistoryDatabase(str(path), busy_seconds=0.0)
        with database.transaction():
            database.add_save(numbered(1))
        with database.transaction():
            database.add_save(numbered(2))
            assert [save.step for save in kept(path).saves] == [1]
        reader = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM saves").fetchone()
        with database.transaction():
            database.add_save(numbered(3))
        reader.close()

        assert [save.step for save in kept(path).saves] == [1, 2, 3]
        database.close()

    def test_what_is_no_history(self, path: Path) -> None:
        """A missing file, a directory and an empty file are one line each."""

        def message() -> str:
            with pytest.raises(HistoryError) as caught:
                kept(path)
            return str(caught.value).removeprefix(f"{path}: ")

        assert message().startswith("no such file")
        path.write_bytes(b"")
        assert message() == "is empty, not a history of ckpt-exporter"
        path.unlink()
        path.mkdir()
        assert message() == "is a directory, must be a history file"

    def test_reading_changes_nothing(self, path: Path) -> None:
        """Reading leaves the file as it is and nothing beside it."""
        before = written(path, PLAIN).read_bytes()
        kept(path)

        assert path.read_bytes() == before
        assert os.listdir(path.parent) == ["history.db"]

    def test_a_row_that_is_no_save(self, path: Path) -> None:
        """A row whose lists cannot be read is damage, not a traceback."""
        written(path, PLAIN)
        _drop(path, "UPDATE saves SET shards = '[['")

        with pytest.raises(HistoryError, match="is damaged: a row cannot be read"):
            kept(path)

    @pytest.mark.parametrize(
        "damage",
        [
            "loads SET notes = '[['", "loads SET bytes = 'many'", "loads SET start_unix = -1.0",
            "loads SET cached_ratio = 'half'", "loads SET path = x'ff'", "stalls SET cause = 'boredom'",
            "stalls SET seconds = 'long'", "stalls SET gpu = 1.5", "stalls SET start_unix = 9e99",
        ],
    )  # fmt: skip
    def test_a_row_that_is_no_load_or_stall(self, path: Path, damage: str) -> None:
        """A load or stall with a value of the wrong kind is damage, not a traceback and not a number."""
        with_events(path, LOAD, STALL)
        _drop(path, f"UPDATE {damage}")

        with pytest.raises(HistoryError, match="is damaged"):
            kept(path)
