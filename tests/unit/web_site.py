"""A running web server for tests, and clients to try it with."""

from __future__ import annotations

import contextlib
import http.client
import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ckpt_exporter.metrics import build_registry
from ckpt_exporter.web.pages.status import StatusPage
from ckpt_exporter.web.server import WebServer
from tests.unit.export_sample import sample_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from ckpt_exporter.web.connections import Limits


@dataclass
class Site:
    """A running server whose answers a test can change."""

    server: WebServer
    health: dict[str, bool]
    page: list[Callable[[], str]]
    clients: list[socket.socket] = field(default_factory=list)

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
        """Ask over HTTP and return response and body; ``accept_encoding`` names ``Accept-Encoding``."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=20)
        with contextlib.closing(connection):
            connection.request(
                method, path, headers={name.replace("_", "-"): text for name, text in headers.items()}
            )
            response = connection.getresponse()
            return response, response.read()

    def connect(self) -> socket.socket:
        """Open a plain connection that is closed with the test."""
        client = socket.create_connection(("127.0.0.1", self.server.port), timeout=20)
        self.clients.append(client)
        return client

    def raw(self, sent: bytes) -> bytes:
        """Send bytes and nothing more, and return all that comes back."""
        client = self.connect()
        client.sendall(sent)
        with contextlib.suppress(OSError):  # the server has gone already
            client.shutdown(socket.SHUT_WR)
        return read_all(client)


def read_all(client: socket.socket) -> bytes:
    """Read until the server closes; a reset counts as closed."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while data := client.recv(65536):
            received += data
    return received


def ask(port: int) -> bytes:
    """Send a small request on a connection of its own and return the answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        client.shutdown(socket.SHUT_WR)
        return read_all(client)


def wait_for(condition: Callable[[], bool]) -> None:
    """Poll for at most ten seconds until a condition holds."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.01)


@contextlib.contextmanager
def serving(
    telemetry_path: str = "/metrics",
    limits: Limits | None = None,
    config_file: Path | None = None,
    addresses: Sequence[str] = ("127.0.0.1:0",),
) -> Iterator[Site]:
    """Run a server with the sample data on a free port of the loopback address."""
    health = {"healthy": True, "ready": True}
    page: list[Callable[[], str]] = [StatusPage(sample_snapshot, started=0.0, telemetry_path=telemetry_path)]

    def current_page() -> str:
        return page[0]()

    server = WebServer(
        addresses,
        telemetry_path,
        build_registry(sample_snapshot),
        current_page,
        lambda: health["healthy"],
        lambda: health["ready"],
        limits=limits,
        config_file=None if config_file is None else str(config_file),
    )
    server.start()
    site = Site(server, health, page)
    try:
        yield site
    finally:
        server.stop()
        for client in site.clients:
            client.close()
