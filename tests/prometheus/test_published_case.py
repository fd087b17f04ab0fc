"""A published case at 1:1 in recorded time, from simulated readings to every answer that a user can ask for.

Saves: 8 GPUs, 10,000 steps, a save of 65.6 GB each 500 steps. With saves of 178 s (a local NVMe drive) the
run takes 36,000 s; saves of 94 s (an NVMe-oF array) make it 20 x 84 s shorter: 34,320 s. So the shares are
20 x 178 / 36,000 = 9.9 % and 20 x 94 / 34,320 = 5.5 %, and the time saved is 1,680 / 36,000 = 4.7 %.

The two other bubbles are set by hand: in each of 20 cycles all GPUs wait 6 x 9 s for data (1,080 s or 3.0 %
of 36,000 s) and spin 4 x 9 s in a gradient exchange (720 s or 2.0 %).

Loads: after the run the node serves the model: six cold loads, from NFS in 131.2 s each (0.5 GB/s), from
NVMe-oF 6.2 to 9.3 times as fast, and one from the page cache, which tells nothing of either.

GPUs are read once a second here, half as often as live, to keep this short. All of it is a simulation: it
checks the arithmetic from facts to answers, and proves nothing about real storage.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import merge
from itertools import chain
from operator import attrgetter
from statistics import median
from typing import Any

import pytest

from ckpt_exporter.cli import main
from ckpt_exporter.history.recorder import HistoryRecorder, Place
from ckpt_exporter.ledger import Ledger
from ckpt_exporter.model import (
    Bubble,
    DetectSettings,
    DirectorySettings,
    Fact,
    GpuStatus,
    Load,
    Mount,
    ReadEvent,
    Reading,
    Save,
    Stall,
    StorageStatus,
    Writers,
)
from ckpt_exporter.recording import parse_recording
from tests.gpu_profiles import Profile, Reader, Stop, gpu_set, job, replace, save, ticks
from tests.gpu_recordings import UNIX, file_lines
from tests.integration.prometheus import Prometheus, backfill, serving

pytestmark = pytest.mark.timeout(600)

ALL = tuple(range(8))
SAVES, STEPS_PER_SAVE = 20, 500
SAVE_BYTES = 65_600_000_000
# What no storage makes shorter: the part f of 178 = f + v and 94 = f + v / 1.96, after the last byte.
FIXED_SECONDS = 6.5
# What is left of the slower run is training.
TRAINING_SECONDS = (36_000.0 - SAVES * 178.0) / SAVES
# The run ends with its last save; how long it is watched from then on.
AFTERWARDS_SECONDS = 120.0
SCRAPE_SECONDS = 15.0
WINDOW = "10h"


# The other two bubbles, in every cycle of training and saving: waits of all GPUs, clear of the saves.
DATA_WAITS, EXCHANGES, WAIT_SECONDS = 6, 4, 9.0
FIRST_WAIT_SECONDS, WAIT_EVERY_SECONDS = 100.0, 130.0
NFS_LOAD_SECONDS = 131.2
LOADS_FASTER = (6.2, 6.8, 7.4, 8.0, 8.6, 9.3)
CACHED_LOAD_SECONDS = 8.0


@dataclass(frozen=True)
class Arm:
    """Where one run saves to and where its model is served from."""

    name: str
    save_seconds: float
    save_mount: Mount
    load_seconds: tuple[float, ...]
    load_mount: Mount


SLOW = Arm(
    "slow", 178.0, Mount("/data/d", "nvme0n1", "xfs", "nvme-pcie"),
    (NFS_LOAD_SECONDS,) * 6, Mount("/data/models", "filer:/models", "nfs4", "nfs", shared=True),
)  # fmt: skip
FAST = Arm(
    "fast", 94.0, Mount("/data/d", "nvme1n1", "xfs", "nvme-rdma"),
    tuple(NFS_LOAD_SECONDS / faster for faster in LOADS_FASTER),
    Mount("/data/models", "nvme1n2", "xfs", "nvme-rdma"),
)  # fmt: skip


@dataclass
class Run:
    """One training from its first step to its end, as the ledger saw it."""

    arm: Arm
    history: str
    saves: list[Save] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    exposition: list[tuple[float, tuple[GpuStatus, ...]]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return SAVES * (TRAINING_SECONDS + self.arm.save_seconds)

    @property
    def asked_at_unix(self) -> float:
        return UNIX + self.seconds + AFTERWARDS_SECONDS


def profile_of(arm: Arm) -> Profile:
    """Tell a run: rank 0 writes while seven others spin, 20 times; then its processes are gone."""
    stops: list[Stop] = []
    saves: list[Save] = []
    for number in range(1, SAVES + 1):
        end = number * (TRAINING_SECONDS + arm.save_seconds)
        start = end - arm.save_seconds
        stops += waits(start - TRAINING_SECONDS)
        stops += [Stop((0,), start, end, "idle"), Stop(ALL[1:], start, end, "spin")]
        step = number * STEPS_PER_SAVE
        flow = ((start, end - FIXED_SECONDS),)
        saves.append(replace(save(start, end, name=f"step-{step}", flow=flow), bytes=SAVE_BYTES, step=step))
    watched = end + AFTERWARDS_SECONDS
    stops.append(Stop(ALL, end, watched + 1.0, "off"))
    gone = replace(job(ALL, t=end), alive=False)
    writers = (*(job(ALL, t=s.start + 0.3) for s in saves), gone)
    return Profile(arm.name, watched, stops=tuple(stops), saves=tuple(saves), writers=writers, hz=1.0)


def waits(begin: float) -> Iterator[Stop]:
    """Yield the waits of one cycle: first those for data, without a kernel, then those that spin."""
    for i in range(DATA_WAITS + EXCHANGES):
        start = begin + FIRST_WAIT_SECONDS + i * WAIT_EVERY_SECONDS
        yield Stop(ALL, start, start + WAIT_SECONDS, "idle" if i < DATA_WAITS else "spin")


def load_facts(begin: float, seconds: float, *, cached: bool) -> Iterator[Fact]:
    """Tell how one process reads a checkpoint of eight files, one after the other, at an even rate."""
    size, share = SAVE_BYTES // 8, seconds / 8
    for i in range(8):
        path, start = f"/data/models/step-10000/model-0000{i + 1}-of-00008.safetensors", begin + i * share
        yield ReadEvent(start, path, "open", size=size)
        yield ReadEvent(start, path, "look", size=size, cached_bytes=size * cached, visible=True)
        for part in range(5):
            t, done = start + share * part / 4, size * i + size * part // 4
            yield Reading(t, path, 70, size, rchar=done, wchar=0, read_bytes=0 if cached else done,
                          command="python", held=part < 4)  # fmt: skip
        yield ReadEvent(start + share, path, "close")


def serving_facts(arm: Arm, begin: float) -> Iterator[Fact]:
    """Tell the loads after a run: the cold ones, then one from the page cache."""
    t = begin
    for seconds in arm.load_seconds:
        yield from load_facts(t, seconds, cached=False)
        t += seconds + 60.0
    yield from load_facts(t, CACHED_LOAD_SECONDS, cached=True)


def facts_of(profile: Profile) -> Iterator[Fact]:
    """Return a run's facts in time order."""
    rng = random.Random(profile.seed)
    readers = [Reader(profile, gpu, rng) for gpu in ALL]
    samples: Iterator[Fact] = (reader.read(t) for t in ticks(profile, rng) for reader in readers)
    lines = chain.from_iterable(file_lines(s, shards=8, pace_seconds=3.5) for s in profile.saves)
    files: Iterator[Fact] = parse_recording(map(json.dumps, lines), "files")  # type: ignore[assignment]
    writers: Iterator[Writers] = iter(profile.writers)
    return merge(samples, files, writers, key=attrgetter("t"))


