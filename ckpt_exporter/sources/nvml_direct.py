"""The calls of every tick, straight to the library.

The binding makes new structures for each call and looks their fields up by name, which costs several times
what the driver's answer does; these go into the same memory again and again. Layouts are those of nvml.h.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any, Final

import pynvml

from ckpt_exporter.sources.nvml_calls import NvmlCalls
from ckpt_exporter.sources.nvml_gpu import FUNCTION_NOT_FOUND, Gpm

# nvmlFieldValue_t: fieldId, scopeId, timestamp, latencyUsec, valueType, nvmlReturn, value.
_FIELD: Final = struct.Struct("@IIqqII8s")
# By nvmlValueType_t: double, unsigned int, unsigned long, unsigned long long, long long, int, unsigned short.
_VALUES: Final = tuple(struct.Struct(f"@{code}") for code in "dILQqiH")


class DirectCalls:
    """Reads one GPU at a time; raises the binding's errors."""

    def __init__(self, library: ctypes.CDLL, calls: NvmlCalls) -> None:
        self._call = calls.call
        self._utilization = _function(library, "nvmlDeviceGetUtilizationRates")
        self._power_usage = _function(library, "nvmlDeviceGetPowerUsage")
        self._field_values = _function(library, "nvmlDeviceGetFieldValues")
        self._gpm_sample = _function(library, "nvmlGpmSampleGet")
        self._gpm_metrics = _function(library, "nvmlGpmMetricsGet")
        self._rates = (ctypes.c_uint * 2)()
        self._milliwatts = (ctypes.c_uint * 1)()
        self._field = ctypes.create_string_buffer(_FIELD.size)

    def utilisation(self, handle: Any) -> tuple[int, int]:
        """Return utilisation of the GPU and of its memory in percent."""
        self._check(self._utilization, handle, self._rates)
        return self._rates[0], self._rates[1]

    def power_usage(self, handle: Any) -> int:
        """Return the plain power reading in milliwatts."""
        self._check(self._power_usage, handle, self._milliwatts)
        return self._milliwatts[0]

    def field(self, handle: Any, number: int) -> int | None:
        """Return one field; None if the GPU does not tell that."""
        _FIELD.pack_into(self._field, 0, number, 0, 0, 0, 0, 0, b"")
        self._check(self._field_values, handle, 1, self._field)
        *_, kind, code, value = _FIELD.unpack_from(self._field)
        if code != 0:
            return None
        layout = _VALUES[kind] if kind < len(_VALUES) else _VALUES[3]
        return int(layout.unpack_from(value)[0])

    def take_gpm_sample(self, handle: Any, gpm: Gpm) -> None:
        """Put a new sample of the counters into the place made for it."""
        self._check(self._gpm_sample, handle, gpm.newer)

    def compare_gpm_samples(self, gpm: Gpm) -> None:
        """Let the library reckon what happened between two samples."""
        self._check(self._gpm_metrics, gpm.pointer)

    def _check(self, function: Callable[..., int], *arguments: Any) -> None:
        code = self._call(function, *arguments)
        if code != 0:
            raise pynvml.NVMLError(code)


def _function(library: ctypes.CDLL, name: str) -> Callable[..., int]:
    """Return a function of the library, or one that says that it is missing."""
    found: Callable[..., int] | None = getattr(library, name, None)
    return found if found is not None else lambda *_: FUNCTION_NOT_FOUND
