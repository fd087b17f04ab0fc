"""A published case at 1:1 in recorded time: what faster saves are worth, as a dashboard would ask for it.

8 GPUs, 10,000 steps, a save of 65.6 GB each 500 steps. With saves of 178 s the run takes 36,000 s; saves of
94 s instead make it 20 x 84 s shorter: 34,320 s. So the shares are 20 x 178 / 36,000 = 9.9 % and
20 x 94 / 34,320 = 5.5 %, and the time saved is 1,680 / 36,000 = 4.7 %.

GPUs are read once a second here, half as often as live, to keep this short.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import chain
from operator import attrgetter

import pytest

from ckpt_exporter.ledger import Ledger
from ckpt_exporter.model import DetectSettings, DirectorySettings, Fact, GpuStatus, Save, Writers
from ckpt_exporter.recording import parse_recording
from tests.gpu_profiles import Profile, Reader, Stop, gpu_set, job, replace, save, ticks
from tests.gpu_recordings import UNIX, file_lines
from tests.integration.prometheus import Prometheus, backfill, serving

pytestmark = pytest.mark.timeout(300)

ALL = tuple(range(8))
SAVES, STEPS_PER_SAVE = 20, 500
SAVE_BYTES = 65_600_000_000
# What is left of the slower run is training.
TRAINING_SECONDS = (36_000.0 - SAVES * 178.0) / SAVES
# The run ends with its last save; how long it is watched from then on.
AFTERWARDS_SECONDS = 120.0
SCRAPE_SECONDS = 15.0
WINDOW = "10h"


@dataclass
class Run:
    """One training from its first step to its end, as the ledger saw it."""

    name: str
    save_seconds: float
    ledger: Ledger
    saves: list[Save]
    exposition: list[tuple[float, tuple[GpuStatus, ...]]]

    @property
    def seconds(self) -> float:
        return SAVES * (TRAINING_SECONDS + self.save_seconds)

    @property
    def asked_at_unix(self) -> float:
        return UNIX + self.seconds + AFTERWARDS_SECONDS


def profile_of(name: str, save_seconds: float) -> Profile:
    """Tell a run: rank 0 writes while seven others spin, 20 times; then its processes are gone."""
    stops: list[Stop] = []
    saves: list[Save] = []
    for number in range(1, SAVES + 1):
        end = number * (TRAINING_SECONDS + save_seconds)
        start = end - save_seconds
        stops += [Stop((0,), start, end, "idle"), Stop(ALL[1:], start, end, "spin")]
        step = number * STEPS_PER_SAVE
        saves.append(replace(save(start, end, name=f"step-{step}"), bytes=SAVE_BYTES, step=step))
    watched = end + AFTERWARDS_SECONDS
    stops.append(Stop(ALL, end, watched + 1.0, "off"))
    gone = replace(job(ALL, t=end), alive=False)
    writers = (*(job(ALL, t=s.start + 0.3) for s in saves), gone)
    return Profile(name, watched, stops=tuple(stops), saves=tuple(saves), writers=writers, hz=1.0)


def facts_of(profile: Profile) -> Iterator[Fact]:
    """Return a run's facts in time order."""
    rng = random.Random(profile.seed)
    readers = [Reader(profile, gpu, rng) for gpu in ALL]
    samples: Iterator[Fact] = (reader.read(t) for t in ticks(profile, rng) for reader in readers)
    lines = chain.from_iterable(file_lines(s, shards=8, pace_seconds=5.0) for s in profile.saves)
    files: Iterator[Fact] = parse_recording(map(json.dumps, lines), "files")  # type: ignore[assignment]
    writers: Iterator[Writers] = iter(profile.writers)
    return merge(samples, files, writers, key=attrgetter("t"))


def run(name: str, save_seconds: float) -> Run:
    """Let the ledger see a whole run, scraping it as a Prometheus would."""
    profile, saves = profile_of(name, save_seconds), list[Save]()
    ledger = Ledger(
        (DirectorySettings("d", "/data/d"),), DetectSettings(), unix_minus_t=UNIX, on_save=saves.append
    )
    ledger.feed(gpu_set(profile))
    result, next_scrape = Run(name, save_seconds, ledger, saves, []), 0.0
    for fact in facts_of(profile):
        while fact.t > next_scrape:
            result.exposition.append((next_scrape, ledger.snapshot(next_scrape).gpus))
            next_scrape += SCRAPE_SECONDS
        ledger.feed(fact)
    result.exposition.append((next_scrape, ledger.snapshot(next_scrape).gpus))
    return result


def openmetrics(runs: tuple[Run, ...]) -> Iterator[str]:
    """Write what was scraped, with timestamps; each run is an instance of its own."""
    yield "# TYPE ckpt_gpu_bubble_seconds counter\n"
    for a_run in runs:
        for t, gpus in a_run.exposition:
            for gpu in gpus:
                labels = f'dir="d",gpu="{gpu.info.gpu}",uuid="{gpu.info.uuid}",instance="{a_run.name}"'
                value = gpu.bubble_seconds.get("d", 0.0)
                yield f"ckpt_gpu_bubble_seconds_total{{{labels}}} {value!r} {UNIX + t}\n"
    yield "# TYPE ckpt_gpu_observed_seconds counter\n"
    for a_run in runs:
        for t, gpus in a_run.exposition:
            for gpu in gpus:
                labels = f'gpu="{gpu.info.gpu}",uuid="{gpu.info.uuid}",instance="{a_run.name}"'
                yield f"ckpt_gpu_observed_seconds_total{{{labels}}} {gpu.observed_seconds!r} {UNIX + t}\n"
    yield "# EOF\n"


@pytest.fixture(scope="module")
def slow() -> Run:
    return run("slow", 178.0)


@pytest.fixture(scope="module")
def fast() -> Run:
    return run("fast", 94.0)


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
        assert set(gpu.stall_seconds) == {"checkpoint_save"}


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
