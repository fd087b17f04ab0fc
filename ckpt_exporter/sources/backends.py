"""The accelerators that the sampler's process can read: one literal map, and the choice for this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple


class Backend(NamedTuple):  # not a dataclass: those cost the sampler's process a megabyte of imports
    """``module`` has the reader's ``open_reader``; it is imported in the sampler's process only.

    ``libraries`` are tried in turn before that import, none for a reader that needs none; ``signs`` are
    files (``*`` allowed) by which ``auto`` knows that such an accelerator is here.
    """

    module: str
    libraries: tuple[str, ...] = ()
    signs: tuple[str, ...] = ()


# In the order in which ``auto`` looks.
BACKENDS: Final[dict[str, Backend]] = {
    "nvml": Backend(
        "ckpt_exporter.sources.nvml_reader",
        libraries=("libnvidia-ml.so.1",),
        signs=("/proc/driver/nvidia/version", "/dev/nvidiactl"),
    ),
    "dcmi": Backend(
        "ckpt_exporter.sources.dcmi_reader",
        libraries=(
            "libdcmi.so",
            "/usr/local/dcmi/libdcmi.so",
            "/usr/local/Ascend/driver/lib64/driver/libdcmi.so",
            "/usr/local/Ascend/driver/lib64/common/libdcmi.so",
            "/usr/local/Ascend/driver/lib64/libdcmi.so",
        ),
        signs=("/dev/davinci[0-9]*", "/dev/davinci_manager"),
    ),
    "amdsmi": Backend("ckpt_exporter.sources.amdsmi_reader", signs=("/dev/kfd",)),
    "prometheus": Backend("ckpt_exporter.sources.exposition_reader"),
}


def present_backend(matching: Callable[[str], Iterable[str]]) -> str | None:
    """Name the first backend of which this machine shows a sign; ``matching`` lists a pattern's files."""
    for name, backend in BACKENDS.items():
        if any(True for sign in backend.signs for _ in matching(sign)):
            return name
    return None
