"""A simulated NVML library for tests: compiled from nvml.c, driven through a shared state file."""

from __future__ import annotations

import mmap
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("nvml.c")
FUNCTIONS = tuple(re.findall(r"^    X\((nvml\w+)\)", SOURCE.read_text(), re.MULTILINE))

# Return codes of the NVML API.
UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 1, 2, 3, 4, 6
DRIVER_NOT_LOADED, FUNCTION_NOT_FOUND, GPU_IS_LOST, VERSION_MISMATCH, UNKNOWN = 9, 13, 15, 18, 999

AMPERE, HOPPER = 7, 9
MAX_GPUS, MAX_PIDS, MAX_FUNCTIONS = 16, 16, 32
_GPU_BYTES, _HEAD_BYTES = 512, 2048
_ORDER, _RETURNS = 8, 72
_HANGS, _CRASHES, _SLOWNESS, _CALLS, _DRIVER = 200, 328, 456, 584, 840
_INTEGERS = (
    "ret",
    "handle_ret",
    "util_ret",
    "instant_ret",
    "average_ret",
    "energy_ret",
    "usage_ret",
    "gpm_support",
    "metric_ret",
    "metric_nan",
    "mig",
    "smoothing",
    "smoothing_ret",
    "arch",
    "limit_ret",
    "pid_count",
)
_DOUBLES = (
    "util",
    "mem_util",
    "power_w",
    "average_w",
    "limit_w",
    "sm",
    "tensor",
    "dram",
    "pcie_mib",
    "nvlink_mib",
)
_PIDS, _VALUES, _UUID, _NAME = 64, 128, 208, 304

# Levels seen on 8 x H100: training, spinning in a collective, writing the checkpoint; all percent and watts.
TRAINING = {
    "util": 92,
    "mem_util": 55,
    "power_w": 549,
    "average_w": 549,
    "sm": 82,
    "tensor": 48,
    "dram": 55,
    "pcie_mib": 300,
    "nvlink_mib": 20_000,
}
SPINNING = {
    "util": 100,
    "mem_util": 1,
    "power_w": 153,
    "average_w": 153,
    "sm": 15,
    "tensor": 0,
    "dram": 1,
    "pcie_mib": 0,
    "nvlink_mib": 10,
}
WRITING = {
    "util": 3,
    "mem_util": 1,
    "power_w": 150,
    "average_w": 150,
    "sm": 1,
    "tensor": 0,
    "dram": 1,
    "pcie_mib": 9000,
    "nvlink_mib": 0,
}


def uuid_of(gpu: int) -> str:
    """Return the UUID of a simulated GPU, by its place on the board."""
    return f"GPU-00000000-0000-0000-0000-{gpu:012d}"


