"""Saves of every shape through the whole daemon; one daemon watches a directory for each test."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration import checkpoints
from tests.integration.checkpoints import KIB, put
from tests.integration.daemon import Daemon, wait_until, watching

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = tuple(f"d{number}" for number in range(24))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("saves")


@pytest.fixture(scope="module")
def daemon(base: Path) -> Iterator[Daemon]:
    with watching(base, *NAMES, incomplete_seconds=60) as started:
        yield started
        started.recheck()


@pytest.fixture(scope="module")
def free_names() -> Iterator[str]:
    return iter(NAMES)


@pytest.fixture
def name(free_names: Iterator[str]) -> str:
    return next(free_names)


@pytest.fixture
def root(base: Path, name: str) -> Path:
    return base / name


@pytest.mark.parametrize("layout", checkpoints.LAYOUTS)
def test_each_layout(daemon: Daemon, name: str, root: Path, layout: str) -> None:
    """A checkpoint of each layout is one complete save with the bytes, files and step that were written."""
    truth = checkpoints.LAYOUTS[layout](root, 700, 300 * KIB)
    daemon.expect(name, 1, size_bytes=truth.size_bytes, files=truth.files)
    scrape = daemon.scrape()
    assert scrape.value("ckpt_last_save_step", dir=name) == 700
    assert scrape.value("ckpt_last_save_bytes", dir=name) == truth.size_bytes
    assert scrape.value("ckpt_written_bytes_total", dir=name) == truth.size_bytes
    assert scrape.value("ckpt_save_duration_seconds_count", dir=name) == 1


def test_same_file_overwritten(daemon: Daemon, name: str, root: Path) -> None:
    """One file that is written anew three times is three saves, each with its own size."""
    for number, size in enumerate((200_000, 300_000, 250_000), start=1):
        put(root / "last.ckpt", size)
        wait_until(lambda number=number: daemon.tally(name)["complete"] == number)
    daemon.expect(name, 3, size_bytes=750_000, files=3)


def test_steps_follow_each_other_at_once(daemon: Daemon, name: str, root: Path) -> None:
    """Checkpoints of five steps without a pause between them are five saves."""
    truths = [checkpoints.hugging_face(root, step, 20_000) for step in range(100, 600, 100)]
    daemon.expect(name, 5, size_bytes=sum(t.size_bytes for t in truths), files=20)
    assert {save["step"] for save in daemon.saves(name)} == {100, 200, 300, 400, 500}
    # Numbers, not text: the last one saved is the last.
    assert daemon.scrape().value("ckpt_last_save_step", dir=name) == 500


def test_steps_that_overlap(daemon: Daemon, name: str, root: Path) -> None:
    """Two steps that are written at the same time are two saves."""
    first, second = root / "step-10", root / "step-20"
    for directory in (first, second):
        directory.mkdir()
    with open(first / "__0_0.distcp", "wb") as one, open(second / "__0_0.distcp", "wb") as two:
        one.write(b"1" * 40_000)
        two.write(b"2" * 50_000)
    for directory in (second, first):
        put(directory / ".metadata", 10)
    daemon.expect(name, 2, size_bytes=90_020, files=4)
    assert {save["step"]: save["bytes"] for save in daemon.saves(name)} == {10: 40_010, 20: 50_010}


def test_links(daemon: Daemon, name: str, root: Path) -> None:
    """A hard link, a symbolic link and a link to itself beside a save add neither bytes nor saves."""
    put(root / "model-step-5.ckpt", 400_000)
    os.link(root / "model-step-5.ckpt", root / "best.ckpt")
    os.symlink("model-step-5.ckpt", root / "last.ckpt")
    os.symlink("loop.ckpt", root / "loop.ckpt")
    daemon.expect(name, 1, size_bytes=400_000, files=1)


def test_retention(daemon: Daemon, name: str, root: Path) -> None:
    """Each checkpoint that retention deletes is counted, and what stays on disk is known."""
    for step in (9_900, 10_000, 10_100):
        checkpoints.hugging_face(root, step, 10_000)
    wait_until(lambda: daemon.tally(name)["complete"] == 3)
    checkpoints.remove(root / "checkpoint-9900")
    checkpoints.remove(root / "checkpoint-10000")
    daemon.expect(name, 3, size_bytes=3 * 30_150, files=12, deleted=2)
    scrape = daemon.scrape()
    assert scrape.value("ckpt_retained_checkpoints", dir=name) == 1
    assert scrape.value("ckpt_retained_bytes", dir=name) == 30_150
    assert scrape.value("ckpt_last_save_step", dir=name) == 10_100


def test_two_jobs_in_one_tree(daemon: Daemon, name: str, root: Path) -> None:
    """Two jobs that save in one tree at the same time are counted each for itself."""
    truths: list[checkpoints.Truth] = []

    def job(run: Path) -> None:
        run.mkdir()
        truths.extend(
            checkpoints.distributed(run, step, 30_000, lambda: time.sleep(0.02)) for step in (10, 20, 30)
        )

    jobs = [threading.Thread(target=job, args=(root / run,)) for run in ("a", "b")]
    for thread in jobs:
        thread.start()
    for thread in jobs:
        thread.join()
    daemon.expect(name, 6, size_bytes=sum(t.size_bytes for t in truths), files=18)
    assert sorted(save["step"] for save in daemon.saves(name)) == [10, 10, 20, 20, 30, 30]


@pytest.mark.alone
def test_pause_inside_a_named_save(daemon: Daemon, name: str, root: Path) -> None:
    """A pause of three quiet times inside a checkpoint whose marker is still to come does not split it."""
    directory = root / "checkpoint-42"
    directory.mkdir()
    began = time.monotonic()
    put(directory / "optimizer.pt", 80_000)
    time.sleep(3)
    put(directory / "model.safetensors", 90_000)
    put(directory / "trainer_state.json", 5)
    took = time.monotonic() - began
    daemon.expect(name, 1, size_bytes=170_005, files=3)
    assert daemon.scrape().value("ckpt_last_save_duration_seconds", dir=name) == pytest.approx(took, abs=0.05)


def test_writer_that_holds_its_file_open(daemon: Daemon, name: str, root: Path) -> None:
    """A file that its writer holds open without writing, longer than the quiet time, is one save."""
    with open(root / "model.bin", "wb", buffering=0) as stream:
        stream.write(b"1" * 60_000)
        time.sleep(2.5)
        stream.write(b"2" * 60_000)
    daemon.expect(name, 1, size_bytes=120_000, files=1)


def test_many_nested_checkpoints(daemon: Daemon, name: str, root: Path) -> None:
    """200 checkpoints of three nested directories and three small files, without pause, are 200 saves."""
    for step in range(1, 201):
        checkpoints.nested(root, step)
    daemon.expect(name, 200, size_bytes=6_000, files=600)
    assert {save["step"] for save in daemon.saves(name)} == set(range(1, 201))


def test_many_files_in_one_save(daemon: Daemon, name: str, root: Path) -> None:
    """10,000 files under one checkpoint's name are one save of 10,000 files."""
    directory = root / "step-1000"
    directory.mkdir()
    for number in range(9_999):
        with open(directory / f"__{number}_0.distcp", "wb", buffering=0) as stream:
            stream.write(b"x" * (number % 50 + 1))
    put(directory / ".metadata", 33)
    # 9,999 files of 1..50 bytes: 199 whole rounds of 1275 and one that lacks its last file of 50.
    daemon.expect(name, 1, size_bytes=199 * 1275 + 1225 + 33, files=10_000, seconds=80)


