"""Checkpoints that are made and removed within milliseconds: real events, and the saves they amount to."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from ckpt_exporter.detect.saves import SaveDetector
from ckpt_exporter.model import DetectSettings, DirectorySettings, Save
from ckpt_exporter.sources.inotify_calls import InotifyCalls
from tests.integration.watching import Watched, watching

RUNS = 20
# In one storm; of directories fewer, since each costs the watcher more.
FILES, DIRECTORIES = 30, 10
# As fast as a process can: one system call after the other, a storm for each line that it reads.
STORMS = """
import os, shutil, sys
root, kind = sys.argv[1:]
def put(path):
    with open(path, "wb") as file:
        file.write(b"x" * 50_000)
def make(step):
    name = f"{root}/checkpoint-{step}"
    if kind == "file":
        put(f"{root}/model_step{step}.pt")
        os.unlink(f"{root}/model_step{step}.pt")
    elif kind == "staged file":
        put(f"{root}/model_step{step}.pt.tmp")
        os.rename(f"{root}/model_step{step}.pt.tmp", f"{root}/model_step{step}.pt")
        os.unlink(f"{root}/model_step{step}.pt")
    elif kind == "directory":
        os.mkdir(name)
        for part in ("model.safetensors", "optimizer.pt", "trainer_state.json"):
            put(f"{name}/{part}")
        shutil.rmtree(name)
    else:
        os.mkdir(f"{root}/tmp-checkpoint-{step}")
        put(f"{root}/tmp-checkpoint-{step}/model.bin")
        os.rename(f"{root}/tmp-checkpoint-{step}", name)
        shutil.rmtree(name)
for line in sys.stdin:
    first, last = map(int, line.split())
    for step in range(first, last + 1):
        make(step)
    print("done", flush=True)
"""


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    """Watch a directory."""
    with watching(str(tmp_path)) as watch:
        yield watch


def saves_of(watched: Watched, mark: int) -> list[Save]:
    """Judge the facts since the last call, once everything up to now has been told."""
    told = watched.path(f"told-{mark}")
    Path(told).write_bytes(b"x")
    watched.seen.wait(lambda: "close_write" in watched.seen.kinds(told))
    detector = SaveDetector(DirectorySettings("run", watched.root), DetectSettings(min_bytes=1))
    facts = list(watched.seen.facts)
    watched.seen.facts.clear()
    saves = [save for fact in facts for save in detector.feed(fact)] + detector.tick(facts[-1].t + 10_000)
    return [save for save in saves if "/told-" not in save.path]


def are_closed(watched: Watched, folder: Path, names: Collection[str]) -> Callable[[], bool]:
    return lambda: all("close_write" in watched.seen.kinds(str(folder / name)) for name in names)


def storms(watched: Watched, kind: str) -> Iterator[tuple[list[int], list[Save]]]:
    """Let a process make and remove checkpoints, storm after storm; yield the steps and the saves of each."""
    command = [sys.executable, "-SIc", STORMS, watched.root, kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        count = FILES if kind.endswith("file") else DIRECTORIES
        for run in range(RUNS):
            steps = list(range(1 + run * count, 1 + (run + 1) * count))
            process.stdin.write(f"{steps[0]} {steps[-1]}\n")
            process.stdin.flush()
            assert process.stdout.readline() == "done\n"
            yield steps, saves_of(watched, run)


@pytest.mark.parametrize("kind", ["file", "staged file"])
def test_every_file_that_was_closed_and_removed_at_once_is_a_save(watched: Watched, kind: str) -> None:
    """Of files in a watched directory every event is told: in twenty storms none is missed, none invented."""
    for steps, saves in storms(watched, kind):
        assert [(save.result, save.step) for save in saves] == [("complete", step) for step in steps]


@pytest.mark.parametrize("kind", ["directory", "staged directory"])
def test_no_directory_that_was_committed_and_removed_at_once_is_called_aborted(
    watched: Watched, kind: str
) -> None:
    """A directory that is gone before it is watched can't be known; of the others nothing false is said."""
    for steps, saves in storms(watched, kind):
        assert {save.result for save in saves} <= {"complete"}
        told = [save.step for save in saves]
        assert len(told) == len(set(told))
        assert set(told) <= set(steps)


def test_every_directory_that_was_seen_before_it_went_is_a_save(watched: Watched) -> None:
    """Removed as soon as its files were told of, each of twenty checkpoints is complete, with its bytes."""
    for step in range(1000, 1000 + RUNS):
        folder = Path(watched.path(f"checkpoint-{step}"))
        folder.mkdir()
        names = ("model.safetensors", "optimizer.pt", "trainer_state.json")
        for name in names:
            (folder / name).write_bytes(b"x" * 50_000)
        watched.seen.wait(are_closed(watched, folder, names))
        shutil.rmtree(folder)
    saves = saves_of(watched, RUNS)
    assert [(s.result, s.step, s.bytes) for s in saves] == [
        ("complete", step, 150_000) for step in range(1000, 1000 + RUNS)
    ]


def test_directory_renamed_between_its_watch_and_the_look_at_it(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A staged directory that is published in that moment is listed under its new name."""
    staged, final = watched.path("tmp-checkpoint-2000"), watched.path("checkpoint-2000")
    add_watch = InotifyCalls.add_watch

    def open_watch_close_rename(self: InotifyCalls, fd: int, path: bytes, mask: int) -> int:
        if path != os.fsencode(staged):
            return add_watch(self, fd, path, mask)
        with open(f"{staged}/model.bin", "wb") as file:
            file.write(b"x" * 50_000)
            wd = add_watch(self, fd, path, mask)
        os.rename(staged, final)
        return wd

    monkeypatch.setattr(InotifyCalls, "add_watch", open_watch_close_rename)
    os.mkdir(staged)
    watched.seen.wait_kinds(f"{final}/model.bin", "create", "close_write")
    assert [(s.result, s.step, s.bytes) for s in saves_of(watched, RUNS)] == [("complete", 2000, 50_000)]
