"""Loads and stalls in the report; every number is derived by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ckpt_exporter.analysis.loads import loads_data
from ckpt_exporter.analysis.render import render
from ckpt_exporter.analysis.report import Scope
from ckpt_exporter.analysis.report_document import report
from ckpt_exporter.analysis.stalls import episodes_data
from ckpt_exporter.history.records import LoadRecord, StallRecord
from tests.history_samples import LOAD, MIDNIGHT, STALL, published_case

GB = 1_000_000_000


def load(gigabytes: int, seconds: float, cached_ratio: float | None) -> LoadRecord:
    end = MIDNIGHT + seconds
    return replace(
        LOAD, bytes=gigabytes * GB, start_unix=float(MIDNIGHT), end_unix=end, duration_seconds=seconds,
        cached_ratio=cached_ratio,
    )  # fmt: skip


# At 1, 10, 0.5 and 2 GB/s.
LOADS = (load(10, 10.0, 0.0), load(10, 1.0, 1.0), load(20, 40.0, 0.05), load(10, 5.0, None))


def text_of(*loads: LoadRecord, stalls: tuple[StallRecord, ...] = ()) -> str:
    """Return the report of the published case with some loads and stalls, as one line."""
    document = report(replace(published_case(), loads=loads, stalls=stalls), Scope())
    return " ".join(render(document, "markdown").split())


def test_numbers_of_loads() -> None:
    """Durations, bytes and bandwidths are those of all loads; from storage only what hardly was cached."""
    data = loads_data(LOADS)
    assert data is not None

    assert data["count"] == 4
    durations, speeds, storage = (
        data[key] for key in ("duration_seconds", "bandwidth", "storage_bandwidth")
    )  # fmt: skip
    # 1, 5, 10, 40: the 95th percentile lies 0.85 of the way from the third to the fourth.
    assert (durations["median"], durations["worst"]) == (7.5, 40.0)
    assert durations["p95"] == pytest.approx(35.5)
    assert data["bytes"] == {"median": 10 * GB, "largest": 20 * GB, "total": 50 * GB, "files": 16}
    assert (speeds["known"], speeds["median"], speeds["worst"]) == (4, 1.5 * GB, 0.5 * GB)
    assert speeds["p5"] == pytest.approx(0.575 * GB)  # 0.15 of the way from 0.5 to 1
    assert (storage["known"], storage["median"], storage["worst"]) == (2, 0.75 * GB, 0.5 * GB)


def test_cached_share() -> None:
    """The cached share is one of bytes, over the loads of which it is known: 0 + 10 + 1 of 40 GB."""
    data = loads_data(LOADS)
    assert data is not None

    assert data["cached"] == {"known": 3, "mostly_cached": 1, "share": pytest.approx(0.275)}
    unknown = loads_data(LOADS[3:])
    assert unknown is not None
    assert unknown["cached"] == {"known": 0, "mostly_cached": 0, "share": None}


@pytest.mark.parametrize("seconds", [0.0, 1e-320])
def test_a_load_without_a_duration(seconds: float) -> None:
    """A load that took no measurable time has no bandwidth, rather than an endless one."""
    data = loads_data((load(10, seconds, 0.0),))
    assert data is not None

    assert (data["bandwidth"]["known"], data["storage_bandwidth"]["known"]) == (0, 0)
    assert "bandwidth as readers" not in text_of(load(10, 0.0, 0.0))


def test_what_people_read_of_loads() -> None:
    """The table keeps what readers saw apart from storage, and says how many loads the cache served."""
    text = text_of(*LOADS)

    for part in (
        "## Loads", "4 loads on the nodes, 50.0 GB in 16 files; 10.0 GB each (median).",
        "| duration | 7.50 s | 35.5 s | 40.0 s |",
        "| bandwidth as readers saw it | 1.50 GB/s | 0.575 GB/s | 0.500 GB/s |",
        "| bandwidth from storage | 0.750 GB/s |",
        "1 load came mostly from it, which tells nothing of storage.",
        "that of 2 loads with less than 10 % from the cache.", "Of 1 it is not known how much was cached.",
    ):  # fmt: skip
        assert part in text, part


def test_cached_loads_are_not_sold_as_storage() -> None:
    """Where the cache served the loads no bandwidth of storage is given, and that is said."""
    text = text_of(LOADS[1], LOADS[3])

    assert "bandwidth from storage" not in text
    assert "No load is known to have come from storage, so how fast that reads is not known." in text


def test_cold_starts() -> None:
    """Cold starts of 15, 25 and 60 s with 55 s of loading in them, in every format; of one there is none."""
    starts = (15.0, None, 60.0, 25.0)
    told = tuple(replace(a_load, cold_start_seconds=s) for a_load, s in zip(LOADS, starts, strict=True))
    document = report(replace(published_case(), loads=told), Scope())
    cold = json.loads(render(document, "json"))["loads"]["cold_start"]

    assert (cold["seconds"]["known"], cold["seconds"]["median"], cold["seconds"]["worst"]) == (3, 25.0, 60.0)
    # 15 - 10, 60 - 40 and 25 - 5 s; 55 of 100 s were loading.
    assert (cold["after_load_seconds"]["median"], cold["loading_share"]) == (20.0, pytest.approx(0.55))
    said = (
        "to the first work of the GPUs: 25.0 s (median), 60.0 s at worst. Loading took 55 % of it: ",
        "GPUs began after 20.0 s (median). Of 1 load no work of GPUs followed that is known.",
    )
    for kind in ("table", "markdown", "html"):
        text = " ".join(render(document, kind).split())
        assert all(part in text for part in said), (kind, text)
    # 0.9 of the way from 25 to 60.
    assert "| cold start | 25.0 s | 56.5 s | 60.0 s |" in " ".join(render(document, "markdown").split())


def test_no_cold_start() -> None:
    """Without the first work of GPUs there is no line about it, and null in the data."""
    loads = tuple(replace(a_load, cold_start_seconds=None) for a_load in LOADS)
    document = report(replace(published_case(), loads=loads), Scope())

    assert document.data["loads"]["cold_start"] is None
    assert "old start" not in render(document, "html")


def test_numbers_of_stalls() -> None:
    """By cause there are the stalls, the GPUs they were on, and their GPU-seconds; others are left out."""
    stalls = (
        replace(STALL, gpu=0, seconds=2.0), replace(STALL, gpu=0, seconds=6.0),
        replace(STALL, gpu=1, seconds=4.0), replace(STALL, node="n2", cause="communication", seconds=3600.0),
    )  # fmt: skip
    data = episodes_data(stalls)
    assert data is not None

    assert set(data) == {"data_loading", "communication"}
    waits = data["data_loading"]
    assert (waits["count"], waits["gpus"]) == (3, 2)
    assert [waits["seconds"][key] for key in ("median", "worst", "total")] == [4.0, 6.0, 12.0]
    assert waits["seconds"]["p95"] == pytest.approx(5.8)  # 0.9 of the way from 4 to 6
    text = text_of(stalls=stalls)
    assert "## Stalls by cause" in text
    assert "| waiting for data | 3 | 2 | 0.00333 | 4.00 s | 5.80 s | 6.00 s |" in text
    assert "| waiting for other ranks | 1 | 1 | 1.00 | 3,600 s | 3,600 s | 3,600 s |" in text


def test_nothing_kept() -> None:
    """Without loads and stalls there is no section; the data says unknown, not zero."""
    document = report(published_case(), Scope())
    text = render(document, "markdown")

    assert (document.data["loads"], document.data["stall_episodes"]) == (None, None)
    assert "Loads" not in text
    assert "Stalls" not in text
