"""The dashboard *Fleet*: what checkpoints cost, and whether it is getting worse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grafana.frame import TO_DIRECTORY, TO_NODE, Outline, Row, assemble
from grafana.panels import (
    Column,
    Frame,
    Query,
    Scale,
    bar_panel,
    dashed,
    fixed,
    graph_panel,
    stat_panel,
    table_panel,
)
from grafana.promql import (
    NODE_LABELS,
    RANGE,
    WINDOW,
    bubble_share,
    bubble_share_by_directory,
    dirs,
    gpus_worth,
    increase,
    nodes,
    per_save,
    quotient,
)
from grafana.shared import (
    BANDWIDTH,
    BYTES,
    COUNT,
    GPU_HOURS,
    NONE_IS_GOOD,
    SECONDS,
    SHARE,
    SHARE_AXIS,
    SHARE_STEPS,
    measuring_panel,
    phases_panel,
    skipped_panel,
    stalls_panel,
    sure_stalls_panel,
)

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders import bargauge, stat, table, timeseries

    from grafana.panels import Builder

_BUBBLE = "ckpt_gpu_bubble_seconds_total"
_NOT_COMPLETE = 'result!="complete"'
_COMPLETE = 'result="complete"'


def fleet_dashboard() -> dict[str, Any]:
    """Return the overview of all selected nodes and directories."""
    outline = Outline(
        "ckpt-fleet",
        "Checkpoints / Fleet",
        "What do checkpoints cost us? GPU time lost to saves, who loses it, and whether it is getting worse.",
        since="now-7d",
        window="6h",
    )
    overview = [*_headline(), measuring_panel(), _trend(), _worth_over_time(), _directories(), _by_node()]
    where = Row("Where the bubble comes from", [phases_panel(8), stalls_panel(8), sure_stalls_panel(8)])
    saves = Row("Saves", [_durations(), _saves_over_time()])
    sure = Row("How sure are these figures", [skipped_panel(12), _sources()])
    return assemble(outline, [*overview, _alerts(), _write_speed()], [where, saves, sure])


def _headline() -> list[Builder]:
    return [_share(), _change(), _gpu_hours(), _worth(), _complete(), _lost()]


def _share() -> stat.Panel:
    return stat_panel(
        Frame(
            "Bubble share",
            "Of all GPU time observed in training runs in this range, the part that saves of the selected "
            "directories cost. Yellow from 5 %, red from 10 %.",
            4,
            4,
            runbook="ckptbubblesharehigh",
        ),
        [Query(bubble_share())],
        SHARE,
        steps=SHARE_STEPS,
    )


def _change() -> stat.Panel:
    change = f"{bubble_share()}\n- (\n{bubble_share(ago=RANGE)}\n)"
    return stat_panel(
        Frame(
            "Against the range before",
            "Bubble share of this range minus that of the equally long range before it, in points: +1 % "
            "means that one more of every hundred GPU hours is lost. Not measured while there is no "
            "earlier range.",
            4,
            4,
            runbook="ckptbubbleshareregression",
        ),
        [Query(change)],
        Scale("percentunit", 1, lowest=-1.0, highest=1.0),
        steps=((None, "green"), (0.005, "yellow"), (0.02, "red")),
    )


def _gpu_hours() -> stat.Panel:
    return stat_panel(
        Frame(
            "GPU-hours lost",
            "GPU time that saves cost in this range, summed over all GPUs: what to multiply by your price.",
            4,
            4,
        ),
        [Query(f"{increase(dirs(_BUBBLE))} / 3600")],
        GPU_HOURS,
    )


def _worth() -> stat.Panel:
    return stat_panel(
        Frame(
            "GPUs' worth lost",
            "Bubble share times the GPUs that trained in this range: as if so many GPUs stood still all the "
            "time. What saves of no cost would win back.",
            4,
            4,
        ),
        [Query(gpus_worth())],
        Scale("short", 2, lowest=0.0),
    )


def _complete() -> stat.Panel:
    return stat_panel(
        Frame(
            "Complete saves",
            "Saves committed in this range. Each node counts the saves that it writes, so one save of a job "
            "that writes from four nodes counts four times.",
            4,
            4,
        ),
        [Query(increase(dirs("ckpt_saves_total", _COMPLETE)))],
        COUNT,
    )


def _lost() -> stat.Panel:
    return stat_panel(
        Frame(
            "Saves lost",
            "Saves that ended in this range without a usable checkpoint: no commit and the writers gone, cut "
            "short, disk full, or removed before the commit.",
            4,
            4,
            runbook="ckptsaveincomplete",
        ),
        [Query(increase(dirs("ckpt_saves_total", _NOT_COMPLETE)))],
        COUNT,
        steps=NONE_IS_GOOD,
    )


def _trend() -> timeseries.Panel:
    panel = graph_panel(
        Frame(
            "Bubble share over time",
            "Each point looks back over the trend window: what a save costs is added at once when it ends, "
            "so a window that holds fewer than a few saves shows teeth. Dashed: the same, one range "
            "earlier.",
            12,
            8,
            runbook="ckptbubbleshareregression",
        ),
        [
            Query(bubble_share(WINDOW), "now"),
            Query(bubble_share(WINDOW, ago=RANGE), "before"),
        ],
        SHARE_AXIS,
        fill=15,
        values=("lastNotNull",),
    )
    panel.override_by_name("now", [fixed("orange")]).override_by_name("before", dashed())
    return panel


def _worth_over_time() -> timeseries.Panel:
    rate = f"sum by (dir) (rate({dirs(_BUBBLE)}[{WINDOW}]))"
    return graph_panel(
        Frame(
            "GPUs' worth lost, by directory",
            "GPU-seconds lost to saves per second, over the trend window: how many GPUs stand still on "
            "account of each directory's saves.",
            12,
            8,
        ),
        [Query(rate, "{{dir}}")],
        Scale("short", 2, lowest=0.0),
        stacked=True,
        values=("lastNotNull",),
    )


def _directories() -> table.Panel:
    saves = increase(dirs("ckpt_saves_total", _COMPLETE), by="dir")
    flow = quotient(
        increase(dirs("ckpt_written_bytes_total"), by="dir"),
        increase(dirs("ckpt_write_active_seconds_total"), by="dir"),
    )
    return table_panel(
        Frame(
            "Directories, most expensive first",
            "Share: of the GPU time observed on the nodes that saved to the directory. Mean save and "
            "bubble: per complete save and node. Flow: bytes while bytes were flowing, per node; if it is "
            "much faster than size over duration, the writer waits for something else than the storage.",
            17,
            8,
        ),
        [
            Query(f"{increase(dirs(_BUBBLE), by='dir')} / 3600"),
            Query(bubble_share_by_directory()),
            Query(per_save("ckpt_bubble_seconds", by="dir")),
            Query(per_save("ckpt_save_duration_seconds", by="dir")),
            Query(quotient(increase(dirs("ckpt_save_bytes_total"), by="dir"), saves)),
            Query(flow),
            Query(saves),
            Query(increase(dirs("ckpt_saves_total", _NOT_COMPLETE), by="dir")),
        ],
        [
            Column("dir", "Directory", link=TO_DIRECTORY),
            Column("Value #A", "GPU-hours lost", GPU_HOURS, width=125),
            Column("Value #B", "Share", SHARE, width=85),
            Column("Value #C", "Bubble", SECONDS, width=105),
            Column("Value #D", "Mean save", SECONDS, width=105),
            Column("Value #E", "Size", BYTES, width=95),
            Column("Value #F", "Flow", BANDWIDTH, width=100),
            Column("Value #G", "Complete", COUNT, width=95),
            Column("Value #H", "Lost", COUNT, width=75),
        ],
        sort="GPU-hours lost",
    )


def _by_node() -> bargauge.Panel:
    lost = increase(dirs(_BUBBLE), by=NODE_LABELS)
    return bar_panel(
        Frame(
            "GPU-hours lost, by node",
            "The ten nodes that lost most GPU time to saves in this range. Nodes of one job should lose "
            "alike; one that loses more has the slow disk, link or GPU.",
            7,
            8,
        ),
        Query(f"sort_desc(topk(10, {lost} / 3600))", "{{instance}}"),
        GPU_HOURS,
        "orange",
        link=TO_NODE,
    )


def _alerts() -> table.Panel:
    severities = {"critical": ("critical", "red"), "warning": ("warning", "orange"), "info": ("info", "blue")}
    states = {"firing": ("firing", "red"), "pending": ("pending", "yellow")}
    return table_panel(
        Frame(
            "Alerts",
            "Alerts of this exporter's rules that fire or are about to at the end of the range, on all "
            "nodes, whatever is selected above. Empty also when the rules are not loaded: the list can't "
            "tell.",
            12,
            8,
        ),
        [Query('ALERTS{alertname=~"Ckpt.+"}')],
        [
            Column("severity", "Severity", width=90, mappings=severities),
            Column("alertname", "Alert", link=("Runbooks", "${runbooks}")),
            Column("alertstate", "State", width=80, mappings=states),
            Column("instance", "Node"),
            Column("dir", "Directory"),
        ],
        no_value="none fires, or the alerting rules are not loaded",
    )


def _write_speed() -> timeseries.Panel:
    flow = quotient(
        increase(dirs("ckpt_written_bytes_total"), WINDOW, by="dir"),
        increase(dirs("ckpt_write_active_seconds_total"), WINDOW, by="dir"),
    )
    return graph_panel(
        Frame(
            "Write bandwidth while bytes flow, by directory",
            "Bytes over the time in which they were flowing, per node, over the trend window. A bigger "
            "model does not change it; a slower disk or a fuller network does.",
            12,
            8,
            runbook="ckptbandwidthregression",
        ),
        [Query(flow, "{{dir}}")],
        BANDWIDTH,
        values=("lastNotNull",),
    )


def _durations() -> timeseries.Panel:
    return graph_panel(
        Frame(
            "Mean duration of saves, by directory",
            "Complete saves over the trend window, from first write-open to commit, per node and save.",
            12,
            8,
            runbook="ckptbandwidthregression",
        ),
        [Query(per_save("ckpt_save_duration_seconds", WINDOW, by="dir"), "{{dir}}")],
        SECONDS,
        values=("lastNotNull",),
    )


def _sources() -> table.Panel:
    return table_panel(
        Frame(
            "What activity is read from",
            "GPUs by the source of their activity. gpm and power tell work from waiting. utilization "
            "(quality low) does not: a GPU that spins in a collective looks busy, so most of a bubble is "
            "missed. GPUs that have not yet shown a steady state have no source and are not counted.",
            12,
            8,
            runbook="ckptbubblelowquality",
        ),
        [Query(f"count by (source, quality) ({nodes('ckpt_gpu_activity_source_info')})")],
        [
            Column("source", "Source"),
            Column("quality", "Quality", mappings={"high": ("high", "green"), "low": ("low", "red")}),
            Column("Value", "GPUs", COUNT),
        ],
    )


def _saves_over_time() -> timeseries.Panel:
    return graph_panel(
        Frame(
            "Saves by result",
            "Saves that ended in each trend window: complete; incomplete (no commit, cut short, or a full "
            "disk); aborted (removed before the commit). Each node counts the saves that it writes.",
            12,
            8,
            runbook="ckptsaveincomplete",
        ),
        [Query(increase(dirs("ckpt_saves_total"), WINDOW, by="result"), "{{result}}")],
        COUNT,
        colors={"complete": "green", "incomplete": "red", "aborted": "orange"},
    )
