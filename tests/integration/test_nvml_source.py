"""The real nvidia-ml-py in the real sampler process, against a simulated NVML library."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ckpt_exporter.model import Fact, GpuSample, GpuSet
from ckpt_exporter.sources.sampler import SampledGpus, SamplerSettings
from tests import nvml_library as nvml
from tests.integration.watching import Recorder
from tests.nvml_library import SimulatedNvml, children_of, compile_library, process_exists

# Short intervals, so that a test sees within a second what takes minutes on a node.
FAST = SamplerSettings(
    saving_hz=10.0,
    identity_seconds=0.3,
    process_seconds=0.3,
    hang_seconds=1.0,
    init_hang_seconds=5.0,
    retry_seconds=0.1,
    retry_max_seconds=0.3,
    library_retry_seconds=0.2,
    unhealthy_seconds=1.0,
)


class Watched:
    """A source under test, the library it uses, and what it emitted."""

    def __init__(self, library: SimulatedNvml, source: SampledGpus, seen: Recorder) -> None:
        self.library = library
        self.source = source
        self.seen = seen

    def samples(self, gpu: int | None = None) -> list[GpuSample]:
        return [
            fact
            for fact in list(self.seen.facts)
            if isinstance(fact, GpuSample) and (gpu is None or fact.gpu == gpu)
        ]

    def sets(self) -> list[GpuSet]:
        return [fact for fact in list(self.seen.facts) if isinstance(fact, GpuSet)]

    def next_sample(self, gpu: int, condition: Callable[[GpuSample], object] = bool) -> GpuSample:
        """Wait for a reading taken from now on."""
        since = time.monotonic()
        found = self.seen.wait(
            lambda: [fact for fact in self.samples(gpu)[-40:] if fact.t >= since and condition(fact)]
        )
        sample: GpuSample = found[-1]
        return sample

    def wait_state(self, state: str) -> None:
        self.seen.wait(lambda: self.source.state == state)

    def spacings(self, since: float = 0.0) -> list[float]:
        times = [sample.t for sample in self.samples(0) if sample.t >= since and sample.error is None]
        return [later - earlier for earlier, later in pairwise(times)]


@pytest.fixture(scope="module")
def library_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def library(tmp_path: Path, library_file: Path) -> SimulatedNvml:
    return SimulatedNvml(tmp_path, library=library_file)


@pytest.fixture
def watch() -> Iterator[Callable[..., Watched]]:
    """Start a source on a simulated library; stops it afterwards."""
    started: list[SampledGpus] = []

    def begin(
        library: SimulatedNvml,
        *,
        sample_hz: float = 10.0,
        saving: Callable[[], bool] = lambda: False,
        settings: SamplerSettings = FAST,
        state: str | None = "up",
        **environment: str,
    ) -> Watched:
        seen = Recorder()
        source = SampledGpus(
            seen.emit,
            sample_hz=sample_hz,
            saving=saving,
            settings=replace(settings, environment={**library.environment(), **environment}),
        )
        started.append(source)
        source.start()
        watched = Watched(library, source, seen)
        if state is not None:
            watched.wait_state(state)
        return watched

    yield begin
    for source in started:
        source.stop()


# --- values


def test_readings_arrive_in_shares_and_watts(library: SimulatedNvml, watch: Any) -> None:
    """Every GPU is described once, then read: shares 0..1, watts, bytes per second, power of the instant."""
    watched = watch(library)
    first = watched.seen.facts[0]
    assert isinstance(first, GpuSet)
    assert [info.uuid for info in first.gpus] == [nvml.uuid_of(gpu) for gpu in range(8)]
    assert (first.gpus[0].limit_w, first.gpus[0].driver, first.gpus[0].mig) == (700.0, "580.95.05", False)
    assert first.gpus[0].power_smoothing is None
    sample = watched.next_sample(3, lambda sample: sample.sm is not None)
    assert replace(sample, t=0.0) == GpuSample(
        t=0.0,
        gpu=3,
        uuid=nvml.uuid_of(3),
        util=0.92,
        mem_util=0.55,
        power_w=549.0,
        power_window_s=0.0,
        sm=0.82,
        tensor=0.48,
        dram=0.55,
        pcie_bytes_per_second=300 * 1024 * 1024,
        limit_w=700.0,
        processes=0,
        nvlink_bytes_per_second=20_000 * 1024 * 1024,
    )


def test_a_save_is_seen_as_the_gpus_show_it(library: SimulatedNvml, watch: Any) -> None:
    """Rank 0 falls to 3 % at 150 W while a rank that waits shows 100 % at 153 W, and both come back."""
    watched = watch(library)
    library.set(0, **nvml.WRITING)
    library.set(1, **nvml.SPINNING)
    writer = watched.next_sample(0, lambda sample: sample.sm == 0.01)
    assert (writer.util, writer.power_w, writer.tensor) == (0.03, 150.0, 0.0)
    spinner = watched.next_sample(1, lambda sample: sample.sm == 0.15)
    assert (spinner.util, spinner.power_w, spinner.tensor) == (1.0, 153.0, 0.0)
    library.set(0, **nvml.TRAINING)
    assert watched.next_sample(0, lambda sample: sample.sm == 0.82).power_w == 549.0


@pytest.mark.parametrize(
    ("broken", "name", "arch", "power", "window"),
    [
        (("instant_ret",), "NVIDIA H100", nvml.HOPPER, 400.0, 1.0),
        (("instant_ret", "average_ret"), "NVIDIA H100", nvml.HOPPER, 400.0, 1.0),
        (("instant_ret", "average_ret"), "NVIDIA A100-SXM4-80GB", nvml.AMPERE, 400.0, 0.0),
        (("instant_ret", "average_ret"), "Tesla T4", 6, 400.0, 0.0),
        (("instant_ret", "average_ret", "usage_ret", "energy_ret"), "NVIDIA A16-4C", nvml.AMPERE, None, None),
    ],
)
def test_power_comes_from_the_best_reading_there_is(
    library: SimulatedNvml,
    watch: Any,
    broken: tuple[str, ...],
    name: str,
    arch: int,
    power: float | None,
    window: float | None,
) -> None:
    """Without the instant field: the average one, the plain call with its chip's window, else nothing."""
    library.set_name(0, name, arch)
    library.set(0, average_w=400, **dict.fromkeys(broken, nvml.NOT_SUPPORTED))
    sample = watch(library).next_sample(0)
    assert (sample.power_w, sample.power_window_s) == (power, window)
    assert sample.util == 0.92


