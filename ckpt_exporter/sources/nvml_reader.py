"""Reads NVIDIA GPUs through nvidia-ml-py; runs in the sampler's own process.

What a GPU does not tell is left out of its readings, never 0. Per reading and GPU three calls reach the
driver: utilisation, one field (power) and, where supported, one sample of the GPM counters.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Callable
from typing import Any, Final

import pynvml

from ckpt_exporter.sources.nvml_pace import CallTimes

Reading = dict[str, Any]

# Numbers of the NVML API (nvml.h); older versions of the binding do not name them all.
POWER_AVERAGE, POWER_INSTANT, ENERGY, POWER_LIMIT, SMOOTHING = 185, 186, 83, 190, 251
SM_UTIL, ANY_TENSOR, DRAM_UTIL, PCIE_TX, PCIE_RX = 2, 5, 10, 20, 21
GPM_METRICS: Final = (SM_UTIL, ANY_TENSOR, DRAM_UTIL, PCIE_TX, PCIE_RX)
NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, NO_DATA, NOT_READY = 3, 4, 13, 21, 27
VERSION_ARGUMENT, DEPRECATED = 25, 26
AMPERE_ARCHITECTURE = 7
# Codes that say "this GPU does not tell that", as opposed to "this GPU can't be read".
UNTOLD: Final = frozenset(
    {NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, NO_DATA, NOT_READY, VERSION_ARGUMENT, DEPRECATED}
)
LASTING: Final = UNTOLD - {NO_DATA, NOT_READY}
# nvml.h: on Ampere (except GA100) or newer, power is averaged over one second; else it is instantaneous.
AVERAGED_SECONDS = 1.0
_GA100 = re.compile(r"\b(A100|A800|A30)(?!\d)")
GPM_SPACING_SECONDS = 0.19  # the counters refresh every 100 ms; a little less than the fastest tick
GPM_GAP_SECONDS = 15.0  # a window this long says nothing about now
MIB = 1024 * 1024
# nvidia-ml-py raises the second one, where it has it, for a structure that the driver knows otherwise.
ERRORS: Final[tuple[type[Exception], ...]] = (
    pynvml.NVMLError,
    getattr(pynvml, "NVMLLibraryMismatchError", pynvml.NVMLError),
)


def error_code(error: Exception) -> int:
    """Return the code of an NVML error; 25 (version of an argument) for the binding's own."""
    value = getattr(error, "value", VERSION_ARGUMENT)
    return value if isinstance(value, int) else VERSION_ARGUMENT


def power_usage_window(architecture: int, name: str) -> float:
    """Return over how many seconds the driver averages the plain power reading of a GPU."""
    if architecture < AMPERE_ARCHITECTURE or _GA100.search(name):
        return 0.0
    return AVERAGED_SECONDS


def share(percent: float) -> float | None:
    """Turn percent into 0..1; None if it is no such number."""
    if not math.isfinite(percent) or percent < 0:
        return None
    return round(min(percent, 100.0) / 100.0, 4)


class Gpm:
    """Two samples of one GPU's GPM counters that swap places, and the request that compares them."""

    __slots__ = ("_metrics", "_older", "newer", "request", "t")

    def __init__(self) -> None:
        self.request = pynvml.c_nvmlGpmMetricsGet_t()
        self.request.version = 1
        self.request.numMetrics = len(GPM_METRICS)
        self._metrics = [self.request.metrics[place] for place in range(len(GPM_METRICS))]
        for metric, number in zip(self._metrics, GPM_METRICS, strict=True):
            metric.metricId = number
        # Kept here: a pointer read back from the request would change with the next assignment to it.
        self._older, self.newer = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
        self.t = -math.inf

    def swap(self) -> None:
        """Make room for a new sample in the place of the older one."""
        self._older, self.newer = self.newer, self._older
        self.request.sample1, self.request.sample2 = self._older, self.newer

    def values(self) -> Reading:
        """Return what the last comparison told; a metric with an error or no number is left out."""
        sm, tensor, dram, sent, received = (
            metric.value if metric.nvmlReturn == 0 else math.nan for metric in self._metrics
        )
        moved = (sent + received) * MIB
        return {
            "sm": share(sm),
            "tensor": share(tensor),
            "dram": share(dram),
            "pcie_bytes_per_second": round(moved) if math.isfinite(moved) else None,
        }

    def free(self) -> None:
        """Give both samples back."""
        with contextlib.suppress(*ERRORS):
            pynvml.nvmlGpmSampleFree(self._older)
            pynvml.nvmlGpmSampleFree(self.newer)


