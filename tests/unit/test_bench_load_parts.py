"""What a bench of loads reads, stores and says; the readers themselves on real files."""

from __future__ import annotations

import json
import mmap
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ckpt_exporter.analysis.arms import parse_source, read_source
from ckpt_exporter.analysis.bench_document import bench_data, bench_document
from ckpt_exporter.analysis.bench_load_document import load_bandwidth, loads_agree
from ckpt_exporter.analysis.bench_reader import read_files
from ckpt_exporter.analysis.bench_result import BenchResult, LoadRepetition, ReaderResult, read_bench_result
from ckpt_exporter.analysis.bench_shape import ShapeFile, existing_files
from ckpt_exporter.analysis.compare import compare
from ckpt_exporter.analysis.document import Paragraph
from ckpt_exporter.analysis.render import render
from ckpt_exporter.cli import main
from ckpt_exporter.history.records import LoadRecord
from tests.history_samples import LOAD, MIDNIGHT

GB = 1_000_000_000


def seen(number: int, seconds: float, **changes: Any) -> LoadRecord:
    start = MIDNIGHT + 100.0 * number
    values = {"bytes": GB, "cached_ratio": 0.0, "notes": (), **changes}
    return replace(LOAD, start_unix=start, end_unix=start + seconds, duration_seconds=seconds, **values)


def pair(read: float, told: float, cache: Any = "cold", **readers: Any) -> LoadRepetition:
    """Return a load of 1 GB by the seconds of readers and detector."""
    before = {"cold": 0.0, "warm": 1.0}.get(cache)
    result = ReaderResult(read, GB, 4, GB, GB, before)
    return LoadRepetition(cache, seen(int(read * 10), told), replace(result, **readers))


def result(*loads: LoadRepetition, **options: Any) -> BenchResult:
    chosen = {"readers": 4, "method": "read", "whole": False, **options}
    shape = {"title": "dcp", "files": 5, "bytes": GB}
    mount = {"fstype": "ext4", "transport": "loop"}
    return BenchResult("n1", "/new", float(MIDNIGHT), MIDNIGHT + 999.0, shape, chosen, mount, (), loads)


def warnings(*loads: LoadRepetition, **options: Any) -> str:
    blocks = bench_document(result(*loads, **options)).blocks
    return " ".join(
        block.text for block in blocks if isinstance(block, Paragraph) and block.kind == "warning"
    )


