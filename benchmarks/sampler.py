"""What reading GPUs costs: the sampler's process, and the daemon with it. The library is a simulation."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.processes import Running, cpu_seconds, exporter, scratch, until
from benchmarks.report import Outcome, Row, at_most, spread
from tests.nvml_library import SimulatedNvml

RATES_HZ = (2, 10)
SCRAPE_SECONDS, SCRAPES = 15.0, 2
WARM_SECONDS = 10.0
MEGABYTE = 1e6


def measure(quick: bool) -> Outcome:
    rounds = 2 if quick else 4
    rows: list[Row] = []
    if shutil.which("gcc") is None:
        rows.append(Row("not measured: gcc is missing, the simulated library can't be compiled", "-"))
    else:
        rows += _without(2)
        for hz in RATES_HZ:
            rows += _rows(hz, rounds if hz == RATES_HZ[0] else 2)
    return Outcome(
        "the targets",
        "A SIMULATION of the driver's library under the real nvidia-ml-py: 8 GPUs with GPM, whose calls cost "
        f"nothing, so a real driver's time comes on top. One idle directory, {rounds} stretches (2 for what "
        f"has no target) of {SCRAPES * SCRAPE_SECONDS:.0f} s with a scrape each {SCRAPE_SECONDS:.0f} s, from "
        f"{WARM_SECONDS:.0f} s after the start.",
        tuple(rows),
    )


def _without(rounds: int) -> list[Row]:
    """Measure the daemon without its GPU part, to tell what that adds."""
    with scratch() as base, exporter(f"--config.file={_configured(base, 'none', 2)}") as process:
        time.sleep(WARM_SECONDS)
        shares = []
        for _ in range(rounds):
            used, started = process.cpu_seconds, time.monotonic()
            _scrape(process)
            shares.append((process.cpu_seconds - used) / (time.monotonic() - started) * 100)
        size = process.rss_bytes / MEGABYTE
    return [
        Row("no GPU part: daemon: CPU share of one core", spread(shares, ".2f", " %")),
        Row("no GPU part: daemon: resident memory", f"{size:.1f} MB"),
    ]


def _rows(hz: int, rounds: int) -> list[Row]:
    with (
        scratch() as base,
        _simulated(base),
        exporter(f"--config.file={_configured(base, 'nvml', hz)}") as process,
    ):
        daemon = psutil.Process(process.process.pid)
        until(lambda: _sampler(daemon) is not None, 20, "the sampler")
        time.sleep(WARM_SECONDS)
        child = _sampler(daemon)
        assert child is not None
        shares: list[tuple[float, float]] = []
        sizes: list[tuple[float, float]] = []
        for _ in range(rounds):
            used, started = (cpu_seconds(child.pid), cpu_seconds(daemon.pid)), time.monotonic()
            _scrape(process)
            elapsed = time.monotonic() - started
            now = cpu_seconds(child.pid), cpu_seconds(daemon.pid)
            shares.append(((now[0] - used[0]) / elapsed * 100, (now[1] - used[1]) / elapsed * 100))
            sizes.append((child.memory_info().rss / MEGABYTE, daemon.memory_info().rss / MEGABYTE))
    both = [sum(share) for share in shares], [sum(size) for size in sizes]
    cpu = f"{hz} Hz: whole daemon, sampler included: CPU share of one core"
    rss = f"{hz} Hz: whole daemon, sampler included: resident memory"
    usual = hz == RATES_HZ[0]
    return [
        Row(f"{hz} Hz: sampler: CPU share of one core", spread([a for a, _ in shares], ".2f", " %")),
        Row(f"{hz} Hz: sampler: resident memory", spread([a for a, _ in sizes], ".1f", " MB")),
        at_most(cpu, both[0], 0.5, ".2f", " %") if usual else Row(cpu, spread(both[0], ".2f", " %")),
        at_most(rss, both[1], 80, ".1f", " MB"),
    ]


@contextmanager
def _simulated(base: str) -> Iterator[None]:
    """Let every process started within find the simulated library."""
    library = SimulatedNvml(Path(base))
    before = dict(os.environ)
    os.environ.update(library.environment())
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        library.close()


def _configured(base: str, backend: str, hz: int) -> str:
    """Write a configuration that watches one empty directory and reads GPUs ``hz`` times a second."""
    os.makedirs(os.path.join(base, "d"))
    path = os.path.join(base, "config.yaml")
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(f"directories:\n  - {{name: d, path: '{os.path.join(base, 'd')}'}}\n")
        stream.write(f"gpu: {{backend: {backend}, sample_hz: {hz}}}\nhistory: {{path: null}}\n")
    return path


def _scrape(process: Running) -> None:
    for _ in range(SCRAPES):
        process.scrape()
        time.sleep(SCRAPE_SECONDS)


def _sampler(daemon: psutil.Process) -> psutil.Process | None:
    return next((child for child in daemon.children() if "sampler_child" in " ".join(child.cmdline())), None)
