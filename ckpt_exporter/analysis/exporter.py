"""What a running exporter says of itself: where bytes go, and whether its sources are healthy."""

from __future__ import annotations

import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from ckpt_exporter.errors import CkptExporterError
from ckpt_exporter.logs import one_line

_TIMEOUT_SECONDS: Final = 10.0
_MAX_BYTES: Final = 64 << 20

Labels = dict[str, str]


@dataclass(frozen=True, slots=True)
class Scrape:
    """One scrape: the samples by metric name, each with its labels."""

    source: str
    samples: dict[str, tuple[tuple[Labels, float], ...]]

    def of(self, name: str, directory: str | None = None) -> tuple[tuple[Labels, float], ...]:
        """Return the samples of a metric, of one directory where it has that label."""
        found = self.samples.get(name, ())
        if directory is None:
            return found
        return tuple((labels, value) for labels, value in found if labels.get("dir", directory) == directory)


def read_exporter(place: str) -> Scrape:
    """Scrape an exporter's URL, or read a file that holds a scrape. Raises CkptExporterError."""
    shown = one_line(place)
    try:
        text = _fetch(place) if place.startswith(("http://", "https://")) else _read(place)
        samples: dict[str, list[tuple[Labels, float]]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                samples.setdefault(sample.name, []).append((dict(sample.labels), float(sample.value)))
    except (OSError, urllib.error.URLError) as error:
        raise CkptExporterError(f"cannot read the exporter at {shown}: {one_line(str(error))}") from error
    except (ValueError, KeyError, IndexError) as error:
        raise CkptExporterError(
            f"{shown} does not answer in the Prometheus text format: write the address of /metrics, "
            "such as http://node1:10047/metrics"
        ) from error
    if "ckpt_exporter_build_info" not in samples:
        raise CkptExporterError(f"{shown} is no ckpt-exporter: it has no ckpt_exporter_build_info")
    return Scrape(shown, {name: tuple(found) for name, found in samples.items()})


def _fetch(url: str) -> str:
    request = urllib.request.Request(url, headers={"Accept": "text/plain; version=0.0.4"})  # noqa: S310 (http only)
    with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310
        return str(answer.read(_MAX_BYTES).decode("utf-8"))


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as stream:
        return stream.read(_MAX_BYTES)
