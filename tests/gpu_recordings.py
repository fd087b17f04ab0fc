"""Recordings of simulated trainings: a GPU profile and the file events of its saves, as lines of the format.

Only the documented keys are written, so a recording here is what any other program could have made.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from heapq import merge
from operator import itemgetter
from pathlib import Path
from typing import Any

from ckpt_exporter.model import GpuSample, Save, Writers
from tests.gpu_profiles import Profile, Reader, gpu_set, ticks

UNIX = 1764470400.0
PACE_SECONDS = 0.25  # how often the source looks at a file that is being written
GPU_KEYS = ("util", "mem_util", "power_w", "power_window_s", "sm", "tensor", "dram", "error")
Line = dict[str, Any]
time_of = itemgetter("t")


def directories_of(profile: Profile) -> list[str]:
    """Name the directories that a profile's saves and runs are in."""
    names = {save.directory for save in profile.saves} | {run.directory for run in profile.writers}
    return sorted(names) or ["d"]


def start_line(profile: Profile, *, gpus: bool = True) -> Line:
    """Tell what is watched, and which GPUs there are."""
    line: Line = {"t": 0.0, "kind": "start", "unix": UNIX}
    line["directories"] = [{"name": name, "path": f"/data/{name}"} for name in directories_of(profile)]
    if gpus:
        line["gpus"] = [
            {"gpu": info.gpu, "uuid": info.uuid, "name": info.name, "limit_w": info.limit_w}
            for info in gpu_set(profile).gpus
        ]
    return line


def run_line(writers: Writers) -> Line:
    """Tell which processes are of one run, and which GPUs they hold."""
    gpus, pids = list(writers.gpus or ()), list(writers.pids)
    return {"t": writers.t, "kind": "run", "gpus": gpus, "pids": pids, "run_id": writers.run_id}


def gpu_line(sample: GpuSample) -> Line:
    """Tell one reading; what the GPU does not tell is left out."""
    line: Line = {"t": round(sample.t, 6), "kind": "gpu", "gpu": sample.gpu}
    values = {key: getattr(sample, key) for key in GPU_KEYS}
    return line | {
        key: round(v, 6) if isinstance(v, float) else v for key, v in values.items() if v is not None
    }


def gpu_lines(profile: Profile) -> Iterator[Line]:
    """Read all GPUs at each tick."""
    rng = random.Random(profile.seed)
    readers = [Reader(profile, gpu, rng) for gpu in range(profile.gpus)]
    for t in ticks(profile, rng):
        for reader in readers:
            yield gpu_line(reader.read(t))


def flowed(save: Save, t: float) -> float:
    """Return the share (0..1) of a save's bytes written by ``t``: an even rate while bytes flow."""
    whole = sum(b - a for a, b in save.flow)
    return sum(max(0.0, min(b, t) - a) for a, b in save.flow) / whole


def file_lines(save: Save, *, shards: int = 2, pace_seconds: float = PACE_SECONDS) -> Iterator[Line]:
    """Write a distributed checkpoint of ``shards`` files; its metadata is renamed into place at the end."""
    pid = save.pids[0] if save.pids else 7
    size = save.bytes // shards
    paths = [f"{save.path}/__{rank}_0.distcp" for rank in range(shards)]

    def event(t: float, kind: str, path: str, **more: Any) -> Line:
        return {"t": round(t, 6), "kind": "file", "event": kind, "path": path, "pid": pid, **more}

    def progress(t: float, path: str, position: int, writers: int) -> Line:
        sizes = dict.fromkeys(("size", "allocated", "position"), position)
        inode = f"8:1:{paths.index(path)}{save.step}"
        return {
            "t": round(t, 6),
            "kind": "progress",
            "path": path,
            **sizes,
            "inode": inode,
            "writers": writers,
        }

    yield event(save.start, "create", save.path, dir=True)
    yield from (event(save.start, "create", path) for path in paths)
    t = save.start + pace_seconds
    while t < save.end:
        for path in paths:
            yield progress(t, path, int(size * flowed(save, t)), 1)
        t += pace_seconds
    for path in paths:
        yield progress(save.end, path, size, 1)
        yield event(save.end, "close_write", path)
    staged = f"{save.path}/.metadata.tmp"
    yield event(save.end, "create", staged)
    yield event(save.end, "close_write", staged)
    yield event(save.end, "moved", staged, to=f"{save.path}/.metadata")


def recorded(profile: Profile, *, gpus: bool = True) -> Iterator[Line]:
    """Return a profile as the lines of a recording, in time order."""
    streams: list[Iterable[Line]] = [file_lines(save) for save in profile.saves]
    streams.append(map(run_line, sorted(profile.writers, key=lambda run: run.t)))
    if gpus:
        streams.append(gpu_lines(profile))
    yield start_line(profile, gpus=gpus)
    yield from merge(*streams, key=time_of)
    yield {"t": profile.seconds, "kind": "stop"}


def write_recording(path: Path, lines: Iterable[Line]) -> Path:
    """Write lines to a file."""
    with path.open("w", encoding="utf-8") as stream:
        stream.writelines(json.dumps(line) + "\n" for line in lines)
    return path
