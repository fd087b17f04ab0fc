"""The parts of ``on_gpu.sh``, each run by the Python that has what it needs: see there.

NOT RUN ON A GPU YET. ``library FILE``, ``torch DEVICE``, ``train DIRECTORY TRUTH DEVICE BETWEEN GB``,
``scrape ADDRESS PID FILE``, ``judge RESULT TRUTH``.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from typing import Any

CALLS, GPM_CALLS = 200, 20
MATRIX, LAYERS = 8192, 8


# --- the library


def library(path: str) -> None:
    """Time the calls that the sampler makes, on every GPU, and look for GPM."""
    import pynvml as nvml

    nvml.nvmlInit()
    found: dict[str, Any] = {"driver": str(nvml.nvmlSystemGetDriverVersion()), "gpus": []}
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        gpu: dict[str, Any] = {"gpu": index, "name": str(nvml.nvmlDeviceGetName(handle)), "calls_ms": {}}
        for name, call in _calls(nvml, handle).items():
            gpu["calls_ms"][name] = _timed(call, CALLS)
        gpu["gpm"] = _gpm(nvml, handle)
        found["gpus"].append(gpu)
    nvml.nvmlShutdown()
    with open(path, "w", encoding="utf-8") as stream:
        json.dump(found, stream, indent=1)
    _show_library(found)


def _calls(nvml: Any, handle: Any) -> dict[str, Callable[[], Any]]:
    return {
        "utilisation": lambda: nvml.nvmlDeviceGetUtilizationRates(handle),
        "power instant (field 186)": lambda: _field(nvml, handle, 186),
        "power average (field 185)": lambda: _field(nvml, handle, 185),
        "power smoothing (field 251)": lambda: _field(nvml, handle, 251),
        "power usage": lambda: nvml.nvmlDeviceGetPowerUsage(handle),
        "compute processes": lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle),
    }


def _field(nvml: Any, handle: Any, number: int) -> None:
    (value,) = nvml.nvmlDeviceGetFieldValues(handle, [(number, 0)])
    if value.nvmlReturn:
        raise nvml.NVMLError(value.nvmlReturn)


def _timed(call: Callable[[], Any], times: int) -> dict[str, float] | str:
    """Return median, 99th percentile and worst in milliseconds, or why there is no answer."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        try:
            call()
        except Exception as error:  # what a GPU does not tell is a finding
            return f"{type(error).__name__}: {error}"
        taken.append((time.perf_counter() - began) * 1e3)
        time.sleep(0.005)
    taken.sort()
    return {"p50": statistics.median(taken), "p99": taken[int(len(taken) * 0.99)], "max": taken[-1]}


def _gpm(nvml: Any, handle: Any) -> dict[str, Any]:
    try:
        if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            return {"supported": False}
        older, newer = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
        nvml.nvmlGpmSampleGet(handle, older)
        time.sleep(0.2)
        sample = _timed(lambda: nvml.nvmlGpmSampleGet(handle, newer), GPM_CALLS)
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = 1, 5
        request.sample1, request.sample2 = older, newer
        for place, metric in enumerate((2, 5, 10, 20, 21)):
            request.metrics[place].metricId = metric
        metrics = _timed(lambda: nvml.nvmlGpmMetricsGet(request), GPM_CALLS)
        told = {metric.metricId: (metric.nvmlReturn, metric.value) for metric in request.metrics[:5]}
        nvml.nvmlGpmSampleFree(older)
        nvml.nvmlGpmSampleFree(newer)
    except Exception as error:  # no permission, no function in an older library: findings
        return {"supported": False, "why": f"{type(error).__name__}: {error}"}
    return {"supported": True, "sample_get_ms": sample, "metrics_get_ms": metrics, "values": told}


