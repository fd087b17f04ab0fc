"""Network namespaces on one bridge, and views of one file system: all gone again afterwards."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

# A range for benchmarks that is routed nowhere (RFC 2544).
NETWORK = "198.18.47"
BRIDGE = "ckptbr0"
PORT = 10047


def require_tools() -> None:
    """Skip where namespaces or views can't be made."""
    for name, package in (("ip", "iproute2"), ("nsenter", "util-linux"), ("bindfs", "bindfs")):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is missing (Debian package {package})")
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("network namespaces and FUSE mounts need root and /dev/fuse")


def run(*command: str, check: bool = True) -> None:
    """Run a program; what it says is shown if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


def address(node: int) -> str:
    """Return a node's own address; 1 is this machine's on the bridge."""
    return f"{NETWORK}.{node + 10}"


@contextlib.contextmanager
def bridge() -> Iterator[None]:
    """Make the bridge that all nodes hang on."""
    run("ip", "link", "delete", BRIDGE, check=False)
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    try:
        run("ip", "address", "add", f"{NETWORK}.1/24", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
        yield
    finally:
        run("ip", "link", "delete", BRIDGE, check=False)


@contextlib.contextmanager
def namespace(node: int) -> Iterator[str]:
    """Make a network namespace with one address on the bridge; give the file that names it."""
    name, outside = f"ckpt{node:02d}", f"ckptv{node:02d}"
    run("ip", "netns", "delete", name, check=False)
    run("ip", "link", "delete", outside, check=False)
    run("ip", "netns", "add", name)
    try:
        run("ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "link", "set", outside, "master", BRIDGE, "up")
        run("ip", "-n", name, "address", "add", f"{address(node)}/24", "dev", "eth0")
        run("ip", "-n", name, "link", "set", "eth0", "up")
        run("ip", "-n", name, "link", "set", "lo", "up")
        yield f"/run/netns/{name}"
    finally:
        run("ip", "netns", "delete", name, check=False)
        run("ip", "link", "delete", outside, check=False)


@contextlib.contextmanager
def view(backing: Path, mountpoint: Path) -> Iterator[None]:
    """Mount a passthrough of the shared file system: its own inotify, as on another host."""
    mountpoint.mkdir(parents=True)
    run("bindfs", "-o", "fsname=server:/checkpoints", str(backing), str(mountpoint))
    try:
        yield
    finally:
        run("umount", "--lazy", str(mountpoint), check=False)
