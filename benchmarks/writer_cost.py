"""What the watcher costs the writer."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace

from benchmarks.load import TURN_BYTES
from benchmarks.processes import WATCHER_CORE, WRITER_CORE, Running, exporter, memory_mount, observer, pin
from benchmarks.report import Outcome, Row, interval, interval_at_least, spread
from ckpt_exporter.sources.inotify_calls import BASE_MASK, InotifyCalls


@dataclass(frozen=True, slots=True)
class Cell:
    """One way of writing, with ``repeats`` pairs of turns a round."""

    block_bytes: int
    fresh: bool
    repeats: int
    target: float | None

    @property
    def label(self) -> str:
        return f"{self.block_bytes >> 10} KiB blocks, {'fresh file' if self.fresh else 'in place'}"


CELLS = (
    Cell(64 << 10, False, 16, 0.98),
    Cell(1 << 20, False, 16, 0.99),
    Cell(4 << 10, False, 6, None),
    Cell(64 << 10, True, 4, None),
    Cell(1 << 20, True, 4, None),
)
WATCHERS = {
    "exporter": "exporter",
    "kernel": "the kernel alone (a watch with the exporter's mask, nobody reads)",
    "observer": "default watchdog observer",
}
CLOCK, CPU = 0, 1
Round = dict[str, tuple[float, float]]


def measure(quick: bool) -> Outcome:
    if os.geteuid() != 0:
        return Outcome("nothing: skipped", "Needs root, to mount a tmpfs for each watcher.", ())
    rounds = 30 if quick else 120
    with ExitStack() as stack:
        places = {name: stack.enter_context(memory_mount()) for name in ("bare", *WATCHERS)}
        for place in places.values():
            os.mkdir(os.path.join(place, "here"))
            os.mkdir(os.path.join(place, "beside"))
        watched = {name: os.path.join(places[name], "here") for name in WATCHERS}
        daemon = stack.enter_context(exporter(f"--watch=bench={watched['exporter']}", core=WATCHER_CORE))
        stack.enter_context(observer(watched["observer"], core=WATCHER_CORE))
        stack.enter_context(_silent_watch(watched["kernel"]))
        write = stack.enter_context(_writer())
        before = _events(daemon)
        counts = {cell: rounds if cell.target else max(20, rounds // 3) for cell in CELLS}
        found = {cell: [write(cell, places, i) for i in range(n)] for cell, n in counts.items()}
        events = _events(daemon) - before
    return Outcome(
        "the same file written by its other name, in a directory that nobody watches",
        f"{rounds} rounds for the two ways with a target, a third of it for the others. A round makes a new "
        "file on each of four tmpfs, opened by a name in the watched directory (so it is a save in progress "
        "that the exporter looks at) and by a second name in a directory beside: the same pages with and "
        f"without the watch. Then the names take turns of {TURN_BYTES >> 20} MiB, there and back again "
        f"(ABBA, in random order), in one process on core {WRITER_CORE}, watchers on core {WATCHER_CORE}; a "
        "name's figure is the median of its turns, a round's the ratio of two names. Ratios are speeds, "
        "watched / not; brackets hold the median with 95 % (order statistics), a target is met or missed "
        "only where all of them is. `clock` is throughput; `CPU` is bytes per second of the writer's own "
        "processor time, which other load disturbs less; `no watch at all` compares with a tmpfs where "
        "nobody watches anything. In place: rewritten again and again. Fresh: appended from nothing.",
        (*_rows(found), _events_row(found, events)),
    )


@contextmanager
def _silent_watch(directory: str) -> Iterator[None]:
    calls = InotifyCalls()
    fd = calls.init()
    try:
        calls.add_watch(fd, os.fsencode(directory), BASE_MASK)
        yield
    finally:
        os.close(fd)


@contextmanager
def _writer() -> Iterator[Callable[[Cell, dict[str, str], int], Round]]:
    command = [sys.executable, "-m", "benchmarks.load", "turns"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    pin(process.pid, WRITER_CORE)
    asks, answers = process.stdin, process.stdout
    assert asks is not None
    assert answers is not None

    def write(cell: Cell, places: dict[str, str], i: int) -> Round:
        task = {"places": places, "name": f"model-{cell.block_bytes}-{cell.fresh}-{i}.pt"}
        task.update(block_bytes=cell.block_bytes, repeats=cell.repeats, fresh=cell.fresh)
        asks.write(json.dumps(task) + "\n")
        asks.flush()
        return {name: (wall, cpu) for name, (wall, cpu) in json.loads(answers.readline()).items()}

    try:
        yield write
    finally:
        asks.close()
        process.wait(timeout=30)


def _events(daemon: Running) -> float:
    time.sleep(0.5)  # what is under way arrives
    with suppress(OSError):
        return sum(v for series, v in daemon.metrics().items() if series.startswith("ckpt_events_total"))
    return math.nan


def _rows(found: dict[Cell, list[Round]]) -> Iterator[Row]:
    for cell, rounds in found.items():
        for name, what in WATCHERS.items():
            clock, cpu = (
                _ratios(rounds, f"{name} beside", name, CLOCK),
                _ratios(rounds, f"{name} beside", name, CPU),
            )
            bare = f"{interval(_ratios(rounds, 'bare', name, CPU))} against no watch at all"
            if name == "exporter":
                yield interval_at_least(f"{cell.label}: {what}, clock", clock, cell.target)
                row = interval_at_least(f"{cell.label}: {what}, CPU", cpu, cell.target)
                yield replace(row, figure=f"{row.figure}; {bare}")
            else:
                yield Row(f"{cell.label}: {what}", f"clock {interval(clock)}; CPU {interval(cpu)}; {bare}")
        speeds = [TURN_BYTES / r["bare"][CLOCK] / 1e9 for r in rounds]
        yield Row(f"{cell.label}: no watch at all", spread(speeds, ".2f", " GB/s"))


def _ratios(rounds: list[Round], base: str, name: str, unit: int) -> list[float]:
    return [r[base][unit] / r[name][unit] for r in rounds]


def _events_row(found: dict[Cell, list[Round]], events: float) -> Row:
    turns = {cell: 2 * cell.repeats * len(rounds) for cell, rounds in found.items()}
    writes = sum(n * TURN_BYTES // cell.block_bytes for cell, n in turns.items())
    return Row(
        "file events that the exporter counted in all this",
        f"{events:,.0f}, for {writes:,} writes by that name",
    )
