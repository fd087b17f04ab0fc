"""Checkpoints as frameworks write them, each with what it amounts to; the writer knows the truth."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

KIB = 1024


@dataclass(frozen=True)
class Truth:
    """What one written checkpoint amounts to."""

    size_bytes: int
    files: int
    step: int | None = None


def put(path: Path, size_bytes: int, pause: Callable[[], None] = lambda: None) -> None:
    """Write a file in two pieces with a pause between them."""
    with open(path, "wb", buffering=0) as stream:
        stream.write(b"w" * (size_bytes // 2))
        pause()
        stream.write(b"w" * (size_bytes - size_bytes // 2))


def hugging_face(root: Path, step: int, size_bytes: int, pause: Callable[[], None] = lambda: None) -> Truth:
    """Trainer: weights, optimizer, and last of all the state file, in ``checkpoint-STEP``."""
    base = root / f"checkpoint-{step}"
    base.mkdir()
    put(base / "config.json", 100)
    temporary = base / ".tmpAbCd12"
    put(temporary, size_bytes, pause)
    temporary.rename(base / "model.safetensors")
    put(base / "optimizer.pt", 2 * size_bytes, pause)
    put(base / "trainer_state.json", 50)
    return Truth(3 * size_bytes + 150, 4, step)


def distributed(root: Path, step: int, size_bytes: int, pause: Callable[[], None] = lambda: None) -> Truth:
    """PyTorch DCP: shards, then ``.metadata`` by a temporary name."""
    base = root / f"step-{step}"
    base.mkdir()
    for rank in range(2):
        put(base / f"__{rank}_0.distcp", size_bytes, pause)
    put(base / ".metadata.tmp", 70)
    (base / ".metadata.tmp").rename(base / ".metadata")
    return Truth(2 * size_bytes + 70, 3, step)


def staged(root: Path, step: int, size_bytes: int, pause: Callable[[], None] = lambda: None) -> Truth:
    """Write a whole directory under a temporary name, then rename it."""
    base = root / f"tmp-checkpoint-{step}"
    base.mkdir()
    for part in range(3):
        put(base / f"model-{part}.bin", size_bytes, pause)
    base.rename(root / f"checkpoint-{step}")
    return Truth(3 * size_bytes, 3, step)


def deepspeed(root: Path, step: int, size_bytes: int, pause: Callable[[], None] = lambda: None) -> Truth:
    """DeepSpeed: model states in ``global_stepSTEP``, then ``latest`` beside it, which is no data."""
    base = root / f"global_step{step}"
    base.mkdir()
    put(base / "mp_rank_00_model_states.pt", size_bytes, pause)
    put(base / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", size_bytes, pause)
    (root / "latest").write_text(f"global_step{step}")
    return Truth(2 * size_bytes, 2, step)


def renamed_file(root: Path, step: int, size_bytes: int, pause: Callable[[], None] = lambda: None) -> Truth:
    """Write one file under a temporary name, then rename it."""
    put(root / f"model-step-{step}.pt.tmp", size_bytes, pause)
    (root / f"model-step-{step}.pt.tmp").rename(root / f"model-step-{step}.pt")
    return Truth(size_bytes, 1, step)


def plain_file(root: Path, step: int, size_bytes: int, pause: Callable[[], None] = lambda: None) -> Truth:
    """Write one file straight to its name, as ``torch.save`` does."""
    put(root / f"model-step-{step}.pt", size_bytes, pause)
    return Truth(size_bytes, 1, step)


LAYOUTS = {
    "hugging_face": hugging_face,
    "distributed": distributed,
    "staged": staged,
    "deepspeed": deepspeed,
    "renamed_file": renamed_file,
    "plain_file": plain_file,
}


def nested(root: Path, step: int) -> Truth:
    """Three directories deep, three files of ten bytes, no pause anywhere."""
    leaf = root / f"global_step{step}" / "actor" / "optim"
    leaf.mkdir(parents=True)
    for part in range(3):
        (leaf / f"part-{part}.pt").write_bytes(b"0123456789")
    return Truth(30, 3, step)


def remove(path: Path) -> None:
    """Delete a checkpoint as retention does."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        os.unlink(path)
