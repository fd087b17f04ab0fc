"""What surrounds the panels: variables, links, annotations and the grid."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from grafana.panels import DATASOURCE
from grafana.promql import dirs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grafana.panels import Builder as PanelBuilder

Variable = Builder[models.VariableModel]
TAG: Final = "ckpt-exporter"
WINDOWS: Final = ("15m", "1h", "6h", "1d", "7d")
# Where the runbooks are read. A host that can't exist: the README says how to put yours there.
RUNBOOKS: Final = "https://ckpt-exporter.invalid/runbooks"
_SAME_CHOICE: Final = "${__url_time_range}&${datasource:queryparam}&${cluster:queryparam}&${job:queryparam}"
TO_DIRECTORY: Final = (
    "Show directory",
    f"/d/ckpt-directory?{_SAME_CHOICE}&var-dir=${{__data.fields.Directory}}",
)
TO_NODE: Final = ("Show node", f"/d/ckpt-node?{_SAME_CHOICE}&var-instance=${{__field.labels.instance}}")


@dataclass(frozen=True, slots=True)
class Row:
    """A folded row of details."""

    title: str
    panels: Sequence[PanelBuilder]


@dataclass(frozen=True, slots=True)
class Outline:
    """A dashboard without its panels.

    ``one`` names the variables that hold exactly one value, ``marked`` the panels on which saves are marked.
    ``by_run`` adds a variable for the id of a training job.
    """

    uid: str
    title: str
    description: str
    since: str
    window: str
    one: frozenset[str] = frozenset()
    by_run: bool = False
    marked: frozenset[str] = frozenset()


def assemble(outline: Outline, panels: Sequence[PanelBuilder], rows: Sequence[Row]) -> dict[str, Any]:
    """Return a dashboard as Grafana's JSON model."""
    board = builders.Dashboard(outline.title).uid(outline.uid).description(outline.description)
    board.tags([TAG]).readonly().timezone("browser").time(outline.since, "now").refresh("1m")
    board.tooltip(models.DashboardCursorSync.CROSSHAIR)
    board.variables(_variables(outline)).links([_other_dashboards()])
    numbers = iter(range(1, 1000))
    for panel in panels:
        board.with_panel(panel.id(next(numbers)))
    for row in rows:
        folded = builders.Row(row.title).collapsed(True).id(next(numbers))  # noqa: FBT003 (builder)
        for panel in row.panels:
            folded.with_panel(panel.id(next(numbers)))
        board.with_row(folded)
    model: dict[str, Any] = json.loads(JSONEncoder().encode(board.build()))
    # What the SDK has no word for.
    model["id"] = None
    marked = [panel["id"] for panel in model["panels"] if panel.get("title") in outline.marked]
    markers = [_save_marker(which, color, marked) for which, color in (("start", "blue"), ("end", "green"))]
    model["annotations"] = {"list": markers}
    return model


def _variables(outline: Outline) -> list[Variable]:
    """Narrow from left to right; only targets of this exporter are offered."""
    build = "ckpt_exporter_build_info"
    cluster, job = 'cluster=~"$cluster"', 'job=~"$job"'
    directories = f'ckpt_saves_total{{{cluster}, {job}, instance=~"$instance"}}'
    datasource = builders.DatasourceVariable("datasource").label("Data source").type("prometheus")
    held = f'instance_gpu_run:ckpt_gpu_run:last{{{cluster}, {job}, instance=~"$instance"}}'
    run_id = _query("run_id", "Run", f"label_values({held}, run_id)", outline)
    return [
        datasource,
        # Targets without the label must match too, so "all" is anything, the empty string included.
        _query("cluster", "Cluster", f"label_values({build}, cluster)", outline, everything=".*"),
        _query("job", "Job", f"label_values({build}{{{cluster}}}, job)", outline),
        _query("instance", "Instance", f"label_values({build}{{{cluster}, {job}}}, instance)", outline),
        _query("dir", "Directory", f"label_values({directories}, dir)", outline),
        *([run_id] if outline.by_run else []),
        builders.IntervalVariable("window").label("Trend window").values(",".join(WINDOWS))
        .description("Over how long each point of a trend looks back: several saves should fit in.")
        .current(models.VariableOption(selected=True, text=outline.window, value=outline.window)),
        builders.TextBoxVariable("runbooks").label("Runbooks").default_value(RUNBOOKS)
        .description("Where the runbooks of the alerts are read."),
    ]  # fmt: skip


def _query(
    name: str, label: str, query: str, outline: Outline, *, everything: str = ".+"
) -> builders.QueryVariable:
    variable = builders.QueryVariable(name).label(label).query({"query": query, "refId": name})
    variable.datasource(DATASOURCE).refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
    variable.sort(models.VariableSort.NATURAL_ASC)
    if name in outline.one:
        return variable.multi(False).include_all(False)  # noqa: FBT003 (builder)
    everything_option = models.VariableOption(selected=True, text=["All"], value=["$__all"])
    return variable.multi(True).include_all(True).all_value(everything).current(everything_option)  # noqa: FBT003 (builder)


def _other_dashboards() -> builders.DashboardLink:
    link = builders.DashboardLink("Checkpoints").type(models.DashboardLinkType.DASHBOARDS).tags([TAG])
    return link.as_dropdown(False).keep_time(True).include_vars(False)  # noqa: FBT003 (builder)


def _save_marker(which: str, color: str, panels: list[int]) -> dict[str, Any]:
    """Mark the time that a gauge holds, whenever it was scraped; Grafana wants milliseconds.

    Where no panel is named, the marks can be switched on but are off: a week has too many saves for them.
    """
    return {
        "name": f"Save {which}s",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "enable": bool(panels),
        "hide": False,
        "iconColor": color,
        **({"filter": {"exclude": False, "ids": panels}} if panels else {}),
        "expr": f"{dirs(f'ckpt_last_save_{which}_timestamp_seconds')} * 1000",
        "step": "15s",
        "useValueForTime": True,
        "titleFormat": f"Save {which}",
        "textFormat": "{{dir}} on {{instance}}",
        "tagKeys": "dir,instance",
    }
