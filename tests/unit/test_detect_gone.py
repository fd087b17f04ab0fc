"""Checkpoints that are deleted at once: what is known of them, and what is not."""

from __future__ import annotations

from typing import Any

from tests.story import Story

MB = 1 << 20


def found(*names: str, t: float = 1.0, **sizes: Any) -> Story:
    """Make a directory whose files a scan finds, written before it was watched."""
    story = Story().at(t).mkdir(names[0].partition("/")[0])
    for name in names:
        story.create(name, found=True, size=5 * MB, started=t - 0.002, **sizes)
    return story


def gone(story: Story, *names: str) -> Story:
    """Delete them, as events tell, and their directory."""
    for name in names:
        story.delete(name)
    return story.delete(names[0].partition("/")[0], is_dir=True).at(1000)


def test_found_with_its_marker_and_removed_at_once_is_complete() -> None:
    """Files that a scan found, and whose removal alone was seen, had been closed, and so committed."""
    names = ("checkpoint-7/model.safetensors", "checkpoint-7/optimizer.pt", "checkpoint-7/trainer_state.json")
    story = gone(found(*names), *names)

    assert [(s.result, s.step, s.bytes) for s in story.saves] == [("complete", 7, 15 * MB)]
    assert story.detector.inventory.deleted_checkpoints == 1


def test_found_without_its_marker_and_removed_at_once_is_unknown() -> None:
    """Its marker may have been there and gone before the scan: neither complete nor aborted."""
    names = ("checkpoint-7/model.safetensors", "checkpoint-7/optimizer.pt")
    story = gone(found(*names), *names)

    assert story.saves == []
    assert not story.open_saves()


def test_watched_without_its_marker_and_removed_is_aborted() -> None:
    """Once something was seen of its being written, its marker, the last file, would have been, too."""
    story = found("checkpoint-7/model.safetensors").at(1.5).create("checkpoint-7/optimizer.pt")
    story.at(2).close("checkpoint-7/optimizer.pt", 2 * MB)

    assert gone(story, "checkpoint-7/model.safetensors", "checkpoint-7/optimizer.pt").results() == ["aborted"]


def test_found_while_it_is_being_written_and_removed_is_aborted() -> None:
    """A found file that a writer still holds was not closed before it was deleted."""
    story = found("step-7/__0_0.distcp").at(1.1).progress("step-7/__0_0.distcp", 6 * MB, writers=1).at(1.2)

    assert gone(story, "step-7/__0_0.distcp").results() == ["aborted"]


def test_found_temporary_file_that_is_removed_is_aborted() -> None:
    """A temporary name never published is an aborted save, however short it was there."""
    story = gone(found("tmp-checkpoint-7/model.bin"), "tmp-checkpoint-7/model.bin")

    assert story.results() == ["aborted"]


def test_removed_before_its_size_could_be_asked_is_a_save_of_unknown_size() -> None:
    """A checkpoint's name that was closed and deleted at once counts; a file called otherwise does not."""
    story = Story()
    for t, name in enumerate(
        ("model_step7.pt", "ckpt-8/model.bin", "probe", "ckpt-9/.tmpAbCdEf", "ckpt-9.txt")
    ):
        story.at(t * 20).create(name).close(name, None).at(t * 20 + 0.001).delete(name)

    assert [(s.result, s.step, s.bytes) for s in story.at(200).saves] == [
        ("complete", 7, 0),
        ("complete", 8, 0),
    ]
    assert [s.average_bandwidth for s in story.saves] == [None, None]


def test_size_asked_later_decides_again() -> None:
    """A file whose size at its close could not be asked, but soon after, is judged by that size."""
    story = Story().at(0).create("ckpt-8/model.bin").at(1).close("ckpt-8/model.bin", None)
    story.at(1.1).progress("ckpt-8/model.bin", 1000, writers=0)

    assert story.at(1000).saves == []


def test_a_directory_renamed_over_one_whose_deletion_was_lost() -> None:
    """Files that are still believed to be there are of a version before: it ends, and all are followed."""
    names = {"model.bin": 0.9, "optimizer.bin": 0.1}  # the one that is listed first was written last
    story = Story().at(1)
    for folder in ("tmp-checkpoint-4", "checkpoint-4"):
        for name, started in names.items():
            story.create(f"{folder}/{name}", found=True, size=5 * MB, started=started)
            story.close(f"{folder}/{name}", 5 * MB)
    story.at(2).rename("checkpoint-4", "tmp-checkpoint-4", is_dir=True)

    assert story.detector.inventory.below("checkpoint-4") == []
    story.at(3).rename("tmp-checkpoint-4", "checkpoint-4", is_dir=True).at(100)
    assert {path.rpartition("/")[2] for path in story.detector.inventory.below("checkpoint-4")} == set(names)
