"""Reads AMD GPUs through amdsmi, AMD's own Python binding; runs in the sampler's own process.

The binding says "N/A" for what a GPU does not tell; here that is None. Power is the mean over the time since
the last reading where the energy counter tells it, activity likewise where the activity counters do.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from ckpt_exporter.sources.sampler_pace import CallTimes
from ckpt_exporter.sources.sampler_reader import BackendDownError, Row, Timed, failed_row, percent, strangers

# Status codes of the AMD SMI interface (amdsmi_status_t).
NOT_SUPPORTED, NOT_IMPLEMENTED, NO_PERMISSION, BUSY, NOT_FOUND = 2, 3, 10, 30, 31
NOT_INITIALISED, NO_DRIVER_LOADED, NO_DATA, UNEXPECTED_DATA, NO_DRIVER = 32, 34, 40, 43, 51
FILE_NOT_FOUND = 52
UNTOLD: Final = frozenset({NOT_SUPPORTED, NOT_IMPLEMENTED, NO_PERMISSION, BUSY, NO_DATA, UNEXPECTED_DATA})
LASTING: Final = UNTOLD - {BUSY, NO_DATA}
OWN_TROUBLE: Final = frozenset({NOT_FOUND})
STATES: Final = {
    NO_PERMISSION: "no_permission",
    NO_DRIVER_LOADED: "driver_not_loaded",
    NO_DRIVER: "driver_not_loaded",
}
UNTOLD_TEXT: Final = "N/A"
# The limit is told in watts or in microwatts, as the release has it; no GPU has a limit beyond this in watts.
MOST_WATTS: Final = 20_000
MICRO: Final = 1e-6
LONGEST_MEAN_SECONDS: Final = 15.0  # a mean over more says nothing about now
# The unit of the activity counters is not the same for all chips: it is believed when it agrees this well
# with the driver's own percentage on a GPU that works.
AGREES: Final = 0.15
UNITS: Final = (1.0, 0.01)


class AmdGpu:
    """One GPU: identity, handle, last counters, and what it has been found not to tell."""

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self.name = ""
        self.driver = ""
        self.handle: Any = None
        self.index = -1
        self.limit_w: float | None = None
        self.processes: int | None = None
        self.energy: tuple[float, float] | None = None  # joules, seconds
        self.busy: tuple[float, float, float] | None = None  # graphics, memory, of how many
        self.unit: float | None = None
        self.untold: set[str] = set()
        self.error: str | None = None
        self.code = 0

    @property
    def down_state(self) -> str | None:
        """The library's state if all GPUs fail like this one; None if this GPU itself is the trouble."""
        return None if self.code in OWN_TROUBLE else STATES.get(self.code, "unknown_error")

    def lose(self, error: Exception) -> None:
        """Note that this GPU can't be read; what was counted before is not to be compared with."""
        self.code = _code(error)
        self.error = f"{_text(error)} (AMD SMI {self.code})"
        self.energy = self.busy = None


