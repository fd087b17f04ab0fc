"""From a snapshot to what Prometheus reads: right values and honest gaps."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from ckpt_exporter.metrics import build_registry, expose
from ckpt_exporter.model import ConfigStatus, WatchStatus
from tests.unit.export_sample import LAST_LOAD, LAST_SAVE, empty_directory, open_save, sample_snapshot
from tests.unit.scraping import OPENMETRICS, go_floats, scrape, series, snapshot_of, value

if TYPE_CHECKING:
    from collections.abc import Callable

# --- the whole output -----------------------------------------------------------------------------------


def test_text_exposition_of_the_sample(golden: Callable[[str, str], None]) -> None:
    """The text format shows every metric of the sample snapshot."""
    golden("tests/golden/metrics.txt", go_floats(scrape(sample_snapshot())))


def test_openmetrics_exposition_of_the_sample(golden: Callable[[str, str], None]) -> None:
    """OpenMetrics shows the same, with the step of a save as exemplar."""
    golden("tests/golden/openmetrics.txt", go_floats(scrape(sample_snapshot(), OPENMETRICS)))


def test_both_formats_hold_the_same_numbers() -> None:
    """OpenMetrics and text differ in form only."""
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse_openmetrics(scrape(sample_snapshot(), OPENMETRICS))
        for sample in family.samples
    }
    assert samples == series(scrape(sample_snapshot()))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (package prometheus)")
def test_promtool_finds_nothing_to_complain_about() -> None:
    """Prometheus' own linter accepts the whole output, process and Python metrics included."""
    body = expose(build_registry(sample_snapshot)).body
    done = subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_no_created_series_in_either_format() -> None:
    """Counters and histograms bring no ``_created`` series."""
    assert "_created" not in scrape(sample_snapshot())
    assert "_created" not in scrape(sample_snapshot(), OPENMETRICS)


# --- saves ----------------------------------------------------------------------------------------------


def test_a_directory_without_saves_has_its_counters_at_zero() -> None:
    """Every counter of a configured directory is 0 at the first scrape, so the first save is an increase."""
    found = series(scrape(snapshot_of(empty_directory("new"))))
    for result in ("complete", "incomplete", "aborted"):
        assert found["ckpt_saves_total", (("dir", "new"), ("result", result))] == 0
    for name in (
        "ckpt_save_bytes_total",
        "ckpt_save_files_total",
        "ckpt_written_bytes_total",
        "ckpt_write_active_seconds_total",
        "ckpt_deleted_checkpoints_total",
        "ckpt_saves_in_progress",
        "ckpt_save_in_progress_seconds",
        "ckpt_save_stalled",
        "ckpt_save_duration_seconds_count",
        "ckpt_save_duration_seconds_sum",
    ):
        assert found[name, (("dir", "new"),)] == 0
    assert found["ckpt_save_duration_seconds_bucket", (("dir", "new"), ("le", "+Inf"))] == 0


def test_what_is_unknown_is_absent() -> None:
    """No last save, no scan and no storage facts means no such series."""
    text = scrape(snapshot_of(empty_directory("new")))
    assert "ckpt_last_save" not in text
    assert "ckpt_retained" not in text
    assert "ckpt_filesystem" not in text
    assert "ckpt_dirty_bytes" not in text
    assert "ckpt_device_written" not in text
    assert "ckpt_run_info" not in text


def test_last_save_values() -> None:
    """The last complete save is shown with times of day and its own bandwidths."""
    snapshot = snapshot_of(replace(empty_directory("d"), last_save=LAST_SAVE))
    # 722 and 900 on a clock that is 1764470000 behind Unix time.
    assert value(snapshot, "ckpt_last_save_start_timestamp_seconds", dir="d") == 1764470722
    assert value(snapshot, "ckpt_last_save_end_timestamp_seconds", dir="d") == 1764470900
    assert value(snapshot, "ckpt_last_save_duration_seconds", dir="d") == 178
    assert value(snapshot, "ckpt_last_save_step", dir="d") == 200
    average = value(snapshot, "ckpt_last_save_average_bandwidth_bytes_per_second", dir="d")
    assert average == pytest.approx(365_168_539.3, abs=0.1)


