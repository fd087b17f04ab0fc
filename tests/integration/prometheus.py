"""A real Prometheus on a data directory that promtool filled, to ask what a dashboard would ask."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.daemon import wait_until

# Recorded times may lie far back; nothing is to be thrown away.
RETENTION = "50y"


class Prometheus:
    """A running server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ready(self) -> bool:
        with contextlib.suppress(urllib.error.URLError, OSError):
            return bool(urllib.request.urlopen(f"{self.url}/-/ready", timeout=5).read())
        return False

    def value(self, query: str, unix: float) -> float:
        """Evaluate a query that has one value at a moment."""
        parameters = urllib.parse.urlencode({"query": query, "time": unix})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{parameters}", timeout=30) as answer:
            result = json.load(answer)["data"]["result"]
        assert len(result) == 1, f"{query}: {result}"
        return float(result[0]["value"][1])


def tool(name: str) -> str:
    """Find a program of Prometheus, or skip."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is missing (Debian package prometheus)")
    return path


def backfill(openmetrics: Path, data: Path) -> None:
    """Turn samples with timestamps into blocks of Prometheus's own storage."""
    command = [tool("promtool"), "tsdb", "create-blocks-from", "openmetrics", str(openmetrics), str(data)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@contextlib.contextmanager
def serving(data: Path) -> Iterator[Prometheus]:
    """Serve a data directory on a free port of this machine alone, scraping nothing."""
    config = data.parent / "prometheus.yml"
    config.write_text("scrape_configs: []\n", encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        host, port = probe.getsockname()
        address = f"{host}:{port}"
    command = [tool("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={data}"]
    command += [f"--web.listen-address={address}", f"--storage.tsdb.retention.time={RETENTION}"]
    with open(data.parent / "prometheus.log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        server = Prometheus(f"http://{address}")
        wait_until(lambda: process.poll() is not None or server.ready(), 30, what="Prometheus")
        assert process.poll() is None, (data.parent / "prometheus.log").read_text(encoding="utf-8")
        yield server
    finally:
        process.terminate()
        process.wait(timeout=30)
