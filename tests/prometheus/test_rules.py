"""Recording rules and alerts: what promtool says of them, and what each of them must have."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import promql_parser
import pytest

from ckpt_exporter.metrics.catalogue import METRICS
from ckpt_exporter.sources.mounts import SHARED_FSTYPES, is_shared
from tests.integration.prometheus import tool
from tests.integration.rule_files import (
    ALERTS,
    FOLDER,
    RULES,
    Rule,
    alerts,
    promtool_tests,
    recorded,
    rules_of,
)

CASES = ("firing", "not firing", "flapping", "missing series", "restart")
LEVELS = {
    "instance_dir": "by (cluster, job, instance, dir)",
    "instance": "by (cluster, job, instance)",
    "dir": "by (cluster, job, dir)",
    "run": "by (cluster, job, run_id)",
    "run_cause": "by (cluster, job, run_id, cause)",
    "instance_run": "by (cluster, job, instance, run_id)",
    "instance_dir_run": "by (cluster, job, instance, dir, run_id)",
    "instance_gpu_run_cause": "by (cluster, job, instance, gpu, uuid, run_id, cause)",
    "instance_gpu_run": "by (cluster, job, instance, gpu, uuid, run_id)",
    "cluster": "by (cluster)",
}
each_alert = pytest.mark.parametrize("alert", alerts(), ids=lambda rule: rule.name)
each_record = pytest.mark.parametrize("rule", recorded(), ids=lambda rule: rule.name)
each_rule = pytest.mark.parametrize("rule", [*alerts(), *recorded()], ids=lambda rule: rule.name)


def promtool(*arguments: str | Path) -> str:
    """Run promtool; it must succeed."""
    command = [tool("promtool"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# --- promtool


def test_promtool_accepts_the_rules() -> None:
    """Prometheus loads both files."""
    assert "FAILED" not in promtool("check", "rules", RULES, ALERTS)


def test_promtool_accepts_the_example() -> None:
    """Prometheus loads the example configuration with the files that it names."""
    promtool("check", "config", FOLDER / "prometheus.yml")


def test_amtool_accepts_the_example() -> None:
    """Alertmanager loads the example configuration."""
    command = [tool("amtool"), "check-config", str(FOLDER / "alertmanager.yml")]
    subprocess.run(command, capture_output=True, timeout=30, check=True)


@pytest.mark.parametrize("path", sorted((FOLDER / "tests").glob("*.yml")), ids=lambda path: path.stem)
def test_promtool_tests_pass(path: Path) -> None:
    """Rules and alerts do what their promtool tests say."""
    promtool("test", "rules", path)


# --- what an alert must have


def test_every_test_and_runbook_is_of_an_alert() -> None:
    """Nothing is left over of an alert that is gone."""
    names = {alert.name.lower() for alert in alerts()}

    assert {path.stem for path in (FOLDER / "tests").glob("*.yml")} == names | {"rules", "runs"}
    assert {path.stem for path in (FOLDER / "runbooks").glob("*.md")} == names


@each_alert
def test_alert_is_named_and_routed(alert: Rule) -> None:
    """An alert has a CamelCase name with our prefix, a waiting time, a severity and no other label."""
    assert re.fullmatch(r"Ckpt([A-Z][a-z]+)+", alert.name)
    assert re.fullmatch(r"[1-9]\d*[mh]", alert.body["for"])
    assert set(alert.body["labels"]) == {"severity"}
    assert alert.body["labels"]["severity"] in {"critical", "warning", "info"}


@each_alert
def test_alert_says_what_it_is_about(alert: Rule) -> None:
    """The summary is one fixed sentence, and the description names the node."""
    annotations = alert.body["annotations"]

    assert set(annotations) == {"summary", "description", "runbook_url"}
    assert re.fullmatch(r"[A-Z][^{}]+\.", annotations["summary"])
    assert annotations["description"].endswith(".")
    # An absent series has no labels to tell; nothing saved is nothing on any node.
    told = re.findall(r"\$labels\.(instance|job)", annotations["description"])
    assert bool(told) != alert.expr.startswith("absent(")
    assert "instance" in told or alert.name in ("CkptNothingSaved", "CkptTargetMissing")


@each_alert
def test_alert_has_a_runbook(alert: Rule) -> None:
    """The runbook exists where the annotation points, and has its parts and the alert's thresholds."""
    where = f"/runbooks/{alert.name.lower()}.md"
    assert alert.body["annotations"]["runbook_url"] == f"https://ckpt-exporter.invalid{where}"
    text = (FOLDER / where[1:]).read_text(encoding="utf-8")

    assert text.startswith(f"# {alert.name}\n")
    for part in ("**What it costs.**", "**Look.**", "**Do.**", "**When it is wrong.**", "**Threshold.**"):
        assert part in text
    thresholds = {name for name in alert.names if name.startswith("ckpt:threshold:")}
    assert set(re.findall(r"ckpt:threshold:\w+", text)) == thresholds


