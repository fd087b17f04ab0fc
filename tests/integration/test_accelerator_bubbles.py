"""One save on each kind of accelerator, from its library or exporter to the bubble, at a clock of our own.

The readers are the real ones, in this process; behind them are the simulated library, module and exporters.
The truth: eight devices train, wait for the time of the save, and train on.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import time
import types
from collections.abc import Callable
from functools import partial
from math import floor
from pathlib import Path
from typing import Any

import pytest

from ckpt_exporter.bubble.detector import BubbleDetector
from ckpt_exporter.model import Bubble, GpuInfo, GpuSample, GpuSet, GpuStatus
from ckpt_exporter.sources import amdsmi_reader, dcmi_reader
from ckpt_exporter.sources.exposition_reader import ExpositionReader
from ckpt_exporter.sources.sampler_pace import CallTimes
from tests.amdsmi_module import SimulatedAmdSmi
from tests.dcmi_library import AI_CORE, AI_CUBE, HBM_BANDWIDTH, VECTOR_CORE, SimulatedDcmi, compile_library
from tests.exporters import amd_text, dcgm_text, npu_text
from tests.gpu_profiles import job, save

ALL = tuple(range(8))


class Clock:
    """Monotonic seconds and Unix time that move when told."""

    def __init__(self) -> None:
        self.t = 1000.0

    def __call__(self) -> float:
        return self.t

    def unix(self) -> float:
        return self.t + 1.7e9


class Outcome:
    """The bubble of the one save, and what was known of the devices in its middle."""

    def __init__(
        self, bubble: Bubble, before: GpuStatus, middle: GpuStatus, samples: list[GpuSample]
    ) -> None:
        self.bubble = bubble
        self.before = before
        self.middle = middle
        self.samples = samples


def play(
    reader: Any,
    clock: Clock,
    set_state: Callable[[str], None],
    *,
    length: float = 20.0,
    tail: float = 0.0,
    hz: float = 2.0,
    start: float = 1300.0,
) -> Outcome:
    """Train, save for ``length`` seconds from ``start`` on, wait on for ``tail`` seconds, train on.

    At each moment: a reading, then a change of state.
    """
    detector, bubbles, samples = BubbleDetector(), [], []
    reader.open()
    infos = tuple(GpuInfo(**identity) for identity in reader.enumerate())
    detector.feed(GpuSet(clock.t, infos))
    detector.feed(job(ALL, t=clock.t))
    before = middle = None
    reader.read_pids()
    while clock.t < start + length + tail + 150.0:
        for gpu in reader.gpus:
            row = reader.read(gpu)
            if row is not None:
                samples.append(GpuSample(row[0], row[1], infos[row[1]].uuid, *row[2:]))
                detector.feed(samples[-1])
        if clock.t == start:
            before = detector.statuses(clock.t)[7]
            set_state("saving")
            detector.save_began("d", "/data/d/step-1", start)
        if clock.t == start + length:
            middle = detector.statuses(clock.t)[7]
            detector.save_ended(save(start, start + length))
        if clock.t == start + length + tail:
            set_state("training")
        bubbles += [result for result in detector.tick(clock.t) if isinstance(result, Bubble)]
        clock.t += 1.0 / hz
    assert before is not None
    assert middle is not None
    assert len(bubbles) == 1
    return Outcome(bubbles[0], before, middle, samples)


def check(outcome: Outcome, seconds: float, error: float, source: str, quality: str) -> None:
    bubble = outcome.bubble
    assert (bubble.skipped, bubble.source, bubble.quality) == (None, source, quality)
    assert bubble.gpu_seconds == {gpu: pytest.approx(seconds, abs=error) for gpu in ALL}
    assert outcome.before.activity == pytest.approx(1.0, abs=0.05)
    assert outcome.middle.activity == pytest.approx(0.0, abs=0.05)
    assert (outcome.middle.source, outcome.middle.quality) == (source, quality)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ascend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimulatedDcmi:
    behind = SimulatedDcmi(tmp_path, library=compile_library(tmp_path / "dcmi"))
    monkeypatch.setenv("SIMULATED_DCMI_STATE", str(behind.path))
    for npu in ALL:
        behind.set_pids(npu, [os.getpid()])
    return behind


def _dcmi(behind: SimulatedDcmi, clock: Clock) -> Any:
    return dcmi_reader.open_reader(ctypes.CDLL(str(behind.library)), CallTimes(), clock, {})


def test_ascend_by_dcmi(ascend: SimulatedDcmi, clock: Clock) -> None:
    """20 s of idle cube units cost each NPU 20 s; quality low, as waiting was never seen on hardware."""
    outcome = play(_dcmi(ascend, clock), clock, ascend.set_state)
    check(outcome, 20.0, 0.3, "gpm", "low")
    assert outcome.bubble.start == pytest.approx(1300.0, abs=0.3)
    assert outcome.bubble.end == pytest.approx(1320.0, abs=0.3)


def test_ascend_whose_collectives_spin_on_vector_units(ascend: SimulatedDcmi, clock: Clock) -> None:
    """Vector units busy with waiting do not hide it: cube units and memory say that nothing is done."""

    def set_state(state: str) -> None:
        ascend.set_state(state)
        if state == "saving":
            for npu in ALL:
                ascend.set_rates(npu, {VECTOR_CORE: 20})

    check(play(_dcmi(ascend, clock), clock, set_state), 20.0, 0.3, "gpm", "low")


def test_a_profiler_on_ascend_makes_no_bubble(ascend: SimulatedDcmi, clock: Clock) -> None:
    """While a profiler makes the units read 0 through a save that costs nothing, nothing is lost."""

    def set_state(state: str) -> None:
        if state == "saving":
            for npu in ALL:
                ascend.set_rates(npu, {AI_CORE: 0, AI_CUBE: 0, VECTOR_CORE: 0, HBM_BANDWIDTH: 52})
        else:
            ascend.set_state("training")

    bubble = play(_dcmi(ascend, clock), clock, set_state).bubble
    assert bubble.skipped is not None or bubble.seconds == pytest.approx(0.0, abs=0.3)


def test_amd_by_amdsmi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    """GPU 0 writes at 160 W, seven spin at 100 % and 180 W: all eight lose the 20 s, told by power."""
    behind = SimulatedAmdSmi(tmp_path)
    for gpu in ALL:
        behind.set(gpu, pids=[os.getpid()])
    monkeypatch.setenv("SIMULATED_AMDSMI_STATE", str(behind.path))
    monkeypatch.setitem(sys.modules, "amdsmi", _module(clock))
    reader = amdsmi_reader.open_reader(None, CallTimes(), clock, {})
    outcome = play(reader, clock, behind.set_state)
    check(outcome, 20.0, 0.3, "power", "low")
    # Means over each reading's own time: work and waiting never mix but in the reading of the change.
    assert {round(s.power_w) for s in outcome.samples if s.gpu == 7 and s.power_window_s} == {640, 180}


def _module(clock: Clock) -> Any:
    place = Path(__file__).parents[1] / "amdsmi_module" / "amdsmi.py"
    spec = importlib.util.spec_from_file_location("simulated_amdsmi", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.time = types.SimpleNamespace(monotonic=clock, sleep=time.sleep)  # type: ignore[attr-defined]
    return module


class Served:
    """An exposition made anew every ``refresh`` seconds of our clock."""

    url = "http://simulated/metrics"

    def __init__(self, clock: Clock, text: Callable[..., str], refresh: float) -> None:
        self._clock = clock
        self._text = text
        self._refresh = refresh
        self.asked: list[float] = []
        self.takes = 0.0
        self._changes: list[tuple[float, str]] = [(0.0, "training")]

    def set_state(self, state: str) -> None:
        self._changes.append((self._clock.t, state))

    def fetch(self) -> str:
        self.asked.append(self._clock.t)
        self._clock.t += self.takes
        # A third of a second past the full one: neither with the changes nor with the readings.
        number = floor((self._clock.t - 0.33) / self._refresh)
        made = number * self._refresh + 0.33
        state = [state for since, state in self._changes if since <= made][-1]
        return self._text(state, number, unix=made + 1.7e9)


def _exposition(clock: Clock, text: Callable[..., str], refresh: float) -> tuple[Any, Any]:
    served = Served(clock, text, refresh)
    reader = ExpositionReader(
        served,  # type: ignore[arg-type]
        CallTimes(),
        poll_seconds=1.0,
        stale_seconds=65.0,
        clock=clock,
        unix=clock.unix,
    )
    return reader, served


@pytest.mark.parametrize(
    ("text", "source"),
    [
        (dcgm_text, "gpm"),
        (partial(npu_text, pids=(os.getpid(),)), "gpm"),
        (amd_text, "power_utilization"),
    ],
)
def test_by_an_exporter_that_is_asked_every_second(
    clock: Clock, text: Callable[..., str], source: str
) -> None:
    """Made anew each second: 20 s to half a second; high only where waiting was seen on such hardware."""
    reader, served = _exposition(clock, text, 1.0)
    quality = "high" if text is dcgm_text else "low"
    check(play(reader, clock, served.set_state), 20.0, 0.6, source, quality)


@pytest.mark.parametrize(("refresh", "length"), [(5.0, 40.0), (15.0, 90.0)])
def test_by_an_exporter_of_coarse_resolution(clock: Clock, refresh: float, length: float) -> None:
    """Made anew every 5 or 15 s: right to one interval, and of low quality, though these are H100."""
    reader, served = _exposition(clock, dcgm_text, refresh)
    outcome = play(reader, clock, served.set_state, length=length)
    check(outcome, length, refresh, "gpm", "low")
    assert len(outcome.samples) == pytest.approx(8 * (450.0 + length) / refresh, abs=16)


def test_a_wait_beyond_the_last_byte_by_coarse_readings(clock: Clock) -> None:
    """GPUs that wait 20 s longer than the save are waited for, though readings come every 5 s only."""
    reader, served = _exposition(clock, dcgm_text, 5.0)
    check(play(reader, clock, served.set_state, length=40.0, tail=20.0), 60.0, 5.0, "gpm", "low")


def test_by_an_exporter_that_is_too_coarse(clock: Clock) -> None:
    """Made anew every 30 s there is no figure, and it is said why."""
    reader, served = _exposition(clock, dcgm_text, 30.0)
    bubble = play(reader, clock, served.set_state, length=45.0).bubble
    assert (bubble.skipped, bubble.seconds) == ("no_baseline", None)


@pytest.mark.parametrize(("takes", "times"), [(0.02, 60), (3.0, 15)])
def test_an_exporter_is_asked_once_a_second_at_most(clock: Clock, takes: float, times: int) -> None:
    """With every second tick of half a second; one that answers in 3 s gets a second of rest between."""
    reader, served = _exposition(clock, dcgm_text, 1.0)
    reader.open()
    reader.enumerate()
    served.asked.clear()
    served.takes = takes
    tick = clock.t = 1001.0
    while tick < 1061.0:
        clock.t = max(clock.t, tick)
        for gpu in reader.gpus:
            reader.read(gpu)
        tick = max(tick + 0.5, clock.t)
    assert len(served.asked) == pytest.approx(times, abs=1)
