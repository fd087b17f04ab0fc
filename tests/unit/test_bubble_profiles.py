"""What saves cost on simulated GPUs whose truth is known: within 2 % or 0.3 s per GPU, edges within 0.3 s."""

from __future__ import annotations

import pytest

from ckpt_exporter.model import Bubble
from tests.gpu_profiles import Level, Noise, Outcome, Profile, Stop, job, lost, play, replace, save

ALL = tuple(range(8))
OTHERS = ALL[1:]
JOB = (job(ALL),)


def tolerance(truth: float) -> float:
    return max(0.3, 0.02 * truth)


def rank_0_writes(start: float, end: float) -> tuple[Stop, ...]:
    """Rank 0 does no GPU work while it writes, the others spin in a collective."""
    return Stop((0,), start, end, "idle"), Stop(OTHERS, start, end, "spin")


def one_save(start: float, end: float, **more: object) -> Profile:
    """Tell of one save of eight GPUs at the recorded noise."""
    stops = rank_0_writes(start, end)
    return Profile("save", end + 120.0, stops=stops, saves=(save(start, end),), writers=JOB, **more)  # type: ignore[arg-type]


def check(bubble: Bubble, truth: dict[int, float], edges: tuple[float, float], quality: str = "high") -> None:
    assert (bubble.skipped, bubble.quality) == (None, quality)
    assert set(bubble.gpu_seconds) == set(truth)
    for gpu, seconds in truth.items():
        assert bubble.gpu_seconds[gpu] == pytest.approx(seconds, abs=tolerance(seconds))
    assert bubble.start == pytest.approx(edges[0], abs=0.3)
    assert bubble.end == pytest.approx(edges[1], abs=0.3)
    assert bubble.seconds == pytest.approx(sum(bubble.phases.values()), abs=1e-9)
    assert bubble.seconds == pytest.approx(
        sum(truth.values()) / len(truth), abs=tolerance(min(truth.values()))
    )


def each(seconds: float, gpus: tuple[int, ...] = ALL) -> dict[int, float]:
    return dict.fromkeys(gpus, seconds)


def test_all_ranks_idle() -> None:
    """A save that stops every GPU for 20.2 s costs each of them 20.2 s."""
    profile = Profile(
        "a", 300, stops=(Stop(ALL, 150.3, 170.5, "idle"),), saves=(save(150.3, 170.5),), writers=JOB
    )
    bubble = play(profile).bubble
    check(bubble, each(20.2), (150.3, 170.5))
    assert bubble.source == "power"
    assert bubble.depth == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_ranks_that_spin_at_full_utilisation_lose_as_much_as_the_one_that_writes(seed: int) -> None:
    """Seven GPUs at 100 % utilisation and 28 % power, waiting for rank 0 at 0 %: all eight lose the 16 s."""
    check(play(one_save(150.3, 166.3, seed=seed)).bubble, each(16.0), (150.3, 166.3))


def test_performance_counters_show_spinning_too() -> None:
    """Where GPM tells tensor and memory activity, they decide: SMs that only wait do not count as work."""
    bubble = play(one_save(150.3, 166.3, gpm=True)).bubble
    check(bubble, each(16.0), (150.3, 166.3))
    assert bubble.source == "gpm"


@pytest.mark.parametrize("start", [150.0, 150.13, 150.31, 150.42])
@pytest.mark.parametrize("seconds", [4.0, 10.0])
def test_power_averaged_over_a_second(start: float, seconds: float) -> None:
    """Ramps of a driver that averages power over 1 s, read at 2 Hz, change neither area nor edges."""
    check(play(one_save(start, start + seconds)).bubble, each(seconds), (start, start + seconds))


def test_power_averaged_over_a_second_without_noise_is_exact() -> None:
    """Without noise the area of a 16 s stop is 16 s to a hundredth."""
    bubble = play(one_save(150.3, 166.3, noise=Noise())).bubble
    assert bubble.seconds == pytest.approx(16.0, abs=0.01)


@pytest.mark.parametrize(("periods", "unseen"), [(58.3, 0.0), (57.75, 0.875), (58.0, 0.875)])
def test_steps_that_idle_for_a_quarter_of_their_time(periods: float, unseen: float) -> None:
    """Steps of 3.5 s with 25 % idle are the steady state: 16 s of stop cost 16 s, whatever the phase.

    A stop that begins or ends in a step's idle part can't be told from it: that edge may be off by as much.
    """
    start = 3.5 * periods
    profile = one_save(start, start + 16.0, step=(3.5, 0.25))
    bubble = play(profile).bubble
    assert bubble.quality == "high"
    for seconds in bubble.gpu_seconds.values():
        assert seconds == pytest.approx(16.0, abs=tolerance(16.0))
    assert bubble.start == pytest.approx(start, abs=0.3 + unseen)
    assert bubble.end == pytest.approx(start + 16.0, abs=0.3 + unseen)