@each_alert
def test_readme_lists_the_alert(alert: Rule) -> None:
    """The table of the folder's README has it with severity, waiting time and summary."""
    runbook = f"[{alert.name}](runbooks/{alert.name.lower()}.md)"
    severity, summary = alert.body["labels"]["severity"], alert.body["annotations"]["summary"]
    row = f"| {runbook} | {severity} | {alert.body['for']} | {summary} |"

    assert row in (FOLDER / "README.md").read_text(encoding="utf-8").splitlines()


@each_alert
def test_alert_has_a_promtool_test_of_each_kind(alert: Rule) -> None:
    """It is tested firing, not firing, flapping, with missing series and over a restart."""
    cases = promtool_tests(alert.name)

    assert tuple(cases) == CASES
    for case in cases.values():
        assert alert.name in str(case.get("alert_rule_test", "")) + str(case.get("promql_expr_test", ""))
    assert expected(cases["firing"])
    assert not expected(cases["not firing"])
    # It is silent at first: its waiting time or its threshold is tested too.
    assert any(not asked.get("exp_alerts") for asked in cases["firing"]["alert_rule_test"]) or (
        alert.name == "CkptSaveNearCollectiveTimeout"
    )


def expected(case: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the alerts that a case expects."""
    return [alert for asked in case.get("alert_rule_test", []) for alert in asked.get("exp_alerts", [])]


# --- what a rule must be


@each_record
def test_recorded_series_says_its_level(rule: Rule) -> None:
    """A recorded name is level:metric:operations, and the level is what its aggregations keep."""
    if rule.name.startswith("ckpt:threshold:"):
        assert re.fullmatch(r"ckpt:threshold:[a-z_]+_(ratio|seconds|saves|intervals|hour)", rule.name)
        return
    level, metric, operations = rule.name.split(":")
    assert re.fullmatch(r"ckpt_[a-z_]+", metric)
    assert re.fullmatch(r"[a-z0-9_]+", operations)
    outermost = re.match(r"\(*\s*(?:sum|max|min|avg|count) (by \([a-z, ]+\))", rule.expr)
    if outermost:
        assert outermost[1] == LEVELS[level]


@each_rule
def test_expression_is_sound(rule: Rule) -> None:
    """It parses, never takes the increase of a sum, and drops no label by name."""
    promql_parser.parse(rule.expr)

    assert not re.search(r"\b(increase|rate|irate|resets)\s*\(\s*(sum|max|avg|min)\b", rule.expr)
    assert "without" not in rule.expr
    # Counters are read through increase only, but to be copied to a series per run.
    if not rule.name.endswith(":counter"):
        assert set(re.findall(r"\w+_total(?:\{[^}]*\})?(.?)", rule.expr)) <= {"["}


@each_rule
def test_every_series_exists(rule: Rule) -> None:
    """A rule reads metrics of the catalogue and series that a rule records, and no others."""
    histograms = {f"{m.name}_{end}" for m in METRICS if m.type == "histogram" for end in ("sum", "count")}
    known = {m.name for m in METRICS} | histograms | {other.name for other in recorded()}

    assert rule.names <= known


def test_names_are_recorded_once() -> None:
    """Two rules never record one name, nor do two alerts share one."""
    for rules in (recorded(), alerts()):
        assert len({rule.name for rule in rules}) == len(rules)


def test_every_threshold_stands_in_one_place() -> None:
    """Each threshold is a plain number, is used, and is nowhere else."""
    thresholds = {rule.name: rule for rule in rules_of(ALERTS, "record")}

    assert all(re.fullmatch(r"vector\([\d.]+\)", rule.expr) for rule in thresholds.values())
    assert set(thresholds) == {name for alert in alerts() for name in alert.names if "threshold" in name}


@pytest.mark.parametrize(
    "fstype", [*sorted(SHARED_FSTYPES), "fuse", "fuse.sshfs", "fuseblk", "ext4", "xfs", "tmpfs"]
)
def test_shared_file_systems_are_the_daemons(fstype: str) -> None:
    """The rule for the space that a save needs takes the same file systems for shared as the daemon."""
    (needed,) = [rule for rule in recorded() if rule.name == "instance_dir:ckpt_next_save_bytes:needed"]
    patterns = set(re.findall(r'fstype=~"([^"]+)"', needed.expr))

    assert len(patterns) == 1
    assert bool(re.fullmatch(patterns.pop(), fstype)) == is_shared(fstype)
