"""A SIMULATED amdsmi for tests: no GPU, no driver, no code of AMD.

It plays what a JSON file says (path in SIMULATED_AMDSMI_STATE), which a test replaces meanwhile. Functions,
the dictionaries they return and error codes follow the published interface; "N/A" is what it says for what a
GPU does not tell. Energy and activity counters run by themselves, with the watts and percents of the file.
"""

from __future__ import annotations

import json
import os
import signal
import time

NOT_FOUND = 31


class AmdSmiException(Exception):  # noqa: N818 (the real one's name)
    pass


class AmdSmiLibraryException(AmdSmiException):
    def __init__(self, err_code):
        super().__init__(err_code)
        self.err_code = err_code

    def __str__(self):
        return f"Error code:\n\t{self.err_code} | simulated"


class _Handle:
    def __init__(self, place):
        self.place = place
        self.energy_uj = 1.0e12
        self.busy = [1.0e6, 5.0e5, 2.0e6]
        self.t = time.monotonic()


_handles = {}


def _state():
    with open(os.environ["SIMULATED_AMDSMI_STATE"], encoding="utf-8") as stream:
        return json.load(stream)


if _state().get("no_library"):
    raise KeyError("libamd_smi.so")


def _enter(function):
    state = _state()
    while state.get("hang"):
        time.sleep(0.001)
        state = _state()
    if state.get("crash"):
        os.kill(os.getpid(), signal.SIGSEGV)
    code = state.get("codes", {}).get(function, 0)
    if code:
        raise AmdSmiLibraryException(code)
    return state


def _gpu(handle, function):
    state = _enter(function)
    gpu = state["gpus"][handle.place]
    code = gpu.get("ret", 0) or gpu.get("codes", {}).get(function, 0)
    if code:
        raise AmdSmiLibraryException(code)
    now = time.monotonic()
    seconds, handle.t = now - handle.t, now
    handle.energy_uj += gpu["watts"] * seconds * 1e6
    # One count is a millisecond; activity is counted in shares of it (or percent, as "unit" says).
    unit = gpu.get("unit", 1.0)
    handle.busy[0] += gpu["gfx"] / 100 * unit * seconds * 1000
    handle.busy[1] += gpu["umc"] / 100 * unit * seconds * 1000
    handle.busy[2] += seconds * 1000
    return gpu


def amdsmi_init():
    _enter("amdsmi_init")


def amdsmi_shut_down():
    _enter("amdsmi_shut_down")


def amdsmi_get_processor_handles():
    state = _enter("amdsmi_get_processor_handles")
    return [_handles.setdefault(place, _Handle(place)) for place in range(len(state["gpus"]))]


def amdsmi_get_gpu_device_uuid(handle):
    return _gpu(handle, "amdsmi_get_gpu_device_uuid")["uuid"]


def amdsmi_get_gpu_asic_info(handle):
    _gpu(handle, "amdsmi_get_gpu_asic_info")
    return {"market_name": "AMD Instinct MI300X (simulated)", "vendor_name": "N/A", "asic_serial": "0x1"}


def amdsmi_get_gpu_driver_info(handle):
    _gpu(handle, "amdsmi_get_gpu_driver_info")
    return {"driver_name": "amdgpu", "driver_version": "6.12.12", "driver_date": "N/A"}


def amdsmi_get_power_cap_info(handle):
    _gpu(handle, "amdsmi_get_power_cap_info")
    cap = 750_000_000  # microwatts on Linux
    return {
        "power_cap": cap,
        "default_power_cap": cap,
        "dpm_cap": 0,
        "min_power_cap": 0,
        "max_power_cap": cap,
    }


def amdsmi_get_gpu_activity(handle):
    gpu = _gpu(handle, "amdsmi_get_gpu_activity")
    return {"gfx_activity": gpu["gfx"], "umc_activity": gpu["umc"], "mm_activity": "N/A"}


def amdsmi_get_power_info(handle):
    gpu = _gpu(handle, "amdsmi_get_power_info")
    return {
        "socket_power": gpu.get("socket", gpu["watts"]),
        "current_socket_power": gpu.get("socket", gpu["watts"]),
        "average_socket_power": "N/A",
        "gfx_voltage": "N/A",
        "soc_voltage": "N/A",
        "mem_voltage": "N/A",
        "power_limit": 750,
    }


def amdsmi_get_energy_count(handle):
    _gpu(handle, "amdsmi_get_energy_count")
    resolution = 15.259
    return {
        "energy_accumulator": int(handle.energy_uj / resolution),
        "counter_resolution": resolution,
        "timestamp": int(handle.t * 1e9),
    }


def amdsmi_get_gpu_metrics_info(handle):
    _gpu(handle, "amdsmi_get_gpu_metrics_info")
    graphics, memory, counts = (round(value, 3) for value in handle.busy)
    return {
        "gfx_activity_acc": graphics,
        "mem_activity_acc": memory,
        "accumulation_counter": counts,
        "firmware_timestamp": "N/A",
    }


def amdsmi_get_gpu_process_list(handle):
    gpu = _gpu(handle, "amdsmi_get_gpu_process_list")
    return [{"name": "N/A", "pid": pid, "mem": 1 << 30} for pid in gpu["pids"]]
