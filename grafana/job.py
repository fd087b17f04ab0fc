"""The dashboard *Job*: what saves cost one training over all its nodes, and which node it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from grafana.frame import TO_NODE, Outline, Row, assemble
from grafana.panels import Column, Frame, Query, Scale, graph_panel, stat_panel, table_panel
from grafana.promql import NODE_LABELS, WINDOW, increase, quotient, run_dirs, runs
from grafana.shared import (
    BANDWIDTH,
    BYTES,
    CAUSE_NAMES,
    CAUSES,
    CLOCK,
    COUNT,
    GPU_HOURS,
    SECONDS,
    SHARE,
    SHARE_AXIS,
    SHARE_STEPS,
    measuring_panel,
    sure_causes_panel,
)

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders import stat, table, timeseries

    from grafana.panels import Builder

_STALLS: Final = "instance_gpu_run_cause:ckpt_gpu_stall_seconds:counter"
_SURE_STALLS: Final = "instance_gpu_run_cause:ckpt_gpu_stall_confident_seconds:counter"
_OBSERVED: Final = "instance_gpu_run:ckpt_gpu_observed_seconds:counter"
_DURATION: Final = "instance_run:ckpt_last_save_duration_seconds:max"
_BANDWIDTH: Final = "instance_run:ckpt_last_save_sustained_bandwidth_bytes_per_second:min"
_SAVING: Final = 'cause="checkpoint_save"'
_NO_RULES: Final = "no such job, or the recording rules are not loaded"


def job_dashboard() -> dict[str, Any]:
    """Return the dashboard of one job on all nodes whose GPUs it holds, whether they write or not."""
    outline = Outline(
        "ckpt-job",
        "Checkpoints / Job",
        "One training over all its nodes: what saves cost it, what else its GPUs wait for, and which node "
        "the others wait for. Needs the recording rules of deploy/prometheus.",
        since="now-6h",
        window="1h",
        one=frozenset({"run_id"}),
        by_run=True,
    )
    headline: list[Builder] = [_share(), _gpu_hours(), _gpus(), _saves(), _bytes(), _slowest(), _spread()]
    overview: list[Builder] = [
        _causes(),
        _sure_causes(),
        _shares_by_node(),
        _durations(),
        _bandwidths(),
        _nodes(),
    ]
    return assemble(outline, [*headline, *overview, measuring_panel()], [Row("All jobs", [_jobs()])])


def _share() -> stat.Panel:
    share = quotient(increase(runs(_STALLS, _SAVING)), increase(runs(_OBSERVED)))
    return stat_panel(
        Frame(
            "Bubble share",
            "Of the time of all GPUs that the job held in this range, the part that saves cost, also on "
            "nodes that only wait for a save. Yellow from 5 %, red from 10 %.",
            4,
            4,
            runbook="ckptbubblesharehigh",
        ),
        [Query(share)],
        SHARE,
        steps=SHARE_STEPS,
        no_value=_NO_RULES,
    )


def _gpu_hours() -> stat.Panel:
    return stat_panel(
        Frame("GPU-hours lost", "GPU time that saves cost the job in this range, over all its nodes.", 4, 4),
        [Query(f"{increase(runs(_STALLS, _SAVING))} / 3600")],
        GPU_HOURS,
    )


def _gpus() -> stat.Panel:
    trained = f"count (\n  count by ({NODE_LABELS}, gpu, uuid) (increase({runs(_OBSERVED)}[$__range]) > 0)\n)"
    return stat_panel(
        Frame("GPUs", "GPUs that the job trained on in this range.", 3, 4), [Query(trained)], COUNT
    )


def _saves() -> stat.Panel:
    counter = run_dirs("instance_dir_run:ckpt_saves:counter")
    once = f"sum (\n  max by (cluster, job, dir) (increase({counter}[$__range]))\n)"
    return stat_panel(
        Frame(
            "Saves",
            "Complete saves in this range. One that several nodes write counts once. Told five minutes late.",
            3,
            4,
        ),
        [Query(once)],
        COUNT,
    )


def _bytes() -> stat.Panel:
    return stat_panel(
        Frame("Saved", "Bytes of these saves: what each node wrote itself, added up.", 3, 4),
        [Query(increase(run_dirs("instance_dir_run:ckpt_save_bytes:counter")))],
        BYTES,
    )


def _slowest() -> stat.Panel:
    return stat_panel(
        Frame(
            "Slowest node",
            "Time that the slowest node took to write its part of the last save: the others wait for it.",
            4,
            4,
            runbook="ckptnodestraggles",
        ),
        [Query(f"max ({runs(_DURATION)})")],
        CLOCK,
    )


def _spread() -> stat.Panel:
    return stat_panel(
        Frame(
            "Spread",
            "Slowest less fastest of the nodes that wrote a part of the last save: what would be won if all "
            "were as fast as the fastest. 0 where one node writes alone.",
            3,
            4,
            runbook="ckptnodestraggles",
        ),
        [Query(f"max ({runs(_DURATION)})\n- min ({runs(_DURATION)})")],
        CLOCK,
    )


def _causes() -> timeseries.Panel:
    observed = increase(runs(_OBSERVED), WINDOW)
    queries = [
        Query(quotient(increase(runs(_STALLS, f'cause="{cause}"'), WINDOW), observed), name)
        for cause, name in CAUSE_NAMES.items()
    ]
    return graph_panel(
        Frame(
            "GPU time lost, by cause",
            "Share of the job's GPU time in which activity was lost, over the trend window: to checkpoints, "
            "to waiting for data, to gradients (communication), and to what could not be told. The cause is "
            "an estimate, told from how GPU and files behaved.",
            8,
            9,
        ),
        queries,
        SHARE_AXIS,
        stacked=True,
        colors=CAUSES,
    )


def _sure_causes() -> timeseries.Panel:
    return sure_causes_panel(
        8,
        9,
        lambda *matchers: runs(_STALLS, *matchers),
        lambda *matchers: runs(_SURE_STALLS, *matchers),
        runs(_OBSERVED),
    )


def _shares_by_node() -> timeseries.Panel:
    share = quotient(
        increase(runs(_STALLS, _SAVING), WINDOW, by="instance"),
        increase(runs(_OBSERVED), WINDOW, by="instance"),
    )
    return graph_panel(
        Frame(
            "Bubble share of each node",
            "Over the trend window. Nodes of a synchronous job lose alike; one that loses less than the "
            "others is the one that they wait for.",
            8,
            9,
            runbook="ckptnodestraggles",
        ),
        [Query(share, "{{instance}}")],
        SHARE_AXIS,
        values=("lastNotNull",),
    )


def _durations() -> timeseries.Panel:
    return graph_panel(
        Frame(
            "Each node's part of a save",
            "Time from a node's first write-open to its commit in the last save, held until the next. Only "
            "nodes that write have one.",
            12,
            8,
            runbook="ckptnodestraggles",
        ),
        [Query(f"max by (instance) ({runs(_DURATION)})", "{{instance}}")],
        SECONDS,
        stepped=True,
    )


def _bandwidths() -> timeseries.Panel:
    return graph_panel(
        Frame(
            "Bandwidth of each node",
            "Bytes of the last save over the time in which they flowed. A node far below the others with the "
            "same bytes has the slow disk or link.",
            12,
            8,
            runbook="ckptbandwidthregression",
        ),
        [Query(f"min by (instance) ({runs(_BANDWIDTH)})", "{{instance}}")],
        BANDWIDTH,
        stepped=True,
    )


def _nodes() -> table.Panel:
    lost = increase(runs(_STALLS, _SAVING), by="instance")
    return table_panel(
        Frame(
            "Nodes",
            "GPU time lost to saves and its share of the node's, and the node's part of the last save.",
            24,
            8,
        ),
        [
            Query(f"{lost} / 3600"),
            Query(quotient(lost, increase(runs(_OBSERVED), by="instance"))),
            Query(f"max by (instance) ({runs(_DURATION)})"),
            Query(f"min by (instance) ({runs(_BANDWIDTH)})"),
        ],
        [
            Column("instance", "Node", link=TO_NODE),
            Column("Value #A", "GPU-hours lost", GPU_HOURS, width=140),
            Column("Value #B", "Share", SHARE, width=100),
            Column("Value #C", "Its part of the last save", SECONDS, width=200),
            Column("Value #D", "Bandwidth", BANDWIDTH, width=130),
        ],
        sort="GPU-hours lost",
        no_value=_NO_RULES,
    )


def _jobs() -> table.Panel:
    everything = 'run_id!=""'
    lost = increase(runs(_STALLS, _SAVING, everything, chosen=False), by="run_id")
    return table_panel(
        Frame(
            "Jobs, most expensive first",
            "All jobs on the selected nodes in this range: GPU time lost to saves, and its share.",
            24,
            8,
        ),
        [
            Query(f"{lost} / 3600"),
            Query(quotient(lost, increase(runs(_OBSERVED, everything, chosen=False), by="run_id"))),
        ],
        [
            Column("run_id", "Job"),
            Column("Value #A", "GPU-hours lost", GPU_HOURS, width=160),
            Column("Value #B", "Share", Scale("percentunit", 1, lowest=0.0), width=120),
        ],
        sort="GPU-hours lost",
        no_value=_NO_RULES,
    )
