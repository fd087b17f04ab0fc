"""The watch of one directory while its files are being read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ckpt_exporter.sources.entry import WatchSettings
from ckpt_exporter.sources.inotify_calls import IN_CLOSE_NOWRITE, IN_DONT_FOLLOW
from ckpt_exporter.sources.watches import Watches


class Calls:
    """Kernel calls that answer with one watch descriptor."""

    def __init__(self, wd: int) -> None:
        self.wd = wd
        self.masks: list[int] = []
        self.removed: list[int] = []

    def add_watch(self, _fd: int, _path: bytes, mask: int) -> int:
        self.masks.append(mask)
        return self.wd

    def rm_watch(self, _fd: int, wd: int) -> None:
        self.removed.append(wd)


def listening(calls: Calls) -> Calls:
    node: Any = type("Place", (), {"parent": object(), "path": "/data/ckpt/a", "armed": True})()
    watches: Any = object.__new__(Watches)
    watches._calls, watches.fd, watches.read = calls, 3, {}
    watches.tree = SimpleNamespace(by_wd={5: node})
    watches._entry = SimpleNamespace(settings=WatchSettings())
    watches.listen_for_closes(node, 100.0)
    return calls


def test_listening_for_readers_follows_no_link() -> None:
    """A link that was laid in a directory's place is not watched instead of it."""
    (mask,) = listening(Calls(5)).masks
    assert mask & IN_DONT_FOLLOW
    assert mask & IN_CLOSE_NOWRITE


def test_a_watch_of_what_took_the_place_is_given_back() -> None:
    """Another directory under the same path leaves no watch that nobody knows."""
    assert listening(Calls(9)).removed == [9]
    assert listening(Calls(5)).removed == []
