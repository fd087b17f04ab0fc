"""A simulated amdsmi module for tests, in a folder for a PYTHONPATH, driven through a state file."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, DRIVER_NOT_LOADED = 2, 10, 31, 34
# A spinning collective keeps the graphics engine busy; that it draws so little is taken from other GPUs.
TRAINING = {"gfx": 94, "umc": 41, "watts": 640.0}
SPINNING = {"gfx": 100, "umc": 1, "watts": 180.0}
WRITING = {"gfx": 2, "umc": 1, "watts": 160.0}


def uuid_of(gpu: int) -> str:
    """Return the UUID of a simulated GPU."""
    return f"ccff74a1-0000-1000-80e0-{gpu:012x}"


class SimulatedAmdSmi:
    """State of the simulated module: GPUs that train, until a test says otherwise."""

    def __init__(self, folder: Path, gpus: int = 8) -> None:
        self.path = folder / "amdsmi-state"
        self.state: dict[str, Any] = {
            "gpus": [{"uuid": uuid_of(gpu), "pids": [], **TRAINING} for gpu in range(gpus)]
        }
        self.write()

    def environment(self) -> dict[str, str]:
        """Return the variables by which a process finds the module and its state."""
        paths = [str(Path(__file__).parent), *sys.path]
        return {"PYTHONPATH": os.pathsep.join(paths), "SIMULATED_AMDSMI_STATE": str(self.path)}

    def write(self) -> None:
        temporary = self.path.with_suffix(".new")
        temporary.write_text(json.dumps(self.state))
        os.replace(temporary, self.path)

    def change(self, **values: Any) -> None:
        self.state.update(values)
        self.write()

    def set(self, gpu: int, **values: Any) -> None:
        self.state["gpus"][gpu].update(values)
        self.write()

    def set_state(self, state: str) -> None:
        """Let all GPUs train, or the first write and the others spin."""
        for gpu, values in enumerate(self.state["gpus"]):
            waiting = WRITING if gpu == 0 else SPINNING
            values.update(TRAINING if state == "training" else waiting)
        self.write()
