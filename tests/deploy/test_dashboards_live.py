"""The demo, scraped by a real Prometheus each second, asked every query of every dashboard."""

from __future__ import annotations

import contextlib
import json
import math
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dashboards import UIDS, Question, defaults, filled, load, questions_of
from tests.integration.daemon import Daemon, launch, wait_until
from tests.integration.prometheus import tool
from tests.promql_units import nodes, parsed

# The demo is no scheduler's job, and the dashboard of a job needs rules with windows of an hour.
LIVE = [uid for uid in UIDS if uid != "ckpt-job"]
# The demo saves each twelve seconds or so: two saves in the range, and as much again before it.
RANGE_SECONDS = 30
SAVES = 5
PATIENCE_SECONDS = 110.0

CONFIG = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: ckpt-exporter
    static_configs: [{{targets: ["{target}"], labels: {{cluster: "demo"}}}}]
"""
# Whatever alerts there are, the list shows those that fire.
RULES = "groups: [{name: g, rules: [{alert: CkptAlways, expr: vector(1), labels: {severity: info}}]}]"

pytestmark = pytest.mark.timeout(180)


@contextlib.contextmanager
def scraping(place: Path, daemon: Daemon) -> Iterator[str]:
    """Run a Prometheus that scrapes the daemon; give its address."""
    rules, config = place / "rules.yml", place / "prometheus.yml"
    rules.write_text(RULES, encoding="utf-8")
    target = daemon.url.removeprefix("http://")
    config.write_text(CONFIG.format(rules=rules, target=target), encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [tool("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={place / 'data'}"]
    with open(place / "prometheus.log", "wb") as log:
        process = subprocess.Popen(
            [*command, f"--web.listen-address={address}"], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(timeout=30)


def get(url: str, what: str, **parameters: object) -> list[dict[str, Any]]:
    """Ask Prometheus; an answer that is not there yet is empty."""
    address = f"{url}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
    with contextlib.suppress(urllib.error.URLError, ConnectionError):
        with urllib.request.urlopen(address, timeout=10) as answer:
            result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return result
    return []


def ask(url: str, question: Question, now: float) -> list[float]:
    """Run one query as its panel would, with the one node and directory chosen; return all its values."""
    a_range = f"{RANGE_SECONDS}s"
    values = defaults(dir="demo", window=a_range, __range=a_range, __rate_interval="4s")
    expr = filled(question.expr, values)
    if question.instant:
        answer = get(url, "query", query=expr, time=now)
        return [float(series["value"][1]) for series in answer]
    answer = get(url, "query_range", query=expr, start=now - RANGE_SECONDS, end=now, step=1)
    return [float(value) for series in answer for _, value in series["values"]]


def unknown_here(url: str, question: Question) -> bool:
    """Tell whether a query needs a metric that the exporter leaves out here, or a load: the demo has none."""
    tree = parsed(filled(question.expr, defaults()))
    names = {node.name for node, _ in nodes(tree) if type(node).__name__ == "VectorSelector"}
    return any(
        name.startswith("ckpt_load_") or not get(url, "query", query=f"last_over_time({name}[5m])")
        for name in names
    )


def test_every_query_has_data_in_the_demo(tmp_path: Path) -> None:
    """After a few saves of the demo, each query returns finite numbers, or needs what this machine lacks."""
    with launch(tmp_path / "demo.log", "demo") as daemon, scraping(tmp_path, daemon) as url:
        saves = 'ckpt_bubble_seconds_count{dir="demo"}'
        wait_until(
            lambda: any(float(one["value"][1]) >= SAVES for one in get(url, "query", query=saves)),
            PATIENCE_SECONDS,
            what=f"{SAVES} saves with a bubble",
        )
        now = time.time()
        answers = {q: ask(url, q, now) for uid in LIVE for q in questions_of(load(uid))}
        empty = [q for q, values in answers.items() if not values and not unknown_here(url, q)]

    assert empty == []
    assert all(math.isfinite(value) for values in answers.values() for value in values)
    share = next(v for q, v in answers.items() if (q.board, q.panel) == ("ckpt-fleet", "Bubble share"))
    # 1.5 s or more of saving in each twelve seconds, and GPUs that train in between.
    assert 0.05 < share[0] < 0.6