def test_steps_alone_are_no_stalls() -> None:
    """Training in 3.5 s steps with 25 % idle, without a save, has neither bubble nor stall."""
    outcome = play(Profile("steps", 400, writers=JOB, step=(3.5, 0.25)))
    assert (outcome.bubbles, outcome.stalls) == ([], [])


@pytest.mark.parametrize("gpm", [False, True])
def test_asynchronous_save(gpm: bool) -> None:
    """A save that blocks for 0.5 s and then drags by 5 % for 60 s costs 0.5 s of bubble and 3 s of drag."""
    stops = (Stop(ALL, 150.0, 150.5, "idle"), Stop(ALL, 150.5, 210.5, "slow", 0.05))
    profile = Profile("e", 400, stops=stops, saves=(save(150.5, 210.5),), writers=JOB, gpm=gpm)
    bubble = play(profile).bubble
    check(bubble, each(0.5), (150.0, 150.5))
    for drag in bubble.drag_gpu_seconds.values():
        assert drag == pytest.approx(3.0, abs=0.6)


@pytest.mark.parametrize(("start", "end"), [(152.5, 162.5), (150.0, 160.0), (155.0, 165.0), (156.0, 159.0)])
@pytest.mark.parametrize("gpm", [False, True])
def test_drag_before_the_first_byte_and_after_the_last_counts(start: float, end: float, gpm: bool) -> None:
    """Work at 60 % from 150 s to 165 s costs 0.4 x 15 s = 6 s of drag, whichever part of it bytes flow.

    By the counters it is 6.36 s: half the weight is on tensor cores and 0.3 on memory, of which 0.4 is lost,
    0.2 on SMs above what spinning takes, of which (0.8 - 0.488) / (0.8 - 0.2) = 0.52 is lost: 0.424 x 15 s.
    """
    stops = (Stop(ALL, 150.0, 165.0, "slow", 0.4),)
    bubble = play(Profile("drag", 400, stops=stops, saves=(save(start, end),), writers=JOB, gpm=gpm)).bubble
    assert (bubble.skipped, bubble.seconds) == (None, pytest.approx(0.0, abs=0.01))
    for drag in bubble.drag_gpu_seconds.values():
        assert drag == pytest.approx(6.36 if gpm else 6.0, abs=0.3)


def test_drag_that_does_not_end_is_the_files_time() -> None:
    """Where work stays at 60 % for good, a save of 10 s pays for its 10 s alone: 4 s."""
    stops = (Stop(ALL, 150.0, 400.0, "slow", 0.4),)
    bubble = play(Profile("drag", 400, stops=stops, saves=(save(150.0, 160.0),), writers=JOB)).bubble
    for drag in bubble.drag_gpu_seconds.values():
        assert drag == pytest.approx(4.0, abs=0.3)


def test_asynchronous_save_that_slows_nothing() -> None:
    """An asynchronous save that GPUs do not notice costs 0, not its duration."""
    bubble = play(Profile("e", 400, saves=(save(150.5, 210.5),), writers=JOB)).bubble
    assert (bubble.skipped, bubble.seconds, bubble.start, bubble.depth) == (None, 0.0, None, 0.0)
    assert set(bubble.drag_gpu_seconds.values()) == {0.0}


def test_staging_before_the_first_byte_and_barrier_after_the_last() -> None:
    """40 s of staging, 30 s of writing, 5 s of barrier: the bubble is 75 s and its phases say so."""
    profile = Profile("f", 400, stops=rank_0_writes(150.2, 225.2), saves=(save(190.2, 220.2),), writers=JOB)
    bubble = play(profile).bubble
    check(bubble, each(75.0), (150.2, 225.2))
    assert bubble.phases == pytest.approx(
        {"before_write": 40.0, "writing": 30.0, "write_gap": 0.0, "after_write": 5.0}, abs=0.6
    )


