"""Simulated GPUs show what real ones showed, and follow the state that a training tells."""

from __future__ import annotations

import os
import statistics
from pathlib import Path

import pytest

from ckpt_exporter.model import Fact, GpuSample, GpuSet
from ckpt_exporter.sources.simulated import (
    SimulatedGpus,
    TrainingState,
    read_training_state,
    write_training_state,
)
from tests.integration.watching import Recorder


def readings(state: TrainingState, ticks: int = 400, count: int = 8) -> list[GpuSample]:
    facts: list[Fact] = []
    times = iter(range(10**9))
    gpus = SimulatedGpus(facts.append, clock=lambda: float(next(times)), count=count, state=lambda: state)
    for tick in range(ticks):
        gpus._tick(float(tick))
    return [fact for fact in facts if isinstance(fact, GpuSample)]


def mean(samples: list[GpuSample], name: str) -> float:
    return statistics.fmean(getattr(sample, name) for sample in samples)


def test_training_looks_as_recorded() -> None:
    """92 % and 549 W, power with 2 % of ripple, utilisation with 4 points, below a limit of 700 W."""
    samples = readings("training", count=1, ticks=3000)
    assert mean(samples, "util") == pytest.approx(0.92, abs=0.005)
    assert mean(samples, "power_w") == pytest.approx(549, abs=2)
    watts = [sample.power_w or 0.0 for sample in samples]
    assert statistics.stdev(watts) == pytest.approx(0.02 * 549, rel=0.1)
    # Utilisation is cut off at 100 %, two deviations above its mean, which narrows it a little.
    assert statistics.stdev(sample.util or 0.0 for sample in samples) == pytest.approx(0.04, rel=0.15)
    assert {sample.limit_w for sample in samples} == {700.0}


def test_while_saving_one_writes_and_seven_spin() -> None:
    """Rank 0 at 3 % and 150 W; the others at 100 % and 153 W without tensor or memory work."""
    samples = readings("saving")
    writer = [sample for sample in samples if sample.gpu == 0]
    spinners = [sample for sample in samples if sample.gpu > 0]
    assert mean(writer, "util") == pytest.approx(0.03)
    assert mean(writer, "power_w") == pytest.approx(150, abs=1)
    assert {sample.util for sample in spinners} == {1.0}
    assert mean(spinners, "power_w") == pytest.approx(153, abs=1)
    assert mean(spinners, "tensor") == 0.0
    assert mean(spinners, "dram") < 0.02


@pytest.mark.parametrize(("state", "watts", "processes"), [("loading", 150, 1), ("stopped", 75, 0)])
def test_other_states(state: TrainingState, watts: float, processes: int) -> None:
    """Loading is idle with a process, stopped is idle without one."""
    samples = readings(state)
    assert mean(samples, "power_w") == pytest.approx(watts, rel=0.01)
    assert mean(samples, "util") < 0.05
    assert {sample.processes for sample in samples} == {processes}


def test_the_same_seed_gives_the_same_readings() -> None:
    """A demonstration can be repeated."""
    assert readings("training", ticks=5) == readings("training", ticks=5)


def test_it_says_that_it_is_simulated() -> None:
    """Name and driver of every GPU say so, and no real GPU has such a UUID twice."""
    seen = Recorder()
    gpus = SimulatedGpus(seen.emit, count=4, state=lambda: "training")
    gpus._tick(0.0)
    first = seen.facts[0]
    assert isinstance(first, GpuSet)
    assert all("simulated" in info.name and info.driver == "simulated" for info in first.gpus)
    assert len({info.uuid for info in first.gpus}) == 4


def test_the_state_is_one_word_in_a_file(tmp_path: Path) -> None:
    """Written and read back; a missing, empty, foreign or unreadable file means stopped."""
    path = str(tmp_path / "state")
    assert read_training_state(path) == "stopped"
    for state in ("training", "saving", "loading", "stopped"):
        write_training_state(path, state)
        assert read_training_state(path) == state
    assert os.listdir(tmp_path) == ["state"]
    for content in (b"", b"resting", b"\xff\xfe", b"training" * 50):
        (tmp_path / "state").write_bytes(content)
        assert read_training_state(path) == "stopped"
    assert read_training_state(str(tmp_path)) == "stopped"
