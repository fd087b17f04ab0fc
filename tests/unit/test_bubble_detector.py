"""The bubble detector's counters, identities, stalls and silences, on simulated GPUs."""

from __future__ import annotations

from dataclasses import replace as changed

import pytest

from ckpt_exporter.bubble.detector import BubbleDetector
from ckpt_exporter.model import GpuInfo, GpuSample, GpuSet, GpuStatus, Writers
from tests.gpu_profiles import Noise, Outcome, Profile, Stop, job, play, replace, save

TWO = (0, 1)


def two(*stops: Stop, **more: object) -> Profile:
    """Tell of two GPUs of one run without noise."""
    settings: dict[str, object] = {"writers": (job(TWO),), "noise": Noise(), "gpus": 2, **more}
    return Profile("two", settings.pop("seconds", 300.0), stops=stops, **settings)  # type: ignore[arg-type]


def stop(start: float, end: float, kind: str = "spin") -> Stop:
    return Stop(TWO, start, end, kind)


class Watched(BubbleDetector):
    """Keeps every status that a scrape at each tick would have seen."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[GpuStatus, ...]] = []

    def tick(self, now: float):  # type: ignore[no-untyped-def]
        out = super().tick(now)
        self.seen.append(self.statuses(now))
        return out


# --- counters -------------------------------------------------------------------------------------------


def test_a_bubble_enters_the_counters_when_it_is_handed_out_and_once() -> None:
    """Bubble, and stall of cause checkpoint_save, rise at once, by what the Bubble says, and never again."""
    detector = Watched()
    outcome = play(two(stop(150.0, 170.0), saves=(save(150.0, 170.0),)), detector)
    values = [statuses[0].bubble_seconds.get("d", 0.0) for statuses in detector.seen]
    assert set(values) == {0.0, outcome.bubble.gpu_seconds[0]}
    status = outcome.statuses()[0]
    assert status.stall_seconds == {"checkpoint_save": status.bubble_seconds["d"]}


def test_observed_time_grows_live() -> None:
    """While a run holds its GPUs, observed time is the time of readings, to a reading's distance."""
    detector = Watched()
    play(two(seconds=60.0), detector)
    for i, statuses in enumerate(detector.seen):
        assert statuses[1].observed_seconds == pytest.approx(i * 0.5, abs=0.6)


def test_gaps_of_the_sampler_are_not_observed() -> None:
    """10 s without readings are not observed, a reading missed now and then is bridged."""
    outcome = play(two(seconds=100.0, silences=((40.0, 50.0), (70.0, 70.9))))
    assert outcome.statuses()[0].observed_seconds == pytest.approx(89.5, abs=0.6)


def test_gpus_of_no_run_are_not_observed() -> None:
    """A GPU without processes and without a run is not part of training."""
    outcome = play(two(stop(0.0, 100.0, "off"), seconds=100.0, writers=()))
    assert [status.observed_seconds for status in outcome.statuses()] == [0.0, 0.0]


def counted_late(first: int | None, until: float, work_from: float, then: int = 1, **level: float) -> float:
    """Play 60 s in which a GPU works from a moment on, and its processes are first told at ``until``."""
    detector = BubbleDetector()
    busy = {"util": 0.92, "mem_util": 0.6, "power_w": 549.0, **level}
    for i in range(121):
        t = 100.0 + i / 2
        shown = busy if t >= work_from else {"util": 0.0, "mem_util": 0.0, "power_w": 70.0}
        detector.feed(GpuSample(t, 0, "GPU-0", processes=then if t >= until else first, **shown))
    return detector.statuses(160.0)[0].observed_seconds


def test_the_first_seconds_of_a_run_count_once_it_is_known_that_there_is_one() -> None:
    """A GPU that works from the first reading on, its process told 9.5 s later, was a run's all the 60 s."""
    assert counted_late(None, until=109.5, work_from=100.0) == pytest.approx(60.0, abs=0.01)


@pytest.mark.parametrize("first", [None, 0])
def test_a_run_that_begins_between_two_looks_for_processes(first: int | None) -> None:
    """Work from 120 s on, the process told at 129.5 s: of 60 s up to 160 s, 40 s are the run's."""
    assert counted_late(first, until=129.5, work_from=120.0) == pytest.approx(40.0, abs=0.6)