def test_writes_with_pauses() -> None:
    """Time between stretches of flowing bytes is told apart from writing."""
    flow = ((151.2, 160.2), (175.2, 180.2), (190.2, 199.2))
    profile = Profile(
        "g", 400, stops=rank_0_writes(150.2, 200.2), saves=(save(151.2, 199.2, flow=flow),), writers=JOB
    )
    bubble = play(profile).bubble
    check(bubble, each(50.0), (150.2, 200.2))
    assert bubble.phases == pytest.approx(
        {"before_write": 1.0, "writing": 23.0, "write_gap": 25.0, "after_write": 1.0}, abs=0.4
    )


def test_overlapping_saves_share_one_dip() -> None:
    """Two saves in one dip of 90 s cost 90 s together: the first its 60 s, the second what is left."""
    saves = (save(150.2, 210.2), save(180.2, 240.2, name="step-2"))
    outcome = play(Profile("h", 400, stops=rank_0_writes(150.2, 240.2), saves=saves, writers=JOB))
    first, second = outcome.bubbles
    assert (first.save_path, second.save_path) == ("/data/d/step-1", "/data/d/step-2")
    check(first, each(60.0), (150.2, 210.2))
    check(second, each(30.0), (210.2, 240.2))


def test_a_second_save_right_after_the_first() -> None:
    """Two saves in one dip, one after the other, are paid for once each."""
    saves = (save(150.2, 170.2), save(172.2, 190.2, name="step-2"))
    outcome = play(Profile("h2", 400, stops=rank_0_writes(150.2, 190.2), saves=saves, writers=JOB))
    total = sum(bubble.seconds or 0.0 for bubble in outcome.bubbles)
    assert len(outcome.bubbles) == 2
    assert total == pytest.approx(40.0, abs=tolerance(40.0))


def test_two_jobs_on_one_node() -> None:
    """GPUs of another job pay nothing, neither when they go on nor when they stop for another reason."""
    stops = (Stop((0, 1, 2, 3), 150.2, 180.2), Stop((4, 5), 160.2, 170.2))
    writers = (job((0, 1, 2, 3)), job((4, 5, 6, 7), directory="e", pids=(8,)))
    profile = Profile("i", 400, stops=stops, saves=(save(150.2, 180.2, pids=(7,)),), writers=writers)
    outcome = play(profile)
    check(outcome.bubble, each(30.0, (0, 1, 2, 3)), (150.2, 180.2))
    assert [status.bubble_seconds for status in outcome.statuses()[4:]] == [{}] * 4
    assert {stall.gpu: stall.cause for stall in outcome.stalls} == {4: "communication", 5: "communication"}


def test_two_jobs_save_at_once() -> None:
    """Saves of two jobs at the same time each cost their own GPUs all of their own time."""
    stops = (Stop((0, 1, 2, 3), 150.2, 180.2), Stop((4, 5, 6, 7), 155.2, 175.2))
    writers = (job((0, 1, 2, 3)), job((4, 5, 6, 7), directory="e", pids=(8,)))
    saves = (save(150.2, 180.2, pids=(7,)), save(155.2, 175.2, directory="e", pids=(8,)))
    outcome = play(Profile("i2", 400, stops=stops, saves=saves, writers=writers))
    by_directory = {bubble.directory: bubble for bubble in outcome.bubbles}
    check(by_directory["d"], each(30.0, (0, 1, 2, 3)), (150.2, 180.2))
    check(by_directory["e"], each(20.0, (4, 5, 6, 7)), (155.2, 175.2))


def test_a_crash_without_files_is_no_bubble() -> None:
    """All GPUs at nothing for 230 s with no save is a stall of another cause, 230 s on each GPU."""
    profile = Profile("j", 600, stops=(Stop(ALL, 200, 430, "idle"),), writers=JOB)
    outcome = play(profile)
    assert outcome.bubbles == []
    assert {(stall.gpu, stall.cause) for stall in outcome.stalls} == {(gpu, "other") for gpu in ALL}
    for stall in outcome.stalls:
        assert stall.seconds == pytest.approx(230.0, rel=0.02)


def test_a_crash_before_a_save_does_not_spoil_its_baseline() -> None:
    """A save 40 s after a crash of 230 s is measured against the 40 s of training."""
    stops = (Stop(ALL, 100, 330, "idle"), *rank_0_writes(370.2, 390.2))
    profile = Profile("j2", 500, stops=stops, saves=(save(370.2, 390.2),), writers=JOB)
    check(play(profile).bubble, each(20.0), (370.2, 390.2))


