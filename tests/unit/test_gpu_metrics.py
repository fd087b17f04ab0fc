"""GPU and bubble metrics: there from the first scrape, absent when unknown, one name in two families."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from ckpt_exporter.book import DURATION_BUCKETS_SECONDS
from ckpt_exporter.metrics import expose
from ckpt_exporter.metrics.text import valid_text
from ckpt_exporter.model import Bubble, GpuInfo, GpuStatus, Histogram
from tests.unit.export_sample import (
    GPU_BACKEND,
    GPUS,
    LAST_BUBBLE,
    LAST_SAVE,
    empty_directory,
    sample_snapshot,
)
from tests.unit.scraping import OPENMETRICS, registry_of, scrape, series, snapshot_of, value

PHASES = ("before_write", "writing", "write_gap", "after_write")
REASONS = ("no_gpu", "no_baseline", "sampler_gap", "low_quality")
CAUSES = ("checkpoint_save", "checkpoint_load", "data_loading", "communication", "other")

FRESH = GpuStatus(GpuInfo(3, "GPU-cccc", "NVIDIA L4", "570.1"), up=False)
GPU_LABELS = (("gpu", "3"), ("uuid", "GPU-cccc"))


# --- from the first scrape ------------------------------------------------------------------------------


def test_bubble_series_of_a_directory_start_at_zero_without_gpus() -> None:
    """Without a GPU part every phase, reason and the histogram of a directory exist at 0."""
    found = series(scrape(snapshot_of(empty_directory("new"))))
    for phase in PHASES:
        assert found["ckpt_bubble_seconds_total", (("dir", "new"), ("phase", phase))] == 0
    for reason in REASONS:
        assert found["ckpt_bubble_skipped_total", (("dir", "new"), ("reason", reason))] == 0
    assert found["ckpt_bubble_seconds_count", (("dir", "new"),)] == 0
    assert found["ckpt_bubble_seconds_sum", (("dir", "new"),)] == 0
    bounds = [dict(labels)["le"] for name, labels in found if name == "ckpt_bubble_seconds_bucket"]
    assert sorted(map(float, bounds)) == [*DURATION_BUCKETS_SECONDS, float("inf")]


def test_without_a_gpu_part_there_is_no_gpu_series() -> None:
    """A node that was told to read no GPU exports none, not even one that something else knows."""
    assert "ckpt_gpu_" not in scrape(snapshot_of(empty_directory("new"), gpus=(FRESH,)))


def test_counters_of_a_gpu_start_at_zero() -> None:
    """A GPU just seen has its counters at 0 for every configured directory and every cause."""
    snapshot = snapshot_of(empty_directory("a"), empty_directory("b"), gpus=(FRESH,), gpu_backend=GPU_BACKEND)
    found = series(scrape(snapshot))
    for name in ("a", "b"):
        assert found["ckpt_gpu_bubble_seconds_total", (("dir", name), *GPU_LABELS)] == 0
        assert found["ckpt_gpu_drag_seconds_total", (("dir", name), *GPU_LABELS)] == 0
    for cause in CAUSES:
        assert found["ckpt_gpu_stall_seconds_total", (("cause", cause), *GPU_LABELS)] == 0
    assert found["ckpt_gpu_observed_seconds_total", GPU_LABELS] == 0
    assert found["ckpt_gpu_up", GPU_LABELS] == 0
    info = (("driver", "570.1"), ("gpu", "3"), ("name", "NVIDIA L4"), ("uuid", "GPU-cccc"))
    assert found["ckpt_gpu_info", info] == 1


def test_what_a_gpu_does_not_tell_is_absent() -> None:
    """Unknown activity, utilisation, power and source have no series."""
    text = scrape(snapshot_of(gpus=(FRESH,), gpu_backend=GPU_BACKEND))
    for name in ("activity_ratio", "utilization_ratio", "power_watts", "activity_source_info"):
        assert f"ckpt_gpu_{name}" not in text


def test_an_idle_gpu_reads_zero() -> None:
    """An activity, utilisation and power of 0 are readings, not gaps."""
    idle = replace(FRESH, up=True, activity=0.0, util=0.0, power_w=0.0, source="gpm", quality="high")
    snapshot = snapshot_of(gpus=(idle,), gpu_backend=GPU_BACKEND)
    for name in ("ckpt_gpu_activity_ratio", "ckpt_gpu_utilization_ratio", "ckpt_gpu_power_watts"):
        assert value(snapshot, name, **dict(GPU_LABELS)) == 0
    source = {"source": "gpm", "quality": "high", **dict(GPU_LABELS)}
    assert value(snapshot, "ckpt_gpu_activity_source_info", **source) == 1


def test_a_directory_that_is_configured_no_more_has_no_gpu_series() -> None:
    """What a GPU lost to a removed directory stays in its stalls, not under the directory's name."""
    text = scrape(snapshot_of(empty_directory("llama"), gpus=GPUS, gpu_backend=GPU_BACKEND))
    assert 'dir="gone"' not in text
    assert 'ckpt_gpu_stall_seconds_total{cause="checkpoint_save",gpu="0",uuid="GPU-aaaa"} 31.0' in text


