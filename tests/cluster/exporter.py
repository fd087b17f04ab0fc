"""One node's exporter with eight simulated GPUs that follow a state file.

The GPUs' processes are those of the training on the node, which a second file names.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ckpt_exporter.config.schema import Config, HistorySettings, WebSettings
from ckpt_exporter.daemon import run_exporter
from ckpt_exporter.logs import configure_logging
from ckpt_exporter.model import DetectSettings, DirectorySettings, Fact
from ckpt_exporter.sources.gpus import GpuSource
from ckpt_exporter.sources.simulated import SimulatedGpus, read_training_state

QUIET_SECONDS = 2.0


def main(text: str) -> int:
    """Run until SIGTERM; ``text`` is a JSON object of the node's number, files, directories and address."""
    told = json.loads(text)
    set_wrong(told["skew_seconds"])
    place = Path(told["place"])
    config = Config(
        directories=tuple(DirectorySettings(name, path) for name, path in told["directories"].items()),
        detect=DetectSettings(quiet_seconds=QUIET_SECONDS),
        history=HistorySettings(path=str(place / "history.db")),
        web=WebSettings(listen_address=told["address"]),
    )

    def gpus(emit: Callable[[Fact], None], _saving: Callable[[], bool]) -> GpuSource:
        return SimulatedGpus(
            emit,
            state=lambda: read_training_state(str(place / "state")),
            pids=lambda: pids(place / "pids"),
            seed=told["node"],
            node=told["node"],
        )

    configure_logging("info", "logfmt", sys.stderr)
    return run_exporter(config, None, None, lambda: config, gpus=("simulated", gpus))


def set_wrong(seconds: float) -> None:
    """Let this process take the time of day for another; durations and the times of files stay right."""
    right = time.time
    time.time = lambda: right() + seconds


def pids(path: Path) -> tuple[int, ...]:
    """Read the processes of the node's training; none without one."""
    try:
        return tuple(int(word) for word in path.read_text(encoding="utf-8").split())
    except OSError:
        return ()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
