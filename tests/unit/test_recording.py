"""Recordings: out, back in, and with damage."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt_exporter.errors import CkptExporterError
from ckpt_exporter.ledger import Ledger
from ckpt_exporter.model import (
    DetectSettings,
    DirectorySettings,
    Fact,
    FileEvent,
    GpuSample,
    HostEvidence,
    Progress,
    Quiet,
    RemoteFile,
    RemoteLook,
    Save,
    Space,
    WatchChange,
    Writers,
)
from ckpt_exporter.recording import Recorder, Start, Stop, parse_recording
from ckpt_exporter.replay import as_json, as_table, replay

DIRECTORY = DirectorySettings("llama", "/data/ckpt", ignore=("*.x",))
FACTS: list[Fact] = [
    FileEvent(1.0, "create", "/data/ckpt/a\udcff\n", size=0, inode="8:1:7", started=0.9),
    FileEvent(1.5, "moved", None, to="/data/ckpt/b", size=7),
    Progress(2.0, "/data/ckpt/b", 10, allocated=4096, position=5, writers=1, method="data"),
    Writers(2.5, "llama", (1, 2), run="job", scheduler="slurm", run_id="77", commands=("python",)),
    Space(3.0, "llama", 0, 100),
    WatchChange(4.0, "llama", "overflow"),
    RemoteFile(
        5.0, "moved", "/data/ckpt/t", "llama", 4.0, to="/data/ckpt/u", is_dir=True, changed_unix=1e9 + 0.25
    ),
    RemoteLook(5.5, "llama", since=4.5, unix=1764470405.0),
    HostEvidence(6.0, 5.0, (0, 1), processes=9, cpu_seconds=0.5, waiting=0, read_bytes=7, pressure_of="run"),
    Quiet(6.5),
]


def recorded(facts: list[Fact]) -> list[str]:
    stream = io.StringIO()
    recorder = Recorder(stream)
    recorder.start(0.5, 1764470400.0, [DIRECTORY])
    for fact in facts:
        recorder.write(fact)
    recorder.stop(9.0, timeout_seconds=10)
    return stream.getvalue().splitlines(keepends=True)


def test_facts_come_back_as_they_were() -> None:
    """What was recorded reads back as the same facts, with any file name."""
    assert list(parse_recording(recorded(FACTS), "r")) == [
        Start(0.5, 1764470400.0, (DIRECTORY,)),
        *FACTS,
        Stop(9.0),
    ]


def test_lines_use_the_short_keys_and_leave_out_what_is_unknown() -> None:
    """A line holds `dir` for directories and no key that the source does not have."""
    lines = [json.loads(line) for line in recorded([FileEvent(1.0, "create", "/data/ckpt/d", is_dir=True)])]

    assert lines[1] == {"t": 1.0, "kind": "file", "event": "create", "path": "/data/ckpt/d", "dir": True}


@given(st.integers(1, 400))
def test_damaged_last_line_is_skipped(cut: int) -> None:
    """A recording cut off anywhere in its last lines gives all the whole lines before."""
    text = "".join(recorded(FACTS))
    kept = text[: max(len(recorded([])[0]), len(text) - cut)]

    facts = list(parse_recording(kept.splitlines(), "r"))

    assert facts == [Start(0.5, 1764470400.0, (DIRECTORY,)), *FACTS, Stop(9.0)][: len(facts)]


def test_unknown_kinds_and_keys_are_skipped() -> None:
    """A recording of a newer version still replays."""
    lines = [
        '{"t": 1, "kind": "weather", "rain": 0}',
        '{"t": 2, "kind": "space", "name": "d", "available": 1, "size": 2, "x": 3}',
    ]

    assert list(parse_recording(lines, "r")) == [Space(2.0, "d", 1, 2)]


@pytest.mark.parametrize(
    "line",
    [
        {"t": 1, "kind": "file", "event": "create", "path": 5},
        {"t": 1, "kind": "file", "event": "explode", "path": "/data/ckpt/x"},
        {"t": 1, "kind": "file", "event": "moved", "path": "/data/ckpt/x", "to": 7},
        {"t": 1, "kind": "progress", "path": "/data/ckpt/x", "size": "big"},
        {"t": 1, "kind": "progress", "path": "/data/ckpt/x", "size": 1, "writers": True},
        {"t": 1, "kind": "gpu", "gpu": "a", "util": 0.5},
        {"t": 1, "kind": "gpu", "gpu": 0, "power_w": [1]},
        {"t": 1, "kind": "gpu", "gpu": 0, "power_w": float("nan")},
        {"t": float("inf"), "kind": "gpu", "gpu": 0},
        {"t": 1, "kind": "run", "pids": "4711"},
        {"t": 1, "kind": "run", "pids": [4711], "gpus": 3},
        {"t": 1, "kind": "gpus", "gpus": [{"gpu": "0", "uuid": "x"}]},
        {"t": 1, "kind": "watch", "name": "d", "event": "asleep"},
    ],
)
def test_values_of_the_wrong_kind_are_skipped(line: dict[str, object]) -> None:
    """A line that can be read but holds what its key cannot mean is damage, and changes nothing."""
    lines = [json.dumps(line), '{"t": 2, "kind": "space", "name": "d", "available": 1, "size": 2}']

    assert list(parse_recording(lines, "r")) == [Space(2.0, "d", 1, 2)]


def test_whole_numbers_are_numbers() -> None:
    """Times and readings without a fraction are as good as any."""
    assert list(parse_recording(['{"t": 1, "kind": "gpu", "gpu": 0, "util": 1, "power_w": 550}'], "r")) == [
        GpuSample(1.0, 0, util=1, power_w=550)
    ]


def test_file_that_is_no_recording_is_one_error() -> None:
    """Something else given as a recording is told in one line."""
    with pytest.raises(CkptExporterError, match="not a recording"):
        list(parse_recording(["hello", "{}"], "r"))


def test_full_disk_ends_the_recording_only() -> None:
    """When the disk is full the recorder says so and takes further facts without an error."""

    class Full(io.StringIO):
        def write(self, _text: str) -> int:
            raise OSError(28, "No space left on device")

    recorder = Recorder(Full())
    recorder.start(0.0, 0.0, [DIRECTORY])
    recorder.stop(1.0, timeout_seconds=10)
    recorder.write(FACTS[0])

    assert recorder.failed is not None
    assert "No space left" in recorder.failed


WEIGHTS = "/data/ckpt/checkpoint-7/model.safetensors"


def test_a_save_that_ended_by_quiet_alone_is_in_a_recording_without_its_end(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """A save that nothing but passing time ended is in the replay of a recording that was cut after it.

    Weights alone may be all of a checkpoint, or what is written first of it: that only time tells.
    """
    facts: list[Fact] = []
    saves: list[Save] = []
    ledger = Ledger([DIRECTORY], DetectSettings(), on_save=saves.append, on_fact=facts.append)
    ledger.feed(FileEvent(1.0, "create", WEIGHTS, size=0))
    ledger.feed(FileEvent(2.0, "close_write", WEIGHTS, size=5_000_000))
    for t in range(3, 200):
        ledger.tick(float(t))
    path = tmp_path / "r.jsonl"
    path.write_text("".join(recorded(facts)[:-1]))

    assert [(save.step, save.end) for save in saves] == [(7, 2.0)]
    assert [(save.step, save.end) for save in replay(str(path), DetectSettings()).saves] == [(7, 2.0)]


OPTIMIZER = "/data/ckpt/checkpoint-500/optimizer.pt"
STATE = "/data/ckpt/checkpoint-500/trainer_state.json"
LOOK = {"kind": "progress", "path": OPTIMIZER, "size": 4 * 10**9, "allocated": 4 * 10**9, "writers": 1}
MINIMAL = [
    {
        "t": 0.0,
        "kind": "start",
        "unix": 1764470400.0,
        "directories": [{"name": "llama", "path": "/data/ckpt"}],
    },
    {"t": 12.1, "kind": "file", "event": "create", "path": OPTIMIZER, "pid": 4711},
    {"t": 13.0, **LOOK, "position": 10**9, "inode": "8:1:77"},
    {"t": 13.1, "kind": "gpu", "gpu": 0, "util": 0.92, "error": None},
    {"t": 13.1, "kind": "run", "gpus": [0], "pids": [4711], "run_id": "77"},
    {"t": 15.0, **LOOK, "position": 3 * 10**9, "inode": "8:1:77"},
    {"t": 16.1, "kind": "file", "event": "close_write", "path": OPTIMIZER},
    {"t": 16.2, "kind": "file", "event": "create", "path": STATE},
    {"t": 16.3, "kind": "file", "event": "close_write", "path": STATE},
    {"t": 60.0, "kind": "stop"},
]


def test_recording_with_nothing_but_the_named_keys_replays(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """A recording made by hand, with the format's own keys only, gives its save."""
    path = tmp_path / "r.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in MINIMAL))

    replayed = replay(str(path), DetectSettings())

    (save,) = as_json(replayed)["saves"]
    assert (save["dir"], save["step"], save["layout"], save["result"]) == (
        "llama",
        500,
        "hf_trainer",
        "complete",
    )
    assert (save["start"], save["end"], save["bytes"], save["files"]) == (12.1, 16.3, 4_000_000_000, 2)
    assert save["duration_seconds"] == pytest.approx(4.2)
    assert save["average_bandwidth"] == pytest.approx(4e9 / 4.2)
    # Bytes flowed from 12.1 to 16.1; one billion came in the first 0.9 s.
    assert save["sustained_bandwidth"] == pytest.approx(1e9)
    assert save["peak_bandwidth"] == pytest.approx(0.9 / 0.9 * 1e9 + 0.1 * 1e9)
    assert save["bubble_seconds"] is None
    assert replayed.saves[0].pids == (4711,)
    assert "500" in as_table(replayed)
