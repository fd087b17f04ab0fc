"""Recordings of GPUs and files through ``replay``: what its JSON says of bubbles, against the known truth."""

from __future__ import annotations

import json
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from ckpt_exporter.replay import run_replay
from tests.gpu_profiles import Profile, Stop, job, replace, save
from tests.gpu_recordings import recorded, write_recording

ALL = tuple(range(8))
OTHERS = ALL[1:]
REPOSITORY = Path(__file__).resolve().parents[2]
BUBBLE_KEYS = (
    "bubble_seconds", "bubble_gpu_seconds", "bubble_phases", "dip_start", "dip_end", "depth", "source",
    "quality",
)  # fmt: skip


def tolerance(truth: float) -> float:
    return max(0.3, 0.02 * truth)


def rank_0_writes(start: float, end: float) -> tuple[Stop, ...]:
    """Rank 0 does no GPU work while it writes, the others spin in a collective."""
    return Stop((0,), start, end, "idle"), Stop(OTHERS, start, end, "spin")


def run_of(gpus: tuple[int, ...], t: float, *, pid: int = 7, directory: str = "d") -> Any:
    """Tell of a run at the first sign of its save."""
    return (job(gpus, pids=(pid,), directory=directory, t=t),)


# Save of 37 s whose dip begins 1 s before the first byte and ends 2 s after the last.
SPIN = Profile(
    "spin", 300, stops=rank_0_writes(150.3, 190.3), saves=(save(151.3, 188.3),), writers=run_of(ALL, 151.6)
)  # fmt: skip


@pytest.fixture
def replayed(tmp_path: Path) -> Any:
    """Record a profile, replay it, and return the JSON."""

    def run(profile: Profile, **more: bool) -> dict[str, Any]:
        recording = write_recording(tmp_path / "recording.jsonl", recorded(profile, **more))
        stdout = StringIO()
        assert run_replay(str(recording), None, "json", stdout) == 0
        result: dict[str, Any] = json.loads(stdout.getvalue())
        return result

    return run


def only_save(result: dict[str, Any]) -> dict[str, Any]:
    (found,) = result["saves"]
    assert found["result"] == "complete"
    return dict(found)


def check(
    result: dict[str, Any], each: float, edges: tuple[float, float], gpus: tuple[int, ...] = ALL
) -> None:
    """Check that one save cost each of ``gpus`` so many seconds between two moments, and no other GPU any."""
    found = only_save(result)
    assert found["quality"] == "high"
    assert found["bubble_seconds"] == pytest.approx(each, abs=tolerance(each))
    assert found["bubble_gpu_seconds"] == pytest.approx(each * len(gpus), abs=tolerance(each) * len(gpus))
    assert sum(found["bubble_phases"].values()) == pytest.approx(found["bubble_seconds"])
    assert found["dip_start"] == pytest.approx(edges[0], abs=0.3)
    assert found["dip_end"] == pytest.approx(edges[1], abs=0.3)
    by_gpu = {line["gpu"]: line for line in result["gpu"]}
    assert sorted(by_gpu) == list(ALL)
    for gpu, line in by_gpu.items():
        truth = each if gpu in gpus else 0.0
        assert line["bubble_seconds"] == pytest.approx(truth, abs=tolerance(truth) if truth else 0.0)
    total = sum(line["bubble_seconds"] for line in by_gpu.values())
    assert total == pytest.approx(found["bubble_gpu_seconds"])


def phases(before: float, writing: float, gap: float, after: float) -> Any:
    expected = {"before_write": before, "writing": writing, "write_gap": gap, "after_write": after}
    return pytest.approx(expected, abs=0.5)


def observed(result: dict[str, Any]) -> list[float]:
    return [line["observed_seconds"] for line in result["gpu"]]


def no_bubble(result: dict[str, Any]) -> None:
    found = only_save(result)
    assert [found[key] for key in BUBBLE_KEYS] == [None] * len(BUBBLE_KEYS)
    assert all(line["bubble_seconds"] == 0 for line in result["gpu"])


def test_ranks_that_spin_pay_like_the_rank_that_writes(replayed: Any) -> None:
    """Seven GPUs at 100 % utilisation and 28 % power, waiting for rank 0: all eight lose the 40 s."""
    result = replayed(SPIN)

    check(result, 40.0, (150.3, 190.3))
    found = only_save(result)
    assert (found["start"], found["end"], found["step"]) == (151.3, 188.3, 1)
    assert found["bubble_phases"] == phases(1.0, 37.0, 0.0, 2.0)
    assert found["depth"] == pytest.approx(1.0, abs=0.02)
    assert found["source"] == "power"
    assert result["stalls"] == []
    # Work is recognised from the first readings on; the run is known by its GPUs from its first save on.
    assert observed(result) == pytest.approx([300.0] * 8, rel=0.05)


