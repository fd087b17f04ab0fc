"""What holds for every source of GPU readings, whatever is behind it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ckpt_exporter.model import GpuSample, GpuSet
from ckpt_exporter.sources.gpus import GpuSource
from ckpt_exporter.sources.nvml import NvmlSettings, NvmlSource
from ckpt_exporter.sources.simulated import SimulatedGpus
from tests.integration.watching import Recorder
from tests.nvml_library import SPINNING, TRAINING, WRITING, SimulatedNvml, compile_library


@dataclass
class Backend:
    """A source with eight GPUs that train, and the ways to let them save."""

    source: GpuSource
    seen: Recorder
    library: SimulatedNvml | None = None
    state: str = "training"

    def set_state(self, state: str) -> None:
        self.state = state
        if self.library is not None:
            for gpu in range(8):
                waiting = WRITING if gpu == 0 else SPINNING
                self.library.set(gpu, **(TRAINING if state == "training" else waiting))

    def samples(self) -> list[GpuSample]:
        return [fact for fact in list(self.seen.facts) if isinstance(fact, GpuSample)]

    def wait_up(self) -> None:
        self.source.start()
        self.seen.wait(lambda: self.source.up and len(self.samples()) >= 24)


@pytest.fixture(scope="module")
def library_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(params=["nvml", "simulated"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    seen = Recorder()
    made: Backend
    if request.param == "nvml":
        library = SimulatedNvml(tmp_path, library=request.getfixturevalue("library_file"))
        for gpu in range(8):
            library.set_pids(gpu, [os.getpid()])
        settings = NvmlSettings(process_seconds=0.2, environment=library.environment())
        source: Any = NvmlSource(seen.emit, sample_hz=20.0, saving=lambda: False, settings=settings)
        made = Backend(source, seen, library)
    else:
        source = SimulatedGpus(
            seen.emit,
            sample_hz=20.0,
            state=lambda: made.state,
            pids=lambda: (os.getpid(),),  # type: ignore[arg-type, return-value]
        )
        made = Backend(source, seen)
    yield made
    source.stop()


def test_the_set_comes_first_and_names_every_gpu_read(backend: Backend) -> None:
    """The first fact lists the GPUs; each reading then has an index and a UUID of that list."""
    began = time.monotonic()
    backend.wait_up()
    first = backend.seen.facts[0]
    assert isinstance(first, GpuSet)
    known = {(info.gpu, info.uuid) for info in first.gpus}
    assert [info.gpu for info in first.gpus] == list(range(8))
    assert all(info.uuid and info.name and info.limit_w == 700.0 for info in first.gpus)
    assert {(sample.gpu, sample.uuid) for sample in backend.samples()} == known
    for gpu in range(8):
        times = [sample.t for sample in backend.samples() if sample.gpu == gpu]
        assert times == sorted(times)
        assert began <= times[0]
        assert times[-1] <= time.monotonic()


def test_readings_are_shares_and_watts(backend: Backend) -> None:
    """A GPU that trains: shares between 0 and 1, power below its limit, no error."""
    backend.wait_up()
    sample = backend.seen.wait(lambda: [sample for sample in backend.samples() if sample.sm is not None])[0]
    assert sample.error is None
    for name in ("util", "mem_util", "sm", "tensor", "dram"):
        assert 0.3 < getattr(sample, name) <= 1.0, name
    assert 450 < sample.power_w < 650
    assert sample.power_window_s == 0.0
    assert sample.pcie_bytes_per_second > 1e8
    assert sample.limit_w == 700.0


def test_a_save_shows_as_low_power_at_full_utilisation(backend: Backend) -> None:
    """While rank 0 writes, the seven that wait show 100 % and less than 28 % of their limit."""
    backend.wait_up()
    backend.set_state("saving")
    backend.seen.wait(
        lambda: [
            s for s in backend.samples()[-24:] if s.gpu == 7 and s.util == 1.0 and s.power_w < 0.28 * 700
        ]
    )
    backend.seen.wait(lambda: [s for s in backend.samples()[-24:] if s.gpu == 0 and s.util < 0.1])


def test_the_status_tells_what_happens(backend: Backend) -> None:
    """Down before the start, up with readings, processes and call times, down after the stop."""
    assert (backend.source.up, backend.source.healthy, backend.source.collected) == (False, True, 0)
    assert sum(backend.source.call_seconds.counts) == 0
    backend.wait_up()
    backend.seen.wait(lambda: backend.source.pids_by_gpu().get(7) == (os.getpid(),))
    assert backend.source.mapping_known
    assert set(backend.source.pids_by_gpu()) == set(range(8))
    calls = backend.source.call_seconds
    assert len(calls.counts) == len(calls.bounds) + 1
    assert sum(calls.counts) >= 8
    assert calls.sum >= 0.0
    assert backend.source.collected >= 24
    backend.source.stop()
    assert (backend.source.up, backend.source.healthy) == (False, True)


def test_nothing_comes_after_the_stop(backend: Backend) -> None:
    """Once stop has returned, no fact follows and no thread is left; a second stop is harmless."""
    threads = threading.active_count()
    backend.wait_up()
    backend.source.stop()
    count = len(backend.seen.facts)
    assert threading.active_count() == threads
    backend.source.stop()
    assert len(backend.seen.facts) == count


def test_released_until_resumed(backend: Backend) -> None:
    """Release reports every GPU unread and falls silent; resume begins with the set of GPUs again."""
    backend.wait_up()
    backend.source.release()
    count = len(backend.seen.facts)
    assert not backend.source.up
    last = backend.samples()[-8:]
    assert [(sample.gpu, sample.error) for sample in last] == [(gpu, "released") for gpu in range(8)]
    backend.source.resume()
    backend.seen.wait(lambda: len(backend.seen.facts) > count)
    assert isinstance(backend.seen.facts[count], GpuSet)
    backend.seen.wait(lambda: backend.source.up and backend.samples()[-1].error is None)


def test_it_can_be_stopped_before_it_was_started(backend: Backend) -> None:
    """A daemon that fails early stops what it has not started."""
    backend.source.stop()
    backend.source.release()
    assert not backend.source.up
