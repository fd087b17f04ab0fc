"""What a save costs the daemon."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks.processes import MEMORY, Running, exporter, observer, scratch, until
from benchmarks.report import Outcome, Row, at_most, spread

SAVES, FILES, FILE_BYTES = 4, 8, 5 * (64 << 20)
LOAD_BYTES = SAVES * FILES * FILE_BYTES


def measure(quick: bool) -> Outcome:
    pairs = 2 if quick else 4
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(pairs):
        runs: list[Callable[[], None]] = [lambda: ours.append(_ours()), lambda: theirs.append(_theirs())]
        for run in random.sample(runs, 2):
            run()
    return Outcome(
        "a plain watchdog observer with the default mask on the same load",
        f"{pairs} pairs, random order. Load: {SAVES} Trainer-like saves of {FILES} files, 64 KiB writes "
        f"round robin, {LOAD_BYTES / 1e9:.1f} GB on tmpfs (one after the other, earlier ones removed), "
        "unthrottled. User and system time from the first write until the exporter has counted the saves, or "
        "the observer is through its queue; the observer overflows at this rate, which makes its work less.",
        (
            at_most(
                "CPU seconds, exporter / observer", [a / b for a, b in zip(ours, theirs, strict=True)], 0.05
            ),
            Row("exporter, per 10 GB", spread(ours, ".3f", " s")),
            Row("observer, per 10 GB", spread(theirs, ".3f", " s")),
        ),
    )


def _write(directory: str) -> None:
    arguments = [directory, str(SAVES), str(FILES), str(FILE_BYTES)]
    subprocess.run([sys.executable, "-m", "benchmarks.load", "shards", *arguments], check=True)


def _ours() -> float:
    with scratch(MEMORY) as directory, exporter(f"--watch=bench={directory}") as process:
        time.sleep(1)
        before = process.cpu_seconds
        _write(directory)
        until(lambda: process.logged("result=complete") >= SAVES, 30, "the saves to be counted")
        return (process.cpu_seconds - before) / LOAD_BYTES * 10e9


def _theirs() -> float:
    with scratch(MEMORY) as directory, observer(directory) as process:
        before = process.cpu_seconds
        _write(os.path.join(directory))
        return (_settled(process) - before) / LOAD_BYTES * 10e9


def _settled(process: Running) -> float:
    """Wait until the process uses no more CPU time; return it."""
    used = -1.0
    while process.cpu_seconds > used:
        used = process.cpu_seconds
        time.sleep(0.5)
    return used
