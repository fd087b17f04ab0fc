"""The encoder's bytes are those of the client library, which is the reference."""

from __future__ import annotations

import math

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    UnknownMetricFamily,
)
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from ckpt_exporter.metrics.encoding import encode_openmetrics, encode_text


def families() -> list:
    """One of each type, with hostile texts, odd numbers, an exemplar and a timestamp."""
    counter = CounterMetricFamily("a_bytes", 'help with "quotes", a \\ and\na line', labels=("dir", "b"))
    counter.add_metric(['x"y\\z\n', "é"], 3)
    counter.add_metric(["", "{}"], 12345678.5)
    gauge = GaugeMetricFamily("g", "h")
    for value in (math.inf, -math.inf, math.nan, -0.0, 1e-9, 1e21, 123456789.0, 0.1 + 0.2, -1234567.0):
        gauge.add_metric([], value)
    late = GaugeMetricFamily("late", "h", labels=("z", "a"))
    late.add_metric(["1", "2"], 5, timestamp=12.5)
    made = CounterMetricFamily("made", "h")
    made.add_metric([], 1, created=5.0)
    plain = HistogramMetricFamily("plain_seconds", "h", labels=("dir",))
    plain.add_metric(["d"], [("1.0", 1), ("+Inf", 2)], 3.5)
    marked = HistogramMetricFamily("marked_seconds", "h", labels=("dir",))
    marked.add_metric(["d"], [("1.0", 1, Exemplar({"step": "7"}, 0.5, 99.0)), ("+Inf", 2)], 3.5)
    info = InfoMetricFamily("i", "h")
    info.add_metric([], {"version": "1", "a": "b"})
    unit = GaugeMetricFamily("size_bytes", "h", unit="bytes")
    unit.add_metric([], 1)
    return [counter, gauge, late, made, plain, marked, info, unit, UnknownMetricFamily("u", "h", value=1.0)]


class Given(Collector):
    def collect(self) -> list:
        return families()


def registry() -> CollectorRegistry:
    found = CollectorRegistry()
    found.register(Given())
    return found


def test_the_text_format_is_the_clients() -> None:
    """Every type, escape, number, timestamp and exemplar comes out as the client writes it."""
    assert encode_text(registry().collect()) == generate_latest(registry())


def test_openmetrics_is_the_clients() -> None:
    """The same for OpenMetrics, its end mark included."""
    assert encode_openmetrics(registry().collect()) == openmetrics.generate_latest(registry())


@pytest.mark.parametrize("encode", [encode_text, encode_openmetrics])
def test_nothing_is_nothing(encode) -> None:
    """No family gives no line but OpenMetrics' end mark."""
    assert encode([]) in (b"", b"# EOF\n")