def test_power_from_the_energy_counter(library: SimulatedNvml, watch: Any) -> None:
    """Where only an energy counter is told, power is its difference over the time between two readings."""
    broken = dict.fromkeys(("instant_ret", "average_ret", "usage_ret"), nvml.NOT_SUPPORTED)
    library.set(0, **broken)
    sample = watch(library).next_sample(0, lambda sample: sample.power_w is not None)
    assert sample.power_w == pytest.approx(549.0, rel=0.05)
    assert sample.power_window_s > 0.0


def test_a_mig_parent_has_no_utilisation(library: SimulatedNvml, watch: Any) -> None:
    """What a MIG parent does not tell is absent, not 0; its power is still read."""
    library.set(0, mig=1)
    watched = watch(library)
    sample = watched.next_sample(0)
    assert (sample.util, sample.mem_util, sample.power_w) == (None, None, 549.0)
    assert [info.mig for info in watched.sets()[0].gpus[:2]] == [True, False]
    assert watched.next_sample(1).util == 0.92


def test_a_counter_that_fails_is_left_out(library: SimulatedNvml, watch: Any) -> None:
    """A GPM metric with an error of its own, or that is not a number, is absent; the others stay."""
    library.set(0, metric_ret=nvml.NOT_SUPPORTED, metric_nan=1)
    sample = watch(library).next_sample(0, lambda sample: sample.dram is not None)
    assert (sample.sm, sample.tensor, sample.dram) == (None, None, 0.55)


