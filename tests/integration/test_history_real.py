"""The history on real disks: killed writers, full and read-only places, other users."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ckpt_exporter.history.database import HistoryDatabase
from ckpt_exporter.history.reading import read_history
from ckpt_exporter.history.recorder import HistoryRecorder, Pace, Place
from ckpt_exporter.ledger import Ledger
from ckpt_exporter.model import DetectSettings, DirectorySettings
from tests.history_samples import FULL, MIDNIGHT, live_save
from tests.integration.daemon import REPOSITORY, wait_until

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts and other users need root")


@pytest.mark.timeout(100)
def test_killed_two_hundred_times(tmp_path: Path) -> None:
    """Of writers killed at any moment no save that was reported is lost, and none is refused its file."""
    path = tmp_path / "history.db"
    ended = subprocess.run(
        [sys.executable, "-m", "tests.integration.history_writer", str(path), "200", "7"],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    )  # fmt: skip
    told = json.loads(ended.stdout)
    kept = Counter(save.step for save in read_history(str(path)).saves)

    assert told["refused"] == []
    assert told["opened"] >= 133
    assert len(told["reported"]) >= 100
    assert set(told["reported"]) <= set(kept)
    assert set(kept.values()) == {1}
    # Besides what was reported at most the one save that each writer was about to report.
    assert len(kept) - len(told["reported"]) <= 200
    assert sorted(name.name for name in tmp_path.iterdir() if "damaged" in name.name) == []


@contextlib.contextmanager
def tmpfs(where: Path, size: str) -> Iterator[Path]:
    """Mount a small file system in memory."""
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(where)], check=True)
    try:
        yield where
    finally:
        subprocess.run(["umount", str(where)], check=True)


@contextlib.contextmanager
def recording(path: Path) -> Iterator[HistoryRecorder]:
    ledger = Ledger([DirectorySettings("llama", "/data/llama")], DetectSettings(), unix_minus_t=MIDNIGHT)
    pace = Pace(retry_seconds=0.05, busy_seconds=0.0)
    recorder = HistoryRecorder(Place(str(path), "n1", 1e9, 1 << 28), ledger, pace=pace)
    recorder.start()
    try:
        yield recorder
    finally:
        recorder.stop(timeout_seconds=10)


def steps(path: Path) -> list[int | None]:
    return [save.step for save in read_history(str(path)).saves]


@needs_root
def test_full_disk(tmp_path: Path) -> None:
    """On a full disk saves wait, the failure is counted, and all are kept once there is room again."""
    with tmpfs(tmp_path / "small", "1m") as place:
        path, ballast = place / "history.db", place / "ballast"
        with recording(path) as recorder:
            recorder.add_save(live_save(1))
            wait_until(lambda: recorder.status().up and steps(path) == [1])
            with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as stream:
                while stream.write(bytes(4096)):
                    pass
            for number in range(2, 300):
                recorder.add_save(live_save(number, notes=("x" * 2000,)))
            wait_until(lambda: recorder.status().errors["full"] + recorder.status().errors["unavailable"] > 1)
            assert not recorder.status().up
            ballast.unlink()
            subprocess.run(["mount", "-o", "remount,size=20m", str(place)], check=True)
            wait_until(lambda: recorder.status().up)
            assert recorder.status().dropped == 0
            assert recorder.status().errors["damaged"] == 0
            assert steps(path) == list(range(1, 300))


@needs_root
def test_full_disk_from_the_start(tmp_path: Path) -> None:
    """A disk that is full at the start is waited for as well."""
    with tmpfs(tmp_path / "small", "16k") as place:
        path, ballast = place / "history.db", place / "ballast"
        with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as stream:
            while stream.write(bytes(4096)):
                pass
        with recording(path) as recorder:
            recorder.add_save(live_save(1))
            wait_until(lambda: recorder.status().errors["full"] + recorder.status().errors["unavailable"] > 1)
            ballast.unlink()
            subprocess.run(["mount", "-o", "remount,size=20m", str(place)], check=True)
            wait_until(lambda: recorder.status().up)
            assert steps(path) == [1]


@needs_root
def test_read_only_file_system(tmp_path: Path) -> None:
    """A file system that turns read-only is a state: saves wait until it can be written again."""
    with tmpfs(tmp_path / "disk", "20m") as place:
        path = place / "history.db"
        with recording(path) as recorder:
            wait_until(lambda: recorder.status().up)
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        with recording(path) as recorder:
            recorder.add_save(live_save(1))
            wait_until(lambda: recorder.status().errors["unavailable"] > 1)
            assert steps(path) == []
            subprocess.run(["mount", "-o", "remount,rw", str(place)], check=True)
            wait_until(lambda: recorder.status().up)
            assert steps(path) == [1]


LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
"""


