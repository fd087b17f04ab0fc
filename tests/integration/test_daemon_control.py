"""Signals, recordings, hostile names and formats of the running daemon."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration import checkpoints
from tests.integration.daemon import (
    launch,
    parse_scrape,
    run_to_end,
    wait_until,
    watching,
    write_config,
)

HOSTILE = (
    b"line\nbreak", b'quote"s', b"back\\slash", b"invalid\xff\xfeutf8", b"n" * 255, b"{}", b"{dir}",
    b"sp ace=x", b"\x1b[31mred", "\u202erevers\u00e9".encode(), b"-rf",
)  # fmt: skip


def test_reload_adds_a_directory(tmp_path: Path) -> None:
    """A reload adds the new directory's series, and the old one's counters go on."""
    with watching(tmp_path, "old") as daemon:
        first = checkpoints.distributed(tmp_path / "old", 1, 10_000)
        wait_until(lambda: daemon.tally("old")["complete"] == 1)
        (tmp_path / "new").mkdir()
        write_config(tmp_path / "config.yml", {"old": tmp_path / "old", "new": tmp_path / "new"})
        daemon.signal(signal.SIGHUP)
        daemon.wait_watching("old", "new")
        daemon.expect("old", 1, size_bytes=first.size_bytes, files=first.files)
        assert daemon.tally("new")["complete"] == 0
        for name in ("old", "new"):
            checkpoints.distributed(tmp_path / name, 2, 20_000)
        daemon.expect("old", 2, size_bytes=20_070 + 40_070, files=6)
        daemon.expect("new", 1, size_bytes=40_070, files=3)


def test_bad_reload(tmp_path: Path) -> None:
    """A bad file leaves the old configuration in force and says so until a good one comes."""

    def successful() -> float:
        return daemon.scrape().value("ckpt_config_last_reload_successful")

    with watching(tmp_path, "a") as daemon:
        good = (tmp_path / "config.yml").read_text()
        at = daemon.scrape().value("ckpt_config_last_reload_success_timestamp_seconds")
        (tmp_path / "config.yml").write_text("directories: [\n")
        daemon.signal(signal.SIGHUP)
        wait_until(lambda: successful() == 0)
        assert daemon.logged("configuration not reloaded")
        assert daemon.scrape().value("ckpt_config_last_reload_success_timestamp_seconds") == at
        truth = checkpoints.plain_file(tmp_path / "a", 1, 10_000)
        daemon.expect("a", 1, size_bytes=truth.size_bytes, files=1)
        (tmp_path / "config.yml").write_text(good)
        daemon.signal(signal.SIGHUP)
        wait_until(lambda: successful() == 1)
        assert daemon.scrape().value("ckpt_config_last_reload_success_timestamp_seconds") > at
        daemon.expect("a", 1, size_bytes=truth.size_bytes, files=1)


def test_stop_during_a_save(tmp_path: Path) -> None:
    """SIGTERM in the middle of a save ends the daemon in less than two seconds, cleanly."""
    with watching(tmp_path, "a") as daemon:
        (tmp_path / "a" / "step-1").mkdir()
        with open(tmp_path / "a" / "step-1" / "__0_0.distcp", "wb", buffering=0) as stream:
            stream.write(b"x" * 500_000)
            wait_until(lambda: daemon.tally("a")["open"] == 1)
            assert daemon.stop() < 2.0
        assert daemon.saves("a") == []


def replayed(recording: Path, config: Path) -> list[dict[str, Any]]:
    ended = run_to_end("replay", recording, f"--config.file={config}", "--format=json")
    assert (ended.returncode, ended.stderr) == (0, "")
    return list(json.loads(ended.stdout)["saves"])


def test_recording_replays_to_the_same_saves(tmp_path: Path) -> None:
    """A recording gives the saves that the live daemon counted, also when its last line is cut in half."""
    recording = tmp_path / "rec.jsonl"
    with watching(tmp_path, "a", arguments=[f"--record.path={recording}"]) as daemon:
        truths = []
        for step, layout in ((10, "distributed"), (20, "staged"), (30, "hugging_face")):
            truths.append(checkpoints.LAYOUTS[layout](tmp_path / "a", step, 30_000))
            time.sleep(0.2)  # so that one is the last
        size_bytes, files = sum(t.size_bytes for t in truths), sum(t.files for t in truths)
        daemon.expect("a", 3, size_bytes=size_bytes, files=files)
        live = {save["step"]: save["bytes"] for save in daemon.saves("a")}
        last = daemon.scrape().value("ckpt_last_save_step", dir="a")
    for _ in range(2):
        saves = replayed(recording, tmp_path / "config.yml")
        assert {save["step"]: save["bytes"] for save in saves} == live
        assert sum(save["files"] for save in saves) == files
        assert [save["result"] for save in saves] == ["complete"] * 3
        assert max(saves, key=lambda save: save["end"])["step"] == last
        text = recording.read_bytes()
        recording.write_bytes(text[: len(text) - 15])


def test_hostile_names(tmp_path: Path) -> None:
    """Files and directories of any name the kernel allows are counted; scrape and log stay whole."""
    recording = tmp_path / "rec.jsonl"
    with watching(tmp_path, "a", arguments=[f"--record.path={recording}"]) as daemon:
        root = os.fsencode(tmp_path / "a")
        checkpoint = os.path.join(root, b"step-9")
        os.mkdir(checkpoint)
        for name in HOSTILE:
            with open(os.path.join(checkpoint, name), "wb", buffering=0) as stream:
                stream.write(b"x" * 100)
            os.mkdir(os.path.join(root, name))
            with open(os.path.join(root, name, b"model-step-3.pt"), "wb", buffering=0) as stream:
                stream.write(b"x" * 1_000)
        count = len(HOSTILE)
        daemon.expect("a", 1 + count, size_bytes=1_100 * count, files=2 * count)
        assert len(daemon.log()) >= count  # every line is one JSON object
        daemon.text("application/openmetrics-text").encode("utf-8")


def test_hostile_configured_directory(tmp_path: Path) -> None:
    """A configured directory with a hostile path and name has its series in a scrape that parses."""
    where = tmp_path / 'we"ird\n{}\\dir'
    where.mkdir()
    config = write_config(tmp_path / "c.yml", {'na"me {}': where})
    with launch(tmp_path / "log", "run", f"--config.file={config}") as daemon:
        daemon.wait_watching('na"me {}')
        truth = checkpoints.plain_file(where, 1, 10_000)
        daemon.expect('na"me {}', 1, size_bytes=truth.size_bytes, files=1)


def test_formats(tmp_path: Path) -> None:
    """OpenMetrics carries the step as exemplar; promtool accepts the text format."""
    with watching(tmp_path, "a") as daemon:
        truth = checkpoints.hugging_face(tmp_path / "a", 4_200, 30_000)
        daemon.expect("a", 1, size_bytes=truth.size_bytes, files=truth.files)
        text = daemon.text("application/openmetrics-text; version=1.0.0")
        buckets = [line for line in text.splitlines() if line.startswith("ckpt_save_duration_seconds_bucket")]
        assert [line for line in buckets if '# {step="4200"} ' in line]
        assert text.endswith("# EOF\n")
        plain = daemon.text()
        assert "_created" not in plain
        assert parse_scrape(plain).value("ckpt_saves_total", dir="a", result="complete") == 1
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    subprocess.run(["promtool", "check", "metrics"], input=plain, text=True, check=True)
