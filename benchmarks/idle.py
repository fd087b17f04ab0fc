"""What the exporter costs while nothing is saved."""

from __future__ import annotations

import os
import time

from benchmarks.processes import exporter, scratch
from benchmarks.report import Outcome, at_most

DIRECTORIES, CHECKPOINTS, FILES = 10, 10, 30
SCRAPE_SECONDS, SCRAPES = 15, 2


def measure(quick: bool) -> Outcome:
    rounds = 2 if quick else 4
    shares: list[float] = []
    memory: list[float] = []
    with scratch() as base:
        names = [f"d{i}" for i in range(DIRECTORIES)]
        for name in names:
            _fill(os.path.join(base, name))
        watch = [f"--watch={name}={os.path.join(base, name)}" for name in names]
        with exporter(*watch) as process:
            time.sleep(10)
            for _ in range(rounds):
                used, started = process.cpu_seconds, time.monotonic()
                for _ in range(SCRAPES):
                    process.scrape()
                    time.sleep(SCRAPE_SECONDS)
                shares.append((process.cpu_seconds - used) / (time.monotonic() - started) * 100)
                memory.append(process.rss_bytes / 1e6)
    files = CHECKPOINTS * FILES
    return Outcome(
        "the targets",
        f"{DIRECTORIES} directories of {files} files each, {rounds} stretches of "
        f"{SCRAPES * SCRAPE_SECONDS} s with a scrape each {SCRAPE_SECONDS} s, from 10 s after the start.",
        (
            at_most("CPU share of one core", shares, 0.3, ".2f", " %"),
            at_most("resident memory", memory, 60, ".1f", " MB"),
        ),
    )


def _fill(directory: str) -> None:
    for step in range(CHECKPOINTS):
        checkpoint = os.path.join(directory, f"checkpoint-{step}")
        os.makedirs(checkpoint)
        for i in range(FILES):
            with open(os.path.join(checkpoint, f"shard-{i}.pt"), "wb") as stream:
                stream.write(b"0" * 4096)
