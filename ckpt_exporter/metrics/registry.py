"""The registry of a scrape: one snapshot for all collectors, a guard around each."""

from __future__ import annotations

import logging
import platform
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client import Metric as Family
from prometheus_client.registry import Collector

from ckpt_exporter import __version__
from ckpt_exporter.metrics.catalogue import METRICS, metrics_of
from ckpt_exporter.metrics.collectors import SNAPSHOT_COLLECTORS, Build, Collect, collect_itself
from ckpt_exporter.metrics.families import Families, FamilySource, new_family

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ckpt_exporter.model import Snapshot

_LOG = logging.getLogger(__name__)


def build_registry(
    snapshot: Callable[[], Snapshot],
    *,
    version: str = __version__,
    revision: str = "unknown",
    python: str = platform.python_version(),
    process_metrics: bool = True,
    clock: Callable[[], float] = time.perf_counter,
) -> CollectorRegistry:
    """Return the registry that ``/metrics`` serves.

    ``snapshot`` is called once per scrape and must read memory only. Raises ``ValueError`` when two metrics
    claim one name.
    """
    build = Build(version, revision, python)
    collectors: dict[str, Collect] = {**SNAPSHOT_COLLECTORS, "itself": partial(collect_itself, build)}
    extra = {"process": _process_source()} if process_metrics else {}
    registry = CollectorRegistry()
    registry.register(SnapshotCollector(snapshot, collectors, extra, clock=clock))
    return registry


class SnapshotCollector(Collector):
    """All collectors behind one ``collect``, so that a scrape sees one moment.

    A collector that raises loses its own families of that scrape and nothing else.
    """

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        collectors: Mapping[str, Collect],
        extra: Mapping[str, FamilySource],
        *,
        clock: Callable[[], float],
    ) -> None:
        self._snapshot = snapshot
        self._collectors = dict(collectors)
        self._extra = dict(extra)
        self._clock = clock
        self._lock = threading.Lock()  # scrapes may overlap
        self._errors = dict.fromkeys([*collectors, *extra], 0)
        self._described = [new_family(entry) for entry in METRICS]
        self._described += [family for source in extra.values() for family in source()]
        _refuse_clashes(self._described)

    def describe(self) -> Iterable[Family]:
        """Return every family there may be, so that ``name[]=`` finds them."""
        return self._described

    def collect(self) -> Iterable[Family]:
        """Return the families of one scrape."""
        families: list[Family] = []
        report = Families(metrics_of("scrape"))
        for name, source in self._sources().items():
            families += self._guarded(name, source, report)
        return families + report.collect()

    def _sources(self) -> dict[str, FamilySource]:
        try:
            snapshot = self._snapshot()
        except Exception as error:  # noqa: BLE001 (what needs no snapshot must stay scrapeable)
            sources = {name: partial(_raise, error) for name in self._collectors}
        else:
            sources = {
                name: partial(_collected, name, collect, snapshot)
                for name, collect in self._collectors.items()
            }
        return {**sources, **self._extra}

    def _guarded(self, name: str, source: FamilySource, report: Families) -> list[Family]:
        started = self._clock()
        families: list[Family] = []
        success = False
        try:
            families = source()
            success = True
        except Exception:  # noqa: BLE001 (one broken collector must not cost the others their scrape)
            _LOG.error("collector %s failed, its metrics are left out of this scrape", name, exc_info=True)
        report.add("ckpt_collector_success", success, collector=name)
        report.add("ckpt_collector_duration_seconds", self._clock() - started, collector=name)
        report.add("ckpt_collector_errors_total", self._count(name, failed=not success), collector=name)
        return families

    def _count(self, name: str, *, failed: bool) -> int:
        with self._lock:
            self._errors[name] += failed
            return self._errors[name]


def _collected(name: str, collect: Collect, snapshot: Snapshot) -> list[Family]:
    out = Families(metrics_of(name))
    collect(snapshot, out)
    return out.collect()


def _raise(error: Exception) -> list[Family]:
    raise error


def _process_source() -> FamilySource:
    """Return the client library's own process and Python metrics, apart from its global registry."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return lambda: list(registry.collect())


class _Described(Collector):
    """A family that is only announced."""

    def __init__(self, family: Family) -> None:
        self._family = family

    def describe(self) -> Iterable[Family]:
        return [self._family]

    def collect(self) -> Iterable[Family]:
        return []


def _refuse_clashes(families: Iterable[Family]) -> None:
    # A registry compares collectors, not the families of one: so each one here is a collector of its own.
    registry = CollectorRegistry()
    for family in families:
        registry.register(_Described(family))
