"""HTTP/1.1 as bytes in, bytes out: one request per connection, parsed by the standard library."""

from __future__ import annotations

import io
import logging
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ckpt_exporter.web.routes import Request, Response, Routes, text_response

if TYPE_CHECKING:
    from collections.abc import Callable

_LOG = logging.getLogger(__name__)

_MAX_REQUEST_LINE = 8 * 1024

_COMMON_HEADERS = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Connection", "close"),
)


def answer(head: bytes, client: str, routes: Routes) -> bytes:
    """Return the response to one request head; never raises."""
    return _Exchange(head, client, routes.respond).sent()


def refusal(status: HTTPStatus, text: str) -> bytes:
    """Return a response for a request that was not looked at."""
    return _Exchange(b"GET / HTTP/1.1\r\n\r\n", "", lambda _: text_response(status, text)).sent()


class _Exchange(BaseHTTPRequestHandler):
    """The standard library's parser between two buffers instead of on a socket."""

    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"  # what is malformed still deserves a status line

    def __init__(self, head: bytes, client: str, respond: Callable[[Request], Response]) -> None:
        self._head = head
        self._respond = respond
        self._out = io.BytesIO()
        self._started = time.perf_counter()
        super().__init__(None, (client, 0), None)  # type: ignore[arg-type]

    def sent(self) -> bytes:
        return self._out.getvalue()

    def setup(self) -> None:
        self.rfile = io.BytesIO(self._head)
        self.wfile = self._out

    def finish(self) -> None:
        pass

    def handle(self) -> None:
        self.requestline = self.command = ""
        self.request_version = self.default_request_version
        self.raw_requestline = self.rfile.readline(_MAX_REQUEST_LINE + 1)
        if len(self.raw_requestline) > _MAX_REQUEST_LINE:
            self.send_error(HTTPStatus.REQUEST_URI_TOO_LONG)
        elif self.parse_request():
            self._send(self._response())

    def _response(self) -> Response:
        try:
            target = urlsplit(self.path)
        except ValueError:
            return text_response(HTTPStatus.BAD_REQUEST, "malformed request target")
        headers: dict[str, str] = {}
        for name, value in self.headers.items():
            known = headers.get(name.lower())
            headers[name.lower()] = value if known is None else f"{known},{value}"
        request = Request(self.command, target.path, target.query, headers)
        try:
            return self._respond(request)
        except Exception:  # noqa: BLE001 (a bug in one page must cost one response, not the server)
            _LOG.error("request for %a failed", target.path, exc_info=True)
            return text_response(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error, see the exporter's log")

    def _send(self, response: Response) -> None:
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        for name, value in (*response.headers, *_COMMON_HEADERS):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)
        self._log(response)

    def _log(self, response: Response) -> None:
        elapsed = time.perf_counter() - self._started
        size = len(response.body)
        client = self.client_address[0]
        _LOG.debug("%s %a %d %d bytes %.6f s", client, self.requestline, response.status, size, elapsed)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        status = HTTPStatus(code)
        self._send(text_response(status, explain or message or status.phrase))

    def handle_expect_100(self) -> bool:
        return True  # no body is ever read here

    def version_string(self) -> str:
        return "ckpt-exporter"

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass  # logged with size and time in _log

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class names it)
        _LOG.debug("%a", format % args)