def test_what_nobody_did_is_nobodys() -> None:
    """Idling with no process told, utilisation stuck at 100 %, and work of which none is told, are no run."""
    assert counted_late(None, until=130.0, work_from=130.0) == pytest.approx(30.0, abs=0.6)
    latched = counted_late(0, until=130.0, work_from=100.0, util=1.0, mem_util=0.0)
    assert latched == pytest.approx(30.0, abs=0.6)
    assert counted_late(None, until=109.5, work_from=100.0, then=0) == 0.0


def test_without_any_knowledge_of_processes_work_makes_a_gpu_observed() -> None:
    """With neither processes nor writers known, GPUs count from their first seen work on, stops included."""
    profile = two(stop(150.0, 170.0), processes=False, writers=(), saves=(save(150.0, 170.0),))
    outcome = play(profile)
    assert outcome.statuses()[0].observed_seconds == pytest.approx(290.0, abs=10.0)
    assert outcome.bubble.notes == ("all_gpus",)
    assert outcome.bubble.seconds == pytest.approx(20.0, abs=0.3)


def test_a_run_that_ended_is_not_observed_any_more() -> None:
    """Once a run's processes are gone, its GPUs do not belong to a run."""
    gone = changed(job(TWO), t=100.0, alive=False)
    outcome = play(two(stop(100.0, 300.0, "off"), writers=(job(TWO), gone)))
    assert outcome.statuses()[0].observed_seconds == pytest.approx(100.0, abs=1.0)
    assert outcome.stalls == []


# --- identity -------------------------------------------------------------------------------------------


def test_counters_follow_the_uuid_when_indices_change() -> None:
    """After a driver restart with the order reversed, each GPU keeps its counters under its new index."""
    outcome = play(two(Stop((1,), 150.0, 170.0), saves=(save(150.0, 170.0),)))
    before = {status.info.uuid: status.bubble_seconds["d"] for status in outcome.statuses()}
    infos = (GpuInfo(0, "GPU-1", limit_w=700.0), GpuInfo(1, "GPU-0", limit_w=700.0))
    outcome.detector.feed(GpuSet(outcome.end, infos))
    outcome.detector.feed(GpuSample(outcome.end + 0.5, 0, util=0.92, power_w=549.0))
    after = outcome.detector.statuses(outcome.end + 0.5)
    assert [status.info.uuid for status in after] == ["GPU-1", "GPU-0"]
    assert {status.info.uuid: status.bubble_seconds["d"] for status in after} == before
    assert before["GPU-1"] == pytest.approx(20.0, abs=0.3)
    assert before["GPU-0"] == 0.0


def test_the_gpus_of_a_directory() -> None:
    """The run's GPUs are told by their present indices; unknown is not none."""
    detector = BubbleDetector()
    detector.feed(job((0, 1)))
    infos = tuple(GpuInfo(i, f"GPU-{i}") for i in range(4))
    detector.feed(GpuSet(1.0, infos))
    assert detector.gpus_of("d") == (0, 1)
    assert detector.gpus_of("elsewhere") is None
    detector.feed(Writers(2.0, "cpu", (9,), gpus=()))
    assert detector.gpus_of("cpu") == ()


def test_a_later_fact_without_gpus_does_not_forget_them() -> None:
    """What is known of a run's GPUs stays known when a look at its processes fails."""
    detector = BubbleDetector()
    detector.feed(GpuSet(0.0, (GpuInfo(0, "GPU-0"), GpuInfo(1, "GPU-1"))))
    detector.feed(job((1,)))
    detector.feed(changed(job((1,)), t=5.0, gpus=None))
    assert detector.gpus_of("d") == (1,)


# --- no figure ------------------------------------------------------------------------------------------


def test_without_gpus_a_save_is_skipped() -> None:
    """A node without GPUs gives each save a Bubble that says so."""
    detector = BubbleDetector()
    detector.save_began("d", "/data/d/step-1", 10.0)
    detector.save_ended(save(10.0, 20.0))
    assert detector.tick(20.0) == []
    (bubble,) = detector.tick(40.0)
    assert (bubble.skipped, bubble.seconds) == ("no_gpu", None)  # type: ignore[union-attr]


