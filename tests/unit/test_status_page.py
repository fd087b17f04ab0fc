"""The status page: human units, unknown said as such, hostile names harmless."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from ckpt_exporter.model import GpuBackendStatus
from ckpt_exporter.web.pages.markup import badge, escaped
from ckpt_exporter.web.pages.status import StatusPage
from ckpt_exporter.web.pages.units import (
    bandwidth_text,
    count_text,
    duration_text,
    gpu_seconds_text,
    power_text,
    ratio_text,
    size_text,
    time_text,
)
from tests.unit.export_sample import GPU_BACKEND, GPUS, empty_directory, sample_snapshot
from tests.unit.page_outline import only, outline


def test_page_shows_what_is_known() -> None:
    """Watch, open and last saves, storage and totals stand in tables with human units."""
    rows = outline(sample_snapshot()).rows
    assert [
        "llama",
        "watched",
        "stalled",
        "1 min 40 s ago",
        "2 min 58 s",
        "65.0 GB",
        "0.406 GB/s",
        "3",
    ] in rows
    for row in (
        ["Ended", "2025-11-30 02:48:20 UTC (1 min 40 s ago)"],
        ["Step", "200"],
        ["Size", "65.0 GB in 16 files"],
        ["Average bandwidth", "0.365 GB/s"],
        ["Peak bandwidth", "2.00 GB/s"],
        ["Saves incomplete", "1"],
        ["Retained now", "130 GB in 2 checkpoints"],
        ["Transport", "nvme-tcp"],
        ["Free", "750 GB of 3.00 TB (25.0 %)"],
        ["Run", "llama-7b"],
        ["Scheduler", "slurm, 8812"],
        ["Covered by inotify", "25.0 %"],
        ["Limit", "inotify watch limit reached"],
        ["Rescans", "overflow 1, periodic 4"],
        ["Looks at progress dropped", "2"],
    ):
        assert row in rows
    text = " ".join(outline(sample_snapshot()).text)
    assert "9.00 GB written; no earlier save of this run tells how much is to come" in text
    assert "4 files, 1 open; last byte 5.0 s ago; layout huggingface" in text
    assert "/data/llama/tmp-checkpoint-300" in text
    assert "version 0.1.0, up 10 min 0 s, as of 2025-11-30 02:50:00 UTC" in text


def test_unknown_is_never_shown_as_zero() -> None:
    """What is not known says unknown or none, and only true counters say 0."""
    two = outline(only(empty_directory("new"), empty_directory("other")))
    assert ["new", "not watched", "idle", "none seen yet", "", "", "", "0"] in two.rows
    rows = outline(only(empty_directory("new"))).rows
    for row in (["Ended", "none seen yet"], ["Retained now", "unknown"], ["Mount", "unknown"],
                ["Free", "unknown"], ["Run", "unknown"], ["Directories watched", "unknown"],
                ["Configuration", "loaded", ""], ["Saves complete", "0"]):  # fmt: skip
        assert row in rows


def test_page_shows_what_a_save_cost_the_gpus() -> None:
    """The bubble of the last save stands with its parts and quality, the totals with their share."""
    rows = outline(sample_snapshot()).rows
    for row in (
        ["Mean of its GPUs", "15.0 s"],
        ["On its GPUs", "30.0 GPU-s on 2 GPUs"],  # 16 + 14
        ["Depth", "75.0 %"],
        ["Before the first byte", "1.50 s"],
        ["While bytes flowed", "12.0 s"],
        ["Pauses between writes", "500 ms"],
        ["After the last byte", "1.00 s"],
        ["Read from", "power, high quality"],
        ["Mean of GPUs", "24.0 s"],  # 2.5 + 18 + 0.5 + 3
        ["On all GPUs", "48.0 GPU-s"],  # 26 + 22
        ["Drag, not in it", "0.5 GPU-s"],
        ["Share of GPU time", "3.20 %"],  # 48 / (800 + 700)
        ["Saves measured", "2"],
        ["Not measured", "no steady training before the save 1"],
        ["Bubble", "unknown (no GPU of the run was seen)"],
    ):
        assert row in rows


def test_page_shows_every_gpu() -> None:
    """Each GPU stands with its readings; what a GPU that is down would read is unknown."""
    rows = outline(sample_snapshot()).rows
    name = "NVIDIA H100 80GB HBM3"
    readings = ["96.9 %", "100 %", "612 W", "power, high quality"]
    # 26 for llama and 5 for a directory since removed: 31 of 800 and 22 of 700 seconds.
    assert ["0", "up", name, *readings, "13 min 20 s", "31.0 GPU-s", "3.88 %"] in rows
    assert ["1", "down", name, *["unknown"] * 4, "11 min 40 s", "22.0 GPU-s", "3.14 %"] in rows
    assert "nvml up" in outline(sample_snapshot()).text


def test_a_share_counts_only_gpus_that_paid_for_the_directory() -> None:
    """The time of a GPU on which this directory's saves never ran does not thin its share out."""
    snapshot = sample_snapshot()
    other = replace(snapshot.gpus[1], bubble_seconds={"vision": 7.0})
    rows = outline(replace(snapshot, gpus=(snapshot.gpus[0], other))).rows
    assert ["Share of GPU time", "3.25 %"] in rows  # 26 / 800
    assert ["Share of GPU time", "1.00 %"] in rows  # 7 / 700