# --- values ---------------------------------------------------------------------------------------------


def test_gpus_keep_their_own_numbers() -> None:
    """Each GPU has what its own saves, drag, stalls and readings were."""
    found = series(scrape(sample_snapshot()))
    first, second = (("gpu", "0"), ("uuid", "GPU-aaaa")), (("gpu", "1"), ("uuid", "GPU-bbbb"))
    assert found["ckpt_gpu_bubble_seconds_total", (("dir", "llama"), *first)] == 26
    assert found["ckpt_gpu_bubble_seconds_total", (("dir", "llama"), *second)] == 22
    assert found["ckpt_gpu_bubble_seconds_total", (("dir", "vision"), *first)] == 0
    assert found["ckpt_gpu_drag_seconds_total", (("dir", "llama"), *first)] == 0.5
    assert found["ckpt_gpu_observed_seconds_total", second] == 700
    assert found["ckpt_gpu_stall_seconds_total", (("cause", "data_loading"), *first)] == 2.5
    assert found["ckpt_gpu_activity_ratio", first] == 0.96875
    assert found["ckpt_gpu_power_watts", first] == 612.5
    assert (found["ckpt_gpu_up", first], found["ckpt_gpu_up", second]) == (1, 0)


def test_the_bubble_of_the_last_save() -> None:
    """Seconds and depth of the last save are shown; a depth that is unknown alone stays away."""
    directory = replace(empty_directory("d"), last_save=LAST_SAVE, last_bubble=LAST_BUBBLE)
    assert value(snapshot_of(directory), "ckpt_last_save_bubble_seconds", dir="d") == 15
    assert value(snapshot_of(directory), "ckpt_last_save_bubble_depth_ratio", dir="d") == 0.75
    shallow = replace(directory, last_bubble=replace(LAST_BUBBLE, seconds=0.0, depth=None))
    assert value(snapshot_of(shallow), "ckpt_last_save_bubble_seconds", dir="d") == 0
    assert value(snapshot_of(shallow), "ckpt_last_save_bubble_depth_ratio", dir="d") is None


@pytest.mark.parametrize("bubble", [None, Bubble("d", "/p", 900.0, skipped="low_quality", seconds=3.0)])
def test_a_save_without_a_figure_shows_no_bubble(bubble: Bubble | None) -> None:
    """Not judged yet and skipped are both absent, never 0."""
    directory = replace(empty_directory("d"), last_save=LAST_SAVE, last_bubble=bubble)
    assert "ckpt_last_save_bubble" not in scrape(snapshot_of(directory))


def test_bubble_histogram_is_cumulative() -> None:
    """Bubbles of 9 s and 15 s stand in (5, 10] and (10, 20]."""
    found = series(scrape(sample_snapshot()))
    counted = [
        found["ckpt_bubble_seconds_bucket", (("dir", "llama"), ("le", le))]
        for le in ("5.0", "10.0", "20.0", "10800.0", "+Inf")
    ]
    assert counted == [0, 1, 2, 2, 2]
    assert found["ckpt_bubble_seconds_sum", (("dir", "llama"),)] == 24


@pytest.mark.parametrize(("name", "up"), [("nvml", True), ("nvml", False), ("simulated", True)])
def test_backend_is_named_with_its_state(name: str, up: bool) -> None:
    """The backend of the readings has its own name, up or not, and the times of its calls."""
    snapshot = snapshot_of(gpu_backend=replace(GPU_BACKEND, backend=name, up=up))
    assert value(snapshot, "ckpt_gpu_backend_up", backend=name) == up
    assert value(snapshot, "ckpt_gpu_call_seconds_count") == 100
    assert value(snapshot, "ckpt_gpu_call_seconds_bucket", le="0.001") == 90


def test_a_damaged_call_histogram_costs_only_the_gpu_collector(caplog: pytest.LogCaptureFixture) -> None:
    """A fault in the GPU part leaves the bubbles of the directories in the scrape."""
    damaged = replace(GPU_BACKEND, call_seconds=Histogram((1.0,), (1,), 1.0))
    found = series(scrape(replace(sample_snapshot(), gpu_backend=damaged)))
    assert found["ckpt_collector_success", (("collector", "gpu"),)] == 0
    assert found["ckpt_collector_success", (("collector", "bubble"),)] == 1
    assert not [name for name, _ in found if name.startswith("ckpt_gpu_")]
    assert found["ckpt_bubble_seconds_count", (("dir", "llama"),)] == 2


# --- one name, two families -----------------------------------------------------------------------------


def test_counter_and_histogram_of_the_same_name_are_both_typed_in_the_text_format() -> None:
    """The text format has ``ckpt_bubble_seconds_total`` as a counter beside the histogram."""
    types = {line.split()[2]: line.split()[3] for line in scrape(sample_snapshot()).splitlines()
             if line.startswith("# TYPE")}  # fmt: skip
    assert types["ckpt_bubble_seconds_total"] == "counter"
    assert types["ckpt_bubble_seconds"] == "histogram"
    assert "untyped" not in types.values()