def test_a_save_that_was_moved_in_has_no_start_duration_or_bandwidth() -> None:
    """Unknown duration hides the start too, for their difference would be an invented duration."""
    unknown = replace(
        LAST_SAVE,
        step=None,
        duration_seconds=None,
        average_bandwidth=None,
        sustained_bandwidth=None,
        peak_bandwidth=None,
    )
    found = series(scrape(snapshot_of(replace(empty_directory("d"), last_save=unknown))))
    shown = {name for name, _ in found if name.startswith("ckpt_last_save")}
    assert shown == {"ckpt_last_save_end_timestamp_seconds", "ckpt_last_save_bytes", "ckpt_last_save_files"}


def test_an_infinite_bandwidth_is_left_out() -> None:
    """A value that is not finite is not exported."""
    odd = replace(LAST_SAVE, peak_bandwidth=float("inf"), average_bandwidth=float("nan"))
    text = scrape(snapshot_of(replace(empty_directory("d"), last_save=odd)))
    assert "peak_bandwidth" not in text
    assert "average_bandwidth" not in text


def test_step_zero_is_a_step() -> None:
    """Step 0 and a size of 0 are values, not gaps."""
    zero = replace(LAST_SAVE, step=0, bytes=0)
    snapshot = snapshot_of(replace(empty_directory("d"), last_save=zero))
    assert value(snapshot, "ckpt_last_save_step", dir="d") == 0
    assert value(snapshot, "ckpt_last_save_bytes", dir="d") == 0


def test_only_a_complete_save_is_a_last_save() -> None:
    """An incomplete save never shows up as the last complete one."""
    snapshot = snapshot_of(replace(empty_directory("d"), last_save=replace(LAST_SAVE, result="incomplete")))
    assert "ckpt_last_save" not in scrape(snapshot)


def test_open_saves() -> None:
    """In progress: how many, the age of the oldest, and whether any has stalled."""
    slow = open_save(299, 900.0, 10, stalled=True)
    young = open_save(300, 940.0, 10, stalled=False)
    both = snapshot_of(replace(empty_directory("d"), open_saves=(young, slow)))
    assert value(both, "ckpt_saves_in_progress", dir="d") == 2
    assert value(both, "ckpt_save_in_progress_seconds", dir="d") == 100
    assert value(both, "ckpt_save_stalled", dir="d") == 1
    recovered = snapshot_of(replace(empty_directory("d"), open_saves=(young,)))
    assert value(recovered, "ckpt_save_in_progress_seconds", dir="d") == 60
    assert value(recovered, "ckpt_save_stalled", dir="d") == 0


def test_an_open_save_never_has_a_negative_age() -> None:
    """A save that began after the snapshot's time is 0 seconds old."""
    snapshot = snapshot_of(
        replace(empty_directory("d"), open_saves=(open_save(1, 1000.5, 0, stalled=False),))
    )
    assert value(snapshot, "ckpt_save_in_progress_seconds", dir="d") == 0


def test_histogram_buckets_are_cumulative() -> None:
    """Saves of 94 s and 178 s stand in (90, 120] and (120, 180], neither beyond the last bound."""
    found = series(scrape(sample_snapshot()))
    buckets = {
        dict(labels)["le"]: count
        for (name, labels), count in found.items()
        if name == "ckpt_save_duration_seconds_bucket" and dict(labels)["dir"] == "llama"
    }
    assert [buckets[le] for le in ("90.0", "120.0", "180.0", "10800.0", "+Inf")] == [0, 1, 2, 2, 2]
    assert len(buckets) == 18
    assert found["ckpt_save_duration_seconds_sum", (("dir", "llama"),)] == 272


def test_exemplar_carries_step_value_and_time() -> None:
    """In OpenMetrics a bucket names the step of its latest save, its duration and when it ended."""
    exemplars = {
        sample.labels["le"]: sample.exemplar
        for family in parse_openmetrics(scrape(sample_snapshot(), OPENMETRICS))
        for sample in family.samples
        if sample.exemplar is not None
    }
    assert set(exemplars) == {"120.0", "180.0"}
    assert exemplars["120.0"].labels == {"step": "100"}
    assert exemplars["120.0"].value == 94
    assert float(exemplars["120.0"].timestamp) == 1764470500.5
    assert " # {" not in scrape(sample_snapshot())


def test_steps_and_processes_add_no_series() -> None:
    """The number of series stays the same however many steps have been saved."""
    counts = set()
    for step in (1, 2000):
        save = replace(LAST_SAVE, step=step, path=f"/data/checkpoint-{step}", pids=(step,))
        counts.add(len(series(scrape(snapshot_of(replace(empty_directory("d"), last_save=save))))))
    assert len(counts) == 1


