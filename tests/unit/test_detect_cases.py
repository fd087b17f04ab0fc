"""Faults of checkpoint watching that people reported, as stories with the right value."""

from __future__ import annotations

import pytest

from tests.story import Story

MB = 1_000_000
GONE = 700.0  # seconds after which a save without its commit is given up


def test_staged_directory_is_one_save() -> None:
    """Three files in tmp-checkpoint-500, renamed to checkpoint-500, are one save of step 500."""
    story = Story().at(0).mkdir("tmp-checkpoint-500")
    for i in range(3):
        story.write(f"tmp-checkpoint-500/f{i}.bin", 2.0 * i, 2.0 * i + 0.5, MB)
    story.at(4.6).rename("tmp-checkpoint-500", "checkpoint-500", is_dir=True).at(60)

    (save,) = story.saves
    assert (save.result, save.step, save.bytes, save.files) == ("complete", 500, 3 * MB, 3)
    assert save.path == "/data/ckpt/checkpoint-500"
    assert save.duration_seconds == pytest.approx(4.6)


def test_staged_directory_never_renamed_is_incomplete() -> None:
    """An orphan tmp-checkpoint-500 is incomplete after ten silent minutes, and never complete."""
    story = Story().at(0).mkdir("tmp-checkpoint-500")
    for i in range(3):
        story.write(f"tmp-checkpoint-500/f{i}.bin", i, i + 0.5, MB)

    assert story.at(602).results() == []
    assert story.at(603).results() == ["incomplete"]
    assert story.saves[0].reason == "no_commit"
    assert not story.open_saves()


@pytest.mark.parametrize("named_before_close", [True, False])
def test_temporary_file_is_counted_once_under_its_final_name(named_before_close: bool) -> None:
    """A writer that renames its hidden file, before or after the close, makes one save of one file."""
    story = Story().at(0).create(".tmpAbC123").at(1).progress(".tmpAbC123", 20 * MB)
    if named_before_close:
        story.at(2).rename(".tmpAbC123", "model.safetensors").close("model.safetensors", 40 * MB)
    else:
        story.at(2).close(".tmpAbC123", 40 * MB).rename(".tmpAbC123", "model.safetensors")
    story.at(13)

    (save,) = story.saves
    assert (save.result, save.bytes, save.files) == ("complete", 40 * MB, 1)
    assert save.path == "/data/ckpt/model.safetensors"
    assert save.duration_seconds == pytest.approx(2.0)


def test_killed_writer_leaves_an_incomplete_save() -> None:
    """A kill closes the file as well; far fewer bytes than the save before are not complete."""
    story = Story()
    for name in ("model.bin", "optimizer.bin", "rng.bin"):
        story.write(f"checkpoint-5/{name}", 0, 1, 100 * MB)
    story.at(20).create("checkpoint-10/model.bin").at(21).close("checkpoint-10/model.bin", 30 * MB).at(60)

    assert [(s.step, s.result, s.reason) for s in story.saves] == [
        (5, "complete", None),
        (10, "incomplete", "truncated"),
    ]


def test_metadata_ends_a_sharded_save_not_the_early_pointer() -> None:
    """With `latest` switched at 1 s, shards to 6 s and .metadata at 6.1 s the save took 6.1 s."""
    story = Story().at(0).create("step-20/__0_0.distcp").create("step-20/__1_0.distcp")
    story.at(1).link("latest")
    story.at(6).close("step-20/__0_0.distcp", 5 * MB).close("step-20/__1_0.distcp", 5 * MB)
    story.create("step-20/.metadata.tmp").at(6.1).close("step-20/.metadata.tmp", 500)
    story.rename("step-20/.metadata.tmp", "step-20/.metadata").at(20)

    (save,) = story.saves
    assert (save.result, save.step, save.layout) == ("complete", 20, "dcp")
    assert save.duration_seconds == pytest.approx(6.1)
    assert save.notes == ("pointer_before_data",)


def test_shards_without_metadata_are_incomplete() -> None:
    """A sharded save whose .metadata never comes is incomplete."""
    story = Story().write("step-20/__0_0.distcp", 0, 5, 5 * MB).at(5 + GONE)

    assert story.results() == ["incomplete"]


def test_asynchronous_save_lasts_as_long_as_it_writes() -> None:
    """Files written from t=10 to t=37 are a save of 27 s, whatever the training does meanwhile."""
    story = Story().write("ckpt-100/model.pt", 10, 37, 100 * MB).at(60)

    assert story.saves[0].duration_seconds == pytest.approx(27)


def test_hung_save_stalls_and_ends_incomplete_when_its_writers_vanish() -> None:
    """Ten minutes in a save without new bytes for five is stalled; killed, it is incomplete."""
    story = Story().at(0).create("checkpoint-7/optimizer.pt")
    for t in range(1, 321):
        story.at(t).progress("checkpoint-7/optimizer.pt", t * MB)
    assert not story.open_saves()[0].stalled
    for t in range(321, 621):
        story.at(t).progress("checkpoint-7/optimizer.pt", 320 * MB)

    (now_open,) = story.open_saves()
    assert now_open.stalled
    assert now_open.start == 0
    story.at(621).close("checkpoint-7/optimizer.pt", 320 * MB)
    assert story.at(621 + 601).results() == ["incomplete"]
    assert not story.open_saves()