def _show_library(found: dict[str, Any]) -> None:
    print(f"driver {found['driver']}")
    for gpu in found["gpus"]:
        print(f"GPU {gpu['gpu']} {gpu['name']}")
        for name, times in gpu["calls_ms"].items():
            print(f"  {name:28} {_milliseconds(times)}")
        gpm = gpu["gpm"]
        print(f"  {'GPM supported':28} {gpm['supported']} {gpm.get('why', '')}")
        for name in ("sample_get_ms", "metrics_get_ms"):
            if name in gpm:
                print(f"  {'GPM ' + name[:-3]:28} {_milliseconds(gpm[name])}")
        if "values" in gpm:
            print(f"  {'GPM metric: (status, value)':28} {gpm['values']}")


def _milliseconds(times: dict[str, float] | str) -> str:
    if isinstance(times, str):
        return times
    return ", ".join(f"{name} {value:.3f} ms" for name, value in times.items())


# --- the training


def show_torch(device: str) -> None:
    """Say which torch this is; end with status 1 if it can't use the device."""
    import torch

    usable = device == "cpu" or torch.cuda.is_available()
    print(f"torch {torch.__version__}, {torch.cuda.device_count()} GPUs, {device} usable: {usable}")
    sys.exit(0 if usable else 1)


def train(directory: str, truth: str, device: str, between: str, gigabytes: str) -> None:
    """Train on every GPU, save in four ways, and note when work stopped and went on."""
    import torch
    from torch import multiprocessing

    world = torch.cuda.device_count() if device == "cuda" else 2
    arguments = (world, directory, truth, device, float(between), float(gigabytes))
    multiprocessing.spawn(_rank, arguments, nprocs=world)


def _rank(
    rank: int, world: int, directory: str, truth: str, device: str, between: float, gigabytes: float
) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29471")
    trainer = Trainer(rank, world, device, gigabytes)
    with open(truth if rank == 0 else os.devnull, "w", encoding="utf-8") as notes:
        for step, (kind, save) in enumerate(trainer.saves().items(), start=1):
            trainer.work(between)
            began = trainer.now()
            save(os.path.join(directory, f"step-{step}.pt"))
            trainer.meet()
            note = {"step": step, "kind": kind, "start": began, "end": trainer.now(), "gpus": world}
            notes.write(json.dumps(note) + "\n")
            notes.flush()
            if rank == 0:
                print(f"{kind}: stopped for {note['end'] - note['start']:.2f} s", flush=True)
        trainer.work(between)
        trainer.finish()


class Trainer:
    """One rank: matrix products and an all-reduce a step, as long as it is told; rank 0 writes the saves."""

    def __init__(self, rank: int, world: int, device: str, gigabytes: float) -> None:
        import torch
        import torch.distributed as distributed

        self._torch, self._distributed, self._rank = torch, distributed, rank
        cuda = device == "cuda"
        if cuda:
            torch.cuda.set_device(rank)
        distributed.init_process_group("nccl" if cuda else "gloo", rank=rank, world_size=world)
        self._device = torch.device("cuda", rank) if cuda else torch.device("cpu")
        size, kind = (MATRIX, torch.bfloat16) if cuda else (256, torch.float32)
        self._layers = [torch.randn(size, size, device=self._device, dtype=kind) for _ in range(LAYERS)]
        self._flag = torch.zeros(1, device=self._device)
        elements = int(gigabytes * 1e9 / 2 / 16) if rank == 0 else 1
        self._state = {f"layer{i}": torch.ones(elements, device=self._device, dtype=kind) for i in range(16)}
        self._writing: threading.Thread | None = None

    def saves(self) -> dict[str, Callable[[str], None]]:
        """Return the ways to save, in order."""
        return {
            "synchronous": self._write,
            "staging for 10 s first": self._stage_and_write,
            "synchronous again": self._write,
            "asynchronous": self._write_beside,
        }

    def now(self) -> float:
        """Return the time at which all work given so far is done; the clock of the recording."""
        if self._device.type == "cuda":
            self._torch.cuda.synchronize()
        return time.monotonic()

    def meet(self) -> None:
        """Wait for all ranks in a collective, as training does: GPUs spin meanwhile."""
        self._distributed.all_reduce(self._flag)
        self.now()

    def work(self, seconds: float) -> None:
        """Train for so long, by rank 0's clock."""
        ends = time.monotonic() + seconds
        while True:
            x = self._layers[0]
            for layer in self._layers:
                x = (x @ layer) * 0.01
            self._flag.fill_(1.0 if self._rank == 0 and time.monotonic() >= ends else 0.0)
            self._distributed.all_reduce(self._flag)
            if self._flag.item() > 0:
                return

    def _write(self, path: str) -> None:
        if self._rank == 0:
            self._torch.save(self._state, path)

    def _stage_and_write(self, path: str) -> None:
        if self._rank == 0:
            time.sleep(10)
        self._write(path)

    def _write_beside(self, path: str) -> None:
        """Stop only to copy the state to memory; write it while training goes on."""
        if self._rank == 0:
            copied = {name: tensor.to("cpu", copy=True) for name, tensor in self._state.items()}
            self._writing = threading.Thread(target=self._torch.save, args=(copied, path))
            self._writing.start()

    def finish(self) -> None:
        """Wait for what is still being written."""
        if self._writing is not None:
            self._writing.join()
        self.meet()
        self._distributed.destroy_process_group()


