"""A small training that writes real checkpoints, and the whole exporter watching it. No GPU needed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

from ckpt_exporter.app import Exporter, run_exporter
from ckpt_exporter.config.schema import Config, WebSettings
from ckpt_exporter.model import DetectSettings, DirectorySettings

MODEL_BYTES = 24 << 20
OPTIMIZER_BYTES = 48 << 20
SECONDS_BETWEEN_SAVES = 4.0
# A slow disk, so that a save can be watched while it runs.
WRITE_BYTES_PER_SECOND = 48 << 20
BLOCK_BYTES = 1 << 20
KEEP = 3


def run_demo(web: WebSettings, duration_seconds: float | None) -> int:
    """Run the demo until interrupted or for ``duration_seconds``; return the exit status."""
    directory = tempfile.mkdtemp(prefix="ckpt-exporter-demo-")
    config = Config(
        directories=(DirectorySettings("demo", directory),),
        detect=DetectSettings(quiet_seconds=5.0),
        web=web,
    )
    ends = float("inf") if duration_seconds is None else time.monotonic() + duration_seconds
    training = subprocess.Popen([sys.executable, "-m", "ckpt_exporter.demo", directory])  # noqa: S603 (this module)
    try:
        return run_exporter(
            config,
            None,
            None,
            lambda: config,
            until=lambda: time.monotonic() >= ends,
            started=_say_where_to_look,
        )
    finally:
        training.terminate()
        training.wait()
        shutil.rmtree(directory, ignore_errors=True)


def _say_where_to_look(exporter: Exporter) -> None:
    port = exporter.address.rpartition(":")[2]
    directory = exporter.config.directories[0].path
    print(
        f"\nA demo training writes real checkpoints to {directory}\n"
        f"  status page  http://localhost:{port}/\n"
        f"  metrics      http://localhost:{port}{exporter.config.web.telemetry_path}\n"
        "The first save shows within 15 seconds. Stop with Ctrl-C.\n",
        flush=True,
    )


def train(directory: str) -> None:
    """Train nothing, and save it as the Hugging Face Trainer would, until the parent is gone."""
    parent, step = os.getppid(), 0
    while os.getppid() == parent:
        step += 100
        save(directory, step)
        old = os.path.join(directory, f"checkpoint-{step - 100 * KEEP}")
        shutil.rmtree(old, ignore_errors=True)
        time.sleep(SECONDS_BETWEEN_SAVES)


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
    train(sys.argv[1])
