"""Random writers against a model that knows the truth."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckpt_exporter.detect.bandwidth import Arrivals, Chunk, measure
from ckpt_exporter.model import Save
from tests.property.histories import HISTORIES, History, Truth
from tests.story import Story

# Looks of the progress sampler and ticks of the clock come between the events, not only at them.
TICK_SECONDS = 2.5


def told(history: History) -> Story:
    story = Story()
    for action in history.actions:
        while story.now + TICK_SECONDS < action.t:
            story.at(story.now + TICK_SECONDS)
        story.at(action.t)
        if action.kind == "progress":
            story.progress(action.name, action.size or 0)
        elif action.kind == "arrived":
            story.rename(None, action.name, size=action.size)
        elif action.kind == "moved":
            story.rename(action.name, action.to, is_dir=action.is_dir)
        elif action.kind == "deleted":
            story.delete(action.name)
        elif action.kind == "close_write":
            story.close(action.name, action.size)
        elif action.kind == "open":
            story.open(action.name, size=action.size)
        else:
            story.create(action.name, size=action.size, is_dir=action.is_dir)
    while story.now < history.end:
        story.at(story.now + 50)
    return story


def matches(save: Save, truth: Truth) -> bool:
    return (
        save.result == truth.result
        and save.step == truth.step
        and save.bytes == truth.bytes
        and save.files == truth.files
        and f"/{truth.job}" in save.path
        and math.isclose(save.end, truth.end, abs_tol=1e-6)
        and (save.duration_seconds is not None) == truth.duration_known
        and (not truth.duration_known or math.isclose(save.start, truth.start, abs_tol=1e-6))
    )


# 10,000 histories in all; in parts, which run on different cores and start from different seeds.
@pytest.mark.parametrize("_part", range(4))
@pytest.mark.timeout(900)
@settings(max_examples=2_500, deadline=None, suppress_health_check=list(HealthCheck))
@given(history=HISTORIES)
def test_no_save_is_missed_invented_split_or_merged(_part: int, history: History) -> None:
    """Every generated history gives exactly its own saves, each with its start, end, bytes, files, step."""
    story = told(history)

    left = list(story.saves)
    for truth in history.truths:
        found = [save for save in left if matches(save, truth)]
        assert found, f"missed {truth}; left: {left}"
        left.remove(found[0])
    assert not left, f"invented: {left}"
    assert not story.open_saves()


@given(HISTORIES)
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
def test_live_counters_only_grow_and_end_at_the_truth(history: History) -> None:
    """Bytes seen arriving end at what was written; the time of flowing is no more than what passed."""
    story = told(history)

    arrived = sum(t.bytes for t in history.truths if t.duration_known)
    extra = story.detector.meter.written_bytes - arrived
    # Pointer files of 12 bytes are signals, not data.
    assert 0 <= extra <= 12 * len(history.truths)
    assert 0 <= story.detector.meter.write_active_seconds <= story.now


chunks = st.lists(
    st.builds(
        lambda start, seconds, size: Chunk(start, start + seconds, size),
        st.floats(0, 100),
        st.floats(0, 10),
        st.floats(1, 1e9),
    ),
    min_size=1,
    max_size=40,
)


@given(chunks)
def test_bandwidths_keep_their_order(arrived: list[Chunk]) -> None:
    """Active time is at most the whole span, and the peak at least bytes over active time."""
    flow = measure(arrived)

    span = max(c.end for c in arrived) - min(c.start for c in arrived)
    assert flow.active_seconds <= span + 1e-6
    if flow.active_seconds > 0:
        assert flow.peak is not None
        assert flow.peak >= sum(c.size_bytes for c in arrived) / flow.active_seconds * (1 - 1e-9)


@given(chunks)
def test_peak_is_the_best_one_second_window(arrived: list[Chunk]) -> None:
    """No window of one second, tried on a fine grid, holds more bytes than the peak says."""
    flow = measure(arrived)
    if flow.peak is None:
        return

    begin = min(c.start for c in arrived)
    end = max(c.end for c in arrived)
    for i in range(200):
        t = begin - 1 + (end - begin + 1) * i / 199
        held = sum(_overlap(c, t, t + 1) for c in arrived)
        assert held <= flow.peak * (1 + 1e-6) + 1e-3


def _overlap(chunk: Chunk, begin: float, end: float) -> float:
    if chunk.end <= chunk.start + 1e-6:
        return chunk.size_bytes if begin <= chunk.start <= end else 0.0
    inside = max(0.0, min(end, chunk.end) - max(begin, chunk.start))
    return chunk.size_bytes * inside / (chunk.end - chunk.start)


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 1), st.integers(1, 1 << 30)), max_size=3000))
@settings(max_examples=30, deadline=None)
def test_bounded_arrivals_lose_no_byte(steps: list[tuple[float, float, int]]) -> None:
    """However many chunks a file has, their number stays bounded and their bytes add up."""
    arrivals, t = Arrivals(), 0.0
    for pause, seconds, size in steps:
        t += pause
        arrivals.add(t, t + seconds, size)
        t += seconds

    kept = list(arrivals)
    assert len(kept) <= 512
    assert math.isclose(sum(c.size_bytes for c in kept), sum(size for _, _, size in steps), rel_tol=1e-9)
