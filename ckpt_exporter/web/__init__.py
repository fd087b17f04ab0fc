"""HTTP: server, routes and the status page."""

from __future__ import annotations

from ckpt_exporter.web.pages.status import StatusPage
from ckpt_exporter.web.server import WebServer

__all__ = ["StatusPage", "WebServer"]