def test_logs_and_trackers_are_no_saves(daemon: Daemon, name: str, root: Path) -> None:
    """Logs, tensorboard files and trackers beside checkpoints are no saves and no bytes."""
    put(root / "train.log", 50_000)
    put(root / "events.out.tfevents.1700000000.host.1.0", 60_000)
    (root / "wandb").mkdir()
    put(root / "wandb" / "run.bin", 70_000)
    truth = checkpoints.plain_file(root, 3, 10_000)
    daemon.expect(name, 1, size_bytes=truth.size_bytes, files=1)
    assert daemon.scrape().value("ckpt_written_bytes_total", dir=name) == truth.size_bytes


def test_directory_moved_in_from_outside(daemon: Daemon, name: str, root: Path, tmp_path: Path) -> None:
    """A checkpoint renamed into the tree is a save whose duration and bandwidth are unknown, not 0."""
    checkpoints.hugging_face(tmp_path, 800, 20_000)
    (tmp_path / "checkpoint-800").rename(root / "checkpoint-800")
    daemon.expect(name, 1, size_bytes=60_150, files=4)
    scrape = daemon.scrape()
    assert scrape.value("ckpt_last_save_step", dir=name) == 800
    assert scrape.value("ckpt_save_duration_seconds_count", dir=name) == 0
    for unknown in ("duration_seconds", "average_bandwidth_bytes_per_second"):
        assert scrape.get(f"ckpt_last_save_{unknown}", dir=name) is None


def test_copied_away_and_read(daemon: Daemon, name: str, root: Path, tmp_path: Path) -> None:
    """Reading a checkpoint is no save."""
    truth = checkpoints.hugging_face(root, 900, 20_000)
    daemon.expect(name, 1, size_bytes=truth.size_bytes, files=truth.files)
    for path in (root / "checkpoint-900").iterdir():
        assert path.read_bytes()