def test_a_run_without_gpus_makes_other_jobs_pay_nothing() -> None:
    """A save of a job that is known to hold no GPU is skipped, though GPUs of others stop."""
    writers = (Writers(0.0, "cpu", (9,), run_id="9", gpus=()), job(TWO))
    saves = (save(150.0, 170.0, directory="cpu", pids=(9,)),)
    assert play(two(stop(150.0, 170.0), writers=writers, saves=saves)).bubble.skipped == "no_gpu"


def test_files_that_came_late_give_no_second_bubble() -> None:
    """A save that only adds late files to one already counted costs nothing more."""
    late = save(200.0, 201.0, late=True)
    outcome = play(two(stop(150.0, 170.0), saves=(save(150.0, 170.0), late)))
    assert outcome.bubble.seconds == pytest.approx(20.0, abs=0.3)


def test_the_last_save_of_a_run() -> None:
    """A run that ends with its last save pays for it up to its end, at low quality, told at once."""
    stops = (stop(150.0, 170.0), stop(170.0, 300.0, "off"))
    detector = Watched()
    outcome = play(two(*stops, saves=(save(150.0, 170.0),), writers=()), detector)
    assert outcome.bubble.seconds == pytest.approx(20.0, abs=0.5)
    assert (outcome.bubble.quality, outcome.bubble.notes) == ("low", ("all_gpus", "not_recovered"))
    told = next(i for i, statuses in enumerate(detector.seen) if statuses[0].bubble_seconds)
    assert told * 0.5 < 185.0


def test_a_recording_that_ends_in_the_dip() -> None:
    """At the end of a recording what was seen of the dip is given, at low quality."""
    outcome = play(two(stop(150.0, 172.0), seconds=172.0, saves=(save(150.0, 170.0),)))
    assert outcome.bubble.seconds == pytest.approx(20.0, abs=0.6)
    assert outcome.bubble.quality == "low"


def test_stale_baseline() -> None:
    """A save right after another one, with no training between, is measured against the state before it."""
    stops = (stop(150.0, 170.0), stop(178.0, 198.0))
    saves = (save(150.0, 170.0), save(178.0, 198.0, name="step-2"))
    outcome = play(two(*stops, saves=saves))
    assert [bubble.seconds for bubble in outcome.bubbles] == pytest.approx([20.0, 20.0], abs=0.3)


def test_a_dip_near_no_save_is_not_its() -> None:
    """A stop that ended 30 s before a save's first byte is a stall, not its bubble."""
    outcome = play(two(stop(100.0, 120.0), stop(150.0, 170.0), saves=(save(150.0, 170.0),)))
    assert outcome.bubble.seconds == pytest.approx(20.0, abs=0.3)
    assert [(stall.gpu, stall.cause) for stall in outcome.stalls] == [
        (0, "communication"),
        (1, "communication"),
    ]


# --- stalls ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "seconds", "cause"),
    [("spin", 20.0, "communication"), ("idle", 20.0, "data_loading"), ("idle", 230.0, "other")],
)
def test_causes_of_stalls_outside_saves(kind: str, seconds: float, cause: str) -> None:
    """Spinning is communication, no kernels is data loading, minutes of it are something else."""
    outcome = play(two(stop(100.0, 100.0 + seconds, kind), seconds=500.0))
    assert [(stall.gpu, stall.cause) for stall in outcome.stalls] == [(0, cause), (1, cause)]
    for stall in outcome.stalls:
        assert (stall.start, stall.end) == pytest.approx((100.0, 100.0 + seconds), abs=0.3)
        assert stall.seconds == pytest.approx(seconds, abs=0.5)
    assert outcome.statuses()[0].stall_seconds == {cause: outcome.stalls[0].seconds}


@pytest.mark.parametrize(("until", "cause"), [(117.0, "checkpoint_load"), (107.0, "data_loading")])
def test_a_stop_while_a_checkpoint_is_loaded(until: float, cause: str) -> None:
    """Of a stop of 20 s a load takes 15 s: it is the cause; with 5 s it is not."""
    detector = Watched()
    detector.load_seen("d", 102.0, until)
    outcome = play(two(stop(100.0, 120.0, "idle")), detector)
    assert [(stall.gpu, stall.cause) for stall in outcome.stalls] == [(0, cause), (1, cause)]


def test_a_hang_is_told_at_the_end() -> None:
    """A stop that is still going on when the readings end is a stall up to there."""
    outcome = play(two(stop(100.0, 200.0), seconds=200.0))
    assert [stall.seconds for stall in outcome.stalls] == pytest.approx([99.5, 99.5], abs=1.0)