def test_the_program_prints_what_the_library_returns(tmp_path: Path, replayed: Any) -> None:
    """``ckpt-exporter replay FILE --format=json`` prints the bubble of each save."""
    recording = write_recording(tmp_path / "by-hand.jsonl", recorded(SPIN))
    command = [sys.executable, "-m", "ckpt_exporter", "replay", str(recording), "--format=json"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=True)

    check(json.loads(done.stdout), 40.0, (150.3, 190.3))
    assert json.loads(done.stdout) == replayed(SPIN)


def test_performance_counters_are_preferred(replayed: Any) -> None:
    """Where lines have ``sm``, ``tensor`` and ``dram``, they give the same 40 s, as source ``gpm``."""
    result = replayed(replace(SPIN, gpm=True))

    check(result, 40.0, (150.3, 190.3))
    assert only_save(result)["source"] == "gpm"


def test_asynchronous_save_costs_what_it_blocks(replayed: Any) -> None:
    """A save that blocks for 0.5 s and writes for 60 s at 5 % drag costs 0.5 s, with the drag beside it."""
    stops = (Stop(ALL, 150.0, 150.5, "idle"), Stop(ALL, 150.5, 210.5, "slow", 0.05))
    profile = Profile("async", 400, stops=stops, saves=(save(150.5, 210.5),), writers=run_of(ALL, 150.8))
    result = replayed(profile)

    check(result, 0.5, (150.0, 150.5))
    assert only_save(result)["duration_seconds"] == pytest.approx(60.0)
    assert result["stalls"] == []
    # 5 % of 60 s, within a fifth.
    assert [line["drag_seconds"] for line in result["gpu"]] == pytest.approx([3.0] * 8, abs=0.6)


def test_staging_before_the_first_byte_and_barrier_after_the_last(replayed: Any) -> None:
    """40 s of staging, 30 s of writing and 5 s of barrier are 75 s of bubble, split by phase."""
    stops = rank_0_writes(150.2, 225.2)
    profile = Profile("staging", 400, stops=stops, saves=(save(190.2, 220.2),), writers=run_of(ALL, 190.5))
    result = replayed(profile)

    check(result, 75.0, (150.2, 225.2))
    assert only_save(result)["bubble_phases"] == phases(40.0, 30.0, 0.0, 5.0)
    assert result["stalls"] == []


def test_pauses_while_writing_are_told_apart(replayed: Any) -> None:
    """Of 50 s, 23 s see bytes flow and 25 s lie between them."""
    flow = ((151.2, 160.2), (175.2, 180.2), (190.2, 199.2))
    saves = (save(151.2, 199.2, flow=flow),)
    profile = Profile(
        "pauses", 400, stops=rank_0_writes(150.2, 200.2), saves=saves, writers=run_of(ALL, 151.5)
    )
    result = replayed(profile)

    check(result, 50.0, (150.2, 200.2))
    # Bytes are looked for each 0.25 s: three stretches begin or end up to so much late.
    assert only_save(result)["bubble_phases"] == pytest.approx(
        {"before_write": 1.0, "writing": 23.0, "write_gap": 25.0, "after_write": 1.0}, abs=1.0
    )


def test_a_crash_without_files_is_a_stall(replayed: Any) -> None:
    """All GPUs at nothing for 230 s with no file written: no save, no bubble, one other stall on each."""
    profile = Profile("crash", 600, stops=(Stop(ALL, 200, 430, "idle"),), writers=run_of(ALL, 1.0))
    result = replayed(profile)

    assert result["saves"] == []
    assert sorted(stall["gpu"] for stall in result["stalls"]) == list(ALL)
    for stall in result["stalls"]:
        assert stall["cause"] == "other"
        assert stall["seconds"] == pytest.approx(230.0, rel=0.02)
        assert (stall["start"], stall["end"]) == pytest.approx((200.0, 430.0), abs=0.3)
    assert all(line["bubble_seconds"] == 0 for line in result["gpu"])
    assert all(set(line["stall_seconds"]) == {"other"} for line in result["gpu"])


