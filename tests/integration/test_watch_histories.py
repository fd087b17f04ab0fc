"""Random histories of files and directories: the facts, replayed, give exactly what is on the disk."""

from __future__ import annotations

import os
import random
import shutil
import threading
import time

import pytest

from ckpt_exporter.model import Fact, FileEvent, Progress
from tests.integration.test_watch_limits import NoInstances, Pausable, short_queue  # noqa: F401
from tests.integration.watching import Watched, fast, watching


def replay(facts: list[Fact]) -> dict[str, int | None]:
    """Apply file events as a reader would: path -> size of every file believed to exist."""
    files: dict[str, int | None] = {}
    for fact in facts:
        if isinstance(fact, Progress) and fact.path in files:
            files[fact.path] = fact.size
        if not isinstance(fact, FileEvent):
            continue
        if fact.event == "moved":
            for old in _named(files, fact.path, is_dir=fact.is_dir):
                size = files.pop(old)
                if fact.to is not None:
                    files[fact.to + old[len(fact.path or "") :]] = size
            if not fact.is_dir and fact.to is not None and fact.size is not None:
                files[fact.to] = fact.size
        elif fact.event == "deleted":
            for old in _named(files, fact.path, is_dir=fact.is_dir):
                del files[old]
        elif not fact.is_dir and fact.path is not None:
            files[fact.path] = fact.size
    return files


def _named(files: dict[str, int | None], path: str | None, *, is_dir: bool) -> list[str]:
    if path is None:
        return []
    if not is_dir:
        return [path] if path in files else []
    return [name for name in files if name.startswith(path + "/")]


def on_disk(root: str) -> dict[str, int]:
    found = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            found[path] = os.lstat(path).st_size
    return found


class History:
    """Does random things below ``root``, some of them to or from ``outside``.

    Whole directories are renamed and removed no faster than their events are read (``directories`` False:
    not at all): in a storm of those the facts may name a file once too often or too rarely.
    """

    def __init__(self, root: str, outside: str, seed: int, *, directories: bool = True) -> None:
        self.root, self.outside = root, outside
        self.directories = directories
        self.random = random.Random(seed)
        self.count = 0

    def folders(self, top: str) -> list[str]:
        return [folder for folder, _, _ in os.walk(top)]

    def any_folder(self) -> str:
        return self.random.choice(self.folders(self.root))

    def any_file(self) -> str | None:
        files = list(on_disk(self.root))
        return self.random.choice(files) if files else None

    def new_name(self) -> str:
        self.count += 1
        # Between two polls a directory may take the name of a file, which a poll can't see: only with events.
        reused = self.directories and self.random.random() < 0.5
        return f"n{self.random.randrange(6) if reused else self.count}"

    def step(self) -> None:
        of_files = [self.write, self.write, self.write, self.nest, self.overwrite, self.rename_file]
        of_files += [self.remove, self.pause]
        of_folders = [self.rename_folder, self.publish, self.remove_folder, self.move_out, self.move_in]
        action = self.random.choice(of_files + of_folders * self.directories)
        if action in of_folders:
            time.sleep(0.03)
        try:
            action()
        except OSError:
            return  # a name in use, a directory into itself: nothing happened
        if action in of_folders:
            time.sleep(0.03)

    def write(self, folder: str | None = None) -> None:
        path = os.path.join(folder or self.any_folder(), self.new_name())
        with open(path, "wb") as file:
            file.write(b"x" * self.random.randrange(1, 50_000))

    def nest(self) -> None:
        folder = os.path.join(self.any_folder(), self.new_name(), "a", "b")
        os.makedirs(folder)
        self.write(folder)

    def overwrite(self) -> None:
        path = self.any_file()
        if path is not None:
            with open(path, self.random.choice(["wb", "r+b", "ab"])) as file:
                file.write(b"y" * self.random.randrange(1, 50_000))

    def rename_file(self) -> None:
        path = self.any_file()
        if path is not None:
            os.rename(path, os.path.join(self.any_folder(), self.new_name()))

    def rename_folder(self) -> None:
        folder = self.any_folder()
        if folder != self.root:
            os.rename(folder, os.path.join(self.any_folder(), self.new_name()))

    def publish(self) -> None:
        staged = os.path.join(self.root, f"tmp-{self.count}")
        os.mkdir(staged)
        self.write(staged)
        self.write(staged)
        os.rename(staged, os.path.join(self.any_folder(), self.new_name()))

    def remove(self) -> None:
        path = self.any_file()
        if path is not None:
            os.unlink(path)

    def remove_folder(self) -> None:
        folder = self.any_folder()
        if folder != self.root and self.random.random() < 0.5:
            shutil.rmtree(folder)

    def move_out(self) -> None:
        victim = self.any_folder() if self.random.random() < 0.5 else self.any_file()
        if victim not in (None, self.root):
            os.rename(victim, os.path.join(self.outside, self.new_name()))

    def move_in(self) -> None:
        names = os.listdir(self.outside)
        if names:
            source = os.path.join(self.outside, self.random.choice(names))
            os.rename(source, os.path.join(self.any_folder(), self.new_name()))

    def pause(self) -> None:
        time.sleep(self.random.choice([0.0, 0.001, 0.01, 0.05]))


