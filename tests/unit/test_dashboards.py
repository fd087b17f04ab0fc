"""The committed dashboards keep the rules that make them importable, right and readable."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from ckpt_exporter.metrics.catalogue import METRICS
from grafana.boards import BOARDS, as_json
from tests.dashboards import (
    FOLDER,
    LEVELS,
    UIDS,
    Board,
    Panel,
    Question,
    defaults,
    filled,
    load,
    panels_of,
    questions_of,
    recorded_names,
)
from tests.promql_units import UNITS, nodes, of_expression, parsed

# The dashboard of a job reads what the rules record, of whose level the labels are.
LABELS = {metric.name: set(metric.labels) for metric in METRICS} | {
    name: LEVELS[name.partition(":")[0]] for name in recorded_names() if name.partition(":")[0] in LEVELS
}
TARGET_LABELS = {"cluster", "job", "instance"}
PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes"}
COUNTERS = {metric.name for metric in METRICS if metric.type == "counter"} | {"process_cpu_seconds_total"}
COUNTERS |= {name for name in LABELS if name.endswith(":counter")}
HISTOGRAMS = {metric.name for metric in METRICS if metric.type == "histogram"}
EVERYWHERE = ("ckpt_exporter_build_info", "ckpt_saves_total")
TYPES = ("stat", "timeseries", "bargauge", "table", "state-timeline")
UNFILLED = {name: f"${name}" for name in ("cluster", "job", "instance", "dir", "run_id")}
HISTOGRAM = re.compile(r"_(sum|count|bucket)$")

every_board = pytest.mark.parametrize("board", [load(uid) for uid in UIDS], ids=UIDS)


@functools.cache
def exclusions() -> dict[str, Any]:
    rules: dict[str, Any] = yaml.safe_load((FOLDER / ".lint").read_text(encoding="utf-8"))["exclusions"]
    return rules


def excused(rule: str, board: str, panel: str | None = None) -> bool:
    """Tell whether ``.lint`` excuses a dashboard or panel from a rule; it must say why."""
    entry = exclusions().get(rule)
    if entry is None:
        return False
    assert entry["reason"].strip()
    title = load(board)["title"]
    return any(one["dashboard"] == title and one.get("panel") == panel for one in entry["entries"])


def tree(question: Question, **values: str) -> Any:
    return parsed(filled(question.expr, defaults(**values)))


def selectors(question: Question, **values: str) -> list[tuple[Any, tuple[str, ...]]]:
    """Return the selectors of a query, each with the functions around it."""
    found = nodes(tree(question, **values))
    return [(node, inside) for node, inside in found if type(node).__name__ == "VectorSelector"]


def matchers(selector: Any) -> dict[str, str]:
    return {matcher.name: matcher.value for matcher in selector.matchers.matchers}


def strings(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for one in value.values() for text in strings(one)]
    if isinstance(value, list):
        return [text for one in value for text in strings(one)]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize("uid", UIDS)
def test_committed_files_are_what_the_code_says(uid: str, golden: Callable[[str, str], None]) -> None:
    """``python -m grafana`` would change nothing."""
    golden(f"grafana/dashboards/{uid}.json", as_json(BOARDS[uid]()))


def test_there_are_no_other_dashboards() -> None:
    """Every file comes from the code."""
    assert {path.stem for path in (FOLDER / "dashboards").iterdir()} == set(BOARDS) == set(UIDS)


class TestBoard:
    @every_board
    def test_can_be_imported_and_provisioned(self, board: Board) -> None:
        """A stable uid, no id of some database, no inputs that provisioning would leave empty."""
        assert board["id"] is None
        assert re.fullmatch(r"[a-z-]{1,40}", board["uid"])
        assert "__inputs" not in board
        assert "DS_" not in json.dumps(board)
        assert board["editable"] is False
        assert board["schemaVersion"] >= 39
        assert board["graphTooltip"] == 1
        assert board["refresh"]

    @every_board
    def test_every_data_source_is_the_variable(self, board: Board) -> None:
        """No data source of somebody's own installation."""

        def sources(value: object) -> list[object]:
            if isinstance(value, dict):
                found = [value["datasource"]] if "datasource" in value else []
                return found + [one for inner in value.values() for one in sources(inner)]
            return [one for inner in value for one in sources(inner)] if isinstance(value, list) else []

        assert len(sources(board)) > 10
        assert all(one == {"type": "prometheus", "uid": "${datasource}"} for one in sources(board))

    @every_board
    def test_variables_are_those_that_people_know(self, board: Board) -> None:
        """Data source, cluster, job, instance and directory, in the order in which they narrow the choice."""
        variables = {variable["name"]: variable for variable in board["templating"]["list"]}

        assert list(variables)[:5] == ["datasource", "cluster", "job", "instance", "dir"]
        source = variables["datasource"]
        assert (source["type"], source["label"], source["query"]) == (
            "datasource",
            "Data source",
            "prometheus",
        )
        for name, label in (
            ("cluster", "Cluster"),
            ("job", "Job"),
            ("instance", "Instance"),
            ("dir", "Directory"),
        ):
            assert (variables[name]["type"], variables[name]["label"]) == ("query", label)
            assert variables[name]["refresh"] == 2
        for name in ("job", "instance"):
            if not excused(f"template-{name}-rule", board["uid"]):
                assert variables[name]["multi"] is True
                assert variables[name]["allValue"] == ".+"
        # Where users have no such label, "all" must match its absence.
        assert variables["cluster"]["allValue"] == ".*"

    @every_board
    def test_variables_ask_for_metrics_that_every_exporter_has(self, board: Board) -> None:
        """A variable fed by a metric that some nodes lack would hide these nodes."""
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                name = re.match(r"label_values\(([\w:]+)", variable["query"]["query"])
                assert name is not None
                # Only what holds a GPU is a job.
                known = (
                    ("instance_gpu_run:ckpt_gpu_run:last",) if variable["name"] == "run_id" else EVERYWHERE
                )
                assert name[1] in known

    @every_board
    def test_every_variable_used_is_defined(self, board: Board) -> None:
        """No ``$name`` is left for Grafana to print as it stands."""
        known = {variable["name"] for variable in board["templating"]["list"]} | {"datasource"}
        used = {
            bare or braced
            for text in strings(board)
            for bare, braced in re.findall(r"\$(\w+)|\$\{(\w+)[:.\w]*\}", text)
        }

        assert {name for name in used if not name.startswith("__")} <= known

    @every_board
    def test_panels_do_not_overlap(self, board: Board) -> None:
        """Panels lie side by side on a grid of 24 columns; each has a number of its own."""
        for panels in [board["panels"], *(p["panels"] for p in board["panels"] if p["type"] == "row")]:
            taken = [
                (x, y)
                for g in (panel["gridPos"] for panel in panels)
                for x in range(g["x"], g["x"] + g["w"])
                for y in range(g["y"], g["y"] + g["h"])
            ]
            assert len(taken) == len(set(taken))
            assert max(x for x, _ in taken) <= 23
        ids = [p["id"] for p in panels_of(board)] + [p["id"] for p in board["panels"] if p["type"] == "row"]
        assert len(ids) == len(set(ids))

    @every_board
    def test_details_are_folded(self, board: Board) -> None:
        """Rows open on demand, so that an overview asks only its own questions."""
        rows = [panel for panel in board["panels"] if panel["type"] == "row"]

        assert rows
        assert all(row["collapsed"] and row["panels"] for row in rows)

    @every_board
    def test_dashboards_link_to_each_other(self, board: Board) -> None:
        """Links go by tag, and each link in a panel goes to a dashboard that exists."""
        assert board["tags"] == ["ckpt-exporter"]
        assert [link["tags"] for link in board["links"]] == [["ckpt-exporter"]]
        targets = {match for text in strings(board) for match in re.findall(r"/d/([\w-]+)", text)}
        assert targets <= set(UIDS)

    @every_board
    def test_saves_are_marked_at_the_time_that_the_gauges_hold(self, board: Board) -> None:
        """The value of the series is the time, in milliseconds, not the moment of the scrape."""
        annotations = board["annotations"]["list"]

        assert [one["useValueForTime"] for one in annotations] == [True, True]
        for one, which in zip(annotations, ("start", "end"), strict=True):
            assert one["expr"].startswith(f"ckpt_last_save_{which}_timestamp_seconds{{")
            assert one["expr"].endswith("* 1000")


