"""Which files are looked after while they are read, and for how long."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ckpt_exporter.model import Fact, ReadEvent, Reading
from ckpt_exporter.sources import reading
from ckpt_exporter.sources.reading import DirectoryReaders, ReadersSource
from tests.unit.test_readers import ReadingProc, reader

SIZE = 100_000


class FakePageCache:
    """Says that a quarter is cached; notes what it was asked."""

    def __init__(self) -> None:
        self.available = True
        self.asked: list[str] = []

    def cached_bytes(self, path: str, size: int) -> int | None:
        self.asked.append(path)
        return size // 4


class Readers:
    """Readers of one directory, with a clock that adds ``late`` to the real one."""

    def __init__(self, proc: ReadingProc) -> None:
        self.late = 0.0
        self.facts: list[Fact] = []
        self.cache = FakePageCache()
        self.directory = DirectoryReaders(
            "d", self.facts.append, self.now, proc=str(proc), page_cache=self.cache,  # type: ignore[arg-type]
        )  # fmt: skip

    def now(self) -> float:
        return time.monotonic() + self.late

    def opened(self, path: Path, *, ago: float = 0.0) -> None:
        self.directory.note(ReadEvent(self.now() - ago, str(path), "open", size=SIZE))

    def looks(self) -> list[ReadEvent]:
        return [fact for fact in self.facts if isinstance(fact, ReadEvent)]

    def readings(self) -> list[Reading]:
        return [fact for fact in self.facts if isinstance(fact, Reading)]

    def wait(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 20.0
        while not condition():
            assert time.monotonic() < deadline, self.facts
            time.sleep(0.005)


@pytest.fixture
def proc(tmp_path: Path) -> ReadingProc:
    """Make a /proc that shows all processes of a host."""
    found = ReadingProc(tmp_path)
    found.process(1)
    (found.base / "self" / "ns").mkdir(parents=True)
    (found.base / "self" / "ns" / "pid").symlink_to("pid:[4026531836]")
    return found


@pytest.fixture
def readers(proc: ReadingProc) -> Iterator[Readers]:
    found = Readers(proc)
    yield found
    found.directory.stop()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.pt"
    path.write_bytes(bytes(SIZE))
    return path


def test_a_file_that_is_opened_is_looked_at(readers: Readers, proc: ReadingProc, model: Path) -> None:
    """An open brings one look at the page cache, and looks at who holds the file until it is let go."""
    reader(proc, 7, model)
    readers.opened(model)
    readers.wait(readers.readings)
    os.unlink(proc.base / "7" / "fd" / "5")
    readers.wait(lambda: not readers.readings()[-1].held)
    (look,) = readers.looks()
    assert (look.event, look.size, look.cached_bytes) == ("look", SIZE, SIZE // 4)
    assert readers.cache.asked == [str(model)]


def test_what_nobody_holds_is_left_alone(readers: Readers, model: Path) -> None:
    """A second after nobody was seen to hold it a file is followed no longer, and a new open begins anew."""
    readers.opened(model)
    readers.wait(readers.looks)
    readers.late = reading.UNHELD_SECONDS + 0.5
    readers.wait(lambda: not readers.directory._files)
    readers.opened(model)
    readers.wait(lambda: len(readers.looks()) == 2)


def test_a_file_that_is_read_again_is_looked_at_again(readers: Readers, model: Path) -> None:
    """A second load soon after the first has its own look at the page cache."""
    readers.opened(model)
    readers.wait(readers.looks)
    readers.directory.note(ReadEvent(readers.now(), str(model), "close"))
    readers.late = reading.AGAIN_SECONDS + 0.1
    readers.opened(model)
    readers.wait(lambda: len(readers.looks()) == 2)


def test_its_own_look_is_no_reader(readers: Readers, model: Path) -> None:
    """The open and the close of the look itself are known as its own, once each; the next is another's."""
    readers.opened(model)
    readers.wait(readers.looks)
    asked = [
        readers.directory.is_own(ReadEvent(readers.now(), str(model), kind, size=SIZE))
        for kind in ("open", "close", "open", "close")
    ]
    assert asked == [True, True, False, False]


def test_a_look_that_comes_late_asks_nothing(readers: Readers, model: Path) -> None:
    """Half a second after the open the page cache shows what the reader brought in: unknown."""
    readers.opened(model, ago=reading.COUNTED_SECONDS + 0.1)
    readers.wait(readers.looks)
    assert readers.looks()[0].cached_bytes is None
    assert readers.cache.asked == []


def test_a_truncated_file_is_not_opened(readers: Readers, model: Path) -> None:
    """Smaller than it was is a file that its opener writes anew: a close of any descriptor would flush it."""
    os.truncate(model, 0)
    readers.opened(model)
    readers.wait(readers.looks)
    assert readers.looks()[0].cached_bytes is None
    assert readers.cache.asked == []


def test_a_file_that_is_written_is_not_looked_for(readers: Readers, proc: ReadingProc, model: Path) -> None:
    """Once a file is being written its readers are told no more."""
    reader(proc, 7, model)
    readers.opened(model)
    readers.wait(readers.readings)
    readers.directory.forget(str(model))
    assert str(model) not in readers.directory._files


def test_directories_that_are_watched_no_more_are_let_go() -> None:
    """A reload keeps the directories that stay and stops the threads of the others."""
    source = ReadersSource(lambda _: None, time.monotonic)
    source.replace_directories(["a", "b"])
    kept, gone = source._directories["a"], source._directories["b"]
    source.replace_directories(["a"])
    assert source._directories == {"a": kept}
    assert gone._stopping.is_set()
    source.note("b", ReadEvent(1.0, "/b/x", "open", size=SIZE))
    assert not source.is_own("b", ReadEvent(1.0, "/b/x", "open", size=SIZE))
    source.stop()
