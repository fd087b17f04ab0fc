"""When alerts would have fired: rules and expressions evaluated over a past that a real Prometheus holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.integration.prometheus import Prometheus, backfill, backfill_rules
from tests.integration.rule_files import Rule, alerts, layers, recorded, write_rules

STEP_SECONDS = 120.0
Interval = tuple[float, float]


@dataclass(frozen=True)
class History:
    """A Prometheus with the past of one training in it. Times are seconds from the training's first step."""

    server: Prometheus
    unix: float
    seconds: float

    def of(self, name: str, instance: str) -> list[tuple[float, float]]:
        """Return the curve of one node's series."""
        return self.curve(f'{name}{{instance="{instance}"}}')

    def curve(self, query: str) -> list[tuple[float, float]]:
        """Return (second, value) of a query at each evaluation."""
        found = self.server.values(query, self.unix, self.unix + self.seconds, STEP_SECONDS)
        return [(unix - self.unix, value) for unix, value in found]

    def firing(self, name: str, instance: str) -> list[Interval]:
        """Return from when to when an alert fired for one node: its expression held as long as it asks."""
        (alert,) = [alert for alert in alerts() if alert.name == name]
        times = [t for t, _ in self.curve(of_node(alert.expr, instance))]
        return [(a + waiting(alert), b) for a, b in stretches(times) if b - a >= waiting(alert)]


def of_node(expression: str, instance: str) -> str:
    """Return the part of an expression's result that is about one node."""
    node = f'label_replace(vector(1), "instance", "{instance}", "", "")'
    return f"({expression}) and on (instance) {node}"


def waiting(alert: Rule) -> float:
    """Return how long an alert waits before it fires, in seconds."""
    text = alert.body["for"]
    return float(text[:-1]) * {"m": 60.0, "h": 3600.0}[text[-1]]


def stretches(times: list[float]) -> list[Interval]:
    """Join evaluations in a row to (first, last)."""
    joined: list[Interval] = []
    for t in times:
        if joined and t - joined[-1][1] <= STEP_SECONDS:
            joined[-1] = (joined[-1][0], t)
        else:
            joined.append((t, t))
    return joined


def fill(openmetrics: Path, data: Path, unix: float, seconds: float, wanted: set[str]) -> None:
    """Fill a data directory with samples, and with what rules record of them for ``wanted`` series."""
    backfill(openmetrics, data)
    for number, layer in enumerate(layers(recorded(), wanted)):
        rules = write_rules(layer, data.parent / f"layer{number}.yml")
        backfill_rules(rules, data, unix, unix + seconds, STEP_SECONDS)
