"""The comparison itself: it must find every wrong number and let right ones pass."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from framework_truth import (
    MeasuredSave,
    Truth,
    parse_replay,
    parse_truths,
    save_differences,
    total_differences,
)

TRUTHS = [
    Truth(step=100, duration_seconds=10.0, bytes=400, files=3, end_unix=1010.0),
    Truth(step=200, duration_seconds=1.0, bytes=500, files=2, end_unix=1020.0),
]
SAVES = [
    MeasuredSave(
        step=100, result="complete", reason=None, duration_seconds=10.1, bytes=400, files=3, end=10.0
    ),
    MeasuredSave(
        step=200, result="complete", reason=None, duration_seconds=0.96, bytes=500, files=2, end=20.0
    ),
]
SCRAPE = {
    ("ckpt_saves_total", "complete"): 2.0,
    ("ckpt_saves_total", "incomplete"): 0.0,
    ("ckpt_saves_total", "aborted"): 0.0,
    ("ckpt_save_bytes_total", ""): 900.0,
    ("ckpt_save_files_total", ""): 5.0,
    ("ckpt_save_duration_seconds_count", ""): 2.0,
    ("ckpt_saves_in_progress", ""): 0.0,
    ("ckpt_last_save_bytes", ""): 500.0,
    ("ckpt_last_save_files", ""): 2.0,
    ("ckpt_last_save_step", ""): 200.0,
    ("ckpt_written_bytes_total", ""): 927.0,
}


def test_saves_within_tolerance_are_right() -> None:
    """1 % of ten seconds and 50 ms of one second are both let through."""
    assert save_differences(TRUTHS, SAVES) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"step": 101}, "step 101 instead of 100"),
        ({"bytes": 401}, "bytes 401 instead of 400"),
        ({"files": 4}, "files 4 instead of 3"),
        ({"duration_seconds": 10.11}, "duration 10.110 s instead of 10.000 s, off by +0.110 s"),
        ({"duration_seconds": None}, "duration None instead of 10.0"),
        (
            {"result": "incomplete", "reason": "no commit"},
            "result incomplete (no commit) instead of complete",
        ),
    ],
)
def test_a_wrong_number_of_a_save_is_named(change: dict[str, object], said: str) -> None:
    """Each wrong value of a save gives one line with the save, what was got and what was expected."""
    assert save_differences(TRUTHS, [replace(SAVES[0], **change), SAVES[1]]) == [f"save 1 (step 100): {said}"]


def test_a_missing_save_is_named_by_its_step() -> None:
    """A save that was missed is reported alone; the others are still compared with their own step."""
    assert save_differences(TRUTHS, SAVES[1:]) == [
        "1 saves instead of 2: [(200, 'complete', None)]",
        "save 1 (step 100): missing",
    ]


def test_a_duration_nobody_can_know_must_be_absent() -> None:
    """A checkpoint that appeared by a rename has no duration; a made-up one is wrong."""
    renamed = [replace(TRUTHS[0], duration_seconds=None)]
    assert save_differences(renamed, [replace(SAVES[0], duration_seconds=None)]) == []
    assert save_differences(renamed, SAVES[:1]) == ["save 1 (step 100): duration 10.1 instead of None"]


def test_right_totals_pass() -> None:
    """Totals that add up to the writer's saves, with live bytes within 3 %, give no line."""
    assert total_differences(TRUTHS, SCRAPE) == []


@pytest.mark.parametrize("sample", sorted(SCRAPE))
def test_a_wrong_or_missing_total_is_named(sample: tuple[str, str]) -> None:
    """Every checked sample is reported when its value is off and when it is not there at all."""
    missing = {name: value for name, value in SCRAPE.items() if name != sample}
    for scrape in (missing, SCRAPE | {sample: SCRAPE[sample] + 100}):
        (line,) = total_differences(TRUTHS, scrape)
        assert line.startswith(sample[0])


def test_a_step_that_no_name_tells_must_be_absent() -> None:
    """The step gauge may not show an older step when the last save has none."""
    nameless = [TRUTHS[0], replace(TRUTHS[1], step=None)]
    (line,) = total_differences(nameless, SCRAPE)
    assert line == "ckpt_last_save_step{}: 200.0 instead of None"


def test_replay_output_is_read_per_directory_in_order_of_end() -> None:
    """Only the watched directory's saves are read, with unknown values as None, sorted by their end."""
    row = {
        "step": 2,
        "layout": "generic",
        "result": "complete",
        "reason": None,
        "start": 1.0,
        "bytes": 9,
        "files": 1,
    }
    rows = [
        row | {"dir": "fw", "end": 5.0, "duration_seconds": 4.0},
        row | {"dir": "other", "end": 4.0, "duration_seconds": 3.0},
        row | {"dir": "fw", "end": 3.0, "duration_seconds": None, "step": None},
    ]
    saves = parse_replay(json.dumps({"saves": rows, "stalls": [], "gpu": []}), "fw")
    assert [(save.step, save.end, save.duration_seconds) for save in saves] == [
        (None, 3.0, None),
        (2, 5.0, 4.0),
    ]


def test_writer_output_is_read_in_order_of_end() -> None:
    """Truth lines are sorted by their end, and what a framework prints between them is passed over."""
    row = {
        "path": "p",
        "start_unix": 0.0,
        "duration_seconds": 1.0,
        "bytes": 1,
        "files": 1,
        "call_seconds": 1.0,
    }
    lines = [json.dumps({"step": step, "end_unix": end} | row) for step, end in ((2, 8.0), (1, 7.0))]
    lines.insert(1, "{'loss': 2.5}")
    assert [truth.step for truth in parse_truths("\n".join(lines) + "\n")] == [1, 2]
