"""Real processes that write in different ways, found through the real /proc, also without privileges."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from ckpt_exporter.sources.writers import (
    WriterScan,
    find_writers,
    identify_run,
    io_written,
    write_position,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MIB = 1024**2

# Each kind waits for a line, writes 4 MiB into the file named by its argument, says so and waits again.
PREAMBLE = """
import mmap, os, sys
path, size = sys.argv[1], 4 << 20
def step(word):
    print(word, flush=True)
    sys.stdin.readline()
"""
KINDS = {
    "write": """
fd = os.open(path, os.O_CREAT | os.O_WRONLY)
step("ready")
for _ in range(4): os.write(fd, b"x" * (1 << 20))
step("done")
""",
    "pwrite": """
fd = os.open(path, os.O_CREAT | os.O_RDWR)
step("ready")
for i in range(4): os.pwrite(fd, b"x" * (1 << 20), i << 20)
step("done")
""",
    "mmap": """
fd = os.open(path, os.O_CREAT | os.O_RDWR)
os.ftruncate(fd, size)
import ctypes
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
# Not Python's mmap: it keeps a duplicate of the descriptor.
area = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
os.close(fd)
step("ready")
ctypes.memset(area, 120, size)
step("done")
""",
    "direct": """
fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT)
area = mmap.mmap(-1, 1 << 20)
step("ready")
for _ in range(4): os.write(fd, area)
step("done")
""",
}


class Writer:
    """A child process that writes one file on command."""

    def __init__(self, kind: str, path: Path) -> None:
        self.path = path
        self.process = subprocess.Popen(
            [sys.executable, "-c", PREAMBLE + KINDS[kind], str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if not self.says("ready"):
            reason = self.process.communicate()[1].strip().rpartition("\n")[2]
            pytest.skip(f"{kind} is not possible in {path.parent}: {reason}")

    @property
    def pid(self) -> int:
        """Return the child's pid."""
        return self.process.pid

    def says(self, word: str) -> bool:
        """Read a line of the child and compare it."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip() == word

    def write(self) -> None:
        """Let the child write its 4 MiB and wait until it did."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.says("done")

    def close(self) -> None:
        """Kill and reap the child."""
        self.process.kill()
        self.process.communicate()


@contextmanager
def writing(kind: str, path: Path) -> Iterator[Writer]:
    """Run a writer for the length of a block."""
    writer = Writer(kind, path)
    try:
        yield writer
    finally:
        writer.close()


def file_id(path: Path) -> tuple[int, int]:
    """Return st_dev and st_ino."""
    status = path.stat()
    return status.st_dev, status.st_ino


@pytest.mark.parametrize("kind", ["write", "pwrite", "mmap", "direct"])
def test_writer_is_found_by_its_growth(tmp_path: Path, kind: str) -> None:
    """Between two scans a child writes 4 MiB: it is found, a child with another such file is not."""
    (tmp_path / "other").mkdir()
    shard = tmp_path / "shard.bin"
    with writing(kind, shard) as writer, writing("write", tmp_path / "other" / "shard.bin") as other:
        baseline = {other.pid: io_written([other.pid])[other.pid], **io_written([writer.pid])}
        writer.write()
        other.write()
        found = find_writers([file_id(shard)], [str(shard)], previous=baseline)
        if kind == "mmap" and not found.pids:
            found = find_writers([file_id(shard)], [str(shard)], previous=baseline, everyone=True)
        assert found.pids == (writer.pid,)
        fds = {file.fd for file in found.files}
        assert (fds == {None}) is (kind == "mmap")
        if kind == "write":
            assert [file.position for file in found.files] == [4 * MIB]
            (fd,) = fds
            assert fd is not None
            assert write_position(writer.pid, fd) == 4 * MIB
            assert io_written([writer.pid])[writer.pid][0] - baseline[writer.pid][0] >= 4 * MIB


def test_run_of_a_real_child(tmp_path: Path) -> None:
    """The run of a child exists, its root is the child or one of its ancestors."""
    with writing("write", tmp_path / "shard.bin") as writer:
        run = identify_run([writer.pid])
        assert run.run
        ancestors = {writer.pid}
        pid = writer.pid
        while pid > 1:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                pid = int(file.read().rpartition(")")[2].split()[1])
            ancestors.add(pid)
        assert run.root_pid in ancestors
        assert run.root_pid != 1


def test_scan_follows_a_child_to_its_death(tmp_path: Path) -> None:
    """A killed child that nobody has reaped yet is reported as ended."""
    shard = tmp_path / "shard.bin"
    with writing("write", shard) as writer:
        writer.write()
        device, number = file_id(shard)
        scan = WriterScan("a", clock=time.monotonic)
        inode = f"{os.major(device)}:{os.minor(device)}:{number}"
        first = scan.scan(time.monotonic(), {str(shard): inode})
        assert first is not None
        assert (first.pids, first.alive, first.paths) == ((writer.pid,), True, (str(shard),))
        writer.process.kill()
        os.waitid(os.P_PID, writer.pid, os.WEXITED | os.WNOWAIT)
        ended = scan.scan(time.monotonic(), {str(shard): inode})
        assert ended is not None
        assert not ended.alive


def in_unprivileged_child(check: Callable[[], bool]) -> bool:
    """Run a check in a forked child of user 65534 and return its answer."""
    pid = os.fork()
    if pid == 0:
        status = 2
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            status = 0 if check() else 1
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    _, raw = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(raw)
    assert code in (0, 1), "the unprivileged child failed with an exception, see its traceback"
    return code == 0


def test_unprivileged_scan_knows_less_and_does_not_fail(tmp_path: Path) -> None:
    """User 65534 may not read root's processes: no writer, but the run's name from what all may read."""
    if os.geteuid() != 0:
        pytest.skip("dropping privileges needs root")
    shard = tmp_path / "shard.bin"
    with writing("write", shard) as writer:
        target = file_id(shard)

        def check() -> bool:
            found = find_writers([target], [str(shard)], previous=None, known=[writer.pid], everyone=True)
            run = identify_run([writer.pid])
            position = write_position(writer.pid, 3)
            return found.pids == () and io_written([writer.pid]) == {} and bool(run.run) and position is None

        assert find_writers([target], [str(shard)], previous=None, everyone=True).pids == (writer.pid,)
        assert in_unprivileged_child(check)