class TestPanel:
    @every_board
    def test_says_what_it_shows(self, board: Board) -> None:
        """Title, description, queries, and a text for when there is nothing to show."""
        for panel in panels_of(board):
            assert panel["title"], panel["title"]
            assert len(panel["description"]) > 20, panel["title"]
            assert panel["description"].endswith("."), panel["title"]
            assert panel["targets"], panel["title"]
            assert panel["fieldConfig"]["defaults"]["noValue"], panel["title"]

    @every_board
    def test_is_of_a_type_that_is_still_supported(self, board: Board) -> None:
        """No Angular panels."""
        for panel in panels_of(board):
            assert panel["type"] in TYPES, panel["title"]

    @every_board
    def test_nothing_measured_is_never_told_as_a_calm_number(self, board: Board) -> None:
        """The text for an empty panel does not pass for a good value."""
        for panel in panels_of(board):
            text = panel["fieldConfig"]["defaults"]["noValue"]

            assert not re.fullmatch(r"[\d.%]*|ok|none|good|healthy", text, re.IGNORECASE), panel["title"]

    @every_board
    def test_thresholds_can_be_reached(self, board: Board) -> None:
        """Every step lies between the ends of the scale."""
        for panel in panels_of(board):
            field = panel["fieldConfig"]["defaults"]
            steps = field.get("thresholds", {"steps": []})["steps"]
            values = [step["value"] for step in steps if step["value"] is not None]
            lowest, highest = field.get("min", float("-inf")), field.get("max", float("inf"))

            assert values == sorted(values), panel["title"]
            assert all(lowest <= value <= highest for value in values), panel["title"]

    @every_board
    def test_runbooks_go_by_the_name_of_an_alert(self, board: Board) -> None:
        """A runbook link follows the alerts' rule, and its file exists where alerts are shipped."""
        for panel in panels_of(board):
            shipped = FOLDER.parent / "deploy" / "prometheus" / "runbooks"
            for link in panel.get("links", []):
                name = re.fullmatch(r"\$\{runbooks\}/(ckpt[a-z]+\.md)", link["url"])
                assert name is not None, panel["title"]
                assert not shipped.is_dir() or (shipped / name[1]).is_file(), panel["title"]

    @every_board
    def test_unit_fits_what_the_metrics_measure(self, board: Board) -> None:
        """Bytes are shown as bytes, seconds as seconds, and so on through every operation."""
        for panel in panels_of(board):
            columns = renamed(panel)
            for question in questions_of({"uid": board["uid"], "panels": [panel]}):
                value = "Value" if len(panel["targets"]) == 1 else f"Value #{question.ref}"
                if panel["type"] == "table" and value not in columns:
                    continue  # the table shows labels alone
                name = columns.get(value, legend(panel, question.ref))
                assert unit_of(panel, name) in UNITS[of_expression(tree(question))], panel["title"]


