"""What the watcher costs the writer."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from contextlib import ExitStack

from benchmarks.processes import WATCHER_CORE, WRITER_CORE, exporter, memory_mount, observer, pin
from benchmarks.report import Outcome, Row, at_least, spread

# Block size, fresh file, seconds measured, target.
CELLS = (
    (64 << 10, False, 1.0, 0.98),
    (1 << 20, False, 1.0, 0.99),
    (4 << 10, False, 0.5, None),
    (64 << 10, True, 0.5, None),
    (1 << 20, True, 0.5, None),
)
Cell = tuple[int, bool]


def measure(quick: bool) -> Outcome:
    if os.geteuid() != 0:
        return Outcome("nothing: skipped", "Needs root, to mount a tmpfs for each condition.", ())
    pairs = 5 if quick else 15
    with ExitStack() as stack:
        places = {name: stack.enter_context(memory_mount()) for name in ("none", "exporter", "observer")}
        stack.enter_context(exporter(f"--watch=bench={places['exporter']}", core=WATCHER_CORE))
        stack.enter_context(observer(places["observer"], core=WATCHER_CORE))
        writer = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.load", "throughput"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        pin(writer.pid, WRITER_CORE)
        stack.callback(writer.wait)
        assert writer.stdin is not None
        stack.callback(writer.stdin.close)
        return _report(_pairs(writer, places, pairs), pairs)


def _pairs(
    writer: subprocess.Popen[str], places: dict[str, str], pairs: int
) -> dict[Cell, list[dict[str, float]]]:
    assert writer.stdin is not None
    assert writer.stdout is not None
    results: dict[Cell, list[dict[str, float]]] = {cell[:2]: [] for cell in CELLS}
    for _ in range(pairs):
        for block_bytes, fresh, seconds, _target in CELLS:
            rates: dict[str, float] = {}
            for name in random.sample(list(places), len(places)):
                task = {"directory": places[name], "block_bytes": block_bytes, "seconds": seconds}
                writer.stdin.write(json.dumps({**task, "fresh": fresh}) + "\n")
                writer.stdin.flush()
                rates[name] = float(writer.stdout.readline())
            results[block_bytes, fresh].append(rates)
    return results


def _report(results: dict[Cell, list[dict[str, float]]], pairs: int) -> Outcome:
    rows: list[Row] = []
    for block_bytes, fresh, _, target in CELLS:
        label = f"{block_bytes >> 10} KiB blocks, {'fresh file' if fresh else 'rewriting in place'}"
        rates = results[block_bytes, fresh]
        ours = [rate["exporter"] / rate["none"] for rate in rates]
        theirs = [rate["observer"] / rate["none"] for rate in rates]
        what = f"{label}: exporter watching / not watched"
        rows.append(Row(what, spread(ours)) if target is None else at_least(what, ours, target))
        rows.append(Row(f"{label}: default watchdog observer / not watched", spread(theirs)))
        rows.append(Row(f"{label}: not watched", spread([r["none"] / 1e9 for r in rates], ".2f", " GB/s")))
    return Outcome(
        "the same writer on an unwatched tmpfs, and one watched by watchdog's default observer",
        f"{pairs} rounds, conditions in random order within each; a tmpfs of its own for each condition; "
        f"writer pinned to core {WRITER_CORE}, watchers to core {WATCHER_CORE}; 0.5 to 1 s each, the file "
        "created 0.15 s before, so that it is a save in progress. In place: 4 MiB rewritten again and "
        "again. Fresh: a new file is appended to.",
        tuple(rows),
    )
