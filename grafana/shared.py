"""Panels and colours that more than one dashboard shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from grafana_foundation_sdk.models import dashboard as models

from grafana.panels import ABSENT, Column, Frame, Query, Scale, graph_panel, stat_panel, table_panel
from grafana.promql import WINDOW, bad, dirs, increase, nodes, per_save, quotient

if TYPE_CHECKING:
    from collections.abc import Callable

    from grafana_foundation_sdk.builders import stat, table, timeseries

SHARE: Final = Scale("percentunit", 1, lowest=0.0, highest=1.0)
# Decimals left open on an axis: fixed ones would also fix how fine its ticks are.
SHARE_AXIS: Final = Scale("percentunit", lowest=0.0, at_least=0.01)
ACTIVITY_AXIS: Final = Scale("percentunit", lowest=0.0, highest=1.0)
CLOCK: Final = Scale("clocks", 1, lowest=0.0)
SHARE_STEPS: Final = ((None, "green"), (0.05, "yellow"), (0.10, "red"))
SECONDS: Final = Scale("s", 1, lowest=0.0)
COUNT: Final = Scale("locale", 0, lowest=0.0, at_least=1.0)
GPU_HOURS: Final = Scale("short", lowest=0.0)
NONE_IS_GOOD: Final = ((None, "green"), (0.5, "red"))
BYTES: Final = Scale("decbytes", lowest=0.0)
BANDWIDTH: Final = Scale("Bps", lowest=0.0)
# Blue is where faster storage helps, orange where it does not.
PHASES: Final = {
    "before the first byte": "orange",
    "while bytes flow": "blue",
    "while bytes pause": "light-orange",
    "after the last byte": "dark-orange",
}
_PHASE_NAMES: Final = {
    "before_write": "before the first byte",
    "writing": "while bytes flow",
    "write_gap": "while bytes pause",
    "after_write": "after the last byte",
}
CAUSES: Final = {
    "saving a checkpoint": "red",
    "loading a checkpoint": "orange",
    "waiting for data": "yellow",
    "communication": "purple",
    "other": "#8e8e8e",
}
UNSURE: Final = "cause not sure"
CAUSE_NAMES: Final = {
    "checkpoint_save": "saving a checkpoint",
    "checkpoint_load": "loading a checkpoint",
    "data_loading": "waiting for data",
    "communication": "communication",
    "other": "other",
}


def measuring_panel() -> stat.Panel:
    """Tell whether the measuring is alive: what an empty panel elsewhere can't say."""
    build = nodes("ckpt_exporter_build_info")
    seen = f"last_over_time({build}[$__range])"
    silent = f"count ({seen} unless on (cluster, job, instance) {build}) or 0 * count ({seen}) or vector(-1)"
    return stat_panel(
        Frame(
            "Is it measured?",
            "Look here before you believe an empty panel. Nodes reporting: exporters scraped at the end of "
            "the range. Every other number should be 0: nodes that were scraped in this range and no "
            "longer are, directories that are missing, unreadable or not yet watched, threads of the "
            "exporter that make no progress, parts of a scrape that failed, GPU backends without readings, "
            'GPUs that can\'t be read. "absent" means that there is no such series: no exporter was '
            "scraped, or it has no GPU part.",
            24,
            3,
            runbook="ckpttargetmissing",
        ),
        [
            Query(f"count ({build}) or vector(0)", "Nodes reporting"),
            Query(silent, "Nodes silent"),
            Query(bad(dirs("ckpt_watch_up")), "Dirs not watched"),
            Query(bad(nodes("ckpt_source_up")), "Sources stuck"),
            Query(bad(nodes("ckpt_collector_success")), "Collectors failing"),
            Query(bad(nodes("ckpt_gpu_backend_up")), "GPU backends down"),
            Query(bad(nodes("ckpt_gpu_up")), "GPUs unreadable"),
        ],
        Scale("short", 0),
        steps=NONE_IS_GOOD,
        no_value=ABSENT,
        texts={"-1": (ABSENT, "#8e8e8e")},
        named=True,
    ).override_by_name("Nodes reporting", _more_is_good())


def phases_panel(width: int) -> timeseries.Panel:
    """Draw the bubble of a mean save, split by what the files did."""
    saves = increase(dirs("ckpt_bubble_seconds_count"), WINDOW)
    queries = [
        Query(quotient(increase(dirs("ckpt_bubble_seconds_total", f'phase="{phase}"'), WINDOW), saves), name)
        for phase, name in _PHASE_NAMES.items()
    ]
    return graph_panel(
        Frame(
            "Bubble per save, by phase",
            "Seconds of training that a mean save costs (mean over the GPUs of its run), over the trend "
            "window. Only the time while bytes flow gets shorter with faster storage; the rest is staging, "
            "serialising, waiting between shards, and barriers after the last byte.",
            width,
            8,
            runbook="ckptbubblesharehigh",
        ),
        queries,
        SECONDS,
        stacked=True,
        colors=PHASES,
    )