def agrees(watched: Watched, seconds: float = 3) -> None:
    """Wait until the replayed facts are the disk, with no file left open."""

    def same() -> bool:
        return replay(list(watched.seen.facts)) == on_disk(watched.root) and not watched.source.saving("run")

    try:
        watched.seen.wait(same, seconds)
    except AssertionError:
        believed, truth = replay(list(watched.seen.facts)), on_disk(watched.root)
        wrong = sorted(
            path for path in believed.keys() | truth.keys() if believed.get(path, -1) != truth.get(path, -1)
        )
        story = [fact for fact in watched.seen.facts if wrong and wrong[0] in str(fact)]
        lines = [f"{path}: believed {believed.get(path)}, truth {truth.get(path)}" for path in wrong[:5]]
        pytest.fail("\n".join([*lines, f"open: {watched.source.saving('run')}", *map(str, story[-15:])]))


@pytest.fixture
def places(tmp_path) -> tuple[str, str]:
    (tmp_path / "root").mkdir()
    (tmp_path / "outside").mkdir()
    return str(tmp_path / "root"), str(tmp_path / "outside")


@pytest.mark.parametrize("seed", range(3))
def test_facts_replay_to_the_disk(places: tuple[str, str], seed: int) -> None:
    """After 250 random steps the facts add up to the files and sizes on disk."""
    root, outside = places
    history = History(root, outside, seed)
    for _ in range(20):
        history.step()
    with watching(root) as watched:
        for _ in range(250):
            history.step()
        agrees(watched)
        # What was learnt is right, too: more of it ends right.
        for _ in range(50):
            history.step()
        agrees(watched)


@pytest.mark.parametrize("seed", range(1))
def test_facts_replay_to_the_disk_after_an_overflow(
    places: tuple[str, str],
    seed: int,
    short_queue: int,  # noqa: F811
) -> None:
    """The same when the kernel dropped events in the middle."""
    root, outside = places
    calls = Pausable()
    history = History(root, outside, 100 + seed, directories=False)
    with watching(root, calls=calls) as watched:
        for _ in range(100):
            history.step()
        agrees(watched)
        calls.reading.clear()
        with open(os.path.join(root, "first"), "wb") as file:
            file.write(b"x")
        assert calls.waiting.wait(10)
        for _ in range(200):
            history.step()
        for index in range(200):
            with open(os.path.join(root, f"last-{index}"), "wb") as file:
                file.write(b"x")
        released = threading.Timer(0.0, calls.reading.set)
        released.start()
        released.join()
        agrees(watched)


@pytest.mark.parametrize("seed", range(1))
def test_polled_facts_replay_to_the_disk(places: tuple[str, str], seed: int) -> None:
    """The same when the directory is polled."""
    root, outside = places
    history = History(root, outside, 200 + seed, directories=False)
    # What a look costs on a busy machine must not put off the next one beyond the test's end.
    settings = fast(retry_seconds=600.0, outage_seconds=0.5, poll_cost_factor=1.0)
    with watching(root, calls=NoInstances(), settings=settings) as watched:
        for _ in range(200):
            history.step()
        agrees(watched)
