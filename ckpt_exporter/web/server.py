"""The web server: a listening socket, limits on connections, and routes, put together."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ckpt_exporter.web.connections import Connections, Limits
from ckpt_exporter.web.listen import ListenAddress, bound_address, open_listener, parse_listen_address
from ckpt_exporter.web.protocol import answer
from ckpt_exporter.web.routes import Routes

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import CollectorRegistry


class WebServer:
    """Serves metrics, status page and health checks by HTTP.

    ``page``, ``healthy`` and ``ready`` run in request threads and must read memory only. Raises
    ``UsageError`` for a malformed address or path.
    """

    def __init__(  # noqa: PLR0917 (each part is injected)
        self,
        listen_address: str,
        telemetry_path: str,
        registry: CollectorRegistry,
        page: Callable[[], str],
        healthy: Callable[[], bool],
        ready: Callable[[], bool],
        *,
        limits: Limits | None = None,
    ) -> None:
        self._wanted = parse_listen_address(listen_address)
        self._routes = Routes(telemetry_path, registry, page, healthy, ready)
        self._limits = limits or Limits()
        self._bound: ListenAddress | None = None
        self._connections: Connections | None = None

    def start(self) -> None:
        """Listen and serve; raise ``CkptExporterError`` when the address can't be had."""
        listener = open_listener(self._wanted)
        self._bound = bound_address(listener)
        self._connections = Connections(listener, partial(_respond, self._routes), self._limits)
        self._connections.start()

    def stop(self) -> None:
        """Stop serving and close all connections, in less than a second; harmless when not started."""
        connections, self._connections = self._connections, None
        if connections is not None:
            connections.stop()

    @property
    def address(self) -> str:
        """``HOST:PORT`` as bound; as asked for before ``start``."""
        return str(self._bound or self._wanted)

    @property
    def port(self) -> int:
        """The port as bound; as asked for before ``start``."""
        return (self._bound or self._wanted).port


def _respond(routes: Routes, head: bytes, client: str) -> bytes:
    return answer(head, client, routes)
