"""A simulated DCMI library for tests: compiled from dcmi.c, driven through a shared state file."""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("dcmi.c")

# Return codes of the DCMI interface.
NOT_PERMITTED, NOT_EXIST, NOT_SUPPORTED = -8002, -8008, -8255
# Types of utilisation.
AI_CORE, HBM_BANDWIDTH, VECTOR_CORE, NPU, AI_CUBE = 2, 10, 12, 13, 14
MAX_NPUS, MAX_RATES, MAX_PIDS = 16, 16, 32
_HEAD_BYTES, _NPU_BYTES = 512, 512
_INTEGERS = ("ret", "card", "device", "type", "power_ret", "die_ret", "pids_ret", "pid_count", "power_tenths")
_RATES, _RATE_RETS, _PIDS, _DIE, _NAME = 36, 100, 164, 292, 312
_HEAD = ("count", "init_ret", "first_ret", "hang", "crash")

# Percent by type, and tenths of watts. What waiting looks like is invented: it was never seen on hardware.
TRAINING = {AI_CORE: 78, AI_CUBE: 78, VECTOR_CORE: 45, HBM_BANDWIDTH: 52, NPU: 86}
WAITING = {AI_CORE: 0, AI_CUBE: 0, VECTOR_CORE: 3, HBM_BANDWIDTH: 1, NPU: 4}
TRAINING_TENTHS, WAITING_TENTHS = 3102, 925


def die_of(npu: int) -> str:
    """Return the die of a simulated chip, as the reader writes it."""
    return f"0BDD4D14-20E011E7-1C02C4D4-{npu:08X}-E1000003"


def compile_library(folder: Path, *, only_second: bool = False) -> Path:
    """Compile the library into a folder of its own; skip the test if gcc is missing."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is missing: the simulated DCMI library can't be compiled")
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libdcmi.so"
    flags = ["-O2", "-shared", "-fPIC", "-Wall", "-Werror", *(["-DONLY_SECOND"] if only_second else [])]
    subprocess.run([compiler, *flags, "-o", str(library), str(SOURCE)], check=True, timeout=60)
    return library


class SimulatedDcmi:
    """State of the simulated library: chips that train, one on each card, until a test says otherwise."""

    def __init__(self, folder: Path, npus: int = 8, *, library: Path) -> None:
        self.library = library
        self.path = folder / "dcmi-state"
        self.path.write_bytes(bytes(_HEAD_BYTES + MAX_NPUS * _NPU_BYTES))
        with self.path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self.head(count=npus)
        self._put("64s", 40, b"24.1.rc3")
        for npu in range(MAX_NPUS):
            self.set(npu, card=npu, power_tenths=TRAINING_TENTHS)
            self.set_rates(npu, TRAINING)
            base = _HEAD_BYTES + npu * _NPU_BYTES
            self._put("<5I", base + _DIE, 0x0BDD4D14, 0x20E011E7, 0x1C02C4D4, npu, 0xE1000003)
            self._put("32s", base + _NAME, b"910B2 (simulated)")

    def environment(self) -> dict[str, str]:
        """Return the variables by which a process finds the library and its state."""
        return {"LD_LIBRARY_PATH": str(self.library.parent), "SIMULATED_DCMI_STATE": str(self.path)}

    def head(self, **values: int) -> None:
        for name, value in values.items():
            self._put("<i", 4 * _HEAD.index(name), value)

    @property
    def inits(self) -> int:
        return int(struct.unpack_from("<Q", self._map, 24)[0])

    @property
    def reads(self) -> int:
        return int(struct.unpack_from("<Q", self._map, 32)[0])

    def set(self, npu: int, **values: int) -> None:
        for name, value in values.items():
            self._put("<i", _HEAD_BYTES + npu * _NPU_BYTES + 4 * _INTEGERS.index(name), value)

    def set_rates(self, npu: int, percents: dict[int, int]) -> None:
        for kind, value in percents.items():
            self._put("<i", _HEAD_BYTES + npu * _NPU_BYTES + _RATES + 4 * kind, value)

    def set_rate_ret(self, npu: int, kind: int, code: int) -> None:
        self._put("<i", _HEAD_BYTES + npu * _NPU_BYTES + _RATE_RETS + 4 * kind, code)

    def set_pids(self, npu: int, pids: Iterable[int]) -> None:
        numbers = tuple(pids)
        self._put(f"<{len(numbers)}i", _HEAD_BYTES + npu * _NPU_BYTES + _PIDS, *numbers)
        self.set(npu, pid_count=len(numbers))

    def set_state(self, state: str) -> None:
        """Let all chips train or wait."""
        training = state == "training"
        for npu in range(MAX_NPUS):
            self.set_rates(npu, TRAINING if training else WAITING)
            self.set(npu, power_tenths=TRAINING_TENTHS if training else WAITING_TENTHS)

    def _put(self, form: str, offset: int, *values: object) -> None:
        struct.pack_into(form, self._map, offset, *values)
