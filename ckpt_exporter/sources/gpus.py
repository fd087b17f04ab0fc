"""What every source of GPU readings offers, whatever the accelerator."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

from ckpt_exporter.model import Histogram
from ckpt_exporter.sources.sampler_pace import CALL_BOUNDS_SECONDS, bucket_of


class GpuSource(Protocol):
    """Emits a GpuSet first and after every change, then GpuSamples; never raises into its user."""

    def start(self) -> None:
        """Begin, in a thread of its own."""

    def stop(self) -> None:
        """End within a second, with every handle released."""

    def release(self) -> None:
        """Give all handles back and stay away until ``resume`` or for a bounded time."""

    def resume(self) -> None:
        """Come back after ``release``."""

    @property
    def up(self) -> bool:
        """Whether readings arrive."""

    @property
    def healthy(self) -> bool:
        """Whether there is no failure that only a restart of the container could cure."""

    @property
    def collected(self) -> int:
        """Readings of single GPUs so far."""

    @property
    def call_seconds(self) -> Histogram:
        """Durations of driver calls so far."""

    def pids_by_gpu(self) -> dict[int, tuple[int, ...]]:
        """Return the compute processes last seen on each GPU, by index."""

    @property
    def mapping_known(self) -> bool:
        """Whether those pids are known to be this namespace's."""


class SourceThread(ABC):
    """The life of a GPU source's thread: it starts, stays away while released, and ends within a second."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._away = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start sampling in a thread of its own."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop within a second; a second call does nothing."""
        self._stopping.set()
        self._wake()
        if self._thread is not None:
            self._thread.join(0.95)
            if self._thread.is_alive():
                return
        self._thread = None
        self._stopped()

    def release(self) -> None:
        """Give up all handles, so that a GPU reset or a driver unload is not blocked; wait for that."""
        if self._thread is None:
            return
        self._away.clear()
        self._set_released(released=True)
        self._wake()
        self._away.wait(1.0)

    def resume(self) -> None:
        """Start sampling again after ``release``."""
        self._set_released(released=False)
        self._wake()

    @abstractmethod
    def _run(self) -> None:
        """Sample until ``_stopping`` is set; set ``_away`` once released."""

    @abstractmethod
    def _wake(self) -> None:
        """End the thread's present wait."""

    @abstractmethod
    def _set_released(self, *, released: bool) -> None:
        """Note whether the thread shall stay away."""

    @abstractmethod
    def _stopped(self) -> None:
        """Give back what the thread needed."""


class CallHistogram:
    """Counts of call durations that many threads may read."""

    def __init__(self) -> None:
        self._counts = [0] * (len(CALL_BOUNDS_SECONDS) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def add(self, counts: Sequence[int], seconds: float) -> None:
        """Add counts per bucket and the sum of their durations."""
        with self._lock:
            self._counts = [old + new for old, new in zip(self._counts, counts, strict=True)]
            self._sum += seconds

    def note(self, seconds: float) -> None:
        """Add one duration."""
        counts = [0] * len(self._counts)
        counts[bucket_of(seconds)] = 1
        self.add(counts, seconds)

    def histogram(self) -> Histogram:
        """Return a copy."""
        with self._lock:
            return Histogram(bounds=CALL_BOUNDS_SECONDS, counts=tuple(self._counts), sum=self._sum)


def pids_by_index(listed: Mapping[str, Sequence[int]]) -> dict[int, tuple[int, ...]]:
    """Turn a JSON object of lists back into numbers."""
    return {int(gpu): tuple(pids) for gpu, pids in listed.items()}
