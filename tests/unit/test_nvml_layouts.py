"""The memory layouts that the sampler reads directly are those of NVIDIA's own binding."""

from __future__ import annotations

import ctypes

import pynvml

from ckpt_exporter.sources.nvml_direct import _FIELD, _VALUES
from ckpt_exporter.sources.nvml_gpu import _METRICS, GPM_METRICS


def test_a_field_value_lies_as_in_the_binding() -> None:
    """What the binding writes into nvmlFieldValue_t is read back from the same bytes."""
    field = pynvml.c_nvmlFieldValue_t()
    field.fieldId, field.scopeId, field.timestamp, field.latencyUsec = 186, 3, 5, 7
    field.valueType, field.nvmlReturn = 3, 999
    field.value.ullVal = 2**40 + 1
    number, scope, timestamp, latency, kind, code, value = _FIELD.unpack(bytes(field))
    assert (number, scope, timestamp, latency, kind, code) == (186, 3, 5, 7, 3, 999)
    assert _VALUES[3].unpack_from(value) == (2**40 + 1,)
    assert ctypes.sizeof(field) == _FIELD.size


def test_every_type_of_value_is_read_as_the_binding_does() -> None:
    """Double, unsigned int, long, long long, signed long long, int and short, by nvmlValueType_t."""
    names = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    for kind, (name, given) in enumerate(zip(names, (1.5, 7, 8, 9, -10, -11, 12), strict=True)):
        value = pynvml.c_nvmlFieldValue_t().value
        setattr(value, name, given)
        assert _VALUES[kind].unpack_from(bytes(value)) == (given,)


def test_gpm_metrics_lie_as_in_the_binding() -> None:
    """Status and value of each metric follow one another as nvmlGpmMetricsGet_t has them."""
    request = pynvml.c_nvmlGpmMetricsGet_t()
    for place in range(len(GPM_METRICS)):
        request.metrics[place].nvmlReturn = place
        request.metrics[place].value = place + 0.5
    told = _METRICS.unpack_from(bytes(request), type(request).metrics.offset)
    assert told == (0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 5.5, 6, 6.5)
