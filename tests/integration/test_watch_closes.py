"""The end of a close: a file that was truncated and written anew is flushed before its writer goes on."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from ckpt_exporter.sources.filestat import FileSystems
from tests.integration.watching import fast, watching

MIB = 1024 * 1024
# Overwrites a file as torch.save does, with pauses for a watcher's looks, and tells its own times.
WRITER = """
import json, os, sys, time
path, mebibytes = sys.argv[1], int(sys.argv[2])
block, opened = b"c" * 2**20, time.monotonic()
fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
for number in range(mebibytes):
    os.write(fd, block)
    if number % (mebibytes // 8) == 0:
        time.sleep(0.1)
written = time.monotonic()
os.close(fd)
print(json.dumps([opened, written, time.monotonic()]))
"""
FS_IOC_FIEMAP = 0xC020660B
FIEMAP_EXTENT_DELALLOC = 0x4
MAX_EXTENTS = 512
FLUSHED_WITHIN_SECONDS = 3.0
DISK_KINDS = ["ext4", "xfs", "btrfs"]


@dataclass(frozen=True)
class Overwrite:
    """When one overwrite began, had written everything, and went on (monotonic seconds)."""

    opened: float
    written: float
    returned: float


def overwrite(path: str, mebibytes: int) -> Overwrite:
    command = [sys.executable, "-c", WRITER, path, str(mebibytes)]
    return Overwrite(*json.loads(subprocess.check_output(command)))


def unallocated_extents(path: str) -> int:
    """Count the extents for which the file system has no place on the disk yet."""
    fd = os.open(path, os.O_RDONLY)
    try:
        answer = bytearray(32 + 56 * MAX_EXTENTS)
        struct.pack_into("=QQIIII", answer, 0, 0, 2**64 - 1, 0, 0, MAX_EXTENTS, 0)
        fcntl.ioctl(fd, FS_IOC_FIEMAP, answer)
    finally:
        os.close(fd)
    (count,) = struct.unpack_from("=I", answer, 20)
    flags = [struct.unpack_from("=I", answer, 32 + 56 * number + 40)[0] for number in range(count)]
    return sum(bool(flag & FIEMAP_EXTENT_DELALLOC) for flag in flags)


@pytest.mark.alone
@pytest.mark.parametrize("filesystem", ["disk", "tmpfs", *DISK_KINDS], indirect=True)
def test_a_close_ends_when_its_writer_goes_on(filesystem: Path) -> None:
    """However long the kernel flushes in ``close``, the file ends when the call returns."""
    if FileSystems().type_of(str(filesystem), os.stat(filesystem).st_dev) == "overlay":
        pytest.skip("on overlay the lease does not tell when the file below is let go of")
    path = str(filesystem / "last.ckpt")
    overwrite(path, 192)
    os.sync()
    with watching(str(filesystem)) as watched:
        watched.idle()
        truth = overwrite(path, 192)
        ended = watched.seen.wait_kinds(path, "open", "close_write")[-1].t
    print(f"close took {truth.returned - truth.written:.3f} s, end off by {ended - truth.returned:+.4f} s")
    assert truth.returned - 0.005 <= ended <= truth.returned + 0.05


def is_flushed(path: str) -> bool:
    """Tell whether a file is on its way to the disk at once; what nobody flushes stays for half a minute."""
    deadline = time.monotonic() + FLUSHED_WITHIN_SECONDS
    while unallocated_extents(path):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("filesystem", DISK_KINDS, indirect=True)
def test_looks_leave_the_flush_to_the_writer(filesystem: Path) -> None:
    """What a truncating writer's close puts on the disk without a watcher, it does with one, too."""
    path = str(filesystem / "last.ckpt")
    for _ in range(2):
        overwrite(path, 64)
    if not is_flushed(path):
        pytest.skip("this file system does not flush at the close of a file that was truncated")
    with watching(str(filesystem)) as watched:
        watched.idle()
        overwrite(path, 64)
        flushed = is_flushed(path)
        watched.seen.wait_kinds(path, "open", "close_write")
        looks = [fact.position for fact in watched.seen.progress(path)]
    assert flushed
    assert any(looks), "nobody looked while it was written"


def test_preallocation_after_truncation_is_measured_by_its_data(tmp_path: Path) -> None:
    """The size of a truncated file is believed only while it grows: one set ahead of the data is not."""
    path = str(tmp_path / "model.bin")
    overwrite(path, 8)
    with watching(str(tmp_path)) as watched:
        watched.idle()
        fd = os.open(path, os.O_RDWR | os.O_TRUNC)
        os.posix_fallocate(fd, 0, 64 * MIB)
        for number in range(16):
            os.pwrite(fd, b"c" * MIB, number * MIB)
            time.sleep(0.05)
        watched.seen.wait(lambda: any(fact.position == 16 * MIB for fact in watched.seen.progress(path)))
        os.close(fd)
        watched.seen.wait_kinds(path, "open", "close_write")
        positions = [fact.position for fact in watched.seen.progress(path) if fact.writers]
    assert max(position for position in positions if position is not None) == 16 * MIB


def test_a_truncated_file_whose_writer_pauses_is_measured(tmp_path: Path) -> None:
    """One write after the truncation, and then a pause: after a while the file is looked into."""
    path = str(tmp_path / "model.bin")
    overwrite(path, 8)
    with watching(str(tmp_path), settings=fast(walk_check_seconds=0.5)) as watched:
        watched.idle()
        with open(path, "wb", 0) as file:
            file.write(b"c" * MIB)
            watched.seen.wait(lambda: any(fact.position == MIB for fact in watched.seen.progress(path)))
        watched.seen.wait_kinds(path, "open", "close_write")
