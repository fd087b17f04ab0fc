"""Calls of the NVIDIA management library, each with its duration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pynvml

from ckpt_exporter.sources.nvml_gpu import ERRORS, UNTOLD, error_code
from ckpt_exporter.sources.sampler_reader import Timed


class NvmlCalls(Timed):
    """Calls of NVML; what a GPU does not tell is None."""

    def told(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call; None if this GPU does not tell that. Other errors are raised."""
        try:
            return self.call(function, *arguments)
        except ERRORS as error:
            if error_code(error) not in UNTOLD:
                raise
            return None

    def fields(self, handle: Any, *numbers: int) -> dict[int, int]:
        """Ask a GPU for several fields in one call; those with a status of their own are left out."""
        values = self.told(pynvml.nvmlDeviceGetFieldValues, handle, [(number, 0) for number in numbers])
        return {value.fieldId: _integer(value) for value in values or () if value.nvmlReturn == 0}


def _integer(field: Any) -> int:
    """Read a field's union by its type tag (nvmlValueType_t)."""
    kind = field.valueType
    return int(getattr(field.value, _MEMBERS[kind] if kind < len(_MEMBERS) else "ullVal"))


_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
