"""The bytes of a scrape: format by ``Accept``, compression by ``Accept-Encoding``, ``name[]`` filter."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from ckpt_exporter.metrics.catalogue import metrics_of
from ckpt_exporter.metrics.collectors import collect_bubble, collect_gpus, collect_saves
from ckpt_exporter.metrics.encoding import encode_openmetrics, encode_text
from ckpt_exporter.metrics.families import Families, text_family

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckpt_exporter.model import Snapshot

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_GZIP_LEVEL = 6  # the usual balance of time and size


@dataclass(frozen=True, slots=True)
class Exposition:
    """An encoded scrape; ``content_encoding`` is ``gzip`` or None."""

    body: bytes
    content_type: str
    content_encoding: str | None


def expose(
    registry: CollectorRegistry, accept: str = "", accept_encoding: str = "", names: Sequence[str] = ()
) -> Exposition:
    """Scrape and encode; ``names`` keeps only samples of these names, empty keeps all."""
    source = registry.restricted_registry(names) if names else registry
    if wants_openmetrics(accept):
        body, content_type = encode_openmetrics(source.collect()), OPENMETRICS
    else:
        body, content_type = encode_text(map(text_family, source.collect())), TEXT
    if not accepts_gzip(accept_encoding):
        return Exposition(body, content_type, None)
    return Exposition(gzip.compress(body, _GZIP_LEVEL, mtime=0), content_type, "gzip")


def render_text(snapshot: Snapshot) -> str:
    """Return saves, bubbles and GPUs of one snapshot in the text format 0.0.4; errors are not caught."""
    out = Families(entry for name in ("saves", "bubble", "gpu") for entry in metrics_of(name))
    for collect in (collect_saves, collect_bubble, collect_gpus):
        collect(snapshot, out)
    return encode_text(map(text_family, out.collect())).decode()


def wants_openmetrics(accept: str) -> bool:
    """Tell whether OpenMetrics 1.0 is asked for at least as strongly as the text format (RFC 9110 12.5.1)."""
    open_quality = 0.0
    text_quality = 0.0
    for value, parameters, quality in _ranges(accept):
        if value == "application/openmetrics-text" and parameters.get("version", "1.0.0") == "1.0.0":
            open_quality = max(open_quality, quality)
        elif value in ("text/plain", "text/*", "*/*"):
            text_quality = max(text_quality, quality)
    return open_quality > 0 and open_quality >= text_quality


def accepts_gzip(accept_encoding: str) -> bool:
    """Tell whether a gzip body may be sent (RFC 9110 12.5.3)."""
    qualities = {value: quality for value, _, quality in _ranges(accept_encoding)}
    return qualities.get("gzip", qualities.get("*", 0.0)) > 0


def _ranges(header: str) -> list[tuple[str, dict[str, str], float]]:
    return [_range(part) for part in header.lower().split(",")]


def _range(part: str) -> tuple[str, dict[str, str], float]:
    value, *rest = (piece.strip() for piece in part.split(";"))
    parameters: dict[str, str] = {}
    for piece in rest:
        key, _, text = piece.partition("=")
        parameters[key.strip()] = text.strip().strip('"')
    try:
        quality = float(parameters.pop("q", "1"))
    except ValueError:
        quality = 0.0
    return value, parameters, quality
