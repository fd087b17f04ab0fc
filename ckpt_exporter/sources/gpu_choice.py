"""Which source of GPU readings runs: the configured one, or that of the accelerator that is here."""

from __future__ import annotations

import glob
from collections.abc import Callable

from ckpt_exporter.model import Fact
from ckpt_exporter.sources.backends import BACKENDS, present_backend
from ckpt_exporter.sources.gpus import GpuSource
from ckpt_exporter.sources.sampler import SampledGpus, SamplerSettings
from ckpt_exporter.sources.simulated import SimulatedGpus

# Makes the source of GPU readings from where its facts go and whether a save is open.
GpuSourceMaker = Callable[[Callable[[Fact], None], Callable[[], bool]], GpuSource]


def choose_gpus(backend: str, sample_hz: float, url: str) -> tuple[str, GpuSourceMaker | None]:
    """Choose the source of GPU readings; ``auto`` takes the accelerator whose driver shows, else none."""
    if backend == "auto":
        backend = present_backend(glob.iglob) or "none"
    if backend in BACKENDS:
        settings = SamplerSettings(url=url)
        return backend, lambda emit, saving: SampledGpus(
            emit, backend=backend, sample_hz=sample_hz, saving=saving, settings=settings
        )
    if backend == "simulated":
        return backend, lambda emit, saving: SimulatedGpus(
            emit, sample_hz=sample_hz, state=lambda: "saving" if saving() else "training"
        )
    return backend, None
