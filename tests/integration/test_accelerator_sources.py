"""What each accelerator's source does when something is missing, lost, old, untold or stuck.

Behind the sources: a simulated libdcmi.so, a simulated amdsmi module, simulated exporters.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ckpt_exporter.model import GpuSample, GpuSet
from tests import amdsmi_module, dcmi_library
from tests.accelerators import BACKENDS, FAST, Accelerators
from tests.dcmi_library import AI_CORE, AI_CUBE, HBM_BANDWIDTH, NPU, VECTOR_CORE
from tests.exporters import dcgm_text, npu_text
from tests.integration.watching import Recorder
from tests.nvml_library import process_exists

NEVER = 2**22 + 7  # no pid is that large


class Watched:
    """One started source with what is behind it and what it told."""

    def __init__(self, known: Accelerators, seen: Recorder) -> None:
        self.known = known
        self.behind = known.behind
        self.source: Any = known.source
        self.seen = seen

    def samples(self, gpu: int | None = None) -> list[GpuSample]:
        told = [fact for fact in list(self.seen.facts) if isinstance(fact, GpuSample)]
        return [sample for sample in told if gpu is None or sample.gpu == gpu]

    def sets(self) -> list[GpuSet]:
        return [fact for fact in list(self.seen.facts) if isinstance(fact, GpuSet)]

    def next_sample(self, gpu: int, wanted: Callable[[GpuSample], bool] = lambda _: True) -> GpuSample:
        begun = len(self.samples(gpu))
        return self.seen.wait(lambda: [s for s in self.samples(gpu)[begun:] if wanted(s)])[0]  # type: ignore[no-any-return]

    def wait_state(self, state: str) -> None:
        self.seen.wait(lambda: self.source.state == state)


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Callable[..., Watched]]:
    """Start a source of a backend; ``before`` changes what is behind it first."""
    with ExitStack() as stack:

        def begin(
            name: str,
            *,
            before: Callable[[Any], object] = lambda _: None,
            state: str | None = "up",
            make: Any = None,
            **options: Any,
        ) -> Watched:
            seen = Recorder()
            known = stack.enter_context((make or BACKENDS[name])(tmp_path, seen.emit, **options))
            stack.callback(known.source.stop)
            before(known.behind)
            known.source.start()
            watched = Watched(known, seen)
            if state is not None:
                watched.wait_state(state)
            return watched

        yield begin


HUNG = replace(FAST, hang_seconds=0.6, init_hang_seconds=5.0)


# --- any backend that runs in the sampler's process


@pytest.mark.parametrize("name", ["dcmi", "amdsmi"])
def test_a_stuck_library_is_left_behind(watch: Any, name: str) -> None:
    """No sign of life: the sampler is ended, the GPUs are reported unread, a new one starts later."""
    watched = watch(name, settings=HUNG)
    hung = watched.source.sampler_pid
    hang = watched.behind.head if name == "dcmi" else watched.behind.change
    hang(hang=1)
    watched.wait_state("stalled")
    watched.seen.wait(lambda: not process_exists(hung))
    assert watched.samples(7)[-1].error == "stalled"
    hang(hang=0)
    watched.wait_state("up")
    assert watched.source.sampler_pid != hung


@pytest.mark.parametrize("name", ["dcmi", "amdsmi"])
def test_a_crashing_library_costs_the_sampler_alone(watch: Any, name: str) -> None:
    """A segmentation fault in the library ends the sampler, and a new one reads on."""
    watched = watch(name)
    crash = watched.behind.head if name == "dcmi" else watched.behind.change
    crash(crash=1)
    watched.wait_state("crashed")
    crash(crash=0)
    watched.wait_state("up")
    assert watched.next_sample(0).error is None


def test_no_dcmi_library(watch: Any, tmp_path: Path) -> None:
    """Without libdcmi.so nothing is reported and nothing is wrong."""
    empty = tmp_path / "empty"
    empty.mkdir()
    with ExitStack() as stack:
        seen = Recorder()
        known = stack.enter_context(BACKENDS["dcmi"](tmp_path, seen.emit))
        known.source._settings = replace(known.source._settings, environment={"LD_LIBRARY_PATH": str(empty)})
        stack.callback(known.source.stop)
        known.source.start()
        seen.wait(lambda: known.source.state == "library_missing")
        assert (known.source.up, known.source.healthy, seen.facts) == (False, True, [])


def test_no_amdsmi_binding(watch: Any, tmp_path: Path) -> None:
    """Without the binding (no such module) nothing is reported and nothing is wrong."""
    with ExitStack() as stack:
        seen = Recorder()
        known = stack.enter_context(BACKENDS["amdsmi"](tmp_path, seen.emit))
        known.source._settings = replace(known.source._settings, environment={})
        stack.callback(known.source.stop)
        known.source.start()
        seen.wait(lambda: known.source.state == "library_missing")
        assert (known.source.up, known.source.healthy, seen.facts) == (False, True, [])


def test_an_amdsmi_binding_without_its_library(watch: Any) -> None:
    """The binding's import raises KeyError where libamd_smi.so is not there: the library is missing."""
    watched = watch("amdsmi", before=lambda behind: behind.change(no_library=True), state="library_missing")
    assert watched.seen.facts == []
    watched.behind.change(no_library=False)