class Gpu:
    """One GPU: identity, handle (None while it can't be had), and which readings it supports."""

    __slots__ = (
        "code",
        "energy",
        "error",
        "gpm",
        "handle",
        "has_util",
        "index",
        "limit_w",
        "mig",
        "name",
        "power_field",
        "processes",
        "smoothing",
        "usage_window",
        "uuid",
    )

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self.index = -1
        self.handle: Any = None
        self.name = ""
        self.limit_w: float | None = None
        self.mig = False
        self.smoothing: bool | None = None
        self.has_util = True
        self.power_field: int | None = None
        self.usage_window: float | None = None
        self.gpm: Gpm | None = None
        self.energy: tuple[float, int] | None = None
        self.processes: int | None = None
        self.error: str | None = None
        self.code = 0

    def identity(self, driver: str) -> Reading:
        """Return what a list of GPUs says about this one."""
        return {
            "gpu": self.index,
            "uuid": self.uuid,
            "name": self.name,
            "driver": driver,
            "limit_w": self.limit_w,
            "mig": self.mig,
            "power_smoothing": self.smoothing,
        }

    def lose(self, error: Exception) -> None:
        """Note that this GPU can't be read."""
        self.code = error_code(error)
        self.error = f"{error} (NVML {self.code})"


class NvmlReader:
    """All GPUs of this node; ``clock`` is monotonic seconds, every call's duration goes to ``times``."""

    def __init__(self, times: CallTimes, *, clock: Callable[[], float], proc: str = "/proc") -> None:
        self._times = times
        self._clock = clock
        self._proc = proc
        self._list_pids: Callable[[Any], Any] = pynvml.nvmlDeviceGetComputeRunningProcesses
        self.driver = ""
        self.gpus: list[Gpu] = []
        self.mapping_known = False

    def open(self) -> None:
        """Initialise NVML once, for as long as this process lives; raises what NVML raises."""
        pynvml.nvmlInit()
        self.driver = str(pynvml.nvmlSystemGetDriverVersion())

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

    def enumerate(self) -> list[Reading]:
        """Find the GPUs anew, by UUID; raises what NVML raises when it can't even count them."""
        count = self._call(pynvml.nvmlDeviceGetCount)
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
        fields = self._fields(gpu, POWER_INSTANT, POWER_AVERAGE, ENERGY, POWER_LIMIT, SMOOTHING)
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

    def read(self, gpu: Gpu) -> Reading:
        """Read one GPU; never raises for NVML's errors: ``error`` tells why a GPU can't be read."""
        reading: Reading = {"t": round(self._clock(), 6), "gpu": gpu.index, "uuid": gpu.uuid}
        if gpu.handle is not None:
            try:
                reading.update(self._readings(gpu))
                gpu.error, gpu.code = None, 0
            except ERRORS as error:
                gpu.lose(error)
        if gpu.error is not None:
            return {**{key: reading[key] for key in ("t", "gpu", "uuid")}, "error": gpu.error}
        reading["limit_w"], reading["processes"] = gpu.limit_w, gpu.processes
        return {key: value for key, value in reading.items() if value is not None}

    def _readings(self, gpu: Gpu) -> Reading:
        found: Reading = {}
        if gpu.has_util:
            try:
                rates = self._call(pynvml.nvmlDeviceGetUtilizationRates, gpu.handle)
                found["util"], found["mem_util"] = share(rates.gpu), share(rates.memory)
            except ERRORS as error:
                if error_code(error) not in UNTOLD:
                    raise
                gpu.has_util = error_code(error) not in LASTING
        found.update(self._power(gpu))
        if gpu.gpm is not None:
            found.update(self._gpm(gpu, gpu.gpm))
        return found

    def _power(self, gpu: Gpu) -> Reading:
        if gpu.usage_window is not None:
            milliwatts = self._told(pynvml.nvmlDeviceGetPowerUsage, gpu.handle)
            return _watts(milliwatts, gpu.usage_window)
        if gpu.power_field is None:
            return {}
        value = self._fields(gpu, gpu.power_field).get(gpu.power_field)
        if gpu.power_field == ENERGY:
            return self._power_from_energy(gpu, value)
        return _watts(value, AVERAGED_SECONDS if gpu.power_field == POWER_AVERAGE else 0.0)

    def _power_from_energy(self, gpu: Gpu, millijoules: int | None) -> Reading:
        t, before = self._clock(), gpu.energy
        gpu.energy = None if millijoules is None else (t, millijoules)
        # The counter begins anew when the driver is loaded.
        if millijoules is None or before is None or millijoules < before[1] or t <= before[0]:
            return {}
        seconds = t - before[0]
        return _watts((millijoules - before[1]) / seconds, round(seconds, 3))

    def _gpm(self, gpu: Gpu, gpm: Gpm) -> Reading:
        now = self._clock()
        age = now - gpm.t
        if age < GPM_SPACING_SECONDS:
            return {}
        gpm.swap()
        gpm.t = -math.inf
        try:
            self._call(pynvml.nvmlGpmSampleGet, gpu.handle, gpm.newer)
            gpm.t = now
            if age > GPM_GAP_SECONDS:
                return {}
            self._call(pynvml.nvmlGpmMetricsGet, gpm.request)
        except ERRORS as error:
            # Comparing two samples asks no GPU: its failure says nothing about one.
            if gpm.t < now and error_code(error) not in UNTOLD:
                raise
            if error_code(error) in LASTING:
                gpm.free()
                gpu.gpm = None
            return {}
        return gpm.values()

    # --- processes

    def read_pids(self) -> dict[int, list[int]]:
        """List the compute processes of each GPU that can be read, as this process's namespace knows them."""
        listed = self._pids_of_all()
        if self._strangers(listed):
            # R535 drivers had a third version with longer entries: what is read from those is no pid.
            self._use_other_list(listed)
            listed = self._pids_of_all()
        total = sum(map(len, listed.values()))
        if total:
            self.mapping_known = self._strangers(listed) * 2 < total
        for gpu in self.gpus:
            gpu.processes = len(listed[gpu.index]) if gpu.index in listed else None
        return listed

    def _use_other_list(self, listed: dict[int, list[int]]) -> None:
        other = getattr(pynvml, "nvmlDeviceGetComputeRunningProcesses_v2", None)
        if other is None or self._list_pids is other:
            return
        usual, self._list_pids = self._list_pids, other
        again = self._pids_of_all()
        if not again or self._strangers(again) >= self._strangers(listed):
            self._list_pids = usual

    def _pids_of_all(self) -> dict[int, list[int]]:
        listed = {}
        for gpu in self.gpus:
            if gpu.handle is None:
                continue
            try:
                entries = self._call(self._list_pids, gpu.handle)
            except ERRORS:
                continue
            listed[gpu.index] = sorted({entry.pid for entry in entries})
        return listed

    def _strangers(self, listed: dict[int, list[int]]) -> int:
        pids = {pid for some in listed.values() for pid in some}
        missing = {pid for pid in pids if pid <= 0 or not os.path.exists(f"{self._proc}/{pid}")}
        return sum(pid in missing for some in listed.values() for pid in some)

    # --- calls

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        began = self._clock()
        try:
            return function(*arguments)
        finally:
            self._times.note(self._clock() - began)

    def _told(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call; None if this GPU does not tell that. Other errors are raised."""
        try:
            return self._call(function, *arguments)
        except ERRORS as error:
            if error_code(error) not in UNTOLD:
                raise
            return None

    def _fields(self, gpu: Gpu, *numbers: int) -> dict[int, int]:
        """Ask for several fields in one call; those with a status of their own are left out."""
        values = self._told(pynvml.nvmlDeviceGetFieldValues, gpu.handle, [(number, 0) for number in numbers])
        told = [value for value in values or () if value.nvmlReturn == 0]
        return {value.fieldId: _integer(value) for value in told}


def _watts(milliwatts: float | None, window_seconds: float) -> Reading:
    if milliwatts is None:
        return {}
    return {"power_w": round(milliwatts / 1000.0, 3), "power_window_s": window_seconds}


def _integer(field: Any) -> int:
    """Read a field's union by its type tag (nvmlValueType_t)."""
    names = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    return int(getattr(field.value, names[field.valueType] if field.valueType < len(names) else "ullVal"))