def stalls_panel(width: int) -> timeseries.Panel:
    """Draw lost GPU time by cause, so that saves are seen in proportion."""
    observed = increase(nodes("ckpt_gpu_observed_seconds_total"), WINDOW)
    queries = [
        Query(
            quotient(increase(nodes("ckpt_gpu_stall_seconds_total", f'cause="{cause}"'), WINDOW), observed),
            name,
        )
        for cause, name in CAUSE_NAMES.items()
    ]
    return graph_panel(
        Frame(
            "GPU time lost, by cause",
            "Share of the observed GPU time in which activity was lost, over the trend window. The cause "
            "is an estimate, told from how GPU and files behaved: saves are only one of the reasons why "
            "GPUs wait.",
            width,
            8,
        ),
        queries,
        SHARE_AXIS,
        stacked=True,
        colors=CAUSES,
    )


def sure_stalls_panel(width: int) -> timeseries.Panel:
    """Draw the part of lost GPU time whose cause is known for sure, and the rest."""
    return sure_causes_panel(
        width,
        8,
        lambda *matchers: nodes("ckpt_gpu_stall_seconds_total", *matchers),
        lambda *matchers: nodes("ckpt_gpu_stall_confident_seconds_total", *matchers),
        nodes("ckpt_gpu_observed_seconds_total"),
    )


def sure_causes_panel(
    width: int, height: int, lost: Callable[..., str], sure: Callable[..., str], observed: str
) -> timeseries.Panel:
    """Draw shares by cause from counters of lost and of surely told seconds; they stack up to all lost."""
    seen = increase(observed, WINDOW)
    queries = [
        Query(quotient(increase(sure(f'cause="{cause}"'), WINDOW), seen), name)
        for cause, name in CAUSE_NAMES.items()
    ]
    # Two counters that begin at different values are extrapolated by different bits: never below 0.
    rest = f"clamp_min({increase(lost(), WINDOW)} - {increase(sure(), WINDOW)}, 0)"
    return graph_panel(
        Frame(
            "GPU time lost, causes known for sure",
            "The same share of GPU time, over the trend window: in colour where the cause is of high "
            "confidence (more than the GPU's own readings speaks for it), in grey the rest, whose cause is "
            "a guess. What may be relied on when saves, data and gradients are compared.",
            width,
            height,
        ),
        [*queries, Query(quotient(rest, seen), UNSURE)],
        SHARE_AXIS,
        stacked=True,
        colors={**CAUSES, UNSURE: "#d0d0d0"},
    )


def skipped_panel(width: int) -> timeseries.Panel:
    """Draw saves without a bubble figure by reason."""
    return graph_panel(
        Frame(
            "Saves without a bubble figure",
            "Saves in each trend window whose cost is not in the figures, by reason: no_gpu, no_baseline (no "
            "steady state before the save), sampler_gap (readings are missing), low_quality (the readings "
            "can't carry a figure). While these are many, the true cost is higher than shown.",
            width,
            8,
            runbook="ckptbubbleunknown",
        ),
        [Query(increase(dirs("ckpt_bubble_skipped_total"), WINDOW, by="reason"), "{{reason}}")],
        COUNT,
        stacked=True,
    )


def durations_panel(width: int) -> timeseries.Panel:
    """Draw the mean duration of saves, and the fastest and slowest that were scraped."""
    last = dirs("ckpt_last_save_duration_seconds")
    return graph_panel(
        Frame(
            "Duration of saves",
            "Complete saves over the trend window. The mean is exact and has every save; fastest and "
            "slowest are those of the saves that were a node's last one at a scrape. Each node counts the "
            "saves that it writes.",
            width,
            8,
            runbook="ckptbandwidthregression",
        ),
        [
            Query(per_save("ckpt_save_duration_seconds", WINDOW), "mean"),
            Query(f"max (max_over_time({last}[{WINDOW}]))", "slowest"),
            Query(f"min (min_over_time({last}[{WINDOW}]))", "fastest"),
        ],
        SECONDS,
        colors={"mean": "orange", "slowest": "red", "fastest": "green"},
    )


def activity_sources_table(width: int, height: int = 8) -> table.Panel:
    """List what the activity of each GPU of one node is read from."""
    return table_panel(
        Frame(
            "What activity is read from",
            "gpm and power tell work from waiting. utilization (quality low) does not: a GPU that spins in a "
            "collective looks busy, so most of a bubble is missed. A GPU without a source has not yet shown "
            "a steady state.",
            width,
            height,
            runbook="ckptbubblelowquality",
        ),
        [
            Query(f"max by (gpu, uuid, name) ({nodes('ckpt_gpu_info')})"),
            Query(f"max by (gpu, uuid, source, quality) ({nodes('ckpt_gpu_activity_source_info')})"),
        ],
        [
            Column("gpu", "GPU", width=50),
            Column("name", "Model"),
            Column("source", "Read from", width=90),
            Column(
                "quality", "Quality", width=70, mappings={"high": ("high", "green"), "low": ("low", "red")}
            ),
        ],
    )


def _more_is_good() -> list[models.DynamicConfigValue]:
    steps = [{"value": None, "color": "red"}, {"value": 0.5, "color": "green"}]
    return [models.DynamicConfigValue(id_val="thresholds", value={"mode": "absolute", "steps": steps})]
