"""Grouping, versions, late files and restarts, as stories."""

from __future__ import annotations

import pytest

from ckpt_exporter.detect.layouts import LAYOUTS, is_noise, is_pointer, is_temporary, locate, step_of_name
from ckpt_exporter.ledger import Ledger
from ckpt_exporter.model import DetectSettings, DirectorySettings, FileEvent, WatchChange
from tests.story import ROOT, Story

MB = 1_000_000


@pytest.mark.parametrize(
    ("path", "key", "step"),
    [
        ("out/checkpoint-500/model.bin", "out/checkpoint-500", 500),
        ("tmp-checkpoint-500/a", "checkpoint-500", 500),
        ("checkpoint-500/global_step500/x.pt", "checkpoint-500", 500),
        ("checkpoint-21000step/global_step21000/x.pt", "checkpoint-21000step", 21000),
        ("checkpoint-500-merged/model.safetensors", "checkpoint-500", 500),
        ("checkpoints/checkpoint_3/model.safetensors", "checkpoints/checkpoint_3", None),
        ("ckpt/iter_0000010/__0_0.distcp", "ckpt/iter_0000010", 10),
        ("s/3/iter_0000010_3_local.dirty.pt", "s/iter_0000010", 10),
        ("global_step_10/actor/x", "global_step_10", 10),
        ("orbax/100.orbax-checkpoint-tmp/state/d", "orbax/100", 100),
        ("orbax/100/state/d", "orbax/100", 100),
        ("ll/version_0/checkpoints/epoch=0-step=2.ckpt", "ll/version_0/checkpoints/epoch=0-step=2.ckpt", 2),
        ("a/x--loss=0.3-epoch=1-step=99-consumed_samples=10.0-last/weights/x",
         "a/x--loss=0.3-epoch=1-step=99-consumed_samples=10.0-last", 99),
        ("a/x--epoch=1-step=99-unfinished", "a/x--epoch=1-step=99", 99),
        ("tf/ckpt-10.data-00000-of-00001", "tf/ckpt-10", 10),
        ("ms/net-1_100.tmp", "ms/net-1_100", 100),
        ("._dlrover_ckpt_stage/300/rank_0.pt", "300", 300),
        ("ep1-ba200-rank0.pt", "ep1-ba200.pt", 200),
        ("100.incomplete/a", "100", 100),
        ("7/rank_0.pt", "7", 7),
    ],
)  # fmt: skip
def test_names_of_checkpoints(path: str, key: str, step: int | None) -> None:
    """A path belongs to the outermost checkpoint in it, staged or not."""
    unit = locate(path)

    assert unit is not None
    assert (unit.key, unit.step) == (key, step)


@pytest.mark.parametrize(
    "path", ["0/x.bin", "rank_0/x", "version_0/x", "100.copy/x", "runs/A/x.ckpt", "model.pt"]
)
def test_names_that_are_no_checkpoints(path: str) -> None:
    """Ranks, versions, copies and plain files are no named checkpoints."""
    assert locate(path) is None


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("model_step100.pt", 100), ("ck-15.pt.tmp", 15), ("epoch_3.pth", 3), ("w-01.weights.h5", 1),
        ("model_epoch3_step40.pt", 40), ("model-00001-of-00002.safetensors", None), ("rng_state_0.pth", None),
        ("shard-7.bin", None), ("file-123.bin", None), ("layer_12.pt", None), (".tmphuTuCP", None),
    ],
)  # fmt: skip
def test_steps_in_file_names(name: str, step: int | None) -> None:
    """Steps are read from file names; ranks, shards, layers and parts are none."""
    assert step_of_name(name) == step


def test_kinds_of_names() -> None:
    """Logs are noise, hidden copies are temporary, `latest` is a pointer; a model is none of them."""
    assert all(map(is_noise, ["runs/events.out.tfevents.1.h", "wandb/run-1/files/x", "a.log"]))
    assert all(map(is_temporary, ["a/.tmpAbC123", "ck.pt.tmp", "m/tmpgiw55r4z"]))
    assert all(map(is_pointer, ["latest", "ckpt/latest_checkpointed_iteration.txt"]))
    for check in (is_noise, is_temporary, is_pointer):
        assert not check("checkpoint-5/model.safetensors")


