"""Closes that the kernel has told of and whose writers may not be through yet."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ckpt_exporter.sources.closing import Closing
from ckpt_exporter.sources.entry import WatchSettings
from ckpt_exporter.sources.filestat import ignore_lease_signal
from ckpt_exporter.sources.progress import ActiveFiles


@pytest.fixture
def path(tmp_path: Path) -> str:
    ignore_lease_signal()
    path = tmp_path / "last.ckpt"
    path.write_bytes(b"x" * 100)
    return str(path)


@pytest.fixture
def closing(path: str) -> Iterator[Closing]:
    """Give a close seen at 100 s whose file is asked about by a descriptor."""
    closing = Closing(100.0, os.stat(path))
    closing.keep(path)
    yield closing
    closing.end()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_file_is_held_until_its_writer_lets_go(path: str, closing: Closing) -> None:
    """Open for writing is held, and no longer so is free, whatever the file is called by then."""
    writer = os.open(path, os.O_WRONLY)
    assert closing.writers(path) == 1
    os.rename(path, path + ".renamed")
    assert closing.writers(path) == 1
    os.close(writer)
    assert closing.writers(path) == 0
    st = closing.stat()
    assert st is not None
    assert st.st_size == 100


def test_another_writer_shows_by_its_writes(path: str, closing: Closing) -> None:
    """A close changes nothing in the file; who writes on is another, and so is who holds it for long."""
    st = os.stat(path)
    assert not closing.is_one_of_several(st, 699.0)
    assert closing.is_one_of_several(st, 701.0)
    with open(path, "ab") as file:
        file.write(b"more")
    assert closing.is_one_of_several(os.stat(path), 100.1)


def test_the_end_is_known_to_a_fiftieth_of_the_close(closing: Closing) -> None:
    """A close that takes 5 s is asked about every 0.1 s at its end, a short one every millisecond."""
    assert closing.pause_seconds(100.0) == pytest.approx(0.001)
    assert closing.pause_seconds(105.0) == pytest.approx(0.1)


class Watch:
    """The open files of one directory with a clock that stands still; ``ended`` are their closes."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, int | None, float]] = []
        entry = SimpleNamespace(
            settings=WatchSettings(),
            clock=lambda: 100.0,
            name="run",
            is_shared=lambda *_: False,
            beat=lambda: None,
            shared=SimpleNamespace(inodes=SimpleNamespace(note=lambda *_: None)),
        )
        self.active = ActiveFiles(entry, self._closed)  # type: ignore[arg-type]

    def _closed(self, file: Any, st: os.stat_result | None, t: float) -> None:
        self.ended.append((file.path, None if st is None else st.st_size, t))

    def close_while_held(self, path: str) -> int:
        """Tell of a close of a followed file that is held; return the holder's descriptor."""
        file = self.active.add(path, 99.0, os.stat(path))
        holder = os.open(path, os.O_WRONLY)
        self.active.close_event(file, 100.0, os.stat(path))
        return holder


def test_a_rename_after_the_close_ends_it(path: str) -> None:
    """A rename that is read before the writer was asked again ends the file, at the time of the rename."""
    watch = Watch()
    holder = watch.close_while_held(path)
    assert watch.ended == []
    os.close(holder)
    os.rename(path, path + ".final")
    watch.active.settle(path, 100.25)
    assert watch.ended == [(path, 100, 100.25)]


def test_a_rename_while_it_is_held_does_not_end_it(path: str) -> None:
    """A file that is renamed while its writer still has it stays open."""
    watch = Watch()
    holder = watch.close_while_held(path)
    watch.active.settle(path, 100.25)
    os.close(holder)
    assert watch.ended == []


def test_a_name_that_is_gone_tells_nothing_of_the_next(path: str) -> None:
    """A file renamed right after its close can't be asked; its user's next file is asked all the same."""
    watch = Watch()
    gone = watch.active.add(path + ".tmp", 99.0, os.stat(path))
    watch.active.close_event(gone, 99.5, os.stat(path))
    holder = watch.close_while_held(path)
    assert [ended[0] for ended in watch.ended] == [path + ".tmp"]
    os.close(holder)


def test_where_leases_are_denied_the_event_is_the_end(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the right to a lease a file ends with its event, and its user is not asked about again."""
    asked = []

    def denied(fd: int) -> None:
        asked.append(fd)

    monkeypatch.setattr("ckpt_exporter.sources.closing.lease_tells_writers", denied)
    watch = Watch()
    for _ in range(2):
        os.close(watch.close_while_held(path))
    assert watch.ended == [(path, 100, 100.0)] * 2
    assert len(asked) == 1


def test_many_closes_at_once_share_the_budget(path: str) -> None:
    """Forty files in their closes are asked every 10 ms, not every millisecond: 4,000 questions a second."""
    watch = Watch()
    holders = []
    for number in range(40):
        name = f"{path}-{number}"
        with open(name, "wb") as file:
            file.write(b"x")
        holders.append(watch.close_while_held(name))
        watch.active.by_path[name].emitted_at = 100.0
        watch.active.by_path[name].probe_at = 100.0
    assert watch.active.probe_due(100.0) == pytest.approx(100.01)
    for holder in holders:
        os.close(holder)
    watch.active.give_back()


def test_no_descriptor_stays_open(path: str) -> None:
    """Whatever comes after a close that was waited for, the descriptor is given back."""
    before = open_descriptors()
    for after in ("drop", "again", "give_back"):
        watch = Watch()
        os.close(watch.close_while_held(path))
        if after == "drop":
            watch.active.drop(path)
        elif after == "again":
            watch.active.close_event(watch.active.by_path[path], 100.5, os.stat(path))
        else:
            watch.active.give_back()
        assert open_descriptors() == before, after
