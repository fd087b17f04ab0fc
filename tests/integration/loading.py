"""Watch one directory for loads, as the exporter does, and run programs that load from it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ckpt_exporter.ledger import Ledger
from ckpt_exporter.model import DetectSettings, DirectorySettings, Fact, Load, ReadEvent, Save
from ckpt_exporter.sources.reading import ReadersSource
from ckpt_exporter.sources.watch import WatchSource
from tests.integration.watching import FAST

QUIET_SECONDS = 1.0


class Loading:
    """A watched directory, and the loads seen of its ``files``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.loads: list[Load] = []
        self.saves: list[Save] = []
        self.facts: list[Fact] = []
        directory = DirectorySettings("d", str(root))
        self._ledger = Ledger(
            [directory],
            DetectSettings(quiet_seconds=QUIET_SECONDS),
            on_load=self.loads.append,
            on_save=self.saves.append,
            on_fact=self.facts.append,
        )
        self._readers = ReadersSource(self._ledger.feed, time.monotonic)
        self._readers.replace_directories(["d"])
        self._watch = WatchSource([directory], self._emit, settings=FAST)
        self.files: list[str] = []

    def _emit(self, fact: Fact) -> None:
        if not isinstance(fact, ReadEvent):
            self._ledger.feed(fact)
        elif not self._readers.is_own("d", fact):
            self._ledger.feed(fact)
            self._readers.note("d", fact)

    def start(self) -> None:
        self._watch.start()
        self.wait(lambda: any(status.up for status in self._watch.statuses()))

    def stop(self) -> None:
        self._watch.stop()
        self._readers.stop()

    def wait(self, condition: Callable[[], object], seconds: float = 15.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not seen; loads: {self.loads}"
            self._ledger.tick(time.monotonic())
            time.sleep(0.02)

    def settle(self) -> None:
        """Wait until every load begun so far is judged."""
        begun = time.monotonic()
        self.wait(lambda: not self._ledger.loading and time.monotonic() - begun > 0.3)

    def cool(self) -> None:
        """Empty the page cache of the files; done before the watch begins, since it opens them."""
        for file in self.files:
            fd = os.open(file, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)

    def warm(self) -> None:
        for file in self.files:
            Path(file).read_bytes()

    def run(self, program: str, *arguments: str, processes: int = 1) -> tuple[float, float]:
        """Run a program that prints when it began and had its last byte, and waits; wait for its load.

        Returns when the first began and when the last had its last byte.
        """
        running = [
            subprocess.Popen(
                [sys.executable, "-W", "ignore", "-c", program, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for _ in range(processes)
        ]
        said = [process.stdout.readline().split() for process in running if process.stdout]
        self.wait(lambda: self.loads)
        for process in running:
            process.communicate()
        return min(float(begun) for begun, _ in said), max(float(done) for _, done in said)
