"""The same saves on the status page and in the report: the same figures, in the same words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckpt_exporter.analysis import numbers
from ckpt_exporter.analysis.render import render
from ckpt_exporter.analysis.report import Scope
from ckpt_exporter.analysis.report_document import report
from ckpt_exporter.history.gathering import save_record, with_bubble
from ckpt_exporter.history.records import GpuTimeRecord, Measurements
from ckpt_exporter.model import RecentSave
from ckpt_exporter.web.pages import units
from tests.unit.export_sample import LAST_BUBBLE, LAST_SAVE, sample_snapshot
from tests.unit.page_outline import outline

UNIX = 1_764_460_800.0


def test_one_save_on_both() -> None:
    """Size, bandwidths, bubble and its phases of the sample's last save read alike."""
    save, bubble = replace(LAST_SAVE, duration_seconds=12.34), LAST_BUBBLE
    entry = replace(
        sample_snapshot().directories[0],
        last_save=save, last_bubble=bubble, recent=(RecentSave(save, bubble),), open_saves=(),
    )  # fmt: skip
    page = outline(replace(sample_snapshot(), directories=(entry,))).rows
    record = with_bubble(save_record(save, "n1", UNIX, run=None, mount=None), bubble, UNIX)
    hours = (GpuTimeRecord("n1", 0, "GPU-0", int(UNIX), 1500.0),)
    measured = Measurements("by hand", record.start_unix, record.end_unix, (record,), hours)
    told = " ".join(render(report(measured, Scope()), "markdown").split())

    rows = {row[0]: row[1] for row in page if len(row) == 2}
    for name in ("Duration", "Average bandwidth", "Sustained bandwidth", "Peak bandwidth"):
        assert f"| {name.lower()} | {rows[name]} |" in told
    assert f"| bubble | {rows['Mean of its GPUs']} |" in told
    for phase in ("Before the first byte", "While bytes flowed", "After the last byte"):
        assert f"| {phase.lower()} | {rows[phase]} |" in told, phase
    assert rows["Size"].startswith("65.0 GB in 16 files")
    assert "65.0 GB in 16 files" in told


def test_a_save_that_is_not_complete() -> None:
    """Why it is not is said in the same words."""
    save = replace(LAST_SAVE, result="incomplete", reason="no_commit")
    entry = replace(sample_snapshot().directories[0], recent=(RecentSave(save),), open_saves=())
    page = " ".join(" ".join(outline(replace(sample_snapshot(), directories=(entry,))).text).split())
    record = save_record(save, "n1", UNIX, run=None, mount=None)
    measured = Measurements("by hand", record.start_unix, record.end_unix, (record,))
    told = " ".join(render(report(measured, Scope()), "markdown").split())

    for text in (page, told):
        assert "it was never committed, and its writers are gone" in text


@pytest.mark.parametrize(
    "value", [99_949_999.0, 1e8, 368_540_000.0, 999_499_999.0, 999.6e6, 3.26e9, 12.345e9]
)
def test_bandwidths(value: float) -> None:
    """A bandwidth has the same unit and the same digits on both."""
    assert units.bandwidth_text(value) == numbers.bandwidth_text(value)


@pytest.mark.parametrize("value", [1.0, 1.584, 9.99, 12.34, 59.9])
def test_durations(value: float) -> None:
    """A duration below a minute has the same digits on both."""
    assert units.duration_text(value) == numbers.seconds_text(value)


@pytest.mark.parametrize("value", [0.0, 0.0312, 0.098889, 0.5])
def test_shares(value: float) -> None:
    """A bubble share has the same digits on both."""
    assert units.share_text(value) == numbers.percent_text(value)
