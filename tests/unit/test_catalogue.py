"""The catalogue keeps Prometheus' naming rules and is what the documentation shows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from ckpt_exporter.book import DURATION_BUCKETS_SECONDS
from ckpt_exporter.metrics.catalogue import METRICS, Metric, markdown, metric
from ckpt_exporter.metrics.families import UNTYPED_COUNTERS, new_family

if TYPE_CHECKING:
    from collections.abc import Callable

# Names that service discovery or Prometheus itself puts on every series.
TAKEN_LABELS = {
    "job", "instance", "pod", "namespace", "container", "node", "region", "zone", "cluster", "az",
    "datacenter", "dc", "owner", "customer", "stage", "service", "environment", "env", "le", "quantile",
}  # fmt: skip

# Of a number, these would grow without bound.
UNBOUNDED_LABELS = {"path", "file", "step", "pid", "run_id", "user", "mountpoint", "device"}

BASE_UNITS = ("_seconds", "_bytes", "_ratio")
OTHER_UNITS = re.compile(
    r"_(ms|us|ns|milliseconds|microseconds|minutes|hours|days|kb|mb|gb|kib|mib|gib|kilobytes|megabytes|gigabytes|"
    r"bits|percent|mbps|gbps)(_|$)"
)

by_name = pytest.mark.parametrize("entry", METRICS, ids=lambda entry: entry.name)


def test_names_are_unique() -> None:
    """Each metric is listed once."""
    assert len({entry.name for entry in METRICS}) == len(METRICS)


@by_name
def test_name_follows_the_rules(entry: Metric) -> None:
    """A name has our prefix, legal characters and base units, and a suffix only where its type gives it."""
    assert re.fullmatch(r"ckpt_[a-z][a-z0-9_]*[a-z0-9]", entry.name)
    assert not OTHER_UNITS.search(entry.name)
    assert entry.name.endswith("_total") == (entry.type == "counter")
    assert entry.name.endswith("_info") == (entry.type == "info")
    assert not re.search(r"_(count|sum|bucket|created)$", entry.name)
    for type_name in ("counter", "gauge", "histogram", "summary"):
        assert type_name not in entry.name.split("_")


@by_name
def test_labels_are_bounded_and_free(entry: Metric) -> None:
    """Labels clash with no target label, and only an info metric may carry what is unbounded."""
    assert not TAKEN_LABELS & set(entry.labels)
    assert all(re.fullmatch(r"[a-z][a-z_]*", label) for label in entry.labels)
    if entry.type != "info":
        assert not UNBOUNDED_LABELS & set(entry.labels)


@by_name
def test_help_names_the_unit(entry: Metric) -> None:
    """Help is a sentence, and says the unit of what has one."""
    assert entry.help.endswith(".")
    assert "\n" not in entry.help
    text = entry.help.lower()
    if "timestamp_seconds" in entry.name:
        assert "unix time" in text
    elif entry.name.endswith("_watts"):
        assert "watts" in text
    elif "bandwidth" not in entry.name:
        for unit in BASE_UNITS:
            if unit in entry.name:
                assert {"_seconds": "seconds", "_bytes": "bytes", "_ratio": "0 to 1"}[unit] in text


def test_duration_buckets_are_the_published_ones() -> None:
    """The buckets of save durations are the ones users' queries rely on."""
    expected = "1 2 5 10 20 30 45 60 90 120 180 300 600 1200 1800 3600 10800"
    assert [f"{bound:g}" for bound in DURATION_BUCKETS_SECONDS] == expected.split()


