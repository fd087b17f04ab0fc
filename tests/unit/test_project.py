"""Projections: the published case from its inputs alone, the model's formulas, and what cannot be."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ckpt_exporter.analysis.intervals import daly_seconds, optimum_seconds, slowdown, young_seconds
from ckpt_exporter.analysis.project import project
from ckpt_exporter.analysis.project_inputs import ProjectInputs, measured_inputs
from ckpt_exporter.analysis.render import render
from ckpt_exporter.cli import main
from ckpt_exporter.errors import UsageError
from ckpt_exporter.history.records import GpuTimeRecord, Measurements, SaveRecord

# A published case: 8 GPUs, 10,000 steps, a checkpoint of 65.6 GB every 500 steps, ten hours.
PUBLISHED = ("--run-seconds=36000", "--saves=20", "--save-seconds=178", "--to-save-seconds=94")
QUOTED = ("--bytes=65.6GB", "--bandwidth=3.26GB/s", "--to-bandwidth=6.40GB/s")


def answer(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    """Run project and return its JSON."""
    assert main(["project", *flags, "--format=json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def shown(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    """Run project and return its table with every run of spaces as one."""
    assert main(["project", *flags]) == 0
    return " ".join(capsys.readouterr().out.split())


def refused(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    """Run project with impossible flags and return its one line."""
    assert main(["project", *flags]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


class TestPublishedCase:
    def test_sizes_are_read_exactly(self, capsys: pytest.CaptureFixture[str]) -> None:
        """65.6GB are 65,600,000,000 bytes, to the byte."""
        assert answer(capsys, *PUBLISHED, "--bytes=65.6GB")["inputs"]["bytes"] == 65_600_000_000

    def test_today(self, capsys: pytest.CaptureFixture[str]) -> None:
        """20 saves of 178 s are 3,560 s of 36,000 s: 9.89 %, and 3,560 x 8 / 3,600 GPU-hours."""
        today = answer(capsys, *PUBLISHED, "--gpus=8")["today"]

        assert today["saves"] == 20
        assert today["lost_seconds"] == 3560
        assert today["training_seconds"] == 32_440
        assert today["bubble_share"] == pytest.approx(3560 / 36_000)
        assert today["lost_gpu_hours"] == pytest.approx(28_480 / 3600)
        assert today["interval_seconds"] == 1800

    def test_then(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Saves of 94 s: 1,880 s, 5.48 % of 34,320 s, 5.22 % of 36,000 s, 1,680 s or 4.67 % won."""
        then = answer(capsys, *PUBLISHED, "--gpus=8", "--cluster-gpus=1000", "--steps=10000")["then"]

        assert then["lost_seconds"] == 1880
        assert then["run_seconds"] == 34_320
        assert then["bubble_share_of_own_run"] == pytest.approx(1880 / 34_320)
        assert then["bubble_share_of_todays_run"] == pytest.approx(1880 / 36_000)
        assert then["saved_seconds"] == 1680
        assert then["saved_share"] == pytest.approx(1680 / 36_000)
        assert then["more_steps_share"] == pytest.approx(36_000 / 34_320 - 1)
        assert then["more_steps"] == pytest.approx(489.51, abs=0.01)
        assert then["save_seconds_reduction_share"] == pytest.approx(84 / 178)
        assert then["save_speedup"] == pytest.approx(178 / 94)
        assert then["saved_gpu_hours"] == pytest.approx(1680 * 8 / 3600)
        assert 46 < then["cluster_gpus_worth"] < 47

    def test_as_people_read_it(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Every published number stands in the table as it was published."""
        text = shown(capsys, *PUBLISHED, *QUOTED, "--gpus=8", "--cluster-gpus=1000", "--steps=10000")

        for number in (
            "20 saves", "3,560 s", "9.89 %", "1,880 s", "5.48 %", "34,320 s", "5.22 %", "36,000 s", "1,680 s",
            "4.67 %", "4.9 % more steps", "47 % shorter", "x1.89", "x1.96", "46-47 GPUs' worth", "500",
            "0.369 GB/s", "0.698 GB/s", "580 GB", "602 GB",
        ):  # fmt: skip
            assert number in text

    def test_part_that_does_not_scale(self, capsys: pytest.CaptureFixture[str]) -> None:
        """x1.89 in time from x1.96 in bandwidth leaves about 6.5 s that no storage makes shorter."""
        told = answer(capsys, *PUBLISHED, *QUOTED)["bandwidth"]

        # 178 = f + v, 94 = f + v x 3.26 / 6.40
        assert told["ratio"] == pytest.approx(6.40 / 3.26)
        assert told["fixed_seconds"] == pytest.approx(178 - 84 / (1 - 3.26 / 6.40))
        assert told["fixed_seconds_low"] < 6.5 < told["fixed_seconds_high"]
        exact = answer(capsys, *PUBLISHED, "--bandwidth=1", "--to-bandwidth=1.96")["bandwidth"]
        assert exact["fixed_seconds"] == pytest.approx(6.5, abs=1e-9)

    def test_quoted_bandwidth_counts_something_else(self, capsys: pytest.CaptureFixture[str]) -> None:
        """3.26 and 6.40 GB/s are not 65.6 GB over 178 and 94 s, and the answer says so."""
        data = answer(capsys, *PUBLISHED, *QUOTED)

        today, then = data["bandwidth"]["today"], data["bandwidth"]["then"]
        assert today["average_logical"] == pytest.approx(65.6e9 / 178)
        assert then["average_logical"] == pytest.approx(65.6e9 / 94)
        assert (today["implied_bytes"], then["implied_bytes"]) == (
            pytest.approx(580.28e9),
            pytest.approx(601.6e9),
        )
        assert (today["fits"], then["fits"]) == (False, False)
        assert any("other bytes" in warning for warning in data["warnings"])

    def test_bandwidth_that_fits(self, capsys: pytest.CaptureFixture[str]) -> None:
        """A bandwidth that is the written bytes over the duration raises no warning."""
        data = answer(capsys, *PUBLISHED, "--bytes=65.6GB", "--written-bytes=580GB", "--bandwidth=3.26GB/s")

        assert data["bandwidth"]["today"]["fits"] is True
        assert data["bandwidth"]["today"]["average_written"] == pytest.approx(580e9 / 178)
        assert data["warnings"] == []

    def test_larger_checkpoint(self, capsys: pytest.CaptureFixture[str]) -> None:
        """140 GB take 380 and 201 s by size alone; less if the fixed part stays, and then stays as given."""
        data = answer(capsys, *PUBLISHED, *QUOTED, "--to-bytes=140GB")

        assert data["size"]["save_seconds_by_size_alone"] == pytest.approx(379.88, abs=0.01)
        assert data["size"]["to_save_seconds_by_size_alone"] == pytest.approx(200.61, abs=0.01)
        fixed = data["bandwidth"]["fixed_seconds"]
        assert data["size"]["save_seconds"] == pytest.approx(fixed + (178 - fixed) * 140 / 65.6)
        assert data["then"]["save_seconds"] == 94
        assert "380 s 201 s" in shown(capsys, *PUBLISHED, *QUOTED, "--to-bytes=140GB")


class TestWhatIf:
    def test_only_the_write_bound_part_shrinks(self, capsys: pytest.CaptureFixture[str]) -> None:
        """With 40 of 100 s write-bound, twice the bandwidth makes 80 s, eight times 65 s."""
        data = answer(
            capsys, "--run-seconds=10000", "--saves=10", "--save-seconds=100", "--write-seconds=40",
            "--bandwidth=1GB/s", "--to-bandwidth=2GB/s",
        )  # fmt: skip

        assert data["then"]["save_seconds"] == pytest.approx(80)
        rows = {row["factor"]: row for row in data["bandwidths"]}
        assert rows[8]["save_seconds"] == pytest.approx(65)
        assert rows[8]["bandwidth"] == 8e9
        # 9,000 s of training and ten saves of 65 s
        assert rows[8]["bubble_share_of_own_run"] == pytest.approx(650 / 9650)

    def test_unknown_split_is_said(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Without a way to know the write-bound part, the best case is told as that."""
        data = answer(capsys, "--save-seconds=178", "--bandwidth=3.26GB/s", "--to-bandwidth=6.4GB/s")

        assert data["then"]["save_seconds"] == pytest.approx(178 * 3.26 / 6.4)
        assert data["today"]["fixed_seconds"] is None
        assert any("best" in warning for warning in data["warnings"])

    def test_other_interval(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Saving every 1,000 steps instead of 500 halves the saves and their cost."""
        data = answer(capsys, *PUBLISHED[:3], "--interval-steps=500", "--to-interval-steps=1000")

        assert data["then"]["saves"] == 10
        assert data["then"]["run_seconds"] == 32_440 + 1780
        by_time = answer(capsys, *PUBLISHED[:3], "--to-interval-seconds=3600")["then"]
        # n saves of 178 s among 32,440 s of training, one every 3,600 s
        assert by_time["saves"] == pytest.approx(32_440 / (3600 - 178))

    def test_more_gpus(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Twice the GPUs halve the training, not the saves: their share grows."""
        then = answer(capsys, *PUBLISHED[:3], "--gpus=8", "--to-gpus=16")["then"]

        assert then["run_seconds"] == 16_220 + 3560
        assert then["bubble_share_of_own_run"] == pytest.approx(3560 / 19_780)
        assert then["lost_gpu_hours"] == pytest.approx(3560 * 16 / 3600)

    def test_more_nodes(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Twice the writing nodes with storage of their own halve the write-bound part."""
        then = answer(capsys, *PUBLISHED[:3], "--write-seconds=100", "--nodes=2", "--to-nodes=4")["then"]

        assert then["save_seconds"] == pytest.approx(78 + 50)

    def test_asynchronous_saves(self, capsys: pytest.CaptureFixture[str]) -> None:
        """An asynchronous save costs what it blocks and the drag of the rest."""
        then = answer(
            capsys, *PUBLISHED[:3], "--blocking-seconds=2", "--drag-ratio=25%"
        )["then"]  # fmt: skip

        assert then["lost_seconds_per_save"] == pytest.approx(2 + 0.25 * 176)
        assert then["save_seconds"] == 178

    def test_each_change_alone(self, capsys: pytest.CaptureFixture[str]) -> None:
        """With several changes, each is told alone, too."""
        data = answer(capsys, *PUBLISHED, "--interval-steps=500", "--to-interval-steps=1000")

        alone = {row["change"]: row["saved_seconds"] for row in data["changes"]}
        assert alone == {"other storage": 1680, "other interval": 1780}
        assert data["then"]["saved_seconds"] == 3560 - 940

    def test_targets(self, capsys: pytest.CaptureFixture[str]) -> None:
        """What it takes to get down to 5 %: c = 0.05 x 32,440 / (20 x 0.95); or intervals 19 saves long."""
        row = answer(capsys, *PUBLISHED[:3], "--bandwidth=3.26GB/s")["targets"][2]

        assert row["bubble_share"] == 0.05
        assert row["bandwidth_factor"] == pytest.approx(178 / (0.05 * 32_440 / 19))
        assert row["interval_seconds"] == pytest.approx(178 * 20)

    def test_no_bandwidth_is_enough(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Where the fixed part alone costs more than the target, no factor is invented."""
        data = answer(capsys, *PUBLISHED[:3], "--write-seconds=10")

        assert [row["bandwidth_factor"] for row in data["targets"]] == [None, None, None]
        assert "no bandwidth does" in shown(capsys, *PUBLISHED[:3], "--write-seconds=10")

    def test_what_is_missing_is_asked_for(self, capsys: pytest.CaptureFixture[str]) -> None:
        """What was not given is named with what it would answer, and nothing that needs it is shown."""
        data = answer(capsys, "--save-seconds=178")

        assert "saves" not in data["today"]
        assert data["then"] is None
        assert {"--mtbf", "--gpus", "--cluster-gpus", "--bytes"} <= set(data["further_flags"])
        assert data["best_interval"] is None


class TestIntervals:
    @pytest.mark.parametrize(("cost", "hours"), [(178.0, 1.54), (94.0, 1.12)])
    def test_young(self, cost: float, hours: float) -> None:
        """One failure a day: 1.54 h for saves of 178 s, 1.12 h for 94 s."""
        assert young_seconds(cost, 86_400) / 3600 == pytest.approx(hours, abs=0.005)

    def test_daly_is_nearer(self) -> None:
        """The exact optimum is the least of the model, and Daly's estimate is nearer to it than Young's."""
        best = optimum_seconds(178, 3600)
        least = slowdown(best, 178, 3600, 300)

        for other in (0.5, 0.9, 0.99, 1.01, 1.1, 2):
            assert slowdown(best * other, 178, 3600, 300) > least
        assert abs(daly_seconds(178, 3600) - best) < abs(young_seconds(178, 3600) - best) / 10

    def test_optimum_solves_its_equation(self) -> None:
        """(1 - x) exp(x + c/M) = 1 holds at the optimum, also where failures are more frequent than saves."""
        for cost, mtbf in ((1.0, 1e6), (178.0, 86_400.0), (600.0, 600.0), (3600.0, 600.0)):
            x = optimum_seconds(cost, mtbf) / mtbf
            assert (1 - x) * math.exp(x + cost / mtbf) == pytest.approx(1, rel=1e-6)

    def test_expected_time_is_that_of_runs(self) -> None:
        """A thousand simulated hours with failures take what the formula says."""
        rng = random.Random(5)
        interval, cost, mtbf, restart = 600.0, 120.0, 1800.0, 60.0
        total = 0.0
        for _ in range(6000):
            total += _one_segment(rng, interval + cost, mtbf, restart)

        assert total / 6000 / interval == pytest.approx(slowdown(interval, cost, mtbf, restart), rel=0.03)

    def test_what_todays_interval_loses(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Saving every half hour with one failure a day loses 5 % against every hour and a half."""
        best = answer(capsys, *PUBLISHED, "--mtbf=1d", "--steps=10000")["best_interval"]

        today = best["today"]
        assert today["present_seconds"] == 1622
        expected = slowdown(1622, 178, 86_400) / slowdown(today["optimum_seconds"], 178, 86_400) - 1
        assert today["present_loses_share"] == pytest.approx(expected)
        assert expected == pytest.approx(0.0509, abs=0.0005)
        assert today["optimum_steps"] == pytest.approx(today["optimum_seconds"] / 3.244)
        assert best["then"]["young_seconds"] == pytest.approx(math.sqrt(2 * 94 * 86_400))


def _one_segment(rng: random.Random, seconds: float, mtbf: float, restart: float) -> float:
    """Play one interval and its save until it gets through; restarts may fail, too."""
    spent = 0.0
    while (failure := rng.expovariate(1 / mtbf)) < seconds:
        spent += failure
        while (again := rng.expovariate(1 / mtbf)) < restart:
            spent += again
        spent += restart
    return spent + seconds


class TestImpossible:
    @pytest.mark.parametrize(
        ("flags", "said"),
        [
            ("", "--save-seconds=178"),
            ("--run-seconds=3600 --saves=30 --save-seconds=178", "nothing is left for training"),
            ("--save-seconds=-5", "must be seconds"),
            ("--save-seconds=10 --to-bandwidth=3GB/s", "write both"),
            ("--save-seconds=10 --write-seconds=20", "longer than the save itself"),
            ("--save-seconds=10 --blocking-seconds=20", "longer than the save"),
            ("--save-seconds=10 --drag-ratio=1.5", "a share such as"),
            ("--save-seconds=10 --to-bytes=3GB", "--bytes"),
            ("--save-seconds=10 --interval-seconds=60 --to-interval-seconds=5", "no time to train"),
            ("--save-seconds=10 --since=7d", "--history"),
            ("--run-seconds=9000 --saves=20 --save-seconds=5 --steps=10 --interval-steps=100", "leave one"),
            (
                "--save-seconds=10 --bandwidth=3.26GB/s --to-bandwidth=6GB/s --nodes=1 --to-nodes=2",
                "one of them",
            ),
        ],
    )
    def test_said_in_one_line(self, flags: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
        """What cannot be is a usage error in one line that says what to write."""
        assert said in refused(capsys, *flags.split())


NODE = {"directory": "llama", "layout": "dcp", "result": "complete", "files": 8}


def record(number: int, node: str = "n1", duration: float = 178.0, **changes: Any) -> SaveRecord:
    """Return the save of one step on one node; 150 of 178 s are flow unless said."""
    values: dict[str, Any] = {
        **NODE, "node": node, "path": f"/ckpt/step-{number}", "start_unix": number * 1800.0,
        "end_unix": number * 1800.0 + duration, "duration_seconds": duration, "bytes": 32_800_000_000,
        "step": number * 500, "active_seconds": duration * 150 / 178,
        "bubble_seconds": duration, "bubble_phases": {"writing": duration * 150 / 178},
        "bubble_gpu_seconds": dict.fromkeys(range(4), duration),
    } | changes  # fmt: skip
    return SaveRecord(**values)


def measured(saves: list[SaveRecord], gpus: int = 4) -> Measurements:
    """Return measurements with as many GPUs observed for ten hours on each node."""
    time = [
        GpuTimeRecord(node, gpu, f"GPU-{node}-{gpu}", 3600 * hour, 3600.0)
        for node in {save.node for save in saves}
        for gpu in range(gpus)
        for hour in range(10)
    ]
    return Measurements("test", 0.0, 36_000.0, tuple(saves), tuple(time))


class TestMeasured:
    def test_two_nodes_are_one_job(self) -> None:
        """Saves of one step on two nodes are one save: its duration the longest, its bytes the sum."""
        saves = [
            record(n, node, 178.0 if node == "n1" else 100.0) for n in range(20) for node in ("n1", "n2")
        ]
        inputs = measured_inputs(measured(saves))

        assert (inputs.saves, inputs.save_seconds, inputs.bytes) == (20, 178, 65.6e9)
        assert inputs.run_seconds == 36_000
        assert inputs.gpus == 8
        assert inputs.bubble_seconds == (178 + 100) / 2  # the mean over all GPUs
        assert inputs.interval_steps == 500

    def test_write_bound_part_is_measured(self) -> None:
        """Twice the bandwidth halves the flow of 150 s and leaves the other 28 s."""
        inputs = measured_inputs(measured([record(n) for n in range(20)]))
        data = project(ProjectInputs(**{**_fields(inputs), "to_bandwidth": (inputs.bandwidth or 0) * 2})).data

        then = data["then"]
        assert isinstance(then, dict)
        assert then["save_seconds"] == pytest.approx(28 + 75)
        assert then["saved_seconds"] == pytest.approx(20 * 75)
        assert data["warnings"] == []

    def test_drag_is_lost_too(self) -> None:
        """What an asynchronous save slows counts as lost beside its bubble, and shrinks with the writing."""
        saves = [record(n, bubble_gpu_seconds=dict.fromkeys(range(4), 2.0), bubble_phases={"writing": 0.5},
                        drag_gpu_seconds=dict.fromkeys(range(4), 12.0)) for n in range(20)]  # fmt: skip
        inputs = measured_inputs(measured(saves))

        assert (inputs.bubble_seconds, inputs.writing_bubble_seconds) == (14, 12.5)
        assert any("12.0 s" in note and "drag" in note for note in inputs.notes)

    def test_several_directories_are_said(self) -> None:
        """Saves of two jobs are no one's saves: the user is told to choose."""
        inputs = measured_inputs(measured([record(1), record(2, directory="vit")]))

        assert any("llama, vit" in note for note in inputs.notes)

    def test_no_gpus_no_bubble(self) -> None:
        """Without bubble figures a save is taken to cost all its time, and that is said."""
        saves = [record(n, bubble_seconds=None, bubble_gpu_seconds={}, bubble_phases={}) for n in range(5)]
        inputs = measured_inputs(Measurements("test", 0, 1, tuple(saves)))

        assert inputs.bubble_seconds is None
        assert inputs.run_seconds == 5 * 1800
        assert any("counted as lost" in note for note in inputs.notes)

    def test_incomplete_saves_do_not_count(self) -> None:
        """Only complete saves with a duration enter; where there are none the user is told."""
        with pytest.raises(UsageError, match="no complete save"):
            measured_inputs(measured([record(1, result="incomplete"), record(2, duration_seconds=None)]))


def _fields(inputs: ProjectInputs) -> dict[str, Any]:
    return {name: getattr(inputs, name) for name in ProjectInputs.__dataclass_fields__}


@pytest.mark.parametrize("format_", ["table", "markdown", "html"])
def test_every_format(format_: Any) -> None:
    """A projection with everything in it shows in every format."""
    inputs = ProjectInputs(
        run_seconds=36_000, saves=20, save_seconds=178, to_save_seconds=94, bytes=65.6e9, bandwidth=3.26e9,
        to_bandwidth=6.4e9, gpus=8, cluster_gpus=1000, steps=10_000, mtbf_seconds=86_400, to_bytes=140e9,
    )  # fmt: skip

    assert "9.89 %" in render(project(inputs), format_)


@pytest.mark.parametrize("locale", ["C", "zh_CN.UTF-8", "de_DE.UTF-8"])
def test_locales_change_nothing(locale: str) -> None:
    """Numbers are written alike whatever the locale, and whatever the terminal's encoding can say."""
    command = [sys.executable, "-m", "ckpt_exporter", "project", *PUBLISHED]
    environment = {**os.environ, "LC_ALL": locale, "COLUMNS": "80", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert "3,560 s of a run of 36,000 s: a bubble share" in " ".join(done.stdout.split())
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_flow_into_the_page_cache() -> None:
    """Where bytes flowed for a tenth of a save only, there is a range and no number."""
    saves = [record(n, duration=100.0, active_seconds=10.0, bubble_seconds=None, bubble_gpu_seconds={},
                    bubble_phases={}) for n in range(5)]  # fmt: skip
    inputs = measured_inputs(Measurements("test", 0, 1, tuple(saves)))
    data = project(ProjectInputs(**{**_fields(inputs), "to_bandwidth": 2 * 32.8e9 / 100})).data

    assert inputs.bandwidth == pytest.approx(32.8e9 / 100)
    assert (inputs.write_seconds, inputs.flow_seconds) == (None, 10)
    assert data["today"]["fixed_seconds"] is None  # type: ignore[index,call-overload]
    assert "50.0 s (if all of it is) to 95.0 s" in " ".join(data["warnings"])  # type: ignore[arg-type]


def test_documented_keys(capsys: pytest.CaptureFixture[str]) -> None:
    """Every key of the JSON answer is in the documentation of the model."""
    text = (Path(__file__).parents[2] / "docs/model.md").read_text()
    data = answer(capsys, *PUBLISHED, *QUOTED, "--gpus=8", "--cluster-gpus=9", "--steps=100", "--mtbf=1d")

    keys = {*data, *data["today"], *data["then"], *data["bandwidth"], *data["bandwidth"]["today"]} - {
        "write_share_basis", "fixed_seconds_low", "fixed_seconds_high",
    }  # fmt: skip
    assert {key for key in keys if f"`{key}`" not in text} == set()
