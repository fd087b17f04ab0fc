"""Real training frameworks write real checkpoints while the real exporter watches.

Every test runs one writer of ``writers/`` and holds the exporter to the writer's own clock and sizes: count,
result and step exactly, bytes and files exactly, each duration within 50 ms or 1 %.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckpt_exporter.sources.filestat import FileSystems

OTHER_FILE_SYSTEM = "/dev/shm"  # memory, so never the one that the tests' directory is on

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(360)]

Measure = Callable[..., Any]


def test_torch_save_of_one_file_per_step(measure_rightly: Measure) -> None:
    """Three 300 MB files written by torch.save are three complete saves with the steps in their names."""
    measure_rightly("torch_save", "steps", needs=("torch",), saves=3)


def test_torch_save_of_one_directory_per_step(measure_rightly: Measure) -> None:
    """Model and optimizer files in one step's directory are one save, complete without any marker file."""
    measure_rightly("torch_save", "directories", needs=("torch",), saves=3)


def test_torch_save_over_one_name(measure_rightly: Measure, tmp_path: Path) -> None:
    """Writing one file name three times with quiet between is three saves, each with its own bytes."""
    if FileSystems().type_of(os.fspath(tmp_path), tmp_path.stat().st_dev) == "overlay":
        pytest.skip("on overlay it can't be known when a close has flushed the file")
    measure_rightly("torch_save", "overwrite", needs=("torch",), saves=3)


def test_safetensors_of_one_file_per_step(measure_rightly: Measure) -> None:
    """A file that safetensors writes under a temporary name and renames is one file of one save."""
    measure_rightly("safetensors_save", "steps", needs=("torch", "safetensors"), saves=3)


def test_safetensors_in_shards(measure_rightly: Measure) -> None:
    """Two safetensors shards and their index are one save of three files."""
    measure_rightly("safetensors_save", "sharded", needs=("torch", "safetensors"), saves=3)


def test_hugging_face_trainer_with_retention(measure_rightly: Measure) -> None:
    """Four Trainer saves with save_total_limit=2 are four complete saves, two deletions and two kept."""
    measurement = measure_rightly("hf_trainer", needs=("torch", "transformers", "accelerate"), saves=4)
    expected = {
        "ckpt_deleted_checkpoints_total": 2,
        "ckpt_retained_checkpoints": 2,
        "ckpt_retained_bytes": sum(truth.bytes for truth in measurement.truths[-2:]),
    }
    assert {name: measurement.scrape.get((name, "")) for name in expected} == expected


def test_torch_distributed_checkpoint(measure_rightly: Measure) -> None:
    """Shards of two ranks and the metadata renamed into place after them are one save."""
    measure_rightly("torch_dcp", "sync", needs=("torch",), saves=3)


def test_asynchronous_torch_distributed_checkpoint(measure_rightly: Measure) -> None:
    """A save written in the background lasts until its metadata stands, not until the call returns."""
    measure_rightly("torch_dcp", "async", needs=("torch",), saves=3)


def test_lightning_moved_in_by_a_rename(measure_rightly: Measure) -> None:
    """A file renamed in from outside the watched tree has its bytes counted and no duration at all."""
    measure_rightly("lightning_save", needs=("torch", "lightning"), saves=3)


@pytest.mark.skipif(not os.path.isdir(OTHER_FILE_SYSTEM), reason=f"{OTHER_FILE_SYSTEM} is not there")
def test_lightning_copied_in_from_another_file_system(measure_rightly: Measure) -> None:
    """A checkpoint copied in lasts as long as the copy, which at its end sets an older modification time."""
    environment = {"TMPDIR": OTHER_FILE_SYSTEM}
    measure_rightly("lightning_save", needs=("torch", "lightning"), environment=environment, saves=3)


def test_keras_of_one_file_per_epoch(measure_rightly: Measure) -> None:
    """One .keras file per epoch is one save each, with the epoch as its step."""
    measure_rightly("keras_save", needs=("torch", "keras"), saves=3)


def test_deepspeed_zero_on_two_ranks(measure_rightly: Measure) -> None:
    """The files of both ranks are one save of their step's directory; the file named latest is no save."""
    measure_rightly("deepspeed_save", needs=("torch", "deepspeed"), saves=3)


def test_orbax_in_the_background(measure_rightly: Measure) -> None:
    """A directory written under a temporary name is one save with the step of the name it is renamed to."""
    measure_rightly("orbax_save", needs=("jax", "orbax"), saves=3)