def run(arm: Arm, history: str) -> Run:
    """Let the ledger see a whole run, scraping it as a Prometheus would and keeping its history."""
    profile, result, now = profile_of(arm), Run(arm, history), 0.0

    def on_cost(cost: Bubble | Stall) -> None:
        recorder.add_bubble(cost) if isinstance(cost, Bubble) else recorder.add_stall(cost)

    def on_save(ended: Save) -> None:
        result.saves.append(ended)
        recorder.add_save(ended)

    def on_load(ended: Load) -> None:
        result.loads.append(ended)
        recorder.add_load(ended)

    ledger = Ledger(
        (DirectorySettings("d", "/data/d"), DirectorySettings("models", "/data/models")),
        DetectSettings(), unix_minus_t=UNIX, on_save=on_save, on_bubble=on_cost, on_load=on_load,
    )  # fmt: skip
    recorder = HistoryRecorder(Place(history, arm.name, 1e9, 1 << 30), ledger, clock=lambda: now)
    recorder.start()
    ledger.set_storage(StorageStatus("d", arm.save_mount))
    ledger.set_storage(StorageStatus("models", arm.load_mount))
    ledger.feed(gpu_set(profile))
    next_scrape = 0.0
    for fact in facts_of(profile):
        while fact.t > next_scrape:
            result.exposition.append((next_scrape, ledger.snapshot(next_scrape).gpus))
            next_scrape += SCRAPE_SECONDS
        now = fact.t
        ledger.feed(fact)
    result.exposition.append((next_scrape, ledger.snapshot(next_scrape).gpus))
    for fact in serving_facts(arm, profile.seconds + 60.0):
        now = fact.t
        ledger.tick(now)
        ledger.feed(fact)
    ledger.tick(now + 100.0)
    ledger.finish(now + 100.0)
    recorder.stop(timeout_seconds=60.0)
    return result


