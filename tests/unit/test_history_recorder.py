"""The thread that keeps the history: what goes in, what a restart brings back, what goes wrong."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ckpt_exporter.history import recorder as recorder_module
from ckpt_exporter.history.place import WriterLock, lies_on_network, move_aside, why_unusable
from ckpt_exporter.history.reading import read_history
from ckpt_exporter.history.recorder import HistoryRecorder, Pace, Place
from ckpt_exporter.history.records import SaveRecord
from ckpt_exporter.ledger import Ledger
from ckpt_exporter.model import (
    DetectSettings,
    DirectorySettings,
    GpuInfo,
    GpuStatus,
    Mount,
    StorageStatus,
    Writers,
)
from tests.history_samples import MIDNIGHT, live_bubble, live_load, live_save, live_stall

QUICK = Pace(retry_seconds=0.02, gpu_time_seconds=3600.0, upkeep_seconds=3600.0, busy_seconds=0.0)


def new_ledger() -> Ledger:
    """Return a ledger whose monotonic second 0 is midnight."""
    return Ledger([DirectorySettings("llama", "/data/llama")], DetectSettings(), unix_minus_t=MIDNIGHT)


def new_recorder(path: Path, ledger: Ledger | None = None, **changes: object) -> HistoryRecorder:
    values = {"retention_seconds": 90 * 86400.0, "max_bytes": 1 << 28, **changes}
    place = Place(str(path), "n1", values["retention_seconds"], values["max_bytes"])  # type: ignore[arg-type]
    return HistoryRecorder(
        place, ledger or new_ledger(), pace=QUICK, clock=lambda: 1000.0 + time.monotonic() % 1e6
    )


@contextlib.contextmanager
def recording(path: Path, ledger: Ledger | None = None, **changes: object) -> Iterator[HistoryRecorder]:
    """Run a recorder, and stop it however the test ends."""
    recorder = new_recorder(path, ledger, **changes)
    recorder.start()
    try:
        yield recorder
    finally:
        recorder.stop(timeout_seconds=10)


def wait_until(condition: Callable[[], bool], what: str = "") -> None:
    ends = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < ends, what
        time.sleep(0.002)


def up(recorder: HistoryRecorder) -> bool:
    return recorder.status().up


def saves(path: Path) -> tuple[SaveRecord, ...]:
    return read_history(str(path)).saves


def steps(path: Path) -> list[int | None]:
    return [save.step for save in saves(path)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


class TestKeeping:
    def test_a_save_with_its_bubble(self, path: Path) -> None:
        """A save is kept with its run, mount and shards, and its bubble joins it when it is known."""
        ledger = new_ledger()
        ledger.set_storage(StorageStatus("llama", Mount("/data", "nvme0n1", "ext4", "nvme-pcie")))
        ledger.feed(Writers(5.0, "llama", (42,), "pretrain", "slurm", "4711"))
        save = live_save(1, pids=(42,))
        with recording(path, ledger) as recorder:
            recorder.add_save(save)
            recorder.add_bubble(live_bubble(save))
        (kept,) = saves(path)

        assert (kept.node, kept.directory, kept.step, kept.result) == ("n1", "llama", 1, "complete")
        assert (kept.start_unix, kept.end_unix) == (MIDNIGHT + 90, MIDNIGHT + 100)
        assert (kept.run, kept.run_id, kept.scheduler) == ("pretrain", "4711", "slurm")
        assert (kept.mountpoint, kept.device, kept.transport) == ("/data", "nvme0n1", "nvme-pcie")
        assert [(shard.name, shard.end_unix) for shard in kept.shards] == [
            ("a.bin", MIDNIGHT + 95), ("b.bin", MIDNIGHT + 100),
        ]  # fmt: skip
        assert kept.bubble_gpu_seconds == {0: 9.5, 1: 9.5}
        assert kept.bubble_phases == {"writing": 8.5, "after_write": 1.0}
        assert (kept.dip_start_unix, kept.dip_end_unix) == (MIDNIGHT + 89, MIDNIGHT + 100)

    def test_another_runs_processes(self, path: Path) -> None:
        """A save whose writers are not those of the run last seen has no run, rather than a wrong one."""
        ledger = new_ledger()
        ledger.feed(Writers(5.0, "llama", (42,), "pretrain", "slurm", "4711"))
        with recording(path, ledger) as recorder:
            recorder.add_save(live_save(1, pids=(43, 44)))
        (kept,) = saves(path)

        assert (kept.run, kept.run_id) == (None, None)

    def test_late_files_join_their_save(self, path: Path) -> None:
        """Files that come after their save was kept add to it, and are no save of their own."""
        save = live_save(1)
        late = live_save(
            1, start=101.0, end=104.0, bytes=500_000_000, files=1, late=True, active_seconds=2.0, shards=()
        )
        with recording(path) as recorder:
            recorder.add_save(save)
            recorder.add_save(late)
        (kept,) = saves(path)

        assert (kept.bytes, kept.files, kept.end_unix) == (1_500_000_000, 3, MIDNIGHT + 104)
        assert kept.duration_seconds == 14.0
        assert kept.average_bandwidth == pytest.approx(1.5e9 / 14)
        assert kept.notes == ("late_files",)

    def test_gpu_time_by_hour(self, path: Path) -> None:
        """The time in which GPUs were observed is kept by hour, split where an hour ends, and once only."""
        ledger = new_ledger()
        now = 0.0
        observed = 0.0

        def statuses(_now: float) -> tuple[GpuStatus, ...]:
            stalls = {"data_loading": observed / 10}
            return (GpuStatus(GpuInfo(3, "GPU-x"), up=True, observed_seconds=observed, stall_seconds=stalls),)

        ledger.gpu_statuses = statuses  # type: ignore[method-assign]
        place = Place(str(path), "n1", 1e9, 1 << 28)
        recorder = HistoryRecorder(
            place, ledger, pace=replace(QUICK, gpu_time_seconds=1e9), clock=lambda: now
        )
        recorder.start()
        wait_until(lambda: up(recorder))
        now, observed = 3000.0, 3000.0
        recorder.add_save(live_save(1))
        wait_until(lambda: path.exists() and len(read_history(str(path)).gpu_time) == 1)
        now, observed = 4200.0, 4200.0
        recorder.stop(timeout_seconds=10)
        hours = [
            (h.gpu, h.uuid, h.hour_unix - MIDNIGHT, h.observed_seconds)
            for h in read_history(str(path)).gpu_time
        ]

        # 3000 s at once, then 1200 s evenly from 3000 s to 4200 s: half of them before the hour's end.
        assert hours == [(3, "GPU-x", 0, 3600.0), (3, "GPU-x", 3600, 600.0)]
        assert read_history(str(path)).gpu_time[0].stall_seconds == {"data_loading": 360.0}

    def test_a_load(self, path: Path) -> None:
        """A load is kept with what is known of it, in Unix time."""
        with recording(path) as recorder:
            recorder.add_load(live_load(1))
        (load,) = read_history(str(path)).loads

        assert (load.node, load.directory, load.path) == ("n1", "llama", "/data/llama/checkpoint-1")
        assert (load.start_unix, load.end_unix) == (MIDNIGHT + 96, MIDNIGHT + 100)
        assert (load.duration_seconds, load.bytes, load.files, load.step) == (4.0, 1_000_000_000, 2, 1)
        assert (load.layout, load.run, load.readers) == ("huggingface", "pretrain", 8)
        assert (load.cached_ratio, load.notes) == (0.5, ("mapped",))

    def test_a_cold_start(self, path: Path) -> None:
        """When GPUs first worked after a load is added to that load's row alone, once it is known."""
        first, second = live_load(1), live_load(1, start=146.0, end=150.0)
        with recording(path) as recorder:
            for load in (first, second, live_load(2)):
                recorder.add_load(load)
            recorder.add_cold_start(replace(second, first_gpu_work=157.25))
        found = {load.end_unix: load.cold_start_seconds for load in read_history(str(path)).loads}

        assert found == {MIDNIGHT + 100: None, MIDNIGHT + 150: 11.25, MIDNIGHT + 200: None}

    def test_stalls(self, path: Path) -> None:
        """A stall is kept with the GPU that has its index, if one has; one of a save is in its bubble."""
        ledger = new_ledger()
        gpus = (GpuInfo(3, "GPU-x"), GpuInfo(4, "MIG-a"), GpuInfo(4, "MIG-b"))
        statuses = tuple(GpuStatus(info, up=True) for info in gpus)
        ledger.gpu_statuses = lambda _now: statuses  # type: ignore[method-assign]
        with recording(path, ledger) as recorder:
            recorder.add_stall(live_stall(1))
            recorder.add_stall(live_stall(2, cause="checkpoint_save"))
            recorder.add_stall(live_stall(3, gpu=4, cause="communication"))
            recorder.add_stall(live_stall(4, gpu=5, cause="other"))
        found = read_history(str(path)).stalls

        assert [(s.gpu, s.uuid, s.cause) for s in found] == [
            (3, "GPU-x", "data_loading"), (4, None, "communication"), (5, None, "other"),
        ]  # fmt: skip
        first = found[0]
        assert (first.node, first.start_unix, first.end_unix) == ("n1", MIDNIGHT + 98, MIDNIGHT + 100)
        assert first.seconds == 1.5

    def test_retention_without_saves(self, path: Path) -> None:
        """Where nothing is saved, loads and stalls are kept as long, counted from the newest of them."""
        with recording(path) as recorder:
            for number in range(1, 11):
                recorder.add_load(live_load(number))
                recorder.add_stall(live_stall(number))
        with recording(path, retention_seconds=450.0) as recorder:
            wait_until(lambda: up(recorder))
        found = read_history(str(path))

        assert [load.step for load in found.loads] == [6, 7, 8, 9, 10]
        assert [stall.end_unix - MIDNIGHT for stall in found.stalls] == [600, 700, 800, 900, 1000]

    def test_retention(self, path: Path) -> None:
        """At the start what is older than the retention goes, counted from the newest save."""
        with recording(path) as recorder:
            for number in range(1, 11):
                recorder.add_save(live_save(number))
        with recording(path, retention_seconds=450.0) as recorder:
            wait_until(lambda: up(recorder))

        assert steps(path) == [6, 7, 8, 9, 10]  # the newest ended at 1000 s; 550 s and later stay

    def test_size(self, path: Path) -> None:
        """A limit that is too small for anything leaves the newest save."""
        with recording(path) as recorder:
            for number in range(1, 11):
                recorder.add_save(live_save(number))
        with recording(path, max_bytes=1) as recorder:
            wait_until(lambda: up(recorder))

        assert steps(path) == [10]


