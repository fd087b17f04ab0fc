"""Families as lines, in both formats, in a fraction of the client library's time.

The client checks and escapes every name of every sample anew; here names come from the catalogue. What has
more to it than name, labels and value (exemplars, timestamps) is left to the client; the bytes are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from prometheus_client import Metric as Family
from prometheus_client import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

_EOF = b"# EOF\n"
# What the text format calls a family: suffix of its name and type.
_TEXT_TYPES = {
    "counter": ("_total", "counter"),
    "info": ("_info", "gauge"),
    "unknown": ("", "untyped"),
    "gauge": ("", "gauge"),
    "histogram": ("", "histogram"),
}


def encode_text(families: Iterable[Family]) -> bytes:
    """Return the text format 0.0.4."""
    return b"".join(_encoded(family, _text_head, generate_latest) for family in families)


def encode_openmetrics(families: Iterable[Family]) -> bytes:
    """Return OpenMetrics 1.0."""
    parts = [_encoded(family, _openmetrics_head, _openmetrics_by_client) for family in families]
    return b"".join([*parts, _EOF])


def _encoded(family: Family, head: Callable[[Family], str], by_client: Callable[[Collector], bytes]) -> bytes:
    if not _is_plain(family):
        return by_client(_One(family))
    number: Callable[[float], str] = floatToGoString
    lines = [f"{s.name}{_labels(*s.labels.items())} {number(s.value)}\n" for s in family.samples]
    return (head(family) + "".join(lines)).encode()


def _is_plain(family: Family) -> bool:
    created = {family.name + suffix for suffix in ("_created", "_gsum", "_gcount")}
    return (
        family.type in _TEXT_TYPES
        and not family.unit
        and all(s.exemplar is None and s.timestamp is None and s.name not in created for s in family.samples)
    )


# The same series come with every scrape.
@lru_cache(maxsize=8192)
def _labels(*labels: tuple[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join([f'{name}="{_escaped(value)}"' for name, value in sorted(labels)]) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _text_head(family: Family) -> str:
    suffix, kind = _TEXT_TYPES[family.type]
    name, text = family.name + suffix, family.documentation.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _openmetrics_head(family: Family) -> str:
    return f"# HELP {family.name} {_escaped(family.documentation)}\n# TYPE {family.name} {family.type}\n"


def _openmetrics_by_client(collector: Collector) -> bytes:
    body: Any = openmetrics.generate_latest(collector)  # type: ignore[no-untyped-call]
    return bytes(body).removesuffix(_EOF)


class _One(Collector):
    """One family by itself."""

    def __init__(self, family: Family) -> None:
        self._family = family

    def collect(self) -> Iterable[Family]:
        return [self._family]
