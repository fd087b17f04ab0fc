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
from collections.abc import Callable, Iterator
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

    def holds(self, query: str) -> bool:
        """Tell whether a query has a result now."""
        address = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        with urllib.request.urlopen(address, timeout=30) as answer:
            return bool(json.load(answer)["data"]["result"])

    def value(self, query: str, unix: float) -> float:
        """Evaluate a query that has one value at a moment."""
        parameters = urllib.parse.urlencode({"query": query, "time": unix})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{parameters}", timeout=30) as answer:
            result = json.load(answer)["data"]["result"]
        assert len(result) == 1, f"{query}: {result}"
        return float(result[0]["value"][1])

    def values(self, query: str, start: float, end: float, step: float) -> list[tuple[float, float]]:
        """Evaluate a query of at most one series at each step of a time; return (unix, value)."""
        asked = {"query": query, "start": start, "end": end, "step": step}
        address = f"{self.url}/api/v1/query_range?{urllib.parse.urlencode(asked)}"
        with urllib.request.urlopen(address, timeout=60) as answer:
            result = json.load(answer)["data"]["result"]
        assert len(result) <= 1, f"{query}: {len(result)} series"
        return [(float(unix), float(value)) for row in result for unix, value in row["values"]]


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


def backfill_rules(rules: Path, data: Path, start: float, end: float, step: float) -> None:
    """Let recording rules record a time that is past, as blocks beside those that they read.

    They read what is in ``data`` already: rules that read each other take one call for each layer.
    """
    with serving(data) as server:
        command = [tool("promtool"), "tsdb", "create-blocks-from", "rules", f"--url={server.url}"]
        command += [f"--start={start:.0f}", f"--end={end:.0f}", f"--eval-interval={step:.0f}s"]
        command += [f"--output-dir={data}", str(rules)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@contextlib.contextmanager
def serving(data: Path) -> Iterator[Prometheus]:
    """Serve a data directory on a free port of this machine alone, scraping nothing."""
    config = data.parent / "prometheus.yml"
    config.write_text("scrape_configs: []\n", encoding="utf-8")
    with running(config, data) as server:
        yield server


@contextlib.contextmanager
def running(config: Path, data: Path) -> Iterator[Prometheus]:
    """Run a Prometheus with a configuration on a free port of this machine alone."""
    address = free_address()
    command = [tool("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={data}"]
    command += [f"--web.listen-address={address}", f"--storage.tsdb.retention.time={RETENTION}"]
    server = Prometheus(f"http://{address}")
    with _process(command, data.parent / "prometheus.log", server.ready):
        yield server


@contextlib.contextmanager
def alertmanager(config: Path, data: Path) -> Iterator[str]:
    """Run an Alertmanager of one on a free port of this machine alone; return its address."""
    address = free_address()
    command = [tool("prometheus-alertmanager"), f"--config.file={config}", f"--storage.path={data}"]
    # Without an empty cluster address it would look for peers, on all addresses.
    command += [f"--web.listen-address={address}", "--cluster.listen-address="]
    with _process(command, data.parent / "alertmanager.log", Prometheus(f"http://{address}").ready):
        yield address


def free_address() -> str:
    """Return an address of this machine alone on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        host, port = probe.getsockname()
    return f"{host}:{port}"


@contextlib.contextmanager
def _process(command: list[str], log_path: Path, ready: Callable[[], bool]) -> Iterator[None]:
    with open(log_path, "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_until(lambda: process.poll() is not None or ready(), 30, what=command[0])
        assert process.poll() is None, log_path.read_text(encoding="utf-8")
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)
