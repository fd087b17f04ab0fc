"""Two file systems whose bandwidth the kernel holds down: bench, compare and project against what was set."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

THROTTLE = Path("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device")
MIB = 1 << 20
SLOW, FAST = 40 * MIB, 80 * MIB


def _why_not() -> str | None:
    if os.geteuid() != 0:
        return "needs root for loop devices"
    if not THROTTLE.exists():
        return "needs the blkio controller of cgroup v1"
    missing = [tool for tool in ("losetup", "mkfs.ext4", "mount") if shutil.which(tool) is None]
    return f"needs {', '.join(missing)}" if missing else None


pytestmark = [
    pytest.mark.skipif(_why_not() is not None, reason=_why_not() or ""),
    pytest.mark.timeout(240),
]


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@contextlib.contextmanager
def throttled(base: Path, name: str, bytes_per_second: int) -> Iterator[Path]:
    """Mount a file system of its own on a loop device that takes so many bytes a second."""
    image, place = base / f"{name}.img", base / name
    place.mkdir()
    with image.open("wb") as stream:
        stream.truncate(512 * MIB)
    _run("mkfs.ext4", "-q", "-F", str(image))
    device = _run("losetup", "-f", "--show", "--direct-io=on", str(image))
    number = os.stat(device).st_rdev
    limit = f"{os.major(number)}:{os.minor(number)}"
    try:
        _run("mount", device, str(place))
        THROTTLE.write_text(f"{limit} {bytes_per_second}")
        yield place
    finally:
        with contextlib.suppress(OSError):
            THROTTLE.write_text(f"{limit} 0")
        subprocess.run(["umount", str(place)], check=False)
        subprocess.run(["losetup", "-d", device], check=False)


def program(*arguments: str, status: int = 0) -> Any:
    """Run the program and return its JSON."""
    command = [sys.executable, "-m", "ckpt_exporter", *arguments, "--format=json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout)


@pytest.mark.flaky(reruns=2)  # a busy machine slows the bursts, too
def test_storage_held_down_by_the_kernel(tmp_path: Path) -> None:
    """Bench measures the bandwidths that were set, compare finds their ratio, project the fast save."""
    stored = {name: str(tmp_path / f"{name}.json") for name in ("slow", "fast")}
    with throttled(tmp_path, "slow-fs", SLOW) as slow, throttled(tmp_path, "fast-fs", FAST) as fast:
        for name, place in (("slow", slow), ("fast", fast)):
            program("bench", str(place), "--bytes=240MB", "--files=4", "--direct", "--cache=cold",
                    "--repetitions=5", f"--output={stored[name]}")  # fmt: skip
            assert [path.name for path in place.iterdir()] == ["lost+found"]

    measured = {name: json.loads(Path(path).read_text()) for name, path in stored.items()}
    for name, limit in (("slow", SLOW), ("fast", FAST)):
        assert measured[name]["largest_disagreement"] <= 0.05
        # Metadata and the commit take their part of the device; its token bucket may give some more.
        assert measured[name]["summary"]["cold"]["median_bandwidth"] == pytest.approx(limit, rel=0.15)

    gates = tmp_path / "gates.yml"
    gates.write_text("G2: {sustained_bandwidth: 60MB/s, caches: [cold]}\nG1: {transport: loop}\n")
    asked = ("--gate=G2", f"--gates={gates}")
    found = program("compare", stored["slow"], stored["fast"], *asked, f"--bench={stored['fast']}")
    assert [gate["verdict"] for gate in found["gates"]] == ["pass"]
    program("compare", stored["fast"], stored["slow"], *asked, f"--bench={stored['slow']}", status=1)
    gain = found["quantities"]["sustained_bandwidth"]["gain"]
    assert gain["low"] <= FAST / SLOW <= gain["high"]

    today = measured["slow"]["repetitions"]
    sustained = sum(r["save"]["bytes"] for r in today) / sum(r["save"]["active_seconds"] for r in today)
    foretold = program(
        "project", f"--history={stored['slow']}", f"--to-bandwidth={sustained * FAST / SLOW:.0f}"
    )
    durations = sorted(r["save"]["duration_seconds"] for r in measured["fast"]["repetitions"])
    assert foretold["then"]["save_seconds"] == pytest.approx(durations[2], rel=0.05)
