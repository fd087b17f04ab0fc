"""The bench on real files: detector and writers agree, what follows from it holds, and it cleans up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ckpt_exporter.analysis.acceptance import judge
from ckpt_exporter.analysis.bench import run_bench
from ckpt_exporter.analysis.bench_burst import BenchOptions
from ckpt_exporter.analysis.bench_place import PREFIX
from ckpt_exporter.analysis.bench_result import bench_measurements
from ckpt_exporter.analysis.bench_shape import Shape, ShapeFile, layout_shape
from ckpt_exporter.analysis.compare import compare
from ckpt_exporter.analysis.gates import Evidence
from ckpt_exporter.analysis.project import projection
from ckpt_exporter.analysis.project_inputs import measured_inputs
from ckpt_exporter.analysis.statistics import median
from ckpt_exporter.config.gates import Gates, StorageGate
from ckpt_exporter.errors import CkptExporterError
from tests.integration.daemon import wait_until

if TYPE_CHECKING:
    from ckpt_exporter.analysis.bench_result import BenchResult

MB = 1_000_000
ONCE = BenchOptions(4, fsync=True, direct=False, caches=("cold",), repetitions=1)


SLOW, FAST = 12 * MB, 24 * MB


def slow_and_fast(base: Path) -> tuple[BenchResult, BenchResult]:
    """Write bursts of 24 MB on a storage of 12 MB/s and on one of 24 MB/s, side by side."""
    found: dict[str, BenchResult] = {}

    def measure(name: str, rate: float) -> None:
        place = base / name
        place.mkdir(exist_ok=True)
        options = BenchOptions(
            4, fsync=False, direct=False, caches=("cold",), repetitions=5, bytes_per_second=rate
        )
        found[name] = run_bench(str(place), layout_shape("dcp", 24 * MB, 4), options)

    threads = [
        threading.Thread(target=measure, args=arguments) for arguments in (("slow", SLOW), ("fast", FAST))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found["slow"], found["fast"]


def kept_pace(result: BenchResult, rate: float) -> bool:
    """Tell whether nothing but the storage slowed the bursts, by their own writers' clocks."""
    return all(r.writers.seconds <= 1.05 * r.writers.bytes / rate for r in result.repetitions)


@pytest.mark.alone
def test_slow_against_fast(tmp_path: Path) -> None:
    """From real bursts: exporter and writers agree, compare finds the ratio, project the fast save's time."""
    for _ in range(3):
        slow, fast = slow_and_fast(tmp_path)
        for repetition in (*slow.repetitions, *fast.repetitions):
            assert repetition.save is not None
            assert repetition.save.result == "complete"
            assert repetition.save.bytes == repetition.writers.bytes == 24 * MB + 4096
            assert repetition.save.duration_seconds == pytest.approx(repetition.writers.seconds, abs=0.25)
        if kept_pace(slow, SLOW) and kept_pace(fast, FAST):
            break
    else:
        pytest.fail("the machine never let all writers keep their pace")
    both = compare(bench_measurements(slow), bench_measurements(fast))
    gain = both.quantity("duration_seconds").gain
    assert gain is not None
    assert gain.low is not None
    assert gain.high is not None
    # Nearly 2: what does not scale takes some hundredths of a second, which the writers' own clocks show.
    medians = [median([r.writers.seconds for r in result.repetitions]) for result in (slow, fast)]
    assert gain.low * 0.99 <= medians[0] / medians[1] <= gain.high * 1.01
    assert both.quantity("duration_seconds").verdict == "better"
    inputs = measured_inputs(bench_measurements(slow))
    then = projection(replace(inputs, to_bandwidth=(inputs.bandwidth or 0.0) * 2)).then
    assert then is not None
    measured = measured_inputs(bench_measurements(fast)).save_seconds
    assert then.seconds == pytest.approx(measured, rel=0.05)
    gates = replace(Gates(), storage=StorageGate(sustained_bandwidth=17 * MB, caches=("cold",), synced=None))
    for bench, verdict in ((slow, "fail"), (fast, "pass")):
        (gate,) = judge(gates, Evidence(both, (bench,)), ["G2"])
        assert gate.verdict == verdict
    assert [list(path.iterdir()) for path in sorted(tmp_path.iterdir())] == [[], []]


def test_direct_and_odd_sizes(tmp_path: Path) -> None:
    """Direct writes of a size that is no whole number of pages arrive to the last byte."""
    options = replace(ONCE, direct=True, writers=2)
    result = run_bench(str(tmp_path), layout_shape("hf_trainer", 9_000_001, 3), options)

    (repetition,) = result.repetitions
    assert repetition.save is not None
    assert repetition.save.bytes == repetition.writers.bytes == 9_000_001 + 4096
    assert list(tmp_path.iterdir()) == []


def test_full_cache(tmp_path: Path) -> None:
    """The file that fills the page cache is no part of the burst."""
    options = replace(ONCE, caches=("full",), fill_bytes=8 * MB)
    (repetition,) = run_bench(str(tmp_path), layout_shape("plain", 8 * MB, 2), options).repetitions

    assert repetition.cache == "full"
    assert repetition.save is not None
    assert repetition.save.bytes == 8 * MB
    assert list(tmp_path.iterdir()) == []