def test_counters_that_cannot_be_compared(library: SimulatedNvml, watch: Any) -> None:
    """A failing comparison of two samples asks no GPU: it costs the counters, not the GPU."""
    library.fail("nvmlGpmMetricsGet", nvml.UNKNOWN)
    watched = watch(library)
    for _ in range(4):
        sample = watched.next_sample(0)
        assert (sample.error, sample.sm, sample.util) == (None, None, 0.92)
    library.fail("nvmlGpmMetricsGet", 0)
    assert watched.next_sample(0, lambda sample: sample.sm is not None).sm == 0.82


def test_counters_without_permission(library: SimulatedNvml, watch: Any) -> None:
    """Where the counters may not be read, the other readings remain and nobody asks at every tick."""
    library.fail("nvmlGpmSampleGet", nvml.NO_PERMISSION)
    watched = watch(library, settings=replace(FAST, identity_seconds=3600.0))
    for _ in range(4):
        assert watched.next_sample(0).power_w == 549.0
    assert library.calls("nvmlGpmSampleGet") == 8


def test_gpus_without_gpm(library: SimulatedNvml, watch: Any) -> None:
    """A GPU without GPM is never asked for its counters."""
    for gpu in range(8):
        library.set(gpu, gpm_support=0)
    sample = watch(library).next_sample(0)
    assert (sample.sm, sample.util) == (None, 0.92)
    assert library.calls("nvmlGpmSampleGet") == 0


def test_an_old_library(tmp_path: Path, watch: Any) -> None:
    """A library without field values and GPM gives utilisation and the plain power reading."""
    file = compile_library(tmp_path / "old", ["nvmlDeviceGetFieldValues", "nvmlGpmQueryDeviceSupport"])
    library = SimulatedNvml(tmp_path, library=file)
    watched = watch(library)
    sample = watched.next_sample(0)
    assert (sample.util, sample.power_w, sample.power_window_s, sample.sm) == (0.92, 549.0, 1.0, None)
    assert watched.sets()[0].gpus[0].limit_w == 700.0


def test_power_smoothing_is_told(library: SimulatedNvml, watch: Any) -> None:
    """A GPU that may hold its power up on purpose says so; a change is a new set."""
    library.set(0, smoothing_ret=0, smoothing=0)
    watched = watch(library)
    assert [info.power_smoothing for info in watched.sets()[0].gpus[:2]] == [False, None]
    library.set(0, smoothing=1)
    watched.seen.wait(lambda: watched.sets()[-1].gpus[0].power_smoothing is True)


# --- cost


def test_three_calls_per_gpu_and_tick_however_often_it_is_scraped(library: SimulatedNvml, watch: Any) -> None:
    """Per reading at most one call each for utilisation, power and counters; looking at results adds none."""
    watched = watch(library, settings=replace(FAST, identity_seconds=3600.0))
    watched.seen.wait(lambda: len(watched.samples()) >= 80)
    for _ in range(200):
        _ = watched.source.call_seconds, watched.source.gpus, watched.source.up, watched.source.pids_by_gpu()
    watched.source.stop()
    ticks = watched.source.collected / 8
    # A tick may be under way when the source is stopped; the fields are also asked once for the identity.
    for function, once in (
        ("nvmlDeviceGetUtilizationRates", 0),
        ("nvmlDeviceGetFieldValues", 1),
        ("nvmlGpmSampleGet", 0),
        ("nvmlGpmMetricsGet", 0),
    ):
        assert library.calls(function) <= 8 * (ticks + once + 1), function
    assert library.calls("nvmlDeviceGetPowerUsage") == 0
    assert library.calls("nvmlInitWithFlags") == 1


