"""The dashboard *Directory*: which save was slow, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grafana_foundation_sdk.models import dashboard as models

from grafana.frame import Outline, Row, assemble
from grafana.panels import (
    NOT_MEASURED,
    Column,
    Frame,
    Query,
    Scale,
    dashed,
    fixed,
    graph_panel,
    stat_panel,
    table_panel,
)
from grafana.promql import (
    WINDOW,
    dirs,
    increase,
    of_newest_save,
    of_saving_nodes,
    own_share,
    per_save,
    quotient,
)
from grafana.shared import (
    ACTIVITY_AXIS,
    BANDWIDTH,
    BYTES,
    CLOCK,
    COUNT,
    SECONDS,
    SHARE,
    SHARE_AXIS,
    SHARE_STEPS,
    durations_panel,
    measuring_panel,
    phases_panel,
    skipped_panel,
)

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders import stat, table, timeseries

    from grafana.panels import Builder

NO_SAVE = "no save seen"


def directory_dashboard() -> dict[str, Any]:
    """Return the dashboard of one directory on all nodes that write to it."""
    outline = Outline(
        "ckpt-directory",
        "Checkpoints / Directory",
        "Every save of one directory: how long, how big, how fast, what the GPUs did meanwhile, and where "
        "it lies.",
        since="now-6h",
        window="1h",
        one=frozenset({"dir"}),
        marked=frozenset({"GPU activity against write bandwidth"}),
    )
    overview = [*_headline(), _hero(), _durations(), _bandwidths(), phases_panel(8)]
    space: list[Builder] = [_sizes(), _kept(), _free(), _places(), _runs()]
    saves = Row("Saves", [_results(), durations_panel(8), skipped_panel(8)])
    below = Row("Below the files", [_device(), _dirty(), _drag()])
    loads = Row("Loads", [_loads(), _load_speed(), _cached()])
    return assemble(outline, [*overview, *space, measuring_panel()], [saves, loads, below])


def _headline() -> list[Builder]:
    return [_share(), _step(), _since(), _duration(), _size(), _bubble(), _open()]


def _share() -> stat.Panel:
    return stat_panel(
        Frame(
            "Bubble share",
            "Of the GPU time observed on the nodes that saved to this directory in this range, the part that "
            "these saves cost. Yellow from 5 %, red from 10 %.",
            4,
            4,
            runbook="ckptbubblesharehigh",
        ),
        [Query(own_share("ckpt_gpu_bubble_seconds_total"))],
        SHARE,
        steps=SHARE_STEPS,
    )


def _step() -> stat.Panel:
    return stat_panel(
        Frame(
            "Last step saved",
            "Training step in the name of the newest complete save. Not measured when its name has no step.",
            3,
            4,
        ),
        [Query(f"max ({of_newest_save('ckpt_last_save_step')})")],
        Scale("locale", 0),
    )


def _since() -> stat.Panel:
    newest = dirs("ckpt_last_save_end_timestamp_seconds")
    return stat_panel(
        Frame(
            "Since the last save",
            "Time from the commit of the newest complete save to the end of the range: what a crash now "
            "would cost.",
            4,
            4,
            runbook="ckptsaveoverdue",
        ),
        [Query(f"time() - max ({newest})")],
        CLOCK,
        no_value=NO_SAVE,
    )


def _duration() -> stat.Panel:
    return stat_panel(
        Frame(
            "Its duration",
            "Newest complete save, first write-open to commit. A save of a job lasts as long as its "
            "slowest node. Not measured when its bytes were moved in.",
            3,
            4,
            runbook="ckptbandwidthregression",
        ),
        [Query(f"max ({of_newest_save('ckpt_last_save_duration_seconds')})")],
        CLOCK,
    )


def _size() -> stat.Panel:
    return stat_panel(
        Frame("Its size", "Newest complete save, summed over the nodes that wrote it.", 3, 4),
        [Query(f"sum ({of_newest_save('ckpt_last_save_bytes')})")],
        BYTES,
        no_value=NO_SAVE,
    )


def _bubble() -> stat.Panel:
    return stat_panel(
        Frame(
            "Its bubble",
            "Training time that the newest complete save cost, mean over the GPUs of its run. Not measured "
            "while it is not yet judged or can't be.",
            3,
            4,
        ),
        [Query(f"avg ({of_newest_save('ckpt_last_save_bubble_seconds')})")],
        CLOCK,
    )


def _open() -> stat.Panel:
    age = f"max ({dirs('ckpt_save_in_progress_seconds')})"
    stalled = f"max ({dirs('ckpt_save_stalled')})"
    panel = stat_panel(
        Frame(
            "Save in progress",
            "Age of the oldest open save at the end of the range, and whether it is stalled: open, and no "
            "new byte for longer than detect.stall_seconds.",
            4,
            4,
            runbook="ckptsavestalled",
        ),
        [Query(age, "open for"), Query(stalled, "stalled")],
        CLOCK,
        texts={"0": ("none", "text")},
        named=True,
    )
    states = {"0": {"text": "no", "color": "green"}, "1": {"text": "yes", "color": "red"}}
    stalled_texts = models.DynamicConfigValue(id_val="mappings", value=[{"type": "value", "options": states}])
    return panel.override_by_name(
        "stalled", [models.DynamicConfigValue(id_val="unit", value="none"), stalled_texts]
    )


def _hero() -> timeseries.Panel:
    activity = of_saving_nodes("ckpt_gpu_activity_ratio")
    panel = graph_panel(
        Frame(
            "GPU activity against write bandwidth",
            "Left: work that the GPUs of the nodes that save here do, relative to their own steady state; "
            "mean and lowest GPU. Right: bytes arriving in this directory, all selected nodes. A dip that "
            "starts before the bytes or ends after them is what faster storage can't win back. Marks: "
            "starts and ends of saves. Saves shorter than a few scrapes may leave no dip here; the "
            "counters have them all the same.",
            24,
            10,
        ),
        [
            Query(f"avg (\n  {activity}\n)", "GPU activity, mean"),
            Query(f"min (\n  {activity}\n)", "GPU activity, lowest GPU"),
            Query(f"sum (rate({dirs('ckpt_written_bytes_total')}[$__rate_interval]))", "write bandwidth"),
        ],
        ACTIVITY_AXIS,
    )
    panel.axis_label("GPU activity").axis_soft_max(1.0)
    panel.override_by_name("GPU activity, mean", [fixed("green")])
    panel.override_by_name("GPU activity, lowest GPU", [fixed("dark-green"), _value("custom.lineWidth", 1)])
    bandwidth = {
        "unit": "Bps", "max": None, "custom.axisPlacement": "right",
        "custom.axisLabel": "write bandwidth", "custom.fillOpacity": 35, "custom.lineWidth": 1,
    }  # fmt: skip
    looks = [fixed("blue"), *(_value(name, value) for name, value in bandwidth.items())]
    return panel.override_by_name("write bandwidth", looks)


def _durations() -> timeseries.Panel:
    return graph_panel(
        Frame(
            "Duration of each save",
            "Last complete save of each node, held until the next; beside it the mean over the trend "
            "window, which also has the saves between two scrapes.",
            8,
            8,
            runbook="ckptbandwidthregression",
        ),
        [
            Query(f"max by (instance) ({dirs('ckpt_last_save_duration_seconds')})", "{{instance}}"),
            Query(per_save("ckpt_save_duration_seconds", WINDOW), "mean"),
        ],
        SECONDS,
        stepped=True,
    ).override_by_name("mean", dashed())


def _bandwidths() -> timeseries.Panel:
    queries = [
        Query(f"avg ({dirs(f'ckpt_last_save_{kind}_bandwidth_bytes_per_second')})", kind)
        for kind in ("average", "sustained", "peak")
    ]
    return graph_panel(
        Frame(
            "Bandwidth of each save, per node",
            "Last complete save, mean over the nodes that wrote one. average: bytes over duration. "
            "sustained: bytes over the time in which they flowed. peak: fastest second. sustained far "
            "above average: the writer waits, and not for the storage.",
            8,
            8,
            runbook="ckptbandwidthregression",
        ),
        queries,
        BANDWIDTH,
        stepped=True,
        colors={"average": "orange", "sustained": "blue", "peak": "#8e8e8e"},
    )


def _sizes() -> timeseries.Panel:
    return graph_panel(
        Frame(
            "Size of each save",
            "Last complete save of each node, held until the next.",
            8,
            8,
        ),
        [Query(f"max by (instance) ({dirs('ckpt_last_save_bytes')})", "{{instance}}")],
        BYTES,
        stepped=True,
    )


def _kept() -> timeseries.Panel:
    return graph_panel(
        Frame(
            "Space that kept checkpoints take",
            "Complete checkpoints on disk, as each node sees them. A line that only rises: nothing is ever "
            "deleted.",
            8,
            8,
            runbook="ckptfilesystemfillssoon",
        ),
        [Query(f"max by (instance) ({dirs('ckpt_retained_bytes')})", "{{instance}}")],
        BYTES,
        stepped=True,
        no_value="not yet scanned",
    )


def _free() -> timeseries.Panel:
    return graph_panel(
        Frame(
            "Free space below it",
            "What the writer may still use on the file system, as each node sees it.",
            8,
            8,
            runbook="ckptfilesystemfillssoon",
        ),
        [Query(f"min by (instance) ({dirs('ckpt_filesystem_avail_bytes')})", "{{instance}}")],
        BYTES,
        no_value="unknown: the mount does not answer",
    )


def _places() -> table.Panel:
    return table_panel(
        Frame(
            "Where it lies",
            "Mount, device and transport below the directory, as each node sees it. A node that differs "
            "from the others writes elsewhere.",
            14,
            6,
        ),
        [Query(dirs("ckpt_directory_info"))],
        [
            Column("instance", "Node", width=140),
            Column("path", "Path"),
            Column("mountpoint", "Mounted at", width=150),
            Column("device", "Device", width=110),
            Column("fstype", "File system", width=110),
            Column("transport", "Transport", width=110),
        ],
    )


def _runs() -> table.Panel:
    return table_panel(
        Frame(
            "Who writes",
            "The training run last seen writing here. Empty before a writer was found: unprivileged, the "
            "exporter can't see other users' processes.",
            10,
            6,
        ),
        [Query(dirs("ckpt_run_info"))],
        [
            Column("instance", "Node"),
            Column("run", "Run"),
            Column("scheduler", "Scheduler", width=110),
            Column("run_id", "Job", width=90),
        ],
        no_value="no writer found",
    )


def _results() -> timeseries.Panel:
    return graph_panel(
        Frame(
            "Saves by result, and checkpoints deleted",
            "Saves that ended in each trend window: complete; incomplete (no commit, cut short, or a full "
            "disk); aborted (removed before the commit); and complete checkpoints that were deleted.",
            8,
            8,
            runbook="ckptsaveincomplete",
        ),
        [
            Query(increase(dirs("ckpt_saves_total"), WINDOW, by="result"), "{{result}}"),
            Query(increase(dirs("ckpt_deleted_checkpoints_total"), WINDOW), "deleted"),
        ],
        COUNT,
        colors={"complete": "green", "incomplete": "red", "aborted": "orange", "deleted": "#8e8e8e"},
    )


def _loads() -> timeseries.Panel:
    return graph_panel(
        Frame(
            "Duration of loads",
            "Checkpoints read (resume, cold start): the last load of each node, held until the next, and the "
            "mean over the trend window. Backups and copies are no loads.",
            8,
            8,
        ),
        [
            Query(f"max by (instance) ({dirs('ckpt_last_load_duration_seconds')})", "{{instance}}"),
            Query(per_save("ckpt_load_duration_seconds", WINDOW), "mean"),
        ],
        SECONDS,
        stepped=True,
        no_value="no load seen",
    ).override_by_name("mean", dashed())


def _load_speed() -> timeseries.Panel:
    speed = quotient(
        increase(dirs("ckpt_load_bytes_total"), WINDOW),
        increase(dirs("ckpt_load_duration_seconds_sum"), WINDOW),
    )
    return graph_panel(
        Frame(
            "Speed of loads",
            "Unique bytes over duration of the loads in the trend window, as the readers saw it: bytes that "
            "were in the page cache made it faster than the storage is.",
            8,
            8,
        ),
        [Query(speed, "bandwidth")],
        BANDWIDTH,
        no_value="no load seen",
    )


def _cached() -> timeseries.Panel:
    return graph_panel(
        Frame(
            "Of a load, from the page cache",
            "Share of the last load's bytes that was in this host's memory before. Near 1 the storage was "
            "not asked, and speed and duration say nothing about it.",
            8,
            8,
        ),
        [Query(f"max by (instance) ({dirs('ckpt_last_load_cached_ratio')})", "{{instance}}")],
        Scale("percentunit", lowest=0.0, highest=1.0),
        stepped=True,
        no_value="no load seen, or not known",
    )


def _device() -> timeseries.Panel:
    return graph_panel(
        Frame(
            "Files against device",
            "Bytes arriving in checkpoint files against bytes that this host writes to the device below, "
            "by any process. Without fsync a save ends in the page cache and the device goes on writing "
            "after it.",
            8,
            8,
        ),
        [
            Query(f"sum (rate({dirs('ckpt_written_bytes_total')}[$__rate_interval]))", "checkpoint files"),
            Query(f"sum (rate({dirs('ckpt_device_written_bytes_total')}[$__rate_interval]))", "device"),
        ],
        BANDWIDTH,
        colors={"checkpoint files": "blue", "device": "purple"},
        no_value=NOT_MEASURED,
    )


def _dirty() -> timeseries.Panel:
    return graph_panel(
        Frame(
            "Still in the page cache",
            "Bytes written that have not reached the storage below the directory; a crash of the host "
            "would lose them.",
            8,
            8,
        ),
        [Query(f"sum by (instance) ({dirs('ckpt_dirty_bytes')})", "{{instance}}")],
        BYTES,
        no_value="can't be known on this file system",
    )


def _drag() -> timeseries.Panel:
    return graph_panel(
        Frame(
            "Drag of asynchronous saves",
            "Share of the GPU time by which saves in the background slow training without stopping it. It "
            "comes on top of the bubble, and counts only where it is clearly above the noise.",
            8,
            8,
        ),
        [Query(own_share("ckpt_gpu_drag_seconds_total", WINDOW), "drag")],
        SHARE_AXIS,
        fill=15,
    )


def _value(name: str, value: object) -> models.DynamicConfigValue:
    return models.DynamicConfigValue(id_val=name, value=value)
