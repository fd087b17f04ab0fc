"""Saves that go wrong: killed writers, full disks, left-over files; none of them is counted as complete."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration import checkpoints
from tests.integration.daemon import launch, wait_until, watching, write_config

if TYPE_CHECKING:
    from collections.abc import Iterator

# Writes until it is killed, and says when the first bytes are there.
WRITER = """
import os, sys
stream = open(sys.argv[1], "wb", buffering=0)
stream.write(b"x" * 300_000)
print("writing", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def writer(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process and leave it in the middle of writing a file."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


def test_killed_writer(tmp_path: Path) -> None:
    """A save whose writer is killed before the commit is incomplete, and the last complete one stays last.

    In a run's first save, too: weights alone lack the Trainer's last file if their writer died with them.
    """
    with watching(tmp_path, "a", "first", incomplete_seconds=2) as daemon:
        (tmp_path / "first" / "checkpoint-5").mkdir()
        with writer(tmp_path / "first" / "checkpoint-5" / "model.safetensors") as process:
            wait_until(lambda: 'ckpt_run_info{dir="first"' in daemon.text())
            process.send_signal(signal.SIGKILL)
        daemon.expect("first", incomplete=1)
        truth = checkpoints.distributed(tmp_path / "a", 10, 400_000)
        wait_until(lambda: daemon.tally("a")["complete"] == 1)
        (tmp_path / "a" / "step-20").mkdir()
        with writer(tmp_path / "a" / "step-20" / "__0_0.distcp") as process:
            wait_until(lambda: daemon.tally("a")["open"] == 1)
            process.send_signal(signal.SIGKILL)
        daemon.expect("a", 1, size_bytes=truth.size_bytes, files=truth.files, incomplete=1)
        scrape = daemon.scrape()
        assert scrape.value("ckpt_last_save_step", dir="a") == 10
        assert scrape.value("ckpt_save_duration_seconds_count", dir="a") == 1
        assert scrape.value("ckpt_written_bytes_total", dir="a") == truth.size_bytes + 300_000
        daemon.recheck(2.5)


def test_staged_directory_that_is_never_renamed(tmp_path: Path) -> None:
    """A staged directory left behind is incomplete, never a complete step."""
    with watching(tmp_path, "a", incomplete_seconds=2) as daemon:
        (tmp_path / "a" / "tmp-checkpoint-500").mkdir()
        for part in range(3):
            checkpoints.put(tmp_path / "a" / "tmp-checkpoint-500" / f"model-{part}.bin", 100_000)
        daemon.expect("a", incomplete=1)
        assert daemon.scrape().get("ckpt_last_save_step", dir="a") is None
        daemon.recheck(2.5)


def test_temporary_file_that_is_removed(tmp_path: Path) -> None:
    """A temporary file that its writer removes instead of publishing is an aborted save."""
    with watching(tmp_path, "a") as daemon:
        checkpoints.put(tmp_path / "a" / "model-step-9.pt.tmp", 200_000)
        wait_until(lambda: daemon.tally("a")["open"] == 1)
        (tmp_path / "a" / "model-step-9.pt.tmp").unlink()
        daemon.expect("a", aborted=1)
        daemon.recheck()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 3 MiB."""
    path = tmp_path / "small"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("may not mount a file system")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def test_full_disk(small_disk: Path, tmp_path: Path) -> None:
    """A save that the disk has no room for is incomplete though its file was closed."""
    # Free space is asked for once a second while a save is open.
    config = write_config(tmp_path / "c.yml", {"a": small_disk}, quiet_seconds=4)
    with launch(tmp_path / "log", "run", f"--config.file={config}") as daemon:
        daemon.wait_watching("a")
        checkpoints.put(small_disk / "model-step-1.pt", 1 << 20)
        wait_until(lambda: daemon.tally("a")["complete"] == 1)
        with pytest.raises(OSError, match="No space left"):
            (small_disk / "model-step-2.pt").write_bytes(b"x" * (5 << 20))
        daemon.expect("a", 1, size_bytes=1 << 20, files=1, incomplete=1)
        assert daemon.scrape().value("ckpt_last_save_step", dir="a") == 1
        assert daemon.scrape().value("ckpt_filesystem_avail_bytes", dir="a") == 0
