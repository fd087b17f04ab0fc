"""Causes of stalls outside saves: the signs for each, what contradicts, and how sure it is."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import pytest

from ckpt_exporter.bubble.causes import Witness, find_cause
from ckpt_exporter.bubble.detector import BubbleDetector
from ckpt_exporter.bubble.episodes import Episode, Seen, StallWatch
from ckpt_exporter.bubble.hosts import HostShare, host_share
from ckpt_exporter.bubble.settings import BubbleSettings
from ckpt_exporter.journal import log_stall
from ckpt_exporter.model import HostEvidence, Stall
from tests.gpu_profiles import Noise, Outcome, Profile, Stop, job, play, save

MIB = 1024 * 1024


def stretch(kind: str, seconds: float = 10.0, **more: float) -> Episode:
    """Tell of a stretch from 100 s on in which a GPU showed one thing, but for 2 s of ramps."""
    shown = seconds - 2.0
    signs = {
        "idle": {"idle_seconds": shown},
        "spin": {"busy_seconds": seconds, "spin_seconds": shown},
        "light": {"busy_seconds": seconds},
        "mixed": {"idle_seconds": 0.4 * seconds, "busy_seconds": 0.4 * seconds},
    }[kind]
    return Episode(100.0, 100.0 + seconds, seconds - 0.5, **signs, **more)  # type: ignore[arg-type]


ASLEEP = HostShare(whole=True, cores=0.01, worker_cores=0.0, waiting=0.0, runnable=0.0, read=0.0, called=0.0)
READS = HostShare(whole=True, cores=0.2, read=50 * MIB)
WAITS = HostShare(whole=True, cores=0.05, read=0.5 * MIB, waiting=1.0, worker_waiting=1.0)


def judged(kind: str, host: HostShare | None = None, seconds: float = 10.0, **more: object) -> str:
    verdict = find_cause(stretch(kind, seconds), Witness(host, **more), BubbleSettings())  # type: ignore[arg-type]
    return f"{verdict.cause} {verdict.confidence}"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (None, "data_loading low"),
        (READS, "data_loading high"),
        (WAITS, "data_loading high"),
        (HostShare(io_wait=0.5), "data_loading high"),
        (HostShare(waiting=1.0, worker_waiting=0.0), "data_loading medium"),
        (HostShare(called=50 * MIB), "data_loading medium"),
        (HostShare(worker_cores=2.0, cores=2.1), "data_loading medium"),
        (HostShare(worker_cores=0.1, cores=0.2, runnable=3.0), "data_loading medium"),
        (HostShare(worker_cores=0.0, cores=1.0), "data_loading low"),
        (HostShare(io_pressure=0.6, own_pressure=True), "data_loading medium"),
        (HostShare(io_pressure=0.6), "data_loading low"),
        (HostShare(whole=False, cores=0.01), "data_loading low"),
        (ASLEEP, "other low"),
    ],
)
def test_a_gpu_without_kernels(host: HostShare | None, expected: str) -> None:
    """Reading or waiting for I/O makes data loading sure, busy workers likely; a run asleep loads no data."""
    assert judged("idle", host) == expected


def test_what_contradicts_data_loading() -> None:
    """More written than read is something else; pressure on memory or a load near by makes it less sure."""
    writing = HostShare(whole=True, read=10 * MIB, written=500 * MIB, waiting=2.0)
    assert judged("idle", writing) == "other medium"
    assert judged("idle", HostShare(read=50 * MIB, memory_pressure=0.5)) == "data_loading medium"
    assert judged("idle", READS, loading=0.3) == "data_loading medium"


@pytest.mark.parametrize(
    ("kind", "host", "straggler", "expected"),
    [
        ("spin", None, None, "communication medium"),
        ("spin", None, True, "communication high"),
        ("spin", None, False, "communication medium"),
        ("spin", HostShare(network=0.05), None, "communication high"),
        ("spin", HostShare(network=0.5), None, "communication medium"),
        ("spin", HostShare(network=1.0), None, "communication medium"),
        ("spin", WAITS, None, "communication low"),
        ("spin", WAITS, True, "communication high"),
        ("light", None, None, "communication low"),
        ("light", None, True, "communication medium"),
        ("mixed", READS, None, "other low"),
    ],
)
def test_a_gpu_whose_kernels_do_no_work(
    kind: str, host: HostShare | None, straggler: bool | None, expected: str
) -> None:
    """Spinning is likely a collective; a peer that does not wait, or traffic that ceased, makes it sure."""
    assert judged(kind, host, straggler=straggler) == expected


@pytest.mark.parametrize(
    ("share", "network", "expected"),
    [(0.5, None, "medium"), (1.0, None, "high"), (0.002, None, "high"), (0.002, 1.0, "medium")],
)
def test_traffic_between_gpus(share: float, network: float | None, expected: str) -> None:
    """Spinning with all of the usual NVLink traffic, or none of it, is a collective; with half of it, likely.

    That the network goes on contradicts traffic that has ceased.
    """
    moving = stretch("spin", moved_bytes=10.0 * share * 5e9, moved_seconds=10.0, usual_moved=5e9)
    verdict = find_cause(moving, Witness(HostShare(network=network)), BubbleSettings())
    assert (verdict.cause, verdict.confidence) == ("communication", expected)


def test_stretches_of_minutes() -> None:
    """Beyond three minutes nothing is sure, unless the run read all the while: that is likely data."""
    assert judged("idle", None, 300.0) == "other low"
    assert judged("idle", ASLEEP, 300.0) == "other low"
    assert judged("idle", READS, 300.0) == "data_loading medium"
    assert judged("spin", None, 300.0, straggler=True) == "other low"


def test_a_run_that_was_not_there() -> None:
    """Where no process held the GPU for a part of the stretch, that is sure to be another cause."""
    verdict = find_cause(stretch("idle", absent_seconds=3.0), Witness(READS), BubbleSettings())
    assert (verdict.cause, verdict.confidence) == ("other", "high")


@pytest.mark.parametrize(
    ("loading", "known", "expected"),
    [(0.9, True, "high"), (0.9, False, "medium"), (0.6, True, "medium")],
)
def test_loads(loading: float, known: bool, expected: str) -> None:
    """A load by the GPU's own run for nearly all of the stretch is sure to be the cause."""
    assert judged("idle", READS, loading=loading, loading_known=known) == f"checkpoint_load {expected}"


