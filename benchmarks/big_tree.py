"""How soon the exporter answers and watches with a very large tree."""

from __future__ import annotations

import os
import time
from functools import partial

from benchmarks.processes import Running, exporter, scratch, until
from benchmarks.report import Outcome, Row, at_most, spread

CHECKPOINTS, SHARDS = 500, 99


def measure(quick: bool) -> Outcome:
    first: list[float] = []
    watched: list[float] = []
    memory: list[float] = []
    cpu: list[float] = []
    with scratch() as base:
        directories = _grow(base)
        for _ in range(1 if quick else 2):
            with exporter(f"--watch=big={base}", wait=False) as process:
                until(partial(_answers, process), 60, "the first scrape")
                first.append(time.monotonic() - process.started)
                until(partial(_watches, process, directories), 120, "the tree", every=0.25)
                watched.append(time.monotonic() - process.started)
                memory.append(process.rss_bytes / 1e6)
                cpu.append(process.cpu_seconds)
    return Outcome(
        "the targets",
        f"A tree of {directories:,} directories with a file in each lowest one, warm in the cache; times "
        "count from the start of the process.",
        (
            at_most("first successful scrape", first, 5, ".2f", " s"),
            at_most("all directories watched", watched, 30, ".2f", " s"),
            Row("resident memory then", spread(memory, ".0f", " MB")),
            Row("CPU time until then", spread(cpu, ".2f", " s")),
        ),
    )


def _grow(base: str) -> int:
    for step in range(CHECKPOINTS):
        for shard in range(SHARDS):
            directory = os.path.join(base, f"checkpoint-{step}", f"shard-{shard}")
            os.makedirs(directory)
            with open(os.path.join(directory, "data.pt"), "wb") as stream:
                stream.write(b"0" * 64)
    return CHECKPOINTS * (SHARDS + 1)


def _answers(process: Running) -> bool:
    try:
        return b"ckpt_watched_directories" in process.scrape()
    except OSError:
        return False


def _watches(process: Running, directories: int) -> bool:
    return process.metrics().get('ckpt_watched_directories{dir="big"}', 0.0) >= directories
