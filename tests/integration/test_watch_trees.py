"""New, renamed and rotated directories: no file missed, none counted twice, none under a wrong name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter

from ckpt_exporter.model import FileEvent
from tests.integration.watching import Recorder, exchange, fast, watching


def put(path: str, size: int = 10) -> None:
    with open(path, "wb") as file:
        file.write(b"x" * size)


def counts(seen: Recorder, kind: str) -> Counter[str]:
    return Counter(event.path or "" for event in seen.events() if event.event == kind)


def test_nested_new_directories_lose_nothing(tmp_path) -> None:
    """200 checkpoints of three nested directories and three files each, without pause: each file once."""
    expected = set()
    with watching(str(tmp_path)) as watched:
        for step in range(200):
            folder = watched.path(f"global_step{step}/actor/optim")
            os.makedirs(folder)
            for name in ("a.pt", "b.pt", "c.pt"):
                put(os.path.join(folder, name))
                expected.add(os.path.join(folder, name))
        watched.seen.wait(lambda: counts(watched.seen, "close_write").keys() == expected, 40)
        watched.idle()
        assert counts(watched.seen, "create") == dict.fromkeys(expected, 1)
        assert counts(watched.seen, "close_write") == dict.fromkeys(expected, 1)
        closed = [event for event in watched.seen.events() if event.event == "close_write"]
        assert sum(event.size or 0 for event in closed) == 6000


def test_eight_writers_into_one_new_directory(tmp_path) -> None:
    """Eight processes with 50 shards each race into one new directory: 400 files, each closed once."""
    code = (
        "import os,sys\n"
        "root,rank=sys.argv[1:]; os.makedirs(root,exist_ok=True)\n"
        "for i in range(50):\n"
        "  with open(f'{root}/shard-{rank}-{i}','wb') as f: f.write(b'x'*100000)\n"
    )
    with watching(str(tmp_path)) as watched:
        folder = watched.path("step-1/weights")
        writers = [subprocess.Popen([sys.executable, "-c", code, folder, str(rank)]) for rank in range(8)]
        assert [writer.wait() for writer in writers] == [0] * 8
        expected = {f"{folder}/shard-{rank}-{i}" for rank in range(8) for i in range(50)}
        watched.seen.wait(lambda: counts(watched.seen, "close_write").keys() == expected, 40)
        watched.idle()
        assert counts(watched.seen, "create") == dict.fromkeys(expected, 1)
        assert counts(watched.seen, "close_write") == dict.fromkeys(expected, 1)
        assert {e.size for e in watched.seen.events() if e.event == "close_write"} == {100000}


def test_ten_thousand_files_in_one_save(tmp_path) -> None:
    """A save of 10,000 files is seen whole, and leaves no file behind as open."""
    with watching(str(tmp_path)) as watched:
        folder = watched.path("step-1")
        os.mkdir(folder)
        for index in range(10_000):
            put(f"{folder}/{index}")
        watched.seen.wait(lambda: watched.seen.kinds().count("close_write") >= 10_000, 60)
        assert set(counts(watched.seen, "close_write").values()) == {1}
        watched.seen.wait(lambda: not watched.source.saving("run"))
        assert watched.source.counters().dropped == 0


def test_a_staged_directory_is_published_by_one_move(tmp_path) -> None:
    """Renaming a staged directory is one move, and a file still open in it closes under its new name."""
    with watching(str(tmp_path)) as watched:
        staged, final = watched.path("tmp-checkpoint-5"), watched.path("checkpoint-5")
        os.makedirs(f"{staged}/deep")
        put(f"{staged}/a")
        with open(f"{staged}/deep/b", "wb") as file:
            watched.seen.wait(lambda: "create" in watched.seen.kinds(f"{staged}/deep/b"))
            os.rename(staged, final)
            watched.seen.wait(lambda: moves(watched.seen) == [(staged, final)])
            file.write(b"x" * 5000)
        (closed,) = watched.seen.wait_kinds(f"{final}/deep/b", "close_write")
        assert closed.size == 5000
        put(f"{final}/deep/late")
        watched.seen.wait_kinds(f"{final}/deep/late", "create", "close_write")


def moves(seen: Recorder) -> list[tuple[str | None, str | None]]:
    return [
        (fact.path, fact.to)
        for fact in list(seen.facts)
        if isinstance(fact, FileEvent) and fact.is_dir and fact.event == "moved"
    ]


def test_a_directory_from_outside_brings_its_files(tmp_path) -> None:
    """A directory moved into the tree is one move without an old name, then one for each file in it."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    (outside / "step-3" / "sub").mkdir(parents=True)
    put(str(outside / "step-3" / "a"), 11)
    put(str(outside / "step-3" / "sub" / "b"), 22)
    with watching(str(root)) as watched:
        os.rename(outside / "step-3", root / "step-3")
        (one,) = watched.seen.wait_kinds(str(root / "step-3" / "a"), "moved")
        (two,) = watched.seen.wait_kinds(str(root / "step-3" / "sub" / "b"), "moved")
        assert moves(watched.seen) == [(None, str(root / "step-3"))]
        assert (one.path, one.size, two.path, two.size) == (None, 11, None, 22)
        put(str(root / "step-3" / "sub" / "c"))
        watched.seen.wait_kinds(str(root / "step-3" / "sub" / "c"), "create", "close_write")


