"""Simulated GPUs that follow a training's state: for demonstrations and tests on machines without a GPU."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from ckpt_exporter.logs import log_event
from ckpt_exporter.model import Fact, GpuInfo, GpuSample, GpuSet, Histogram
from ckpt_exporter.sources.gpus import CallHistogram, SourceThread

_LOG = logging.getLogger("ckpt_exporter.gpu")

TrainingState = Literal["training", "saving", "waiting", "loading", "stopped"]
STATES: Final[tuple[TrainingState, ...]] = ("training", "saving", "waiting", "loading", "stopped")

NAME = "NVIDIA H100 80GB HBM3 (simulated)"
DRIVER = "simulated"
LIMIT_W = 700.0
# Ripple seen on GPUs that train steadily: 2 % of the power, 4 points of utilisation.
POWER_RIPPLE = 0.02
UTIL_RIPPLE = 0.04


@dataclass(frozen=True, slots=True)
class Levels:
    """Mean readings of one GPU: shares 0..1, watts, bytes per second."""

    util: float
    mem_util: float
    power_w: float
    sm: float
    tensor: float
    dram: float
    pcie_bytes_per_second: float = 0.0


# Utilisation and power as recorded on 8 x H100; a GPU that spins in a collective looks busy and draws little.
TRAINING: Final = Levels(0.92, 0.55, 549.0, sm=0.82, tensor=0.48, dram=0.55, pcie_bytes_per_second=3e8)
SPINNING: Final = Levels(1.0, 0.01, 153.0, sm=0.15, tensor=0.0, dram=0.01)
WRITING: Final = Levels(0.03, 0.01, 150.0, sm=0.01, tensor=0.0, dram=0.01, pcie_bytes_per_second=9e9)
LOADING: Final = Levels(0.02, 0.01, 150.0, sm=0.01, tensor=0.0, dram=0.02, pcie_bytes_per_second=9e9)
STOPPED: Final = Levels(0.0, 0.0, 75.0, sm=0.0, tensor=0.0, dram=0.0)


def levels_of(state: TrainingState, gpu: int) -> Levels:
    """Return a GPU's mean readings.

    While saving, GPU 0 writes and the others wait for it in a collective. While ``waiting`` all GPUs of the
    node do, for a rank of another node.
    """
    if state == "saving":
        return WRITING if gpu == 0 else SPINNING
    return {"training": TRAINING, "waiting": SPINNING, "loading": LOADING, "stopped": STOPPED}[state]


def read_training_state(path: str) -> TrainingState:
    """Read the one word that a training keeps in a file; ``stopped`` if there is none that is known."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            word = stream.read(64).strip()
    except OSError:
        return "stopped"
    return next((state for state in STATES if state == word), "stopped")


def write_training_state(path: str, state: TrainingState) -> None:
    """Replace the file atomically; it must not lie in a watched directory. Raises OSError."""
    temporary = f"{path}.new"
    with open(temporary, "w", encoding="utf-8") as stream:
        stream.write(state)
    os.replace(temporary, path)


class SimulatedGpus(SourceThread):
    """GPUs that do what ``state`` says, sampled like real ones; everything about them says simulated.

    ``pids`` are the training's processes; ``seed`` makes the ripple repeatable. ``emit`` and ``state`` are
    called from one thread of this source. ``node`` tells the GPUs of several
    simulated nodes apart, 0 to 65535.
    """

    def __init__(
        self,
        emit: Callable[[Fact], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        count: int = 8,
        state: Callable[[], TrainingState],
        sample_hz: float = 2.0,
        pids: Callable[[], tuple[int, ...]] = tuple,
        seed: int = 0,
        node: int = 0,
    ) -> None:
        super().__init__("simulated-gpus")
        self._emit = emit
        self._clock = clock
        self._state = state
        self._interval_seconds = 1.0 / sample_hz
        self._pids = pids
        self._random = random.Random(seed)
        self._calls = CallHistogram()
        self.gpus = tuple(
            GpuInfo(
                gpu=gpu,
                uuid=f"GPU-51a01a7e-0000-0000-{node:04x}-{gpu:012d}",
                name=NAME,
                driver=DRIVER,
                limit_w=LIMIT_W,
                power_smoothing=False,
            )
            for gpu in range(count)
        )
        self._collected = 0
        self._up = False
        self._present: TrainingState = "stopped"
        self._released = False
        self._changed = threading.Event()

    def _wake(self) -> None:
        self._changed.set()

    def _stopped(self) -> None:
        self._up = False

    def _set_released(self, *, released: bool) -> None:
        self._released = released

    @property
    def up(self) -> bool:
        """Whether readings arrive."""
        return self._up

    @property
    def healthy(self) -> bool:
        """Always: there is nothing that could fail."""
        return True

    @property
    def collected(self) -> int:
        """Readings of single GPUs so far."""
        return self._collected

    @property
    def call_seconds(self) -> Histogram:
        """Durations of simulated driver calls, one per reading."""
        return self._calls.histogram()

    def pids_by_gpu(self) -> dict[int, tuple[int, ...]]:
        """Return the training's processes for every GPU, none while it is stopped."""
        pids = () if self._present == "stopped" else self._pids()
        return {info.gpu: pids for info in self.gpus}

    @property
    def mapping_known(self) -> bool:
        """Whether those pids are this namespace's: they are, while there are any."""
        return self._up

    def _run(self) -> None:
        while not self._stopping.is_set():
            began = self._clock()
            try:
                self._step(began)
            except Exception as error:  # noqa: BLE001 (thread boundary: a demonstration must go on)
                log_event(_LOG, logging.ERROR, "simulated GPU sampling failed", error=error)
            self._changed.wait(max(0.0, self._interval_seconds - (self._clock() - began)))
            self._changed.clear()

    def _step(self, now: float) -> None:
        if not self._released:
            self._tick(now)
            return
        if self._up:
            self._up = False
            for info in self.gpus:
                self._emit(GpuSample(t=now, gpu=info.gpu, uuid=info.uuid, error="released"))
        self._away.set()

    def _tick(self, now: float) -> None:
        if not self._up:
            self._emit(GpuSet(t=now, gpus=self.gpus))
            self._up = True
        self._present = self._state()
        for info in self.gpus:
            began = self._clock()
            sample = self._sample(info, began)
            self._calls.note(max(0.0, self._clock() - began))
            self._collected += 1
            self._emit(sample)

    def _sample(self, info: GpuInfo, t: float) -> GpuSample:
        levels = levels_of(self._present, info.gpu)
        busy = levels.util > 0.0
        return GpuSample(
            t=t,
            gpu=info.gpu,
            uuid=info.uuid,
            util=self._ripple(levels.util, UTIL_RIPPLE if levels is TRAINING else 0.0),
            mem_util=self._ripple(levels.mem_util, UTIL_RIPPLE if levels is TRAINING else 0.0),
            power_w=round(max(0.0, self._random.gauss(levels.power_w, POWER_RIPPLE * levels.power_w)), 1),
            power_window_s=0.0,
            sm=self._ripple(levels.sm, POWER_RIPPLE * levels.sm),
            tensor=self._ripple(levels.tensor, POWER_RIPPLE * levels.tensor),
            dram=self._ripple(levels.dram, POWER_RIPPLE * levels.dram),
            pcie_bytes_per_second=levels.pcie_bytes_per_second,
            limit_w=LIMIT_W,
            processes=1 if busy else 0,
        )

    def _ripple(self, mean: float, deviation: float) -> float:
        return round(min(1.0, max(0.0, self._random.gauss(mean, deviation))), 4)
