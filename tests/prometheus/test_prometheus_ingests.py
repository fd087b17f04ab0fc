"""A real Prometheus scrapes the exporter: what it stored is what was exported."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from ckpt_exporter.metrics import expose
from tests.unit.export_sample import sample_snapshot
from tests.unit.scraping import registry_of
from tests.unit.web_site import serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="the server prometheus is not installed (package prometheus)"
)

CONFIG = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: ckpt
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
  - job_name: text
    static_configs: [{{targets: ["127.0.0.1:{text_port}"]}}]
"""
PATIENCE_SECONDS = 45.0


class Prometheus:
    """A running server and its HTTP API."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}/api/v1"

    def ask(self, path: str, **query: str) -> Any:
        """Return the data of an answer, None while there is no server yet."""
        address = f"{self._base}/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:
                return json.load(answer)["data"]
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None

    def values(self, query: str) -> dict[str, float]:
        """Return the values of an instant query by the job and the label that tells its series apart."""
        found = self.ask("query", query=query) or {"result": []}
        return {
            " ".join(v for k, v in sorted(row["metric"].items()) if k not in ("__name__", "dir", "instance")):
            float(row["value"][1])
            for row in found["result"]
        }  # fmt: skip

    def wait_for(self, query: str, count: int) -> dict[str, float]:
        """Poll until a query has so many series."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(found := self.values(query)) < count:
            assert time.monotonic() < deadline, f"{query}: {found}, {self.ask('targets')}"
            time.sleep(0.1)
        return found


def free_port() -> int:
    """Return a port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(folder: Path, config: str) -> Iterator[Prometheus]:
    """Run a Prometheus on the loopback address with its data in a folder."""
    (folder / "prometheus.yml").write_text(config)
    port = free_port()
    command = [
        "prometheus",
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with open(folder / "log", "wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield Prometheus(port)
        finally:
            process.terminate()
            process.wait(20)


class TextOnly(BaseHTTPRequestHandler):
    """Answers in the text format whatever is asked for; Prometheus prefers OpenMetrics."""

    def do_GET(self) -> None:
        answer = expose(registry_of(sample_snapshot()))
        self.send_response(200)
        self.send_header("Content-Type", answer.content_type)
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, *arguments: object) -> None:
        pass


@contextlib.contextmanager
def text_only() -> Iterator[int]:
    """Serve the sample in the text format and tell the port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), TextOnly) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def test_prometheus_stores_the_counter_and_the_histogram_of_one_name(tmp_path: Path) -> None:
    """Prometheus takes ``ckpt_bubble_seconds_total`` and ``ckpt_bubble_seconds`` in both formats."""
    with serving() as site, text_only() as text_port:
        config = CONFIG.format(port=site.server.port, text_port=text_port)
        with running(tmp_path, config) as prometheus:
            phases = prometheus.wait_for('ckpt_bubble_seconds_total{dir="llama"}', 8)
            buckets = prometheus.wait_for('ckpt_bubble_seconds_bucket{dir="llama",le=~"5(.0)?|20(.0)?"}', 4)
            lost = prometheus.wait_for('ckpt_gpu_bubble_seconds_total{dir="llama"}', 4)
            observed = prometheus.wait_for("ckpt_gpu_observed_seconds_total", 4)
            kinds = {
                (row["target"]["job"], row["metric"]): row["type"]
                for row in prometheus.ask("targets/metadata")
                if row["metric"].startswith("ckpt_bubble_seconds")
            }
    for job in ("ckpt", "text"):
        expected = {"before_write": 2.5, "writing": 18.0, "write_gap": 0.5, "after_write": 3.0}
        assert {phase: phases[f"{job} {phase}"] for phase in expected} == expected
        assert sorted(count for key, count in buckets.items() if key.startswith(job)) == [0, 2]
        assert sorted(lost[key] for key in lost if job in key) == [22, 26]
        assert sorted(observed[key] for key in observed if job in key) == [700, 800]
        assert kinds[job, "ckpt_bubble_seconds"] == "histogram"
    assert kinds["ckpt", "ckpt_bubble_seconds_total"] == "unknown"
    assert kinds["text", "ckpt_bubble_seconds_total"] == "counter"
