"""Random stops of random GPUs: a figure of high quality is right, and nothing is paid for twice."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckpt_exporter.bubble.detector import BubbleDetector
from ckpt_exporter.model import Bubble, GpuStatus
from tests.gpu_profiles import Profile, Stop, job, play, save

SOURCES = {
    "averaged": {"window_s": 1.0},
    "instant": {"window_s": 0.0, "fast_hz": 10.0},
    "slow_instant": {"window_s": 0.0},
    "gpm": {"gpm": True},
    "blind": {"power": False},
    "blind_memory": {"power": False, "memory": False},
}
START = 150.0


class Growing(BubbleDetector):
    """Fails when a counter falls."""

    last: tuple[GpuStatus, ...] = ()

    def tick(self, now: float):  # type: ignore[no-untyped-def]
        out = super().tick(now)
        statuses = self.statuses(now)
        for before, after in zip(self.last, statuses, strict=False):
            assert after.observed_seconds >= before.observed_seconds
            for name in ("bubble_seconds", "drag_seconds", "stall_seconds"):
                earlier, later = getattr(before, name), getattr(after, name)
                assert all(later[key] >= value for key, value in earlier.items())
        self.last = statuses
        return out


def truth(profile: Profile, gpu: int) -> float:
    return sum(stop.lost for stop in profile.stops if gpu in stop.gpus)


def in_order(bubble: Bubble) -> None:
    """Check what holds for every figure."""
    assert abs((bubble.seconds or 0.0) - sum(bubble.phases.values())) < 1e-9
    assert all(value >= 0.0 for value in (*bubble.gpu_seconds.values(), *bubble.drag_gpu_seconds.values()))
    assert bubble.depth is not None
    assert 0.0 <= bubble.depth <= 1.0
    if bubble.start is not None and bubble.end is not None:
        assert bubble.start <= bubble.end


@st.composite
def single_saves(draw: st.DrawFn) -> Profile:
    """One stop of all GPUs around one save; some spin, some idle, or all of them slow down alike."""
    gpus = draw(st.integers(1, 3))
    start = START + draw(st.floats(0.0, 1.0))
    length = draw(st.floats(2.0, 200.0))
    source = draw(st.sampled_from(sorted(SOURCES)))
    shallow = source in ("averaged", "instant") and draw(st.booleans())
    share = draw(st.floats(0.6, 1.0)) if shallow else 1.0
    kinds = [draw(st.sampled_from(["idle", "spin"])) for _ in range(gpus)]
    before, after = draw(st.floats(0.0, 0.4)), draw(st.floats(0.0, 0.2))
    stops = tuple(
        Stop((gpu,), start, start + length, "slow" if shallow else kinds[gpu], share) for gpu in range(gpus)
    )
    written = save(start + before * min(length, 100.0), start + length * (1.0 - after) - 0.1)
    return Profile(
        source, start + length + 60.0, gpus=gpus, stops=stops, saves=(written,), writers=(job(range(gpus)),),
        seed=draw(st.integers(0, 10_000)), **SOURCES[source],  # type: ignore[arg-type]
    )  # fmt: skip


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(single_saves())
def test_a_figure_of_high_quality_is_right(profile: Profile) -> None:
    """Within 2 % or 0.3 s for each GPU, edges within 0.3 s; or the quality is low, or there is no figure."""
    bubble = play(profile, Growing()).bubble
    if bubble.skipped is not None:
        assert bubble.skipped == "low_quality"
        return
    in_order(bubble)
    if bubble.quality == "low":
        return
    for gpu, seconds in bubble.gpu_seconds.items():
        assert abs(seconds - truth(profile, gpu)) <= max(0.3, 0.02 * truth(profile, gpu))
    assert bubble.start is not None
    assert bubble.end is not None
    assert abs(bubble.start - profile.stops[0].start) <= 0.3
    assert abs(bubble.end - profile.stops[0].end) <= 0.3


@st.composite
def several_saves(draw: st.DrawFn) -> Profile:
    """Two stops, and up to four saves that lie about them in any way."""
    first = Stop((0, 1), START, START + draw(st.floats(2.0, 60.0)))
    start = first.end + draw(st.floats(1.0, 60.0))
    stops = (first, Stop((0, 1), start, start + draw(st.floats(2.0, 60.0))))
    saves = []
    for i in range(draw(st.integers(1, 4))):
        began = START + draw(st.floats(-20.0, 130.0))
        saves.append(save(began, began + draw(st.floats(0.1, 80.0)), name=f"step-{i}"))
    return Profile(
        "several", 450.0, gpus=2, stops=stops, saves=tuple(saves), writers=(job((0, 1)),),
        seed=draw(st.integers(0, 10_000)),
    )  # fmt: skip


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(several_saves())
def test_no_instant_is_paid_for_twice(profile: Profile) -> None:
    """Every save gets one bubble; all bubbles and stalls of a GPU together are at most what it lost."""
    outcome = play(profile, Growing())
    assert sorted(b.save_path for b in outcome.bubbles) == sorted(s.path for s in profile.saves)
    for bubble in outcome.bubbles:
        if bubble.skipped is None:
            in_order(bubble)
    for gpu, status in enumerate(outcome.statuses()):
        whole = truth(profile, gpu)
        paid = sum(status.bubble_seconds.values())
        assert paid <= whole * 1.02 + 0.3
        assert status.stall_seconds.get("checkpoint_save", 0.0) == paid
        assert sum(status.stall_seconds.values()) <= whole * 1.03 + 1.0