def test_a_gpu_lost_in_mid_save(replayed: Any) -> None:
    """A GPU that can't be read any more is not part of the mean, and its time is not observed."""
    result = replayed(replace(SPIN, errors={3: 170.3}))
    found = only_save(result)

    assert found["quality"] == "low"
    assert found["bubble_seconds"] == pytest.approx(40.0, abs=0.8)
    by_gpu = {line["gpu"]: line for line in result["gpu"]}
    # Seen from 150.3 to 170.3.
    assert by_gpu[3]["bubble_seconds"] == pytest.approx(20.0, abs=1.0)
    assert by_gpu[3]["observed_seconds"] == pytest.approx(170.3, rel=0.08)
    for gpu in set(ALL) - {3}:
        assert by_gpu[gpu]["bubble_seconds"] == pytest.approx(40.0, abs=0.8)


def test_no_gpu_lines_no_bubble(replayed: Any) -> None:
    """A recording without GPU lines has saves with every bubble key null, and no GPUs."""
    result = replayed(SPIN, gpus=False)

    no_bubble(result)
    assert result["gpu"] == []
    assert only_save(result)["duration_seconds"] == pytest.approx(37.0)


def test_utilisation_alone_is_low_quality(replayed: Any) -> None:
    """With utilisation as the only key, the rank at 0 % tells for those that wait for it, at low quality."""
    found = only_save(replayed(replace(SPIN, power=False, memory=False)))

    assert (found["source"], found["quality"]) == ("utilization", "low")
    assert found["bubble_seconds"] == pytest.approx(40.0, rel=0.05)


def test_utilisation_alone_is_silent_where_every_rank_spins(replayed: Any) -> None:
    """With utilisation alone and all GPUs spinning, 0 s would be wrong: null."""
    stops = (Stop(ALL, 150.3, 190.3),)

    no_bubble(replayed(replace(SPIN, stops=stops, power=False, memory=False)))


def test_two_jobs_of_which_one_saves(replayed: Any) -> None:
    """GPUs of the job that does not save pay nothing; when they stop for another reason, that is a stall."""
    stops = (Stop(ALL[:4], 150.3, 190.3), Stop((4, 5), 160.3, 170.3))
    writers = (*run_of(ALL[:4], 151.6), *run_of(ALL[4:], 1.0, pid=8, directory="e"))
    profile = Profile("jobs", 300, stops=stops, saves=(save(151.3, 188.3),), writers=writers)
    result = replayed(profile)

    check(result, 40.0, (150.3, 190.3), ALL[:4])
    assert {stall["gpu"]: stall["cause"] for stall in result["stalls"]} == dict.fromkeys(
        (4, 5), "communication"
    )
    for stall in result["stalls"]:
        assert stall["seconds"] == pytest.approx(10.0, abs=0.3)


@pytest.mark.parametrize("seen", [1.0, 151.6])
def test_the_process_that_wrote_tells_whose_gpus_pay(tmp_path: Path, seen: float) -> None:
    """Two runs below one directory: a save is paid by the GPUs of the run whose process wrote it."""
    writers = (*run_of(ALL[:4], seen), *run_of(ALL[4:], 2.0, pid=8, directory="e"))
    stops, saves = (Stop(ALL, 150.3, 190.3),), (save(151.3, 188.3),)
    lines = list(recorded(Profile("one", 300, stops=stops, saves=saves, writers=writers)))
    lines[0]["directories"] = [{"name": "d", "path": "/data/d"}]
    stdout = StringIO()
    run_replay(str(write_recording(tmp_path / "one.jsonl", lines)), None, "json", stdout)
    result = json.loads(stdout.getvalue())

    check(result, 40.0, (150.3, 190.3), ALL[:4])
    assert {stall["gpu"] for stall in result["stalls"]} == set(ALL[4:])


def test_run_told_before_its_directory_is_known_pays_for_its_save(tmp_path: Path) -> None:
    """A run line without a directory, long before the first file, is joined with the save by its process."""
    stops, saves = rank_0_writes(150.3, 190.3), (save(151.3, 188.3),)
    lines = list(recorded(Profile("early", 300, stops=stops, saves=saves, writers=run_of(ALL, 1.0))))
    lines[0]["directories"] = [{"name": n, "path": f"/data/{n}"} for n in ("d", "e")]
    stdout = StringIO()

    assert run_replay(str(write_recording(tmp_path / "r.jsonl", lines)), None, "json", stdout) == 0

    assert only_save(json.loads(stdout.getvalue()))["bubble_seconds"] == pytest.approx(40.0, abs=0.8)
