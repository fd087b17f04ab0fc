"""The state of every source on the status page: words, and what to do."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from ckpt_exporter.model import (
    ConfigStatus,
    GpuBackendStatus,
    RecordingStatus,
    Snapshot,
    StorageStatus,
    WatchCounters,
    WatchStatus,
)
from ckpt_exporter.web.pages.style import STYLE
from tests.unit.export_sample import GPU_BACKEND, GPUS, empty_directory
from tests.unit.page_outline import outline

HEALTHY = Snapshot(
    t=1000.0,
    unix_minus_t=1764470000.0,
    directories=(empty_directory("llama"),),
    watches=(WatchStatus("llama", "inotify", up=True, watched_directories=12),),
    config=ConfigStatus(successful=True, success_unix=1764466800.0),
    gpu_backend=GPU_BACKEND,
    gpus=(GPUS[0],),
    sources_healthy={"watch": True, "storage": True},
    recording=RecordingStatus(),
)


def source(snapshot: Snapshot, about: str) -> list[str]:
    """Return state and words of one source."""
    (row,) = (row for row in outline(snapshot).rows if len(row) == 3 and row[0] == about)
    return row[1:]


def test_all_is_well() -> None:
    """Every source stands with its state, and nothing needs attention."""
    assert source(HEALTHY, "Watch of llama") == ["up", "12 directories."]
    assert source(HEALTHY, "File events") == ["none lost", "0 taken in."]
    assert source(HEALTHY, "GPUs") == ["nvml up", "1 GPU."]
    assert source(HEALTHY, "Source storage") == ["up", "Knows mounts, devices and free space."]
    assert source(HEALTHY, "Configuration") == ["loaded", "In force since 2025-11-30 01:40:00 UTC."]
    assert source(HEALTHY, "Recording") == ["running", ""]
    assert "Nothing needs attention" in outline(HEALTHY).text


DOWN = GpuBackendStatus("nvml", up=False, call_seconds=GPU_BACKEND.call_seconds)
UNMAPPED = replace(GPU_BACKEND, mapping_known=False)


@pytest.mark.parametrize(
    ("change", "about", "state", "advice"),
    [
        ({"watches": ()}, "Watch of llama", "not watched", "permissions or mount"),
        ({"watches": (WatchStatus("llama", "inotify", up=False),)}, "Watch of llama", "not watched", "log"),
        (
            {"watches": (WatchStatus("llama", "poll", up=True, limit_reached=True, coverage=0.0),)},
            "Watch of llama", "polled", "fs.inotify.max_user_instances",
        ),
        (
            {"watches": (WatchStatus("llama", "inotify", up=True, limit_reached=True, coverage=0.9999),)},
            "Watch of llama", "watch limit reached", "covers 99.9 % of its directories",
        ),
        (
            {"watches": (WatchStatus("llama", "inotify", up=True, watched_directories=9, truncated=True),)},
            "Watch of llama", "too many directories", "are not seen",
        ),
        ({"counters": WatchCounters(dropped=2)}, "File events", "2 dropped", "rates over time are coarser"),
        ({"counters": WatchCounters(overflows=1)}, "File events", "1 overflow", "max_queued_events"),
        ({"gpu_backend": DOWN}, "GPUs", "nvml down", "nvidia-smi"),
        ({"gpu_backend": UNMAPPED}, "GPUs", "runs unknown", "hostPID"),
        ({"gpus": GPUS}, "GPU 1", "down", "Xid"),
        ({"gpus": (replace(GPUS[0], quality="low"),)}, "GPU 0", "low quality", "GPM counters or power"),
        ({"sources_healthy": {"storage": False}}, "Source storage", "stopped", "restart the exporter"),
        ({"config": ConfigStatus(successful=False)}, "Configuration", "reload failed", "SIGHUP"),
        ({"recording": RecordingStatus("disk full")}, "Recording", "stopped", "ended early: disk full."),
    ],
)  # fmt: skip
def test_a_broken_source_says_so_on_top_and_what_to_do(
    change: dict[str, object], about: str, state: str, advice: str
) -> None:
    """Each broken source stands in the table and on top, with its state and what to do about it."""
    broken = replace(HEALTHY, **change)
    assert source(broken, about)[0] == state
    assert advice in source(broken, about)[1]
    text = outline(broken).text
    assert "1 thing needs attention" in text
    assert text.count(source(broken, about)[1]) == 2


def test_a_full_file_system_needs_attention() -> None:
    """0 free bytes: the next save has no room."""
    full = replace(HEALTHY, storage=(StorageStatus("llama", None, available_bytes=0, size_bytes=10),))
    assert "The next save has no room." in " ".join(outline(full).text)
    unknown = replace(HEALTHY, storage=(StorageStatus("llama"),))
    assert "Nothing needs attention" in outline(unknown).text


def test_what_is_switched_off_is_no_problem() -> None:
    """No GPUs and no recording are said, and need no attention."""
    plain = replace(HEALTHY, gpu_backend=None, gpus=(), recording=None)
    assert source(plain, "GPUs")[0] == "not measured"
    assert source(plain, "Recording")[0] == "off"
    assert "Nothing needs attention" in outline(plain).text


def test_several_problems_are_counted() -> None:
    """Two broken sources are two things, and the tab's title says so first."""
    broken = replace(HEALTHY, gpu_backend=DOWN, config=ConfigStatus(successful=False))
    text = outline(broken).text
    assert "2 things need attention" in text
    assert "(2) ckpt-exporter" in text


def _colours(block: str) -> dict[str, tuple[float, ...]]:
    found = re.findall(r"--([a-z-]+): #([0-9a-f]{6})", block)
    return {name: tuple(int(value[i : i + 2], 16) / 255 for i in (0, 2, 4)) for name, value in found}


def _luminance(colour: tuple[float, ...]) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(first: tuple[float, ...], second: tuple[float, ...]) -> float:
    low, high = sorted((_luminance(first), _luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_shapes_have_enough_contrast(scheme: str) -> None:
    """In light and dark, text has the 4.5 of WCAG AA on what it stands on, and curves have 3."""
    light, dark = STYLE.split("prefers-color-scheme: dark", 1)
    colours = _colours(light) if scheme == "light" else _colours(dark)
    for text in ("ink", "soft", "link"):
        for ground in ("page", "card"):
            assert _contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for level in ("good", "busy", "warn", "bad", "plain"):
        assert _contrast(colours[level], colours[f"{level}-bg"]) >= 4.5, level
    for shape in ("activity", "rate", "save", "bubble"):
        assert _contrast(colours[shape], colours["card"]) >= 3, shape
