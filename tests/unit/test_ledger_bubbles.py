"""What the ledger keeps of bubbles, from recorded profiles whose truth is known."""

from __future__ import annotations

from pathlib import Path

from ckpt_exporter.model import DetectSettings
from ckpt_exporter.replay import replay
from tests.gpu_profiles import Profile, Stop, job, save
from tests.gpu_recordings import recorded, write_recording

ALL = tuple(range(8))


def test_a_bubble_carries_the_step_of_its_save(tmp_path: Path) -> None:
    """The exemplar of the bucket of a 40 s bubble (30..45 s) is the step of the save that cost it."""
    stops = (Stop((0,), 150.3, 190.3, "idle"), Stop(ALL[1:], 150.3, 190.3, "spin"))
    profile = Profile(
        "spin", 300, stops=stops, saves=(save(151.3, 188.3, name="step-700"),), writers=(job(ALL, t=151.6),)
    )
    path = write_recording(tmp_path / "recording.jsonl", recorded(profile))
    snapshot = replay(str(path), DetectSettings()).snapshot
    assert snapshot is not None
    histogram = snapshot.directories[0].bubble
    assert histogram is not None
    bucket = histogram.bounds.index(45.0)
    exemplars = {i: mark for i, mark in enumerate(histogram.exemplars) if mark is not None}
    assert list(exemplars) == [bucket]
    value, _unix, step = exemplars[bucket]
    assert step == 700
    assert abs(value - 40.0) <= 0.8  # 2 %
