"""The exporter says in its snapshot how its recording is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_exporter.app import Exporter
from ckpt_exporter.config.schema import Config, GpuSettings, WebSettings
from ckpt_exporter.model import DirectorySettings, RecordingStatus
from ckpt_exporter.recording import Recorder

if TYPE_CHECKING:
    from pathlib import Path


def config(where: Path) -> Config:
    return Config(
        directories=(DirectorySettings("d", str(where)),),
        gpu=GpuSettings(backend="none"),
        web=WebSettings(listen_address="127.0.0.1:0"),
    )


def test_a_recording_that_ended_early_says_why(tmp_path: Path) -> None:
    """Running, then ended with the reason that the recorder gave; without a recording there is no status."""
    with (tmp_path / "recording.jsonl").open("w") as stream:
        recorder = Recorder(stream)
        exporter = Exporter(config(tmp_path), recorder=recorder)
        assert exporter.snapshot().recording == RecordingStatus(failed=None)
        recorder.failed = "No space left on device"
        exporter.tick()
        assert exporter.snapshot().recording == RecordingStatus(failed="No space left on device")
    assert Exporter(config(tmp_path)).snapshot().recording is None
