"""The rules, alerts, promtool tests and runbooks of ``deploy/prometheus`` as data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
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


@cache
def rules_of(path: Path, kind: str) -> tuple[Rule, ...]:
    """Return the rules of a file that record or alert."""
    groups = yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    return tuple(
        Rule(rule[kind], group["name"], rule["expr"], rule)
        for group in groups
        for rule in group["rules"]
        if kind in rule
    )


def alerts() -> tuple[Rule, ...]:
    """Return all alerts."""
    return rules_of(ALERTS, "alert")


def recorded() -> tuple[Rule, ...]:
    """Return all recording rules, thresholds included."""
    return rules_of(RULES, "record") + rules_of(ALERTS, "record")


def promtool_tests(name: str) -> dict[str, dict[str, Any]]:
    """Return the promtool tests of one alert by the name of their case."""
    path = FOLDER / "tests" / f"{name.lower()}.yml"
    return {case["name"]: case for case in yaml.safe_load(path.read_text(encoding="utf-8"))["tests"]}


def layers(rules: Sequence[Rule], wanted: set[str]) -> list[list[Rule]]:
    """Put the recording rules that ``wanted`` series need in order: each layer reads only earlier ones.

    A rule that reads its own past is left out with all that reads it.
    """
    by_name = {rule.name: rule for rule in rules if rule.name not in rule.names}
    needed: set[str] = set()
    pending = [name for name in wanted if name in by_name]
    while pending:
        name = pending.pop()
        if name not in needed:
            needed.add(name)
            pending += [other for other in by_name[name].names if other in by_name]
    ordered: list[list[Rule]] = []
    while needed:
        ready = [by_name[name] for name in sorted(needed) if not by_name[name].names & needed]
        assert ready, f"rules read each other in a circle: {sorted(needed)}"
        ordered.append(ready)
        needed -= {rule.name for rule in ready}
    return ordered


def read_by(wanted: set[str]) -> set[str]:
    """Return the exporter's metrics that ``wanted`` series are made of."""
    layered = [rule for layer in layers(recorded(), wanted) for rule in layer]
    names = wanted.union(*(rule.names for rule in layered))
    return {name for name in names if ":" not in name}


def write_rules(rules: Sequence[Rule], path: Path) -> Path:
    """Write recording rules as a file of one group."""
    group = {"name": "layer", "rules": [{"record": rule.name, "expr": rule.expr} for rule in rules]}
    path.write_text(yaml.safe_dump({"groups": [group]}), encoding="utf-8")
    return path
