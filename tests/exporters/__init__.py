"""Simulated exporters for tests: HTTP servers that tell what GPU exporters tell, in their shape."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# Levels by state: as told by each exporter.
DCGM = {
    "training": {"util": 92, "mem": 55, "watts": 549.0, "sm": 0.82, "tensor": 0.48, "dram": 0.55},
    "saving": {"util": 100, "mem": 1, "watts": 153.0, "sm": 0.15, "tensor": 0.0, "dram": 0.01},
}
NPU = {
    "training": {"core": 78, "vector": 45, "all": 86, "hbm": 52, "watts": 310.2},
    "saving": {"core": 0, "vector": 3, "all": 4, "hbm": 1, "watts": 92.5},
}
AMD = {
    "training": {"gfx": 94, "umc": 41, "watts": 640.0},
    "saving": {"gfx": 100, "umc": 1, "watts": 180.0},
}


def dcgm_text(state: str, refresh: int, gpus: int = 8, unix: float | None = None) -> str:
    """Tell what dcgm-exporter tells; its values have no time."""
    levels = DCGM[state]
    lines = []
    for name, value in (
        ("DCGM_FI_DEV_GPU_UTIL", levels["util"]),
        ("DCGM_FI_DEV_MEM_COPY_UTIL", levels["mem"]),
        ("DCGM_FI_DEV_POWER_USAGE", levels["watts"]),
        ("DCGM_FI_DEV_POWER_MGMT_LIMIT", 700),
        ("DCGM_FI_PROF_SM_ACTIVE", levels["sm"]),
        ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", levels["tensor"]),
        ("DCGM_FI_PROF_DRAM_ACTIVE", levels["dram"]),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 10_000_000 + 549 * refresh),
    ):
        lines += [f"# HELP {name} simulated", f"# TYPE {name} gauge"]
        lines += [
            f'{name}{{gpu="{gpu}",UUID="GPU-dcgm-{gpu:04d}",pci_bus_id="00000000:{gpu:02X}:00.0",'
            f'device="nvidia{gpu}",modelName="NVIDIA H100 80GB HBM3 (simulated)",Hostname="node",'
            f'DCGM_FI_DRIVER_VERSION="580.95.05"}} {value:.6f}'
            for gpu in range(gpus)
        ]
    return "\n".join(lines) + "\n"


def npu_text(state: str, refresh: int, gpus: int = 8, unix: float | None = None, pids: Any = ()) -> str:
    """Tell what npu-exporter tells; each value with the time of its collection in milliseconds."""
    levels, ms = NPU[state], int((time.time() if unix is None else unix) * 1000)
    lines = []
    for name, value in (
        ("npu_chip_info_utilization", levels["core"]),
        ("npu_chip_info_vector_utilization", levels["vector"]),
        ("npu_chip_info_overall_utilization", levels["all"]),
        ("npu_chip_info_hbm_bandwidth_utilization", levels["hbm"]),
        ("npu_chip_info_hbm_utilization", 71),
        ("npu_chip_info_power", levels["watts"]),
    ):
        lines += [f"# TYPE {name} gauge"]
        lines += [f"{name}{{{_npu(npu)}}} {value} {ms}" for npu in range(gpus)]
    lines += [
        f'npu_chip_info_process_info{{{_npu(npu)},process_id="{pid}"}} 1024 {ms}'
        for npu in range(gpus)
        for pid in pids
    ]
    return "\n".join(lines) + "\n"


def _npu(npu: int) -> str:
    return (
        f'container_name="",id="{npu}",model_name="910B2 (simulated)",namespace="",'
        f'pcie_bus_info="0000:{npu:02X}:00.0",pod_name="",vdie_id="0BDD4D14-{npu:08X}"'
    )


def amd_text(state: str, refresh: int, gpus: int = 8, unix: float | None = None) -> str:
    """Tell what AMD's device-metrics-exporter tells; its values have no time."""
    levels = AMD[state]
    lines = []
    for name, value in (
        ("gpu_gfx_activity", levels["gfx"]),
        ("gpu_umc_activity", levels["umc"]),
        ("gpu_package_power", levels["watts"]),
        ("gpu_energy_consumed", 1e9 + refresh),
    ):
        lines += [f"# TYPE {name} gauge"]
        lines += [
            f'{name}{{card_model="102-G30211-0C",card_series="AMD Instinct MI300X (simulated)",'
            f'driver_version="6.12.12",gpu_id="{gpu}",gpu_partition_id="0",'
            f'gpu_uuid="ccff74a1-{gpu:04d}",hostname="node",serial_number="6924{gpu}"}} {value}'
            for gpu in range(gpus)
        ]
    return "\n".join(lines) + "\n"


class SimulatedExporter:
    """Serves ``text(state, refresh)`` anew every ``refresh_seconds``; between, what it served before."""

    def __init__(self, text: Callable[..., str], *, refresh_seconds: float = 0.5) -> None:
        self.text = text
        self.refresh_seconds = refresh_seconds
        self.state = "training"
        self.frozen = False
        self.hang = threading.Event()
        self.gone = threading.Event()
        self.answer: tuple[int, dict[str, str], bytes] | None = None
        self.requests: list[str] = []
        self._made = (float("-inf"), b"")
        self._refresh = 0
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/metrics"

    def start(self) -> None:
        """Listen; on the same port as before if there was one."""
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                exporter.requests.append(self.path)
                while exporter.hang.is_set() and not exporter.gone.wait(0.01):
                    pass
                status, headers, body = exporter.answer or (200, {}, exporter.body())
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                return

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: Any) -> None:
                return  # a reader that has gone away

        self.gone.clear()
        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def body(self) -> bytes:
        now = time.monotonic()
        first = self._refresh == 0
        if first or (now - self._made[0] >= self.refresh_seconds and not self.frozen):
            self._refresh += 1
            self._made = (now, self.text(self.state, self._refresh).encode())
        return self._made[1]

    def set_state(self, state: str) -> None:
        self.state = state

    def stop(self) -> None:
        """Stop listening."""
        self.gone.set()
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._server = None