def test_rotation_that_moves_away_makes_anew_and_removes_both(tmp_path) -> None:
    """Mv latest elsewhere, write latest again, remove both: the pattern that kills watchdog's own reader."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "latest").mkdir(parents=True)
    outside.mkdir()
    with watching(str(root)) as watched:
        for turn in range(3):
            latest = watched.path("latest")
            os.makedirs(latest, exist_ok=True)
            os.rename(latest, outside / "old")
            os.mkdir(latest)
            put(f"{latest}/model-{turn}")
            shutil.rmtree(latest)
            put(str(outside / "old" / "ghost"))
            shutil.rmtree(outside / "old")
        put(watched.path("mark"))
        watched.seen.wait_kinds(watched.path("mark"), "create", "close_write")
        assert not [event for event in watched.seen.events() if "ghost" in (event.path or "")]
        assert (watched.path("latest"), None) in moves(watched.seen)
        os.mkdir(latest)
        put(f"{latest}/model-9")
        watched.seen.wait_kinds(f"{latest}/model-9", "create", "close_write")


def test_exchanged_directories_keep_their_files_apart(tmp_path) -> None:
    """RENAME_EXCHANGE of two watched directories, then deleting one: later files get the right paths."""
    with watching(str(tmp_path)) as watched:
        one, other = watched.path("one"), watched.path("other")
        for folder in (one, other):
            os.mkdir(folder)
            put(f"{folder}/file")
        watched.seen.wait_kinds(f"{other}/file", "create", "close_write")
        exchange(one, other)
        watched.seen.wait(lambda: moves(watched.seen) == [(one, other), (other, one)])
        put(f"{one}/new")
        watched.seen.wait_kinds(f"{one}/new", "create", "close_write")
        shutil.rmtree(other)
        watched.seen.wait(lambda: "deleted" in watched.seen.kinds(f"{other}/file"))
        put(f"{one}/newer")
        watched.seen.wait_kinds(f"{one}/newer", "create", "close_write")
        assert watched.seen.kinds(f"{other}/new") == []


def test_a_directory_moved_out_leaves_no_ghosts(tmp_path) -> None:
    """What is written in a directory after it left the tree is not reported under its old path."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "step" / "sub").mkdir(parents=True)
    outside.mkdir()
    with watching(str(root)) as watched:
        os.rename(root / "step", outside / "step")
        watched.seen.wait(lambda: moves(watched.seen) == [(str(root / "step"), None)])
        put(str(outside / "step" / "sub" / "ghost"))
        put(watched.path("mark"))
        watched.seen.wait_kinds(watched.path("mark"), "create", "close_write")
        assert not [event for event in watched.seen.events() if "ghost" in (event.path or "")]


def test_a_file_renamed_between_two_watched_directories_is_one_move(tmp_path) -> None:
    """Two configured directories have two instances; a rename from one to the other is still one move."""
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    with watching(str(one), str(other), settings=fast(move_hold_seconds=0.5)) as watched:
        put(str(one / "a"), 100)
        watched.seen.wait_kinds(str(one / "a"), "create", "close_write")
        os.rename(one / "a", other / "a")
        put(str(one / "mark"))
        watched.seen.wait_kinds(str(other / "a"), "moved")
        watched.seen.wait(lambda: not watched.engine()._changes.renames.departures)
        (moved,) = [event for event in watched.seen.events() if event.event == "moved"]
        assert (moved.path, moved.to, moved.size) == (str(one / "a"), str(other / "a"), 100)


