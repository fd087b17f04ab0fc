"""One NVIDIA GPU as the sampler's process knows it: identity, handle, performance counters."""

from __future__ import annotations

import contextlib
import ctypes
import math
import re
import struct
from typing import Any, Final

import pynvml

# Numbers of the NVML API (nvml.h); older versions of the binding do not name them all.
POWER_AVERAGE, POWER_INSTANT, ENERGY, POWER_LIMIT, SMOOTHING = 185, 186, 83, 190, 251
SM_UTIL, ANY_TENSOR, DRAM_UTIL, PCIE_TX, PCIE_RX, NVLINK_RX, NVLINK_TX = 2, 5, 10, 20, 21, 60, 61
GPM_METRICS: Final = (SM_UTIL, ANY_TENSOR, DRAM_UTIL, PCIE_TX, PCIE_RX, NVLINK_RX, NVLINK_TX)
# nvmlGpmMetric_t: metricId, nvmlReturn, value, three pointers (name, short name, unit).
_METRICS: Final = struct.Struct("@" + "4xId24x" * len(GPM_METRICS))
NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, NO_DATA, NOT_READY = 3, 4, 13, 21, 27
VERSION_ARGUMENT, DEPRECATED = 25, 26
AMPERE_ARCHITECTURE = 7
# One word for what the library as a whole suffers from.
STATES: Final = {
    1: "unknown_error",
    4: "no_permission",
    9: "driver_not_loaded",
    12: "library_missing",
    18: "version_mismatch",
    999: "unknown_error",
}
# Codes of a GPU that is itself the trouble: beginning anew would not bring it back.
OWN_TROUBLE: Final = frozenset({15, 16})
# Codes that say "this GPU does not tell that", as opposed to "this GPU can't be read".
UNTOLD: Final = frozenset(
    {NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, NO_DATA, NOT_READY, VERSION_ARGUMENT, DEPRECATED}
)
LASTING: Final = UNTOLD - {NO_DATA, NOT_READY}
# nvml.h: on Ampere (except GA100) or newer, power is averaged over one second; else it is instantaneous.
AVERAGED_SECONDS = 1.0
_GA100 = re.compile(r"\b(A100|A800|A30)(?!\d)")
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
    ratio = min(percent, 100.0) / 100.0
    return ratio if isinstance(percent, int) else round(ratio, 4)  # rounding costs more than all the rest


# SM, tensor and memory activity, PCIe and NVLink traffic.
Counters = tuple[float | None, float | None, float | None, int | None, int | None]


def _rate(mib_per_second: float) -> int | None:
    return round(mib_per_second * MIB) if math.isfinite(mib_per_second) else None


class Gpm:
    """Two samples of one GPU's GPM counters that swap places, and the request that compares them."""

    __slots__ = ("_bytes", "_first", "_older", "newer", "pointer", "request", "t")

    def __init__(self) -> None:
        self.request = pynvml.c_nvmlGpmMetricsGet_t()
        self.request.version = 1
        self.request.numMetrics = len(GPM_METRICS)
        for place, number in enumerate(GPM_METRICS):
            self.request.metrics[place].metricId = number
        # Its bytes: the binding's structures are slow to read, and this is read twice a second for each GPU.
        self._bytes = memoryview(self.request).cast("B")
        self._first = type(self.request).metrics.offset
        self.pointer = ctypes.byref(self.request)
        # Kept here: a pointer read back from the request would change with the next assignment to it.
        self._older, self.newer = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
        self.t = -math.inf

    def swap(self) -> None:
        """Make room for a new sample in the place of the older one."""
        self._older, self.newer = self.newer, self._older
        self.request.sample1, self.request.sample2 = self._older, self.newer

    def values(self) -> Counters:
        """Return SM, tensor and memory activity (shares), PCIe and NVLink traffic (bytes per second).

        None for what has an error or is no number.
        """
        told = _METRICS.unpack_from(self._bytes, self._first)
        sm, tensor, dram, sent, received, linked_in, linked_out = (
            value if code == 0 else math.nan for code, value in zip(told[::2], told[1::2], strict=True)
        )
        moved, linked = _rate(sent + received), _rate(linked_in + linked_out)
        return share(sm), share(tensor), share(dram), moved, linked

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

    def identity(self, driver: str) -> dict[str, Any]:
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

    @property
    def down_state(self) -> str | None:
        """NVML's state if all GPUs fail like this one; None if this GPU itself is the trouble."""
        return None if self.code in OWN_TROUBLE else STATES.get(self.code, "unknown_error")

    def lose(self, error: Exception) -> None:
        """Note that this GPU can't be read."""
        self.code = error_code(error)
        self.error = f"{error} (NVML {self.code})"
