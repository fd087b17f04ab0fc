"""Write checkpoints with PyTorch DCP from two gloo ranks: ``torch_dcp.py ROOT sync|async``.

Each rank writes its half of a sharded model, 200 MB. A save starts with the first shard that any rank opens
and is committed when rank 0 renames ``.metadata`` into place. In ``async`` mode the ranks go on computing
while a thread writes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from save_clock import SaveClock, SaveTimes, print_truth, required_frameworks

with required_frameworks():
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

RANKS = 2
STEPS = (100, 200, 300)


def sharded_model() -> dict[str, DTensor]:
    """Return four row-sharded parameters, 50 MB (10**6 bytes) of each on this rank."""
    mesh = init_device_mesh("cpu", (RANKS,))
    return {
        f"layer.{i}.weight": DTensor.from_local(torch.rand(2500, 5000), mesh, [Shard(0)]) for i in range(4)
    }


def train(steps: int) -> None:
    """Compute something for a moment, as the next training steps would."""
    weights = torch.rand(256, 256)
    for _ in range(steps):
        weights = torch.nn.functional.normalize(weights @ weights)


def save(
    model: dict[str, DTensor], path: str, clock: SaveClock, background: dist.ProcessGroup | None
) -> SaveTimes:
    """Save once, in the background if there is a process group for it, and return this rank's times."""
    clock.begin()
    if background is None:
        dcp.save(model, checkpoint_id=path)
    else:
        future = dcp.async_save(model, checkpoint_id=path, process_group=background)
        while not future.done():
            train(steps=20)
        future.result()
    return clock.end()


def combine(times: list[SaveTimes]) -> SaveTimes:
    """Return the times of the save that all ranks made: first call and open, last return and commit."""
    opened = [one.opened for one in times if one.opened is not None]
    committed = [one.committed for one in times if one.committed is not None]
    return SaveTimes(
        called=min(one.called for one in times),
        returned=max(one.returned for one in times),
        opened=min(opened, default=None),
        committed=max(committed, default=None),
    )


def run_rank(root: str, mode: str, rank: int, meeting_point: str) -> None:
    """Make this rank's part of every save; rank 0 prints the truth of all ranks."""
    dist.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=RANKS)
    # The background save needs a group of its own: on the default one its collectives race the training's.
    background = dist.new_group(backend="gloo") if mode == "async" else None
    clock = SaveClock(root, commit_name=".metadata")
    model = sharded_model()
    with tempfile.TemporaryDirectory() as elsewhere:  # lazy imports of the first save are not part of a save
        dcp.save({"warm": torch.zeros(1)}, checkpoint_id=elsewhere, no_dist=True)
    for step in STEPS:
        path = os.path.join(root, "checkpoint", f"step-{step}")
        dist.barrier()
        times: list[SaveTimes | None] = [None] * RANKS
        dist.all_gather_object(times, save(model, path, clock, background))
        if rank == 0:
            print_truth(step, path, combine([one for one in times if one is not None]))
        train(steps=200)
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    # torch 2.13 sometimes aborts in a static destructor after an asynchronous save; all work is done here.
    os._exit(0)


def main(root: str, mode: str) -> int:
    """Start the ranks and return the worst exit status."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, os.path.abspath(__file__), root, mode]
        meeting_point = os.path.join(scratch, "ranks")
        ranks = [subprocess.Popen([*command, str(rank), meeting_point]) for rank in range(RANKS)]
        return max(abs(process.wait()) for process in ranks)


if __name__ == "__main__":
    if len(sys.argv) == 5:
        run_rank(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        sys.exit(main(*sys.argv[1:3]))
