"""Where GPU time went: the parts, worked out by hand, in every format."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ckpt_exporter.analysis.gpu_shares import gpu_shares_data
from ckpt_exporter.analysis.render import render
from ckpt_exporter.analysis.report import Scope, report_data
from ckpt_exporter.analysis.report_document import report
from ckpt_exporter.history.records import GpuTimeRecord, Measurements
from tests.history_samples import LOAD, MIDNIGHT, STALL, published_case

# Of each GPU's hour: 36 s waiting for data, 72 s for other ranks, 18 s loading, 9 s for no known reason.
LOST = {"data_loading": 36.0, "communication": 72.0, "checkpoint_load": 18.0, "other": 9.0}


def case() -> Measurements:
    """Return the published case with stalls beside its saves, in every hour of its eight GPUs."""
    found = published_case()
    hours = tuple(replace(hour, stall_seconds={**LOST, "checkpoint_save": 356.0}) for hour in found.gpu_time)
    return replace(found, gpu_time=hours)


def test_parts_of_the_published_case() -> None:
    """The bubble is 9.89 %; the others 1, 2, 0.5 and 0.25 % of 288,000 GPU-seconds; the rest is work."""
    found = report_data(case(), Scope())["gpu_time"]

    assert found["observed_gpu_seconds"] == 288_000
    seconds = {name: part["gpu_seconds"] for name, part in found["parts"].items()}
    assert seconds == pytest.approx(
        {"checkpoint_save": 28_480, "data_loading": 2_880, "communication": 5_760, "checkpoint_load": 1_440,
         "other": 720, "at_work": 248_720}
    )  # fmt: skip
    assert sum(part["share"] for part in found["parts"].values()) == pytest.approx(1.0)


def test_what_people_read() -> None:
    """Table, sentence and picture are in every format, and the three bubbles come first."""
    document = report(case(), Scope())
    markdown = " ".join(render(document, "markdown").split())

    for part in (
        "## Where GPU time went",
        "checkpoint saves 9.89 %, data loading 1.00 %, gradient synchronisation 2.00 %; 86.36 % were left",
        "| checkpoint saves | 7.91 | 9.89 % | measured |", "| data loading | 0.800 | 1.00 % | unknown |",
        "| at work | 69.1 | 86.36 % | |",
    ):  # fmt: skip
        assert part in markdown, part
    table = render(document, "table")
    (bar,) = [line for line in table.splitlines() if line.startswith("|#")]
    # Of 78 marks the parts end at 7.7, 8.49, 10.05, 10.4, 10.6 and 78: data and loads are below half a mark.
    assert bar == "|" + "#" * 8 + ":" * 2 + "%" + "~" * 67 + "|"
    page = render(document, "html")
    (figure,) = [part for part in page.split("<figure>") if "<figcaption>Observed GPU time" in part]
    for name in ("checkpoint saves: 9.89 %", "gradient synchronisation: 2.00 %", "at work: 86.4 %"):
        assert f"<title>{name}</title>" in figure
    assert json.loads(render(document, "json"))["gpu_time"]["parts"]["at_work"]["gpu_seconds"] == 248_720


def test_of_one_directory() -> None:
    """Of a part of the saves only the GPUs that it stopped are the measure."""
    elsewhere = GpuTimeRecord("n1", 9, "GPU-9", MIDNIGHT, 3600.0, {"other": 3600.0})
    measured = replace(case(), gpu_time=(*case().gpu_time, elsewhere))

    assert report_data(measured, Scope())["gpu_time"]["observed_gpu_seconds"] == 291_600
    found = report_data(measured, Scope(directory="llama"))["gpu_time"]
    assert (found["observed_gpu_seconds"], found["parts"]["other"]["gpu_seconds"]) == (288_000, 720)


def test_what_is_not_known() -> None:
    """Saves without a figure leave their own part and the work unknown; without GPU time there is none."""
    hours = (GpuTimeRecord("n1", 0, "GPU-0", MIDNIGHT, 3600.0, {"data_loading": 36.0}),)
    found = gpu_shares_data(hours, (), None)
    assert found is not None

    assert found["parts"]["checkpoint_save"] == {"gpu_seconds": None, "share": None, "confidence": None}
    assert found["parts"]["at_work"]["gpu_seconds"] is None
    assert found["parts"]["data_loading"]["share"] == pytest.approx(0.01)
    assert gpu_shares_data((), (STALL,), None) is None
    assert "Where GPU time" not in render(report(replace(case(), gpu_time=()), Scope()), "table")


def test_of_a_node_that_only_loads() -> None:
    """Without saves they cost nothing, and loads stand beside the work."""
    hours = (GpuTimeRecord("n1", 0, "GPU-0", MIDNIGHT, 3600.0, {"checkpoint_load": 36.0}),)
    measured = Measurements("by hand", MIDNIGHT, MIDNIGHT + 3600.0, (), hours, loads=(LOAD,))
    parts = report_data(measured, Scope())["gpu_time"]["parts"]

    assert (parts["checkpoint_save"]["gpu_seconds"], parts["at_work"]["gpu_seconds"]) == (0.0, 3564.0)


def test_confidence_by_seconds() -> None:
    """Stalls of 9 s with high and 3 s with low confidence are 75 % and 25 %; one with none is in neither."""
    stalls = tuple(
        replace(STALL, cause="data_loading", seconds=seconds, confidence=confidence)
        for seconds, confidence in ((9.0, "high"), (3.0, "low"), (100.0, None))
    )
    found = report_data(replace(case(), stalls=stalls), Scope())["gpu_time"]

    assert found["parts"]["data_loading"]["confidence"] == {"high": 0.75, "medium": 0.0, "low": 0.25}
    assert found["parts"]["communication"]["confidence"] is None
    page = " ".join(render(report(replace(case(), stalls=stalls), Scope()), "markdown").split())
    assert "| data loading | 0.800 | 1.00 % | high 75 %, low 25 % |" in page
