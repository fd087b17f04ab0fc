"""The rules, alerts, promtool tests and runbooks of ``deploy/prometheus`` as data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"
RULES, ALERTS = FOLDER / "rules.yml", FOLDER / "alerts.yml"
# A whole name, and not a label, a label's value or part of a longer name.
NAME = re.compile(r"(?<![\w:\"])((?:[a-z_]+:)?ckpt[\w:]*)")


@dataclass(frozen=True)
class Rule:
    """One rule; ``name`` is the alert's or the recorded series'."""

    name: str
    group: str
    expr: str
    body: dict[str, Any]

    @property
    def names(self) -> set[str]:
        """Return the series that its expression reads."""
        return set(NAME.findall(self.expr))


def rules_of(path: Path, kind: str) -> list[Rule]:
    """Return the rules of a file that record or alert."""
    groups = yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    return [
        Rule(rule[kind], group["name"], rule["expr"], rule)
        for group in groups
        for rule in group["rules"]
        if kind in rule
    ]


def alerts() -> list[Rule]:
    """Return all alerts."""
    return rules_of(ALERTS, "alert")


def recorded() -> list[Rule]:
    """Return all recording rules, thresholds included."""
    return rules_of(RULES, "record") + rules_of(ALERTS, "record")


def promtool_tests(name: str) -> dict[str, dict[str, Any]]:
    """Return the promtool tests of one alert by the name of their case."""
    path = FOLDER / "tests" / f"{name.lower()}.yml"
    return {case["name"]: case for case in yaml.safe_load(path.read_text(encoding="utf-8"))["tests"]}
