"""From a load to the first work of its GPUs, from hand-made readings with a known truth."""

from __future__ import annotations

import pytest

from ckpt_exporter.bubble.cold_start import WAIT_SECONDS, ColdStarts, works
from ckpt_exporter.ledger import Ledger
from ckpt_exporter.model import (
    DetectSettings,
    Fact,
    GpuInfo,
    GpuSample,
    GpuSet,
    Load,
    LoadGpus,
)
from ckpt_exporter.sources.simulated import LOADING, SPINNING, TRAINING, WRITING, Levels
from tests.unit.test_loads import DIRECTORY, MB, closed, opened, read

IDLE = Levels(0.0, 0.0, 75.0, sm=0.0, tensor=0.0, dram=0.0)
INTERVAL_SECONDS = 0.5
LOADED = Load(
    directory="d", path="/d/checkpoint-7", layout="hf_trainer", step=7, start=100.0, end=120.0,
    duration_seconds=20.0, bytes=10**9, files=1, bandwidth=5e7,
)  # fmt: skip


def sample(
    t: float, levels: Levels, gpu: int = 0, *, counters: bool = False, power: bool = True
) -> GpuSample:
    return GpuSample(
        t, gpu, f"GPU-{gpu}", util=levels.util, mem_util=levels.mem_util, limit_w=700.0,
        power_w=levels.power_w if power else None, sm=levels.sm if counters else None,
        tensor=levels.tensor if counters else None, dram=levels.dram if counters else None,
    )  # fmt: skip


def readings(states: list[tuple[float, Levels]], until: float, gpu: int = 0) -> list[GpuSample]:
    """Sample a GPU twice a second through states that begin at given moments."""
    times = [states[0][0] + i * INTERVAL_SECONDS for i in range(int((until - states[0][0]) * 2) + 1)]
    return [sample(t, [levels for start, levels in states if start <= t][-1], gpu) for t in times]


def found_of(
    facts: list[GpuSample], *, gpus: tuple[int, ...] = (0,), load: Load = LOADED, told: float = 130.0
) -> list[Load]:
    """Tell of a load ten seconds after its end, of its GPUs then, and let time pass."""
    starts, found = ColdStarts(), []
    for fact in sorted(facts, key=lambda fact: fact.t):
        if told <= fact.t < told + INTERVAL_SECONDS and not starts.waiting and not found:
            starts.load_ended(load)
            starts.feed(LoadGpus(told, load.directory, load.path, load.end, gpus))
        starts.feed(fact)
        found += starts.tick(fact.t)
    return found


@pytest.mark.parametrize("counters", [True, False], ids=["counters", "utilisation"])
def test_work_is_told_from_waiting_and_copying(counters: bool) -> None:
    """A GPU works in training, not idle, while it is filled, or while it spins in a collective."""
    shown = {
        name: works(sample(0.0, levels, counters=counters), None)
        for name, levels in (
            ("idle", IDLE), ("loading", LOADING), ("writing", WRITING), ("spin", SPINNING),
            ("train", TRAINING),
        )
    }  # fmt: skip
    assert shown == {"idle": False, "loading": False, "writing": False, "spin": False, "train": True}


def test_a_gpu_that_tells_little() -> None:
    """Utilisation alone, or power alone, decides; nothing known is not idle."""
    assert works(GpuSample(0.0, 0, util=0.3), None) is True
    assert works(GpuSample(0.0, 0, power_w=400.0), 700.0) is True
    assert works(GpuSample(0.0, 0, power_w=150.0), 700.0) is False
    assert works(GpuSample(0.0, 0, power_w=400.0), None) is None


@pytest.mark.parametrize("truth", [120.25, 127.0, 133.4, 290.0])
def test_the_first_work_after_a_load_is_found(truth: float) -> None:
    """The GPUs work from a known moment on, before or after the load is told of: right to an interval."""
    facts = readings([(90.0, IDLE), (101.0, LOADING), (truth, TRAINING)], truth + 30.0)
    (found,) = found_of(facts)
    assert found.first_gpu_work is not None
    assert 0.0 <= found.first_gpu_work - truth < INTERVAL_SECONDS
    assert found.cold_start_seconds == found.first_gpu_work - 100.0


