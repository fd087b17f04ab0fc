"""Another exporter's metrics: one bounded request, and the samples of its text format."""

from __future__ import annotations

import http.client
import re
import time
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple
from urllib.parse import urlsplit

TIMEOUT_SECONDS: Final = 3.0
MOST_BYTES: Final = 8 << 20
_CHUNK_BYTES: Final = 1 << 16
_LINE: Final = re.compile(
    r"(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)\s*(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+(?P<ms>-?[0-9]+))?\s*"
)
_LABEL: Final = re.compile(r'\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')
_ESCAPES: Final = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
_ESCAPE: Final = re.compile(r'\\[\\"n]')


class ExpositionError(Exception):
    """There is no usable answer; the text says why, in one line."""


class Sample(NamedTuple):
    """One line of an exposition; ``unix`` is the time the exporter gives its value, None if it gives none."""

    name: str
    labels: dict[str, str]
    value: float
    unix: float | None


class Exposition:
    """Fetches one URL. Follows no redirect, sends nothing but the request, trusts no length."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.url = url
        self._host = parts.hostname or ""
        self._port = parts.port or 80
        self._path = parts.path or "/"

    def fetch(self) -> str:
        """Return the text; raises ExpositionError."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_SECONDS)
        try:
            connection.request("GET", self._path, headers={"Accept": "text/plain", "Connection": "close"})
            answer = connection.getresponse()
            if answer.status != http.client.OK:
                raise ExpositionError(f"{self.url} answered with status {answer.status}")
            return self._read(answer).decode("utf-8", errors="replace")
        except (OSError, http.client.HTTPException) as error:
            reason = "no answer in time" if isinstance(error, TimeoutError) else str(error) or repr(error)
            raise ExpositionError(f"{self.url} can't be read: {reason}") from error
        finally:
            connection.close()

    def _read(self, answer: http.client.HTTPResponse) -> bytes:
        ends = time.monotonic() + TIMEOUT_SECONDS
        parts, size = [], 0
        while part := answer.read1(_CHUNK_BYTES):
            parts.append(part)
            size += len(part)
            if size > MOST_BYTES:
                raise ExpositionError(f"{self.url} answers with more than {MOST_BYTES} bytes")
            if time.monotonic() > ends:  # a trickle, each part of it in time
                raise ExpositionError(f"{self.url} can't be read: no whole answer in time")
        return b"".join(parts)


def samples(lines: Iterable[str]) -> Iterator[Sample]:
    """Yield the samples of lines; a line that is no sample is passed over."""
    for line in lines:
        found = _LINE.fullmatch(line)
        if found is None:
            continue
        try:
            value = float(found["value"])
        except ValueError:
            continue
        unix = None if found["ms"] is None else int(found["ms"]) / 1000.0
        yield Sample(found["name"], _labels(found["labels"] or ""), value, unix)


def _labels(text: str) -> dict[str, str]:
    return {
        name: _ESCAPE.sub(lambda escape: _ESCAPES[escape[0]], value) for name, value in _LABEL.findall(text)
    }