def test_a_stop_during_an_open_save_is_no_stall() -> None:
    """What happens while a save is open is that save's to judge, even if it never ends."""
    detector = BubbleDetector()
    detector.save_began("d", "/data/d/step-1", 100.0)
    outcome = play(two(stop(100.0, 120.0)), detector)
    assert (outcome.bubbles, outcome.stalls) == ([], [])


def test_a_stop_of_another_run_during_an_open_save_is_a_stall() -> None:
    """A save whose run is found after it began is no excuse for GPUs that its run does not hold."""
    detector = BubbleDetector()
    detector.save_began("d", "/data/d/step-1", 100.0)
    stops = (Stop((0,), 100.0, 120.0, "spin"), Stop((1,), 103.0, 109.0, "spin"))

    outcome = play(two(*stops, writers=(job((0,), t=101.0),)), detector)

    assert [(stall.gpu, stall.cause) for stall in outcome.stalls] == [(1, "communication")]
    assert outcome.stalls[0].seconds == pytest.approx(6.0, abs=0.5)


# --- live activity --------------------------------------------------------------------------------------


def activity_at(t: float, outcome: Outcome, detector: Watched) -> float | None:
    return detector.seen[round(t * 2)][0].activity


def test_activity_now() -> None:
    """Activity is unknown until there is a steady state, 1 in it, 0 while spinning at full utilisation."""
    detector = Watched()
    outcome = play(two(stop(100.0, 120.0)), detector)
    assert activity_at(5.0, outcome, detector) is None
    assert activity_at(60.0, outcome, detector) == pytest.approx(1.0, abs=0.01)
    assert activity_at(110.0, outcome, detector) == pytest.approx(0.0, abs=0.01)
    assert activity_at(130.0, outcome, detector) == pytest.approx(1.0, abs=0.01)


def test_a_new_steady_state_is_learned() -> None:
    """A job that does less than half of the earlier one's work becomes the steady state after minutes."""
    slow = Stop(TWO, 150.0, 600.0, "slow", 0.6)
    outcome = play(two(slow, seconds=600.0))
    assert outcome.statuses()[0].activity == pytest.approx(1.0, abs=0.02)


def test_a_gpu_that_comes_back_is_up_again() -> None:
    """An error makes a GPU not up and its readings unknown; the next good reading ends that."""
    outcome = play(two(seconds=60.0))
    detector = outcome.detector
    detector.feed(GpuSample(60.0, 0, "GPU-0", error="GPU is lost"))
    first = detector.statuses(60.0)[0]
    assert (first.up, first.activity, first.util) == (False, None, None)
    detector.feed(GpuSample(60.5, 0, "GPU-0", util=0.92, mem_util=0.6, power_w=549.0))
    first = detector.statuses(60.5)[0]
    assert (first.up, first.util) == (True, 0.92)
    assert first.activity == pytest.approx(1.0, abs=0.01)


def test_a_silent_gpu_is_not_up() -> None:
    """Without readings for longer than 10 s a GPU is not up."""
    outcome = play(two(seconds=60.0))
    assert [status.up for status in outcome.detector.statuses(65.0)] == [True, True]
    assert [status.up for status in outcome.detector.statuses(75.0)] == [False, False]


def test_memory_is_bounded() -> None:
    """After an hour only the last quarter of it is kept; a save that lasts makes it coarser."""
    detector = BubbleDetector()
    detector.save_began("d", "/data/d/step-1", 10.0)
    play(two(seconds=3000.0, gpus=1, hz=4.0, writers=(job((0,)),)), detector)
    kept = next(iter(detector._gpus.values())).track
    assert len(kept) <= 9000 + 4 * 30
    detector = BubbleDetector()
    play(two(seconds=3000.0, gpus=1, writers=(job((0,)),)), detector)
    assert len(next(iter(detector._gpus.values())).track) <= 1800 + 512


def test_a_save_longer_than_the_ring() -> None:
    """A save of half an hour costs half an hour: readings are kept, coarser, as long as it needs them."""
    profile = replace(
        two(stop(300.0, 2100.0), seconds=2300.0, saves=(save(300.0, 2100.0),)),
        fast_hz=10.0,
        gpus=1,
        writers=(),
    )
    bubble = play(profile).bubble
    assert bubble.seconds == pytest.approx(1800.0, rel=0.02)