class TestRestart:
    def test_last_save_comes_back(self, path: Path) -> None:
        """After a restart the last complete save and its bubble are shown again; counters start at 0."""
        first, second = live_save(1), live_save(2)
        with recording(path) as recorder:
            for save in (first, second, live_save(3, result="incomplete", reason="no_commit")):
                recorder.add_save(save)
            recorder.add_bubble(live_bubble(second, 7.0))
        later = Ledger(
            [DirectorySettings("llama", "/data/llama")], DetectSettings(), unix_minus_t=MIDNIGHT + 5000
        )
        with recording(path, later) as recorder:
            wait_until(lambda: up(recorder))
        shown = later.snapshot(20.0).directories[0]

        assert shown.last_save is not None
        assert shown.last_save.step == 2
        assert shown.last_save.end + later.unix_minus_t == MIDNIGHT + 200
        assert shown.last_save.duration_seconds == 10.0
        assert shown.last_bubble is not None
        assert shown.last_bubble.seconds == 7.0
        assert shown.saves == {"complete": 0, "incomplete": 0, "aborted": 0}
        assert shown.save_bytes == 0
        assert sum(shown.duration.counts) == 0

    def test_a_directory_that_moved(self, path: Path) -> None:
        """A save of another path under the same name, or of a name no longer configured, is not shown."""
        with recording(path) as recorder:
            recorder.add_save(live_save(1))
            recorder.add_save(live_save(2, directory="gone"))
        moved = Ledger([DirectorySettings("llama", "/data/other")], DetectSettings())
        with recording(path, moved) as recorder:
            wait_until(lambda: up(recorder))

        assert moved.snapshot(0.0).directories[0].last_save is None

    def test_a_newer_save_wins(self) -> None:
        """A save seen since the start is not replaced by an older one, and replaces a restored one."""
        ledger = new_ledger()
        ledger.restore([(live_save(5, end=1e9), None)])  # by a clock that was far ahead
        book = ledger._shelf.books["llama"]
        book.enter(live_save(6), 0.0)
        assert book.last_save is not None
        assert book.last_save.step == 6
        ledger.restore([(live_save(7), None)])

        assert book.last_save.step == 6

    def test_a_clock_that_is_set(self) -> None:
        """A clock step moves the shown times of saves seen here, and not that of a restored one."""
        ledger = Ledger(
            [DirectorySettings("a", "/data/a"), DirectorySettings("llama", "/data/llama")], DetectSettings()
        )
        ledger.restore([(live_save(1, start=-110.0, end=-100.0), None)])
        ledger._shelf.books["a"].enter(live_save(1, directory="a", path="/data/a/1"), 0.0)
        ledger.set_clock(1000.0)
        snapshot = ledger.snapshot(0.0)
        ends = {d.name: d.last_save.end + snapshot.unix_minus_t for d in snapshot.directories if d.last_save}

        assert ends == {"llama": -100.0, "a": 1100.0}


