# ruff: noqa: E501 (seeds stand in one piece)
"""What is fuzzed: each target takes any bytes, and fails where a promise is broken."""

from __future__ import annotations

import os
import re
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from ckpt_exporter.config.web_file import WebFile, load_web_file
from ckpt_exporter.errors import ConfigError
from ckpt_exporter.metrics import build_registry
from ckpt_exporter.web.auth import HashTurns, Passwords
from ckpt_exporter.web.connections import Connections, Limits
from ckpt_exporter.web.protocol import Reply, answer
from ckpt_exporter.web.routes import Request, Response, Routes
from ckpt_exporter.web.security import Security
from tests.unit.export_sample import sample_snapshot

Target = Callable[[bytes], None]

MAX_REPLY_BYTES = 200_000  # the sample's scrape is a fifth of that
_HASH = "$2b$04$" + "." * 53
_HEADERS = (("Content-Security-Policy", "default-src 'self'"),)
_STATUS = re.compile(rb"HTTP/1\.1 ([0-9]{3}) [A-Za-z -]+")
_FIELD = re.compile(rb"[A-Za-z-]+: [\x20-\x7e]*")
_STATUSES = {200, 400, 401, 404, 405, 414, 429, 431, 501, 505}
_OPEN_BODIES = (b"", b"ckpt-exporter is healthy\n", b"ckpt-exporter is ready\n")


@cache
def _respond() -> Callable[[Request], Response]:
    """Return routes behind a password that nobody has."""
    routes = Routes(
        "/metrics", build_registry(sample_snapshot), lambda: "<p>secret</p>", lambda: True, lambda: True
    )
    turns = HashTurns(rest_ratio=0.0)
    passwords = Passwords({"alice": _HASH}, lambda _password, _stored: False, turns)
    security = Security(WebFile("web.yml", headers=_HEADERS, users={"alice": _HASH}), passwords=passwords)
    return lambda request: security.refusal(request) or routes.respond(request)


def request(data: bytes) -> None:
    """Any request head gets one well-formed response that shows nothing to who has no password."""
    reply = answer(data, "10.0.0.1", _respond(), _HEADERS)
    check_reply(reply)


def check_reply(reply: Reply) -> None:
    """Check one response: form, length, headers, and that it gives nothing away."""
    head, _, body = reply.data.partition(b"\r\n\r\n")
    status_line, *fields = head.split(b"\r\n")
    match = _STATUS.fullmatch(status_line)
    assert match is not None, status_line
    status = int(match[1])
    assert status in _STATUSES, status
    assert all(_FIELD.fullmatch(field) for field in fields), fields
    headers = dict(field.split(b": ", 1) for field in fields)
    assert len(headers) == len(fields), "a header is given twice"
    assert body in (b"",) or int(headers[b"Content-Length"]) == len(body)
    assert reply.keep == (b"Connection" not in headers)
    assert headers[b"Content-Security-Policy"] == b"default-src 'self'"
    assert len(reply.data) < MAX_REPLY_BYTES
    assert not any(word in reply.data for word in (b"Traceback", b"secret", b"ckpt_saves_total", b'.py"'))
    assert status != 200 or body in _OPEN_BODIES


@contextmanager
def _serving() -> Iterator[tuple[Connections, int]]:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0)

    def respond(head: bytes, client: str) -> Reply:
        return answer(head, client, _respond(), _HEADERS)

    connections = Connections([listener], respond, Limits(timeout_seconds=5.0))
    connections.start()
    try:
        yield connections, listener.getsockname()[1]
    finally:
        connections.stop()


class Stream:
    """Any bytes on a connection, in two pieces, end in whole responses; the server goes on and forgets them."""

    def __init__(self) -> None:
        self._serving = _serving()
        self._connections, self._port = self._serving.__enter__()

    def __call__(self, data: bytes) -> None:
        """Send, read to the end, and see that nothing is left."""
        cut = data[0] * len(data) // 256 if data else 0
        with socket.create_connection(("127.0.0.1", self._port), timeout=10) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            received = b""
            try:
                client.sendall(data[:cut])
                client.sendall(data[cut:])
                client.shutdown(socket.SHUT_WR)
                while more := client.recv(65536):
                    received += more
            except ConnectionError:
                pass
        assert not received or received.startswith(b"HTTP/1.1 ")
        assert b"Traceback" not in received
        assert len(received) <= MAX_REPLY_BYTES * (1 + data.count(b"\n"))
        assert self._connections._thread.is_alive()
        assert len(self._connections._peers) <= 3

    def close(self) -> None:
        """Stop the server."""
        self._serving.__exit__(None, None, None)


@cache
def _file() -> Path:
    return Path(tempfile.mkdtemp(prefix="ckpt-fuzz-"), "web.yml")


def web_file(data: bytes) -> None:
    """Any web-config file is either read or refused with one-line problems that name it."""
    path = _file()
    path.write_bytes(data)
    problems: tuple[str, ...] | None = None
    try:
        load_web_file(os.fspath(path))
    except ConfigError as error:
        problems = error.problems
    assert problems != ()
    for problem in problems or ():
        assert problem.startswith(f"{path}: ")
        assert problem.isprintable()
        assert len(problem) < 1_000


SEEDS: Mapping[str, tuple[bytes, ...]] = {
    "request": (
        (
            b"GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: application/openmetrics-text;version=1.0.0\r\n"
            b"Accept-Encoding: gzip\r\nAuthorization: Basic YWxpY2U6eA==\r\n\r\n"
        ),
        b"HEAD /-/healthy HTTP/1.0\r\nConnection: close\r\n\r\n",
        b"GET http://a/-/ready?name[]=x HTTP/1.1\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n",
    ),
    "web_file": (
        (
            b"tls_server_config: {cert_file: a, key_file: b, client_auth_type: NoClientCert, min_version: TLS12}\n"
            b"http_server_config: {http2: true, headers: {X-Frame-Options: deny}}\n"
            b"basic_auth_users: {a: b}\nrate_limit: {interval: 1s, burst: 1}\n"
        ),
        b"tls_server_config:\n  cipher_suites: [TLS_AES_128_GCM_SHA256]\n  curve_preferences:\n  - X25519\n",
        b"&a {b: *a, <<: {c: !!binary x}, ? [1]: 2}\n",
    ),
}
