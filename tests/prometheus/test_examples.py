"""The example configurations for several Prometheus servers: they load, and name what the rules read."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.prometheus import tool
from tests.integration.rule_files import ALERTS, FOLDER, RULES, alerts, recorded

EXAMPLES = sorted((FOLDER / "examples").glob("*.yml"))
CLUSTER = FOLDER.parents[1] / "docs" / "cluster.md"


def read(name: str) -> Any:
    return yaml.safe_load((FOLDER / "examples" / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_prometheus_loads_the_example(path: Path) -> None:
    """Each is a complete configuration, with the rule files where it names them."""
    done = subprocess.run(
        [tool("promtool"), "check", "config", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_example_is_explained() -> None:
    """The page on clusters leads to each of them."""
    text = CLUSTER.read_text(encoding="utf-8")

    assert set(re.findall(r"examples/([\w-]+\.yml)\)", text)) == {path.name for path in EXAMPLES}


def test_the_aggregate_takes_what_the_rules_read_and_no_more() -> None:
    """A metric that a new rule reads and the shards do not hand on would silently make it empty."""
    (job,) = read("aggregate.yml")["scrape_configs"]
    read_by_rules = {name for rule in (*recorded(), *alerts()) for name in rule.names if ":" not in name}

    assert job["honor_labels"] is True
    assert set(job["params"]["match[]"]) == read_by_rules | {'up{job="ckpt-exporter"}'}


def test_the_fleet_takes_every_level_above_nodes() -> None:
    """Jobs, directories and clusters are handed on, nodes are not."""
    (job,) = read("fleet.yml")["scrape_configs"]
    (levels,) = re.findall(r"\(([a-z_|]+)\):", job["params"]["match[]"][0])
    known = {rule.name.partition(":")[0] for rule in recorded()} - {"ckpt"}

    assert set(levels.split("|")) == {level for level in known if not level.startswith("instance")}


def test_shards_evaluate_no_rules() -> None:
    """A shard sees a part of a job; what it recorded of one would look like the whole."""
    assert "rule_files" not in read("shard.yml")


def test_groups_fit_into_a_store() -> None:
    """Mimir takes at most 20 rules in a group unless told otherwise."""
    groups = [
        g for path in (RULES, ALERTS) for g in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    ]

    assert max(len(group["rules"]) for group in groups) <= 20