def test_the_signs_are_told() -> None:
    """Each sign that was seen is one word, in order."""
    host = HostShare(
        whole=True, cores=2.0, worker_cores=1.5, read=50 * MIB, worker_waiting=1.0, io_pressure=0.5
    )
    verdict = find_cause(stretch("idle"), Witness(host), BubbleSettings())
    assert verdict.evidence == ("io_pressure", "no_kernels", "reads", "waits_for_io", "workers_busy")


# --- looks ----------------------------------------------------------------------------------------------


def test_looks_are_weighted_by_what_lies_in_the_stretch() -> None:
    """Of 60 bytes in 2 s half counts, of 90 in 3 s all: (30 + 90) / 4 s; of threads (1 x 4 + 3 x 0) / 4."""
    looks = [
        HostEvidence(101.0, 99.0, processes=2, read_bytes=60, waiting=4),
        HostEvidence(104.0, 101.0, processes=2, read_bytes=90, waiting=0),
        HostEvidence(120.0, 110.0, processes=2, read_bytes=9000, waiting=9),
    ]
    share = host_share(looks, 100.0, 108.0)
    assert share is not None
    assert (share.read, share.waiting, share.whole, share.cores) == (30.0, 1.0, True, None)


def test_looks_at_a_small_part_of_a_stretch_say_nothing() -> None:
    """3 s of 8 are less than two fifths."""
    assert host_share([HostEvidence(104.0, 101.0, processes=1, read_bytes=90)], 100.0, 108.0) is None


def test_io_that_may_not_be_read_is_not_none() -> None:
    """A run of which one process is hidden is not known to be asleep, and what others read counts."""
    share = host_share([HostEvidence(104.0, 100.0, processes=2, unread=1, read_bytes=40)], 100.0, 104.0)
    assert share is not None
    assert (share.whole, share.read, share.written) == (False, 10.0, None)


def test_traffic_is_compared_with_that_of_the_time_before() -> None:
    """30 MB in 3 s of 100 MB a second before are a tenth; of 1 MB a second before, nothing can be said."""
    for usual, expected in ((100e6, pytest.approx(0.1)), (1e6, None)):
        look = HostEvidence(103.0, 100.0, network_bytes=30_000_000, usual_network_bytes_per_second=usual)
        share = host_share([look], 100.0, 103.0)
        assert share is not None
        assert share.network == expected


def test_usual_traffic_is_that_of_work() -> None:
    """After work at 100 MB a second, 1 MB a second is a hundredth, but for the ramp at its end."""
    watch = StallWatch()
    for i in range(100):
        watch.feed(i / 2, 1.0, Seen(0.9, 1, 100e6))
    for i in range(100, 120):
        watch.feed(i / 2, 0.0, Seen(1.0, 1, 1e6))
    ended = watch.feed(60.0, 1.0, Seen(0.9, 1, 100e6))
    assert ended is not None
    # 9.5 s at 1 MB a second, and the half second that ends at 100 again.
    assert ended.moved_share == pytest.approx((9.5 + 50.0) / 10.0 / 100.0, rel=0.2)


