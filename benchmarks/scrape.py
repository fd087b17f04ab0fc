"""How long a scrape takes while saves are being written."""

from __future__ import annotations

import os
import shutil
import sys
import time
from contextlib import ExitStack
from functools import partial

from benchmarks.processes import Running, exporter, free_port, running, scratch, until
from benchmarks.report import Outcome, Row, percentile

DIRECTORIES, BUSY = 16, 4
LOAD_BYTES_PER_SECOND = 400e6


def measure(quick: bool) -> Outcome:
    scrapes = 100 if quick else 500
    with ExitStack() as stack:
        base = stack.enter_context(scratch())
        places = [os.path.join(base, f"d{i}") for i in range(DIRECTORIES)]
        for place in places:
            os.makedirs(place)
        servers = {
            "exporter": stack.enter_context(
                exporter(*(f"--watch={os.path.basename(place)}={place}" for place in places))
            )
        }
        if (binary := shutil.which("prometheus-node-exporter")) is not None:
            port = free_port()
            command = [binary, f"--web.listen-address=127.0.0.1:{port}"]
            servers["node_exporter"] = stack.enter_context(running(command, port=port))
        load = [sys.executable, "-m", "benchmarks.load", "steady", str(LOAD_BYTES_PER_SECOND)]
        stack.enter_context(running([*load, *places[:BUSY]]))
        for server in servers.values():
            until(partial(_answers, server), 20, "a first scrape")
        times = _alternate(servers, scrapes)
        sizes = {name: len(server.scrape()) for name, server in servers.items()}
    rows = [
        Row(
            f"{name}: p50 / p99 / max",
            f"{percentile(t, 50):.2f} / {percentile(t, 99):.2f} / {max(t):.2f} ms "
            f"(n={len(t)}; {sizes[name]} bytes)",
        )
        for name, t in times.items()
    ]
    if "node_exporter" in times:
        ratio = percentile(times["exporter"], 99) / percentile(times["node_exporter"], 99)
        rows.append(Row("p99, exporter / node_exporter", f"{ratio:.2f}"))
    return Outcome(
        "Debian's prometheus-node-exporter with its default collectors, scraped alternately in the same run"
        if "node_exporter" in times
        else "nothing: prometheus-node-exporter is not installed",
        f"{DIRECTORIES} directories, saves being written in {BUSY} of them on disk at "
        f"{LOAD_BYTES_PER_SECOND / 1e6:.0f} MB/s in all; a new connection for each scrape, no compression.",
        tuple(rows),
    )


def _alternate(servers: dict[str, Running], scrapes: int) -> dict[str, list[float]]:
    """Return the latencies in milliseconds."""
    times: dict[str, list[float]] = {name: [] for name in servers}
    for _ in range(scrapes):
        for name, server in servers.items():
            started = time.perf_counter()
            server.scrape()
            times[name].append((time.perf_counter() - started) * 1e3)
            time.sleep(0.005)
    return times


def _answers(server: Running) -> bool:
    try:
        return bool(server.scrape())
    except OSError:
        return False
