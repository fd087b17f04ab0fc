"""Reads Ascend NPUs through DCMI; runs in the sampler's own process.

The cube units (AI Core where they are not told apart) stand for tensor cores, the vector units for streaming
multiprocessors, and the bandwidth of the on-chip memory for memory activity. What a chip does not tell is
None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ckpt_exporter.sources.ascend import AscendDoubt, AscendShares
from ckpt_exporter.sources.dcmi_calls import (
    AI_CORE,
    AI_CUBE,
    HBM_BANDWIDTH,
    LASTING,
    NPU,
    OWN_TROUBLE,
    UNTOLD,
    VECTOR_CORE,
    Address,
    DcmiCalls,
    DcmiError,
)
from ckpt_exporter.sources.sampler_pace import CallTimes
from ckpt_exporter.sources.sampler_reader import BackendDownError, Row, Timed, failed_row, percent, strangers


class Npu:
    """One chip: identity, address, and what it has been found not to tell."""

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self.name = ""
        self.address: Address = ()
        self.index = -1
        self.processes: int | None = None
        self.doubt = AscendDoubt()
        self.untold: set[int | str] = set()
        self.error: str | None = None
        self.code = 0

    @property
    def down_state(self) -> str | None:
        """The library's state if all chips fail like this one; None if this chip itself is the trouble."""
        return None if self.code in OWN_TROUBLE else DcmiError("", self.code).state

    def lose(self, error: DcmiError) -> None:
        """Note that this chip can't be read."""
        self.error, self.code = str(error), error.code


class DcmiReader:
    """All Ascend chips of this node. ``clock`` is monotonic seconds."""

    def __init__(self, calls: DcmiCalls, *, clock: Callable[[], float]) -> None:
        self._calls = calls
        self._clock = clock
        self._driver = ""
        self.gpus: list[Npu] = []
        self.fast = True  # published experiments read AI Core every 100 ms
        self.mapping_known = False

    def open(self) -> None:
        """Initialise DCMI once, for as long as this process lives; raises BackendDownError."""
        try:
            self._calls.init()
        except DcmiError as error:
            raise BackendDownError(error.state, str(error)) from error
        self._driver = self._calls.driver()

    def close(self) -> None:
        """Do nothing: DCMI has no handles to give back, they go with the process."""

    def enumerate(self) -> list[dict[str, Any]]:
        """Find the chips anew, by die; raises BackendDownError when they can't even be listed."""
        try:
            addresses = self._calls.addresses()
        except DcmiError as error:
            raise BackendDownError(error.state, str(error)) from error
        known = {npu.uuid: npu for npu in self.gpus}
        before = {npu.address: npu for npu in self.gpus}
        found = [self._find(address, known, before) for address in addresses]
        self.gpus = [npu for npu in found if npu is not None]
        for index, npu in enumerate(self.gpus):
            npu.index = index
        return [
            {
                "gpu": npu.index,
                "uuid": npu.uuid,
                "name": npu.name,
                "driver": self._driver,
                "waiting_known": False,
            }
            for npu in self.gpus
        ]

    def _find(self, address: Address, known: dict[str, Npu], before: dict[Address, Npu]) -> Npu | None:
        try:
            if not self._calls.is_npu(address):
                return None
            name = self._calls.chip_name(address)
        except DcmiError as error:
            npu = before.get(address) or Npu(_place(address))
            npu.address = address
            npu.lose(error)
            return npu
        uuid = self._calls.die(address) or _place(address)
        npu = known.get(uuid) or Npu(uuid)
        npu.address, npu.name, npu.error, npu.code = address, name, None, 0
        npu.untold.clear()
        return npu

    # --- readings

    def read(self, npu: Npu) -> Row:
        """Read one chip; never raises for DCMI's errors: the last value tells why a chip can't be read."""
        t = round(self._clock(), 6)
        try:
            shares = npu.doubt.believe(self._shares(npu))
            power = self._told(npu, "power", self._calls.power_w)
        except DcmiError as error:
            npu.lose(error)
            return failed_row(t, npu.index, str(npu.error))
        npu.error, npu.code = None, 0
        util, cube, vector, traffic = shares
        watts = (power if power is not None and power > 0 else None, None)
        return (t, npu.index, util, traffic, *watts, vector, cube, traffic, None, None, npu.processes, None)

    def _shares(self, npu: Npu) -> AscendShares:
        cube = self._rate(npu, AI_CUBE)
        if cube is None:
            cube = self._rate(npu, AI_CORE)
        vector, traffic = self._rate(npu, VECTOR_CORE), self._rate(npu, HBM_BANDWIDTH)
        return AscendShares(self._rate(npu, NPU), cube, vector, traffic)

    def _rate(self, npu: Npu, kind: int) -> float | None:
        return percent(self._told(npu, kind, self._calls.rate, kind))

    def _told(self, npu: Npu, what: int | str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Ask unless it is known that this is not told; None then. Other errors are raised."""
        if what in npu.untold:
            return None
        try:
            return function(npu.address, *arguments)
        except DcmiError as error:
            if error.code not in UNTOLD:
                raise
            if error.code in LASTING:
                npu.untold.add(what)
            return None

    # --- processes

    def read_pids(self) -> dict[int, list[int]]:
        """List the processes of each chip that can be read."""
        listed: dict[int, list[int]] = {}
        for npu in self.gpus:
            npu.processes = None
            try:
                pids = self._told(npu, "pids", self._calls.pids)
            except DcmiError:
                continue
            if pids is not None:
                listed[npu.index], npu.processes = pids, len(pids)
        total = sum(map(len, listed.values()))
        if total:
            self.mapping_known = strangers(listed) * 2 < total
        return listed


def _place(address: Address) -> str:
    """Name a chip by where it is, where its die is not told."""
    return "NPU-" + "-".join(map(str, address))


def open_reader(
    library: Any, times: CallTimes, clock: Callable[[], float], _settings: Mapping[str, Any]
) -> DcmiReader:
    """Make the reader of a loaded library."""
    return DcmiReader(DcmiCalls(library, Timed(times, clock)), clock=clock)
