"""Catalogue entries as families of the Prometheus client, filled sample by sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import Metric as Family
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    UnknownMetricFamily,
)
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from ckpt_exporter.metrics.text import valid_text

if TYPE_CHECKING:
    from ckpt_exporter.metrics.catalogue import Metric
    from ckpt_exporter.model import Histogram

_Bucket = tuple[str, float] | tuple[str, float, Exemplar]


# OpenMetrics drops ``_total`` from a counter's family name, which leaves the name of the histogram
# ``ckpt_bubble_seconds``, and one name can be one family only. So there this counter has no type; its series
# is the same in both formats.
UNTYPED_COUNTERS = frozenset({"ckpt_bubble_seconds_total"})


def new_family(entry: Metric) -> Family:
    """Return an empty family as OpenMetrics has it: ``_total`` and ``_info`` are left to the samples."""
    if entry.name in UNTYPED_COUNTERS:
        return UnknownMetricFamily(entry.name, entry.help, labels=entry.labels)
    if entry.type == "counter":
        return CounterMetricFamily(entry.name, entry.help, labels=entry.labels)
    if entry.type == "histogram":
        return HistogramMetricFamily(entry.name, entry.help, labels=entry.labels)
    if entry.type == "info":
        return InfoMetricFamily(entry.name.removesuffix("_info"), entry.help)
    return GaugeMetricFamily(entry.name, entry.help, labels=entry.labels)


def text_family(family: Family) -> Family:
    """Return a family as the text format has it, where a counter is one under its full name."""
    if family.name not in UNTYPED_COUNTERS:
        return family
    counter = Family(family.name.removesuffix("_total"), family.documentation, "counter")
    counter.samples = family.samples
    return counter


class Families(Collector):
    """The families of one collector in one scrape; only names and labels of the catalogue are accepted."""

    def __init__(self, entries: Iterable[Metric]) -> None:
        self._entries = {entry.name: entry for entry in entries}
        self._families = {name: new_family(entry) for name, entry in self._entries.items()}

    def add(self, name: str, value: float | None, /, **labels: str) -> None:
        """Add one sample; an unknown (None) or not finite value stays absent."""
        if value is None or not math.isfinite(value):
            return
        family, texts = self._open(name, labels)
        if not isinstance(family, CounterMetricFamily | GaugeMetricFamily | UnknownMetricFamily):
            raise TypeError(f"{name} takes no plain value")
        family.add_metric(texts, float(value))

    def add_info(self, name: str, /, **labels: str) -> None:
        """Add one series of value 1 whose labels are the information."""
        family, texts = self._open(name, labels)
        if not isinstance(family, InfoMetricFamily):
            raise TypeError(f"{name} is no info metric")
        family.add_metric([], dict(zip(self._entries[name].labels, texts, strict=True)))

    def add_histogram(self, name: str, histogram: Histogram, /, **labels: str) -> None:
        """Add one histogram; its counts per bucket become cumulative."""
        family, texts = self._open(name, labels)
        if not isinstance(family, HistogramMetricFamily):
            raise TypeError(f"{name} is no histogram")
        family.add_metric(texts, cumulative_buckets(histogram), float(histogram.sum))

    def collect(self) -> list[Family]:
        """Return the families that have samples, in catalogue order."""
        return [family for family in self._families.values() if family.samples]

    def _open(self, name: str, labels: dict[str, str]) -> tuple[Family, list[str]]:
        entry = self._entries[name]
        if set(labels) != set(entry.labels):
            raise ValueError(f"{name} has the labels {entry.labels}, not {tuple(labels)}")
        return self._families[name], [valid_text(labels[label]) for label in entry.labels]


def cumulative_buckets(histogram: Histogram) -> list[_Bucket]:
    """Return (upper bound, observations at most that, exemplar if any) per bucket, ``+Inf`` last.

    Raises ``ValueError`` when counts and bounds do not belong together.
    """
    bounds = (*histogram.bounds, math.inf)
    exemplars = histogram.exemplars or (None,) * len(bounds)
    rows = zip(bounds, accumulate(histogram.counts), exemplars, strict=True)
    return [_bucket(bound, count, exemplar) for bound, count, exemplar in rows]


def _bucket(bound: float, count: int, exemplar: tuple[float, float, int] | None) -> _Bucket:
    le = "+Inf" if math.isinf(bound) else str(float(bound))
    if exemplar is None:
        return (le, count)
    value, unix, step = exemplar
    return (le, count, Exemplar({"step": str(step)}, float(value), float(unix)))


FamilySource = Callable[[], list[Family]]
