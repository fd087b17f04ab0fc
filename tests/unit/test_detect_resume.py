"""Saves that were being written when watching began: what belongs to them, and what can't be known."""

from __future__ import annotations

from ckpt_exporter.model import WatchChange
from tests.story import Story

MB = 1_000_000
WATCHING = 100.0


def found(story: Story, name: str, size: int, written: tuple[float | None, float], **more: bool) -> None:
    """Find a file at the start that was written from a birth (None: not known) to a last change."""
    born, modified = written
    story.create(name, size=size, found=True, initial=True, started=born, modified=modified, **more)


def listed(story: Story) -> Story:
    story.detector.feed(WatchChange(WATCHING, "d", "rescan", "start"))
    return story


def commit(story: Story, t: float) -> Story:
    state = "checkpoint-3/trainer_state.json"
    return story.at(t).create(state).close(state, 19).at(t + 60)


def test_going_on_where_other_hosts_write_too() -> None:
    """Whose the finished file is can't be known: no duration, no rate, and a note that it is partial."""
    story = Story().at(WATCHING)
    found(story, "checkpoint-3/model.safetensors", 5 * MB, (None, 90.0), local=False)
    found(story, "checkpoint-3/optimizer.pt", 2 * MB, (None, 99.5), local=False)
    listed(story).at(101).open("checkpoint-3/optimizer.pt", size=3 * MB, initial=True)
    story.at(102).progress("checkpoint-3/optimizer.pt", 4 * MB)
    story.at(103).close("checkpoint-3/optimizer.pt", 6 * MB)
    (save,) = commit(story, 104).saves

    assert (save.result, save.step, save.end, save.files) == ("complete", 3, 104, 2)
    assert save.bytes == 6 * MB + 19
    assert (save.duration_seconds, save.average_bandwidth, save.peak_bandwidth) == (None, None, None)
    assert save.notes == ("partial", "reconciled")
    # Three megabytes were there at the first event; the rest was seen arriving.
    assert story.detector.meter.written_bytes == 3 * MB + 19


def test_a_pause_of_the_writer_where_only_this_host_writes() -> None:
    """Between two files nothing is open; the next one goes on with the save that began before."""
    story = Story().at(WATCHING)
    found(story, "checkpoint-3/model.safetensors", 5 * MB, (80.0, 95.0))
    listed(story).write("checkpoint-3/optimizer.pt", 110, 120, 6 * MB)
    (save,) = commit(story, 121).saves

    assert (save.result, save.start, save.end, save.duration_seconds) == ("complete", 80, 121, 41)
    assert (save.bytes, save.files) == (11 * MB + 19, 3)
    assert save.notes == ("reconciled",)
    assert story.detector.meter.written_bytes == 6 * MB + 19


def test_a_pause_of_the_writer_where_other_hosts_write_too() -> None:
    """Such a save is partial, and only what was written here since is counted."""
    story = Story().at(WATCHING)
    found(story, "checkpoint-3/model.safetensors", 5 * MB, (80.0, 95.0), local=False)
    listed(story).write("checkpoint-3/optimizer.pt", 110, 120, 6 * MB)
    (save,) = commit(story, 121).saves

    assert (save.bytes, save.duration_seconds, save.notes) == (6 * MB + 19, None, ("partial",))


def test_what_was_left_of_an_earlier_attempt() -> None:
    """A file given up more than incomplete_seconds ago is no part of the save that comes now."""
    story = Story(incomplete_seconds=600).at(WATCHING)
    found(story, "checkpoint-3/model.safetensors", 5 * MB, (-600.0, -505.0))
    found(story, "checkpoint-3/optimizer.pt", 2 * MB, (97.0, 99.5))
    listed(story).at(101).progress("checkpoint-3/optimizer.pt", 3 * MB)
    story.at(103).close("checkpoint-3/optimizer.pt", 6 * MB)
    (save,) = commit(story, 104).saves

    assert (save.start, save.duration_seconds, save.bytes, save.files) == (97, 7, 6 * MB + 19, 2)


def test_a_file_added_to_what_was_committed() -> None:
    """The marker was there when watching began: the save before it is not counted again."""
    story = Story().at(WATCHING)
    found(story, "checkpoint-3/model.safetensors", 5 * MB, (80.0, 95.0))
    found(story, "checkpoint-3/trainer_state.json", 19, (96.0, 96.0))
    listed(story).at(110).create("checkpoint-3/consolidated.bin").at(115)
    story.close("checkpoint-3/consolidated.bin", 2 * MB).at(800)
    (save,) = story.saves

    assert (save.start, save.bytes, save.files) == (110, 2 * MB, 1)


def test_a_name_that_every_save_uses() -> None:
    """Its birth is that of the first save: when the one that goes on began is not known."""
    story = Story().at(WATCHING)
    found(story, "last.ckpt", 2 * MB, (-86_400.0, 99.5))
    listed(story).at(101).progress("last.ckpt", 3 * MB).at(103).close("last.ckpt", 6 * MB).at(160)
    (save,) = story.saves

    assert (save.bytes, save.end, save.duration_seconds, save.notes) == (6 * MB, 103, None, ("reconciled",))
    assert save.sustained_bandwidth is None


def test_a_name_that_every_save_uses_written_anew() -> None:
    """A save that begins after the watch, and has got as far as the last one when looked at, is measured."""
    story = Story().at(WATCHING)
    found(story, "last.ckpt", 6 * MB, (-86_400.0, 99.5))
    listed(story).at(110).open("last.ckpt", size=6 * MB).at(113).close("last.ckpt", 6 * MB).at(160)
    (save,) = story.saves

    assert (save.start, save.duration_seconds, save.bytes, save.notes) == (110, 3, 6 * MB, ())