@pytest.mark.parametrize(
    ("repetition", "agree"),
    [
        (pair(10.0, 10.2), True),  # 2 %
        (pair(10.0, 9.79), False),
        (pair(1.0, 1.049), True),  # 50 ms
        (pair(1.0, 0.94), False),
        (replace(pair(1.0, 1.0), load=seen(1, 1.0, bytes=GB * 98 // 100)), True),
        (replace(pair(1.0, 1.0), load=seen(1, 1.0, bytes=GB * 97 // 100)), False),
        (replace(pair(1.0, 1.0), load=None), False),
    ],
)
def test_agreement(repetition: LoadRepetition, agree: bool) -> None:
    """Both agree within 2 % of the bytes and 2 % or 50 ms of the duration, and the page says so."""
    assert loads_agree(repetition) == agree
    text = render(bench_document(result(repetition)), "markdown")
    assert ("agree on every load, within 2 % or 50 ms" in text) == agree
    assert bench_data(result(repetition))["loads_agree"] == agree


def test_numbers() -> None:
    """By state of the cache there are median, slowest and fastest, each by whoever measured it slower."""
    found = result(pair(2.0, 2.0), pair(4.0, 5.0), pair(0.5, 0.5, "warm"), pair(1.0, 1.0))
    summary = bench_data(found)["load_summary"]

    assert load_bandwidth(found.loads[1]) == GB / 5
    cold = summary["cold"]
    assert (cold["loads"], cold["median_seconds"], cold["median_bandwidth"]) == (3, 2.0, GB / 2)
    assert (cold["slowest_bandwidth"], cold["fastest_bandwidth"]) == (GB / 5, GB)
    assert (summary["warm"]["loads"], summary["warm"]["median_bandwidth"]) == (1, 2 * GB)


@pytest.mark.parametrize(
    ("repetition", "options", "said"),
    [
        (
            pair(1.0, 1.0, cached_before=0.35),
            {},
            "Up to 35 % of the checkpoint stayed in the page cache before 1",
        ),
        (pair(1.0, 1.0, "warm", cached_before=0.6), {}, "Only 60 % of the checkpoint was in the page cache"),
        (pair(1.0, 1.0, cached_before=None), {}, "does not tell what is cached"),
        (pair(1.0, 1.0), {"method": "direct"}, "refuses direct reads"),
        (replace(pair(1.0, 1.0), load=None), {}, "1 load not seen by the exporter"),
        (replace(pair(1.0, 1.0), others=True), {}, "Another process read the checkpoint during 1 load."),
        (pair(1.0, 2.0), {}, "The exporter and the readers differ on 1 load"),
    ],
)
def test_what_could_not_be_done_is_said(repetition: LoadRepetition, options: Any, said: str) -> None:
    """Pages that stayed, a kernel that does not tell, refused direct reads and unseen loads are named."""
    assert said in warnings(repetition, **options)
    assert not warnings(pair(1.0, 1.0), pair(1.0, 1.0, "warm"))


def test_stored_read_and_compared(tmp_path: Path) -> None:
    """A stored result is read back as it was, and compare takes its loads."""
    found = result(*(pair(8.0 + n / 100, 8.0 + n / 100) for n in range(6)))
    fast = result(*(pair(1.0 + n / 100, 1.0 + n / 100) for n in range(6)))
    for name, one in (("slow", found), ("fast", fast)):
        (tmp_path / name).write_text(json.dumps(bench_data(one)))

    assert read_bench_result(str(tmp_path / "slow")) == found
    arms = (read_source(parse_source(str(tmp_path / name), MIDNIGHT)) for name in ("slow", "fast"))
    loads = compare(*arms).loads
    assert loads is not None
    assert loads.duration.gain is not None
    assert loads.duration.gain.estimate == pytest.approx(8.025 / 1.025)
    assert loads.duration.verdict == "better"


def test_every_format() -> None:
    """The table keeps to 80 columns, and every load is in it."""
    document = bench_document(result(pair(2.0, 2.01), pair(0.5, 0.5, "warm")))
    text = render(document, "table")

    assert max(map(len, text.splitlines())) <= 80
    assert "4 readers by calls, they share its files out; on /new" in " ".join(text.split())
    assert "10 ms" in text
    assert "<svg" in render(document, "html")


@pytest.mark.parametrize("method", ["read", "mmap", "direct"])
def test_readers_read_every_byte(tmp_path: Path, method: str) -> None:
    """Whatever the way, and of whatever size, all bytes are read; what is mapped is kept."""
    paths = [tmp_path / "a", tmp_path / "b"]
    for path, size in zip(paths, (3 * 4096, 9_000_001), strict=True):
        path.write_bytes(os.urandom(size))
    kept: list[mmap.mmap] = []
    task = {"files": list(map(str, paths)), "method": method, "bytes_per_second": 0.0}
    answer = read_files(task, mmap.mmap(-1, 8 << 20), kept)

    assert answer["bytes"] == 3 * 4096 + 9_000_001
    assert answer["begin"] <= answer["end"]
    assert len(kept) == (2 if method == "mmap" else 0)


def test_direct_reads_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a file system has no direct reads they go through the page cache, and the answer says so."""
    opened = os.open

    def refusing(path: str, flags: int, *more: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument", path)
        return opened(path, flags, *more)

    (tmp_path / "a").write_bytes(b"x" * 5000)
    monkeypatch.setattr(os, "open", refusing)
    task = {"files": [str(tmp_path / "a")], "method": "direct", "bytes_per_second": 0.0}
    answer = read_files(task, mmap.mmap(-1, 8 << 20), [])

    assert (answer["bytes"], answer["direct"]) == (5000, False)


def test_files_of_a_checkpoint_that_exists(tmp_path: Path) -> None:
    """Files with bytes count, named from the checkpoint's parent; links and empty files do not."""
    place = tmp_path / "step-1000"
    (place / "rank").mkdir(parents=True)
    (place / "model.pt").write_bytes(b"x" * 10)
    (place / "rank" / "0.pt").write_bytes(b"x" * 20)
    (place / "empty.pt").touch()
    (place / "link.pt").symlink_to("model.pt")

    assert existing_files(str(place)) == (
        ShapeFile("step-1000/model.pt", 10),
        ShapeFile("step-1000/rank/0.pt", 20),
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "bench needs a directory on the storage to measure"),
        (["/tmp", "--readers=2"], "--readers, --method and --whole say how to read: write --load, too"),
        (["/tmp", "--cache=warm"], "--cache=warm is no state before bursts: choose of cold, full, as-is"),
        (["--load"], "--load needs a checkpoint, or a directory to write one to"),
        (["/tmp", "--load=/x"], "--load=/x reads the checkpoint there: leave /tmp out"),
        (["--load=/x", "--bytes=1GB"], "--load=/x reads what is there: leave --bytes out"),
        (["--load=/nowhere"], "--load=/nowhere is no directory with files: name one checkpoint"),
        (["/tmp", "--load", "--direct"], "--method=direct reads around the page cache"),
        (
            ["/tmp", "--load", "--cache=full"],
            "--cache=full is no state before loads: choose of cold, warm",
        ),
    ],
)
def test_what_is_asked_wrongly(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What makes no sense together is refused in a line that says what to write."""
    assert main(["bench", *arguments]) == 2
    assert said in capsys.readouterr().err
