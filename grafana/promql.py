"""PromQL building blocks of all dashboards.

Sums are taken over increases, never increases over sums, so that a restart of one exporter is no loss.
Numerator and denominator are aggregated apart, and a denominator of 0 gives no value instead of NaN.
"""

from __future__ import annotations

from typing import Final

# A label that a user's targets don't have matches too: the variables' "all" values see to that.
_NODES: Final = 'cluster=~"$cluster", job=~"$job", instance=~"$instance"'
NODE_LABELS: Final = "cluster, job, instance"
RANGE: Final = "$__range"
WINDOW: Final = "$window"


def nodes(metric: str, *matchers: str) -> str:
    """Select a metric of the selected nodes."""
    return f"{metric}{{{', '.join((_NODES, *matchers))}}}"


def dirs(metric: str, *matchers: str) -> str:
    """Select a metric of the selected directories on the selected nodes."""
    return nodes(metric, 'dir=~"$dir"', *matchers)


def runs(metric: str, *matchers: str, chosen: bool = True) -> str:
    """Select a recorded series of the selected job, or of all jobs, on the selected nodes."""
    return nodes(metric, *(('run_id="$run_id"',) if chosen else ()), *matchers)


def run_dirs(metric: str) -> str:
    """Select a recorded series of the selected job's directories."""
    return dirs(metric, 'run_id="$run_id"')


def increase(selector: str, window: str = RANGE, *, by: str = "", ago: str = "") -> str:
    """Sum what counters grew by over a window that ended now, or a time ``ago``."""
    grouping = f" by ({by})" if by else ""
    offset = f" offset {ago}" if ago else ""
    return f"sum{grouping} (increase({selector}[{window}]{offset}))"


def quotient(numerator: str, denominator: str) -> str:
    """Divide where there is something to divide by."""
    return f"{numerator}\n/\n({denominator} > 0)"


def bubble_share(window: str = RANGE, *, ago: str = "") -> str:
    """Return the share of all observed GPU time that saves of the selected directories cost."""
    return quotient(
        increase(dirs("ckpt_gpu_bubble_seconds_total"), window, ago=ago),
        increase(nodes("ckpt_gpu_observed_seconds_total"), window, ago=ago),
    )


def own_share(metric: str, window: str = RANGE) -> str:
    """Return a counter of GPU-seconds as a share of the time observed on the nodes that saved here."""
    saving = increase(dirs("ckpt_saves_total"), window, by=NODE_LABELS)
    observed = (
        f"sum (\n  increase({nodes('ckpt_gpu_observed_seconds_total')}[{window}])\n"
        f"  and on ({NODE_LABELS}) ({saving} > 0)\n)"
    )
    return quotient(increase(dirs(metric), window), observed)


def bubble_share_by_directory() -> str:
    """Return for each directory its share of the GPU time observed on the nodes that saved to it."""
    observed = increase(nodes("ckpt_gpu_observed_seconds_total"), by=NODE_LABELS)
    saved = f"({increase(dirs('ckpt_saves_total'), by=f'{NODE_LABELS}, dir')} > bool 0)"
    own = f"sum by (dir) ({observed} * on ({NODE_LABELS}) group_right () {saved})"
    return quotient(increase(dirs("ckpt_gpu_bubble_seconds_total"), by="dir"), own)


def gpus_worth() -> str:
    """Return the bubble share times the GPUs that trained."""
    trained = f"count (increase({nodes('ckpt_gpu_observed_seconds_total')}[{RANGE}]) > 0)"
    return f"{bubble_share()}\n* {trained}"


def per_save(metric: str, window: str = RANGE, *, by: str = "") -> str:
    """Return the mean of a histogram's observations."""
    return quotient(
        increase(dirs(f"{metric}_sum"), window, by=by), increase(dirs(f"{metric}_count"), window, by=by)
    )


def bad(selector: str) -> str:
    """Count the series at 0; -1, and not 0, where there is no series at all."""
    return f"count ({selector} == 0) or 0 * count ({selector}) or vector(-1)"


def of_newest_save(metric: str) -> str:
    """Select what the nodes say of the newest save alone: their saves overlap in time."""
    begun = (
        f"{dirs('ckpt_last_save_start_timestamp_seconds')} or {dirs('ckpt_last_save_end_timestamp_seconds')}"
    )
    newest = f"{dirs('ckpt_last_save_end_timestamp_seconds')} >= on () group_left () max ({begun})"
    return f"{dirs(metric)}\n  and on ({NODE_LABELS}, dir) ({newest})"


def of_saving_nodes(metric: str) -> str:
    """Select a metric of the nodes that are known to have saved to the directory by the end of the range."""
    saved = f"last_over_time({dirs('ckpt_last_save_end_timestamp_seconds')}[{RANGE}] @ end())"
    return f"{nodes(metric)}\n  and on ({NODE_LABELS}) {saved}"