def test_every_layout_waits_for_something_it_can_see() -> None:
    """A layout that needs a marker says which, and by which files it is known to be due."""
    for layout in LAYOUTS.values():
        if layout.need != "none":
            assert layout.evidence is not None
            assert layout.inside is not None or layout.beside is not None


def test_overlapping_steps_are_two_saves() -> None:
    """Two steps written at the same time are two saves, each with its own times and bytes."""
    story = Story().at(0).create("checkpoint-1/a.bin").at(1).create("checkpoint-2/a.bin")
    story.at(5).close("checkpoint-1/a.bin", 3 * MB).at(7).close("checkpoint-2/a.bin", 4 * MB).at(30)

    assert [(s.step, s.start, s.end, s.bytes) for s in story.saves] == [(1, 0, 5, 3 * MB), (2, 1, 7, 4 * MB)]


def test_overwriting_one_name_is_one_save_each_time() -> None:
    """A name that is truncated and written again, soon or late, is a save each time."""
    story = Story().write("model.pt", 0, 1, 5 * MB)
    story.at(3).open("model.pt", size=0).at(4).close("model.pt", 6 * MB)
    story.at(100).open("model.pt", size=0).at(101).close("model.pt", 7 * MB).at(130)

    assert [(s.start, s.end, s.bytes) for s in story.saves] == [
        (0, 1, 5 * MB),
        (3, 4, 6 * MB),
        (100, 101, 7 * MB),
    ]


def test_overwriting_in_place_without_truncating() -> None:
    """An existing file written over in place counts its whole size once, by what its writer has written."""
    story = Story().write("model.pt", 0, 1, 10 * MB).at(30)
    story.open("model.pt", size=10 * MB)
    story.at(31).progress("model.pt", 10 * MB, position=5 * MB, method="descriptor")
    assert story.detector.meter.written_bytes == 15 * MB
    story.at(32).close("model.pt", 10 * MB, modified=31.9).at(60)

    assert [(s.bytes, s.start, s.end) for s in story.saves] == [(10 * MB, 0, 1), (10 * MB, 30, 32)]
    assert story.detector.meter.written_bytes == 20 * MB


def test_appending_counts_only_what_was_added() -> None:
    """A file that is opened and grows counts its growth, so that a growing log is no checkpoint."""
    story = Story().write("history.bin", 0, 1, 50 * MB).at(30)
    story.open("history.bin", size=50 * MB).at(31).progress("history.bin", 50 * MB + 1000)
    story.at(32).close("history.bin", 50 * MB + 1000, modified=31.5).at(60)

    assert [s.bytes for s in story.saves] == [50 * MB]


def test_opening_for_writing_without_writing_is_nothing() -> None:
    """A close that follows no change of a known file is no save."""
    story = Story().write("model.pt", 0, 1, 10 * MB).at(30)
    story.close("model.pt", 10 * MB, modified=0.9).at(60)

    assert len(story.saves) == 1


def test_late_shard_joins_the_save_that_was_counted() -> None:
    """A straggling file after the save was counted adds its bytes to it and is no second save."""
    story = Story().write("ckpt-5/a.bin", 0, 1, 5 * MB).at(30).write("ckpt-5/b.bin", 30, 31, 3 * MB).at(60)

    assert [(s.late, s.bytes) for s in story.saves] == [(False, 5 * MB), (True, 3 * MB)]


def test_ledger_counts_a_late_shard_once() -> None:
    """Totals and the last save include late files; the number of saves does not."""
    ledger = Ledger([DirectorySettings("d", ROOT)], DetectSettings())
    for t, event, name, size in [
        (0, "create", "a", 0), (1, "close_write", "a", 5 * MB), (30, "create", "b", 0),
        (31, "close_write", "b", 3 * MB),
    ]:  # fmt: skip
        ledger.feed(FileEvent(t, event, f"{ROOT}/ckpt-5/{name}", size=size))  # type: ignore[arg-type]
    ledger.tick(100)

    (directory,) = ledger.snapshot(100).directories
    assert directory.saves["complete"] == 1
    assert (directory.save_bytes, directory.save_files) == (8 * MB, 2)
    assert directory.last_save is not None
    assert (directory.last_save.bytes, directory.last_save.end) == (8 * MB, 31)


