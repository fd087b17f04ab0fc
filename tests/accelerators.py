"""Every backend of accelerator readings with something simulated behind it, driven the same way."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ckpt_exporter.model import Fact, GpuSample
from ckpt_exporter.sources.gpus import GpuSource
from ckpt_exporter.sources.sampler import SampledGpus, SamplerSettings
from ckpt_exporter.sources.simulated import SimulatedGpus
from tests import dcmi_library, nvml_library
from tests.amdsmi_module import SimulatedAmdSmi
from tests.exporters import SimulatedExporter, amd_text, dcgm_text, npu_text

FAST = SamplerSettings(process_seconds=0.2, poll_seconds=0.1, retry_seconds=0.2, retry_max_seconds=0.4)


@dataclass
class Accelerators:
    """A source with eight GPUs that train, what is behind it, and what of it differs between backends.

    ``told`` are the shares that such a GPU tells, ``limit_w`` its power limit, ``working_w`` its power in
    training; ``waits`` tells from a reading that the GPU waits for a save.
    """

    source: GpuSource
    set_state: Callable[[str], None]
    waits: Callable[[GpuSample], bool]
    told: tuple[str, ...]
    working_w: float
    limit_w: float | None
    has_pids: bool = True
    behind: Any = None
    facts: list[Fact] = field(default_factory=list)

    def samples(self) -> list[GpuSample]:
        return [fact for fact in list(self.facts) if isinstance(fact, GpuSample)]


Make = Callable[..., Any]
ALL_SHARES = ("util", "mem_util", "sm", "tensor", "dram")


def _spins(limit_w: float) -> Callable[[GpuSample], bool]:
    return lambda s: s.util == 1.0 and s.power_w is not None and s.power_w < 0.28 * limit_w


def _rests(sample: GpuSample) -> bool:
    return sample.tensor == 0.0 and sample.dram == 0.01


def _once(folder: Path, name: str, compiled: Callable[[Path], Path]) -> Path:
    """Compile a library beside the folders of all tests of this run, unless one of them has."""
    place = folder.parent / f"library-{name}"
    return next(place.glob("*.so*"), None) or compiled(place)


@contextmanager
def nvml(folder: Path, emit: Callable[[Fact], None], **options: Any) -> Iterator[Accelerators]:
    library = nvml_library.SimulatedNvml(folder, library=_once(folder, "nvml", nvml_library.compile_library))

    def set_state(state: str) -> None:
        for gpu in range(8):
            waiting = nvml_library.WRITING if gpu == 0 else nvml_library.SPINNING
            library.set(gpu, **(nvml_library.TRAINING if state == "training" else waiting))

    for gpu in range(8):
        library.set_pids(gpu, [os.getpid()])
    source = _sampled("nvml", emit, environment=library.environment(), **options)
    yield Accelerators(source, set_state, _spins(700), ALL_SHARES, 549.0, 700.0, behind=library)
    library.close()


@contextmanager
def simulated(folder: Path, emit: Callable[[Fact], None], **options: Any) -> Iterator[Accelerators]:
    state = ["training"]
    source = SimulatedGpus(
        emit,
        sample_hz=options.get("sample_hz", 20.0),
        state=lambda: state[0],  # type: ignore[arg-type, return-value]
        pids=lambda: (os.getpid(),),
    )
    yield Accelerators(source, lambda new: state.__setitem__(0, new), _spins(700), ALL_SHARES, 549.0, 700.0)


@contextmanager
def dcmi(
    folder: Path, emit: Callable[[Fact], None], *, only_second: bool = False, **options: Any
) -> Iterator[Accelerators]:
    compiled = partial(dcmi_library.compile_library, only_second=only_second)
    library = _once(folder, f"dcmi-{only_second}", compiled)
    behind = dcmi_library.SimulatedDcmi(folder, library=library)
    for npu in range(8):
        behind.set_pids(npu, [os.getpid()])
    source = _sampled("dcmi", emit, environment=behind.environment(), **options)
    yield Accelerators(source, behind.set_state, _rests, ALL_SHARES, 310.2, None, behind=behind)


@contextmanager
def amdsmi(folder: Path, emit: Callable[[Fact], None], **options: Any) -> Iterator[Accelerators]:
    behind = SimulatedAmdSmi(folder)
    for gpu in range(8):
        behind.set(gpu, pids=[os.getpid()])
    source = _sampled("amdsmi", emit, environment=behind.environment(), **options)
    yield Accelerators(
        source, behind.set_state, _spins(750), ("util", "mem_util"), 640.0, 750.0, behind=behind
    )


@contextmanager
def exporter(
    text: Callable[..., str], known: Accelerators, emit: Callable[[Fact], None], **options: Any
) -> Iterator[Accelerators]:
    behind = SimulatedExporter(text, refresh_seconds=options.pop("refresh_seconds", 0.1))
    behind.start()
    source = _sampled("prometheus", emit, url=behind.url, **options)
    yield replace(known, source=source, set_state=behind.set_state, behind=behind)
    behind.stop()


_NONE: Any = None
_DCGM = Accelerators(_NONE, _NONE, _spins(700), ALL_SHARES, 549.0, 700.0, has_pids=False)
_NPU = Accelerators(_NONE, _NONE, _rests, ALL_SHARES, 310.2, None)
_AMD = Accelerators(_NONE, _NONE, _spins(750), ("util", "mem_util"), 640.0, None, has_pids=False)


def _exporter(known: Accelerators, text: Callable[..., str]) -> Make:
    return lambda _folder, emit, **options: exporter(text, known, emit, **options)


BACKENDS: dict[str, Make] = {
    "nvml": nvml,
    "simulated": simulated,
    "dcmi": dcmi,
    "dcmi-second": partial(dcmi, only_second=True),
    "amdsmi": amdsmi,
    "prometheus-dcgm": _exporter(_DCGM, dcgm_text),
    "prometheus-npu": _exporter(_NPU, partial(npu_text, pids=(os.getpid(),))),
    "prometheus-amd": _exporter(_AMD, amd_text),
}


def _sampled(
    backend: str,
    emit: Callable[[Fact], None],
    *,
    sample_hz: float = 20.0,
    settings: SamplerSettings = FAST,
    environment: dict[str, str] | None = None,
    url: str | None = None,
    saving: Callable[[], bool] = lambda: False,
) -> SampledGpus:
    settings = replace(settings, environment=environment or {}, url=url)
    return SampledGpus(emit, backend=backend, sample_hz=sample_hz, saving=saving, settings=settings)