def test_locked_by_another_process(tmp_path: Path) -> None:
    """While another process has the file for itself saves wait, and none is lost."""
    path = tmp_path / "history.db"
    with recording(path) as recorder:
        wait_until(lambda: recorder.status().up)
        locker = subprocess.Popen(
            [sys.executable, "-c", LOCK, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert locker.stdout is not None
        assert locker.stdout.readline() == b"locked\n"
        recorder.add_save(live_save(1))
        wait_until(lambda: recorder.status().errors["locked"] > 0)
        locker.communicate()
        wait_until(lambda: recorder.status().up)
        assert recorder.status().dropped == 0

    assert steps(path) == [1]


READ = """
import os, sys
from ckpt_exporter.history.reading import read_history
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
kept = read_history(sys.argv[1])
print([save.step for save in kept.saves], len(kept.notes))
"""


@pytest.fixture
def public_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


def read_as_nobody(path: Path) -> str:
    # Another user may not be allowed to start this interpreter, so it changes who it is when it runs.
    line = [sys.executable, "-c", READ, str(path), str(NOBODY)]
    ended = subprocess.run(line, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return ended.stdout.strip() or ended.stderr.strip().splitlines()[-1]


@needs_root
def test_another_user_reads(public_path: Path) -> None:
    """A user with no right to write reads the file at rest, while it is written, and after a crash."""
    path = public_path / "history.db"
    database = HistoryDatabase(str(path))
    with database.transaction():
        database.add_save(replace(FULL, step=1))
    for name in public_path.iterdir():
        name.chmod(0o644)
    assert read_as_nobody(path) == "[1] 0"  # the writer's shared memory is there, and may be read
    database.close()
    assert read_as_nobody(path) == "[1] 0"  # at rest there is no log
    database = HistoryDatabase(str(path))
    with database.transaction():
        database.add_save(replace(FULL, step=2))
    log = Path(f"{path}-wal").read_bytes()
    database.close()
    before = read_as_nobody(path)
    assert before == "[1, 2] 0"
    Path(f"{path}-wal").write_bytes(log)  # as a crash leaves it, on a machine that was booted since
    Path(f"{path}-wal").chmod(0o644)
    assert read_as_nobody(path) == "[1, 2] 1"
    path.chmod(0o640)
    assert "permission denied, must be readable for user id 65534" in read_as_nobody(path)


KEEP = """
import os, sys, time
from ckpt_exporter.history.recorder import HistoryRecorder, Pace, Place
from ckpt_exporter.ledger import Ledger
from ckpt_exporter.model import DetectSettings
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
place = Place(sys.argv[1], "n1", 1e9, 1 << 28)
recorder = HistoryRecorder(place, Ledger([], DetectSettings()), pace=Pace(retry_seconds=0.05))
recorder.start()
ends = time.monotonic() + 20
while not recorder.status().up and not any(recorder.status().errors.values()) and time.monotonic() < ends:
    time.sleep(0.01)
status = recorder.status()
recorder.stop(10)
print(status.up, [reason for reason, count in status.errors.items() if count])
"""


def keep_as_nobody(path: Path) -> str:
    line = [sys.executable, "-c", KEEP, str(path), str(NOBODY)]
    return subprocess.run(line, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.strip()


@needs_root
def test_another_user_keeps(public_path: Path) -> None:
    """Without the right to write the file or its directory there is no history, and nothing is damaged."""
    path = public_path / "history.db"
    assert keep_as_nobody(path) == "False ['unavailable']"  # a directory of root's
    database = HistoryDatabase(str(path))
    with database.transaction():
        database.add_save(replace(FULL, step=1))
    database.close()
    before = path.read_bytes()
    public_path.chmod(0o777)
    assert keep_as_nobody(path) == "False ['unavailable']"  # a file of root's
    path.chmod(0o666)
    public_path.chmod(0o755)
    Path(f"{path}.lock").chmod(0o666)
    assert keep_as_nobody(path) == "False ['unavailable']"  # a file that may be written where no log may be

    assert path.read_bytes() == before
    assert sorted(os.listdir(public_path)) == ["history.db", "history.db.lock"]
