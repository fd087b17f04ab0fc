"""The daemon keeps its history: over restarts, in trouble, and read while it runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ckpt_exporter.sources.readers import readers_visible
from ckpt_exporter.sources.transport import identify
from tests.integration import checkpoints
from tests.integration.daemon import launch, run_to_end, wait_until, watching

LAST = "ckpt_last_save_"


def last_gauges(scrape: object) -> dict[str, float]:
    """Return the gauges of the last save of a scrape."""
    series = scrape.series(dir="a")  # type: ignore[attr-defined]
    return {name: value for name, value in series.items() if name.startswith(LAST)}


def test_a_restart(tmp_path: Path) -> None:
    """After a kill the gauges of the last save are back, counters are 0, and the report has every save."""
    history = f"--history.path={tmp_path / 'history.db'}"
    with watching(tmp_path, "a", arguments=[history]) as daemon:
        first = checkpoints.distributed(tmp_path / "a", 10, 100_000)
        daemon.expect("a", 1, size_bytes=first.size_bytes, files=first.files)
        second = checkpoints.distributed(tmp_path / "a", 20, 300_000)
        daemon.expect(
            "a", 2, size_bytes=first.size_bytes + second.size_bytes, files=first.files + second.files
        )
        before = last_gauges(daemon.scrape())
        assert before[f"{LAST}step[]"] == 20
        wait_until(lambda: daemon.scrape().get("ckpt_history_up") == 1)
        live = run_to_end("report", f"--history={tmp_path / 'history.db'}", "--format=json")
        assert [live.returncode, live.stderr] == [0, ""]
        assert json.loads(live.stdout)["saves"]["count"] == 2
        daemon.process.send_signal(signal.SIGKILL)
        daemon.process.wait()
    with launch(tmp_path / "again.log", "run", f"--config.file={tmp_path / 'config.yml'}", history) as daemon:
        wait_until(lambda: bool(last_gauges(daemon.scrape())))
        after = last_gauges(daemon.scrape())
        assert after.keys() == before.keys()
        for name, value in before.items():
            assert abs(after[name] - value) < 1e-3, name
        daemon.wait_watching("a")
        daemon.expect("a")
        third = checkpoints.distributed(tmp_path / "a", 30, 100_000)
        daemon.expect("a", 1, size_bytes=third.size_bytes, files=third.files)
        assert daemon.scrape().value(f"{LAST}step", dir="a") == 30
    told = json.loads(
        run_to_end("report", f"--history={tmp_path / 'history.db'}", "--records=jsonl").stdout.splitlines()[1]
    )

    assert (told["directory"], told["step"], told["bytes"], told["files"]) == (
        "a",
        20,
        second.size_bytes,
        second.files,
    )
    assert told["layout"] == "dcp"
    assert {shard["name"] for shard in told["shards"]} >= {"__0_0.distcp"}


def test_bubbles_are_kept(tmp_path: Path) -> None:
    """The bubble of a save and the observed time of its GPUs are in the history when the daemon ends."""
    arguments = [f"--history.path={tmp_path / 'history.db'}", "--gpu.backend=simulated"]
    with watching(tmp_path, "a", arguments=arguments) as daemon:
        time.sleep(0.2)
        checkpoints.distributed(tmp_path / "a", 10, 100_000)
        wait_until(lambda: bool(daemon.saves("a")))
        path = daemon.saves("a")[0]["path"]
        wait_until(
            lambda: bool(
                daemon.logged("no bubble figure", path=path) + daemon.logged("bubble of a save", path=path)
            ),
            60,
        )
        bubble = (daemon.logged("no bubble figure") + daemon.logged("bubble of a save"))[0]
    lines = run_to_end(
        "report", f"--history={tmp_path / 'history.db'}", "--records=jsonl"
    ).stdout.splitlines()
    records = [json.loads(line) for line in lines]
    (save,) = [record for record in records if record["kind"] == "save"]

    assert save["bubble_skipped"] == bubble.get("reason")
    assert (save["bubble_seconds"] is None) == ("bubble_seconds" not in bubble)


def test_a_history_that_cannot_be_kept(tmp_path: Path) -> None:
    """A history in a place that does not exist is said, and costs nothing but itself."""
    path = tmp_path / "no" / "history.db"
    with watching(tmp_path, "a", arguments=[f"--history.path={path}"]) as daemon:
        wait_until(lambda: bool(daemon.logged("history is not kept for now, saves wait in memory")))
        truth = checkpoints.distributed(tmp_path / "a", 10, 100_000)
        daemon.expect("a", 1, size_bytes=truth.size_bytes, files=truth.files)
        scrape = daemon.scrape()
        assert scrape.value("ckpt_history_up") == 0
        assert scrape.value("ckpt_history_errors_total", reason="unavailable") >= 1
        assert scrape.value("ckpt_history_records_dropped_total") == 0
        assert daemon.stop() < 2.0


def test_damage(tmp_path: Path) -> None:
    """A damaged file never stops a start or the measuring: it is moved aside, counted and said."""
    path = tmp_path / "history.db"
    path.write_bytes(b"SQLite format 3\0" + b"\xa5" * 20_000)
    with watching(tmp_path, "a", arguments=[f"--history.path={path}"]) as daemon:
        truth = checkpoints.distributed(tmp_path / "a", 20, 100_000)
        daemon.expect("a", 1, size_bytes=truth.size_bytes, files=truth.files)
        wait_until(lambda: daemon.scrape().value("ckpt_history_up") == 1)
        assert daemon.scrape().value("ckpt_history_errors_total", reason="damaged") == 1
        assert daemon.logged("history moved aside, beginning anew")

    assert [name.stat().st_size for name in tmp_path.glob("history.db.damaged-*")] == [20_016]
    assert run_to_end("report", f"--history={path}").returncode == 0


def test_the_default_place(tmp_path: Path) -> None:
    """Without a usable default place the daemon goes on without a history, with one line and no metric."""
    (tmp_path / "a").mkdir()
    with launch(tmp_path / "log", "run", f"--watch=a={tmp_path / 'a'}", "--gpu.backend=none") as daemon:
        scrape = daemon.scrape()
        lines = daemon.logged("no history is kept: set history.path to a file that can be written")
        kept = Path("/var/lib/ckpt-exporter").is_dir()
        assert len(lines) == (0 if kept else 1)
        assert (scrape.get("ckpt_history_up") is not None) == kept


def test_a_place_that_is_watched(tmp_path: Path) -> None:
    """A history below a watched directory would be taken for a checkpoint, so the start is refused."""
    ended = run_to_end("run", f"--watch={tmp_path}", f"--history.path={tmp_path}/history.db")

    said = ended.stderr.splitlines()[-1]
    assert ended.returncode == 1
    assert said.startswith(f"ckpt-exporter: cannot keep the history in {tmp_path}/history.db: it lies below")


@pytest.mark.skipif(not readers_visible(), reason="needs to see other users' processes")
def test_a_load_is_kept_and_reported(tmp_path: Path) -> None:
    """A process that reads a checkpoint is a load in the metrics, in the history file and in the report."""
    history = tmp_path / "history.db"
    place = tmp_path / "a" / "step-300"
    place.mkdir(parents=True)
    files = [place / f"__{rank}_0.distcp" for rank in range(2)]
    for file in files:
        file.write_bytes(os.urandom(8_000_000))
    with watching(tmp_path, "a", arguments=[f"--history.path={history}"], quiet_seconds=2) as daemon:
        wait_until(lambda: daemon.scrape().get("ckpt_history_up") == 1)
        before = time.time()
        loading = subprocess.Popen([sys.executable, "-c", _LOADING, *map(str, files)], stdin=subprocess.PIPE)
        try:
            wait_until(lambda: daemon.scrape().value("ckpt_loads_total", dir="a") == 1, 30)
        finally:
            loading.kill()
            loading.communicate()
        scrape = daemon.scrape()
        size = scrape.value("ckpt_last_load_bytes", dir="a")
        assert size == pytest.approx(16_000_000, rel=0.001)
        seconds = scrape.value("ckpt_last_load_duration_seconds", dir="a")
        wait_until(lambda: _report(history)["loads"] is not None)
        kept, report = _loads(history), _report(history)

    (load,) = kept
    assert (load["directory"], load["path"], load["step"]) == ("a", str(place), 300)
    assert (load["bytes"], load["files"], load["readers"]) == (size, 2, 1)
    assert load["duration_seconds"] == pytest.approx(seconds)
    assert before - 0.5 <= load["start_unix"] <= load["end_unix"] <= time.time()
    assert load["mountpoint"] == identify(str(place)).mountpoint
    assert report["loads"]["count"] == 1
    assert report["loads"]["bytes"]["total"] == size
    assert report["loads"]["duration_seconds"]["median"] == pytest.approx(seconds)
    assert report["saves"]["count"] == 0


# Reads 1 MB at a time, for some seconds, and then keeps what it has.
_LOADING = """
import sys, time
kept = []
for path in sys.argv[1:]:
    with open(path, "rb", buffering=0) as file:
        while block := file.read(1_000_000):
            kept.append(block)
            time.sleep(0.2)
sys.stdin.read()
"""


def _report(history: Path) -> dict[str, Any]:
    ended = run_to_end("report", f"--history={history}", "--format=json")
    return json.loads(ended.stdout) if ended.returncode == 0 else {"loads": None}


def _loads(history: Path) -> list[dict[str, Any]]:
    lines = run_to_end("report", f"--history={history}", "--records=jsonl").stdout.splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == "load"]
