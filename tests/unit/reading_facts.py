"""Hand-made facts about files being read, and the loads that they make."""

from __future__ import annotations

from ckpt_exporter.detect.loads import LoadDetector
from ckpt_exporter.model import DetectSettings, DirectorySettings, Load, ReadEvent, Reading

MB = 1_000_000
FILE = "/data/ckpt/checkpoint-500/model.safetensors"
SECOND = "/data/ckpt/checkpoint-500/optimizer.pt"
DIRECTORY = DirectorySettings("llama", "/data/ckpt")


def loads_of(*facts: ReadEvent | Reading, until: float = 200.0) -> list[Load]:
    """Feed facts with ticks in between, as the ledger does; return all loads."""
    detector = LoadDetector(DIRECTORY, DetectSettings())
    loads: list[Load] = []
    for fact in facts:
        loads += detector.tick(fact.t)
        detector.feed(fact)
    return loads + detector.tick(until)


def opened(t: float, cached: int | None = None, *, path: str = FILE, size: int = 100 * MB):
    return [
        ReadEvent(t, path, "open", size=size),
        ReadEvent(t, path, "look", size=size, cached_bytes=cached, visible=True),
    ]


def closed(t: float, path: str = FILE) -> ReadEvent:
    return ReadEvent(t, path, "close")


def read(t: float, rchar: int, pid: int = 7, *, path: str = FILE, **more) -> Reading:
    values = {"size": 100 * MB, "wchar": 0, "read_bytes": 0, "command": "python", **more}
    return Reading(t, path, pid, rchar=rchar, **values)
