"""First saves of a run whose writers died before the commit, and plain files that look like them."""

from __future__ import annotations

import pytest

from tests.story import ROOT, Story

MB = 1 << 20


def weights_alone(*commands: str, name: str = "checkpoint-500/model.safetensors") -> Story:
    """Write config and weights, and nothing else, by a process that is seen while it does."""
    story = Story().write("checkpoint-500/config.json", 0, 0.1, 700).at(0.2).create(name)
    story.at(0.5).writers(7, paths=(f"{ROOT}/{name}",), commands=commands or ("python",))
    return story.at(9).close(name, 40 * MB)


def test_trainer_killed_in_its_first_weights_is_incomplete() -> None:
    """Weights whose writer was gone when they were closed lack trainer_state.json, at first as well."""
    story = weights_alone().at(9.1).writers(7, alive=False).at(30)

    (save,) = story.saves
    assert (save.result, save.reason, save.step) == ("incomplete", "no_commit", 500)
    assert (save.bytes, save.end) == (40 * MB + 700, 9)


def test_saved_model_of_a_process_that_ends_normally_is_complete() -> None:
    """A process that lives after its last close meant the weights alone; that it ends then is no fault."""
    story = weights_alone().at(9.01).writers(7).at(9.6).writers(7, alive=False).at(30)

    assert [(s.result, s.end) for s in story.saves] == [("complete", 9)]


@pytest.mark.parametrize("known", [False, True])
def test_saved_model_of_a_living_or_unknown_process_is_complete(known: bool) -> None:
    """Weights alone of which nobody is known to have died are complete after ten quiet seconds."""
    story = Story().write("checkpoint-500/model.safetensors", 0, 9, 40 * MB)
    if known:
        story.writers(7)

    assert story.at(18.9).results() == []
    assert story.at(19.1).results() == ["complete"]


def test_copy_that_ends_with_its_last_file_is_complete() -> None:
    """Programs that copy and end at once with the last close of weights alone were not killed."""
    assert weights_alone("wget").at(9.1).writers(7, alive=False).at(30).results() == ["complete"]


def test_weights_without_all_their_parts_are_incomplete_once_the_writer_is_gone() -> None:
    """Part 1 of 2 alone is no model, though its writer lived after the close and died before part 2."""
    part = "checkpoint-500/model-00001-of-00002.safetensors"
    story = weights_alone(name=part).at(9.01).writers(7).at(9.6).writers(7, alive=False)

    assert [(s.result, s.reason) for s in story.at(30).saves] == [("incomplete", "no_commit")]


def test_weights_with_all_their_parts_are_complete() -> None:
    """Both parts of two, and a writer that ended after them, are a model."""
    part = "checkpoint-500/model-0000{}-of-00002.safetensors"
    story = weights_alone(name=part.format(1)).write(part.format(2), 9.1, 12, 5 * MB)
    story.at(12.01).writers(7).at(12.6).writers(7, alive=False)

    assert story.at(40).results() == ["complete"]


def test_first_save_of_a_pointer_layout_is_incomplete_when_its_writers_were_killed() -> None:
    """DeepSpeed shards without `latest`, closed by their writers' death, are incomplete."""
    shard = "global_step5/mp_rank_00_model_states.pt"
    story = Story().at(0).create(shard).at(1).writers(7, paths=(f"{ROOT}/{shard}",))
    story.at(5).close(shard, 40 * MB).at(5.1).writers(7, alive=False).at(700)

    assert [(s.result, s.reason) for s in story.saves] == [("incomplete", "no_commit")]


def test_trainer_that_fails_between_weights_and_commit_is_incomplete_where_saves_are_committed() -> None:
    """Weights alone beside saves that all had trainer_state.json are given up after ten minutes."""
    story = Story().write("checkpoint-400/model.safetensors", 0, 9, 40 * MB)
    story.write("checkpoint-400/trainer_state.json", 10, 10.1, 1000)
    story.write("checkpoint-500/model.safetensors", 100, 109, 40 * MB).at(109.1).writers(7)
    story.at(111).writers(7, alive=False)

    assert story.at(700).results() == ["complete"]
    assert story.at(720).results() == ["complete", "incomplete"]


def test_merged_copy_beside_a_committed_checkpoint_is_complete() -> None:
    """checkpoint-400-merged, made an hour after checkpoint-400, adds to a checkpoint that is committed."""
    story = Story().write("checkpoint-400/model.safetensors", 0, 9, 40 * MB)
    story.write("checkpoint-400/trainer_state.json", 10, 10.1, 1000)
    story.write("checkpoint-400-merged/model.safetensors", 3700, 3709, 80 * MB).at(3709.1).writers(7)

    assert story.at(3730).results() == ["complete", "complete"]


def test_accelerate_with_a_gradient_scaler_needs_no_trainer_state() -> None:
    """The scaler.pt of accelerate, in what a script called checkpoint-N, is no sign of the Trainer."""
    story = Story()
    for t, name in enumerate(("model.safetensors", "optimizer.bin", "scaler.pt", "random_states_0.pkl")):
        story.write(f"checkpoint-500/{name}", t, t + 0.5, 2 * MB)

    assert story.at(20).results() == ["complete"]


def test_stop_between_weights_and_commit_judges_nothing() -> None:
    """When watching ends right after weights alone, whether more would have come is not known."""
    story = weights_alone().at(9.1).writers(7)

    assert story.detector.finish(9.2) == []


def test_death_of_another_process_says_nothing_of_a_save() -> None:
    """That the writer of the last save ended is no news of a save that somebody else writes."""
    story = weights_alone().at(9.01).writers(7).at(20)
    story.at(30).create("checkpoint-600/model.safetensors").at(31).writers(7, alive=False)
    story.at(39).close("checkpoint-600/model.safetensors", 40 * MB)

    assert story.at(60).results() == ["complete", "complete"]
