"""What two rounds of polling say of names that came and went between them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckpt_exporter.detect.saves import SaveDetector
from ckpt_exporter.model import DetectSettings, DirectorySettings, Fact, FileEvent
from ckpt_exporter.sources import poll
from ckpt_exporter.sources.entry import Counts, Entry, Shared, WatchSettings
from ckpt_exporter.sources.filestat import Births
from ckpt_exporter.sources.inotify_calls import InotifyCalls

Happening = Callable[[], object]


@pytest.fixture
def one_inode(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let files and directories of some names appear to have the same inode."""

    def alike(*names: str) -> None:
        class OneInode(poll.PolledStat):
            def __init__(self, path: str) -> None:
                super().__init__(path)
                if os.path.basename(path) in names:
                    self.st_ino = 1

        monkeypatch.setattr(poll, "PolledStat", OneInode)

    return alike


class Now:
    """A clock that stands until it is moved."""

    t = 1000.0

    def unix(self) -> float:
        return 1_000_000.0 + self.t


def polling(
    root: Path, now: Now, facts: list[Fact], mountinfo: str = "/proc/self/mountinfo"
) -> poll.PollEngine:
    shared = Shared(
        settings=WatchSettings(),
        clock=lambda: now.t,
        ignored=lambda *_: False,
        overwrite_position=lambda *_: None,
        calls=InotifyCalls(),
        counts=Counts(),
        wall=now.unix,
        mountinfo=mountinfo,
    )
    return poll.PollEngine(Entry(DirectorySettings("d", str(root)), shared, facts.append), initial=True)


def told(root: Path, *between: Happening) -> list[tuple[Any, ...]]:
    """Poll, let something happen, poll again: (event, old name, new name) of what is told after the first."""
    now, facts = Now(), list[Fact]()
    engine = polling(root, now, facts)
    engine.step()
    seen = len(facts)
    for happening in between:
        happening()
    now.t += 10
    engine.step()
    return [
        (f.event, *(os.path.relpath(p, root) for p in (f.path, f.to) if p))
        for f in facts[seen:]
        if isinstance(f, FileEvent) and f.event != "close_write"
    ]


def old_file(path: Path, size: int = 10) -> None:
    path.write_bytes(b"x" * size)
    os.utime(path, (1, 1))


def test_inode_of_a_deleted_file_used_again_is_no_rename(
    tmp_path: Path, one_inode: Callable[..., None]
) -> None:
    """A file born after the deleted one last changed is another, whatever its inode: two saves, not one."""
    one_inode("model_step1.pt", "model_step2.pt")
    old_file(tmp_path / "model_step1.pt")

    assert told(
        tmp_path,
        (tmp_path / "model_step1.pt").unlink,
        lambda: (tmp_path / "model_step2.pt").write_bytes(b"y" * 20),
    ) == [("deleted", "model_step1.pt"), ("create", "model_step2.pt")]


def test_inode_of_a_deleted_directory_used_again_is_no_rename(
    tmp_path: Path, one_inode: Callable[..., None]
) -> None:
    """A directory born after the deleted one last changed is another, and its files are new as well."""
    one_inode("checkpoint-1", "checkpoint-2")
    (tmp_path / "checkpoint-1").mkdir()
    old_file(tmp_path / "checkpoint-1" / "a.bin")
    os.utime(tmp_path / "checkpoint-1", (1, 1))

    def make() -> None:
        (tmp_path / "checkpoint-2").mkdir()
        (tmp_path / "checkpoint-2" / "b.bin").write_bytes(b"y")

    events = told(tmp_path, lambda: shutil.rmtree(tmp_path / "checkpoint-1"), make)
    assert sorted(events) == [
        ("create", "checkpoint-2"),
        ("create", "checkpoint-2/b.bin"),
        ("deleted", "checkpoint-1"),
        ("deleted", "checkpoint-1/a.bin"),
    ]


def test_file_that_grew_and_was_renamed_between_two_rounds_is_a_rename(tmp_path: Path) -> None:
    """A temporary file that gets its last bytes and its final name between two looks stays one file."""
    temporary, final = tmp_path / "model.pt.tmp", tmp_path / "model.pt"
    temporary.write_bytes(b"x" * 10)

    events = told(tmp_path, lambda: temporary.write_bytes(b"x" * 20), lambda: temporary.rename(final))
    assert events == [("moved", "model.pt.tmp", "model.pt")]


def test_renamed_file_with_a_time_set_by_a_tool_is_a_rename(tmp_path: Path) -> None:
    """A copy with the time of its source was born after it last changed: unchanged, it is the same file."""
    old_file(tmp_path / "model.pt")

    events = told(tmp_path, lambda: (tmp_path / "model.pt").rename(tmp_path / "best.pt"))
    assert events == [("moved", "model.pt", "best.pt")]


def test_save_on_a_network_file_system_that_is_polled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two files that grow for 10 s between looks, one a second, are one save, to two looks' distance."""
    root, mountinfo = tmp_path / "root", tmp_path / "mountinfo"
    root.mkdir()
    mountinfo.write_text("21 1 0:21 / / rw - nfs4 server:/export rw\n")
    monkeypatch.setattr(Births, "unix", lambda *_: None)  # NFS keeps none
    now, facts, saves = Now(), list[Fact](), []
    engine = polling(root, now, facts, str(mountinfo))
    detector = SaveDetector(DirectorySettings("d", str(root)), DetectSettings())
    for tenth in range(400):
        now.t = 1000.0 + tenth / 10
        if 23 <= tenth <= 123:  # from 2.3 s to 12.3 s
            for name in ("model.pt", "optimizer.pt"):
                with open(root / name, "ab") as file:
                    file.write(b"x" * 100_000)
                os.utime(root / name, (now.unix(), now.unix()))
        if tenth % 10 == 0:
            engine.step()
            saves += [save for fact in facts for save in detector.feed(fact)] + detector.tick(now.t)
            facts.clear()

    (save,) = saves
    assert (save.result, save.files, save.bytes) == ("complete", 2, 2 * 101 * 100_000)
    assert save.duration_seconds == pytest.approx(10.0, abs=2.0)
    assert engine.status().backend == "poll"