def test_long_silence_while_a_writer_holds_a_file_is_one_save() -> None:
    """Small files to 8.7 s, then one file open without news to 198.6 s: one save of 198.6 s, then deleted."""
    story = Story().write("checkpoint-9/model.bin", 0, 8.1, 100 * MB)
    story.write("checkpoint-9/tokenizer.json", 8.2, 8.7, 1000)
    story.at(9).create("checkpoint-9/optimizer.bin").at(198.6).close("checkpoint-9/optimizer.bin", 200 * MB)
    story.at(210)
    for name in ("model.bin", "tokenizer.json", "optimizer.bin"):
        story.delete(f"checkpoint-9/{name}")
    story.delete("checkpoint-9", is_dir=True).at(300)

    (save,) = story.saves
    assert save.duration_seconds == pytest.approx(198.6)
    assert save.bytes == 300 * MB + 1000
    assert story.detector.inventory.deleted_checkpoints == 1


def test_steps_are_numbers_and_the_last_save_is_the_latest() -> None:
    """Saves of steps 9900 and 10000 end in that order with numeric steps, whatever older directories hold."""
    story = Story()
    story.write("checkpoint-9900/model.bin", 0, 1, 2 * MB).write("checkpoint-10000/model.bin", 20, 21, 2 * MB)
    story.at(60)

    assert [save.step for save in story.saves] == [9900, 10000]


@pytest.mark.parametrize(
    ("delete_first", "retained"), [(False, [1, 2, 3, 4, 4, 4]), (True, [1, 2, 3, 3, 3, 3])]
)
def test_retention_is_counted_and_is_no_part_of_a_save(delete_first: bool, retained: list[int]) -> None:
    """With a limit of three, deleting before or after each save gives the counts that people see."""
    story = Story()
    story.detector.feed(_scanned())
    seen = []
    for cycle in range(6):
        t = 100.0 * cycle
        if delete_first and cycle >= 3:
            _delete(story.at(t), cycle - 3)
        story.write(f"checkpoint-{cycle}/model.bin", t + 1, t + 2, 5 * MB).at(t + 50)
        seen.append(story.detector.inventory.retained_checkpoints)
        if not delete_first and cycle >= 3:
            _delete(story, cycle - 3)

    assert seen == retained
    assert [save.bytes for save in story.saves] == [5 * MB] * 6
    assert [save.duration_seconds for save in story.saves] == pytest.approx([1.0] * 6)
    assert story.detector.inventory.deleted_checkpoints == 3


def _delete(story: Story, cycle: int) -> None:
    story.delete(f"checkpoint-{cycle}/model.bin").delete(f"checkpoint-{cycle}", is_dir=True)


def _scanned():  # type: ignore[no-untyped-def]
    from ckpt_exporter.model import WatchChange

    return WatchChange(0.0, "d", "rescan", "start")


def test_deleting_another_runs_checkpoint_touches_no_save() -> None:
    """A file of run A deleted while run B saves is one deletion and leaves B's save alone."""
    story = Story().write("runs/A/x.ckpt", 0, 1, 5 * MB).at(30)
    story.create("runs/B/y.ckpt").at(31).delete("runs/A/x.ckpt").at(32).close("runs/B/y.ckpt", 7 * MB).at(60)

    assert [save.bytes for save in story.saves] == [5 * MB, 7 * MB]
    assert story.detector.inventory.deleted_checkpoints == 1


def test_full_disk_makes_the_save_incomplete() -> None:
    """A file that ends exactly where the file system was full is not complete."""
    story = Story().at(0).create("model.bin").at(1).close("model.bin", 1 << 20).space(0).at(12)

    assert [(save.result, save.reason) for save in story.saves] == [("incomplete", "disk_full")]


def test_temporary_file_removed_before_its_rename_is_aborted() -> None:
    """A temporary file that is deleted instead of renamed is one aborted save and no other."""
    story = Story().at(0).create("model.bin.tmp").at(1).close("model.bin.tmp", 1 << 20)
    story.at(1.1).delete("model.bin.tmp").at(GONE)

    assert story.results() == ["aborted"]


def test_hang_leaves_finished_saves_alone_and_unknown_deletes_do_no_harm() -> None:
    """Four saves of 0.38 s and one that hangs: four complete, one stalled, and a stray delete is ignored."""
    story = Story()
    for i in range(4):
        story.write(f"step-{i + 10}/model.pt", 100.0 * i, 100.0 * i + 0.38, 5 * MB)
    story.at(400).create("step-14/model.pt").at(400.2).progress("step-14/model.pt", 2 * MB)
    story.at(500).delete("step-99", is_dir=True).progress("step-14/model.pt", 2 * MB)

    assert [save.duration_seconds for save in story.saves] == pytest.approx([0.38] * 4)
    assert [save.stalled for save in story.open_saves()] == [True]


