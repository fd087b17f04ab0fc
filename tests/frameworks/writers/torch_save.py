"""Write checkpoints with ``torch.save``: ``torch_save.py ROOT steps|directories|overwrite``.

``torch.save`` opens its file in C++, first thing in the call, and closes it last, so the call's own
boundaries are the truth. Writing over an older file takes longer than its writes: the open frees the old
pages, and the close flushes the new ones (on ext4, xfs and btrfs).
"""

from __future__ import annotations

import io
import os
import sys
import time

from save_clock import SaveClock, required_frameworks

with required_frameworks():
    import torch

PAUSE_SECONDS = 0.5  # "training" between steps
OVERWRITE_PAUSE_SECONDS = 5.0  # saves of one name are two saves only when quiet lies between them


def tensors(megabytes: int) -> dict[str, torch.Tensor]:
    """Return float32 tensors of ``megabytes`` (10**6 bytes) in pieces of 50."""
    return {f"layer.{i}.weight": torch.rand(12_500_000) for i in range(megabytes // 50)}


def save_steps(root: str, clock: SaveClock) -> None:
    """Save one 300 MB file per step."""
    model = tensors(300)
    for step in (100, 200, 300):
        path = os.path.join(root, f"model_step{step}.pt")
        with clock.save(step, path):
            torch.save(model, path)
        time.sleep(PAUSE_SECONDS)


def save_directories(root: str, clock: SaveClock) -> None:
    """Save model and optimizer, 200 MB and 100 MB, into one directory per step."""
    model, optimizer = tensors(200), tensors(100)
    for step in (100, 200, 300):
        directory = os.path.join(root, f"step-{step}")
        os.makedirs(directory)
        with clock.save(step, directory):
            torch.save(model, os.path.join(directory, "model.pt"))
            torch.save(optimizer, os.path.join(directory, "optimizer.pt"))
        time.sleep(PAUSE_SECONDS)


def save_overwriting(root: str, clock: SaveClock) -> None:
    """Save 300 MB three times under one name without a step."""
    model = tensors(300)
    path = os.path.join(root, "model.pt")
    for _ in range(3):
        with clock.save(None, path):
            torch.save(model, path)
        time.sleep(OVERWRITE_PAUSE_SECONDS)


def main(root: str, mode: str) -> None:
    """Write the saves of one mode below ``root``."""
    torch.save(
        {"warm": torch.zeros(1)}, io.BytesIO()
    )  # lazy imports of the first call are not part of a save
    {"steps": save_steps, "directories": save_directories, "overwrite": save_overwriting}[mode](
        root, SaveClock(root)
    )


if __name__ == "__main__":
    main(*sys.argv[1:3])
