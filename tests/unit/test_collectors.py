"""From a snapshot to what Prometheus reads: right values, honest gaps, failures kept apart."""

from __future__ import annotations

import builtins
import logging
import os
import re
import shutil
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from export_sample import LAST_SAVE, empty_directory, open_save, sample_snapshot
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from ckpt_exporter.metrics import build_registry, expose, render_text
from ckpt_exporter.metrics.catalogue import metric
from ckpt_exporter.metrics.families import Families
from ckpt_exporter.metrics.registry import SnapshotCollector
from ckpt_exporter.metrics.text import valid_text
from ckpt_exporter.model import ConfigStatus, Snapshot, WatchStatus

if TYPE_CHECKING:
    from collections.abc import Callable

OPENMETRICS = "application/openmetrics-text;version=1.0.0"

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def registry_of(snapshot: Snapshot) -> CollectorRegistry:
    """Make a registry without what differs from run to run."""
    return build_registry(
        lambda: snapshot,
        version="0.1.0",
        revision="abc1234",
        python="3.11.7",
        process_metrics=False,
        clock=lambda: 0.0,
    )


def scrape(snapshot: Snapshot, accept: str = "") -> str:
    """Scrape once and return the text."""
    return expose(registry_of(snapshot), accept).body.decode()


def go_floats(text: str) -> str:
    """Write exponents alike: older releases of the client library print 1e+011 for 1e+11."""
    return re.sub(r"e\+0(\d\d)\b", r"e+\1", text)


def series(text: str) -> Series:
    """Parse the text format into values by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse_text(text)
        for sample in family.samples
    }


def value(snapshot: Snapshot, name: str, **labels: str) -> float | None:
    """Return one series of a scrape, None when absent."""
    return series(scrape(snapshot)).get((name, tuple(sorted(labels.items()))))


def snapshot_of(*directories: Any, **changes: Any) -> Snapshot:
    """Make a snapshot at monotonic second 1000."""
    return Snapshot(t=1000.0, unix_minus_t=1764470000.0, directories=directories, **changes)


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


# --- one moment, one guard each -------------------------------------------------------------------------


def test_a_scrape_takes_one_snapshot() -> None:
    """All collectors of a scrape see the same moment."""
    taken = []

    def snapshot() -> Snapshot:
        taken.append(1)
        return sample_snapshot()

    registry = build_registry(snapshot)
    assert not taken  # building reads nothing
    expose(registry)
    assert len(taken) == 1
    expose(registry, names=["ckpt_saves_total", "ckpt_watch_up"])
    assert len(taken) == 2


def test_a_failing_collector_loses_only_its_own_families(caplog: pytest.LogCaptureFixture) -> None:
    """One collector that raises half-way is left out whole, reported and logged; the others go on."""

    def good(_snapshot: Snapshot, out: Families) -> None:
        out.add("ckpt_watch_overflows_total", 7)

    def bad(_snapshot: Snapshot, out: Families) -> None:
        out.add("ckpt_saves_in_progress", 3, dir="d")
        raise RuntimeError("broken on purpose")

    registry = CollectorRegistry()
    registry.register(
        SnapshotCollector(sample_snapshot, {"saves": bad, "watch": good}, {}, clock=lambda: 0.0)
    )
    with caplog.at_level(logging.ERROR):
        found = series(expose(registry).body.decode())
        found = series(expose(registry).body.decode())
    assert found["ckpt_watch_overflows_total", ()] == 7
    assert not [name for name, _ in found if name == "ckpt_saves_in_progress"]
    assert found["ckpt_collector_success", (("collector", "saves"),)] == 0
    assert found["ckpt_collector_success", (("collector", "watch"),)] == 1
    assert found["ckpt_collector_errors_total", (("collector", "saves"),)] == 2
    assert found["ckpt_collector_errors_total", (("collector", "watch"),)] == 0
    assert [record.getMessage() for record in caplog.records] == [
        "collector saves failed, its metrics are left out of this scrape"
    ] * 2


def test_a_damaged_histogram_costs_only_its_collector(caplog: pytest.LogCaptureFixture) -> None:
    """Counts that do not match the bounds are no output at all rather than a wrong one."""
    directory = empty_directory("d")
    damaged = replace(directory, duration=replace(directory.duration, counts=(1, 2)))
    found = series(scrape(snapshot_of(damaged)))
    assert found["ckpt_collector_success", (("collector", "saves"),)] == 0
    assert found["ckpt_collector_success", (("collector", "storage"),)] == 1
    assert not [name for name, _ in found if name.startswith("ckpt_save")]


def test_a_failing_snapshot_leaves_the_process_metrics(caplog: pytest.LogCaptureFixture) -> None:
    """Without a snapshot the scrape still answers and says what is missing."""

    def snapshot() -> Snapshot:
        raise RuntimeError("broken on purpose")

    text = expose(build_registry(snapshot)).body.decode()
    assert 'ckpt_collector_success{collector="saves"} 0.0' in text
    assert 'ckpt_collector_success{collector="process"} 1.0' in text
    assert "process_cpu_seconds_total" in text


def test_collector_duration_is_measured() -> None:
    """The duration of a collector is the time between its start and end."""
    ticks = iter([10.0, 10.25])
    collector = SnapshotCollector(
        sample_snapshot, {"watch": lambda _snapshot, _out: None}, {}, clock=lambda: next(ticks)
    )
    registry = CollectorRegistry()
    registry.register(collector)
    found = series(expose(registry).body.decode())
    assert found["ckpt_collector_duration_seconds", (("collector", "watch"),)] == 0.25


def test_two_metrics_of_one_name_are_refused_at_start() -> None:
    """A clash of names shows when the registry is built, not in a scrape."""
    clash = GaugeMetricFamily("ckpt_saves", "Clashes with the counter ckpt_saves_total.", value=1)
    with pytest.raises(ValueError, match="ckpt_saves"):
        SnapshotCollector(sample_snapshot, {}, {"extra": lambda: [clash]}, clock=lambda: 0.0)


def test_a_scrape_touches_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape reads memory alone; only this process's own numbers come from /proc."""
    registry = build_registry(sample_snapshot)
    real_open = builtins.open

    def forbidden(*arguments: Any, **_: Any) -> Any:
        raise AssertionError(f"the scrape touched {arguments}")

    def only_proc(path: Any, *arguments: Any, **options: Any) -> Any:
        return real_open(path, *arguments, **options) if str(path).startswith("/proc/") else forbidden(path)

    with monkeypatch.context() as patched:
        for name in ("stat", "lstat", "open", "scandir", "statvfs", "readlink", "access"):
            patched.setattr(os, name, forbidden)
        patched.setattr(builtins, "open", only_proc)
        body = expose(registry, OPENMETRICS, "gzip").body
    assert body
    assert registry.get_sample_value("ckpt_collector_errors_total", {"collector": "saves"}) == 0
    assert registry.get_sample_value("ckpt_collector_errors_total", {"collector": "process"}) == 0