def test_rename_between_two_directories_keeps_the_duration() -> None:
    """A file staged in one watched directory and moved to another is a save of the other, with its time."""
    ledger = Ledger([DirectorySettings("tmp", "/tmp"), DirectorySettings("d", ROOT)], DetectSettings())
    ledger.feed(FileEvent(0, "create", "/tmp/tmpabcdefgh"))
    ledger.feed(FileEvent(4, "close_write", "/tmp/tmpabcdefgh", size=9 * MB))
    ledger.feed(FileEvent(5, "moved", "/tmp/tmpabcdefgh", to=f"{ROOT}/epoch=0-step=2.ckpt"))
    ledger.tick(60)

    tmp, target = ledger.snapshot(60).directories
    assert sum(tmp.saves.values()) == 0
    assert target.last_save is not None
    assert (target.last_save.bytes, target.last_save.duration_seconds) == (9 * MB, 5)


def test_nested_directories_count_in_the_inner_one() -> None:
    """With /data and /data/ckpt both watched, a save below the inner one is counted there only."""
    ledger = Ledger([DirectorySettings("outer", "/data"), DirectorySettings("inner", ROOT)], DetectSettings())
    ledger.feed(FileEvent(0, "create", f"{ROOT}/model.pt"))
    ledger.feed(FileEvent(1, "close_write", f"{ROOT}/model.pt", size=9 * MB))
    ledger.tick(60)

    assert [d.saves["complete"] for d in ledger.snapshot(60).directories] == [0, 1]


def test_reload_keeps_unchanged_directories() -> None:
    """A reload keeps the counters of a directory with the same name and path, and drops removed ones."""
    ledger = Ledger([DirectorySettings("d", ROOT), DirectorySettings("x", "/x")], DetectSettings())
    ledger.feed(FileEvent(0, "create", f"{ROOT}/model.pt"))
    ledger.feed(FileEvent(1, "close_write", f"{ROOT}/model.pt", size=9 * MB))
    ledger.tick(60)
    ledger.reconfigure([DirectorySettings("d", ROOT), DirectorySettings("y", "/y")], DetectSettings())

    snapshot = ledger.snapshot(61)
    assert {d.name: d.saves["complete"] for d in snapshot.directories} == {"d": 1, "y": 0}


def test_start_in_the_middle_of_a_save() -> None:
    """A save that was already being written when watching began counts whole, from its first file's birth."""
    story = Story().at(100)
    for name, size, started in [("a.bin", 5 * MB, 80.0), ("b.bin", 2 * MB, 90.0)]:
        story.create(
            f"checkpoint-3/{name}", size=size, found=True, initial=True, started=started, modified=started + 5
        )
    story.detector.feed(WatchChange(100, "d", "rescan", "start"))
    story.at(101).progress("checkpoint-3/b.bin", 4 * MB).at(103).close("checkpoint-3/b.bin", 6 * MB).at(130)

    (save,) = story.saves
    assert (save.start, save.end, save.bytes, save.files) == (80, 103, 11 * MB, 2)
    assert save.notes == ("reconciled",)
    # Seen arriving were only the bytes after the first look, at four megabytes.
    assert story.detector.meter.written_bytes == 2 * MB


def test_old_checkpoints_found_at_the_start_are_retained_not_saved() -> None:
    """What lies on disk when watching begins is retained; deleting it is a deletion."""
    story = Story().at(0)
    for step in (1, 2):
        story.create(f"checkpoint-{step}/model.bin", size=5 * MB, found=True, initial=True)
    story.detector.feed(WatchChange(0, "d", "rescan", "start"))
    assert story.detector.retained == (2, 10 * MB)

    story.at(10).delete("checkpoint-1/model.bin").at(60)
    assert story.detector.retained == (1, 5 * MB)
    assert story.detector.inventory.deleted_checkpoints == 1
    assert not story.saves


