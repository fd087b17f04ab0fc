"""Every metric of this program once: name, type, labels, help.

A new metric is one entry here and one line in ``collectors``; ``docs/METRICS.md`` is generated from this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MetricType = Literal["counter", "gauge", "histogram", "info"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family.

    ``name`` is what a query says (``_total`` and ``_info`` included), ``collector`` who fills it, ``help`` a
    sentence with units and caveats.
    """

    name: str
    type: MetricType
    labels: tuple[str, ...]
    collector: str
    help: str


_DIR = ("dir",)
_GPU = ("gpu", "uuid")

METRICS: tuple[Metric, ...] = (
    # --- saves --------------------------------------------------------------------------------------------
    Metric("ckpt_saves_total", "counter", ("dir", "result"), "saves",
           "Finished saves by result: complete; incomplete (no commit and the writers are gone, or "
           "truncated); aborted (temporary files removed before the commit)."),
    Metric("ckpt_save_duration_seconds", "histogram", _DIR, "saves",
           "Duration of complete saves in seconds, commit minus first write-open, without the quiet time "
           "the detector waits; saves of unknown duration are left out. Exemplar (OpenMetrics only): step."),
    Metric("ckpt_save_bytes_total", "counter", _DIR, "saves",
           "Final size in bytes of complete saves, each file version once, added when the save ends."),
    Metric("ckpt_save_files_total", "counter", _DIR, "saves",
           "Files of complete saves, added when the save ends."),
    Metric("ckpt_written_bytes_total", "counter", _DIR, "saves",
           "Bytes seen arriving in checkpoint files, growing while a save runs, whatever its result."),
    Metric("ckpt_write_active_seconds_total", "counter", _DIR, "saves",
           "Seconds in which checkpoint bytes were flowing, growing while a save runs. Sustained bandwidth"
           " is the rate of ckpt_written_bytes_total divided by the rate of this."),
    Metric("ckpt_saves_in_progress", "gauge", _DIR, "saves",
           "Saves open now."),
    Metric("ckpt_save_in_progress_seconds", "gauge", _DIR, "saves",
           "Age in seconds of the oldest open save, 0 if none is open."),
    Metric("ckpt_save_stalled", "gauge", _DIR, "saves",
           "1 while an open save has had no new byte for stall_seconds, else 0."),
    Metric("ckpt_last_save_start_timestamp_seconds", "gauge", _DIR, "saves",
           "Unix time of the first write-open of the last complete save; absent before one is seen or when"
           " its duration is unknown."),
    Metric("ckpt_last_save_end_timestamp_seconds", "gauge", _DIR, "saves",
           "Unix time of the commit of the last complete save; absent before one is seen."),
    Metric("ckpt_last_save_duration_seconds", "gauge", _DIR, "saves",
           "Duration in seconds of the last complete save; absent when unknown (its bytes were moved in)."),
    Metric("ckpt_last_save_bytes", "gauge", _DIR, "saves",
           "Size in bytes of the last complete save; absent before one is seen."),
    Metric("ckpt_last_save_files", "gauge", _DIR, "saves",
           "Files of the last complete save; absent before one is seen."),
    Metric("ckpt_last_save_step", "gauge", _DIR, "saves",
           "Training step in the name of the last complete save; absent when its name has none."),
    Metric("ckpt_last_save_average_bandwidth_bytes_per_second", "gauge", _DIR, "saves",
           "Bytes divided by duration of the last complete save; absent when unknown."),
    Metric("ckpt_last_save_sustained_bandwidth_bytes_per_second", "gauge", _DIR, "saves",
           "Bytes of the last complete save divided by the time in which they were flowing; absent when "
           "unknown."),
    Metric("ckpt_last_save_peak_bandwidth_bytes_per_second", "gauge", _DIR, "saves",
           "Highest 1-second write rate of the last complete save; absent when unknown."),
    Metric("ckpt_retained_checkpoints", "gauge", _DIR, "saves",
           "Complete checkpoints on disk now, as of the last scan and the events since; absent until "
           "scanned."),
    Metric("ckpt_retained_bytes", "gauge", _DIR, "saves",
           "Size in bytes of the complete checkpoints on disk now, as of the last scan and the events "
           "since; absent until scanned."),
    Metric("ckpt_deleted_checkpoints_total", "counter", _DIR, "saves",
           "Complete checkpoints removed, by retention or by hand; on a shared file system by this host."),
    Metric("ckpt_remote_saves_total", "counter", ("dir", "result"), "saves",
           "Saves noticed here that another host made, by result: never to be summed over nodes. They are in"
           " no other counter of saves, bytes or files of this node; what they cost its GPUs is in its"
           " bubble. Absent where none are looked for."),
    Metric("ckpt_last_remote_save_end_timestamp_seconds", "gauge", _DIR, "saves",
           "Unix time at which the last complete save of another host ended, by this node's clock; absent "
           "before one."),
    # --- loads --------------------------------------------------------------------------------------------
    Metric("ckpt_loads_total", "counter", _DIR, "loads",
           "Finished loads: episodes of checkpoint files being read by processes that use them; copies, "
           "uploads, archives and checksums are none. Reads of a directory that is being written at the "
           "time, or that is polled, are not seen."),
    Metric("ckpt_load_duration_seconds", "histogram", _DIR, "loads",
           "Duration of loads in seconds, last byte needed minus first open, without the quiet time the "
           "detector waits. Exemplar (OpenMetrics only): step."),
    Metric("ckpt_load_bytes_total", "counter", _DIR, "loads",
           "Bytes of checkpoint files that loads read, those read by several processes once, added when the "
           "load ends."),
    Metric("ckpt_last_load_duration_seconds", "gauge", _DIR, "loads",
           "Duration in seconds of the last load; absent before one is seen."),
    Metric("ckpt_last_load_bytes", "gauge", _DIR, "loads",
           "Bytes of checkpoint files that the last load read, those read by several processes once; absent "
           "before one is seen."),
    Metric("ckpt_last_load_cached_ratio", "gauge", _DIR, "loads",
           "Share (0 to 1) of the bytes of the last load that was in the page cache before it: that part "
           "says nothing of the storage. Absent when unknown."),
    Metric("ckpt_last_load_cold_start_seconds", "gauge", _DIR, "loads",
           "Seconds from the first open of the last load to the first work of the GPUs of the run that "
           "loaded, seen after its last byte; as exact as the GPUs are sampled. Absent when unknown."),
    # --- GPU and bubble -----------------------------------------------------------------------------------
    Metric("ckpt_gpu_bubble_seconds_total", "counter", ("dir", "gpu", "uuid"), "gpu",
           "GPU-seconds that saves of this directory cost this GPU: the integral of 1 - activity over each "
           "save's dip, added when the save is judged. Bubble share = increase of this / increase of "
           "ckpt_gpu_observed_seconds_total. Activity is work relative to the GPU's own steady state just "
           "before, not the driver's utilisation."),
    Metric("ckpt_gpu_drag_seconds_total", "counter", ("dir", "gpu", "uuid"), "gpu",
           "GPU-seconds by which asynchronous saves of this directory slow this GPU without stopping it "
           "(activity stays above half); beside the bubble, not in it, and only where clearly above the "
           "noise of the GPU's steady state."),
    Metric("ckpt_bubble_seconds_total", "counter", ("dir", "phase"), "bubble",
           "Seconds of training that saves cost, mean over the GPUs of the run, by phase of the save: "
           "before_write, writing, write_gap, after_write. Of type unknown in OpenMetrics, where the "
           "histogram ckpt_bubble_seconds has the family name."),
    Metric("ckpt_bubble_seconds", "histogram", _DIR, "bubble",
           "Bubble of one save in seconds, mean over the GPUs of its run; saves without a figure are left "
           "out and counted in ckpt_bubble_skipped_total. Exemplar (OpenMetrics only): step."),
    Metric("ckpt_gpu_observed_seconds_total", "counter", _GPU, "gpu",
           "Seconds in which this GPU belonged to a training run and was measured. Bubble share = increase "
           "of ckpt_gpu_bubble_seconds_total / increase of this."),
    Metric("ckpt_gpu_stall_seconds_total", "counter", ("gpu", "uuid", "cause"), "gpu",
           "GPU-seconds of lost activity by cause: checkpoint_save, checkpoint_load, data_loading, "
           "communication, other. The cause is an estimate, told from how the GPU and the files behaved."),
    Metric("ckpt_gpu_stall_confident_seconds_total", "counter", ("gpu", "uuid", "cause"), "gpu",
           "The part of ckpt_gpu_stall_seconds_total whose cause is of high confidence: more than the GPU's "
           "own readings speak for it, nothing against it. Of checkpoint_save: bubbles of high quality."),
    Metric("ckpt_bubble_skipped_total", "counter", ("dir", "reason"), "bubble",
           "Saves without a bubble figure by reason: no_gpu; no_baseline (no steady state before the save); "
           "sampler_gap (readings are missing); low_quality (the readings can't carry a figure)."),
    Metric("ckpt_last_save_bubble_seconds", "gauge", _DIR, "bubble",
           "Bubble in seconds of the last complete save, mean over the GPUs of its run; absent when unknown "
           "or not yet judged."),
    Metric("ckpt_last_save_bubble_depth_ratio", "gauge", _DIR, "bubble",
           "Mean share (0 to 1) of activity lost during the dip of the last complete save; absent when "
           "unknown or not yet judged."),
    Metric("ckpt_gpu_activity_ratio", "gauge", _GPU, "gpu",
           "Activity now (0 to 1): useful work relative to this GPU's own steady state just before, by the "
           "source in ckpt_gpu_activity_source_info. Not the driver's utilisation, which stays at 1 while a "
           "GPU spins in a collective. Absent when unknown."),
    Metric("ckpt_gpu_utilization_ratio", "gauge", _GPU, "gpu",
           "Share of time (0 to 1) in which a kernel ran, as the driver reports it; it does not tell work "
           "from waiting. Absent when unknown."),
    Metric("ckpt_gpu_power_watts", "gauge", _GPU, "gpu",
           "Power draw in watts as the driver reports it; absent when unknown."),
    Metric("ckpt_gpu_activity_source_info", "info", ("gpu", "uuid", "source", "quality"), "gpu",
           "What the activity of this GPU is read from, always 1: gpm, power, power_utilization or "
           "utilization, of high or low quality; absent until a steady state is known."),
    Metric("ckpt_gpu_up", "gauge", _GPU, "gpu",
           "1 while this GPU is read, 0 when it can't be read."),
    Metric("ckpt_gpu_info", "info", ("gpu", "uuid", "name", "driver"), "gpu",
           "Name and driver of a GPU, always 1; a simulated GPU says so in both."),
    Metric("ckpt_gpu_run_info", "info", ("gpu", "uuid", "run", "scheduler", "run_id"), "gpu",
           "The training run whose processes hold this GPU, always 1; a label is empty when unknown, the "
           "series absent when no run is known, when several hold the GPU, and while it can't be read."),
    Metric("ckpt_gpu_backend_up", "gauge", ("backend",), "gpu",
           "1 while GPU readings arrive from this backend, else 0; absent without a GPU part. The backend "
           "simulated is no real device."),
    Metric("ckpt_gpu_call_seconds", "histogram", (), "gpu",
           "Time in seconds that calls to the GPU driver took, made by the sampler and never by a scrape."),
    # --- storage and run ----------------------------------------------------------------------------------
    Metric("ckpt_directory_info", "info",
           ("dir", "path", "mountpoint", "device", "fstype", "transport"), "storage",
           "Where a configured directory lies, always 1; mountpoint, device and fstype are empty and "
           "transport is unknown while the mount is not known."),
    Metric("ckpt_run_info", "info", ("dir", "run", "scheduler", "run_id"), "storage",
           "The training run last seen writing here, always 1; a label is empty when unknown, the series "
           "absent before a writer is found."),
    Metric("ckpt_filesystem_avail_bytes", "gauge", _DIR, "storage",
           "Bytes that the writer may still use on the file system, cached by a background reader; absent "
           "when unknown or when the mount does not answer."),
    Metric("ckpt_filesystem_size_bytes", "gauge", _DIR, "storage",
           "Size in bytes of the file system, cached by a background reader; absent when unknown."),
    Metric("ckpt_device_written_bytes_total", "counter", _DIR, "storage",
           "Bytes that this host wrote to the device below the directory since boot, by any process, "
           "cached; directories on one device show the same number; absent where the kernel keeps no such "
           "counter."),
    Metric("ckpt_dirty_bytes", "gauge", _DIR, "storage",
           "Bytes in the page cache still to be written to the storage below the directory, cached; absent"
           " where it can't be known."),
    # --- watching -----------------------------------------------------------------------------------------
    Metric("ckpt_watch_up", "gauge", ("dir", "backend"), "watch",
           "1 while the directory is watched, 0 while it is missing, unreadable or not yet watched."),
    Metric("ckpt_watched_directories", "gauge", _DIR, "watch",
           "Directories below this one, itself included, that are watched or polled now."),
    Metric("ckpt_watch_limit_reached", "gauge", _DIR, "watch",
           "1 while a kernel limit on inotify watches leaves part of the tree to polling, else 0."),
    Metric("ckpt_watch_truncated", "gauge", _DIR, "watch",
           "1 while the tree has more directories than are followed (1,000,000): what lies in the others is"
           " not seen, else 0. Polling follows all."),
    Metric("ckpt_watch_coverage_ratio", "gauge", _DIR, "watch",
           "Share (0 to 1) of the tree's directories that inotify covers; the rest is polled. Absent until"
           " known."),
    Metric("ckpt_elsewhere_up", "gauge", _DIR, "watch",
           "1 while looks for saves of other hosts are answered, 0 while the file server does not answer; "
           "absent where none are looked for."),
    Metric("ckpt_elsewhere_metadata_calls_total", "counter", _DIR, "watch",
           "Metadata calls (stat, opening and listing directories) made to look for saves of other hosts."),
    Metric("ckpt_file_server_clock_offset_seconds", "gauge", _DIR, "watch",
           "The file server's clock minus this node's in seconds, as changes of files show it; 0 while no "
           "difference can be shown, absent before the first change."),
    Metric("ckpt_watch_overflows_total", "counter", (), "watch",
           "Overflows of the kernel's event queue; each one is repaired by a rescan."),
    Metric("ckpt_watch_rescans_total", "counter", ("reason",), "watch",
           "Rescans of a tree by reason: overflow, root_lost, mount_changed, periodic, canary, limit, "
           "restart."),
    Metric("ckpt_events_total", "counter", ("event",), "watch",
           "File events taken in, by event: create, open, close_write, moved, deleted, link."),
    Metric("ckpt_events_dropped_total", "counter", (), "watch",
           "File events given up because a bounded queue was full; a rescan makes up for them."),
    # --- itself -------------------------------------------------------------------------------------------
    Metric("ckpt_exporter_build_info", "info", ("version", "revision", "python"), "itself",
           "Version of this program, its source revision and the Python it runs on, always 1."),
    Metric("ckpt_source_up", "gauge", ("source",), "itself",
           "1 while the thread of a source of facts is alive and making progress, else 0."),
    Metric("ckpt_history_up", "gauge", (), "history",
           "1 while finished saves are written to the history file, 0 while they wait in memory because it "
           "can't be used; absent where no history is kept."),
    Metric("ckpt_history_errors_total", "counter", ("reason",), "history",
           "Failures of the history file by reason: damaged (moved aside); newer (of a later version, moved "
           "aside); foreign (another program's database); locked (another process holds it); full (no "
           "space); unavailable (missing, not permitted, or the disk fails); other."),
    Metric("ckpt_history_records_dropped_total", "counter", (), "history",
           "Records given up because the history file could not be written for too long."),
    Metric("ckpt_history_size_bytes", "gauge", (), "history",
           "Bytes in the history file that hold something, as of the last write; absent until it is opened."),
    Metric("ckpt_config_last_reload_successful", "gauge", (), "itself",
           "1 if the last load of the configuration worked; 0 while an older one stays in force."),
    Metric("ckpt_config_last_reload_success_timestamp_seconds", "gauge", (), "itself",
           "Unix time of the last successful load of the configuration; absent before one."),
    Metric("ckpt_web_config_last_reload_successful", "gauge", (), "itself",
           "1 if the last load of the web-config file, with its certificates and users, worked; 0 while an"
           " older one stays in force; absent without such a file."),
    Metric("ckpt_web_config_last_reload_success_timestamp_seconds", "gauge", (), "itself",
           "Unix time of the last successful load of the web-config file; absent without such a file."),
    Metric("ckpt_web_rejected_total", "counter", ("reason",), "itself",
           "Requests and connections turned away, by reason: busy (too many requests in work), crowded "
           "(closed for a newer connection), misdirected (another site's name asked of a loopback address), "
           "rate_limited, slow (request or reading took too long), tls (the handshake failed), unauthorized "
           "(no or a wrong password)."),
    Metric("ckpt_collector_success", "gauge", ("collector",), "scrape",
           "1 if this collector worked in this scrape; at 0 its metrics are left out of the scrape."),
    Metric("ckpt_collector_duration_seconds", "gauge", ("collector",), "scrape",
           "Seconds this collector took in this scrape."),
    Metric("ckpt_collector_errors_total", "counter", ("collector",), "scrape",
           "Scrapes in which this collector failed."),
)  # fmt: skip

