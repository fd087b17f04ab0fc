"""Recorded events of real saves, replayed.

The expected values were read off the traces and the frameworks' rules: the first write-open, the commit, and
the sizes of the files that are there when the save ends.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from ckpt_exporter.model import DetectSettings, Save
from ckpt_exporter.replay import Replayed, replay

HERE = Path(__file__).parent


class Expected(NamedTuple):
    layout: str
    step: int | None
    start: float
    end: float
    bytes: int
    files: int


DCP_THREAD = 100_682_220 + 100_685_058 + 5_349
DCP_PROCESS = 100_682_220 + 100_685_058 + 5_350
DCP_SYNC = 100_682_220 + 100_685_058 + 5_341
PEFT = 5_158 + 264_216 + 1_078 + 5_265 + 538_303 + 1_465 + 14_455
ACCELERATE = 33_588_480 + 67_188_223 + 14_497
HF = 722 + 195 + 74_733_704 + 5_265 + 149_491_595 + 1_465 + 14_455
MEGATRON = 2 * 50_341_110 + 50_342_435 + 50_341_110 + 8_188 + 63 + 570
ZERO2 = 16_797_721 + 2 * 50_385_029
TF = 100_663_851 + 565
KERAS = 94_520_830 + 94_516_168
MIB = 1 << 20

EXPECTED: dict[str, list[Expected]] = {
    "accelerate_save_state": [
        # checkpoint_0, _1, _2 count saves: no training step is in the name.
        Expected("accelerate", None, 1.9965, 2.0563, ACCELERATE, 3),
        Expected("accelerate", None, 2.0842, 2.1772, ACCELERATE, 3),
        Expected("accelerate", None, 2.2109, 2.2416, ACCELERATE, 3),
    ],
    "dcp_async_process": [
        Expected("dcp", 10, 6.6420, 6.9500, DCP_PROCESS, 3),
        Expected("dcp", 20, 7.3557, 7.7153, DCP_PROCESS, 3),
    ],
    "dcp_async_thread": [
        Expected("dcp", 10, 4.4340, 4.7338, DCP_THREAD, 3),
        Expected("dcp", 20, 4.9257, 5.2742, DCP_THREAD, 3),
    ],
    "dcp_hf_consolidated": [
        # Shards and the consolidated copy are both written: 4 + 2 files and the index.
        Expected(
            "safetensors", 100, 4.0440, 4.6458, 2 * 33_554_960 + 2 * 33_554_976 + 2 * 67_109_205 + 441, 7
        ),
    ],
    "dcp_sync": [
        Expected("dcp", 10, 3.3393, 3.5692, DCP_SYNC, 3),
        Expected("dcp", 20, 3.5827, 3.8395, DCP_SYNC, 3),
        # Step 20 again, in place: a save of its own.
        Expected("dcp", 20, 3.8647, 3.9518, DCP_SYNC, 3),
    ],
    "deepspeed_fast_writer": [Expected("torch_save", None, 3.3751, 3.6646, 134_218_867, 1)],
    "deepspeed_zero2": [
        Expected("deepspeed", 1, 24.5188, 24.5890, ZERO2, 3),
        Expected("deepspeed", 2, 24.9827, 25.1385, ZERO2, 3),
    ],
    # `latest` at 5.362 is 1.9 s older than the last shard, which decides.
    "deepspeed_zero2_slow_rank1": [Expected("deepspeed", 1, 5.2755, 7.2982, 8_400_089 + 2 * 25_194_501, 3)],
    "deepspeed_zero3": [
        Expected("deepspeed", 1, 3.9210, 4.0105, 2 * 7_517 + 2 * 50_384_581, 4),
        Expected("deepspeed", 2, 4.4156, 4.5439, 2 * 7_517 + 2 * 50_384_581, 4),
    ],
    "deepspeed_zero3_slow_rank1": [Expected("deepspeed", 1, 4.1930, 8.2606, 2 * 4_927 + 2 * 25_194_117, 4)],
    "fsdp2_hf_layout": [
        Expected(
            "hf_trainer",
            5,
            3.5717,
            3.7705,
            2 * 16_818_832 + 6_708 + 33_676_643 + 33_639_241 + 21_449 + 1_273 + 2 * 6_661 + 2,
            10,
        ),
    ],
    "hf_peft": [
        # LoRA saves are smaller than min_bytes; name and marker make them saves.
        Expected("hf_trainer", 2, 4.2473, 4.2559, PEFT + 1_074, 8),
        Expected("hf_trainer", 4, 4.3071, 4.3122, PEFT + 1_395, 8),
        Expected("hf_trainer", 6, 4.3657, 4.3722, PEFT + 1_727, 8),
    ],
    "hf_trainer": [
        Expected("hf_trainer", 2, 3.5686, 3.8248, HF + 1_075, 8),
        Expected("hf_trainer", 4, 3.8988, 4.4101, HF + 1_395, 8),
        Expected("hf_trainer", 6, 4.4922, 5.0169, HF + 1_730, 8),
    ],
    "keras": [
        Expected("keras", 1, 2.7742, 3.3078, KERAS, 2),
        # The backup directory is rewritten in place after each epoch, and removed at the end.
        Expected("keras", None, 3.3084, 3.5813, 94_516_168 + 24, 2),
        Expected("keras", 2, 3.7414, 4.3263, KERAS, 2),
        Expected("keras", None, 4.3267, 4.4059, 94_516_168 + 24, 2),
    ],
    "lightning": [
        Expected("lightning", 2, 3.2749, 3.2749, 100_782_048, 1),
        Expected("lightning", 4, 3.5483, 3.5483, 100_782_176, 1),
    ],
    "lightning_tmp_other_fs": [
        Expected("lightning", 2, 3.4002, 3.4435, 100_782_112, 1),
        Expected("lightning", 4, 3.6354, 3.8595, 100_782_176, 1),
    ],
    "lightning_tmpdir_watched": [
        Expected("lightning", 2, 3.4998, 3.7484, 100_782_112, 1),
        Expected("lightning", 4, 3.8734, 4.1365, 100_782_176, 1),
    ],
    "megatron_torch_dist": [
        Expected("megatron", 10, 6.9529, 8.0823, MEGATRON, 7),
        Expected("megatron", 20, 8.6578, 9.1127, MEGATRON, 7),
    ],
    "mindspore_save": [
        Expected("mindspore", 100, 0.9444, 1.1427, 67_141_924, 1),
        Expected("mindspore", 200, 1.2830, 1.3122, 67_141_924, 1),
        Expected("mindspore", 300, 3.2826, 3.4267, 67_142_304, 1),
    ],
    "safetensors": [
        Expected("safetensors", None, 1.1479, 1.7475, 268_436_736, 1),
        Expected("safetensors", None, 2.0483, 2.1030, 16_777_296, 1),
    ],
    # Fourteen names without a checkpoint's name, one after the other in one place; the links count nothing.
    "syscall_primitives_ext4": [Expected("generic", None, 0.0049, 4.3603, 12 * 8 * MIB + 2 * 1024 * MIB, 14)],
    "tensorflow_ckpt": [
        Expected("tensorflow", 10, 1.5932, 1.8266, TF, 2),
        Expected("tensorflow", 20, 1.8291, 2.0707, TF, 2),
        Expected("tensorflow", 30, 2.0730, 2.3142, TF, 2),
    ],
    "torch_save": [
        # Three names within a second in one place, then the first of them again.
        Expected("torch_save", 100, 1.0024, 1.8814, 268_441_079 + 16_778_793 + 16_777_575, 3),
        Expected("torch_save", 100, 2.1940, 2.2002, 16_778_835, 1),
    ],
    "torch_skip_data": [Expected("torch_save", None, 1.1195, 1.1204, 134_221_147, 1)],
}

DELETED = {
    "accelerate_save_state": 1, "hf_peft": 1, "hf_trainer": 1, "keras": 1, "lightning": 1,
    "lightning_tmp_other_fs": 1, "lightning_tmpdir_watched": 1, "orbax_async": 1, "tensorflow_ckpt": 1,
}  # fmt: skip


def played(name: str) -> Replayed:
    return replay(str(HERE / f"{name}.jsonl"), DetectSettings())


def summed_up(save: Save) -> Expected:
    return Expected(save.layout, save.step, save.start, save.end, save.bytes, save.files)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_trace_gives_the_right_saves(name: str) -> None:
    """Every recorded framework gives its saves with the right start, end, bytes, files, step and layout."""
    saves = played(name).saves

    assert [summed_up(save) for save in saves] == EXPECTED[name]
    assert {save.result for save in saves} == {"complete"}


@pytest.mark.parametrize("name", sorted({*EXPECTED, "orbax_async"}))
def test_trace_counts_retention(name: str) -> None:
    """Checkpoints removed by retention are counted once each, and nothing is left open."""
    snapshot = played(name).snapshot

    assert snapshot is not None
    assert sum(d.deleted_checkpoints for d in snapshot.directories) == DELETED.get(name, 0)
    assert all(not d.open_saves for d in snapshot.directories)


def test_orbax_counts_what_the_final_directory_holds() -> None:
    """An Orbax save ends with the rename of its staged directory and counts what is in it then."""
    saves = played("orbax_async").saves

    # Sizes as the scan of the renamed directory listed them.
    assert [(s.step, s.start, s.end, s.bytes, s.files) for s in saves] == [
        (100, 1.6705, 2.5108, 124_052_231, 15),
        (200, 2.7154, 3.2989, 124_056_578, 16),
        (300, 3.5040, 4.1042, 124_052_229, 15),
    ]
    assert {(s.layout, s.result) for s in saves} == {("orbax", "complete")}


@pytest.mark.parametrize("name", ["lightning"])
def test_moved_in_save_has_no_duration(name: str) -> None:
    """A checkpoint that arrives by a rename has bytes, but no duration and no bandwidth."""
    for save in played(name).saves:
        assert save.duration_seconds is None
        assert save.average_bandwidth is None
        assert save.sustained_bandwidth is None
        assert save.peak_bandwidth is None


def test_pointer_before_data_is_noted() -> None:
    """A pointer that is switched before the last shard is written is noted."""
    assert played("deepspeed_zero2_slow_rank1").saves[0].notes == ("pointer_before_data",)
    assert played("deepspeed_zero3_slow_rank1").saves[0].notes == ()


def test_holes_have_no_bandwidth() -> None:
    """A file of holes, filled later by something else, has a size but no bandwidth."""
    (save,) = played("torch_skip_data").saves

    assert save.bytes == 134_221_147
    assert save.average_bandwidth is None
