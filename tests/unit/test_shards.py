"""The files of a save that are kept by name."""

from __future__ import annotations

from ckpt_exporter.detect.progress import MAX_SHARDS
from ckpt_exporter.model import Save, Shard
from tests.story import Story

MB = 1_000_000


def only(story: Story) -> Save:
    (save,) = story.saves
    return save


def test_names_bytes_and_times() -> None:
    """Each file has its name below the checkpoint, its bytes, first open and last close, last end last."""
    story = Story().at(10).create("step-7/__1_0.distcp").at(11).create("step-7/__0_0.distcp")
    story.at(15).close("step-7/__0_0.distcp", 20 * MB).at(18).close("step-7/__1_0.distcp", 30 * MB)
    story.at(19).create("step-7/.metadata").close("step-7/.metadata", 5000).at(40)

    assert only(story).shards == (
        Shard("__0_0.distcp", 20 * MB, 11, 15),
        Shard("__1_0.distcp", 30 * MB, 10, 18),
        Shard(".metadata", 5000, 19, 19),
    )
    assert only(story).written_bytes == 50 * MB + 5000


def test_files_below_the_checkpoint() -> None:
    """A file in a directory of the checkpoint keeps that directory in its name."""
    story = Story().at(1).create("checkpoint-5/global_step5/rank_3.pt").at(4)
    story.close("checkpoint-5/global_step5/rank_3.pt", 20 * MB)
    story.create("checkpoint-5/trainer_state.json").close("checkpoint-5/trainer_state.json", 100).at(60)

    assert [shard.name for shard in only(story).shards] == ["global_step5/rank_3.pt", "trainer_state.json"]


def test_a_bounded_number() -> None:
    """Of many files those that ended last are kept; small ones beside the data are not, however late."""
    story = Story().at(0)
    for rank in range(100):
        story.create(f"step-7/__{rank}_0.distcp")
    for rank in range(100):
        story.at(1.0 + rank / 10).close(f"step-7/__{rank}_0.distcp", MB)
    for number in range(70):
        story.at(20.0).create(f"step-7/config_{number}.json").close(f"step-7/config_{number}.json", 10)
    story.create("step-7/.metadata").close("step-7/.metadata", 5000).at(60)
    shards = only(story).shards

    assert only(story).files == 171
    assert len(shards) == MAX_SHARDS
    assert [shard.name for shard in shards] == [f"__{rank}_0.distcp" for rank in range(36, 100)]


def test_a_file_that_was_moved_in() -> None:
    """A file that arrived by a rename has no first open, and its bytes were not seen arriving."""
    story = Story().at(5).rename(None, "step-7/model.pt", size=20 * MB).at(60)
    save = only(story)

    assert save.shards == (Shard("model.pt", 20 * MB, None, 5),)
    assert save.written_bytes is None
