"""A scrape: one moment for all collectors, a guard around each, memory alone, any name."""

from __future__ import annotations

import builtins
import logging
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
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
from tests.unit.export_sample import LAST_SAVE, empty_directory, sample_snapshot
from tests.unit.scraping import OPENMETRICS, scrape, series, snapshot_of

if TYPE_CHECKING:
    from ckpt_exporter.model import Snapshot

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


def test_rendering_a_snapshot_shows_saves_bubbles_and_gpus_only() -> None:
    """The end of a recording shows what was recorded, not the exporter that replayed it."""
    recorded = replace(sample_snapshot(), gpu_backend=None)
    found = series(render_text(recorded))
    assert found["ckpt_saves_total", (("dir", "llama"), ("result", "complete"))] == 2
    assert found["ckpt_bubble_seconds_total", (("dir", "llama"), ("phase", "writing"))] == 18
    assert found["ckpt_gpu_observed_seconds_total", (("gpu", "0"), ("uuid", "GPU-aaaa"))] == 800
    prefixes = ("ckpt_save", "ckpt_last_save", "ckpt_bubble", "ckpt_gpu")
    assert {name for name, _ in found if not name.startswith(prefixes)} == {
        "ckpt_written_bytes_total",
        "ckpt_write_active_seconds_total",
        "ckpt_retained_checkpoints",
        "ckpt_retained_bytes",
        "ckpt_deleted_checkpoints_total",
        "ckpt_remote_saves_total",
        "ckpt_last_remote_save_end_timestamp_seconds",
    }
    assert not [name for name, _ in found if name.startswith(("ckpt_gpu_backend", "ckpt_gpu_call"))]