def openmetrics(runs: tuple[Run, ...]) -> Iterator[str]:
    """Write what was scraped, with timestamps; each run is an instance of its own."""
    yield "# TYPE ckpt_gpu_bubble_seconds counter\n"
    for a_run in runs:
        for t, gpus in a_run.exposition:
            for gpu in gpus:
                labels = f'dir="d",gpu="{gpu.info.gpu}",uuid="{gpu.info.uuid}",instance="{a_run.arm.name}"'
                value = gpu.bubble_seconds.get("d", 0.0)
                yield f"ckpt_gpu_bubble_seconds_total{{{labels}}} {value!r} {UNIX + t}\n"
    yield "# TYPE ckpt_gpu_observed_seconds counter\n"
    for a_run in runs:
        for t, gpus in a_run.exposition:
            for gpu in gpus:
                labels = f'gpu="{gpu.info.gpu}",uuid="{gpu.info.uuid}",instance="{a_run.arm.name}"'
                yield f"ckpt_gpu_observed_seconds_total{{{labels}}} {gpu.observed_seconds!r} {UNIX + t}\n"
    yield "# EOF\n"


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(SLOW, str(tmp_path_factory.mktemp("slow") / "history.db"))


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(FAST, str(tmp_path_factory.mktemp("fast") / "history.db"))