class TestTrouble:
    def test_damaged_at_the_start(self, path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """A damaged file is moved aside as it is, counted and told, and a new history begins."""
        path.write_bytes(b"garbage" * 1000)
        with caplog.at_level(logging.INFO), recording(path) as recorder:
            recorder.add_save(live_save(1))
            wait_until(lambda: up(recorder))
            status = recorder.status()
        (aside,) = path.parent.glob("history.db.damaged-*")

        assert aside.read_bytes() == b"garbage" * 1000
        assert status.errors["damaged"] == 1
        assert status.dropped == 0
        assert steps(path) == [1]
        assert "history moved aside, beginning anew" in caplog.messages

    def test_damaged_while_running(self, path: Path) -> None:
        """Damage that shows only when a row is written is moved aside too, and the save is kept."""
        with recording(path) as recorder:
            recorder.add_save(live_save(1))
            wait_until(lambda: path.exists() and up(recorder) and steps(path) == [1])
            other = sqlite3.connect(path)
            other.execute("DROP TABLE saves")
            other.commit()
            other.close()
            recorder.add_save(live_save(2))
            wait_until(lambda: recorder.status().errors["damaged"] == 1 and up(recorder))
            assert recorder.status().dropped == 0

        assert steps(path) == [2]
        assert len(list(path.parent.glob("history.db.damaged-*Z"))) == 1

    def test_no_more_than_three_aside(self, path: Path) -> None:
        """Of the files moved aside for one reason the newest three stay, with their logs."""
        for day in range(5):
            path.write_bytes(str(day).encode())
            Path(f"{path}-wal").write_bytes(b"log")
            move_aside(str(path), "damaged", MIDNIGHT + 86400.0 * day)
        path.write_bytes(b"newer")
        assert move_aside(str(path), "newer", MIDNIGHT) == f"{path}.newer-20251130T000000Z"
        left = {name.name: name.read_bytes() for name in path.parent.glob("*.damaged-*Z")}

        assert left == {
            "history.db.damaged-20251202T000000Z": b"2",
            "history.db.damaged-20251203T000000Z": b"3",
            "history.db.damaged-20251204T000000Z": b"4",
        }
        assert len(list(path.parent.glob("*-wal"))) == 3

    def test_two_in_one_second(self, path: Path) -> None:
        """Two files moved aside within one second do not replace each other."""
        path.write_bytes(b"1")
        first = move_aside(str(path), "damaged", MIDNIGHT)
        path.write_bytes(b"2")
        second = move_aside(str(path), "damaged", MIDNIGHT)

        assert (Path(first).read_bytes(), Path(second).read_bytes()) == (b"1", b"2")

    def test_newer_version(self, path: Path) -> None:
        """A file of a newer version is moved aside untouched, and a new one begins."""
        with recording(path) as recorder:
            recorder.add_save(live_save(1))
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA user_version = 99")
        connection.close()
        with recording(path) as recorder:
            recorder.add_save(live_save(2))
            wait_until(lambda: up(recorder))
            assert recorder.status().errors["newer"] == 1
        (aside,) = path.parent.glob("history.db.newer-*")

        assert steps(path) == [2]
        assert sqlite3.connect(aside).execute("SELECT step FROM saves").fetchall() == [(1,)]

    def test_another_programs_database(self, path: Path) -> None:
        """Another program's database is never touched; saves wait until the path is free."""
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE accounts (name)")
        connection.commit()
        connection.close()
        before = path.read_bytes()
        with recording(path) as recorder:
            recorder.add_save(live_save(1))
            wait_until(lambda: recorder.status().errors["foreign"] > 1)
            assert not up(recorder)
            assert path.read_bytes() == before
            path.unlink()
            wait_until(lambda: up(recorder))

        assert steps(path) == [1]

    def test_locked_by_another_connection(self, path: Path) -> None:
        """While another program locks the file saves wait in memory, and none is lost."""
        with recording(path) as recorder:
            wait_until(lambda: up(recorder))
            other = sqlite3.connect(path, isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            recorder.add_save(live_save(1))
            wait_until(lambda: recorder.status().errors["locked"] > 0)
            assert not up(recorder)
            other.execute("ROLLBACK")
            other.close()
            wait_until(lambda: up(recorder))
            assert recorder.status().dropped == 0

        assert steps(path) == [1]

    def test_two_daemons(self, path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """A second daemon on one file waits, says who writes it, and goes on when the first has ended."""
        first = WriterLock(str(path))
        with caplog.at_level(logging.WARNING), recording(path) as recorder:
            recorder.add_save(live_save(1))
            wait_until(lambda: recorder.status().errors["locked"] > 1)
            assert not path.exists()
            first.release()
            wait_until(lambda: up(recorder))
        told = [record.fields["reason"] for record in caplog.records]  # type: ignore[attr-defined]

        assert told == [f"is being written by process {os.getpid()}"]
        assert steps(path) == [1]

    def test_directory_that_comes_later(self, tmp_path: Path) -> None:
        """A missing directory is a state: saves wait, and are kept once it is there."""
        path = tmp_path / "later" / "history.db"
        with recording(path) as recorder:
            recorder.add_save(live_save(1))
            wait_until(lambda: recorder.status().errors["unavailable"] > 0)
            path.parent.mkdir()
            wait_until(lambda: up(recorder))

        assert steps(path) == [1]

    def test_deleted_while_running(self, path: Path) -> None:
        """A file deleted under the daemon is begun anew, with what comes after."""
        with recording(path) as recorder:
            recorder.add_save(live_save(1))
            wait_until(lambda: path.exists() and up(recorder) and steps(path) == [1])
            for name in path.parent.glob("history.db*"):
                name.unlink()
            recorder.add_save(live_save(2))
            wait_until(lambda: path.exists() and up(recorder))
            assert recorder.status().errors["unavailable"] == 1

        assert steps(path) == [2]

    def test_the_queue_is_bounded(self, tmp_path: Path) -> None:
        """What waits too long is given up oldest first, and counted."""
        path = tmp_path / "later" / "history.db"
        with recording(path) as recorder:
            for number in range(1, recorder_module.MAX_WAITING + 6):
                recorder.add_save(live_save(number))
            assert recorder.status().dropped == 5
            path.parent.mkdir()
            wait_until(lambda: up(recorder))

        assert steps(path) == list(range(6, recorder_module.MAX_WAITING + 6))

    def test_stalls_push_no_save_out(self, tmp_path: Path) -> None:
        """While nothing can be written many stalls cost older stalls, and no save and no load."""
        path = tmp_path / "later" / "history.db"
        with recording(path) as recorder:
            recorder.add_save(live_save(1))
            recorder.add_load(live_load(1))
            for number in range(1, recorder_module.MAX_WAITING + 6):
                recorder.add_stall(live_stall(number))
            assert recorder.status().dropped == 5
            path.parent.mkdir()
            wait_until(lambda: up(recorder))
        found = read_history(str(path))

        assert ([save.step for save in found.saves], [load.step for load in found.loads]) == ([1], [1])
        assert len(found.stalls) == recorder_module.MAX_WAITING
        assert found.stalls[0].end_unix == MIDNIGHT + 600

    def test_a_stall_that_cannot_be_written(self, path: Path) -> None:
        """A stall that no database takes is dropped and counted, and what comes after is kept."""
        with recording(path) as recorder:
            recorder.add_stall(live_stall(1, seconds=float("nan")))
            recorder.add_stall(live_stall(2))
            recorder.add_save(live_save(3))
            wait_until(lambda: up(recorder) and recorder.status().dropped == 1)
            assert recorder.status().errors["other"] == 1
        found = read_history(str(path))

        assert (len(found.saves), len(found.stalls)) == (1, 1)

    def test_a_record_that_cannot_be_written(self, path: Path) -> None:
        """One record that no database takes is dropped and counted, and the next ones are kept."""
        with recording(path) as recorder:
            recorder.add_save(live_save(1, bytes=object()))
            recorder.add_save(live_save(2))
            wait_until(lambda: up(recorder) and recorder.status().dropped == 1)
            assert recorder.status().errors["other"] == 1

        assert steps(path) == [2]

    def test_stop_without_a_file(self, tmp_path: Path) -> None:
        """Stopping ends the thread also where the file never could be opened."""
        recorder = new_recorder(tmp_path / "no" / "history.db")
        recorder.start()
        recorder.add_save(live_save(1))
        recorder.stop(timeout_seconds=10)

        assert not recorder._thread.is_alive()


def test_place_of_a_default(tmp_path: Path) -> None:
    """A directory that does not exist says so; one that can be written says nothing."""
    assert why_unusable(str(tmp_path / "history.db")) is None
    assert why_unusable(str(tmp_path / "no" / "history.db")) == f"{tmp_path}/no does not exist"


def test_network_file_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS and its like are told by the mount table, without touching them; a local disk is none."""
    from ckpt_exporter.history import place
    from ckpt_exporter.sources.mounts import parse_mountinfo

    table = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:40 / /shared rw - nfs4 filer:/x rw\n"
    monkeypatch.setattr(place, "read_mountinfo", lambda: parse_mountinfo(table))

    assert lies_on_network("/shared/ckpt/history.db")
    assert not lies_on_network("/var/lib/ckpt-exporter/history.db")


def test_the_daemon_follows_a_clock_that_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the clock is set by an hour the daemon shows times by the new one."""
    from ckpt_exporter import app
    from ckpt_exporter.config.schema import Config, GpuSettings, HistorySettings, WebSettings

    unix = 1_764_460_800.0
    monkeypatch.setattr(app.time, "time", lambda: unix)
    config = Config(
        (DirectorySettings("a", str(tmp_path)),), gpu=GpuSettings("none"),
        history=HistorySettings(path=None), web=WebSettings("127.0.0.1:0"),
    )  # fmt: skip
    exporter = app.Exporter(config, clock=lambda: 100.0)
    unix += 0.4
    exporter.tick()
    assert exporter.ledger.unix_minus_t == 1_764_460_700.0
    unix += 3600.0
    exporter.tick()

    assert exporter.ledger.unix_minus_t == 1_764_464_300.4


def test_the_daemon_keeps_loads_and_stalls(tmp_path: Path) -> None:
    """What the ledger tells of a load and of a stall goes to the history."""
    from ckpt_exporter import app
    from ckpt_exporter.config.schema import Config, GpuSettings, HistorySettings, WebSettings

    path = tmp_path / "history.db"
    (tmp_path / "watched").mkdir()
    config = Config(
        (DirectorySettings("a", str(tmp_path / "watched")),), gpu=GpuSettings("none"),
        history=HistorySettings(path=str(path)), web=WebSettings("127.0.0.1:0"),
    )  # fmt: skip
    exporter = app.Exporter(config, clock=lambda: 100.0)
    assert exporter._history is not None
    exporter.ledger._tell([], [live_stall(1)], [live_load(1)])
    exporter._history.start()
    exporter._history.stop(timeout_seconds=10)
    found = read_history(str(path))

    assert (len(found.loads), len(found.stalls), found.saves) == (1, 1, ())