def test_deleting_a_tree_reports_each_file_once(tmp_path) -> None:
    """Rmtree gives one delete for every file and one for the directory, and frees its watches."""
    with watching(str(tmp_path)) as watched:
        folder = watched.path("step-1/sub")
        os.makedirs(folder)
        for index in range(5):
            put(f"{folder}/{index}")
        watched.seen.wait(lambda: watched.seen.kinds().count("close_write") == 5)
        shutil.rmtree(watched.path("step-1"))
        watched.seen.wait(lambda: (watched.path("step-1"), True) in deletes(watched.seen))
        assert counts(watched.seen, "deleted") == {f"{folder}/{index}": 1 for index in range(5)}
        watched.seen.wait(lambda: watched.source.statuses()[0].watched_directories == 1)


def deletes(seen: Recorder) -> list[tuple[str | None, bool]]:
    return [
        (fact.path, fact.is_dir)
        for fact in list(seen.facts)
        if isinstance(fact, FileEvent) and fact.event == "deleted"
    ]


def test_ignored_files_give_no_facts(tmp_path) -> None:
    """Noise that the caller names gives neither events nor progress, while its neighbours do."""
    with watching(str(tmp_path), ignored=lambda _directory, path: path.endswith(".log")) as watched:
        watched.idle()
        for _ in range(3):
            with open(watched.path("train.log"), "a") as file:
                file.write("step\n")
        put(watched.path("model.pt"))
        watched.seen.wait_kinds(watched.path("model.pt"), "create", "close_write")
        assert watched.seen.kinds(watched.path("train.log")) == []
        os.rename(watched.path("model.pt"), watched.path("old.log"))
        watched.seen.wait_kinds(watched.path("old.log"), "moved")


def test_what_was_there_at_the_start_is_marked(tmp_path) -> None:
    """Files and links of the first scan are initial; a directory renamed afterwards moves them silently."""
    (tmp_path / "step-1").mkdir()
    put(str(tmp_path / "step-1" / "old"), 7)
    os.symlink("step-1", tmp_path / "latest")
    with watching(str(tmp_path)) as watched:
        initial = [fact for fact in watched.seen.facts if isinstance(fact, FileEvent)]
        assert [
            (fact.event, fact.path, fact.initial, fact.size) for fact in initial if fact.event == "create"
        ] == [("create", str(tmp_path / "step-1" / "old"), True, 7)]
        assert [(fact.path, fact.initial) for fact in initial if fact.event == "link"] == [
            (str(tmp_path / "latest"), True)
        ]
        assert watched.seen.events() == []


def test_a_save_that_runs_at_the_start_is_followed(tmp_path) -> None:
    """A file that a local process is still writing when watching begins shows progress and its close."""
    path = str(tmp_path / "model.pt")
    put(str(tmp_path / "done.pt"))
    with open(path, "wb") as file:
        file.write(b"x" * 1000)
        file.flush()
        with watching(str(tmp_path)) as watched:
            first = watched.seen.wait(lambda: watched.seen.progress(path))[0]
            assert first.writers == 1
            assert not watched.seen.progress(str(tmp_path / "done.pt"))
            file.write(b"x" * 1000)
            file.close()
            (closed,) = watched.seen.wait_kinds(path, "close_write")
            assert closed.size == 2000


def test_many_directories_are_watched_within_seconds(tmp_path) -> None:
    """A tree of 5,000 directories is watched whole, and a new file in the last one is seen."""
    for index in range(50):
        for inner in range(100):
            os.makedirs(tmp_path / str(index) / str(inner))
    with watching(str(tmp_path)) as watched:
        status = watched.source.statuses()[0]
        assert (status.watched_directories, status.coverage, status.up) == (5051, 1.0, True)
        put(watched.path("49/99/file"))
        watched.seen.wait_kinds(watched.path("49/99/file"), "create", "close_write")
