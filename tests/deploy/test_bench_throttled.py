"""Two file systems whose bandwidth the kernel holds down: bench, compare and project against what was set.

Both are measured at the same time, so that whatever else the machine does meets them alike, and what a burst
or load really took is told by its own writers' or readers' clocks.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

THROTTLES = {how: Path(f"/sys/fs/cgroup/blkio/blkio.throttle.{how}_bps_device") for how in ("read", "write")}
MIB = 1 << 20
SLOW, FAST = 40 * MIB, 80 * MIB
# The published loads are 6.2 to 9.3 times as fast from the other storage.
SLOW_LOADS, FAST_LOADS = 8 * MIB, 60 * MIB
LOAD_BYTES = 100_000_000


def _why_not() -> str | None:
    if os.geteuid() != 0:
        return "needs root for loop devices"
    if not THROTTLES["read"].exists():
        return "needs the blkio controller of cgroup v1"
    missing = [tool for tool in ("losetup", "mkfs.ext4", "mount") if shutil.which(tool) is None]
    return f"needs {', '.join(missing)}" if missing else None


pytestmark = [
    pytest.mark.skipif(_why_not() is not None, reason=_why_not() or ""),
    pytest.mark.timeout(600),
]


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@contextlib.contextmanager
def throttled(base: Path, name: str, bytes_per_second: int, how: str = "write") -> Iterator[Path]:
    """Mount a file system of its own on a loop device that takes (or gives) so many bytes a second."""
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
        THROTTLES[how].write_text(f"{limit} {bytes_per_second}")
        yield place
    finally:
        with contextlib.suppress(OSError):
            THROTTLES[how].write_text(f"{limit} 0")
        subprocess.run(["umount", str(place)], check=False)
        subprocess.run(["losetup", "-d", device], check=False)


def started(*arguments: str) -> subprocess.Popen[str]:
    """Start the program, to print JSON."""
    command = [sys.executable, "-m", "ckpt_exporter", *arguments, "--format=json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str], status: int = 0) -> Any:
    """Return the JSON of a program that was started."""
    out, err = process.communicate()
    assert process.returncode == status, err
    return json.loads(out)


def program(*arguments: str, status: int = 0) -> Any:
    """Run the program and return its JSON."""
    return ended(started(*arguments), status)


def test_storage_held_down_by_the_kernel(tmp_path: Path) -> None:
    """Bench measures the bandwidths that were set, compare finds their ratio, project the fast save."""
    stored = {name: str(tmp_path / f"{name}.json") for name in ("slow", "fast")}
    with throttled(tmp_path, "slow-fs", SLOW) as slow, throttled(tmp_path, "fast-fs", FAST) as fast:
        benches = [
            started("bench", str(place), "--bytes=240MB", "--files=4", "--direct", "--cache=cold",
                    "--repetitions=5", f"--output={stored[name]}")
            for name, place in (("slow", slow), ("fast", fast))
        ]  # fmt: skip
        for bench in benches:
            ended(bench)
        assert [path.name for place in (slow, fast) for path in place.iterdir()] == ["lost+found"] * 2

    measured = {name: json.loads(Path(path).read_text()) for name, path in stored.items()}

    def seconds(name: str) -> float:
        return median([r["writers"]["seconds"] for r in measured[name]["repetitions"]])

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
    # As the writers timed themselves: the kernel's token buckets keep the limits only as well as asked above.
    ratio = seconds("slow") / seconds("fast")
    gain = found["quantities"]["duration_seconds"]["gain"]
    assert gain["low"] * 0.99 <= ratio <= gain["high"] * 1.01
    assert found["quantities"]["duration_seconds"]["verdict"] == "better"

    today = measured["slow"]["repetitions"]
    sustained = sum(r["save"]["bytes"] for r in today) / sum(r["save"]["active_seconds"] for r in today)
    foretold = program("project", f"--history={stored['slow']}", f"--to-bandwidth={sustained * ratio:.0f}")
    durations = sorted(r["save"]["duration_seconds"] for r in measured["fast"]["repetitions"])
    assert foretold["then"]["save_seconds"] == pytest.approx(durations[2], rel=0.05)


def test_loads_from_two_mounts(tmp_path: Path) -> None:
    """Loads from a storage that gives 7.5 times as much a second are found to be as much faster."""
    stored = {name: str(tmp_path / f"{name}.json") for name in ("slow", "fast")}
    with (
        throttled(tmp_path, "slow-fs", SLOW_LOADS, "read") as slow,
        throttled(tmp_path, "fast-fs", FAST_LOADS, "read") as fast,
    ):
        benches = [
            started("bench", str(place), "--load", f"--bytes={LOAD_BYTES}", "--files=2", f"--cache={caches}",
                    "--repetitions=5", f"--output={stored[name]}")
            for name, place, caches in (("slow", slow, "cold"), ("fast", fast, "cold,warm"))
        ]  # fmt: skip
        for bench in benches:
            ended(bench)

    measured = {name: json.loads(Path(path).read_text()) for name, path in stored.items()}
    cold = {name: [r for r in result["loads"] if r["cache"] == "cold"] for name, result in measured.items()}
    for name, limit in (("slow", SLOW_LOADS), ("fast", FAST_LOADS)):
        took = median([r["readers"]["seconds"] for r in cold[name]])
        assert LOAD_BYTES / took == pytest.approx(limit, rel=0.15)
        for r in cold[name]:
            assert r["readers"]["cached_before"] == 0
            assert r["readers"]["fetched_bytes"] >= LOAD_BYTES
            assert r["load"]["bytes"] == pytest.approx(LOAD_BYTES, rel=0.02)
            assert r["load"]["duration_seconds"] == pytest.approx(r["readers"]["seconds"], rel=0.02, abs=0.05)
            assert r["load"]["cached_ratio"] <= 0.05
    found = program("compare", stored["slow"], stored["fast"], "--no-gates")["loads"]
    gain = found["quantities"]["load_duration_seconds"]["gain"]
    true = median([r["readers"]["seconds"] for r in cold["slow"]]) / median(
        [r["readers"]["seconds"] for r in cold["fast"]]
    )
    assert gain["low"] * 0.99 <= true <= gain["high"] * 1.01
    assert true == pytest.approx(FAST_LOADS / SLOW_LOADS, rel=0.15)
    assert found["quantities"]["load_duration_seconds"]["verdict"] == "better"
    assert [found[arm]["from_storage"] for arm in ("baseline", "candidate")] == [5, 5]
    # From memory a load takes some hundredths of a second: those that were seen are known to be no storage's.
    warm = [r for r in measured["fast"]["loads"] if r["cache"] == "warm" and r["load"] is not None]
    assert [found[arm]["cached"] for arm in ("baseline", "candidate")] == [0, len(warm)]
