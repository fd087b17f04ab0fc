"""Panels in the style of this house: each has a description, a unit and a text for "nothing measured"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Union

from grafana_foundation_sdk.builders import bargauge, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DATASOURCE: Final = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
NOT_MEASURED: Final = "not measured"
ABSENT: Final = "absent"
_REF_IDS: Final = "ABCDEFGHIJ"

Step = tuple[float | None, str]
Builder = Union[stat.Panel, timeseries.Panel, bargauge.Panel, table.Panel, statetimeline.Panel]  # noqa: UP007 (evaluated at run time)


@dataclass(frozen=True, slots=True)
class Query:
    """One query and the name of its lines."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Frame:
    """What every panel has. ``width`` and ``height`` are grid units: 24 across, 30 pixels down."""

    title: str
    description: str
    width: int
    height: int
    runbook: str | None = None


@dataclass(frozen=True, slots=True)
class Scale:
    """Unit of a panel's values, the decimals shown, and its fixed ends; None leaves it to Grafana.

    ``at_least`` is how far an axis reaches when all values are small, so that zeros don't get an axis of 100.
    """

    unit: str
    decimals: int | None = None
    lowest: float | None = None
    highest: float | None = None
    at_least: float | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: the name that the data has, the name shown, and its look."""

    source: str
    title: str
    scale: Scale | None = None
    width: int | None = None
    link: tuple[str, str] | None = None
    mappings: Mapping[str, tuple[str, str]] | None = None


def fixed(color: str) -> models.DynamicConfigValue:
    """Give a line one colour."""
    return models.DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": color})


def dashed() -> list[models.DynamicConfigValue]:
    """Draw a line as a comparison: grey, dashed, without area."""
    return [
        fixed("#8e8e8e"),
        models.DynamicConfigValue(id_val="custom.lineStyle", value={"fill": "dash", "dash": [6, 6]}),
        models.DynamicConfigValue(id_val="custom.fillOpacity", value=0),
        models.DynamicConfigValue(id_val="custom.lineWidth", value=1),
    ]


def thresholds(*steps: Step) -> builders.ThresholdsConfig:
    """Colour values from each step on; the first step is None, for everything below."""
    return (
        builders.ThresholdsConfig()
        .mode(models.ThresholdsMode.ABSOLUTE)
        .steps([models.Threshold(value=value, color=color) for value, color in steps])
    )


def value_map(texts: Mapping[str, tuple[str, str]]) -> models.ValueMap:
    """Show values as words: value -> (text, colour)."""
    return models.ValueMap(
        options={
            value: models.ValueMappingResult(text=text, color=color, index=index)
            for index, (value, (text, color)) in enumerate(texts.items())
        }
    )


def stat_panel(
    frame: Frame,
    queries: Sequence[Query],
    scale: Scale,
    *,
    steps: Sequence[Step] = ((None, "text"),),
    no_value: str = NOT_MEASURED,
    texts: Mapping[str, tuple[str, str]] | None = None,
    named: bool = False,
) -> stat.Panel:
    """Show one number, or with ``named`` several with their names."""
    panel = stat.Panel()
    _frame(panel, frame)
    _targets(panel, queries, instant=True)
    _scale(panel, scale, no_value)
    panel.thresholds(thresholds(*steps)).color_scheme(
        builders.FieldColor().mode(models.FieldColorModeId.THRESHOLDS)
    )
    if texts:
        panel.mappings([value_map(texts)])
    panel.graph_mode(common.BigValueGraphMode.NONE).color_mode(common.BigValueColorMode.VALUE)
    panel.justify_mode(common.BigValueJustifyMode.CENTER)
    panel.text_mode(
        common.BigValueTextMode.VALUE_AND_NAME if named else common.BigValueTextMode.VALUE
    ).reduce_options(_last())
    if named:
        # Several values in one panel: of one size, however long their names are.
        panel.text(common_builders.VizTextDisplayOptions().title_size(14).value_size(24))
    return panel


def graph_panel(
    frame: Frame,
    queries: Sequence[Query],
    scale: Scale,
    *,
    stacked: bool = False,
    stepped: bool = False,
    fill: int = 0,
    colors: Mapping[str, str] | None = None,
    no_value: str = NOT_MEASURED,
    values: Sequence[str] = (),
) -> timeseries.Panel:
    """Draw lines over time; ``stacked`` adds areas up, ``stepped`` holds each value until the next."""
    panel = timeseries.Panel()
    _frame(panel, frame)
    _targets(panel, queries)
    _scale(panel, scale, no_value)
    panel.color_scheme(builders.FieldColor().mode(models.FieldColorModeId.PALETTE_CLASSIC))
    panel.line_width(1 if stacked else 2).fill_opacity(60 if stacked else fill)
    panel.show_points(common.VisibilityMode.NEVER)
    if scale.at_least is not None:
        panel.axis_soft_max(scale.at_least)
    panel.line_interpolation(
        common.LineInterpolation.STEP_AFTER if stepped else common.LineInterpolation.LINEAR
    )
    if stacked:
        panel.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
    for name, color in (colors or {}).items():
        panel.override_by_name(name, [fixed(color)])
    panel.legend(_legend(values)).tooltip(_tooltip())
    return panel


def bar_panel(
    frame: Frame, query: Query, scale: Scale, color: str, *, link: tuple[str, str] | None = None
) -> bargauge.Panel:
    """Rank what one query returns as horizontal bars."""
    panel = bargauge.Panel()
    _frame(panel, frame)
    _targets(panel, [query], instant=True)
    _scale(panel, scale, NOT_MEASURED)
    panel.thresholds(thresholds((None, color)))
    panel.color_scheme(builders.FieldColor().mode(models.FieldColorModeId.THRESHOLDS))
    panel.orientation(common.VizOrientation.HORIZONTAL).display_mode(common.BarGaugeDisplayMode.BASIC)
    panel.value_mode(common.BarGaugeValueMode.TEXT).show_unfilled(True).reduce_options(_last())  # noqa: FBT003 (builder)
    panel.name_placement(common.BarGaugeNamePlacement.LEFT).sizing(common.BarGaugeSizing.AUTO)
    if link:
        panel.data_links([_link(*link)])
    return panel


def table_panel(
    frame: Frame,
    queries: Sequence[Query],
    columns: Sequence[Column],
    *,
    sort: str | None = None,
    no_value: str = NOT_MEASURED,
) -> table.Panel:
    """Join the queries on their labels; show the named columns alone, in their order."""
    panel = table.Panel()
    _frame(panel, frame)
    _targets(panel, queries, instant=True, as_table=True)
    panel.unit("short").no_value(no_value)
    panel.with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
    shown = [column.source for column in columns]
    panel.with_transformation(
        models.DataTransformerConfig(
            id_val="filterFieldsByName", options={"include": {"names": shown}, "byVariable": False}
        )
    )
    panel.with_transformation(
        models.DataTransformerConfig(
            id_val="organize",
            options={
                "excludeByName": {},
                "includeByName": {},
                "indexByName": {name: index for index, name in enumerate(shown)},
                "renameByName": {column.source: column.title for column in columns},
            },
        )
    )
    for column in columns:
        if look := _column(column):
            panel.override_by_name(column.title, look)
    if sort:
        panel.sort_by([common_builders.TableSortByFieldState().display_name(sort).desc(True)])  # noqa: FBT003 (builder)
    panel.show_header(True).cell_height(common.TableCellHeight.SM)  # noqa: FBT003 (builder)
    return panel


def state_panel(
    frame: Frame, queries: Sequence[Query], texts: Mapping[str, tuple[str, str]]
) -> statetimeline.Panel:
    """Draw states as coloured bars over time; every state has a word and a fixed colour."""
    panel = statetimeline.Panel()
    _frame(panel, frame)
    _targets(panel, queries)
    panel.unit("short").mappings([value_map(texts)]).no_value(ABSENT)
    panel.color_scheme(builders.FieldColor().mode(models.FieldColorModeId.FIXED).fixed_color("text"))
    panel.show_value(common.VisibilityMode.NEVER).merge_values(True).row_height(0.8).fill_opacity(80)  # noqa: FBT003 (builder)
    panel.legend(_legend(())).tooltip(_tooltip())
    return panel


def _frame(panel: Builder, frame: Frame) -> None:
    panel.title(frame.title).description(frame.description).datasource(DATASOURCE)
    panel.span(frame.width).height(frame.height)
    if frame.runbook:
        panel.links([_link("Runbook", "${runbooks}/" + frame.runbook + ".md", new_tab=True)])


def _targets(
    panel: Builder, queries: Sequence[Query], *, instant: bool = False, as_table: bool = False
) -> None:
    for ref_id, query in zip(_REF_IDS, queries, strict=False):
        target = prometheus.Dataquery().expr(query.expr).ref_id(ref_id).datasource(DATASOURCE)
        if query.legend:
            target.legend_format(query.legend)
        target.format(PromQueryFormat.TABLE if as_table else PromQueryFormat.TIME_SERIES)
        panel.with_target(target.instant() if instant else target.range())


def _scale(panel: stat.Panel | timeseries.Panel | bargauge.Panel, scale: Scale, no_value: str) -> None:
    panel.unit(scale.unit).no_value(no_value)
    if scale.decimals is not None:
        panel.decimals(scale.decimals)
    if scale.lowest is not None:
        panel.min(scale.lowest)
    if scale.highest is not None:
        panel.max(scale.highest)


def _column(column: Column) -> list[models.DynamicConfigValue]:
    # A label is a name even where it looks like a number: job 8812 is not 8.81 K.
    look: list[tuple[str, Any]] = [] if column.scale or column.mappings else [("unit", "string")]
    if column.scale:
        look.append(("unit", column.scale.unit))
        if column.scale.decimals is not None:
            look.append(("decimals", column.scale.decimals))
    if column.width:
        look.append(("custom.width", column.width))
    if column.link:
        title, url = column.link
        look.append(("links", [{"title": title, "url": url}]))
    if column.mappings:
        look.append(("mappings", [value_map(column.mappings)]))
        look.append(("custom.cellOptions", {"type": "color-text"}))
    return [models.DynamicConfigValue(id_val=name, value=value) for name, value in look]


def _link(title: str, url: str, *, new_tab: bool = False) -> builders.DashboardLink:
    link = builders.DashboardLink(title).type(models.DashboardLinkType.LINK).url(url)
    return link.target_blank(new_tab)


def _last() -> common_builders.ReduceDataOptions:
    return common_builders.ReduceDataOptions().calcs(["lastNotNull"]).values(False)  # noqa: FBT003 (builder)


def _legend(calculations: Sequence[str]) -> common_builders.VizLegendOptions:
    legend = common_builders.VizLegendOptions().display_mode(common.LegendDisplayMode.LIST)
    legend.placement(common.LegendPlacement.BOTTOM)
    return legend.show_legend(True).calcs(list(calculations))  # noqa: FBT003 (builder)


def _tooltip() -> common_builders.VizTooltipOptions:
    return (
        common_builders.VizTooltipOptions()
        .mode(common.TooltipDisplayMode.MULTI)
        .sort(common.SortOrder.DESCENDING)
    )
