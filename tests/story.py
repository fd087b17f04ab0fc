"""A small language for tests of the pure core: tell what happened to files, get the saves."""

from __future__ import annotations

from typing import Any

from ckpt_exporter.detect.saves import SaveDetector
from ckpt_exporter.model import (
    DetectSettings,
    DirectorySettings,
    FileEvent,
    OpenSave,
    Progress,
    Save,
    Space,
    Writers,
)

ROOT = "/data/ckpt"


class Story:
    """Facts at times, told in order; paths are relative to the watched directory."""

    def __init__(self, *, layout: str = "auto", ignore: tuple[str, ...] = (), **settings: Any) -> None:
        self.detector = SaveDetector(DirectorySettings("d", ROOT, layout, ignore), DetectSettings(**settings))
        self.saves: list[Save] = []
        self.now = 0.0

    def at(self, t: float) -> Story:
        """Let time pass until ``t``."""
        self.now = t
        self.saves += self.detector.tick(t)
        return self

    def _file(self, event: str, name: str | None, **more: Any) -> Story:
        path = f"{ROOT}/{name}" if name is not None else None
        self.saves += self.detector.feed(FileEvent(self.now, event, path, **more))  # type: ignore[arg-type]
        return self

    def mkdir(self, name: str) -> Story:
        return self._file("create", name, is_dir=True)

    def create(self, name: str, **more: Any) -> Story:
        return self._file("create", name, **more)

    def open(self, name: str, **more: Any) -> Story:
        return self._file("open", name, **more)

    def close(self, name: str, size: int | None = None, **more: Any) -> Story:
        return self._file("close_write", name, size=size, **more)

    def link(self, name: str) -> Story:
        return self._file("link", name)

    def delete(self, name: str, **more: Any) -> Story:
        return self._file("deleted", name, **more)

    def rename(self, name: str | None, to: str | None, **more: Any) -> Story:
        return self._file("moved", name, to=f"{ROOT}/{to}" if to is not None else None, **more)

    def progress(self, name: str, size: int, **more: Any) -> Story:
        more.setdefault("writers", 1)
        self.saves += self.detector.feed(Progress(self.now, f"{ROOT}/{name}", size, **more))
        return self

    def space(self, available: int) -> Story:
        self.saves += self.detector.feed(Space(self.now, "d", available, 1 << 40))
        return self

    def writers(self, *pids: int, alive: bool = True, **more: Any) -> Story:
        self.saves += self.detector.feed(Writers(self.now, "d", pids, alive=alive, **more))
        return self

    def write(self, name: str, begin: float, end: float, size: int) -> Story:
        """Write a whole file between two moments."""
        return self.at(begin).create(name).at(end).close(name, size)

    def open_saves(self) -> tuple[OpenSave, ...]:
        return self.detector.open_saves(self.now)

    def results(self) -> list[str]:
        return [save.result for save in self.saves]
