"""The last minutes of one GPU's readings, in little memory."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from math import isnan, nan
from typing import Final

from ckpt_exporter.model import GpuSample

UTIL, MEMORY, POWER, SM, TENSOR, DRAM, PROCESSES, GAP = range(8)
STRIDE: Final = 8
# Old rows go in lots: taking them away one by one would move the whole array at every sample.
LOT: Final = 256


class Rows:
    """Some rows of a track, by column; NaN where the GPU did not tell."""

    def __init__(self, times: Sequence[float], data: array[float]) -> None:
        self.times = times
        self._data = data

    def __len__(self) -> int:
        return len(self.times)

    def column(self, index: int) -> array[float]:
        """Return one column."""
        return self._data[index::STRIDE]

    def picked(self, indices: Iterable[int]) -> Rows:
        """Return only the rows with these indices."""
        chosen = list(indices)
        data = array("d")
        for i in chosen:
            data.extend(self._data[i * STRIDE : (i + 1) * STRIDE])
        return Rows([self.times[i] for i in chosen], data)

    def until(self, t: float) -> Rows:
        """Return the rows up to a moment."""
        n = bisect_right(self.times, t)
        return Rows(self.times[:n], self._data[: n * STRIDE])


def _known(value: float | None) -> float:
    return nan if value is None else value


class Track:
    """Readings of one GPU in time order; readings with an error are not kept: they leave a gap."""

    def __init__(self, max_rows: int) -> None:
        self.times = array("d")
        self._data = array("d")
        self._max_rows = max_rows

    def __len__(self) -> int:
        return len(self.times)

    def append(self, sample: GpuSample, *, gap: bool) -> None:
        """Keep one reading; ``gap`` marks that readings are missing before it."""
        self.times.append(sample.t)
        self._data.extend(
            (
                _known(sample.util),
                _known(sample.mem_util),
                _known(sample.power_w),
                _known(sample.sm),
                _known(sample.tensor),
                _known(sample.dram),
                _known(sample.processes),
                1.0 if gap else 0.0,
            )
        )

    def trim(self, keep_from: float) -> None:
        """Forget what is older than ``keep_from``; if that leaves too much, make the older half coarser."""
        times = self.times
        if len(times) > LOT and times[LOT - 1] < keep_from:
            n = bisect_left(times, keep_from)
            del times[:n]
            del self._data[: n * STRIDE]
        if len(times) > self._max_rows:
            self._coarsen(len(times) // 4)

    def _coarsen(self, pairs: int) -> None:
        times, data = array("d"), array("d")
        for k in range(pairs):
            times.append((self.times[2 * k] + self.times[2 * k + 1]) / 2)
            at = 2 * k * STRIDE
            first, second = self._data[at : at + STRIDE], self._data[at + STRIDE : at + 2 * STRIDE]
            data.extend(_mean(a, b) for a, b in zip(first[:GAP], second[:GAP], strict=True))
            data.append(max(first[GAP], second[GAP]))
        self.times[: 2 * pairs] = times
        self._data[: 2 * pairs * STRIDE] = data

    def rows(self, start: float, end: float) -> Rows:
        """Return the rows between two moments."""
        a, b = bisect_left(self.times, start), bisect_right(self.times, end)
        return Rows(self.times[a:b], self._data[a * STRIDE : b * STRIDE])


def _mean(a: float, b: float) -> float:
    if isnan(a):
        return b
    return a if isnan(b) else (a + b) / 2