def test_a_vanished_directory_leaves_no_series() -> None:
    """After a reload without a directory none of its series is left."""
    states = [
        snapshot_of(empty_directory("old"), empty_directory("kept")),
        snapshot_of(empty_directory("kept")),
    ]
    registry = build_registry(lambda: states.pop(0), process_metrics=False)
    assert 'dir="old"' in expose(registry).body.decode()
    assert 'dir="old"' not in expose(registry).body.decode()


# --- watching and itself --------------------------------------------------------------------------------


def test_watch_counters_start_at_zero() -> None:
    """Every known reason and event has a series from the first scrape."""
    found = series(scrape(snapshot_of()))
    for reason in ("overflow", "root_lost", "mount_changed", "periodic", "canary", "limit", "restart"):
        assert found["ckpt_watch_rescans_total", (("reason", reason),)] == 0
    for event in ("create", "open", "close_write", "moved", "deleted", "link"):
        assert found["ckpt_events_total", (("event", event),)] == 0
    assert found["ckpt_watch_overflows_total", ()] == 0
    assert found["ckpt_events_dropped_total", ()] == 0


def test_a_directory_that_nothing_watches_is_down() -> None:
    """Without a watch the directory is reported as down, and its coverage as unknown."""
    snapshot = snapshot_of(empty_directory("d"))
    assert value(snapshot, "ckpt_watch_up", dir="d", backend="inotify") == 0
    assert value(snapshot, "ckpt_watched_directories", dir="d") == 0
    assert value(snapshot, "ckpt_watch_coverage_ratio", dir="d") is None


def test_a_watch_at_its_limit_shows_its_coverage() -> None:
    """A tree of which a quarter is covered says so."""
    watch = WatchStatus("d", "inotify", up=True, watched_directories=8, limit_reached=True, coverage=0.25)
    snapshot = snapshot_of(empty_directory("d"), watches=(watch,))
    assert value(snapshot, "ckpt_watch_up", dir="d", backend="inotify") == 1
    assert value(snapshot, "ckpt_watch_limit_reached", dir="d") == 1
    assert value(snapshot, "ckpt_watch_truncated", dir="d") == 0
    assert value(snapshot, "ckpt_watch_coverage_ratio", dir="d") == 0.25


def test_a_configuration_never_loaded_has_no_time() -> None:
    """Before the first successful load there is no timestamp, not 1970."""
    snapshot = snapshot_of(config=ConfigStatus(successful=False, success_unix=0.0))
    assert value(snapshot, "ckpt_config_last_reload_successful") == 0
    assert value(snapshot, "ckpt_config_last_reload_success_timestamp_seconds") is None


def test_process_metrics_come_from_our_own_registry() -> None:
    """The client's process and Python metrics are there, by its filter too, and can be left out."""
    full = expose(build_registry(snapshot_of)).body.decode()
    assert "process_resident_memory_bytes" in full
    assert "python_info" in full
    assert 'ckpt_collector_success{collector="process"} 1.0' in full
    one = expose(build_registry(snapshot_of), names=["process_open_fds"]).body.decode()
    assert [line.split()[0] for line in one.splitlines() if line[0] != "#"] == ["process_open_fds"]
    assert "process_" not in expose(build_registry(snapshot_of, process_metrics=False)).body.decode()


def test_loads_are_zero_before_the_first_and_an_unknown_share_is_absent() -> None:
    """A new directory counts no loads and has no last one; a share that is not known is left out."""
    found = series(scrape(snapshot_of(empty_directory("new"))))
    assert found["ckpt_loads_total", (("dir", "new"),)] == 0
    assert found["ckpt_load_bytes_total", (("dir", "new"),)] == 0
    assert not any(name.startswith("ckpt_last_load") for name, _ in found)
    unknown = replace(LAST_LOAD, cached_ratio=None)
    found = series(scrape(snapshot_of(replace(empty_directory("d"), last_load=unknown))))
    assert found["ckpt_last_load_duration_seconds", (("dir", "d"),)] == 32.5
    assert found["ckpt_last_load_bytes", (("dir", "d"),)] == 65e9
    assert ("ckpt_last_load_cached_ratio", (("dir", "d"),)) not in found