def test_the_first_of_several_gpus_counts_and_others_do_not() -> None:
    """Of GPUs 0 and 1 the earlier one tells; GPU 2, which trains all the time, is not the run's."""
    facts = readings([(90.0, IDLE), (140.0, TRAINING)], 150.0, gpu=0)
    facts += readings([(90.0, IDLE), (136.0, TRAINING)], 150.0, gpu=1)
    facts += readings([(90.0, TRAINING)], 150.0, gpu=2)
    (found,) = found_of(facts, gpus=(0, 1))
    assert found.first_gpu_work == 136.0


def test_a_gpu_that_works_all_along_has_no_start_before_the_last_byte() -> None:
    """Weights that arrive while the GPUs work have started as they were there: at the end of the load."""
    (found,) = found_of(readings([(90.0, TRAINING)], 150.0))
    assert found.first_gpu_work == LOADED.end


def test_work_after_a_silence_has_no_known_beginning() -> None:
    """Nobody read the GPU for a minute, and then it worked: when it began is not known."""
    facts = readings([(90.0, IDLE)], 122.0) + readings([(182.0, TRAINING)], 190.0)
    assert found_of(facts, told=182.0) == []


def test_work_that_never_comes_is_not_waited_for() -> None:
    """After ten minutes without work the load has no cold start, and later work gives it none."""
    assert WAIT_SECONDS == 600.0
    facts = readings([(90.0, IDLE), (730.0, TRAINING)], 740.0)
    assert found_of(facts) == []


def test_a_load_that_is_followed_by_another_has_none() -> None:
    """Work after the second load of a directory says nothing of the first, which led to no work."""
    starts = ColdStarts()
    second = Load(
        "d", "/d/checkpoint-8", "hf_trainer", 8, start=140.0, end=150.0, duration_seconds=10.0,
        bytes=1, files=1, bandwidth=None,
    )  # fmt: skip
    starts.load_ended(LOADED)
    starts.load_ended(second)
    for load in (LOADED, second):
        starts.feed(LoadGpus(151.0, load.directory, load.path, load.end, (0,)))
    for fact in readings([(90.0, IDLE), (155.0, TRAINING)], 160.0):
        starts.feed(fact)
    assert [(load.path, load.cold_start_seconds) for load in starts.tick(160.0)] == [
        ("/d/checkpoint-8", 15.0)
    ]


def test_without_the_gpus_of_the_readers_nothing_is_told() -> None:
    """A load whose GPUs are not known has no cold start, however busy the node is."""
    starts = ColdStarts()
    starts.load_ended(LOADED)
    for fact in readings([(90.0, IDLE), (125.0, TRAINING)], 140.0):
        starts.feed(fact)
    assert starts.tick(140.0) == []
    assert starts.waiting


def test_the_ledger_adds_the_cold_start_to_its_last_load() -> None:
    """Facts of a load and of GPUs give the last load its cold start, and tell of it once."""
    found: list[Load] = []
    ledger = Ledger([DIRECTORY], DetectSettings(), on_cold_start=found.append)
    facts: list[Fact] = [GpuSet(0.0, (GpuInfo(0, "GPU-0", limit_w=700.0),)), *opened(10.0)]
    facts += [read(10.0, 0), read(11.0, 100 * MB), closed(12.0), read(12.1, 100 * MB, held=False)]
    facts += readings([(9.0, IDLE), (18.3, TRAINING)], 40.0)
    load_end = 11.0
    facts.append(LoadGpus(23.0, "llama", "/data/ckpt/checkpoint-500", load_end, (0,)))
    for fact in sorted(facts, key=lambda fact: fact.t):
        ledger.feed(fact)
    (directory,) = ledger.snapshot(40.0).directories
    assert directory.last_load is not None
    assert (directory.last_load.path, directory.last_load.end) == ("/data/ckpt/checkpoint-500", load_end)
    assert directory.last_load.cold_start_seconds == 8.5  # 18.3 is seen at 18.5, the load began at 10
    assert found == [directory.last_load]
    assert not ledger.awaits_work
