"""Storage identity, space and counters on this machine's own mounts, and on loop devices where allowed."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from ckpt_exporter.model import DirectorySettings, StorageStatus
from ckpt_exporter.sources.mounts import read_mountinfo
from ckpt_exporter.sources.storage import (
    StorageSource,
    find_mount,
    identify,
    read_space,
    read_written_bytes,
)
from ckpt_exporter.sources.transport import trace_backing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MIB = 1024**2


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"the condition did not come true in {seconds} s"
        time.sleep(0.02)


def run(*command: str) -> str:
    """Run a command; skip with its own words if it is not possible here."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"{command[0]} is not possible here: {done.stderr.strip()[:200]}")
    return done.stdout.strip()


def write_synced(path: str, size: int) -> None:
    """Write random bytes and wait until they are on the device."""
    with open(path, "wb") as file:
        file.write(os.urandom(size))
        file.flush()
        os.fsync(file.fileno())


@pytest.fixture
def unmounted(tmp_path: Path) -> Iterator[Path]:
    """Give a mount point that is unmounted afterwards."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    point = tmp_path / "mount point"
    point.mkdir()
    yield point
    # Not os.path.ismount: it does not see a bind mount of the same file system.
    while any(entry.mountpoint == str(point) for entry in read_mountinfo()):
        subprocess.run(["umount", str(point)], check=True)


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[str]:
    """Give a loop device over a sparse image of 400 MiB."""
    if os.geteuid() != 0 or shutil.which("losetup") is None:
        pytest.skip("loop devices need root and losetup")
    image = tmp_path / "image"
    with open(image, "wb") as file:
        file.truncate(400 * MIB)
    device = run("losetup", "-f", "--show", str(image))
    yield device
    subprocess.run(["losetup", "-d", device], check=True)


def test_every_mount_of_this_machine_is_identified() -> None:
    """Each visible mount point leads back to its own entry, and space equals what statvfs says."""
    entries = read_mountinfo()
    assert entries
    root = find_mount("/", entries)
    assert root is not None
    assert root.mountpoint == "/"
    answer = os.statvfs("/")
    space = read_space("/")
    assert space is not None
    assert space[1] == answer.f_blocks * answer.f_frsize
    for entry in entries:
        found = find_mount(entry.mountpoint, entries)
        assert found is not None
        if os.path.isdir(entry.mountpoint):
            device = os.stat(entry.mountpoint).st_dev
            assert found.device == f"{os.major(device)}:{os.minor(device)}" or found.fstype == "btrfs"


def test_root_file_system_on_a_block_device_has_its_counter() -> None:
    """The device of the root file system is one that the kernel counts, unless the root has no device."""
    backing = trace_backing("/", read_mountinfo())
    if not backing.devices:
        pytest.skip(f"the root file system {backing.mount.fstype} has no block device here")
    assert set(backing.devices) <= set(read_written_bytes())
    assert backing.mount.shared is False


def test_tmpfs_is_memory_without_a_device_counter(unmounted: Path) -> None:
    """A tmpfs of 20 MiB: transport memory, its own size, no device, 0 available once full."""
    run("mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(unmounted))
    mount = identify(f"{unmounted}/ckpt")
    assert (mount.mountpoint, mount.fstype, mount.transport) == (str(unmounted), "tmpfs", "memory")
    assert read_space(str(unmounted)) == (20 * MIB, 20 * MIB)
    with open(unmounted / "fill", "wb", buffering=0) as file:
        for _ in range(20):
            file.write(b"x" * MIB)
    assert read_space(str(unmounted)) == (0, 20 * MIB)


def test_bind_mount_and_mount_over_it(unmounted: Path, tmp_path: Path) -> None:
    """A bind mount has the transport of its source, a tmpfs mounted over it its own."""
    source = tmp_path / "source"
    source.mkdir()
    below = identify(str(source))
    run("mount", "--bind", str(source), str(unmounted))
    assert identify(str(unmounted)).transport == below.transport
    assert identify(str(unmounted)).mountpoint == str(unmounted)
    run("mount", "-t", "tmpfs", "tmpfs", str(unmounted))
    assert identify(str(unmounted)).transport == "memory"


@pytest.mark.parametrize("fstype", ["ext4", "xfs", "btrfs"])
def test_source_on_a_loop_device(fstype: str, loop: str, unmounted: Path) -> None:
    """A synced write of 32 MiB grows the device's counter by at least as much; size is statvfs's."""
    if shutil.which(f"mkfs.{fstype}") is None:
        pytest.skip(f"mkfs.{fstype} is not installed")
    run(f"mkfs.{fstype}", "-q", loop)
    run("mount", loop, str(unmounted))
    name = os.path.basename(loop)
    published: list[StorageStatus] = []
    source = StorageSource(
        [DirectorySettings("a", str(unmounted))],
        publish=published.append,
        emit=lambda fact: None,
        clock=time.monotonic,
        saving=lambda directory: True,
    )
    source.start()
    try:
        wait_for(lambda: bool(published))
        first = published[0]
        assert first.mount is not None
        assert (first.mount.device, first.mount.fstype, first.mount.transport) == (name, fstype, "loop")
        answer = os.statvfs(unmounted)
        assert first.size_bytes == answer.f_blocks * answer.f_frsize
        before = first.device_written_bytes
        assert before is not None
        write_synced(f"{unmounted}/shard", 32 * MIB)
        wait_for(lambda: (published[-1].device_written_bytes or 0) >= before + 32 * MIB)
        wait_for(lambda: (published[-1].available_bytes or 0) <= answer.f_bavail * answer.f_frsize - 31 * MIB)
    finally:
        source.stop()


def test_overlay_over_a_loop_device(loop: str, unmounted: Path, tmp_path: Path) -> None:
    """The upper directory's device is where an overlay's bytes go."""
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is not installed")
    run("mkfs.ext4", "-q", loop)
    run("mount", loop, str(unmounted))
    merged = tmp_path / "merged"
    for directory in (merged, unmounted / "up", unmounted / "work", tmp_path / "low"):
        directory.mkdir()
    options = f"lowerdir={tmp_path}/low,upperdir={unmounted}/up,workdir={unmounted}/work"
    run("mount", "-t", "overlay", "overlay", "-o", options, str(merged))
    try:
        mount = identify(str(merged))
    finally:
        subprocess.run(["umount", str(merged)], check=True)
    assert (mount.device, mount.fstype, mount.transport) == (os.path.basename(loop), "overlay", "loop")
