"""What a bench writes, stores and says, without writing it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ckpt_exporter.analysis.bench_cache import dirty_limit_bytes
from ckpt_exporter.analysis.bench_document import bench_data, bench_document
from ckpt_exporter.analysis.bench_place import PREFIX
from ckpt_exporter.analysis.bench_result import BenchResult, Repetition, WriterResult, read_bench_result
from ckpt_exporter.analysis.bench_shape import (
    ShapeFile,
    layout_shape,
    like_shape,
    published_shape,
    shares_of,
)
from ckpt_exporter.analysis.document import Paragraph, Table
from ckpt_exporter.analysis.gate_storage import burst_bandwidth, disagreement
from ckpt_exporter.cli import main
from ckpt_exporter.detect.layouts import is_noise, locate
from ckpt_exporter.errors import UsageError
from tests.unit.measured import save_record

if TYPE_CHECKING:
    from pathlib import Path


def test_a_daemon_leaves_bursts_out() -> None:
    """What a bench writes into a watched directory is no save of the training; next to it, everything is."""
    assert is_noise(f"{PREFIX}ab12_x/saves/r1/global_step1/mp_rank_00_model_states.pt")
    assert is_noise(f"runs/{PREFIX}ab12_x/fill")
    assert not is_noise("saves/r1/global_step1/mp_rank_00_model_states.pt")


class TestShapes:
    def test_published(self) -> None:
        """The published case is eight files of 65.6 GB, scaled."""
        shape = published_shape(0.001)

        assert [file.bytes for file in shape.files] == [65_600_000] * 8
        assert published_shape(1).files[0].bytes == 65_600_000_000

    @pytest.mark.parametrize("layout", ["dcp", "hf_trainer", "deepspeed", "plain"])
    def test_layouts(self, layout: str) -> None:
        """Bytes are shared out to the last one, and the detector knows the layout by its names."""
        shape = layout_shape(layout, 1003, 4)

        assert [file.bytes for file in shape.files] == [251, 251, 251, 250]
        assert len({file.name for file in shape.files}) == 4
        unit = locate(f"/saves/r1/{shape.files[0].name}")
        assert (unit.layout if unit is not None else "plain") == layout

    def test_too_small(self) -> None:
        """Fewer bytes than files is a mistake in words."""
        with pytest.raises(UsageError, match="--bytes"):
            layout_shape("dcp", 3, 4)

    def test_like(self, tmp_path: Path) -> None:
        """A copy has the names and sizes of the original; the small file modified last commits it."""
        base = tmp_path / "checkpoint-500"
        (base / "sub").mkdir(parents=True)
        for name, size, age in (
            ("model.bin", 5000, 30),
            ("sub/optim.bin", 7000, 20),
            ("trainer_state.json", 10, 5),
        ):
            (base / name).write_bytes(b"x" * size)
            os.utime(base / name, (1e9 - age, 1e9 - age))
        (base / "link").symlink_to("model.bin")
        shape = like_shape(str(base), 0.5)

        assert sorted((file.name, file.bytes) for file in shape.files) == [
            ("checkpoint-500/model.bin", 2500),
            ("checkpoint-500/sub/optim.bin", 3500),
        ]
        assert shape.marker == ShapeFile("checkpoint-500/trainer_state.json", 10)
        assert (shape.count, shape.bytes) == (3, 6010)

    def test_like_nothing(self, tmp_path: Path) -> None:
        """A directory without files, or without bytes, is no checkpoint."""
        with pytest.raises(UsageError, match="no directory with files"):
            like_shape(str(tmp_path), 1)
        (tmp_path / "empty").touch()
        with pytest.raises(UsageError, match="no bytes"):
            like_shape(str(tmp_path), 1)

    def test_shares(self) -> None:
        """Files are shared out evenly by bytes, and no writer is left without one."""
        shares = shares_of(tuple(ShapeFile(str(size), size) for size in (1, 9, 4, 4)), 2)

        assert [sum(file.bytes for file in share) for share in shares] == [9, 9]
        assert len(shares_of((ShapeFile("a", 1),), 8)) == 1


def result(*pairs: tuple[float, float], **options: Any) -> BenchResult:
    """Return bursts of 1 GB by the seconds of writers and detector."""
    repetitions = tuple(
        Repetition("cold", save_record(n, seen, bytes=10**9), WriterResult(wrote, 10**9))
        for n, (wrote, seen) in enumerate(pairs)
    )
    chosen = {"fsync": True, "direct": False, "writers": 4, **options}
    shape = {"title": "dcp", "files": 5, "bytes": 10**9}
    return BenchResult("n1", "/new", 0.0, 9.0, shape, chosen, None, repetitions)


class TestResult:
    def test_slower_of_two(self) -> None:
        """The bandwidth of a burst is by whoever measured it slower."""
        assert burst_bandwidth(result((2.0, 4.0)).repetitions[0]) == 10**9 / 4

    def test_disagreement(self) -> None:
        """Durations within a quarter of a second are the same; beyond it the share counts, as for bytes."""
        assert disagreement(result((1.0, 1.2)).repetitions[0]) == 0
        assert disagreement(result((10.0, 11.0)).repetitions[0]) == pytest.approx(0.1)
        missing = result((10.0, 10.0)).repetitions[0]
        assert missing.save is not None
        short = replace(missing, save=replace(missing.save, bytes=9 * 10**8))
        assert disagreement(short) == pytest.approx(0.1)
        assert disagreement(replace(missing, save=None)) is None

    @pytest.mark.parametrize(
        ("seen", "more_bytes", "told"),
        [(10.012, 0, "12 ms"), (9.95, 0, "-50 ms"), (11.5, 0, "1.50 s"), (10.0, 4096, "0 ms, 4,096 bytes")],
    )
    def test_what_lies_between(self, seen: float, more_bytes: int, told: str) -> None:
        """People see by how much both differ even where that is within what counts as agreement."""
        (burst,) = result((10.0, seen)).repetitions
        assert burst.save is not None
        found = replace(
            result(),
            repetitions=(replace(burst, save=replace(burst.save, bytes=10**9 + more_bytes)),),
        )
        (table,) = [
            b for b in bench_document(found).blocks if isinstance(b, Table) and b.title.startswith("Each")
        ]

        assert table.rows[0][[column.heading for column in table.columns].index("apart")] == told
        assert bench_data(found)["largest_seconds_apart"] == pytest.approx(abs(seen - 10.0))

    def test_summary(self) -> None:
        """Median, slowest and fastest are told for each state of the cache."""
        data = bench_data(result((1.0, 1.0), (2.0, 2.0), (4.0, 4.0)))

        assert data["summary"]["cold"] == {
            "bursts": 3, "median_bandwidth": 5e8, "slowest_bandwidth": 2.5e8, "fastest_bandwidth": 1e9,
        }  # fmt: skip
        assert data["largest_disagreement"] == 0

    @pytest.mark.parametrize(
        ("found", "said"),
        [
            (result((10.0, 12.0)), "differ by up to 20.0 %"),
            (result((10.0, 10.0), fsync=False), "Nothing was synced"),
            (result((10.0, 10.0), direct=True), "refuses direct writes"),
        ],
    )
    def test_warnings(self, found: BenchResult, said: str) -> None:
        """What makes the numbers doubtful is said."""
        texts = [
            b.text for b in bench_document(found).blocks if isinstance(b, Paragraph) and b.kind == "warning"
        ]

        assert any(said in text for text in texts)

    def test_no_warning(self) -> None:
        """Synced bursts on which both agree need none."""
        assert bench_document(result((10.0, 10.1))).data["warnings"] == []

    def test_stored_and_read(self, tmp_path: Path) -> None:
        """A stored result is read back as it was."""
        file = tmp_path / "b.json"
        found = result((1.0, 1.0))
        file.write_text(json.dumps(bench_data(found)))

        assert read_bench_result(str(file)) == found


class TestCommand:
    @pytest.mark.parametrize(
        ("argv", "said"),
        [
            ("/nowhere --bytes=1GB", "no directory"),
            ("{tmp} --bytes=900TB", "free: write a smaller"),
            ("{tmp} --like=/nowhere", "no directory with files"),
            ("{tmp} --like={tmp} --bytes=3GB", "leave"),
            ("{tmp} --layout=dcp", "need --bytes"),
            ("{tmp} --bytes=3GB --scale=2", "leave --scale out"),
            ("{tmp} --cache=hot", "as-is, cold, full"),
            ("{tmp} --bytes=3GB --writers=1.5", "whole number"),
            ("{tmp} --bytes=1MB --output=/nowhere/x.json", "cannot be written"),
            ("", "DIR"),
        ],
    )
    def test_mistakes(self, argv: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A mistake is one line that says what to write; nothing is written."""
        assert main(["bench", *argv.format(tmp=tmp_path).split()]) == 2
        err = capsys.readouterr().err
        assert said in err
        assert err.count("\n") == 1
        assert list(tmp_path.iterdir()) == []


def test_dirty_limit(tmp_path: Path) -> None:
    """The kernel's limit is its bytes where set, else its ratio of available memory, else unknown."""
    vm = tmp_path / "sys/vm"
    vm.mkdir(parents=True)
    assert dirty_limit_bytes(str(tmp_path)) is None
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    1000 kB\n")
    (vm / "dirty_bytes").write_text("0\n")
    (vm / "dirty_ratio").write_text("10\n")
    assert dirty_limit_bytes(str(tmp_path)) == 102_400
    (vm / "dirty_bytes").write_text("7000\n")
    assert dirty_limit_bytes(str(tmp_path)) == 7000