def test_without_readings_a_bubble_is_unknown() -> None:
    """No GPU part: no table of GPUs, no share, and a last save without a verdict is unknown, not 0."""
    snapshot = sample_snapshot()
    llama = replace(snapshot.directories[0], last_bubble=None)
    parsed = outline(replace(snapshot, directories=(llama,), gpus=(), gpu_backend=None))
    assert ["Bubble", "unknown"] in parsed.rows
    assert ["On all GPUs", "unknown"] in parsed.rows
    assert ["Mean of GPUs", "unknown"] in outline(only(empty_directory("new"))).rows
    assert ["Share of GPU time", "unknown"] in parsed.rows
    assert not [row for row in parsed.rows if row[0] == "GPU"]
    assert ("section", "gpus") not in [(tag, attributes.get("id")) for tag, attributes in parsed.tags]


def test_a_backend_that_is_down_says_so() -> None:
    """A backend that gives nothing is shown as down, without GPUs if it never saw any."""
    down = GpuBackendStatus("nvml", up=False, call_seconds=GPU_BACKEND.call_seconds, mapping_known=False)
    text = outline(replace(sample_snapshot(), gpu_backend=down, gpus=())).text
    assert "nvml down" in text
    assert "No GPU seen." in text
    unseen = GpuBackendStatus("nvml", up=True, call_seconds=GPU_BACKEND.call_seconds, mapping_known=False)
    words = " ".join(outline(replace(sample_snapshot(), gpu_backend=unseen)).text)
    assert "Which run a GPU belongs to is unknown: its processes can't be seen." in words


@pytest.mark.parametrize("name", ["NVIDIA H100 (simulated)", "NVIDIA H100", ""])
def test_simulated_gpus_are_called_simulated_wherever_they_show(name: str) -> None:
    """Backend, table, row and every directory's bubble say simulated in words."""
    gpu = replace(GPUS[0], info=replace(GPUS[0].info, name=name, driver="simulated"))
    backend = replace(GPU_BACKEND, backend="simulated")
    parsed = outline(replace(sample_snapshot(), gpus=(gpu,), gpu_backend=backend))
    assert "simulated up" in parsed.text
    notice = "These GPUs are simulated: no figure of GPUs or bubbles comes from a real device."
    assert notice in " ".join(parsed.text)
    assert ["GPUs", "simulated", "A simulation: no figure comes from a real device."] in parsed.rows
    directories = len(sample_snapshot().directories)
    assert parsed.text.count("Bubble of last save (simulated GPUs)") == directories
    assert parsed.text.count("Bubbles since start (simulated GPUs)") == directories
    (row,) = (cells for cells in parsed.rows if cells[:2] == ["0", "up"])
    assert "simulated" in row[2]


def test_real_gpus_are_never_called_simulated() -> None:
    """The word does not appear for real GPUs."""
    assert "simulat" not in " ".join(outline(sample_snapshot()).text).lower()


def test_a_save_that_was_moved_in_has_unknown_figures() -> None:
    """Duration, bandwidths and step of a moved save are unknown."""
    snapshot = sample_snapshot()
    rows = outline(replace(snapshot, directories=snapshot.directories[2:])).rows
    for name in ("Step", "Duration", "Average bandwidth", "Sustained bandwidth", "Peak bandwidth"):
        assert [name, "unknown"] in rows