def test_copy_of_a_checkpoint_is_no_new_step() -> None:
    """A copy beside a numbered checkpoint has no step, and says so when the copier is known."""
    story = Story().at(0).mkdir("100.copy").create("100.copy/model.bin")
    story.writers(77, commands=("cp",), paths=("/data/ckpt/100.copy/model.bin",))
    story.at(1).close("100.copy/model.bin", 5 * MB).at(20)

    (save,) = story.saves
    assert save.step is None
    assert save.notes == ("copy",)


def test_two_jobs_in_one_directory() -> None:
    """Two writers of one checkpoint are one save; both overwriting it later are the next."""
    story = Story().at(0).create("out/checkpoint-100/a.bin").create("out/checkpoint-100/b.bin")
    story.writers(1, paths=("/data/ckpt/out/checkpoint-100/a.bin",))
    story.writers(2, paths=("/data/ckpt/out/checkpoint-100/b.bin",))
    story.at(2).close("out/checkpoint-100/a.bin", 3 * MB).at(3).close("out/checkpoint-100/b.bin", 3 * MB)
    story.at(5).open("out/checkpoint-100/a.bin", size=0).open("out/checkpoint-100/b.bin", size=0)
    story.at(6).close("out/checkpoint-100/a.bin", 3 * MB).close("out/checkpoint-100/b.bin", 4 * MB).at(30)

    assert [(save.bytes, save.files) for save in story.saves] == [(6 * MB, 2), (7 * MB, 2)]
    assert story.saves[0].pids == (1, 2)
    assert [save.duration_seconds for save in story.saves] == pytest.approx([3.0, 1.0])


def test_links_are_no_bytes_and_no_save() -> None:
    """A symbolic link to the checkpoint, even one to itself, adds nothing."""
    story = Story().write("epoch=1-step=20.ckpt", 0, 1, 10 * MB).link("last.ckpt").at(20)
    story.delete("last.ckpt").link("last.ckpt").at(60)

    assert [(save.bytes, save.files) for save in story.saves] == [(10 * MB, 1)]


def test_time_in_fsync_belongs_to_the_save() -> None:
    """16 MB written in 0.1 s and closed after 10 s of fsync: 10.1 s, 1.6 MB/s, 160 MB/s while it flowed."""
    story = Story().at(0).create("model.pt").at(10.1).close("model.pt", 16 * MB, modified=0.1).at(30)

    (save,) = story.saves
    assert save.duration_seconds == pytest.approx(10.1)
    assert save.average_bandwidth == pytest.approx(16 * MB / 10.1)
    assert save.sustained_bandwidth == pytest.approx(160 * MB)


def test_process_death_leaves_an_incomplete_directory() -> None:
    """Two of four files in 100.incomplete/ and nobody left: incomplete, and nothing in progress."""
    story = Story().write("100.incomplete/a", 0, 1, 5 * MB).write("100.incomplete/b", 1, 2, 5 * MB)
    story.writers(5, alive=False).at(2 + GONE)

    assert story.results() == ["incomplete"]
    assert not story.open_saves()


def test_small_and_large_files_of_one_save_add_up() -> None:
    """One file of 50 MB and nine of 20 kB are 50.18 MB."""
    story = Story().write("ckpt-1/model.bin", 0, 1, 50 * MB)
    for i in range(9):
        story.write(f"ckpt-1/extra{i}.json", 1, 1.01, 20_000)
    story.at(30)

    assert (story.saves[0].bytes, story.saves[0].files) == (50_180_000, 10)


def test_two_hundred_nested_checkpoints_without_pause() -> None:
    """200 checkpoints of three nested directories and three tiny files each are 200 saves of 3 files."""
    story = Story(min_bytes=1)
    for k in range(1, 201):
        t = 0.001 * k
        story.at(t).mkdir(f"global_step{k}").mkdir(f"global_step{k}/actor").mkdir(
            f"global_step{k}/actor/optim"
        )
        for i in range(3):
            story.create(f"global_step{k}/actor/optim/f{i}").close(f"global_step{k}/actor/optim/f{i}", 10)
    story.at(30)

    assert len(story.saves) == 200
    assert sorted(save.step or 0 for save in story.saves) == list(range(1, 201))
    assert sum(save.bytes for save in story.saves) == 6_000
    assert sum(save.files for save in story.saves) == 600


def test_ten_thousand_files_are_one_save() -> None:
    """10,000 files written into one place are one save."""
    story = Story()
    for i in range(10_000):
        t = 0.001 * i
        story.at(t).create(f"out/file-{i}.bin").close(f"out/file-{i}.bin", 1000)
    story.at(60)

    assert [(save.files, save.bytes) for save in story.saves] == [(10_000, 10 * MB)]
