"""Renames whose events are read after a scan has met the file under its new name."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ckpt_exporter.sources.renames import Renames


class Place:
    """A directory of the tree, and the files known in it."""

    def __init__(self, path: Path, known: dict[str, Any] | None = None) -> None:
        self.path = str(path)
        self.root = SimpleNamespace(name="d")
        self.known = known or {}

    def file(self, name: str) -> Any:
        return self.known.get(name)


class Active:
    """The open files by path; tells what was dropped."""

    def __init__(self, by_path: dict[str, Any]) -> None:
        self.by_path = by_path
        self.dropped: list[str] = []

    def settle(self, path: str, t: float) -> None:
        """None of these files is in the middle of a close."""

    def drop(self, path: str) -> Any:
        self.dropped.append(path)
        return self.by_path.pop(path, None)


def renames_of(active: Active, known: dict[str, Any], facts: list[tuple[Any, ...]]) -> Renames:
    tree = SimpleNamespace(
        forget=lambda _node, name: known.pop(name, None),
        remember=lambda _node, name, file: known.update({name: file}),
    )
    entry = SimpleNamespace(
        hidden=lambda *_: False,
        file=lambda *fact, **more: facts.append((*fact, more)),
        shared=SimpleNamespace(inodes=SimpleNamespace(note=lambda *_: None)),
        name="d",
        clock=lambda: 2.0,
    )
    trees = SimpleNamespace(tree=tree, rejoin=None, disarm=lambda *_: None)
    return Renames(entry, trees, active)  # type: ignore[arg-type]


def rename(renames: Renames, node: Any) -> None:
    renames.file_left(node, "shard.tmp", 7, 1.0)
    renames.file_arrived(node, "shard", 7, 1.0)


def test_a_file_met_under_its_new_name_stays_attended(tmp_path: Path) -> None:
    """Its close was read under a name that nobody knew any more, so it has to be asked for its writers."""
    (tmp_path / "shard").write_bytes(b"x")
    st = os.lstat(tmp_path / "shard")
    path, facts = f"{tmp_path}/shard", list[tuple[Any, ...]]()
    active = Active({path: SimpleNamespace(path=path, key=(st.st_dev, st.st_ino))})
    rename(renames_of(active, {}, facts), Place(tmp_path))
    assert path in active.by_path
    assert facts == []


def test_a_file_that_replaces_another_sets_that_aside(tmp_path: Path) -> None:
    """Another file's record under that name is no sign that the arriving one was seen."""
    (tmp_path / "shard").write_bytes(b"x")
    st = os.lstat(tmp_path / "shard")
    path, facts = f"{tmp_path}/shard", list[tuple[Any, ...]]()
    active = Active({path: SimpleNamespace(path=path, key=(st.st_dev, st.st_ino + 1))})
    rename(renames_of(active, {}, facts), Place(tmp_path))
    assert path not in active.by_path
    assert [(fact[0], fact[1], fact[-1]) for fact in facts] == [
        ("moved", f"{tmp_path}/shard.tmp", {"to": path})
    ]


def test_a_file_renamed_to_a_name_that_is_gone_stays_known(tmp_path: Path) -> None:
    """What it was renamed or deleted by next may be lost in an overflow: then a comparison has to miss it."""
    known: dict[str, Any] = {"shard.tmp": (5, 10, 77)}
    facts = list[tuple[Any, ...]]()
    rename(renames_of(Active({}), known, facts), Place(tmp_path))
    assert known == {"shard": (5, 10, 77)}
    assert [(fact[0], fact[1]) for fact in facts] == [("moved", f"{tmp_path}/shard.tmp")]


def test_a_file_told_of_under_both_names_has_been_renamed(tmp_path: Path) -> None:
    """A look at the old file met the new one already; without the rename the temporary name would stay."""
    (tmp_path / "shard").write_bytes(b"x")
    facts, known = list[tuple[Any, ...]](), {"shard": (1, 10, os.lstat(tmp_path / "shard").st_ino)}
    renames, node = renames_of(Active({}), known, facts), Place(tmp_path, known)
    renames.unsized[node, "shard.tmp"] = None  # type: ignore[index]
    rename(renames, node)
    assert [(fact[0], fact[1], fact[-1]) for fact in facts] == [
        ("moved", f"{tmp_path}/shard.tmp", {"to": f"{tmp_path}/shard"})
    ]
    facts.clear()
    rename(renames, node)  # a scan told of the file, and of the temporary name nobody
    assert facts == []


def test_a_name_told_of_without_a_size_goes_with_an_overflow(tmp_path: Path) -> None:
    """What took it away is among the lost events, and no comparison misses a file that nobody looked at."""
    facts = list[tuple[Any, ...]]()
    renames, node = renames_of(Active({}), {}, facts), Place(tmp_path)
    renames.unsized[node, "shard.tmp"] = None  # type: ignore[index]
    rename(renames, node)  # to a name that is gone, too
    facts.clear()
    renames.forget_gone()
    assert [(fact[0], fact[1]) for fact in facts] == [("deleted", f"{tmp_path}/shard")]
    renames.forget_gone()
    assert len(facts) == 1
