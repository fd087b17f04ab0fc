"""Write checkpoints with safetensors: ``safetensors_save.py ROOT steps|sharded``.

The library opens its file in Rust; the truth starts just before that native call, after the Python part has
laid out the tensors.
"""

from __future__ import annotations

import json
import os
import sys
import time

from save_clock import SaveClock, required_frameworks

with required_frameworks():
    import safetensors.torch
    import torch

PAUSE_SECONDS = 0.5


def mark_native_saves(clock: SaveClock) -> None:
    """Mark the clock whenever safetensors enters the native call that opens the file."""
    native = safetensors.torch.serialize_file

    def serialize_file(*args: object, **options: object) -> object:
        clock.mark_open()
        return native(*args, **options)

    safetensors.torch.serialize_file = serialize_file


def shard(number: int) -> dict[str, torch.Tensor]:
    """Return 200 MB (10**6 bytes) of float32 tensors."""
    return {f"layer.{4 * number + i}.weight": torch.rand(12_500_000) for i in range(4)}


def save_steps(root: str, clock: SaveClock) -> None:
    """Save one 200 MB file per step."""
    tensors = shard(0)
    for step in (100, 200, 300):
        path = os.path.join(root, f"model_step{step}.safetensors")
        with clock.save(step, path):
            safetensors.torch.save_file(tensors, path)
        time.sleep(PAUSE_SECONDS)


def save_sharded(root: str, clock: SaveClock) -> None:
    """Save two shards of 200 MB and then their index into one directory per step."""
    shards = {f"model-0000{n + 1}-of-00002.safetensors": shard(n) for n in range(2)}
    index = {"weight_map": {name: file for file, tensors in shards.items() for name in tensors}}
    for step in (100, 200, 300):
        directory = os.path.join(root, f"step_{step}")
        os.makedirs(directory)
        with clock.save(step, directory):
            for name, tensors in shards.items():
                safetensors.torch.save_file(tensors, os.path.join(directory, name))
            with open(os.path.join(directory, "model.safetensors.index.json"), "w", encoding="utf-8") as file:
                json.dump(index, file)
        time.sleep(PAUSE_SECONDS)


def main(root: str, mode: str) -> None:
    """Write the saves of one mode below ``root``."""
    clock = SaveClock(root)
    mark_native_saves(clock)
    {"steps": save_steps, "sharded": save_sharded}[mode](root, clock)


if __name__ == "__main__":
    main(*sys.argv[1:3])
