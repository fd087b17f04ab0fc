"""Random real saves against the writer's truth."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from tests.integration import checkpoints
from tests.integration.daemon import watching

JOBS = 3
SAVES_OF_A_JOB = 10


@pytest.mark.parametrize("seed", [1, 2])
def test_random_saves(tmp_path: Path, seed: int) -> None:
    """30 random saves of three jobs that overlap are counted exactly: saves, bytes, files and steps."""
    truths: list[tuple[int, checkpoints.Truth]] = []

    def job(number: int, chance: random.Random) -> None:
        root = tmp_path / "a" / f"job{number}"
        root.mkdir()
        layout = checkpoints.LAYOUTS[chance.choice(list(checkpoints.LAYOUTS))]
        step = chance.randrange(1, 1_000)
        # The checkpoints of one model differ little in size; a much smaller one would be a truncated one.
        largest = chance.randrange(1_000, 200_000)
        for _ in range(SAVES_OF_A_JOB):
            step += chance.randrange(1, 1_000)
            size = chance.randrange(largest * 95 // 100, largest)
            truths.append((number, layout(root, step, size, lambda: time.sleep(chance.uniform(0, 0.03)))))
            time.sleep(chance.choice((0.0, 0.01, 0.2)))

    with watching(tmp_path, "a", incomplete_seconds=60) as daemon:
        jobs = [threading.Thread(target=job, args=(n, random.Random(10 * seed + n))) for n in range(JOBS)]
        for thread in jobs:
            thread.start()
        for thread in jobs:
            thread.join()
        daemon.expect(
            "a", JOBS * SAVES_OF_A_JOB,
            size_bytes=sum(t.size_bytes for _, t in truths), files=sum(t.files for _, t in truths),
        )  # fmt: skip
        assert sorted(save["step"] for save in daemon.saves("a")) == sorted(t.step for _, t in truths)
        daemon.recheck()