@pytest.mark.alone
def test_every_call_is_timed(library: SimulatedNvml, watch: Any) -> None:
    """A call of 60 ms is found in the bucket from 50 to 100 ms, and in the sum."""
    library.count = 1
    library.slow("nvmlDeviceGetUtilizationRates", 0.06)
    watched = watch(library)
    calls = watched.seen.wait(lambda: watched.source.call_seconds if watched.source.collected else None)
    assert calls.bounds[7:9] == (0.05, 0.1)
    assert sum(calls.counts[8:]) >= 1
    assert calls.sum >= 0.06


@pytest.mark.alone
def test_it_reads_faster_only_while_a_save_is_open(library: SimulatedNvml, watch: Any) -> None:
    """Two readings a second, five while saving, two again afterwards."""
    saving: list[bool] = []
    settings = replace(FAST, saving_hz=5.0)
    watched = watch(library, sample_hz=2.0, saving=lambda: bool(saving), settings=settings)
    watched.seen.wait(lambda: len(watched.spacings()) >= 2)
    assert min(watched.spacings()) >= 0.45
    saving.append(True)
    since = time.monotonic()
    watched.seen.wait(lambda: any(0.15 <= spacing < 0.35 for spacing in watched.spacings(since)))
    saving.clear()
    since = time.monotonic() + 0.6
    watched.seen.wait(lambda: len(watched.spacings(since)) >= 2)
    assert min(watched.spacings(since)) >= 0.45


@pytest.mark.alone
def test_an_average_is_not_read_faster(library: SimulatedNvml, watch: Any) -> None:
    """Where all that is told is an average over a second, a save does not raise the rate."""
    for gpu in range(8):
        library.set(gpu, gpm_support=0, instant_ret=nvml.NOT_SUPPORTED)
    watched = watch(library, sample_hz=2.0, saving=lambda: True)
    watched.seen.wait(lambda: len(watched.spacings()) >= 3)
    assert min(watched.spacings()) >= 0.45


def test_it_backs_off_from_a_slow_driver(library: SimulatedNvml, watch: Any) -> None:
    """Calls that take longer than 20 ms make readings rarer."""
    library.count = 1
    library.slow("nvmlDeviceGetFieldValues", 0.03)
    watched = watch(library, settings=replace(FAST, identity_seconds=3600.0))
    watched.seen.wait(lambda: any(spacing >= 0.75 for spacing in watched.spacings()))


# --- processes


def test_processes_are_read_when_a_save_begins(library: SimulatedNvml, watch: Any) -> None:
    """Between two looks far apart, the beginning of a save is a reason to look."""
    saving: list[bool] = []
    settings = replace(FAST, process_seconds=3600.0, identity_seconds=3600.0)
    watched = watch(library, saving=lambda: bool(saving), settings=settings)
    watched.seen.wait(lambda: watched.source.pids_by_gpu().get(7) == ())
    library.set_pids(0, [os.getpid()])
    looked = library.calls("nvmlDeviceGetComputeRunningProcesses_v3")
    saving.append(True)
    watched.seen.wait(lambda: watched.source.pids_by_gpu()[0] == (os.getpid(),))
    assert watched.source.mapping_known
    assert library.calls("nvmlDeviceGetComputeRunningProcesses_v3") <= looked + 2 * 8
    assert watched.next_sample(0).processes == 1


def test_pids_of_another_namespace_map_to_nothing(library: SimulatedNvml, watch: Any) -> None:
    """Pids that do not exist here are reported as such: the mapping is not known."""
    library.set_pids(0, [2**22 + 5, 2**22 + 6])
    watched = watch(library)
    watched.seen.wait(lambda: watched.source.pids_by_gpu().get(0))
    assert not watched.source.mapping_known
    library.set_pids(0, [os.getpid()])
    watched.seen.wait(lambda: watched.source.mapping_known)