_BY_NAME = {metric.name: metric for metric in METRICS}

_SECTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Saves", ("saves",)),
    ("Loads", ("loads",)),
    ("GPU and bubble", ("bubble", "gpu")),
    ("Storage and run", ("storage",)),
    ("Itself", ("watch", "itself", "history", "scrape")),
)

_PREAMBLE = """\
# Metrics

Generated from `ckpt_exporter/metrics/catalogue.py`; a test compares the two. A metric whose value is
unknown is absent, never 0. Counters and in-progress gauges of a configured directory exist from the
first scrape. A scrape reads memory alone: what is called cached was read in the background before.
"""

_POSTSCRIPT = """
The usual `process_*` and `python_*` metrics of this process are exported as well (collector `process`).
"""


def metric(name: str) -> Metric:
    """Return the catalogue entry of a name; raise ``KeyError`` for an unknown one."""
    return _BY_NAME[name]


def metrics_of(collector: str) -> tuple[Metric, ...]:
    """Return what one collector may export, in catalogue order."""
    return tuple(entry for entry in METRICS if entry.collector == collector)


def markdown() -> str:
    """Return the reference table of all metrics as a Markdown page."""
    parts = [_PREAMBLE]
    for title, collectors in _SECTIONS:
        parts.append(f"\n## {title}\n\n| name | type | labels | meaning |\n|---|---|---|---|\n")
        parts.extend(_row(entry) for entry in METRICS if entry.collector in collectors)
    return "".join(parts) + _POSTSCRIPT


def _row(entry: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in entry.labels)
    return f"| `{entry.name}` | {entry.type} | {labels} | {entry.help} |\n"
