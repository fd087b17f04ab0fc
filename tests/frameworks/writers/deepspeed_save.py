"""Train a small model with DeepSpeed ZeRO-2 on two gloo ranks: ``deepspeed_save.py ROOT``.

Every rank writes its shard of the optimizer with ``torch.save``, rank 0 the model and at the end the file
``latest`` beside the checkpoints. A save starts with the first ``torch.save`` of any rank and ends when the
last rank's call returns; the checkpoint is its ``global_step`` directory.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

os.environ["DS_ACCELERATOR"] = "cpu"

from save_clock import SaveClock, print_truth, required_frameworks
from torch_dcp import RANKS, combine

with required_frameworks():
    import deepspeed
    import torch
    import torch.distributed as dist

SAVE_STEPS = 2
SAVES = 3
CONFIG = {
    "train_batch_size": 4,
    "zero_optimization": {"stage": 2},
    "zero_allow_untested_optimizer": True,
    "bf16": {"enabled": True},
}


def mark_native_saves(clock: SaveClock) -> None:
    """Mark the clock whenever DeepSpeed calls ``torch.save``, which opens its file in C++."""
    native = torch.save

    def save(*args: object, **options: object) -> None:
        clock.mark_open()
        native(*args, **options)

    torch.save = save


def run_rank(root: str, rank: int, meeting_point: str) -> None:
    """Train this rank's part; rank 0 prints the truth of both."""
    dist.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=RANKS)
    clock = SaveClock(root)
    mark_native_saves(clock)
    model = torch.nn.Linear(3000, 3000, dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters())
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=CONFIG, dist_init_required=False
    )
    for step in range(1, SAVES * SAVE_STEPS + 1):
        loss = engine(torch.rand(2, 3000, dtype=torch.bfloat16)).square().mean()
        engine.backward(loss)
        engine.step()
        if step % SAVE_STEPS:
            continue
        clock.begin()
        engine.save_checkpoint(root)
        times = [None] * RANKS
        dist.all_gather_object(times, clock.end())
        if rank == 0:
            print_truth(step, os.path.join(root, f"global_step{step}"), combine(times))
    dist.barrier()
    dist.destroy_process_group()


def main(root: str) -> int:
    """Start the ranks and return the worst exit status."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, os.path.abspath(__file__), root]
        meeting_point = os.path.join(scratch, "ranks")
        ranks = []
        for rank in range(RANKS):
            environment = os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
            ranks.append(subprocess.Popen([*command, str(rank), meeting_point], env=environment))
        return max(abs(process.wait()) for process in ranks)


if __name__ == "__main__":
    if len(sys.argv) == 4:
        run_rank(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    else:
        sys.exit(main(sys.argv[1]))