def test_longer_process_entries_are_noticed(library: SimulatedNvml, watch: Any) -> None:
    """A driver whose third version has longer entries is asked for its second one."""
    pids = sorted({os.getpid(), os.getppid(), 1})
    library.use_long_process_entries()
    library.set_pids(0, pids)
    watched = watch(library)
    watched.seen.wait(lambda: watched.source.pids_by_gpu().get(0) == tuple(pids))
    assert watched.source.mapping_known


# --- failures of one GPU


@pytest.mark.parametrize("how", ["ret", "handle_ret"])
def test_a_lost_gpu_leaves_the_others_alone(library: SimulatedNvml, watch: Any, how: str) -> None:
    """GPU 3 falls off: it has an error and keeps its name, the seven others go on, and it may come back."""
    watched = watch(library)
    library.set(3, **{how: nvml.GPU_IS_LOST})
    lost = watched.next_sample(3, lambda sample: sample.error is not None)
    assert (lost.uuid, lost.util, lost.power_w) == (nvml.uuid_of(3), None, None)
    assert all(watched.next_sample(gpu).error is None for gpu in (0, 7))
    assert (watched.source.state, watched.source.healthy, len(watched.sets())) == ("up", True, 1)
    library.set(3, **{how: 0})
    assert watched.next_sample(3, lambda sample: sample.error is None).util == 0.92
    assert library.calls("nvmlInitWithFlags") == 1
    assert library.calls("nvmlGpmSampleAlloc") == 16  # looking for GPUs anew keeps what is known of each


def test_a_gpu_lost_before_the_start_has_a_place(library: SimulatedNvml, watch: Any) -> None:
    """A GPU that gives no handle at the start is listed without a name, with an error."""
    library.set(3, handle_ret=nvml.GPU_IS_LOST)
    watched = watch(library)
    assert [info.uuid for info in watched.sets()[0].gpus][2:5] == [nvml.uuid_of(2), "", nvml.uuid_of(4)]
    assert watched.next_sample(3).error is not None


def test_every_gpu_lost_is_not_the_librarys_fault(library: SimulatedNvml, watch: Any) -> None:
    """GPUs that are all lost are reported one by one; beginning anew would not bring them back."""
    library.count = 2
    watched = watch(library)
    for gpu in range(2):
        library.set(gpu, ret=nvml.GPU_IS_LOST)
    for _ in range(6):
        assert watched.next_sample(1, lambda sample: sample.error is not None)
    assert library.calls("nvmlInitWithFlags") == 1


def test_reordered_indices_keep_their_uuids(library: SimulatedNvml, watch: Any) -> None:
    """When the order changes, a new set tells it before any reading with the new index."""
    watched = watch(library)
    library.set(0, power_w=111)
    library.order = range(7, -1, -1)
    watched.seen.wait(lambda: len(watched.sets()) == 2)
    assert [info.uuid for info in watched.sets()[1].gpus] == [nvml.uuid_of(gpu) for gpu in range(7, -1, -1)]
    sample = watched.next_sample(7)
    assert (sample.uuid, sample.power_w) == (nvml.uuid_of(0), 111.0)
    facts = list(watched.seen.facts)
    named = facts.index(watched.sets()[1])
    assert all(f.uuid == nvml.uuid_of(f.gpu) for f in facts[:named] if isinstance(f, GpuSample))


def test_a_changed_count_is_a_new_set(library: SimulatedNvml, watch: Any) -> None:
    """GPUs that go and come again are told by a new set each time."""
    watched = watch(library)
    library.count = 6
    watched.seen.wait(lambda: len(watched.sets()[-1].gpus) == 6)
    library.count = 8
    watched.seen.wait(lambda: len(watched.sets()[-1].gpus) == 8)
    assert watched.next_sample(7, lambda sample: sample.sm is not None).uuid == nvml.uuid_of(7)


def test_no_gpus_at_all(library: SimulatedNvml, watch: Any) -> None:
    """A node whose driver sees no GPU is up with an empty set."""
    library.count = 0
    watched = watch(library)
    assert watched.sets()[0].gpus == ()


# --- failures of the library


