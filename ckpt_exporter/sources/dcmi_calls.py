"""Calls of Huawei's device management library (DCMI), first and second generation, through ctypes.

The first addresses a chip by card and device; the second, the only one on newer chips, by device alone.
Names, layouts and codes are those of the published interface (dcmi_interface_api.h).
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ckpt_exporter.sources.sampler_reader import Timed

AI_CORE, HBM_BANDWIDTH, VECTOR_CORE, NPU, AI_CUBE = 2, 10, 12, 13, 14
NOT_PERMITTED, INVALID_DEVICE, NOT_EXIST, NOT_READY, NOT_IN_CONTAINER = -8002, -8007, -8008, -8012, -8013
RESET_FAILED, ABORTED, UPGRADING, NOT_SUPPORTED = -8015, -8016, -8017, -8255
MISSING_FUNCTION = 1  # ours: the library lacks it
# Codes that say "this chip does not tell that", as opposed to "this chip can't be read".
UNTOLD: Final = frozenset({NOT_PERMITTED, NOT_READY, NOT_IN_CONTAINER, NOT_SUPPORTED, MISSING_FUNCTION})
LASTING: Final = UNTOLD - {NOT_READY}
# Codes of a chip that is itself the trouble: beginning anew would not bring it back.
OWN_TROUBLE: Final = frozenset({INVALID_DEVICE, NOT_EXIST, RESET_FAILED, ABORTED, UPGRADING})
STATES: Final = {NOT_PERMITTED: "no_permission", NOT_EXIST: "driver_not_loaded"}
VIRTUAL_DIE, DATA_DIE = 1, 2
NPU_UNIT = 0

_MAX_CARDS = 64
_MAX_PROCESSES = 64  # the published limit is 32
_CHIP_NAME_BYTES = 32
_DIE: Final = struct.Struct("@5I")
_PROCESS: Final = struct.Struct("@iL")  # pid, bytes
_ANSWER_BYTES = 4096  # the largest structure asked for has less than 200

Address = tuple[int, ...]


class DcmiError(Exception):
    """A call failed; ``code`` is DCMI's."""

    def __init__(self, function: str, code: int) -> None:
        super().__init__(f"{function} failed (DCMI {code})")
        self.code = code

    @property
    def state(self) -> str:
        """One word for a library that fails like this as a whole."""
        return STATES.get(self.code, "unknown_error")


class _Names(NamedTuple):
    """What the functions are called in one generation; several names where they changed."""

    init: str
    driver: str
    rate: tuple[str, ...]
    power: tuple[str, ...]
    kind: tuple[str, ...]
    chip: tuple[str, ...]
    die: tuple[str, ...]
    processes: tuple[str, ...]


_FIRST: Final = _Names(
    "dcmi_init",
    "dcmi_get_driver_version",
    ("dcmi_get_device_utilization_rate",),
    ("dcmi_get_device_power_info",),
    ("dcmi_get_device_type",),
    ("dcmi_get_device_chip_info_v2", "dcmi_get_device_chip_info"),
    ("dcmi_get_device_die_v2",),
    ("dcmi_get_device_resource_info",),
)
_SECOND: Final = _Names(
    "dcmiv2_init",
    "dcmiv2_get_driver_version",
    ("dcmiv2_get_device_utilization_rate",),
    ("dcmiv2_get_device_power_info",),
    ("dcmiv2_get_device_type",),
    ("dcmiv2_get_device_chip_info",),
    ("dcmiv2_get_device_die_id", "dcmiv2_get_device_die"),
    ("dcmiv2_get_device_proc_mem_info", "dcmiv2_get_device_resource_info"),
)
_CARD_LISTS: Final = ("dcmi_get_card_list", "dcmi_get_card_num_list")


