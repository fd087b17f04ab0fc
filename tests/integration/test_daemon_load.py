"""The daemon under load: an overflow, a start in mid-save, a wide tree, and nothing that grows."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.integration import checkpoints
from tests.integration.daemon import Daemon, launch, wait_until, watching, write_config

QUEUE = Path("/proc/sys/fs/inotify/max_queued_events")


def start_with_short_queue(tmp_path: Path) -> None:
    if not os.access(QUEUE, os.W_OK):
        pytest.skip("may not shorten the kernel's event queue")


@pytest.mark.alone
def test_overflow_in_the_middle_of_a_save(tmp_path: Path) -> None:
    """Events lost in the middle of a save are counted, and the numbers of the save stay right."""
    start_with_short_queue(tmp_path)
    (tmp_path / "a").mkdir()
    config = write_config(tmp_path / "c.yml", {"a": tmp_path / "a"}, incomplete_seconds=60)
    before = QUEUE.read_text()
    QUEUE.write_text("256")
    try:
        with launch(tmp_path / "log", "run", f"--config.file={config}") as daemon:
            QUEUE.write_text(before)  # an instance keeps the length it began with
            daemon.wait_watching("a")
            overflow(daemon, tmp_path / "a")
    finally:
        QUEUE.write_text(before)


def overflow(daemon: Daemon, root: Path) -> None:
    directory = root / "step-100"
    directory.mkdir()
    with open(directory / "__0_0.distcp", "wb", buffering=0) as big:
        big.write(b"1" * 3_000_000)
        wait_until(lambda: daemon.tally("a")["open"] == 1)
        daemon.signal(signal.SIGSTOP)
        for number in range(2_000):
            (directory / f"__1_{number}.distcp").write_bytes(b"x" * 7)
        big.write(b"2" * 2_000_000)
    checkpoints.put(directory / ".metadata", 20)
    daemon.signal(signal.SIGCONT)
    daemon.expect("a", 1, size_bytes=5_000_000 + 14_000 + 20, files=2_002, seconds=40)
    scrape = daemon.scrape()
    assert scrape.value("ckpt_watch_overflows_total") >= 1
    assert scrape.value("ckpt_watch_rescans_total", reason="overflow") >= 1
    assert scrape.value("ckpt_last_save_step", dir="a") == 100
    daemon.recheck()


@pytest.mark.alone
def test_start_in_the_middle_of_a_save(tmp_path: Path) -> None:
    """A daemon that starts while a checkpoint is being written counts it whole, from its file's birth."""
    root = tmp_path / "a"
    (root / "checkpoint-7").mkdir(parents=True)
    began = time.time()
    with open(root / "checkpoint-7" / "model.safetensors", "wb", buffering=0) as stream:
        stream.write(b"1" * 700_000)
        with watching(tmp_path, "a", incomplete_seconds=60) as daemon:
            wait_until(lambda: daemon.tally("a")["open"] == 1)
            stream.write(b"2" * 300_000)
            stream.close()
            checkpoints.put(root / "checkpoint-7" / "trainer_state.json", 10)
            daemon.expect("a", 1, size_bytes=1_000_010, files=2)
            start = daemon.scrape().value("ckpt_last_save_start_timestamp_seconds", dir="a")
            assert start == pytest.approx(began, abs=0.05)
            daemon.recheck()


def test_checkpoints_there_before_the_start(tmp_path: Path) -> None:
    """What was complete before the start is retained, not saved; its removal is counted."""
    (tmp_path / "a").mkdir()
    checkpoints.hugging_face(tmp_path / "a", 100, 30_000)
    checkpoints.hugging_face(tmp_path / "a", 200, 30_000)
    with watching(tmp_path, "a") as daemon:
        wait_until(lambda: daemon.scrape().get("ckpt_retained_checkpoints", dir="a") == 2)
        checkpoints.remove(tmp_path / "a" / "checkpoint-100")
        daemon.expect("a", deleted=1)
        assert daemon.scrape().value("ckpt_retained_bytes", dir="a") == 90_150
        daemon.recheck()


def test_wide_tree(tmp_path: Path) -> None:
    """A tree of 2,000 directories is watched whole, and a save deep in it is counted."""
    for number in range(2_000 - 21):
        (tmp_path / "a" / str(number % 20) / f"run{number}").mkdir(parents=True)
    with watching(tmp_path, "a") as daemon:
        wait_until(lambda: daemon.scrape().value("ckpt_watched_directories", dir="a") == 2_000)
        truth = checkpoints.hugging_face(tmp_path / "a" / "7" / "run1007", 5, 20_000)
        daemon.expect("a", 1, size_bytes=truth.size_bytes, files=truth.files)


def test_nothing_grows(tmp_path: Path) -> None:
    """Descriptors and threads do not grow over 50 saves, nor memory over 10,000 files."""
    with watching(tmp_path, "a", "b") as daemon:
        root, process = tmp_path / "a", psutil.Process(daemon.process.pid)
        for step in range(1, 6):
            checkpoints.distributed(root, step, 1_000)
        daemon.expect("a", 5, size_bytes=5 * 2_070, files=15)
        files, threads = process.num_fds(), process.num_threads()
        for step in range(6, 51):
            checkpoints.distributed(root, step, 1_000)
        daemon.expect("a", 50, size_bytes=50 * 2_070, files=150)
        assert process.num_fds() <= files + 2
        assert process.num_threads() <= threads + 1
        churn(daemon, tmp_path / "b", process)


def churn(daemon: Daemon, root: Path, process: psutil.Process) -> None:
    """Make and remove files, 2,000 at a time."""
    events = {"event": "deleted"}
    before = process.memory_info().rss
    deleted = daemon.scrape().value("ckpt_events_total", **events)
    for number in range(5):
        directory = root / f"cache-{number}"
        directory.mkdir()
        for part in range(2_000):
            (directory / f"{part}.bin").touch()
        checkpoints.remove(directory)
    wait_until(lambda: daemon.scrape().value("ckpt_events_total", **events) > deleted)
    wait_until(lambda: daemon.tally("b")["open"] == 0, 40.0)
    assert process.memory_info().rss - before < 10 << 20