@pytest.mark.parametrize(
    ("code", "state"),
    [
        (nvml.DRIVER_NOT_LOADED, "driver_not_loaded"),
        (nvml.VERSION_MISMATCH, "version_mismatch"),
        (nvml.NO_PERMISSION, "no_permission"),
        (nvml.UNKNOWN, "unknown_error"),
        (nvml.NOT_FOUND, "init_error"),
    ],
)
def test_a_failed_initialisation_is_a_state(
    library: SimulatedNvml, watch: Any, code: int, state: str
) -> None:
    """Whatever the initialisation returns is a state that ends by itself, in a fresh process."""
    library.fail("nvmlInitWithFlags", code)
    watched = watch(library, state=state)
    assert not watched.source.up
    assert watched.seen.facts == []
    library.fail("nvmlInitWithFlags", 0)
    watched.wait_state("up")
    assert watched.next_sample(0).util == 0.92


def test_no_library(tmp_path: Path, library: SimulatedNvml, watch: Any) -> None:
    """Without a library nothing is reported and nothing is wrong; when it appears, readings begin."""
    empty = tmp_path / "empty"
    empty.mkdir()
    watched = watch(library, state="library_missing", LD_LIBRARY_PATH=str(empty))
    assert (watched.source.up, watched.source.healthy, watched.source.pids_by_gpu()) == (False, True, {})
    (empty / library.library.name).symlink_to(library.library)
    watched.wait_state("up")


def test_unknown_errors_everywhere(library: SimulatedNvml, watch: Any, caplog: Any) -> None:
    """All calls fail: every GPU is unreadable, attempts are made, unhealthy at last, then cured."""
    caplog.set_level(logging.INFO, logger="ckpt_exporter.gpu")
    watched = watch(library)
    library.fail_all(nvml.UNKNOWN)
    watched.wait_state("unknown_error")
    last = {sample.gpu: sample for sample in watched.samples()}
    assert {gpu for gpu, sample in last.items() if sample.error == "unknown_error"} == set(range(8))
    watched.seen.wait(lambda: library.calls("nvmlInitWithFlags") >= 3)
    watched.seen.wait(lambda: not watched.source.healthy)
    library.fail_all(0)
    watched.wait_state("up")
    assert watched.source.healthy
    assert watched.next_sample(0).error is None
    said = [record.getMessage() for record in caplog.records]
    assert said.count("GPU sampling is down") == 1
    assert said.count("GPU sampling is up") == 2


def test_a_driver_upgraded_under_it(library: SimulatedNvml, watch: Any) -> None:
    """The library that is loaded no longer fits the driver: only a new process loads the new one."""
    watched = watch(library)
    old = watched.source.sampler_pid
    library.fail_all(nvml.VERSION_MISMATCH)
    watched.wait_state("version_mismatch")
    library.driver = "590.44.01"
    library.fail_all(0)
    watched.wait_state("up")
    assert watched.source.sampler_pid != old
    assert watched.sets()[-1].gpus[0].driver == "590.44.01"


@pytest.mark.parametrize("function", ["nvmlDeviceGetFieldValues", "nvmlDeviceGetCount_v2"])
def test_a_hanging_driver_is_left_behind(library: SimulatedNvml, watch: Any, function: str) -> None:
    """No sign of life: the sampler is ended, the GPUs are reported unreadable, a new one starts later."""
    watched = watch(library)
    hung = watched.source.sampler_pid
    library.hang(function)
    watched.wait_state("stalled")
    assert watched.source.stalled
    watched.seen.wait(lambda: not process_exists(hung))
    assert watched.samples(0)[-1].error == "stalled"
    library.hang(function, on=False)
    watched.wait_state("up")
    assert watched.source.sampler_pid != hung