def legend(panel: Panel, ref: str) -> str:
    return str(next(t.get("legendFormat", "") for t in panel["targets"] if t["refId"] == ref))


def renamed(panel: Panel) -> dict[str, str]:
    """Return the columns of a table: name in the data -> name shown."""
    names: dict[str, str] = {}
    for transformation in panel.get("transformations", []):
        names.update(transformation["options"].get("renameByName", {}))
    return names


def unit_of(panel: Panel, name: str) -> str:
    """Return the unit in which a series or column is shown."""
    for override in panel["fieldConfig"]["overrides"]:
        if override["matcher"] == {"id": "byName", "options": name}:
            for look in override["properties"]:
                if look["id"] == "unit":
                    return str(look["value"])
    return str(panel["fieldConfig"]["defaults"]["unit"])


class TestQuery:
    @every_board
    def test_asks_only_for_what_is_exported(self, board: Board) -> None:
        """Every metric is in the catalogue, and every label that is matched is one of its labels."""
        for question in questions_of(board):
            for selector, _ in selectors(question):
                if selector.name == "ALERTS":
                    continue
                if selector.name in PROCESS:
                    labels: set[str] = set()
                else:
                    base = HISTOGRAM.sub("", selector.name)
                    labels = LABELS[selector.name if selector.name in LABELS else base]
                assert set(matchers(selector)) <= labels | TARGET_LABELS, str(question)

    @every_board
    def test_narrows_by_every_variable(self, board: Board) -> None:
        """Each selector follows cluster, job and instance, and the directory where its metric has one."""
        for question in questions_of(board):
            for selector, _ in selectors(question, **UNFILLED):
                found = matchers(selector)
                for name in ("job", "instance"):
                    if not excused(f"target-{name}-rule", question.board, question.panel):
                        assert found.get(name) == f"${name}", str(question)
                if selector.name != "ALERTS":
                    assert found.get("cluster") == "$cluster", str(question)
                if "dir" in LABELS.get(HISTOGRAM.sub("", selector.name), LABELS.get(selector.name, set())):
                    assert found.get("dir") == "$dir", str(question)

    @every_board
    def test_counters_are_read_by_what_they_grew(self, board: Board) -> None:
        """What a counter holds depends on when its process started; a rate follows the resolution."""
        for question in questions_of(board):
            for selector, inside in selectors(question):
                part = HISTOGRAM.search(selector.name)
                of_histogram = part is not None and selector.name[: part.start()] in HISTOGRAMS
                if selector.name in COUNTERS or of_histogram:
                    assert {"rate", "increase"} & set(inside), str(question)
            rates = re.findall(r"rate\([^[]*\[([^]]*)\]", question.expr)
            if not excused("target-rate-interval-rule", question.board, question.panel):
                assert set(rates) <= {"$__rate_interval"}, str(question)

    @every_board
    def test_never_divides_by_nothing(self, board: Board) -> None:
        """A denominator is a number or known to be above 0, so that no panel shows NaN."""
        for question in questions_of(board):
            for node, _ in nodes(tree(question)):
                if type(node).__name__ == "BinaryExpr" and str(node.op) == "/":
                    right = node.rhs
                    if type(right).__name__ == "NumberLiteral":
                        continue
                    assert type(right).__name__ == "ParenExpr", str(question)
                    assert str(right.expr.op) == ">", str(question)
                    assert right.expr.rhs.val == 0, str(question)

    @every_board
    def test_adds_up_after_the_increase(self, board: Board) -> None:
        """``increase(sum())`` would take the restart of one exporter for a loss of all."""
        for question in questions_of(board):
            assert not re.search(r"(increase|rate)\s*\(\s*(sum|avg|max)", question.expr), str(question)


def test_provisioning_reads_the_folder_of_dashboards() -> None:
    """Both files are of the format that Grafana's provisioning reads."""
    provider = yaml.safe_load(
        (FOLDER / "provisioning/dashboards/ckpt-exporter.yml").read_text(encoding="utf-8")
    )
    source = yaml.safe_load((FOLDER / "provisioning/datasources/prometheus.yml").read_text(encoding="utf-8"))

    assert provider["apiVersion"] == source["apiVersion"] == 1
    [one] = provider["providers"]
    assert one["type"] == "file"
    assert one["options"]["path"].startswith("/")
    assert [s["type"] for s in source["datasources"]] == ["prometheus"]


def test_readme_leads_to_what_exists() -> None:
    """Every file that the README links is there, and each picture is small enough to be looked at online."""
    links = re.findall(r"\]\(([^):]+)\)", (FOLDER / "README.md").read_text(encoding="utf-8"))
    files = [FOLDER / link for link in links]

    assert [file for file in files if not file.is_file()] == []
    pictures = [file for file in files if file.suffix == ".png"]
    assert len(pictures) == len(UIDS)
    assert all(file.stat().st_size < 300_000 for file in pictures)