def test_renaming_a_finished_checkpoint_is_no_save() -> None:
    """Moving an old checkpoint aside, within the tree or out of it, is no save."""
    story = Story().write("ckpt-5/a.bin", 0, 1, 5 * MB).at(30)
    story.rename("ckpt-5", "old/ckpt-5", is_dir=True).at(60)
    assert story.detector.inventory.retained_checkpoints == 1
    story.rename("old/ckpt-5", None, is_dir=True).at(90)

    assert len(story.saves) == 1
    assert story.detector.inventory.deleted_checkpoints == 1


def test_files_of_other_hosts_are_no_saves_here() -> None:
    """On a shared file system a file without a local event counts nothing, but its marker commits."""
    story = Story().at(0).create("step-1/__0_0.distcp").at(1).close("step-1/__0_0.distcp", 5 * MB)
    story.at(2).create("step-1/__1_0.distcp", size=5 * MB, found=True, local=False)
    story.create("step-1/.metadata", size=500, found=True, local=False).at(30)

    (save,) = story.saves
    assert (save.result, save.bytes, save.files) == ("complete", 5 * MB, 1)


def test_own_file_that_a_scan_found_on_a_shared_file_system() -> None:
    """What a scan finds in a directory that was just made here, and is closed here, began when found."""
    story = Story().at(1).mkdir("step-1").at(1.01).create("step-1/model.pt", found=True, local=False)
    story.at(5.01).close("step-1/model.pt", 5 * MB, modified=5.0).at(30)

    (save,) = story.saves
    assert (save.bytes, save.duration_seconds) == (5 * MB, 4.0)


def test_file_of_another_host_that_is_written_here_later() -> None:
    """A file found in a directory that this host did not make tells nothing of when it is written here."""
    story = Story().at(1).create("step-1", is_dir=True, found=True)
    story.create("step-1/model.pt", size=5 * MB, found=True, local=False)
    story.at(500).close("step-1/model.pt", 9 * MB, modified=500.0).at(600)

    (save,) = story.saves
    assert save.start == 500.0


def test_rename_lost_in_an_overflow_is_found_by_inode() -> None:
    """A staged directory whose rename was lost is recognised by a scan and counted once."""
    story = Story().at(0).create("tmp-checkpoint-7/a.bin", inode="8:1:5", started=0.0)
    story.at(1).close("tmp-checkpoint-7/a.bin", 5 * MB, inode="8:1:5")
    story.at(2).create("checkpoint-7/a.bin", size=5 * MB, inode="8:1:5", found=True, started=0.0)
    story.delete("tmp-checkpoint-7/a.bin").at(60)

    assert [(s.result, s.bytes, s.step) for s in story.saves] == [("complete", 5 * MB, 7)]


def test_rename_over_a_name_whose_late_look_met_the_new_file() -> None:
    """The temporary file was gone before its size was asked: its bytes are under the new name already."""
    story = Story().at(1).create("latest.ckpt", size=5 * MB, inode="8:1:6", started=1.0)
    story.close("latest.ckpt", 5 * MB, inode="8:1:6").create("latest.ckpt.tmp").close("latest.ckpt.tmp")
    story.rename("latest.ckpt.tmp", "latest.ckpt", size=5 * MB, inode="8:1:6").at(700)

    assert [(s.result, s.bytes, s.files, s.end) for s in story.saves] == [("complete", 5 * MB, 1, 1)]
    assert story.detector.meter.written_bytes == 5 * MB


def test_large_file_with_a_pointers_name_is_a_checkpoint() -> None:
    """A file called `latest` that holds five megabytes is a save, not a pointer."""
    story = (
        Story().at(0).create("latest").at(1).progress("latest", 2 * MB).at(2).close("latest", 5 * MB).at(30)
    )

    assert [(s.bytes, s.start, s.end) for s in story.saves] == [(5 * MB, 0, 2)]