def test_stop_while_the_driver_hangs(library: SimulatedNvml, watch: Any) -> None:
    """Stopping does not wait for the driver, and leaves no process."""
    watched = watch(library, settings=replace(FAST, hang_seconds=60.0))
    pid = watched.source.sampler_pid
    before = library.calls("nvmlDeviceGetUtilizationRates")
    library.hang("nvmlDeviceGetUtilizationRates")
    watched.seen.wait(lambda: library.calls("nvmlDeviceGetUtilizationRates") > before)
    watched.source.stop()
    assert not process_exists(pid)
    assert pid not in children_of(os.getpid())


def test_a_crashing_library_is_started_anew(library: SimulatedNvml, watch: Any) -> None:
    """A segmentation fault in the library costs the sampler, not the daemon."""
    watched = watch(library)
    library.crash("nvmlDeviceGetUtilizationRates")
    watched.wait_state("crashed")
    library.crash("nvmlDeviceGetUtilizationRates", on=False)
    watched.wait_state("up")
    assert watched.next_sample(0).util == 0.92


def test_at_most_two_unkillable_samplers(
    library: SimulatedNvml, watch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samplers that can't be ended (blocked in the driver) are left; with two of them no third is started."""
    from ckpt_exporter.sources import sampler as module

    started: list[Any] = []
    real = module.ChildProcess

    class Unkillable(real):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            started.append(self)

        def end(self) -> bool:
            return len(started) > 2 and super().end()

    monkeypatch.setattr(module, "ChildProcess", Unkillable)
    library.hang("nvmlDeviceGetCount_v2")
    settings = replace(FAST, init_hang_seconds=0.5)
    watched = watch(library, settings=settings, state=None)
    watched.seen.wait(lambda: len(watched.source._stuck) == 2)
    until = time.monotonic() + 1.0  # three pauses between attempts
    watched.seen.wait(lambda: time.monotonic() > until)
    assert len(started) == 2
    library.hang("nvmlDeviceGetCount_v2", on=False)  # the driver answers: they see that nobody waits for them
    for child in started[:2]:
        real.end(child)
    watched.wait_state("up")


def test_a_taker_that_fails_does_not_end_the_readings(library: SimulatedNvml) -> None:
    """An exception in the room that takes the facts is logged; the next reading comes."""
    seen = Recorder()

    def emit(fact: Fact) -> None:
        seen.emit(fact)
        raise RuntimeError("full")

    settings = replace(FAST, environment=library.environment())
    source = SampledGpus(emit, sample_hz=10.0, saving=lambda: False, settings=settings)
    source.start()
    try:
        seen.wait(lambda: len(seen.facts) > 40)
        assert source.up
    finally:
        source.stop()


# --- ends


def test_stop_shuts_nvml_down_once(library: SimulatedNvml, watch: Any) -> None:
    """After stop: no child, one shutdown for one initialisation, every sample freed, no descriptor."""
    before = set(os.listdir("/proc/self/fd"))
    watched = watch(library)
    pid = watched.source.sampler_pid
    watched.source.stop()
    watched.source.stop()
    assert not process_exists(pid)
    assert pid not in children_of(os.getpid())
    assert (library.calls("nvmlInitWithFlags"), library.calls("nvmlShutdown")) == (1, 1)
    assert library.calls("nvmlGpmSampleFree") == library.calls("nvmlGpmSampleAlloc") == 16
    assert set(os.listdir("/proc/self/fd")) == before
    assert watched.source.state == "stopped"


def test_a_sampler_told_to_terminate_shuts_nvml_down(library: SimulatedNvml, watch: Any) -> None:
    """A service manager that signals every process gets a clean end, not a process torn from the driver."""
    watched = watch(library, settings=replace(FAST, retry_seconds=60.0, retry_max_seconds=60.0))
    os.kill(watched.source.sampler_pid, signal.SIGTERM)
    watched.seen.wait(lambda: not watched.source.up)
    assert library.calls("nvmlShutdown") == 1


def test_release_gives_the_gpus_free(library: SimulatedNvml, watch: Any) -> None:
    """After release no process holds a GPU; GPUs are reported unread; resume begins anew."""
    watched = watch(library)
    pid = watched.source.sampler_pid
    watched.source.release()
    assert not process_exists(pid)
    assert library.calls("nvmlShutdown") == 1
    assert (watched.source.state, watched.source.sampler_pid, watched.source.healthy) == (
        "released",
        None,
        True,
    )
    assert watched.samples(0)[-1].error == "released"
    watched.source.resume()
    watched.wait_state("up")
    assert watched.next_sample(0).util == 0.92


def test_release_ends_by_itself(library: SimulatedNvml, watch: Any) -> None:
    """A release that nobody takes back ends after its time."""
    watched = watch(library, settings=replace(FAST, release_seconds=0.5))
    watched.source.release()
    watched.wait_state("up")
    assert library.calls("nvmlInitWithFlags") == 2


def test_release_of_a_stopped_source_does_nothing(library: SimulatedNvml, watch: Any) -> None:
    """A signal that comes after the stop is harmless."""
    watched = watch(library)
    watched.source.stop()
    watched.source.release()
    watched.source.resume()
    assert watched.source.state == "stopped"


@pytest.mark.parametrize("hanging", [False, True])
def test_the_sampler_ends_with_its_parent(tmp_path: Path, library: SimulatedNvml, hanging: bool) -> None:
    """A daemon that is killed leaves no sampler behind, not even one that waits for the driver."""
    script = textwrap.dedent(
        """
        import sys, time
        from ckpt_exporter.sources.sampler import SampledGpus
        source = SampledGpus(lambda fact: None, saving=lambda: False)
        source.start()
        while not source.up:
            time.sleep(0.01)
        print(source.sampler_pid, flush=True)
        time.sleep(60)
        """
    )
    environment = {**os.environ, **library.environment(), "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert process_exists(pid)
        if hanging:
            before = library.calls("nvmlDeviceGetUtilizationRates")
            library.hang("nvmlDeviceGetUtilizationRates")
            Recorder().wait(lambda: library.calls("nvmlDeviceGetUtilizationRates") > before)
        parent.send_signal(signal.SIGKILL)
    Recorder().wait(lambda: not process_exists(pid))
    assert library.calls("nvmlShutdown") == (0 if hanging else 1)


def test_nothing_grows(library: SimulatedNvml, watch: Any) -> None:
    """200 changes of the set of GPUs leave memory, descriptors and counter samples as they were."""
    watched = watch(library, sample_hz=50.0, settings=replace(FAST, identity_seconds=0.01))
    pid = watched.source.sampler_pid

    def change(times: int) -> None:
        for _ in range(times):
            for count in (4, 8):
                library.count = count
                watched.seen.wait(lambda count=count: len(watched.source.gpus) == count)

    change(20)
    rss, descriptors = _rss_bytes(pid), os.listdir(f"/proc/{pid}/fd")
    mine = os.listdir("/proc/self/fd")
    change(100)
    assert _rss_bytes(pid) - rss < 1024 * 1024
    assert os.listdir(f"/proc/{pid}/fd") == descriptors
    assert len(os.listdir("/proc/self/fd")) == len(mine)
    assert watched.source.sampler_pid == pid
    assert library.calls("nvmlGpmSampleAlloc") - library.calls("nvmlGpmSampleFree") <= 16


def test_restarts_leave_nothing_behind(library: SimulatedNvml, watch: Any) -> None:
    """Twenty samplers later there is one child, no zombie, and not one descriptor more."""
    library.count = 1
    watched = watch(library)
    before, others = len(os.listdir("/proc/self/fd")), set(children_of(os.getpid()))
    for _ in range(20):
        watched.source.release()
        watched.source.resume()
        watched.wait_state("up")
    assert len(os.listdir("/proc/self/fd")) == before
    assert len(set(children_of(os.getpid())) - others) == 1
    assert library.calls("nvmlInitWithFlags") == 21
    assert library.calls("nvmlShutdown") == 20


def _rss_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
