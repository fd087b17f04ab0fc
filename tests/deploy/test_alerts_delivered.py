"""From a file that is never committed to a message: exporter, Prometheus, Alertmanager, webhook, all real."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.integration.checkpoints import hugging_face, put
from tests.integration.daemon import Daemon, wait_until, watching
from tests.integration.prometheus import Prometheus, alertmanager, running
from tests.integration.rule_files import ALERTS, FOLDER, RULES
from tests.integration.webhook import Webhook, webhook

pytestmark = pytest.mark.timeout(180)
PATIENCE_SECONDS = 60.0


def write_configuration(base: Path, target: str, manager: str) -> Path:
    """Write the example configuration for one target, with alerts that wait a second, not minutes."""
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    config["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = [manager]
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [target]
    alerts = re.sub(r"^( +for:) .+$", r"\1 1s", ALERTS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    (base / "alerts.yml").write_text(alerts, encoding="utf-8")
    (base / "rules.yml").write_text(RULES.read_text(encoding="utf-8"), encoding="utf-8")
    path = base / "prometheus.yml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


def write_routes(base: Path, receiver: str) -> Path:
    """Write the example routes, to our receiver and without waiting for company."""
    text = (FOLDER / "alertmanager.yml").read_text(encoding="utf-8").replace("localhost:9999", receiver)
    text = text.replace("group_wait: 30s", "group_wait: 1s").replace(
        "group_interval: 5m", "group_interval: 2s"
    )
    path = base / "alertmanager.yml"
    path.write_text(text, encoding="utf-8")
    return path


@contextlib.contextmanager
def chain(base: Path, daemon: Daemon, hook: Webhook) -> Iterator[Prometheus]:
    """Run Prometheus and Alertmanager between a daemon and a webhook."""
    routes = write_routes(base, hook.address)
    with alertmanager(routes, base / "alertmanager") as manager:
        config = write_configuration(base, daemon.url.removeprefix("http://"), manager)
        with running(config, base / "tsdb") as prometheus:
            yield prometheus


def test_an_incomplete_save_is_delivered(tmp_path: Path) -> None:
    """A save whose writer leaves without a commit becomes a ticket with node, directory and runbook."""
    with (
        webhook() as hook,
        watching(tmp_path, "llama", incomplete_seconds=1) as daemon,
        chain(tmp_path, daemon, hook) as prometheus,
    ):
        query = 'count_over_time(ckpt_saves_total{dir="llama",result="incomplete"}[5m]) > 2'
        wait_until(lambda: prometheus.holds(query), PATIENCE_SECONDS, what="the counter at 0")
        hugging_face(tmp_path / "llama", 100, 1 << 20)
        (tmp_path / "llama" / "checkpoint-200").mkdir()
        put(tmp_path / "llama" / "checkpoint-200" / "model.safetensors", 1 << 20)
        wait_until(lambda: "CkptSaveIncomplete" in hook.alerts("firing"), PATIENCE_SECONDS, what="the alert")

        path, alert = hook.alerts("firing")["CkptSaveIncomplete"]

    assert path == "/tickets"
    target = daemon.url.removeprefix("http://")
    labels = {"cluster": "example", "job": "ckpt-exporter", "instance": target, "dir": "llama"}
    assert alert["labels"] == {**labels, "alertname": "CkptSaveIncomplete", "severity": "warning"}
    assert alert["annotations"] == {
        "summary": "A save ended without a usable checkpoint.",
        "description": f"Saves to llama on {target} that ended incomplete in the last three hours: 1. "
        "No commit and the writers gone, cut short, or the disk full.",
        "runbook_url": "https://ckpt-exporter.invalid/runbooks/ckptsaveincomplete.md",
    }


def test_a_directory_that_vanishes_is_delivered_and_resolved(tmp_path: Path) -> None:
    """A watched directory that goes away is told, and told to be over when it is back."""
    with (
        webhook() as hook,
        watching(tmp_path, "llama") as daemon,
        chain(tmp_path, daemon, hook) as prometheus,
    ):
        wait_until(lambda: prometheus.holds("ckpt_watch_up == 1"), PATIENCE_SECONDS, what="a scrape")
        (tmp_path / "llama").rename(tmp_path / "elsewhere")
        wait_until(lambda: "CkptWatchDown" in hook.alerts("firing"), PATIENCE_SECONDS, what="the alert")
        (tmp_path / "elsewhere").rename(tmp_path / "llama")
        wait_until(lambda: "CkptWatchDown" in hook.alerts("resolved"), PATIENCE_SECONDS, what="its end")