def test_catalogue_has_the_published_names() -> None:
    """Every name that dashboards rely on is there with its type and labels."""
    published = {
        "counter dir": "ckpt_save_bytes_total ckpt_save_files_total ckpt_written_bytes_total "
        "ckpt_write_active_seconds_total ckpt_deleted_checkpoints_total ckpt_device_written_bytes_total "
        "ckpt_loads_total ckpt_load_bytes_total",
        "counter dir,result": "ckpt_saves_total",
        "histogram dir": "ckpt_save_duration_seconds ckpt_bubble_seconds ckpt_load_duration_seconds",
        "histogram ": "ckpt_gpu_call_seconds",
        "counter dir,gpu,uuid": "ckpt_gpu_bubble_seconds_total ckpt_gpu_drag_seconds_total",
        "counter dir,phase": "ckpt_bubble_seconds_total",
        "counter dir,reason": "ckpt_bubble_skipped_total",
        "counter gpu,uuid": "ckpt_gpu_observed_seconds_total",
        "counter gpu,uuid,cause": "ckpt_gpu_stall_seconds_total",
        "gauge gpu,uuid": "ckpt_gpu_activity_ratio ckpt_gpu_utilization_ratio ckpt_gpu_power_watts "
        "ckpt_gpu_up",
        "gauge backend": "ckpt_gpu_backend_up",
        "info gpu,uuid,source,quality": "ckpt_gpu_activity_source_info",
        "info gpu,uuid,name,driver": "ckpt_gpu_info",
        "gauge dir": "ckpt_saves_in_progress ckpt_save_in_progress_seconds ckpt_save_stalled "
        "ckpt_last_save_start_timestamp_seconds ckpt_last_save_end_timestamp_seconds "
        "ckpt_last_save_duration_seconds ckpt_last_save_bytes ckpt_last_save_files ckpt_last_save_step "
        "ckpt_last_save_average_bandwidth_bytes_per_second "
        "ckpt_last_save_sustained_bandwidth_bytes_per_second "
        "ckpt_last_save_peak_bandwidth_bytes_per_second ckpt_retained_checkpoints ckpt_retained_bytes "
        "ckpt_filesystem_avail_bytes ckpt_filesystem_size_bytes ckpt_dirty_bytes ckpt_watched_directories "
        "ckpt_watch_limit_reached ckpt_last_save_bubble_seconds ckpt_last_save_bubble_depth_ratio "
        "ckpt_last_load_duration_seconds ckpt_last_load_bytes ckpt_last_load_cached_ratio "
        "ckpt_last_load_cold_start_seconds",
        "info dir,path,mountpoint,device,fstype,transport": "ckpt_directory_info",
        "info dir,run,scheduler,run_id": "ckpt_run_info",
        "info version,revision,python": "ckpt_exporter_build_info",
        "gauge collector": "ckpt_collector_success ckpt_collector_duration_seconds",
        "gauge dir,backend": "ckpt_watch_up",
        "counter ": "ckpt_watch_overflows_total ckpt_events_dropped_total",
        "counter reason": "ckpt_watch_rescans_total",
        "counter event": "ckpt_events_total",
        "gauge ": "ckpt_config_last_reload_successful ckpt_config_last_reload_success_timestamp_seconds",
    }
    for shape, names in published.items():
        for name in names.split():
            entry = metric(name)
            assert f"{entry.type} {','.join(entry.labels)}" == shape


def test_no_two_families_claim_one_series_name() -> None:
    """No metric's derived series (``_sum``, ``_total``, ...) is another metric's name."""

    class Announced(Collector):
        def __init__(self, entry: Metric) -> None:
            self.entry = entry

        def describe(self):
            return [new_family(self.entry)]

        def collect(self):
            return []

    registry = CollectorRegistry()
    for entry in METRICS:
        registry.register(Announced(entry))  # raises on a clash


def test_only_one_counter_has_no_type_in_openmetrics() -> None:
    """A counter loses its type there only where a histogram has its family name."""
    named = {entry.name for entry in METRICS}
    shared = {
        entry.name
        for entry in METRICS
        if entry.type == "counter" and entry.name.removesuffix("_total") in named
    }
    assert shared == UNTYPED_COUNTERS == {"ckpt_bubble_seconds_total"}


def test_estimates_and_ratios_are_explained() -> None:
    """Help says that a cause is an estimate, what activity is, and how a bubble share is made."""
    assert "estimate" in metric("ckpt_gpu_stall_seconds_total").help
    assert "steady state" in metric("ckpt_gpu_activity_ratio").help
    assert "ckpt_gpu_observed_seconds_total" in metric("ckpt_gpu_bubble_seconds_total").help


def test_reference_page_is_current(golden: Callable[[str, str], None]) -> None:
    """The generated reference page shows the catalogue as it is."""
    golden("docs/METRICS.md", markdown())
