"""Start the exporter and what it is compared with, as real processes; read what they use."""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import psutil

MEMORY = "/dev/shm"
WRITER_CORE, WATCHER_CORE = 0, 1
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Running:
    """A started process; ``port`` 0 if it serves nothing. Its standard error is in the file ``log``."""

    process: subprocess.Popen[bytes]
    port: int
    log: str
    started: float

    @property
    def cpu_seconds(self) -> float:
        """User and system time used so far."""
        return cpu_seconds(self.process.pid)

    @property
    def rss_bytes(self) -> int:
        """Resident memory now."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def scrape(self) -> bytes:
        """Fetch the metrics over a new connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", "/metrics")
            return connection.getresponse().read()
        finally:
            connection.close()

    def metrics(self) -> dict[str, float]:
        """Fetch and parse: a series as it is written, to its value."""
        lines = (line for line in self.scrape().decode().splitlines() if not line.startswith("#"))
        return {series: float(value) for series, _, value in (line.rpartition(" ") for line in lines)}

    def logged(self, text: str) -> int:
        """Count the lines of the log that hold ``text``; costs the process nothing."""
        with open(self.log, encoding="utf-8", errors="replace") as stream:
            return sum(text in line for line in stream)


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process and its ended threads used, to the nanosecond.

    /proc tells it in ticks of 10 ms, which is as much as an idle exporter uses in ten seconds. The clock's
    number is made as clock_getcpuclockid(3) makes it.
    """
    return time.clock_gettime((~pid << 3) | 2)


def pin(pid: int, core: int) -> None:
    """Keep a process that just started, and so has no threads yet, on one core if there is such a core."""
    if core in os.sched_getaffinity(0):
        os.sched_setaffinity(pid, {core})


@contextmanager
def running(command: Sequence[str], *, port: int = 0, core: int | None = None) -> Iterator[Running]:
    """Run a process for the length of the block."""
    with tempfile.NamedTemporaryFile(prefix="ckpt-bench-log-") as log:
        started = time.monotonic()
        process = subprocess.Popen(command, stdout=log, stderr=log)
        if core is not None:
            pin(process.pid, core)
        try:
            yield Running(process, port, log.name, started)
        finally:
            process.terminate()
            process.wait(timeout=30)


@contextmanager
def exporter(*arguments: str, core: int | None = None, wait: bool = True) -> Iterator[Running]:
    """Run the exporter as a user would; by default wait until it watches."""
    port = free_port()
    command = [sys.executable, "-m", "ckpt_exporter", "run", *arguments]
    with running([*command, f"--web.listen-address=127.0.0.1:{port}"], port=port, core=core) as process:
        if wait:
            until(lambda: _watching(process), 60, "the exporter to watch")
        yield process


def _watching(process: Running) -> bool:
    try:
        metrics = process.metrics()
    except OSError:
        return False
    up = [value for series, value in metrics.items() if series.startswith("ckpt_watch_up")]
    return bool(up) and all(up)


@contextmanager
def observer(directory: str, core: int | None = None) -> Iterator[Running]:
    """Run a plain watchdog observer with the default mask."""
    with running([sys.executable, "-m", "benchmarks.observer", directory], core=core) as process:
        until(lambda: process.logged("ready") > 0, 30, "the observer")
        yield process


def until(condition: Callable[[], _T], seconds: float, what: str, every: float = 0.02) -> _T:
    """Wait for a true value and return it; RuntimeError after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {seconds:g} s in vain for {what}")
        time.sleep(every)
    return value


def free_port() -> int:
    """Find a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def scratch(parent: str | None = None) -> Iterator[str]:
    """Make a directory for the length of the block, on disk unless ``parent`` says otherwise."""
    directory = tempfile.mkdtemp(prefix="ckpt-bench-", dir=parent)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def memory_mount() -> Iterator[str]:
    """Mount a tmpfs of its own: a watch anywhere on a file system is felt by all its writers. Needs root."""
    with scratch(MEMORY) as directory:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4g", "ckpt-bench", directory], check=True)
        try:
            yield directory
        finally:
            subprocess.run(["umount", "--lazy", directory], check=True)
