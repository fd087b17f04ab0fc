"""The compute processes of each NVIDIA GPU, as this process's pid namespace knows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pynvml

from ckpt_exporter.sources.nvml_calls import NvmlCalls
from ckpt_exporter.sources.nvml_gpu import ERRORS, Gpu
from ckpt_exporter.sources.sampler_reader import strangers

Listed = dict[int, list[int]]


class NvmlProcesses:
    """Lists processes; ``mapping_known`` tells whether their pids exist here."""

    def __init__(self, calls: NvmlCalls, proc: str = "/proc") -> None:
        self._calls = calls
        self._proc = proc
        self._list: Callable[[Any], Any] = pynvml.nvmlDeviceGetComputeRunningProcesses
        self.mapping_known = False

    def read(self, gpus: Iterable[Gpu]) -> Listed:
        """Return the pids on each GPU that can be read, by index, and note how many each has."""
        gpus = list(gpus)
        listed = self._of_all(gpus)
        if self._strangers(listed):
            # R535 drivers had a third version with longer entries: what is read from those is no pid.
            self._use_other_list(gpus, listed)
            listed = self._of_all(gpus)
        total = sum(map(len, listed.values()))
        if total:
            self.mapping_known = self._strangers(listed) * 2 < total
        for gpu in gpus:
            gpu.processes = len(listed[gpu.index]) if gpu.index in listed else None
        return listed

    def _use_other_list(self, gpus: list[Gpu], listed: Listed) -> None:
        other = getattr(pynvml, "nvmlDeviceGetComputeRunningProcesses_v2", None)
        if other is None or self._list is other:
            return
        usual, self._list = self._list, other
        again = self._of_all(gpus)
        if not again or self._strangers(again) >= self._strangers(listed):
            self._list = usual

    def _of_all(self, gpus: list[Gpu]) -> Listed:
        listed: Listed = {}
        for gpu in gpus:
            if gpu.handle is None:
                continue
            try:
                entries = self._calls.call(self._list, gpu.handle)
            except ERRORS:
                continue
            listed[gpu.index] = sorted({entry.pid for entry in entries})
        return listed

    def _strangers(self, listed: Listed) -> int:
        return strangers(listed, self._proc)
