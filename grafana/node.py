"""The dashboard *Node*: what its GPUs do, and whether its figures can be trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grafana.frame import Outline, Row, assemble
from grafana.panels import (
    Column,
    Frame,
    Query,
    Scale,
    bar_panel,
    graph_panel,
    stat_panel,
    state_panel,
    table_panel,
)
from grafana.promql import WINDOW, bubble_share, dirs, increase, nodes, quotient
from grafana.shared import (
    ACTIVITY_AXIS,
    BANDWIDTH,
    CLOCK,
    COUNT,
    NONE_IS_GOOD,
    SHARE,
    SHARE_STEPS,
    activity_sources_table,
    measuring_panel,
    skipped_panel,
    stalls_panel,
    sure_stalls_panel,
)

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders import bargauge, stat, statetimeline, table, timeseries

    from grafana.panels import Builder

_DISAGREE = "clamp_min({}\n- on (cluster, job, instance, gpu, uuid)\n{}, 0)"
_GPU = "GPU {{gpu}}"
_ACTIVITY = "GPU activity"
_UTILIZATION = "GPU utilisation, as the driver reports it"
_POWER = "GPU power"


def node_dashboard() -> dict[str, Any]:
    """Return the dashboard of one node."""
    outline = Outline(
        "ckpt-node",
        "Checkpoints / Node",
        "The GPUs of one node, where activity, power and utilisation disagree, and the exporter's own "
        "health and cost.",
        since="now-1h",
        window="1h",
        one=frozenset({"instance"}),
        marked=frozenset({_ACTIVITY, _UTILIZATION, _POWER}),
    )
    gpus = [_activity(), _utilization(), _power(), _disagreement()]
    losses: list[Builder] = [_by_gpu(), stalls_panel(8), sure_stalls_panel(8)]
    cost = Row("What the exporter costs", [_cpu(), _memory(), _scrape(), _driver()])
    watch = Row("Watching", [_watches(), _events(), _mishaps(), skipped_panel(8), _files()])
    return assemble(
        outline,
        [*_headline(), *gpus, *losses, _states(), activity_sources_table(24, 10), measuring_panel()],
        [cost, watch],
    )


def _headline() -> list[Builder]:
    return [_share(), _lost(), _gpus(), _processor(), _resident(), _dropped()]


def _share() -> stat.Panel:
    return stat_panel(
        Frame(
            "Bubble share",
            "Of the GPU time observed on this node in this range, the part that saves of the selected "
            "directories cost. Yellow from 5 %, red from 10 %.",
            4,
            4,
            runbook="ckptbubblesharehigh",
        ),
        [Query(bubble_share())],
        SHARE,
        steps=SHARE_STEPS,
    )


def _lost() -> stat.Panel:
    return stat_panel(
        Frame(
            "GPU-hours lost", "GPU time that saves cost on this node in this range, over all its GPUs.", 4, 4
        ),
        [Query(f"{increase(dirs('ckpt_gpu_bubble_seconds_total'))} / 3600")],
        Scale("short", 1, lowest=0.0),
    )


def _gpus() -> stat.Panel:
    return stat_panel(
        Frame(
            "GPUs read",
            "GPUs whose readings arrive at the end of the range. Absent without a GPU part; GPUs that "
            'can\'t be read are counted under "Is it measured?".',
            4,
            4,
            runbook="ckptgpudown",
        ),
        [Query(f"sum ({nodes('ckpt_gpu_up')})")],
        COUNT,
        steps=((None, "red"), (0.5, "green")),
        no_value="absent",
    )


def _processor() -> stat.Panel:
    return stat_panel(
        Frame("CPU of the exporter", "Of one core, mean over this range.", 4, 4),
        [Query(f"sum (rate({nodes('process_cpu_seconds_total')}[$__range]))")],
        Scale("percentunit", 2, lowest=0.0),
        no_value="absent",
    )


def _resident() -> stat.Panel:
    return stat_panel(
        Frame("Memory of the exporter", "Resident memory of its main process at the end of the range.", 4, 4),
        [Query(f"sum ({nodes('process_resident_memory_bytes')})")],
        Scale("decbytes", 1, lowest=0.0),
        no_value="absent",
    )


def _dropped() -> stat.Panel:
    lost = (
        f"{increase(nodes('ckpt_events_dropped_total'))}\n+ {increase(nodes('ckpt_watch_overflows_total'))}"
    )
    return stat_panel(
        Frame(
            "Events lost",
            "File events given up in this range because a queue was full, and overflows of the kernel's "
            "own queue. Each is repaired by a rescan; times of the saves concerned are less exact.",
            4,
            4,
            runbook="ckptwatchoverflow",
        ),
        [Query(lost)],
        COUNT,
        steps=NONE_IS_GOOD,
        no_value="absent",
    )


def _activity() -> timeseries.Panel:
    return graph_panel(
        Frame(
            _ACTIVITY,
            "Useful work of each GPU relative to its own steady state just before: this is what a bubble "
            "is measured by. No line while no steady state is known yet.",
            12,
            8,
        ),
        [Query(nodes("ckpt_gpu_activity_ratio"), _GPU)],
        ACTIVITY_AXIS,
    )


def _utilization() -> timeseries.Panel:
    return graph_panel(
        Frame(
            _UTILIZATION,
            "Share of time in which a kernel ran. During a save it may even rise: GPUs that wait in a "
            "collective spin, and spinning counts as busy.",
            12,
            8,
        ),
        [Query(nodes("ckpt_gpu_utilization_ratio"), _GPU)],
        ACTIVITY_AXIS,
    )


def _power() -> timeseries.Panel:
    return graph_panel(
        Frame(
            _POWER,
            "Power draw of each GPU as the driver reports it; some drivers average it over a second.",
            12,
            8,
        ),
        [Query(nodes("ckpt_gpu_power_watts"), _GPU)],
        Scale("watt", 0, lowest=0.0),
    )


def _disagreement() -> timeseries.Panel:
    return graph_panel(
        Frame(
            "Busy without working: utilisation above activity",
            "How far the driver's utilisation exceeds activity: what a dashboard of utilisation misses.",
            12,
            8,
        ),
        [
            Query(
                _DISAGREE.format(nodes("ckpt_gpu_utilization_ratio"), nodes("ckpt_gpu_activity_ratio")),
                _GPU,
            )
        ],
        ACTIVITY_AXIS,
    )


def _by_gpu() -> bargauge.Panel:
    lost = increase(dirs("ckpt_gpu_bubble_seconds_total"), by="gpu")
    return bar_panel(
        Frame(
            "Time lost to saves, by GPU",
            "Seconds of each GPU in this range. The GPUs of one run should lose alike.",
            8,
            8,
        ),
        Query(f"sort_desc({lost})", _GPU),
        CLOCK,
        "orange",
    )


def _states() -> statetimeline.Panel:
    return state_panel(
        Frame(
            "What was measured when",
            "Grey gaps: not scraped. Everything that can fail alone has its line, so that a dip of a graph "
            "can be told from a gap in the measuring.",
            24,
            6,
            runbook="ckptwatchdown",
        ),
        [
            Query(f"max by (dir) ({dirs('ckpt_watch_up')})", "watch of {{dir}}"),
            Query(f"max by (source) ({nodes('ckpt_source_up')})", "source {{source}}"),
            Query(f"max by (backend) ({nodes('ckpt_gpu_backend_up')})", "GPU backend {{backend}}"),
            Query(f"min ({nodes('ckpt_gpu_up')})", "every GPU"),
            Query(f"min ({nodes('ckpt_collector_success')})", "every collector"),
        ],
        {"0": ("down", "red"), "1": ("up", "green")},
    )


def _cpu() -> timeseries.Panel:
    return graph_panel(
        Frame("CPU", "Of one core, over the trend window.", 6, 8),
        [Query(f"sum (rate({nodes('process_cpu_seconds_total')}[$__rate_interval]))", "exporter")],
        Scale("percentunit", 2, lowest=0.0),
    )


def _memory() -> timeseries.Panel:
    return graph_panel(
        Frame(
            "Memory", "Resident memory of the main process. It must not grow with the number of saves.", 6, 8
        ),
        [Query(f"sum ({nodes('process_resident_memory_bytes')})", "exporter")],
        Scale("decbytes", 1, lowest=0.0),
    )


def _scrape() -> timeseries.Panel:
    return graph_panel(
        Frame(
            "Time of a scrape, by collector",
            "A scrape reads memory alone, so this stays at milliseconds whatever the storage does.",
            6,
            8,
        ),
        [Query(f"max by (collector) ({nodes('ckpt_collector_duration_seconds')})", "{{collector}}")],
        Scale("s", 1, lowest=0.0),
        stacked=True,
    )


def _driver() -> timeseries.Panel:
    mean = quotient(
        increase(nodes("ckpt_gpu_call_seconds_sum"), WINDOW),
        increase(nodes("ckpt_gpu_call_seconds_count"), WINDOW),
    )
    return graph_panel(
        Frame(
            "Calls to the GPU driver",
            "Mean time of a call, over the trend window. Calls are made by a process of their own, never "
            "by a scrape.",
            6,
            8,
        ),
        [Query(mean, "mean")],
        Scale("s", 1, lowest=0.0),
        no_value="absent",
    )


def _watches() -> table.Panel:
    by = "instance, dir"
    followed = {"0": ("whole", "green"), "1": ("in part: too many", "red")}
    limited = {"0": ("no", "green"), "1": ("limit reached", "red")}
    watched = {"0": ("not watched", "red"), "1": ("watched", "green")}
    return table_panel(
        Frame(
            "Watches",
            "inotify sees changes at once; poll finds them by looking. Covered below 100 %: a kernel limit "
            "leaves the rest to polling, and the log names the sysctl. Followed in part: saves in the "
            "directories beyond a million are not seen.",
            24,
            6,
            runbook="ckptwatchdown",
        ),
        [
            Query(f"max by ({by}, backend) ({dirs('ckpt_watch_up')})"),
            Query(f"max by ({by}) ({dirs('ckpt_watched_directories')})"),
            Query(f"max by ({by}) ({dirs('ckpt_watch_coverage_ratio')})"),
            Query(f"max by ({by}) ({dirs('ckpt_watch_limit_reached')})"),
            Query(f"max by ({by}) ({dirs('ckpt_watch_truncated')})"),
        ],
        [
            Column("dir", "Directory"),
            Column("Value #A", "State", mappings=watched),
            Column("backend", "By"),
            Column("Value #B", "Directories watched", COUNT),
            Column("Value #C", "Covered by inotify", SHARE),
            Column("Value #D", "Limited", mappings=limited),
            Column("Value #E", "Followed", mappings=followed),
        ],
    )


def _events() -> timeseries.Panel:
    return graph_panel(
        Frame(
            "File events",
            "Events taken in per second, by kind. A save costs a handful, whatever its size.",
            8,
            8,
        ),
        [Query(f"sum by (event) (rate({nodes('ckpt_events_total')}[$__rate_interval]))", "{{event}}")],
        Scale("cps", lowest=0.0),
        stacked=True,
    )


def _mishaps() -> timeseries.Panel:
    return graph_panel(
        Frame(
            "Rescans, by reason",
            "Rescans of a tree in each trend window. Periodic ones are routine; overflow, root_lost, "
            "canary and limit mean that events were or may have been missed.",
            8,
            8,
            runbook="ckptwatchoverflow",
        ),
        [Query(increase(nodes("ckpt_watch_rescans_total"), WINDOW, by="reason"), "{{reason}}")],
        COUNT,
    )


def _files() -> timeseries.Panel:
    return graph_panel(
        Frame(
            "Bytes written by this node, by directory",
            "Bytes arriving in checkpoint files.",
            24,
            8,
        ),
        [Query(f"sum by (dir) (rate({dirs('ckpt_written_bytes_total')}[$__rate_interval]))", "{{dir}}")],
        BANDWIDTH,
        fill=20,
    )
