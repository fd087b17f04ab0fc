"""A small training that writes real checkpoints, and the whole exporter watching it.

No GPU needed: eight simulated ones follow the training's state.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from ckpt_exporter.app import Exporter
from ckpt_exporter.config.schema import Config, HistorySettings, WebSettings
from ckpt_exporter.daemon import run_exporter
from ckpt_exporter.model import DetectSettings, DirectorySettings, Fact
from ckpt_exporter.sources.gpus import GpuSource
from ckpt_exporter.sources.simulated import SimulatedGpus, read_training_state, write_training_state

MODEL_BYTES = 24 << 20
OPTIMIZER_BYTES = 48 << 20
# Long enough to see how the GPUs train, short enough that a first save shows within 15 seconds.
SECONDS_BEFORE_FIRST_SAVE = 6.0
# Long enough for a save's bubble to be judged and looked at before the next save takes its place.
SECONDS_BETWEEN_SAVES = 10.0
GPU_SAMPLE_HZ = 10.0
# A slow disk, so that a save can be watched while it runs.
WRITE_BYTES_PER_SECOND = 48 << 20
BLOCK_BYTES = 1 << 20
KEEP = 3


def run_demo(web: WebSettings, duration_seconds: float | None) -> int:
    """Run the demo until interrupted or for ``duration_seconds``; return the exit status."""
    place = tempfile.mkdtemp(prefix="ckpt-exporter-demo-")
    directory, state = os.path.join(place, "checkpoints"), os.path.join(place, "state")
    os.mkdir(directory)
    config = Config(
        directories=(DirectorySettings("demo", directory),),
        detect=DetectSettings(quiet_seconds=2.0),
        history=HistorySettings(path=os.path.join(place, "history.db")),
        web=web,
    )
    ends = float("inf") if duration_seconds is None else time.monotonic() + duration_seconds
    write_training_state(state, "training")  # from the first reading on, while the process starts
    training = subprocess.Popen([sys.executable, "-m", "ckpt_exporter.demo", directory, state])  # noqa: S603 (this module)

    def simulated_gpus(emit: Callable[[Fact], None], _saving: Callable[[], bool]) -> GpuSource:
        return SimulatedGpus(
            emit,
            sample_hz=GPU_SAMPLE_HZ,
            state=lambda: read_training_state(state),
            pids=lambda: (training.pid,),
        )

    try:
        return run_exporter(
            config,
            None,
            None,
            lambda: config,
            ends_at=ends,
            started=_say_where_to_look,
            gpus=("simulated", simulated_gpus),
        )
    finally:
        training.terminate()
        training.wait()
        shutil.rmtree(place, ignore_errors=True)


def _say_where_to_look(exporter: Exporter) -> None:
    port = exporter.address.rpartition(":")[2]
    directory = exporter.config.directories[0].path
    print(
        f"\nA demo training writes real checkpoints to {directory}; its 8 GPUs are simulated.\n"
        f"  status page  http://localhost:{port}/\n"
        f"  metrics      http://localhost:{port}{exporter.config.web.telemetry_path}\n"
        "The first save shows within 15 seconds. Stop with Ctrl-C.\n",
        flush=True,
    )


def train(directory: str, state: str) -> None:
    """Train nothing, and save it as the Hugging Face Trainer would, until the parent is gone.

    The file ``state`` says at any time whether it trains or saves: the simulated GPUs follow it.
    """
    parent, step = os.getppid(), 0
    while os.getppid() == parent:
        step += 100
        write_training_state(state, "training")
        time.sleep(SECONDS_BEFORE_FIRST_SAVE if step == 100 else SECONDS_BETWEEN_SAVES)
        write_training_state(state, "saving")
        save(directory, step)
        old = os.path.join(directory, f"checkpoint-{step - 100 * KEEP}")
        shutil.rmtree(old, ignore_errors=True)


def save(directory: str, step: int) -> None:
    """Write one checkpoint: weights by a temporary name, optimizer, and the state file last."""
    base = os.path.join(directory, f"checkpoint-{step}")
    os.makedirs(base)
    _write_json(os.path.join(base, "config.json"), {"model_type": "demo"})
    temporary = os.path.join(base, ".tmpDeMo01")
    _write(temporary, MODEL_BYTES)
    os.rename(temporary, os.path.join(base, "model.safetensors"))
    _write(os.path.join(base, "optimizer.pt"), OPTIMIZER_BYTES)
    _write_json(os.path.join(base, "trainer_state.json"), {"global_step": step})


def _write_json(path: str, value: object) -> None:
    with open(path, "w", encoding="utf-8") as stream:
        json.dump(value, stream)


def _write(path: str, size_bytes: int) -> None:
    block = os.urandom(BLOCK_BYTES)
    with open(path, "wb", buffering=0) as stream:
        for _ in range(size_bytes // BLOCK_BYTES):
            stream.write(block)
            time.sleep(BLOCK_BYTES / WRITE_BYTES_PER_SECOND)


if __name__ == "__main__":
    train(sys.argv[1], sys.argv[2])