class DcmiCalls:
    """Asks one chip at a time; every call's duration goes to ``timed``. Raises DcmiError."""

    def __init__(self, library: ctypes.CDLL, timed: Timed) -> None:
        self._library = library
        self._call = timed.call
        self._names = _FIRST
        self._answer = ctypes.create_string_buffer(_ANSWER_BYTES)
        self._number = ctypes.c_int()
        self._by_number = ctypes.byref(self._number)

    def init(self) -> None:
        """Initialise the first generation, or the second where only that works."""
        try:
            self._ask(_FIRST.init)
            self.addresses()
        except DcmiError as error:
            if self._function(_SECOND.init) is None:
                raise
            try:
                self._ask(_SECOND.init)
            except DcmiError:
                raise error from None
            self._names = _SECOND

    def driver(self) -> str:
        """Return the driver's version, empty where it is not told."""
        try:
            self._ask(self._names.driver, self._answer, 128)
        except DcmiError:
            return ""
        return self._answer.value.decode(errors="replace")

    def addresses(self) -> list[Address]:
        """List all chips."""
        listed = (ctypes.c_int * _MAX_CARDS)()
        if self._names is _SECOND:
            self._ask("dcmiv2_get_device_list", listed, self._by_number, _MAX_CARDS)
            return [(device,) for device in listed[: self._number.value]]
        self._ask(self._first_of(_CARD_LISTS), self._by_number, listed, _MAX_CARDS)
        found: list[Address] = []
        for card in listed[: self._number.value]:
            self._ask("dcmi_get_device_num_in_card", card, self._by_number)
            found += [(card, device) for device in range(self._number.value)]
        return found

    def is_npu(self, address: Address) -> bool:
        """Tell whether a device computes; true where the library does not tell."""
        try:
            self._of_device(self._names.kind, address, self._by_number)
        except DcmiError as error:
            if error.code not in UNTOLD:
                raise
            return True
        return self._number.value == NPU_UNIT

    def chip_name(self, address: Address) -> str:
        """Return type and name of a chip, such as ``Ascend 910B2``."""
        self._of_device(self._names.chip, address, self._answer)
        raw = self._answer.raw
        parts = [raw[at : at + _CHIP_NAME_BYTES].partition(b"\0")[0] for at in (0, _CHIP_NAME_BYTES)]
        return b" ".join(filter(None, parts)).decode(errors="replace")

    def die(self, address: Address) -> str | None:
        """Return what is engraved in a chip; None where it is not told."""
        for kind in (VIRTUAL_DIE, DATA_DIE):
            try:
                self._of_device(self._names.die, address, kind, self._answer)
            except DcmiError:
                continue
            words = _DIE.unpack_from(self._answer)
            if any(words):
                return "-".join(f"{word:08X}" for word in words)
        return None

    def rate(self, address: Address, kind: int) -> int:
        """Return a utilisation in percent, as told."""
        self._of_device(self._names.rate, address, kind, self._by_number)
        return self._number.value

    def power_w(self, address: Address) -> float:
        """Return power in watts; the library tells tenths."""
        self._of_device(self._names.power, address, self._by_number)
        return self._number.value / 10.0

    def pids(self, address: Address) -> list[int]:
        """List the processes that hold memory of a chip."""
        self._of_device(self._names.processes, address, self._answer, self._by_number)
        count = min(max(0, self._number.value), _MAX_PROCESSES)
        return sorted({_PROCESS.unpack_from(self._answer, at * _PROCESS.size)[0] for at in range(count)})

    def _of_device(self, names: tuple[str, ...], address: Address, *arguments: Any) -> None:
        self._ask(self._first_of(names), *address, *arguments)

    def _first_of(self, names: tuple[str, ...]) -> str:
        """Return the first name that the library has; the first of all if it has none."""
        return next(filter(self._function, names), names[0])

    def _ask(self, name: str, *arguments: Any) -> None:
        function = self._function(name)
        code = MISSING_FUNCTION if function is None else int(self._call(function, *arguments))
        if code != 0:
            raise DcmiError(name, code)

    def _function(self, name: str) -> Callable[..., int] | None:
        found: Callable[..., int] | None = getattr(self._library, name, None)  # ctypes keeps it once found
        return found