def test_openmetrics_has_no_family_twice() -> None:
    """There the counter is of type unknown under its full name, and only it."""
    families = list(parse_openmetrics(scrape(sample_snapshot(), OPENMETRICS)))
    assert len({family.name for family in families}) == len(families)
    types = {family.name: family.type for family in families}
    assert types["ckpt_bubble_seconds"] == "histogram"
    assert [name for name, kind in types.items() if kind == "unknown"] == ["ckpt_bubble_seconds_total"]


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_each_of_the_two_can_be_asked_for_alone(accept: str) -> None:
    """``name[]=`` finds the counter without the histogram, and the text format keeps its type."""
    body = expose(registry_of(sample_snapshot()), accept, names=["ckpt_bubble_seconds_total"]).body.decode()
    lines = [line for line in body.splitlines() if line[0] != "#"]
    assert len(lines) == 4 * 3  # four phases of three directories
    assert {line.split("{")[0] for line in lines} == {"ckpt_bubble_seconds_total"}
    kind = "unknown" if accept else "counter"
    assert f"# TYPE ckpt_bubble_seconds_total {kind}\n" in body


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (package prometheus)")
@pytest.mark.parametrize("backend", ["nvml", "simulated"])
def test_promtool_accepts_the_gpu_metrics(backend: str) -> None:
    """Prometheus' own linter finds nothing in the families of GPUs and bubbles."""
    snapshot = replace(sample_snapshot(), gpu_backend=replace(GPU_BACKEND, backend=backend))
    text = scrape(snapshot)
    assert "ckpt_gpu_call_seconds_sum" in text
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text.encode(), capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


# --- any value ------------------------------------------------------------------------------------------

seconds = st.floats(min_value=0, max_value=1e15)
share = st.none() | st.floats(min_value=0, max_value=1)
text = st.text(st.characters(exclude_characters="\r", codec=None), max_size=12)


@st.composite
def statuses(draw: st.DrawFn) -> GpuStatus:
    """Draw a GPU that has lost time to the directory ``d``."""
    return GpuStatus(
        GpuInfo(draw(st.integers(0, 15)), draw(text), draw(text), draw(text)),
        up=draw(st.booleans()),
        activity=draw(share),
        util=draw(share),
        power_w=draw(st.none() | st.floats(min_value=0, max_value=2000)),
        source=draw(st.none() | st.sampled_from(["gpm", "power", "power_utilization", "utilization"])),
        quality="low",
        observed_seconds=draw(seconds),
        bubble_seconds={"d": draw(seconds)},
        drag_seconds={"d": draw(seconds)},
        stall_seconds=draw(st.dictionaries(st.sampled_from(CAUSES), seconds)),
    )


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        statuses(), max_size=4, unique_by=lambda status: (status.info.gpu, valid_text(status.info.uuid))
    ),
    st.dictionaries(st.sampled_from(PHASES), seconds),
    share,
)
def test_any_gpu_parses_back(gpus: list[GpuStatus], phases: dict[str, float], depth: float | None) -> None:
    """Whatever the GPUs and numbers, both parsers read back what went in and nothing else."""
    directory = replace(
        empty_directory("d"), bubble_phase_seconds=phases, last_bubble=replace(LAST_BUBBLE, depth=depth)
    )
    snapshot = snapshot_of(directory, gpus=tuple(gpus), gpu_backend=GPU_BACKEND)
    for parse, accept in ((parse_text, ""), (parse_openmetrics, OPENMETRICS)):
        found = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in parse(scrape(snapshot, accept))
            for sample in family.samples
        }
        for phase in PHASES:
            assert found["ckpt_bubble_seconds_total", (("dir", "d"), ("phase", phase))] == phases.get(
                phase, 0
            )
        assert found.get(("ckpt_last_save_bubble_depth_ratio", (("dir", "d"),))) == depth
        assert len([name for name, _ in found if name == "ckpt_gpu_up"]) == len(gpus)
        for status in gpus:
            key = (("gpu", str(status.info.gpu)), ("uuid", valid_text(status.info.uuid)))
            assert found["ckpt_gpu_bubble_seconds_total", (("dir", "d"), *key)] == status.bubble_seconds["d"]
            assert found["ckpt_gpu_drag_seconds_total", (("dir", "d"), *key)] == status.drag_seconds["d"]
            assert found["ckpt_gpu_observed_seconds_total", key] == status.observed_seconds
            assert found.get(("ckpt_gpu_activity_ratio", key)) == status.activity
            assert found.get(("ckpt_gpu_utilization_ratio", key)) == status.util
            assert found.get(("ckpt_gpu_power_watts", key)) == status.power_w
            for cause in CAUSES:
                stalled = found["ckpt_gpu_stall_seconds_total", (("cause", cause), *key)]
                assert stalled == status.stall_seconds.get(cause, 0)