def test_a_gpu_lost_in_mid_save_is_unknown_from_then_on() -> None:
    """The lost GPU pays only what was seen; the mean is that of the others, and the quality says it."""
    profile = replace(one_save(150.2, 190.2), errors={3: 170.0})
    outcome = play(profile)
    bubble = outcome.bubble
    assert bubble.gpu_seconds.pop(3) == pytest.approx(19.8, abs=1.5)
    check(bubble, each(40.0, tuple(g for g in ALL if g != 3)), (150.2, 190.2), quality="low")
    assert bubble.notes == ("gpu_lost",)
    status = outcome.statuses()[3]
    assert (status.up, status.activity, status.power_w) == (False, None, None)
    assert status.observed_seconds == pytest.approx(170.0, abs=1.0)


def test_power_capped_gpus() -> None:
    """At a cap of 300 W the floor is still 150 W: it is learned from the dip, not from the cap."""
    profile = replace(one_save(150.2, 190.2), limit_w=300.0, train=Level(0.97, 0.5, 299.0, 0.7, 0.4, 0.5))
    bubble = play(profile).bubble
    assert bubble.source == "power"
    # Half the range at the same noise: 3 % of a figure this size.
    for seconds in bubble.gpu_seconds.values():
        assert seconds == pytest.approx(40.0, abs=1.0)


def test_power_smoothing_makes_power_worthless() -> None:
    """A GPU that holds its power up on purpose is measured by its counters."""
    bubble = play(replace(one_save(150.2, 190.2), smoothing=True, gpm=True)).bubble
    check(bubble, each(40.0), (150.2, 190.2))
    assert bubble.source == "gpm"


def test_power_smoothing_without_counters_is_low_quality() -> None:
    """With power smoothing and no counters, utilisation and memory traffic give a figure of low quality."""
    bubble = play(replace(one_save(150.2, 190.2), smoothing=True)).bubble
    check(bubble, each(40.0), (150.2, 190.2), quality="low")
    assert bubble.source == "utilization"


def test_a_small_model_that_hardly_draws_power() -> None:
    """Where work draws little more than the floor, power and utilisation together tell, at low quality."""
    profile = replace(one_save(150.2, 190.2), train=Level(0.92, 0.3, 230.0, 0.3, 0.1, 0.2))
    bubble = play(profile).bubble
    assert (bubble.source, bubble.quality) == ("power_utilization", "low")
    assert bubble.seconds == pytest.approx(40.0, rel=0.03)


def test_utilisation_alone_speaks_through_the_rank_that_writes() -> None:
    """With utilisation alone, the GPU at 0 % tells for those that wait for it; the quality is low."""
    bubble = play(replace(one_save(150.2, 190.2), power=False, memory=False)).bubble
    assert (bubble.source, bubble.quality) == ("utilization", "low")
    assert bubble.seconds == pytest.approx(40.0, rel=0.05)


def test_utilisation_alone_gives_no_figure_where_every_rank_spins() -> None:
    """With utilisation alone, a save through which all GPUs spin is skipped: 0 s would be wrong."""
    profile = Profile(
        "d", 400, stops=(Stop(ALL, 150.2, 190.2),), saves=(save(150.2, 190.2),), writers=JOB,
        power=False, memory=False,
    )  # fmt: skip
    assert play(profile).bubble.skipped == "low_quality"


def test_utilisation_latched_without_a_process() -> None:
    """A GPU stuck at 100 % with no process belongs to nobody: not observed, no bubble, no activity."""
    stops = (Stop((7,), 0, 400, "latched"), Stop(OTHERS[:-1], 150.2, 190.2), Stop((0,), 150.2, 190.2, "idle"))
    outcome = play(Profile("m", 400, stops=stops, saves=(save(150.2, 190.2),)))
    check(outcome.bubble, each(40.0, ALL[:-1]), (150.2, 190.2))
    assert outcome.bubble.notes == ("all_gpus",)
    latched = outcome.statuses()[7]
    assert (latched.observed_seconds, latched.activity) == (0.0, None)


def warm_up(train_at: float, start: float, end: float) -> Profile:
    stops = (Stop(ALL, 0, 20, "off"), Stop(ALL, 20, 60, "idle"), Stop(ALL, 60, train_at, "spin"))
    saves = (save(start, end),)
    return Profile("n", end + 120, stops=(*stops, Stop(ALL, start, end)), saves=saves, writers=JOB)


