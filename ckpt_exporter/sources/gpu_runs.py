"""A thread that keeps up with which training run holds which GPU."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Final

from ckpt_exporter.logs import log_event
from ckpt_exporter.model import GpuRun
from ckpt_exporter.sources.runs import RunIdentity

_LOG = logging.getLogger("ckpt_exporter.gpu")

# Processes on GPUs are listed about as often.
LOOK_SECONDS: Final = 10.0
# At first, so that a run that has just begun is known before it saves.
FIRST_LOOK_SECONDS: Final = 2.0
FIRST_LOOKS: Final = 5


class GpuRuns:
    """Publishes the run of each GPU, as ``look`` finds it.

    In a thread of its own: what tells of a process can wait for that process's locks, and neither a scrape
    nor the watching may wait with it.
    """

    def __init__(self, look: Callable[[], Mapping[int, RunIdentity]]) -> None:
        self._look = look
        self._runs: dict[int, GpuRun] = {}
        self._stopping = threading.Event()

    def start(self) -> None:
        """Begin, in a thread that ends with the program."""
        threading.Thread(target=self._run, name="gpu-runs", daemon=True).start()

    def stop(self) -> None:
        """End the thread; it is not waited for."""
        self._stopping.set()

    def by_gpu(self) -> dict[int, GpuRun]:
        """Return the run last seen on each GPU, by index; unknown ones are left out."""
        return self._runs

    def look(self) -> None:
        """Find the runs now; what can't be found out is unknown, not what it was before."""
        try:
            found = self._look()
        except Exception as error:  # noqa: BLE001 (thread boundary: the next look may work)
            log_event(_LOG, logging.ERROR, "runs on GPUs not found", error=error)
            found = {}
        self._runs = {gpu: GpuRun(run.run, run.scheduler, run.run_id) for gpu, run in found.items()}

    def _run(self) -> None:
        for _ in range(FIRST_LOOKS):
            if self._stopping.wait(FIRST_LOOK_SECONDS):
                return
            self.look()
        while not self._stopping.wait(LOOK_SECONDS):
            self.look()
