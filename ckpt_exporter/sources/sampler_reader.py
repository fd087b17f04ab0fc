"""What the sampler's process wants of a reader, whatever the accelerator."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from ckpt_exporter.sources.sampler_pace import CallTimes

# One reading as it travels to the daemon: the fields of GpuSample in their order, but for the UUID.
Row = tuple[Any, ...]
# Its readings after the index, where a device does not tell any, up to the power limit.
UNTOLD: Final[Row] = (None,) * 8


class BackendDownError(Exception):
    """A backend as a whole can't be used; ``state`` is one word for it."""

    def __init__(self, state: str, text: str) -> None:
        super().__init__(text)
        self.state = state


class Device(Protocol):
    """One accelerator as its reader knows it."""

    error: str | None

    @property
    def down_state(self) -> str | None:
        """The backend's state if all devices fail like this one; None if the device itself is the trouble."""


class Reader(Protocol):
    """Reads the accelerators of this node; what one does not tell is None, never 0."""

    @property
    def gpus(self) -> Sequence[Any]:
        """The devices last found, each a Device; its place is its index."""

    @property
    def fast(self) -> bool:
        """Whether reading more often tells more."""

    @property
    def mapping_known(self) -> bool:
        """Whether the pids last read exist here."""

    def open(self) -> None:
        """Start the library once, for as long as this process lives; raises BackendDownError."""

    def close(self) -> None:
        """Release every handle."""

    def enumerate(self) -> list[dict[str, Any]]:
        """Find the devices anew, each as the fields of GpuInfo; raises BackendDownError."""

    def read(self, gpu: Any) -> Row | None:
        """Read one device; None if it tells nothing newer. Never raises for the library's errors."""

    def read_pids(self) -> dict[int, list[int]]:
        """List the processes of each device that can be read, by index."""


# What a reader's module offers: the library loaded for it (if it needs one), durations, clock, settings.
OpenReader = Callable[[Any, CallTimes, Callable[[], float], Mapping[str, Any]], Reader]


def failed_row(t: float, index: int, error: str) -> Row:
    """Return the reading of a device that can't be read."""
    return (t, index, *UNTOLD, None, None, error)


def percent(value: object) -> float | None:
    """Turn percent into 0..1; None if it is no such number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 100:
        return None
    return round(value / 100.0, 4)


def strangers(listed: Mapping[int, Sequence[int]], proc: str = "/proc") -> int:
    """Count the pids listed that don't exist here."""
    pids = {pid for some in listed.values() for pid in some}
    missing = {pid for pid in pids if pid <= 0 or not os.path.exists(f"{proc}/{pid}")}
    return sum(pid in missing for some in listed.values() for pid in some)


class Timed:
    """Makes calls; ``clock`` is monotonic seconds, every call's duration goes to ``times``."""

    def __init__(self, times: CallTimes, clock: Callable[[], float]) -> None:
        self._times = times
        self._clock = clock

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call; raises what the function raises."""
        began = self._clock()
        try:
            return function(*arguments)
        finally:
            self._times.note(self._clock() - began)
