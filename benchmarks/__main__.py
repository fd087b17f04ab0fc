"""Run benchmarks: ``python -m benchmarks [NAME ...] [--quick]``."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable

from benchmarks import (
    big_tree,
    bubble_error,
    detection_error,
    idle,
    loads,
    sampler,
    save_cost,
    scrape,
    web,
    writer_cost,
)
from benchmarks.processes import MEMORY
from benchmarks.report import Outcome, Row, machine, section

BENCHMARKS: dict[str, Callable[[bool], Outcome]] = {
    "writer_cost": writer_cost.measure,
    "save_cost": save_cost.measure,
    "idle": idle.measure,
    "big_tree": big_tree.measure,
    "scrape": scrape.measure,
    "web": web.measure,
    "detection_error": detection_error.measure,
    "bubble_error": bubble_error.measure,
    "sampler": sampler.measure,
    "loads": loads.measure,
}
RESULTS = os.path.join(os.path.dirname(__file__), "RESULTS.md")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(BENCHMARKS)}")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter measurements")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in BENCHMARKS]:
        parser.error(f"no such benchmark: {', '.join(unknown)} (choose from {', '.join(BENCHMARKS)})")
    title = f"# Benchmark results\n\nMachine: {machine(tempfile.gettempdir(), MEMORY)}.\n"
    parts = [title]
    print(title, flush=True)
    for name in options.names or BENCHMARKS:
        started = time.monotonic()
        try:
            outcome = BENCHMARKS[name](options.quick)
        except Exception as error:  # one failed benchmark must not lose the others' figures
            outcome = Outcome("-", "It failed.", (Row(f"failed: {error!r}", "-", "-", False),))
        parts.append(section(name, outcome, time.monotonic() - started, quick=options.quick))
        print(parts[-1], flush=True)
    if not options.names:
        with open(RESULTS, "w", encoding="utf-8") as stream:
            stream.write("\n".join(parts))


if __name__ == "__main__":
    main()
