"""HTTP/1.1 as bytes in, bytes out: request heads parsed by the standard library, after a stricter look.

A request with a body is answered without it and its connection closed, so nobody's bytes are ever taken for
another's request.
"""

from __future__ import annotations

import io
import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

from ckpt_exporter.web.routes import Request, Response, text_response

_LOG = logging.getLogger(__name__)

_MAX_REQUEST_LINE = 8 * 1024
# ASCII alone: the standard library would split at other spaces, such as 0xa0, too.
_REQUEST_LINE = re.compile(rb"[\x21-\x7e]+(?: [\x21-\x7e]+){2}")
# Its answers have no head: no status, no length, no policy.
_HTTP_0 = re.compile(rb".* HTTP/0+\.[0-9]+\s*", re.DOTALL)
# No folded lines, no space before the colon, no bare CR, no NUL: what servers and proxies read differently.
_FIELD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*")

_COMMON_HEADERS = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
)


@dataclass(frozen=True, slots=True)
class Reply:
    """A response as bytes, and whether the connection may carry another request."""

    data: bytes
    keep: bool = False


def answer(
    head: bytes,
    client: str,
    respond: Callable[[Request], Response],
    headers: Sequence[tuple[str, str]] = (),
) -> Reply:
    """Return the response to one request head; never raises. ``headers`` take the place of the usual ones."""
    exchange = _Exchange(head, client, respond, headers)
    return Reply(exchange.sent(), exchange.keep)


def refusal(status: HTTPStatus, text: str) -> Reply:
    """Return a response for a request that was not looked at."""
    return answer(b"GET / HTTP/1.0\r\n\r\n", "", lambda _: text_response(status, text))


class _Exchange(BaseHTTPRequestHandler):
    """The standard library's parser between two buffers instead of on a socket."""

    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"  # what is malformed still deserves a status line

    def __init__(
        self,
        head: bytes,
        client: str,
        respond: Callable[[Request], Response],
        headers: Sequence[tuple[str, str]],
    ) -> None:
        self._head = head
        self._respond = respond
        self._extra_headers = headers
        self._out = io.BytesIO()
        self._started = time.perf_counter()
        self.keep = False
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
        elif not _well_formed(self._head):
            self.send_error(HTTPStatus.BAD_REQUEST, "malformed request")
        elif _HTTP_0.fullmatch(self.raw_requestline):
            self.send_error(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
        elif self.parse_request():
            response = self._response()
            self.keep = self._may_keep() and response.status != HTTPStatus.BAD_REQUEST
            self._send(response)

    def _may_keep(self) -> bool:
        """Tell whether the next byte of the connection, if any, begins another request."""
        tokens = {token.strip().lower() for token in self.headers.get("Connection", "").split(",")}
        lengths = self.headers.get_all("Content-Length", [])
        has_body = "Transfer-Encoding" in self.headers or any(length.strip() != "0" for length in lengths)
        current = self.request_version == "HTTP/1.1"
        return current and "close" not in tokens and not has_body and "Upgrade" not in self.headers

    def _response(self) -> Response:
        try:
            target = urlsplit(self.path)
        except ValueError:
            return text_response(HTTPStatus.BAD_REQUEST, "malformed request target")
        headers: dict[str, str] = {}
        for name, value in self.headers.items():
            known = headers.get(name.lower())
            headers[name.lower()] = value if known is None else f"{known},{value}"
        request = Request(self.command, target.path, target.query, headers, self.client_address[0])
        try:
            return self._respond(request)
        except Exception:  # noqa: BLE001 (a bug in one page must cost one response, not the server)
            _LOG.error("request for %a failed", target.path, exc_info=True)
            return text_response(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error, see the exporter's log")

    def _send(self, response: Response) -> None:
        headers = dict(_COMMON_HEADERS)
        headers["Content-Type"] = response.content_type
        headers["Content-Length"] = str(len(response.body))
        headers.update(response.headers)
        headers.update(self._extra_headers)
        if not self.keep:
            headers["Connection"] = "close"
        self.send_response(response.status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)
        self._log(response)

    def _log(self, response: Response) -> None:
        elapsed = time.perf_counter() - self._started
        size = len(response.body)
        asked = self.requestline or self.raw_requestline[:200].decode("latin-1").rstrip()
        client = self.client_address[0]
        _LOG.debug("%s %a %d %d bytes %.6f s", client, asked, response.status, size, elapsed)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        status = HTTPStatus(code)
        self.keep = False
        self._send(text_response(status, explain or message or status.phrase))

    def handle_expect_100(self) -> bool:
        return True  # no body is ever read here

    def version_string(self) -> str:
        return "ckpt-exporter"

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass  # logged with size and time in _log

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class names it)
        _LOG.debug("%a", format % args)


def _well_formed(head: bytes) -> bool:
    request_line, *fields = (line.removesuffix(b"\r") for line in head.rstrip(b"\r\n").split(b"\n"))
    return bool(_REQUEST_LINE.fullmatch(request_line)) and all(map(_FIELD.fullmatch, fields))