def test_first_save_after_the_warm_up() -> None:
    """Start-up, idle and spinning, is no baseline: 30 s of training after it are."""
    check(play(warm_up(80.0, 110.2, 130.2)).bubble, each(20.0), (110.2, 130.2))


def test_first_save_during_the_warm_up() -> None:
    """A save after 6 s of training has nothing to be compared with: no figure."""
    assert play(warm_up(80.0, 86.2, 130.2)).bubble.skipped == "no_baseline"


@pytest.mark.parametrize("start", [150.0, 150.17, 150.23, 150.4])
def test_instant_power_sensor(start: float) -> None:
    """A sensor that looks for 25 ms in each 100 ms is good enough when read at 10 Hz during the save."""
    profile = one_save(start, start + 16.0, window_s=0.0, fast_hz=10.0)
    check(play(profile).bubble, each(16.0), (start, start + 16.0))


def test_instant_power_at_2_hz_is_low_quality() -> None:
    """Edges between two instant readings 0.5 s apart are not known to 0.3 s, and the figure says so."""
    bubble = play(one_save(150.2, 160.2, window_s=0.0)).bubble
    assert (bubble.quality, bubble.notes) == ("low", ("coarse",))
    assert bubble.seconds == pytest.approx(10.0, abs=0.6)


def test_a_dip_that_goes_on_long_after_the_save() -> None:
    """GPUs that never come back after a save pay up to its end; the rest is another stall."""
    profile = Profile("x", 400, stops=rank_0_writes(150.2, 350.0), saves=(save(150.2, 170.2),), writers=JOB)
    outcome = play(profile)
    assert outcome.bubble.notes == ("not_recovered",)
    assert outcome.bubble.quality == "low"
    assert outcome.bubble.seconds == pytest.approx(20.0, abs=0.5)
    assert {stall.gpu for stall in outcome.stalls} == set(ALL)
    for stall in outcome.stalls:
        assert stall.seconds == pytest.approx(180.0, rel=0.02)


def test_a_gap_of_the_sampler_inside_the_dip() -> None:
    """5 s without readings inside a dip hide what happened: no figure."""
    profile = replace(one_save(150.2, 180.2), silences=((160.0, 165.0),))
    outcome = play(profile)
    assert outcome.bubble.skipped == "sampler_gap"
    assert all(status.bubble_seconds == {} for status in outcome.statuses())


def shares(outcome: Outcome) -> float:
    """Bubble share by the counters, as a dashboard divides them."""
    statuses = outcome.statuses()
    bubble = sum(sum(status.bubble_seconds.values()) for status in statuses)
    return bubble / sum(status.observed_seconds for status in statuses)


def repeated(total: float, count: int, seconds: float, hz: float, gpus: int = 8) -> Profile:
    """``count`` saves, evenly spread, that stop all GPUs for ``seconds`` each."""
    every, stops, saves = total / count, [], []
    for i in range(count):
        start = every * (i + 0.5) - seconds / 2
        stops += [
            Stop((0,), start, start + seconds, "idle"),
            Stop(tuple(range(1, gpus)), start, start + seconds),
        ]
        saves.append(save(start + 1.0, start + seconds - 0.5, name=f"step-{i}"))
    return Profile(
        "many", total, gpus=gpus, stops=tuple(stops), saves=tuple(saves), writers=(job(range(gpus)),), hz=hz
    )


def test_an_hour_of_saves() -> None:
    """Over an hour with 12 saves of 30 s, bubble over observed time is 360 / 3600 = 10 %."""
    profile = repeated(3600.0, 12, 30.0, 2.0)
    outcome = play(profile)
    assert {bubble.quality for bubble in outcome.bubbles} == {"high"}
    assert shares(outcome) == pytest.approx(0.10, rel=0.01)
    assert lost(profile, 0) == 360.0


@pytest.mark.parametrize(("total", "seconds", "share"), [(36_000.0, 178.0, 0.0989), (34_320.0, 94.0, 0.0548)])
def test_the_published_case(total: float, seconds: float, share: float) -> None:
    """20 saves of 178 s in 36,000 s are 9.9 % of the GPU time, of 94 s in the shorter run 5.5 %.

    Read once a second: the driver's 1 s means make that exact as well, in half the time.
    """
    outcome = play(replace(repeated(total, 20, seconds, 1.0), noise=Noise()))
    assert len(outcome.bubbles) == 20
    assert shares(outcome) == pytest.approx(share, rel=0.01)
    for status in outcome.statuses():
        assert status.observed_seconds == pytest.approx(total, rel=0.001)