def compile_library(folder: Path, without: Iterable[str] = ()) -> Path:
    """Compile the library into a folder of its own, without some symbols; skip the test if gcc is missing."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is missing: the simulated NVML library can't be compiled")
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libnvidia-ml.so.1"
    flags = ["-O2", "-shared", "-fPIC", "-Wall", "-Werror", "-Wl,-soname,libnvidia-ml.so.1"]
    flags += [f"-DWITHOUT_{name}" for name in without]
    subprocess.run([compiler, *flags, "-o", str(library), str(SOURCE)], check=True, timeout=60)
    return library


class SimulatedNvml:
    """State of the simulated library: GPUs that train, until a test says otherwise."""

    def __init__(self, folder: Path, gpus: int = 8, *, library: Path | None = None) -> None:
        self.library = library or compile_library(folder / "library")
        self.path = folder / "nvml-state"
        self.path.write_bytes(bytes(_HEAD_BYTES + MAX_GPUS * _GPU_BYTES))
        with self.path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self.count = gpus
        self._put("<i", 4, 24)
        self.order = range(MAX_GPUS)
        self.driver = "580.95.05"
        for gpu in range(MAX_GPUS):
            self._text(gpu, _UUID, uuid_of(gpu))
            self._text(gpu, _NAME, "NVIDIA H100 80GB HBM3 (simulated)")
            self.set(gpu, arch=HOPPER, gpm_support=1, limit_w=700, smoothing_ret=NOT_SUPPORTED, **TRAINING)

    def environment(self) -> dict[str, str]:
        """Return the variables by which a process finds the library and its state."""
        return {"LD_LIBRARY_PATH": str(self.library.parent), "SIMULATED_NVML_STATE": str(self.path)}

    def close(self) -> None:
        self._map.close()

    # --- one GPU, by its place on the board (not by its present index)

    def set(self, gpu: int, **values: float) -> None:
        """Set values, in percent, watts, MiB/s and return codes."""
        base = _HEAD_BYTES + gpu * _GPU_BYTES
        for name, value in values.items():
            if name in _INTEGERS:
                self._put("<i", base + 4 * _INTEGERS.index(name), int(value))
            else:
                self._put("<d", base + _VALUES + 8 * _DOUBLES.index(name), float(value))

    def set_pids(self, gpu: int, pids: Iterable[int]) -> None:
        numbers = tuple(pids)
        base = _HEAD_BYTES + gpu * _GPU_BYTES
        self._put(f"<{len(numbers)}I", base + _PIDS, *numbers)
        self.set(gpu, pid_count=len(numbers))

    def set_name(self, gpu: int, name: str, arch: int = HOPPER) -> None:
        self._text(gpu, _NAME, name)
        self.set(gpu, arch=arch)

    # --- the library as a whole

    @property
    def count(self) -> int:
        return int(struct.unpack_from("<i", self._map, 0)[0])

    @count.setter
    def count(self, value: int) -> None:
        self._put("<i", 0, value)

    @property
    def order(self) -> tuple[int, ...]:
        return struct.unpack_from(f"<{MAX_GPUS}i", self._map, _ORDER)

    @order.setter
    def order(self, places: Iterable[int]) -> None:
        """Which GPU stands at index 0, 1, ..."""
        numbers = tuple(places)
        self._put(f"<{len(numbers)}i", _ORDER, *numbers)

    @property
    def driver(self) -> str:
        return bytes(self._map[_DRIVER : _DRIVER + 64]).partition(b"\0")[0].decode()

    @driver.setter
    def driver(self, version: str) -> None:
        self._put("64s", _DRIVER, version.encode())

    def use_long_process_entries(self) -> None:
        """List processes in entries of 32 bytes, as the third version in some R535 drivers did."""
        self._put("<i", 4, 32)

    def fail(self, function: str, code: int) -> None:
        """Let a function return a code; 0 heals it."""
        self._put("<i", _RETURNS + 4 * FUNCTIONS.index(function), code)

    def fail_all(self, code: int) -> None:
        """Let every function on devices return a code, and the count of devices too."""
        for function in FUNCTIONS:
            if function.startswith("nvmlDevice"):
                self.fail(function, code)

    def hang(self, function: str, *, on: bool = True) -> None:
        self._put("<i", _HANGS + 4 * FUNCTIONS.index(function), int(on))

    def crash(self, function: str, *, on: bool = True) -> None:
        self._put("<i", _CRASHES + 4 * FUNCTIONS.index(function), int(on))

    def slow(self, function: str, seconds: float) -> None:
        self._put("<i", _SLOWNESS + 4 * FUNCTIONS.index(function), int(seconds * 1e6))

    def calls(self, function: str) -> int:
        """How often a function was called so far, by all processes together."""
        return int(struct.unpack_from("<Q", self._map, _CALLS + 8 * FUNCTIONS.index(function))[0])

    def _put(self, form: str, offset: int, *values: object) -> None:
        struct.pack_into(form, self._map, offset, *values)

    def _text(self, gpu: int, offset: int, text: str) -> None:
        self._put("96s", _HEAD_BYTES + gpu * _GPU_BYTES + offset, text.encode())


def process_exists(pid: int) -> bool:
    """Tell if a process exists and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def children_of(pid: int) -> list[int]:
    """List the children of a process, zombies included."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue
            if parent == pid:
                found.append(int(name))
    return found