def test_writing_fails(tmp_path: Path) -> None:
    """A writer that cannot write ends the bench in words, and nothing is left."""
    twice = Shape("twice", (ShapeFile("step-1/a", 10), ShapeFile("step-1/a", 10)))
    with pytest.raises(CkptExporterError, match="writing failed"):
        run_bench(str(tmp_path), twice, replace(ONCE, writers=1))

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 1)])
def test_stopped(number: signal.Signals, status: int, tmp_path: Path) -> None:
    """Ctrl-C and SIGTERM in mid-burst end the writers, remove what was written, and say so."""
    place = tmp_path / "storage"
    place.mkdir()
    (place / "mine").write_text("stays")
    bench = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "ckpt_exporter",
            "bench",
            str(place),
            "--bytes=100MB",
            "--limit=2MB/s",
            "--cache=cold",
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: any(path.stat().st_size for path in place.glob(f"{PREFIX}*/saves/r1/step-1/*")))
        bench.send_signal(number)
        _, told = bench.communicate(timeout=20)
    finally:
        bench.kill()
        bench.wait()

    assert bench.returncode == status
    assert told.count("everything that was written is removed") == 1
    assert os.listdir(place) == ["mine"]
    wait_until(lambda: not _writers_of(str(place)), what="writers gone")


def _writers_of(place: str) -> list[str]:
    """Return processes that hold files below a place."""
    holding = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            names = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            continue
        if any(name.startswith(place) for name in names):
            holding.append(pid)
    return holding


def test_a_load_of_what_is_there(tmp_path: Path) -> None:
    """An existing checkpoint is read by two readers of all of it, and nothing is written beside it."""
    place = tmp_path / "step-7"
    place.mkdir()
    for name in ("__0_0.distcp", "__1_0.distcp"):
        (place / name).write_bytes(os.urandom(12 * MB))
    stored = tmp_path / "b.json"
    done = subprocess.run(
        [sys.executable, "-m", "ckpt_exporter", "bench", f"--load={place}", "--readers=2", "--whole",
         "--cache=warm", "--repetitions=1", "--limit=16MB/s", f"--output={stored}", "--format=json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (0, "")
    (load,) = json.loads(stored.read_text())["loads"]
    # Two readers of 24 MB each, at 16 MB/s together.
    assert load["readers"]["bytes"] == 24 * MB
    assert load["readers"]["read_bytes"] == 48 * MB
    assert load["readers"]["seconds"] == pytest.approx(3.0, abs=0.5)
    assert (load["load"]["bytes"], load["load"]["readers"], load["load"]["step"]) == (24 * MB, 2, 7)
    assert sorted(os.listdir(tmp_path)) == ["b.json", "step-7"]
    assert sorted(os.listdir(place)) == ["__0_0.distcp", "__1_0.distcp"]


def test_a_load_that_is_stopped(tmp_path: Path) -> None:
    """Ctrl-C in mid-load ends the readers, and the burst that was written for them is gone."""
    bench = subprocess.Popen(
        [sys.executable, "-m", "ckpt_exporter", "bench", str(tmp_path), "--load", "--bytes=4MB", "--files=2",
         "--limit=100kB/s", "--cache=cold"],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        # Its readers hold the files; the writers of before have gone by then.
        wait_until(lambda: len(_readers_of(str(tmp_path))) == 2, 20)
        bench.send_signal(signal.SIGINT)
        _, told = bench.communicate(timeout=20)
    finally:
        bench.kill()
        bench.wait()

    assert bench.returncode == 130
    assert told.count("everything that was written is removed") == 1
    assert os.listdir(tmp_path) == []
    wait_until(lambda: not _writers_of(str(tmp_path)), what="readers gone")


def _readers_of(place: str) -> list[str]:
    """Return processes that read the burst below a place."""
    return [
        pid for pid in _writers_of(place)
        if b"bench_reader" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]  # fmt: skip


def test_from_the_command_line(tmp_path: Path) -> None:
    """The command prints its table, stores its result, and the stored result is one that compare takes."""
    place, stored = tmp_path / "storage", tmp_path / "b.json"
    place.mkdir()
    bench = [sys.executable, "-m", "ckpt_exporter", "bench", str(place), "--bytes=3MB", "--files=2",
             "--cache=as-is", "--repetitions=1", f"--output={stored}"]  # fmt: skip
    done = subprocess.run(
        bench, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "Bandwidth of a whole burst" in done.stdout
    assert json.loads(stored.read_text())["summary"]["as-is"]["bursts"] == 1
    compared = [
        sys.executable,
        "-m",
        "ckpt_exporter",
        "compare",
        str(stored),
        str(stored),
        "--gate=G2",
        "--format=json",
    ]
    judged = subprocess.run(compared, capture_output=True, text=True, check=False)
    assert judged.returncode == 0
    assert json.loads(judged.stdout)["gates"][0]["verdict"] == "not enough data"
