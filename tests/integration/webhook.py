"""A receiver of Alertmanager's messages."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Webhook:
    """What came in, by the path that it was sent to."""

    address: str = ""
    received: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def alerts(self, status: str) -> dict[str, tuple[str, dict[str, Any]]]:
        """Return path and alert, by the alert's name, of those with a status."""
        return {
            alert["labels"]["alertname"]: (path, alert)
            for path, message in list(self.received)
            for alert in message["alerts"]
            if alert["status"] == status
        }


@contextlib.contextmanager
def webhook() -> Iterator[Webhook]:
    """Take in messages on a free port of this machine alone."""
    hook = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            hook.received.append((self.path, json.loads(self.rfile.read(length))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hook.address = f"127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield hook
        finally:
            server.shutdown()
            thread.join()
