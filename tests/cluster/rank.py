"""A rank that saves when it is told to, in plain Python: ``python -S rank.py``, one command a line.

``BASE BYTES SECONDS STEP`` writes the checkpoint of a step below BASE, as the Hugging Face Trainer would,
with its bytes spread over the seconds, and answers with the bytes of all its files.
"""

import json
import os
import sys
import time

BLOCK = 64 * 1024


def save(base: str, size_bytes: int, seconds: float, step: int) -> int:
    """Write weights under a temporary name, the optimizer, and last the state, which commits."""
    place = os.path.join(base, f"checkpoint-{step}")
    os.makedirs(place)
    time.sleep(0.2)  # the state is gathered
    temporary, weights = os.path.join(place, ".tmpRaNk01"), os.path.join(place, "model.safetensors")
    optimizer, state = os.path.join(place, "optimizer.pt"), os.path.join(place, "trainer_state.json")
    write(temporary, size_bytes // 3, seconds / 3)
    os.rename(temporary, weights)
    write(optimizer, size_bytes - size_bytes // 3, seconds * 2 / 3)
    with open(state, "w", encoding="utf-8") as stream:
        json.dump({"global_step": step}, stream)
    return sum(os.stat(path).st_size for path in (weights, optimizer, state))


def write(path: str, size_bytes: int, seconds: float) -> None:
    """Write at an even pace, whatever else the machine does."""
    began, written = time.monotonic(), 0
    with open(path, "wb", buffering=0) as stream:
        while written < size_bytes:
            due = size_bytes * (time.monotonic() - began) / seconds if seconds > 0 else size_bytes
            while written < min(due + BLOCK, size_bytes):
                written += stream.write(bytes(min(BLOCK, size_bytes - written)))
            time.sleep(0.05)


if __name__ == "__main__":
    for line in sys.stdin:
        where, size, lasting, number = line.split()
        print(save(where, int(size), float(lasting), int(number)), flush=True)
