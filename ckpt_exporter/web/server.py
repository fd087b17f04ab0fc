"""The web server: listening sockets, limits on connections, who may ask, and routes, put together."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING

from ckpt_exporter.web.connections import Connections, Limits
from ckpt_exporter.web.listen import (
    bound_address,
    is_foreign_name,
    is_loopback,
    open_listener,
    parse_listen_address,
)
from ckpt_exporter.web.protocol import Reply, answer
from ckpt_exporter.web.routes import Request, Response, Routes, text_response
from ckpt_exporter.web.security import Security, SecurityFile, SecurityStatus

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_REFUSALS = {
    HTTPStatus.UNAUTHORIZED: "unauthorized",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limited",
    HTTPStatus.MISDIRECTED_REQUEST: "misdirected",
}
_MISDIRECTED = text_response(
    HTTPStatus.MISDIRECTED_REQUEST, "this is a loopback address: ask for localhost, not for another name"
)
_UNDECIDED = text_response(HTTPStatus.OK, "")


class WebServer:
    """Serves metrics, status page and health checks by HTTP, or HTTPS where the web-config file says so.

    ``page``, ``healthy`` and ``ready`` run in request threads and must read memory only. ``sockets`` that
    listen already, from a service manager, take the place of the addresses. Raises ``UsageError`` for a
    malformed address or path, ``ConfigError`` for a bad web-config file.
    """

    def __init__(  # noqa: PLR0917 (each part is injected)
        self,
        listen_address: str | Sequence[str],
        telemetry_path: str,
        registry: CollectorRegistry,
        page: Callable[[], str],
        healthy: Callable[[], bool],
        ready: Callable[[], bool],
        *,
        limits: Limits | None = None,
        config_file: str | None = None,
        sockets: Sequence[socket.socket] = (),
    ) -> None:
        addresses = (listen_address,) if isinstance(listen_address, str) else tuple(listen_address)
        self._wanted = tuple(map(parse_listen_address, addresses))
        self._sockets = tuple(sockets)
        self._routes = Routes(telemetry_path, registry, page, healthy, ready)
        self._limits = limits or Limits()
        self._security = SecurityFile(config_file)
        self._bound: tuple[str, ...] = ()
        self._own_names = frozenset(
            name.lower() for name in (socket.gethostname(), *(wanted.host for wanted in self._wanted))
        )
        self._only_here = False
        self._port = self._wanted[0].port
        self._connections: Connections | None = None
        self._lock = threading.Lock()
        self._turned_away = Counter(dict.fromkeys(_REFUSALS.values(), 0))

    def start(self) -> None:
        """Listen and serve; raise ``CkptExporterError``, with nothing open, when an address can't be had."""
        listeners = list(self._sockets)
        try:
            if not listeners:
                for wanted in self._wanted:
                    listeners.append(open_listener(wanted))  # noqa: PERF401 (what is open must be closed)
        except BaseException:
            for listener in listeners:
                listener.close()
            raise
        bound = [bound_address(listener) for listener in listeners]
        self._bound, self._port = tuple(map(str, bound)), bound[0].port
        self._only_here = all(is_loopback(address.host) for address in bound)
        self._connections = Connections(
            listeners, self, self._limits, gate=lambda: self._security.current.gate
        )
        self._connections.start()
        self._security.start()

    def stop(self) -> None:
        """Stop serving and close all connections, in less than a second; harmless when not started."""
        self._security.stop()
        connections, self._connections = self._connections, None
        if connections is not None:
            connections.stop()

    def reload(self) -> None:
        """Read the web-config file again now; a bad one leaves the old one in force."""
        self._security.reload()

    @property
    def address(self) -> str:
        """``HOST:PORT`` as bound, the first of several; as asked for before ``start``."""
        return self.addresses[0]

    @property
    def addresses(self) -> tuple[str, ...]:
        """Every address as bound; as asked for before ``start``."""
        return self._bound or tuple(map(str, self._wanted))

    @property
    def port(self) -> int:
        """The first port as bound; as asked for before ``start``."""
        return self._port

    @property
    def config_status(self) -> SecurityStatus | None:
        """Outcome of the last reading of the web-config file; None without one."""
        return self._security.status

    @property
    def rejected(self) -> dict[str, int]:
        """Count of connections cut off and requests turned away, by reason."""
        connections = self._connections
        with self._lock:
            counted = dict(self._turned_away)
        return counted | (dict(connections.refused) if connections is not None else {})

    # --- what connections ask -----------------------------------------------------------------------------

    def knows(self, head: bytes) -> bool:
        """Tell at a glance whether a request may be answered at once; admits nobody."""
        return self._security.current.knows(head)

    def refuse(self, head: bytes, client: str) -> Reply | None:
        """Return the refusal of a stranger's request, None where that takes longer; never waits."""
        security, undecided = self._security.current, False

        def respond(request: Request) -> Response:
            nonlocal undecided
            refusal = security.refusal(request, wait=False)
            undecided = refusal is None
            return _UNDECIDED if refusal is None else self._counted(refusal)

        reply = answer(head, client, respond, security.headers)
        return None if undecided else reply

    def respond(self, head: bytes, client: str) -> Reply:
        """Return the response; may take as long as the hash of a password."""
        security = self._security.current

        def respond(request: Request) -> Response:
            refusal = security.refusal(request) or self._misdirected(request, security)
            return self._routes.respond(request) if refusal is None else self._counted(refusal)

        return answer(head, client, respond, security.headers)

    def _misdirected(self, request: Request, security: Security) -> Response | None:
        """Refuse other sites' names where the loopback address is all that keeps others out."""
        if not self._only_here or security.gate is not None or security.passwords is not None:
            return None
        foreign = is_foreign_name(request.headers.get("host", ""), self._own_names)
        return _MISDIRECTED if foreign else None

    def _counted(self, refusal: Response) -> Response:
        with self._lock:
            self._turned_away[_REFUSALS[HTTPStatus(refusal.status)]] += 1
        return refusal
