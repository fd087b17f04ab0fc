"""What each path answers; knows nothing of sockets."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from ckpt_exporter.errors import UsageError
from ckpt_exporter.metrics.exposition import accepts_gzip, expose
from ckpt_exporter.web.pages.policy import PAGE_POLICY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from prometheus_client import CollectorRegistry

HEALTHY_PATH = "/-/healthy"
READY_PATH = "/-/ready"
HEALTH_PATHS = (HEALTHY_PATH, READY_PATH)
STATUS_PATH = "/"

_ALLOWED_METHODS = ("GET", "HEAD")
_MAX_QUERY_FIELDS = 100


@dataclass(frozen=True, slots=True)
class Request:
    """One parsed request; header names are lower case, repeated ones joined by commas.

    ``client`` is the address that it came from, without its port.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    client: str = ""


@dataclass(frozen=True, slots=True)
class Response:
    """What to send back, apart from what every response carries."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()


def text_response(status: HTTPStatus, text: str, *headers: tuple[str, str]) -> Response:
    """Return a one-line plain text response."""
    return Response(status, f"{text}\n".encode(), headers=headers)


class Routes:
    """The table of paths. ``telemetry_path`` may be ``/``; then there is no status page."""

    def __init__(
        self,
        telemetry_path: str,
        registry: CollectorRegistry,
        page: Callable[[], str],
        healthy: Callable[[], bool],
        ready: Callable[[], bool],
    ) -> None:
        check_telemetry_path(telemetry_path)
        self._registry = registry
        self._page = page
        self._table: dict[str, Callable[[Request], Response]] = {
            STATUS_PATH: self._status,
            telemetry_path: self._metrics,
            HEALTHY_PATH: lambda _: _probe("healthy", passed=healthy()),
            READY_PATH: lambda _: _probe("ready", passed=ready()),
        }

    def respond(self, request: Request) -> Response:
        """Return the response for any request; what a handler raises passes through."""
        if request.method not in _ALLOWED_METHODS:
            allow = ("Allow", ", ".join(_ALLOWED_METHODS))
            return text_response(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are served here", allow)
        handler = self._table.get(request.path)
        if handler is None:
            return text_response(HTTPStatus.NOT_FOUND, "not found")
        return handler(request)

    def _status(self, request: Request) -> Response:
        headers = [("Content-Security-Policy", PAGE_POLICY), ("Vary", "Accept-Encoding")]
        # No name can end up here that UTF-8 does not carry, but a page must not fail over one.
        body = self._page().encode("utf-8", "backslashreplace")
        if accepts_gzip(request.headers.get("accept-encoding", "")):
            # A page that asks for itself every few seconds is a tenth of its size this way.
            body = gzip.compress(body, 1, mtime=0)
            headers.append(("Content-Encoding", "gzip"))
        return Response(HTTPStatus.OK, body, "text/html; charset=utf-8", tuple(headers))

    def _metrics(self, request: Request) -> Response:
        try:
            query = parse_qs(request.query, max_num_fields=_MAX_QUERY_FIELDS)
        except ValueError:
            return text_response(HTTPStatus.BAD_REQUEST, f"more than {_MAX_QUERY_FIELDS} query fields")
        accept = request.headers.get("accept", "")
        accept_encoding = request.headers.get("accept-encoding", "")
        answer = expose(self._registry, accept, accept_encoding, query.get("name[]", ()))
        headers = [("Vary", "Accept, Accept-Encoding")]
        if answer.content_encoding:
            headers.append(("Content-Encoding", answer.content_encoding))
        return Response(HTTPStatus.OK, answer.body, answer.content_type, tuple(headers))


def check_telemetry_path(path: str) -> None:
    """Raise ``UsageError`` for a path that can't be requested or is taken."""
    if not path.startswith("/") or path.startswith("//") or not path.isprintable() or set(path) & set("?# "):
        raise UsageError(f"--web.telemetry-path: want a path such as /metrics (got {path!r})")
    if path in HEALTH_PATHS:
        raise UsageError(f"--web.telemetry-path: {path} is taken by the health checks, choose another")


def _probe(name: str, *, passed: bool) -> Response:
    if passed:
        return text_response(HTTPStatus.OK, f"ckpt-exporter is {name}")
    return text_response(HTTPStatus.SERVICE_UNAVAILABLE, f"ckpt-exporter is not {name}")