@pytest.fixture(scope="module")
def prometheus(slow: Run, fast: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    base = tmp_path_factory.mktemp("published")
    scraped = base / "scraped.txt"
    with scraped.open("w", encoding="utf-8") as stream:
        stream.writelines(openmetrics((slow, fast)))
    backfill(scraped, base / "data")
    with serving(base / "data") as server:
        yield server


def bubble_share(instance: str) -> str:
    """Return the query of a dashboard.

    ``increase`` stretches what it sees to the window's ends: by one scrape interval in 36,000 s, and for
    a counter that appeared at 0 inside the window not at all. Both counters are stretched alike, so their
    quotient is exact. What a window does cut is a save: its cost arrives at once when its dip is over, so the
    share of a window is known to one save in those that it holds.
    """
    bubble = f'sum(increase(ckpt_gpu_bubble_seconds_total{{instance="{instance}"}}[{WINDOW}]))'
    observed = f'sum(increase(ckpt_gpu_observed_seconds_total{{instance="{instance}"}}[{WINDOW}]))'
    return f"{bubble} / {observed}"


@pytest.mark.parametrize(("name", "duration_seconds"), [("slow", 178.0), ("fast", 94.0)])
def test_every_save_is_measured(name: str, duration_seconds: float, request: pytest.FixtureRequest) -> None:
    """Twenty saves of 65.6 GB have their step, bytes, duration and bandwidth."""
    a_run: Run = request.getfixturevalue(name)

    assert [found.step for found in a_run.saves] == list(range(500, 10_001, 500))
    assert {found.result for found in a_run.saves} == {"complete"}
    for found in a_run.saves:
        assert found.bytes == SAVE_BYTES
        assert found.duration_seconds == pytest.approx(duration_seconds, abs=0.001)
        assert found.average_bandwidth == pytest.approx(SAVE_BYTES / duration_seconds, rel=0.001)


@pytest.mark.parametrize(("name", "duration_seconds"), [("slow", 178.0), ("fast", 94.0)])
def test_every_gpu_pays_for_every_save(
    name: str, duration_seconds: float, request: pytest.FixtureRequest
) -> None:
    """Each GPU's counters hold 20 saves' bubbles within 2 %, and all of the run's time, no more."""
    a_run: Run = request.getfixturevalue(name)
    _, gpus = a_run.exposition[-1]

    assert len(gpus) == 8
    for gpu in gpus:
        assert gpu.bubble_seconds["d"] == pytest.approx(SAVES * duration_seconds, rel=0.02)
        assert gpu.observed_seconds == pytest.approx(a_run.seconds, rel=0.002)
        assert set(gpu.stall_seconds) == {"checkpoint_save", "data_loading", "communication"}
        assert gpu.stall_seconds["data_loading"] == pytest.approx(SAVES * 6 * 9.0, rel=0.02)
        assert gpu.stall_seconds["communication"] == pytest.approx(SAVES * 4 * 9.0, rel=0.02)


def test_bubble_share_with_slow_saves(prometheus: Prometheus, slow: Run) -> None:
    """Saves of 178 s cost 9.9 % of the GPU time."""
    assert prometheus.value(bubble_share("slow"), slow.asked_at_unix) == pytest.approx(0.099, abs=0.001)


def test_bubble_share_with_fast_saves(prometheus: Prometheus, fast: Run) -> None:
    """Saves of 94 s cost 5.5 % of the GPU time."""
    assert prometheus.value(bubble_share("fast"), fast.asked_at_unix) == pytest.approx(0.055, abs=0.001)


def test_time_saved(prometheus: Prometheus, slow: Run) -> None:
    """The run with faster saves takes 4.7 % less time, by the counters of observed time."""
    taken = 'avg(last_over_time(ckpt_gpu_observed_seconds_total{{instance="{}"}}[{}]))'
    query = f"1 - {taken.format('fast', WINDOW)} / {taken.format('slow', WINDOW)}"

    assert prometheus.value(query, slow.asked_at_unix) == pytest.approx(0.047, abs=0.001)


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> Any:
    """Run one command as a user would and return its JSON."""
    capsys.readouterr()
    assert main([*arguments, "--format=json"]) == status
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("name", "seconds"), [("slow", SLOW.load_seconds), ("fast", FAST.load_seconds)])
def test_every_load_is_measured(
    name: str, seconds: tuple[float, ...], request: pytest.FixtureRequest
) -> None:
    """Six cold loads and one from the page cache have their bytes, duration and cached share."""
    loads = request.getfixturevalue(name).loads

    assert [load.duration_seconds for load in loads] == pytest.approx(
        [*seconds, CACHED_LOAD_SECONDS], abs=0.01
    )
    assert {load.bytes for load in loads} == {SAVE_BYTES}
    assert [load.cached_ratio for load in loads] == [0.0] * 6 + [1.0]