def test_unfinished_marker_of_nemo_commits_when_it_goes() -> None:
    """A NeMo checkpoint is committed when its -unfinished file is deleted, and not before."""
    name = "gpt--loss=0.3-epoch=1-step=99"
    story = Story().at(0).create(f"{name}-unfinished").close(f"{name}-unfinished", 0)
    story.write(f"{name}/weights/x.bin", 1, 2, 5 * MB).at(100)
    assert not story.saves
    story.delete(f"{name}-unfinished").at(110)

    assert [(s.result, s.step, s.end, s.bytes) for s in story.saves] == [("complete", 99, 100, 5 * MB)]


def test_users_ignore_patterns_exclude_files() -> None:
    """Files that the configuration ignores take no part in anything."""
    story = (
        Story(ignore=("*.dump", "scratch/*"))
        .write("a.dump", 0, 1, 5 * MB)
        .write("scratch/x.pt", 2, 3, 5 * MB)
    )

    assert story.at(60).saves == []
    assert story.detector.meter.written_bytes == 0


def test_stop_counts_what_is_committed_and_leaves_the_rest() -> None:
    """On stop a save whose files are all closed is counted, one still being written is not judged."""
    story = Story().write("ckpt-1/a.bin", 0, 1, 5 * MB).at(2).create("ckpt-2/a.bin")

    assert [s.step for s in story.detector.finish(3)] == [1]


def test_small_burst_is_no_save() -> None:
    """Less than min_bytes without a layout's commit is no save of any result."""
    story = Story().write("notes.bin", 0, 1, 1000).write("checkpoint-5/config.json", 2, 3, 1000).at(1000)

    assert story.saves == []
    assert not story.open_saves()


def test_first_small_files_begin_the_save_whose_data_comes_later() -> None:
    """config.json a minute before the weights is the beginning of the save."""
    story = (
        Story()
        .write("checkpoint-5/config.json", 0, 0.1, 1000)
        .write("checkpoint-5/model.bin", 60, 70, 5 * MB)
    )
    story.at(100)

    assert [(s.start, s.end, s.files) for s in story.saves] == [(0, 70, 2)]


def test_lost_close_does_not_hold_a_save_for_ever() -> None:
    """A file of which nothing is heard for incomplete_seconds ends its save as incomplete."""
    story = Story().at(0).create("ckpt-1/a.bin").at(1).progress("ckpt-1/a.bin", 5 * MB, writers=None)

    assert story.at(602).results() == ["incomplete"]


def _two_saves(size: int) -> Story:
    story = Story().write("model_step1.pt", 0, 1, 100 * MB).at(20).create("model_step2.pt")
    return story.writers(7, paths=(f"{ROOT}/model_step2.pt",)).at(21).close("model_step2.pt", size)


def test_file_cut_short_by_a_killed_writer_is_incomplete() -> None:
    """A file far shorter than in the save before, whose writer was gone when it was closed, is incomplete."""
    story = _two_saves(30 * MB).at(22).writers(7, alive=False).at(60)

    assert [s.result for s in story.saves] == ["complete", "incomplete"]


def test_smaller_model_of_a_living_writer_is_complete() -> None:
    """A writer that lives after its close meant the smaller file, even if it ends soon after."""
    story = _two_saves(30 * MB).at(21.01).writers(7).at(22).writers(7, alive=False).at(60)

    assert [s.result for s in story.saves] == ["complete", "complete"]


def test_smaller_file_of_unknown_writers_is_complete() -> None:
    """Without knowing the writers, a smaller file alone is no fault."""
    story = Story().write("model_step1.pt", 0, 1, 100 * MB).write("model_step2.pt", 20, 21, 30 * MB).at(60)

    assert [s.result for s in story.saves] == ["complete", "complete"]


def test_a_save_whose_sizes_nobody_could_ask_has_no_bandwidth() -> None:
    """A checkpoint that was published and deleted before its size could be asked has no rate of 0."""
    story = Story().at(0).mkdir("tmp-checkpoint-8").create("tmp-checkpoint-8/model.bin")
    story.at(1).close("tmp-checkpoint-8/model.bin", None)
    story.at(2).rename("tmp-checkpoint-8", "checkpoint-8", is_dir=True)
    story.delete("checkpoint-8/model.bin").at(60)

    (save,) = story.saves
    assert (save.result, save.step, save.average_bandwidth) == ("complete", 8, None)