# --- in the detector ------------------------------------------------------------------------------------


class Told(BubbleDetector):
    """Is told looks at a host when their time has come."""

    def __init__(self, looks: Iterable[HostEvidence]) -> None:
        super().__init__()
        self._coming = sorted(looks, key=lambda look: look.t)
        self.unexplained_at: dict[float, tuple[int, ...]] = {}

    def tick(self, now: float):  # type: ignore[no-untyped-def]
        while self._coming and self._coming[0].t <= now:
            self.feed(self._coming.pop(0))
        self.unexplained_at[round(now, 1)] = self.unexplained(now)
        return super().tick(now)


def played(*stops: Stop, looks: Iterable[HostEvidence] = (), **more: object) -> tuple[Outcome, Told]:
    detector = Told(looks)
    settings: dict[str, object] = {
        "gpus": 4,
        "noise": Noise(),
        "writers": (job((0, 1)), job((2, 3), directory="e", pids=(8,))),
    }
    profile = Profile("stalls", 250.0, stops=stops, **{**settings, **more})  # type: ignore[arg-type]
    return play(profile, detector), detector


def reads(*gpus: int, start: float = 100.0, end: float = 120.0) -> list[HostEvidence]:
    """Tell of looks a second apart at a run that reads 50 MiB/s from storage."""
    times = [start + 1.0 + i for i in range(int(end - start) - 1)]
    return [HostEvidence(t, t - 1.0, gpus, processes=9, cpu_seconds=0.1, read_bytes=50 * MIB) for t in times]


def told(outcome: Outcome) -> dict[int, str]:
    return {stall.gpu: f"{stall.cause} {stall.confidence}" for stall in outcome.stalls}


def test_a_straggler_has_its_own_cause() -> None:
    """A rank that waits for data is a data stall; the peer that spins for it is a communication stall."""
    outcome, _ = played(Stop((0,), 100.0, 120.0, "idle"), Stop((1,), 100.0, 120.0, "spin"), looks=reads(0, 1))
    assert told(outcome) == {0: "data_loading high", 1: "communication high"}
    assert "straggler" in outcome.stalls[1].evidence


def test_only_sure_causes_enter_the_confident_counter() -> None:
    """Of two stalls of 20 s only the one that the host speaks for counts; of saves those of high quality."""
    outcome, _ = played(
        Stop((0,), 100.0, 120.0, "idle"),
        Stop((1,), 150.0, 170.0, "idle"),
        Stop((2, 3), 150.0, 170.0, "spin"),
        looks=reads(0, 1),
        saves=(save(150.0, 170.0, directory="e", pids=(8,)),),
    )
    first, second, third, _ = outcome.statuses()
    assert first.confident_seconds == {"data_loading": pytest.approx(20.0, abs=0.5)}
    assert (second.confident_seconds, set(second.stall_seconds)) == ({}, {"data_loading"})
    assert third.confident_seconds == {"checkpoint_save": pytest.approx(20.0, abs=0.5)}


def test_looks_at_another_run_say_nothing() -> None:
    """What a run on other GPUs reads is no sign."""
    outcome, _ = played(Stop((0, 1), 100.0, 120.0, "idle"), looks=reads(2, 3))
    assert told(outcome) == {0: "data_loading low", 1: "data_loading low"}


def test_looks_are_wanted_only_while_a_run_stands_still_for_no_known_reason() -> None:
    """GPUs are named from a second into a stop on, until work is back, and not while a save may be why."""
    stops = (Stop((0,), 100.0, 120.0, "idle"), Stop((0, 1), 180.0, 200.0))
    _, detector = played(*stops, saves=(save(180.0, 200.0, pids=(7,)),))
    named = {t for t, gpus in detector.unexplained_at.items() if gpus}
    assert min(named) == pytest.approx(101.5, abs=0.6)
    assert max(named) == pytest.approx(120.0, abs=0.6)
    assert {detector.unexplained_at[t] for t in named} == {(0,)}


def test_steps_want_no_looks() -> None:
    """GPUs without kernels for a part of each step are not looked into."""
    _, detector = played(step=(2.0, 0.3))
    assert set(detector.unexplained_at.values()) == {()}


def test_a_stall_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """A stall of half a minute is told with its cause, how sure that is, and why; shorter ones are not."""
    with caplog.at_level(logging.INFO, "ckpt_exporter"):
        log_stall(Stall(3, 100.0, 140.0, "data_loading", 39.5, "high", ("no_kernels", "reads")))
        log_stall(Stall(3, 200.0, 205.0, "data_loading", 4.5, "high", ("no_kernels", "reads")))
    (record,) = caplog.records
    assert record.getMessage() == "GPU stall"