def test_report_tells_the_three_bubbles(slow: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """The report of the slow run: saves 9.9 % of the GPU time, waiting for data 3.0 %, for others 2.0 %."""
    told = answer(capsys, "report", f"--history={slow.history}", "--dir=d")

    assert told["saves"]["results"] == {"complete": 20, "incomplete": 0, "aborted": 0}
    assert told["duration_seconds"]["median"] == pytest.approx(178.0, abs=0.01)
    assert told["bubble"]["share"] == pytest.approx(0.0989, abs=0.0005)
    # What no storage makes shorter comes after the last byte: 6.5 s of each save.
    assert told["phases"]["after_write"]["seconds"] == pytest.approx(SAVES * FIXED_SECONDS, rel=0.02)
    parts = told["gpu_time"]["parts"]
    assert {name: round(part["share"], 3) for name, part in parts.items()} == {
        "checkpoint_save": 0.099, "data_loading": 0.03, "communication": 0.02, "checkpoint_load": 0.0,
        "other": 0.0, "at_work": 0.851,
    }  # fmt: skip
    assert told["faster_storage"]["at_most_seconds"] == pytest.approx(SAVES * 171.5, rel=0.02)


def test_projection_from_the_slow_run(slow: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """From the slow run and x1.96 its bandwidth the fast run follows: 94 s a save, 5.5 %, 47 of 1,000."""
    told = answer(
        capsys,
        "project",
        f"--history={slow.history}",
        "--dir=d",
        "--to-bandwidth=0.75GB/s",
        "--cluster-gpus=1000",
    )["then"]

    assert told["save_seconds"] == pytest.approx(94.0, abs=0.1)
    assert told["save_seconds_reduction_share"] == pytest.approx(0.47, abs=0.005)
    assert told["bubble_share_of_own_run"] == pytest.approx(0.0548, abs=0.0003)
    assert told["bubble_share_of_todays_run"] == pytest.approx(0.0522, abs=0.0003)
    assert told["saved_share"] == pytest.approx(0.0467, abs=0.0003)
    assert told["more_steps_share"] == pytest.approx(0.049, abs=0.0005)
    assert told["cluster_gpus_worth"] == pytest.approx(46.5, abs=0.5)


def test_comparison_of_the_two(slow: Run, fast: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Saves are x1.89 as fast on x1.96 the bandwidth, loads x6.2 to x9.3; of the gates that of 5 % fails."""
    told = answer(capsys, "compare", slow.history, fast.history, "--gate=G3", "--gate=G5", status=1)

    found = {**told["quantities"], **told["loads"]["quantities"]}
    gains = {name: quantity["gain"] for name, quantity in found.items()}
    assert gains["duration_seconds"]["estimate"] == pytest.approx(178 / 94, rel=0.001)
    assert gains["sustained_bandwidth"]["estimate"] == pytest.approx(1.96, rel=0.001)
    loads = gains["load_duration_seconds"]
    assert [loads[bound] for bound in ("low", "high")] == pytest.approx([LOADS_FASTER[0], LOADS_FASTER[-1]])
    assert loads["estimate"] == pytest.approx(NFS_LOAD_SECONDS / median(FAST.load_seconds))
    assert (told["loads"]["candidate"]["from_storage"], told["loads"]["candidate"]["cached"]) == (6, 1)
    saves, from_storage = told["gates"]
    verdicts = {check["name"]: check["verdict"] for check in saves["checks"]}
    assert verdicts["duration against the baseline"] == "pass"
    assert verdicts["bubble share"] == "fail"
    assert {check["name"]: check["evidence"] for check in from_storage["checks"]} == {
        "loads from storage": "6 (1 from the page cache, left out)",
        "load duration against the baseline": "x7.69 (x6.20 to x9.30)",
    }
    assert from_storage["verdict"] == "pass"