# --- names ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plain", "plain"),
        ("größe", "größe"),
        ("a\udcffb", "a\\xffb"),  # the byte 0xff, which is no UTF-8
        ("a\udc80", "a\\x80"),
        ("\ud800", "\\ud800"),
        ("\udc00", "\\udc00"),
        ("line\nbreak", "line\nbreak"),  # the encoder escapes it
    ],
)
def test_names_become_valid_text(name: str, text: str) -> None:
    """Bytes that are no UTF-8 are written out, everything else stays."""
    assert valid_text(name) == text
    text.encode("utf-8")


def test_hostile_names_survive_the_round_trip() -> None:
    """Quotes, backslashes and newlines come back as they were, a lone byte written out."""
    name = 'a"b\\c\nd{e}=,#\udcff'
    found = series(scrape(snapshot_of(empty_directory(name, "/data/" + name))))
    assert ("ckpt_saves_in_progress", (("dir", 'a"b\\c\nd{e}=,#\\xff'),)) in found


finite = st.floats(allow_nan=False, allow_infinity=False, width=64)
counts = st.integers(min_value=0, max_value=2**53)
# A carriage return inside a label is legal, but both parsers of the client library strip lines at it.
names = st.text(st.characters(exclude_characters="\r", codec=None), max_size=20)
raw_names = st.binary(max_size=20).map(os.fsdecode)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(names | raw_names, min_size=1, max_size=4, unique_by=valid_text),
    counts,
    st.floats(min_value=0, max_value=1e15),
    st.none() | finite,
    st.none() | st.integers(min_value=0, max_value=2**53),
)
def test_any_name_and_value_parses_back(
    directory_names: list[str], count: int, seconds: float, bandwidth: float | None, step: int | None
) -> None:
    """Whatever the names and numbers, both parsers read back what went in."""
    save = replace(LAST_SAVE, peak_bandwidth=bandwidth, step=step)
    directories = [
        replace(
            empty_directory(name, "/data/" + name),
            written_bytes=count,
            write_active_seconds=seconds,
            last_save=save,
        )
        for name in directory_names
    ]
    snapshot = snapshot_of(*directories)
    for parse, accept in ((parse_text, ""), (parse_openmetrics, OPENMETRICS)):
        found = {
            (sample.name, sample.labels["dir"]): sample.value
            for family in parse(scrape(snapshot, accept))
            for sample in family.samples
            if "dir" in sample.labels
        }
        for name in map(valid_text, directory_names):
            assert found["ckpt_written_bytes_total", name] == count
            assert found["ckpt_write_active_seconds_total", name] == seconds
            assert found.get(("ckpt_last_save_peak_bandwidth_bytes_per_second", name)) == bandwidth
            assert found.get(("ckpt_last_save_step", name)) == step


# --- the builder and the end of a recording -------------------------------------------------------------


def test_only_catalogued_names_and_labels_can_be_exported() -> None:
    """A name or label that the catalogue does not know is an error of the program."""
    out = Families([metric("ckpt_saves_in_progress")])
    with pytest.raises(KeyError):
        out.add("ckpt_invented", 1)
    with pytest.raises(ValueError, match="dir"):
        out.add("ckpt_saves_in_progress", 1, path="/data")
    with pytest.raises(TypeError):
        out.add_info("ckpt_saves_in_progress", dir="d")


def test_rendering_a_snapshot_shows_the_save_metrics_only() -> None:
    """The end of a recording shows saves, not the exporter that replayed them."""
    found = series(render_text(sample_snapshot()))
    assert found["ckpt_saves_total", (("dir", "llama"), ("result", "complete"))] == 2
    assert {name for name, _ in found if not name.startswith(("ckpt_save", "ckpt_last_save"))} == {
        "ckpt_written_bytes_total",
        "ckpt_write_active_seconds_total",
        "ckpt_retained_checkpoints",
        "ckpt_retained_bytes",
        "ckpt_deleted_checkpoints_total",
    }