# --- Ascend


@pytest.mark.parametrize("name", ["dcmi", "dcmi-second"])
def test_a_chips_identity_and_readings(watch: Any, name: str) -> None:
    """Die, name and driver; cube as tensor, vector as SM, bandwidth as memory, tenths of watts."""
    watched = watch(name)
    first = watched.sets()[0].gpus[3]
    assert (first.uuid, first.name, first.driver) == (
        dcmi_library.die_of(3),
        "Ascend 910B2 (simulated)",
        "24.1.rc3",
    )
    assert first.waiting_known is False
    sample = watched.next_sample(3, lambda s: s.processes == 1)
    assert replace(sample, t=0.0) == GpuSample(
        t=0.0,
        gpu=3,
        uuid=dcmi_library.die_of(3),
        util=0.86,
        mem_util=0.52,
        power_w=310.2,
        sm=0.45,
        tensor=0.78,
        dram=0.52,
        processes=1,
    )


def test_the_first_generation_refused_is_the_second(watch: Any) -> None:
    """Where the library has both and the first works on no chip of this kind, the second is used."""
    watched = watch("dcmi", before=lambda behind: behind.head(first_ret=dcmi_library.NOT_SUPPORTED))
    assert watched.next_sample(7).tensor == 0.78


def test_two_chips_on_a_card(watch: Any) -> None:
    """Chips are found by card and device, and numbered through."""

    def pair(behind: Any) -> None:
        behind.head(count=4)
        for npu in range(4):
            behind.set(npu, card=npu // 2, device=npu % 2)
        behind.set_rates(3, {AI_CUBE: 11})

    watched = watch("dcmi", before=pair)
    assert [info.uuid for info in watched.sets()[0].gpus] == [dcmi_library.die_of(npu) for npu in range(4)]
    assert watched.next_sample(3).tensor == 0.11


def test_a_management_chip_is_no_npu(watch: Any) -> None:
    """What sits on a card and does not compute is left out."""
    watched = watch("dcmi", before=lambda behind: behind.set(7, type=1))
    assert len(watched.sets()[0].gpus) == 7


def test_a_chip_without_die_or_power(watch: Any) -> None:
    """A chip that tells neither is named by its place, and its power is left out: never 0."""

    def bare(behind: Any) -> None:
        behind.set(2, die_ret=dcmi_library.NOT_SUPPORTED, power_ret=dcmi_library.NOT_SUPPORTED)

    watched = watch("dcmi", before=bare)
    assert watched.sets()[0].gpus[2].uuid == "NPU-2-0"
    sample = watched.next_sample(2)
    assert (sample.power_w, sample.tensor, sample.error) == (None, 0.78, None)


def test_ai_core_where_cube_units_are_not_told(watch: Any) -> None:
    """Older chips tell AI Core alone, and no vector units or overall utilisation."""

    def older(behind: Any) -> None:
        for kind in (AI_CUBE, VECTOR_CORE, NPU):
            behind.set_rate_ret(0, kind, dcmi_library.NOT_SUPPORTED)
        behind.set_rates(0, {AI_CORE: 64})

    sample = watch("dcmi", before=older).next_sample(0)
    assert (sample.tensor, sample.sm, sample.util) == (0.64, None, 0.64)


def test_what_a_profiler_hides_is_no_rest(watch: Any) -> None:
    """AI Core and vector units at 0 beside half of the memory's bandwidth: unknown, not idle."""
    watched = watch("dcmi")
    watched.behind.set_rates(0, {AI_CORE: 0, AI_CUBE: 0, VECTOR_CORE: 0})
    sample = watched.next_sample(0, lambda s: s.tensor != 0.78)
    assert (sample.tensor, sample.sm, sample.dram, sample.error) == (None, None, 0.52, None)


def test_a_bandwidth_that_was_never_seen_is_untold(watch: Any) -> None:
    """In a virtual machine it reads 0 for ever: left out, until it was something else once."""
    watched = watch("dcmi", before=lambda behind: behind.set_rates(0, {HBM_BANDWIDTH: 0}))
    assert {(s.dram, s.mem_util) for s in [watched.next_sample(0), *watched.samples(0)]} == {(None, None)}
    watched.behind.set_rates(0, {HBM_BANDWIDTH: 20})
    assert watched.next_sample(0, lambda s: s.dram is not None).dram == 0.2
    watched.behind.set_rates(0, {HBM_BANDWIDTH: 0})
    assert watched.next_sample(0, lambda s: s.dram == 0.0).mem_util == 0.0


def test_an_impossible_rate_is_untold(watch: Any) -> None:
    """The interface answers 239 (0xEF) for a core under a profiler: no share of anything."""
    watched = watch("dcmi", before=lambda behind: behind.set_rates(1, {VECTOR_CORE: 239}))
    assert watched.next_sample(1).sm is None


def test_a_lost_chip_leaves_the_others_read(watch: Any) -> None:
    """A chip that no longer exists is in error, by its die; the others go on, and it comes back."""
    watched = watch("dcmi")
    watched.behind.set(3, ret=dcmi_library.NOT_EXIST)
    lost = watched.next_sample(3, lambda s: s.error is not None)
    assert (lost.uuid, lost.tensor, lost.power_w) == (dcmi_library.die_of(3), None, None)
    assert "DCMI -8008" in lost.error
    assert watched.next_sample(4).error is None
    assert watched.source.state == "up"
    watched.behind.set(3, ret=0)
    assert watched.next_sample(3, lambda s: s.error is None).uuid == dcmi_library.die_of(3)


def test_pids_of_another_namespace(watch: Any) -> None:
    """Processes that don't exist here are listed, and said not to be known here."""
    watched = watch("dcmi", before=lambda behind: [behind.set_pids(npu, [NEVER]) for npu in range(8)])
    watched.seen.wait(lambda: watched.source.pids_by_gpu().get(0) == (NEVER,))
    assert not watched.source.mapping_known


def test_no_permission_at_all(watch: Any) -> None:
    """A library that refuses its initialisation for want of permission says so."""
    watched = watch(
        "dcmi", before=lambda b: b.head(init_ret=dcmi_library.NOT_PERMITTED), state="no_permission"
    )
    watched.behind.head(init_ret=0)
    watched.wait_state("up")


# --- AMD


def test_a_gpus_power_is_exact_over_each_reading(watch: Any) -> None:
    """The energy counter's mean: 640 W, though the sensor's own figure is another."""
    watched = watch("amdsmi", before=lambda behind: behind.set(0, socket=111.0))
    sample = watched.next_sample(0, lambda s: s.power_window_s is not None)
    assert abs(sample.power_w - 640.0) < 1.0
    assert 0.0 < sample.power_window_s < 1.0


def test_no_energy_counter(watch: Any) -> None:
    """Without the counter the sensor's figure counts, of unknown averaging."""
    codes = {"amdsmi_get_energy_count": amdsmi_module.NOT_SUPPORTED}
    watched = watch("amdsmi", before=lambda behind: behind.set(0, codes=codes))
    sample = watched.next_sample(0)
    assert (sample.power_w, sample.power_window_s) == (640.0, None)


def test_activity_counters_of_an_unknown_unit(watch: Any) -> None:
    """Counters of shares and of percents are told apart by the driver's percentage, others not used."""

    def units(behind: Any) -> None:
        for gpu, unit in enumerate((1.0, 100.0, 7.0)):
            behind.set(gpu, unit=unit, gfx=80)

    watched = watch("amdsmi", before=units)
    for gpu in range(3):
        sample = watched.next_sample(gpu, lambda s: s.power_window_s is not None)
        assert abs(sample.util - 0.80) < 0.01, gpu
        assert abs(sample.mem_util - 0.41) < 0.01, gpu


def test_what_amdsmi_says_is_not_available(watch: Any) -> None:
    """What it calls "N/A" or refuses is left out: no activity, no power limit; the GPU is not in error."""

    def bare(behind: Any) -> None:
        codes = {
            "amdsmi_get_power_cap_info": amdsmi_module.NOT_SUPPORTED,
            "amdsmi_get_gpu_metrics_info": amdsmi_module.NOT_SUPPORTED,
        }
        behind.set(0, gfx=94, umc=41, codes=codes)

    watched = watch("amdsmi", before=bare)
    watched.behind.set(1, codes={"amdsmi_get_gpu_activity": amdsmi_module.NO_PERMISSION})
    sample = watched.next_sample(1, lambda s: s.util is None)
    assert (sample.util, sample.mem_util, sample.error) == (None, None, None)
    assert watched.next_sample(0).limit_w == 750.0  # from the other call that tells it


def test_a_lost_gpu_leaves_the_others_read(watch: Any) -> None:
    """A GPU that is not found is in error, by its UUID; the others go on, and it comes back."""
    watched = watch("amdsmi")
    watched.behind.set(3, ret=amdsmi_module.NOT_FOUND)
    lost = watched.next_sample(3, lambda s: s.error is not None)
    assert (lost.uuid, lost.util) == (amdsmi_module.uuid_of(3), None)
    assert "\n" not in lost.error
    assert watched.next_sample(4).error is None
    watched.behind.set(3, ret=0)
    back = watched.next_sample(3, lambda s: s.error is None)
    assert (back.uuid, watched.source.state) == (amdsmi_module.uuid_of(3), "up")


def test_no_driver(watch: Any) -> None:
    """A driver that is not loaded is a state that ends by itself."""
    codes = {"amdsmi_init": amdsmi_module.DRIVER_NOT_LOADED}
    watched = watch("amdsmi", before=lambda b: b.change(codes=codes), state="driver_not_loaded")
    watched.behind.change(codes={})
    watched.wait_state("up")


# --- another exporter


def test_a_repeated_value_is_no_new_reading(watch: Any) -> None:
    """An exporter that makes nothing new is asked on, and not one reading comes of it."""
    watched = watch("prometheus-dcgm")
    watched.behind.frozen = True
    before = len(watched.behind.requests)
    watched.seen.wait(lambda: len(watched.behind.requests) > before + 2)
    count = len(watched.samples())
    watched.seen.wait(lambda: len(watched.behind.requests) > before + 8)
    assert len(watched.samples()) == count


def test_what_an_exporter_without_times_says_first_is_no_reading(watch: Any) -> None:
    """Of what is told first it is not known when it was so: only what is told anew after it counts."""
    watched = watch("prometheus-dcgm", before=lambda behind: setattr(behind, "frozen", True), state=None)
    watched.seen.wait(lambda: len(watched.behind.requests) > 4)
    assert len(watched.sets()) == 1
    assert watched.samples() == []
    watched.behind.frozen = False
    assert watched.next_sample(0).util == 0.92


def test_readings_come_as_seldom_as_the_exporter_makes_them(watch: Any) -> None:
    """Asked ten times a second, told anew twice a second: two readings a second, half a second apart."""
    watched = watch("prometheus-dcgm", refresh_seconds=0.5)
    watched.seen.wait(lambda: len(watched.samples(0)) >= 5)
    times = [sample.t for sample in watched.samples(0)]
    gaps = [b - a for a, b in pairwise(times)]
    assert all(0.35 <= gap <= 0.8 for gap in gaps), gaps


def test_a_value_of_before_has_the_time_of_then(watch: Any) -> None:
    """npu-exporter says when it read a value: that is the reading's time, and the value counts once."""
    old = partial(npu_text, unix=time.time() - 30.0, pids=(os.getpid(),))
    watched = watch("prometheus-npu", before=lambda behind: setattr(behind, "text", old))
    asked = len(watched.behind.requests)
    watched.seen.wait(lambda: len(watched.behind.requests) > asked + 4)
    samples = watched.samples(0)
    assert len(samples) == 1
    assert 29.0 < time.monotonic() - samples[0].t < 40.0


def test_an_exporter_that_is_stuck(watch: Any) -> None:
    """Nothing new for too long: its GPUs count as unread, and are read again when it goes on."""
    watched = watch("prometheus-dcgm", settings=replace(FAST, stale_seconds=0.8))
    watched.behind.frozen = True
    sample = watched.next_sample(5, lambda s: s.error is not None)
    assert sample.error == "the exporter has told nothing new for 0.8 s"
    assert watched.source.state == "up"
    watched.behind.frozen = False
    assert watched.next_sample(5, lambda s: s.error is None).util == 0.92


def test_no_exporter(watch: Any) -> None:
    """Nobody listens: a state, said in one word, that ends when somebody does."""
    watched = watch("prometheus-dcgm", before=lambda behind: behind.stop(), state="unreachable")
    assert watched.seen.facts == []
    watched.behind.start()
    watched.wait_state("up")


def test_an_exporter_that_is_started_anew(watch: Any) -> None:
    """While it is away its GPUs are unread; the sampler waits for it and reads on."""
    watched = watch("prometheus-dcgm")
    pid = watched.source.sampler_pid
    watched.behind.stop()
    assert "can't be read" in watched.next_sample(2, lambda s: s.error is not None).error
    watched.behind.start()
    assert watched.next_sample(2, lambda s: s.error is None).power_w == 549.0
    assert watched.source.sampler_pid == pid


def test_an_exporter_that_does_not_answer(watch: Any) -> None:
    """A server that takes the request and is silent is given up after its time."""
    watched = watch("prometheus-dcgm")
    watched.behind.hang.set()
    sample = watched.next_sample(0, lambda s: s.error is not None)
    assert sample.error is not None
    assert "no answer in time" in sample.error
    watched.behind.hang.clear()
    watched.next_sample(0, lambda s: s.error is None)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((302, {"Location": "http://127.0.0.1:1/elsewhere"}, b""), "answered with status 302"),
        ((500, {}, b"broken"), "answered with status 500"),
        ((200, {}, b"node_load1 0.3\n"), "has no metrics of dcgm-exporter, npu-exporter"),
        ((200, {}, b"x" * (9 << 20)), "answers with more than 8388608 bytes"),
        ((200, {}, b"\xff\x00{{{ 1\nDCGM_FI_DEV_GPU_UTIL{gpu= oops\n"), "tells nothing of it any more"),
    ],
)
def test_an_answer_that_is_no_exposition(watch: Any, answer: Any, said: str) -> None:
    """A redirect is not followed; an error, foreign metrics, too much or garbage is no reading."""
    watched = watch("prometheus-dcgm")
    watched.behind.answer = answer
    sample = watched.next_sample(0, lambda s: s.error is not None)
    assert said in sample.error
    assert set(watched.behind.requests) == {"/metrics"}


def test_a_gpu_that_the_exporter_forgets(watch: Any) -> None:
    """It is unread at first, and gone with the next look for GPUs."""
    watched = watch("prometheus-dcgm", settings=replace(FAST, identity_seconds=0.5))
    watched.behind.text = partial(dcgm_text, gpus=7)
    watched.seen.wait(lambda: len(watched.sets()[-1].gpus) == 7)
    lost = [sample.error for sample in watched.samples(7) if sample.error is not None]
    assert set(lost) <= {"the exporter tells nothing of it any more"}


def test_instances_are_not_the_gpu(watch: Any) -> None:
    """What is told of a MIG instance is not taken for the whole GPU's."""

    def with_instance(state: str, refresh: int) -> str:
        text = dcgm_text(state, refresh, gpus=1)
        part = text.replace('device="nvidia0"', 'device="nvidia0",GPU_I_ID="3"').replace(" 92.000000", " 7.0")
        return text + part

    watched = watch("prometheus-dcgm", before=lambda behind: setattr(behind, "text", with_instance))
    assert len(watched.sets()[0].gpus) == 1
    assert watched.next_sample(0).util == 0.92