def test_hostile_names_stay_text() -> None:
    """Markup, quotes, control characters and lone bytes in names appear as text and start no tag."""
    parsed = outline(sample_snapshot())
    assert [tag for tag, _ in parsed.tags].count("script") == 1
    assert "img" not in [tag for tag, _ in parsed.tags]
    heading = 'we"ird\\ \\n<script>alert(1)</script>\\xff'
    assert heading in parsed.text
    evil = outline(only(empty_directory("' onmouseover='x\u202e\x00", '"><img src=x onerror=alert(1)>')))
    assert not {"img"} & {tag for tag, _ in evil.tags}
    assert not [attributes for _, attributes in evil.tags if "onmouseover" in attributes]
    assert "' onmouseover='x\\u202e\\x00" in evil.text


def test_page_is_self_contained() -> None:
    """No outside asset: the only addresses are links within the exporter and the page, and data in it."""
    page = StatusPage(sample_snapshot, started=0.0)()
    links = re.findall(r'(?:href|src|action)="([^"]*)"', page)
    inside = [link for link in links if not link.startswith(("#", "data:image/svg+xml,"))]
    assert inside == ["/metrics", "/-/healthy", "/-/ready"]
    assert "style=" not in page
    assert not re.search(r"<[^>]* on[a-z]+=", page)
    assert "url(" not in page
    assert "@import" not in page
    assert "prefers-color-scheme: dark" in page


def test_tables_are_accessible() -> None:
    """The language is set, every table has a caption and every heading cell a scope."""
    tags = outline(sample_snapshot()).tags
    assert dict(tags)["html"]["lang"] == "en"
    names = [tag for tag, _ in tags]
    assert names.count("table") == names.count("caption") > 0
    assert {"header", "nav", "main", "footer", "h1"} <= set(names)
    assert all(attributes.get("scope") in ("row", "col") for tag, attributes in tags if tag == "th")
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_notices_appear_only_when_there_is_something_to_say() -> None:
    """A dead source and a failed reload stand on top."""
    text = " ".join(outline(sample_snapshot()).text)
    assert "The source storage has stopped; what it reports is old." in text
    assert "The last reload of the configuration failed" in text
    quiet = outline(only()).text
    assert "Nothing needs attention" in quiet


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "unknown"), (float("nan"), "unknown"), (float("inf"), "unknown"),
        (0.0, "0 ms"), (0.0004, "0 ms"), (0.85, "850 ms"), (0.9996, "1.00 s"),
        (9.994, "9.99 s"), (9.996, "10.0 s"), (12.34, "12.3 s"),
        (59.94, "59.9 s"), (59.96, "1 min 0 s"), (178.0, "2 min 58 s"), (3599.6, "1 h 0 min"),
        (3900.0, "1 h 5 min"), (86400.0, "1 d 0 h"), (273_600.0, "3 d 4 h"),
    ],
)  # fmt: skip
def test_durations(seconds: float | None, text: str) -> None:
    """Durations are shown in the two largest units that matter."""
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (None, "unknown"), (0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (9_994, "9.99 kB"),
        (9_996, "10.0 kB"), (99_960, "100 kB"), (999_400, "999 kB"), (999_600, "1.00 MB"),
        (65_000_000_000, "65.0 GB"), (1_234_000_000_000, "1.23 TB"), (5e21, "5000 EB"),
    ],
)  # fmt: skip
def test_sizes(size_bytes: float | None, text: str) -> None:
    """Sizes have three digits and an SI prefix, also where rounding reaches the next one."""
    assert size_text(size_bytes) == text


def test_other_units() -> None:
    """Bandwidths, counts, shares and times say unknown when they are."""
    assert bandwidth_text(406_250_000.0) == "0.406 GB/s"
    assert bandwidth_text(None) == "unknown"
    assert count_text(1234567) == "1\u202f234\u202f567"
    assert count_text(None) == "unknown"
    assert ratio_text(0.9999) == "99.9 %"
    assert ratio_text(1.0) == "100 %"
    assert ratio_text(None) == "unknown"
    assert gpu_seconds_text(99.94) == "99.9 GPU-s"
    assert gpu_seconds_text(99.96) == "100 GPU-s"
    assert gpu_seconds_text(12345.6) == "12\u202f346 GPU-s"
    assert gpu_seconds_text(None) == "unknown"
    assert power_text(612.5) == "612 W"
    assert power_text(None) == "unknown"
    assert time_text(0.0) == "1970-01-01 00:00:00 UTC"
    assert time_text(float("nan")) == "unknown"
    assert time_text(1e20) == "unknown"


def test_markup_is_escaped_once() -> None:
    """Plain text is escaped, markup made here is not."""
    assert escaped("<b>&\"'") == "&lt;b&gt;&amp;&quot;&#x27;"
    assert escaped(escaped("<")) == "&lt;"
    assert badge("bad", "<").endswith("&lt;</span>")