# --- what came out


def scrape(address: str, pid: str, path: str) -> None:
    """Keep the metrics as they are at the end, and show what the exporter cost."""
    text = urllib.request.urlopen(f"http://{address}/metrics", timeout=30).read().decode()
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(text)
    import psutil

    daemon = psutil.Process(int(pid))
    elapsed = time.time() - daemon.create_time()
    for process in (daemon, *daemon.children()):
        used = process.cpu_times()
        share = (used.user + used.system) / elapsed * 100
        name = "daemon" if process == daemon else "sampler"
        print(f"{name:8} CPU {share:.2f} % of one core, resident {process.memory_info().rss / 1e6:.1f} MB")


def judge(result_path: str, truth_path: str) -> None:
    """Compare bubbles with the training's notes; status 1 if a figure that claims high quality is wrong."""
    with open(result_path, encoding="utf-8") as stream:
        result = json.load(stream)
    with open(truth_path, encoding="utf-8") as stream:
        notes = [json.loads(line) for line in stream]
    saves = {save["step"]: save for save in result["saves"]}
    heads = f"{'save':24} {'truth s':>8} {'bubble s':>9} {'start off':>9} {'end off':>8}"
    print(f"{heads}  source, quality, verdict")
    failed = [note["kind"] for note in notes if not _judged(note, saves.get(note["step"]))]
    for line in result["gpu"]:
        print(f"GPU {line['gpu']}: observed {line['observed_seconds']:.1f} s, stalls {line['stall_seconds']}")
    print(f"FAILED: {', '.join(failed)}" if failed else "all saves as promised")
    sys.exit(1 if failed else 0)


def _judged(note: dict[str, Any], save: dict[str, Any] | None) -> bool:
    truth = note["end"] - note["start"]
    if save is None or save["bubble_seconds"] is None:
        why = "no save seen" if save is None else "no bubble given"
        print(f"{note['kind']:24} {truth:8.2f} {'-':>9}  {why}")
        return False
    off = abs(save["bubble_seconds"] - truth)
    # A stop of almost no length has no edges.
    edges = [(save["dip_start"], note["start"]), (save["dip_end"], note["end"])] if save["depth"] else []
    shown = [f"{seen - true:+.2f}" for seen, true in edges] or ["-", "-"]
    good = off <= max(0.3, 0.02 * truth)
    verdict = "as promised" if good else "OFF" if save["quality"] == "high" else "off, and says so"
    print(
        f"{note['kind']:24} {truth:8.2f} {save['bubble_seconds']:9.2f} {shown[0]:>9} {shown[1]:>8}  "
        f"{save['source']}, {save['quality']}, {verdict}"
    )
    return good or save["quality"] != "high"


PARTS: dict[str, Callable[..., None]] = {
    "library": library,
    "torch": show_torch,
    "train": train,
    "scrape": scrape,
    "judge": judge,
}

if __name__ == "__main__":
    PARTS[sys.argv[1]](*sys.argv[2:])
