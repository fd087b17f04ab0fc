"""Write checkpoints with Orbax: ``orbax_save.py ROOT``, saved in the background as is its default.

Orbax writes into a directory with a temporary name and renames it to the step's number; native code writes
the data after Python has opened the first small file.
"""

from __future__ import annotations

import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"

from save_clock import SaveClock, required_frameworks

with required_frameworks():
    import jax
    import orbax.checkpoint as ocp

STEPS = (100, 200, 300)


def main(root: str) -> None:
    """Save 128 MB of random numbers at each step."""
    state = {f"layer{i}": jax.random.normal(jax.random.key(i), (2000, 4000)) for i in range(4)}
    clock = SaveClock(root)
    with ocp.CheckpointManager(root) as manager:
        for step in STEPS:
            clock.commit_name = str(step)
            with clock.save(step, os.path.join(root, str(step))):
                manager.save(step, args=ocp.args.StandardSave(state))
                manager.wait_until_finished()


if __name__ == "__main__":
    main(sys.argv[1])
