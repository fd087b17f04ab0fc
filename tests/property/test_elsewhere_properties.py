"""Random saves of other hosts, clocks and looks: each is noticed once, and every lost second is paid once."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.gpu_profiles import Noise, Profile, Stop
from tests.shared_server import Node, Server, checkpoint

SPAN = st.tuples(st.floats(8.0, 45.0), st.floats(4.0, 40.0))


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    spans=st.lists(SPAN, min_size=1, max_size=3),
    skew=st.floats(-300.0, 300.0),
    interval=st.sampled_from([2.0, 5.0, 11.0]),
    staged=st.booleans(),
    births=st.booleans(),
)
def test_each_save_is_noticed_once_and_each_second_paid_once(
    spans: list[tuple[float, float]], skew: float, interval: float, staged: bool, births: bool
) -> None:
    """GPUs stand still from each save's begin to its end; the bubble is the time in which any was open."""
    server = Server(skew=skew, births=births)
    actions, stops, ends, t = [], [], [], 120.0
    for number, (pause, seconds) in enumerate(spans, 1):
        t += pause  # the next may begin before the last has ended
        actions += checkpoint(server, f"checkpoint-{number}", t, t + seconds, staged=staged)
        ends.append(t + seconds)
        stops.append((t, t + seconds))
    merged: list[tuple[float, float]] = []
    for start, end in stops:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    profile = Profile(
        "random", 500.0, gpus=1, noise=Noise(), stops=tuple(Stop((0,), a, b, "spin") for a, b in merged)
    )
    node = Node(server, actions, profile, interval=interval).run(480.0)

    assert [save.result for save in node.remote] == ["complete"] * len(spans)
    lost = sum(b - a for a, b in merged)
    assert node.gpu_seconds == [pytest.approx(lost, rel=0.03, abs=0.5)]
    assert node.stalled("checkpoint_save") == pytest.approx(node.gpu_seconds[0])
    others = ("communication", "data_loading", "other", "checkpoint_load")
    assert sum(map(node.stalled, others)) == 0
    for save in node.remote:
        truth = ends[(save.step or 0) - 1]
        assert abs(save.end - truth) <= interval + 0.1