class AmdSmiReader:
    """All AMD GPUs of this node, through the module ``smi``. ``clock`` is monotonic seconds."""

    def __init__(self, smi: Any, timed: Timed, *, clock: Callable[[], float]) -> None:
        self._smi = smi
        self._call = timed.call
        self._clock = clock
        self._errors: type[Exception] = smi.AmdSmiException
        self.gpus: list[AmdGpu] = []
        self.mapping_known = False

    @property
    def fast(self) -> bool:
        """Means since the last reading are as good over a shorter time."""
        return True

    def open(self) -> None:
        """Initialise AMD SMI once, for as long as this process lives; raises BackendDownError."""
        try:
            self._smi.amdsmi_init()
        except self._errors as error:
            raise self._down(error) from error

    def close(self) -> None:
        """Shut AMD SMI down; raises what it raises."""
        self._smi.amdsmi_shut_down()

    def _down(self, error: Exception) -> BackendDownError:
        code = _code(error)
        return BackendDownError(STATES.get(code, "init_error"), f"{_text(error)} (AMD SMI {code})")

    # --- which GPUs there are

    def enumerate(self) -> list[dict[str, Any]]:
        """Find the GPUs anew, by UUID; raises BackendDownError when they can't even be listed."""
        try:
            handles = self._call(self._smi.amdsmi_get_processor_handles)
        except self._errors as error:
            raise self._down(error) from error
        known = {gpu.uuid: gpu for gpu in self.gpus if gpu.uuid}
        self.gpus = [self._find(index, handle, known) for index, handle in enumerate(handles)]
        return [
            {
                "gpu": gpu.index,
                "uuid": gpu.uuid,
                "name": gpu.name,
                "driver": gpu.driver,
                "limit_w": gpu.limit_w,
                "waiting_known": False,
            }
            for gpu in self.gpus
        ]

    def _find(self, index: int, handle: Any, known: dict[str, AmdGpu]) -> AmdGpu:
        try:
            uuid = str(self._call(self._smi.amdsmi_get_gpu_device_uuid, handle))
        except self._errors as error:
            gpu = next((gpu for gpu in known.values() if gpu.index == index), None) or AmdGpu("")
            gpu.index = index
            gpu.lose(error)
            return gpu
        gpu = known.get(uuid) or AmdGpu(uuid)
        gpu.index, gpu.handle, gpu.error, gpu.code = index, handle, None, 0
        gpu.untold.clear()
        try:
            self._identify(gpu)
        except self._errors as error:
            gpu.lose(error)
        return gpu

    def _identify(self, gpu: AmdGpu) -> None:
        about = self._told(gpu, "amdsmi_get_gpu_asic_info")
        gpu.name = _word(about.get("market_name")) or gpu.name
        gpu.driver = _word(self._told(gpu, "amdsmi_get_gpu_driver_info").get("driver_version"))
        limit = _number(self._told(gpu, "amdsmi_get_power_cap_info").get("power_cap"))
        if not limit:
            limit = _number(self._told(gpu, "amdsmi_get_power_info").get("power_limit"))
        gpu.limit_w = _watts(limit)

    # --- readings

    def read(self, gpu: AmdGpu) -> Row:
        """Read one GPU; never raises for AMD SMI's errors: the last value tells why it can't be read."""
        t = round(self._clock(), 6)
        if gpu.error is not None and gpu.handle is None:
            return failed_row(t, gpu.index, gpu.error)
        try:
            util, memory = self._activity(gpu)
            power, window = self._power(gpu)
        except self._errors as error:
            gpu.lose(error)
            return failed_row(t, gpu.index, str(gpu.error))
        gpu.error, gpu.code = None, 0
        return (t, gpu.index, util, memory, power, window, *(None,) * 4, gpu.limit_w, gpu.processes, None)

    def _activity(self, gpu: AmdGpu) -> tuple[float | None, float | None]:
        """Return activity of the graphics engine and of the memory controller."""
        told = self._told(gpu, "amdsmi_get_gpu_activity")
        util, memory = percent(told.get("gfx_activity")), percent(told.get("umc_activity"))
        mean = self._mean_activity(gpu)
        if mean is None or util is None:
            return util, memory
        if gpu.unit is None:
            # A GPU that rests agrees with every unit.
            gpu.unit = next((u for u in UNITS if util >= 0.5 and abs(mean[0] * u - util) <= AGREES), None)
        if gpu.unit is None or not 0 <= mean[0] * gpu.unit <= 1.02:
            return util, memory
        shares = [round(min(1.0, value * gpu.unit), 4) for value in mean]
        return shares[0], memory if memory is None else shares[1]

    def _mean_activity(self, gpu: AmdGpu) -> tuple[float, float] | None:
        """Return what the activity counters gained per count since the last reading, in their own unit."""
        told = self._told(gpu, "amdsmi_get_gpu_metrics_info")
        names = ("gfx_activity_acc", "mem_activity_acc", "accumulation_counter")
        values = [_number(told.get(name)) for name in names]
        before, gpu.busy = gpu.busy, None
        if values[0] is None or values[1] is None or values[2] is None:
            return None
        gpu.busy = (values[0], values[1], values[2])
        if before is None:
            return None
        graphics, memory, counts = (new - old for new, old in zip(gpu.busy, before, strict=True))
        # Counters that went back began anew, or wrapped.
        return None if counts <= 0 or graphics < 0 or memory < 0 else (graphics / counts, memory / counts)

    def _power(self, gpu: AmdGpu) -> tuple[float | None, float | None]:
        """Return power in watts and the time over which it is a mean (None: not told)."""
        mean = self._mean_power(gpu)
        if mean is not None:
            return mean
        told = self._told(gpu, "amdsmi_get_power_info")
        for name in ("current_socket_power", "average_socket_power", "socket_power"):
            power = _number(told.get(name))
            if power:
                return power, None
        return None, None

    def _mean_power(self, gpu: AmdGpu) -> tuple[float, float] | None:
        """Return mean power since the last reading, by the energy counter and its own time."""
        told = self._told(gpu, "amdsmi_get_energy_count")
        count = _number(told.get("energy_accumulator", told.get("power")))
        microjoules, nanoseconds = _number(told.get("counter_resolution")), _number(told.get("timestamp"))
        before, gpu.energy = gpu.energy, None
        if not count or not microjoules or not nanoseconds:
            return None
        gpu.energy = (count * microjoules * MICRO, nanoseconds * 1e-9)
        if before is None:
            return None
        joules, seconds = gpu.energy[0] - before[0], gpu.energy[1] - before[1]
        if joules < 0 or not 0 < seconds <= LONGEST_MEAN_SECONDS:
            return None
        power = joules / seconds
        # No GPU draws so much more than its limit: the counter is of another unit, or not this GPU's alone.
        if gpu.limit_w is not None and power > 2 * gpu.limit_w:
            gpu.untold.add("amdsmi_get_energy_count")
            return None
        return round(power, 3), round(seconds, 3)

    def _told(self, gpu: AmdGpu, name: str) -> Mapping[str, Any]:
        """Ask for a dictionary; empty where this GPU or release does not tell it. Other errors are raised."""
        function = None if name in gpu.untold else getattr(self._smi, name, None)
        if function is None:
            return {}
        try:
            told = self._call(function, gpu.handle)
        except self._errors as error:
            if _code(error) not in UNTOLD:
                raise
            if _code(error) in LASTING:
                gpu.untold.add(name)
            return {}
        return told if isinstance(told, Mapping) else {}

    # --- processes

    def read_pids(self) -> dict[int, list[int]]:
        """List the processes of each GPU that can be read."""
        listed: dict[int, list[int]] = {}
        for gpu in self.gpus:
            gpu.processes = None
            if gpu.handle is None:
                continue
            with contextlib.suppress(self._errors):
                entries = self._call(self._smi.amdsmi_get_gpu_process_list, gpu.handle)
                if all(isinstance(entry, Mapping) for entry in entries):  # handles in releases before 6.0
                    listed[gpu.index] = sorted({int(entry["pid"]) for entry in entries})
                    gpu.processes = len(listed[gpu.index])
        total = sum(map(len, listed.values()))
        if total:
            self.mapping_known = strangers(listed) * 2 < total
        return listed


def _code(error: Exception) -> int:
    code = getattr(error, "err_code", None)
    return code if isinstance(code, int) else 0


def _text(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value) if value >= 0 else None


def _word(value: object) -> str:
    return value if isinstance(value, str) and value != UNTOLD_TEXT else ""


def _watts(limit: float | None) -> float | None:
    if not limit:
        return None
    return limit if limit <= MOST_WATTS else round(limit * MICRO, 3)


def open_reader(
    _library: Any, times: CallTimes, clock: Callable[[], float], _settings: Mapping[str, Any]
) -> AmdSmiReader:
    """Import the binding and make the reader; raises BackendDownError where it is not there."""
    try:
        import amdsmi  # noqa: PLC0415 (AMD's binding is there only where its user put it)
    except (ImportError, KeyError, OSError) as error:  # a binding without its library raises KeyError
        reason = f"the Python binding amdsmi or its library is missing: {type(error).__name__}: {error}"
        raise BackendDownError("library_missing", reason) from error
    return AmdSmiReader(amdsmi, Timed(times, clock), clock=clock)
