"""What holds for every source of GPU readings, whatever is behind it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckpt_exporter.model import GpuSample, GpuSet
from tests.accelerators import BACKENDS, Accelerators
from tests.integration.watching import Recorder


class Backend:
    """A source with eight GPUs that train, and what it has told."""

    def __init__(self, seen: Recorder, accelerators: Accelerators) -> None:
        self.seen = seen
        self.known = accelerators
        self.source = accelerators.source

    def samples(self) -> list[GpuSample]:
        return [fact for fact in list(self.seen.facts) if isinstance(fact, GpuSample)]

    def wait_up(self) -> None:
        self.source.start()
        self.seen.wait(lambda: self.source.up and len(self.samples()) >= 24)


@pytest.fixture(params=list(BACKENDS))
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    seen = Recorder()
    with BACKENDS[request.param](tmp_path, seen.emit) as accelerators:
        made = Backend(seen, accelerators)
        yield made
        made.source.stop()


def test_the_set_comes_first_and_names_every_gpu_read(backend: Backend) -> None:
    """The first fact lists the GPUs; each reading then has an index and a UUID of that list."""
    began = time.monotonic()
    backend.wait_up()
    first = backend.seen.facts[0]
    assert isinstance(first, GpuSet)
    known = {(info.gpu, info.uuid) for info in first.gpus}
    assert [info.gpu for info in first.gpus] == list(range(8))
    assert all(info.uuid and info.name for info in first.gpus)
    assert {info.limit_w for info in first.gpus} == {backend.known.limit_w}
    assert all("simulated" in info.name for info in first.gpus)
    assert {(sample.gpu, sample.uuid) for sample in backend.samples()} == known
    for gpu in range(8):
        times = [sample.t for sample in backend.samples() if sample.gpu == gpu]
        assert times == sorted(times)
        assert began <= times[0]
        assert times[-1] <= time.monotonic()


def test_readings_are_shares_and_watts(backend: Backend) -> None:
    """A GPU that trains: what it tells are shares between 0 and 1 and its power; the rest is left out."""
    backend.wait_up()
    known = backend.known
    sample = backend.seen.wait(
        lambda: [s for s in backend.samples() if all(getattr(s, name) is not None for name in known.told)]
    )[0]
    assert sample.error is None
    for name in known.told:
        assert 0.3 < getattr(sample, name) <= 1.0, name
    untold = {"util", "mem_util", "sm", "tensor", "dram"} - set(known.told)
    assert [name for name in untold if getattr(sample, name) is not None] == []
    assert sample.power_w is not None
    assert abs(sample.power_w - known.working_w) < 0.12 * known.working_w
    assert sample.power_window_s is None or 0.0 <= sample.power_window_s < 2.0
    assert sample.pcie_bytes_per_second is None or sample.pcie_bytes_per_second > 1e8
    assert sample.limit_w == known.limit_w


def test_a_save_shows_on_gpus_that_wait(backend: Backend) -> None:
    """While another rank writes, what tells waiting from work changes on a GPU that waits."""
    backend.wait_up()
    assert not any(backend.known.waits(sample) for sample in backend.samples())
    backend.known.set_state("saving")
    backend.seen.wait(lambda: [s for s in backend.samples()[-24:] if s.gpu == 7 and backend.known.waits(s)])


def test_the_status_tells_what_happens(backend: Backend) -> None:
    """Down before the start, up with readings, processes and call times, down after the stop."""
    assert (backend.source.up, backend.source.healthy, backend.source.collected) == (False, True, 0)
    assert sum(backend.source.call_seconds.counts) == 0
    backend.wait_up()
    if backend.known.has_pids:
        backend.seen.wait(lambda: backend.source.pids_by_gpu().get(7) == (os.getpid(),))
        assert backend.source.mapping_known
        assert set(backend.source.pids_by_gpu()) == set(range(8))
    else:
        assert (backend.source.pids_by_gpu(), backend.source.mapping_known) == ({}, False)
    calls = backend.source.call_seconds
    assert len(calls.counts) == len(calls.bounds) + 1
    assert sum(calls.counts) >= 3
    assert calls.sum >= 0.0
    assert backend.source.collected >= 24
    backend.source.stop()
    assert (backend.source.up, backend.source.healthy) == (False, True)


def test_nothing_comes_after_the_stop(backend: Backend) -> None:
    """Once stop has returned, no fact follows and no thread is left; a second stop is harmless."""
    backend.wait_up()
    backend.source.stop()
    count = len(backend.seen.facts)
    assert {"sampler", "simulated-gpus"}.isdisjoint(thread.name for thread in threading.enumerate())
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
