"""Reads NVIDIA GPUs through nvidia-ml-py; runs in the sampler's own process.

What a GPU does not tell is None, never 0. Per reading and GPU three calls reach the driver: utilisation, one
field (power) and, where supported, one sample of the GPM counters.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import pynvml

from ckpt_exporter.sources.nvml_calls import NvmlCalls
from ckpt_exporter.sources.nvml_direct import DirectCalls
from ckpt_exporter.sources.nvml_gpu import (
    AVERAGED_SECONDS,
    ENERGY,
    ERRORS,
    LASTING,
    POWER_AVERAGE,
    POWER_INSTANT,
    POWER_LIMIT,
    SMOOTHING,
    STATES,
    UNTOLD,
    Counters,
    Gpm,
    Gpu,
    error_code,
    power_usage_window,
    share,
)
from ckpt_exporter.sources.nvml_processes import NvmlProcesses
from ckpt_exporter.sources.sampler_pace import CallTimes
from ckpt_exporter.sources.sampler_reader import BackendDownError, Row

GPM_SPACING_SECONDS = 0.19  # the counters refresh every 100 ms; a little less than the fastest tick
GPM_GAP_SECONDS = 15.0  # a window this long says nothing about now
_NO_COUNTERS: Final[Counters] = (None, None, None, None, None)
_UNTOLD_ROW: Final[Row] = (None, None, None, None, *_NO_COUNTERS)


class NvmlReader:
    """All GPUs of this node, by ``library``, which the binding has loaded too.

    ``clock`` is monotonic seconds, every call's duration goes to ``times``.
    """

    def __init__(self, library: ctypes.CDLL, times: CallTimes, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        calls = NvmlCalls(times, clock)
        self._call, self._told, self._fields = calls.call, calls.told, calls.fields
        self._direct = DirectCalls(library, calls)
        self._processes = NvmlProcesses(calls)
        self.driver = ""
        self.gpus: list[Gpu] = []

    def open(self) -> None:
        """Initialise NVML once, for as long as this process lives; raises BackendDownError."""
        try:
            pynvml.nvmlInit()
            self.driver = str(pynvml.nvmlSystemGetDriverVersion())
        except ERRORS as error:
            raise _down(error) from error

    def close(self) -> None:
        """Release every handle; raises what NVML raises."""
        for gpu in self.gpus:
            if gpu.gpm is not None:
                gpu.gpm.free()
        pynvml.nvmlShutdown()

    @property
    def fast(self) -> bool:
        """Whether reading more often tells more: some reading is not an average over a second."""
        return any(gpu.gpm is not None or gpu.power_field == POWER_INSTANT for gpu in self.gpus)

    # --- which GPUs there are

    def enumerate(self) -> list[dict[str, Any]]:
        """Find the GPUs anew, by UUID; raises BackendDownError when NVML can't even count them."""
        try:
            count = self._call(pynvml.nvmlDeviceGetCount)
        except ERRORS as error:
            raise _down(error) from error
        known = {gpu.uuid: gpu for gpu in self.gpus if gpu.uuid}
        found = [self._find(index, known) for index in range(count)]
        self.gpus = [gpu or self._missing(index, known, found) for index, gpu in enumerate(found)]
        for gpu in known.values():
            if gpu not in self.gpus and gpu.gpm is not None:
                gpu.gpm.free()
        return [gpu.identity(self.driver) for gpu in self.gpus]

    def _find(self, index: int, known: dict[str, Gpu]) -> Gpu | None:
        try:
            handle = self._call(pynvml.nvmlDeviceGetHandleByIndex, index)
            uuid = str(self._call(pynvml.nvmlDeviceGetUUID, handle))
        except ERRORS:
            return None
        gpu = known.get(uuid) or Gpu(uuid)
        gpu.handle, gpu.index, gpu.error, gpu.code = handle, index, None, 0
        try:
            self._identify(gpu)
        except ERRORS as error:
            gpu.lose(error)
        return gpu

    def _missing(self, index: int, known: dict[str, Gpu], found: list[Gpu | None]) -> Gpu:
        """Say who can't be reached at an index: the one who stood there, unless found elsewhere."""
        present = {gpu.uuid for gpu in found if gpu is not None}
        before = [gpu for gpu in known.values() if gpu.index == index and gpu.uuid not in present]
        gpu = before[0] if before else Gpu("")
        gpu.index, gpu.handle = index, None
        if gpu.error is None:
            gpu.error, gpu.code = "the driver gives no handle", 0
        return gpu

    def _identify(self, gpu: Gpu) -> None:
        gpu.name = str(self._told(pynvml.nvmlDeviceGetName, gpu.handle) or gpu.name)
        modes = self._told(pynvml.nvmlDeviceGetMigMode, gpu.handle)
        gpu.mig = bool(modes and modes[0])
        gpu.has_util = True
        fields = self._fields(gpu.handle, POWER_INSTANT, POWER_AVERAGE, ENERGY, POWER_LIMIT, SMOOTHING)
        limit = fields.get(POWER_LIMIT)
        if limit is None:
            limit = self._told(pynvml.nvmlDeviceGetEnforcedPowerLimit, gpu.handle)
        gpu.limit_w = limit / 1000.0 if limit else None
        gpu.smoothing = bool(fields[SMOOTHING]) if SMOOTHING in fields else None
        self._choose_power(gpu, fields)
        if gpu.gpm is None:
            support = self._told(pynvml.nvmlGpmQueryDeviceSupport, gpu.handle)
            gpu.gpm = Gpm() if support is not None and support.isSupportedDevice else None

    def _choose_power(self, gpu: Gpu, fields: dict[int, int]) -> None:
        gpu.usage_window = None
        gpu.power_field = next(
            (number for number in (POWER_INSTANT, POWER_AVERAGE) if number in fields), None
        )
        if gpu.power_field is None:
            if self._told(pynvml.nvmlDeviceGetPowerUsage, gpu.handle) is not None:
                architecture = self._told(pynvml.nvmlDeviceGetArchitecture, gpu.handle) or 0
                gpu.usage_window = power_usage_window(architecture, gpu.name)
            elif ENERGY in fields:
                gpu.power_field = ENERGY

    # --- readings

    def read(self, gpu: Gpu) -> Row:
        """Read one GPU; never raises for NVML's errors: the last value tells why a GPU can't be read."""
        t, told = round(self._clock(), 6), _UNTOLD_ROW
        if gpu.handle is not None:
            try:
                told = (*self._utilisation(gpu), *self._power(gpu), *self._counters(gpu))
                gpu.error, gpu.code = None, 0
            except ERRORS as error:
                gpu.lose(error)
        if gpu.error is not None:
            return (t, gpu.index, *_UNTOLD_ROW[:-1], None, None, gpu.error)
        return (t, gpu.index, *told[:-1], gpu.limit_w, gpu.processes, None, told[-1])

    def _utilisation(self, gpu: Gpu) -> tuple[float | None, float | None]:
        if not gpu.has_util:
            return None, None
        try:
            busy, memory = self._direct.utilisation(gpu.handle)
        except ERRORS as error:
            if error_code(error) not in UNTOLD:
                raise
            gpu.has_util = error_code(error) not in LASTING
            return None, None
        return share(busy), share(memory)

    def _power(self, gpu: Gpu) -> tuple[float | None, float | None]:
        try:
            if gpu.usage_window is not None:
                return _watts(self._direct.power_usage(gpu.handle), gpu.usage_window)
            if gpu.power_field is None:
                return None, None
            value = self._direct.field(gpu.handle, gpu.power_field)
        except ERRORS as error:
            if error_code(error) not in UNTOLD:
                raise
            value = None
        if gpu.power_field == ENERGY:
            return self._power_from_energy(gpu, value)
        return _watts(value, AVERAGED_SECONDS if gpu.power_field == POWER_AVERAGE else 0.0)

    def _power_from_energy(self, gpu: Gpu, millijoules: int | None) -> tuple[float | None, float | None]:
        t, before = self._clock(), gpu.energy
        gpu.energy = None if millijoules is None else (t, millijoules)
        # The counter begins anew when the driver is loaded.
        if millijoules is None or before is None or millijoules < before[1] or t <= before[0]:
            return None, None
        seconds = t - before[0]
        return _watts(round((millijoules - before[1]) / seconds), round(seconds, 3))

    def _counters(self, gpu: Gpu) -> Counters:
        gpm = gpu.gpm
        now = self._clock()
        if gpm is None or now - gpm.t < GPM_SPACING_SECONDS:
            return _NO_COUNTERS
        age = now - gpm.t
        gpm.swap()
        gpm.t = -math.inf
        try:
            self._direct.take_gpm_sample(gpu.handle, gpm)
            gpm.t = now
            if age > GPM_GAP_SECONDS:
                return _NO_COUNTERS
            self._direct.compare_gpm_samples(gpm)
        except ERRORS as error:
            # Comparing two samples asks no GPU: its failure says nothing about one.
            if gpm.t < now and error_code(error) not in UNTOLD:
                raise
            if error_code(error) in LASTING:
                gpm.free()
                gpu.gpm = None
            return _NO_COUNTERS
        return gpm.values()

    # --- processes

    @property
    def mapping_known(self) -> bool:
        """Whether the pids last read exist here."""
        return self._processes.mapping_known

    def read_pids(self) -> dict[int, list[int]]:
        """List the compute processes of each GPU that can be read."""
        return self._processes.read(self.gpus)


def _watts(milliwatts: float | None, window_seconds: float) -> tuple[float | None, float | None]:
    return (None, None) if milliwatts is None else (milliwatts / 1000.0, window_seconds)


def _down(error: Exception) -> BackendDownError:
    code = error_code(error)
    return BackendDownError(STATES.get(code, "init_error"), f"{error} (NVML {code})")


def open_reader(
    library: Any, times: CallTimes, clock: Callable[[], float], _settings: Mapping[str, Any]
) -> NvmlReader:
    """Make the reader; ``library`` is the one that the binding will load, too."""
    return NvmlReader(library, times, clock=clock)
