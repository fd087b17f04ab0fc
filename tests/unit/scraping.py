"""Scrapes for tests: snapshots in, parsed series out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from prometheus_client.parser import text_string_to_metric_families as parse_text

from ckpt_exporter.metrics import build_registry, expose
from ckpt_exporter.model import Snapshot

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

OPENMETRICS = "application/openmetrics-text;version=1.0.0"

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def registry_of(snapshot: Snapshot) -> CollectorRegistry:
    """Make a registry without what differs from run to run."""
    return build_registry(
        lambda: snapshot,
        version="0.1.0",
        revision="abc1234",
        python="3.11.7",
        process_metrics=False,
        clock=lambda: 0.0,
    )


def scrape(snapshot: Snapshot, accept: str = "") -> str:
    """Scrape once and return the text."""
    return expose(registry_of(snapshot), accept).body.decode()


def go_floats(text: str) -> str:
    """Write exponents alike: older releases of the client library print 1e+011 for 1e+11."""
    return re.sub(r"e\+0(\d\d)\b", r"e+\1", text)


def series(text: str) -> Series:
    """Parse the text format into values by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse_text(text)
        for sample in family.samples
    }


def value(snapshot: Snapshot, name: str, **labels: str) -> float | None:
    """Return one series of a scrape, None when absent."""
    return series(scrape(snapshot)).get((name, tuple(sorted(labels.items()))))


def snapshot_of(*directories: Any, **changes: Any) -> Snapshot:
    """Make a snapshot at monotonic second 1000."""
    return Snapshot(t=1000.0, unix_minus_t=1764470000.0, directories=directories, **changes)
