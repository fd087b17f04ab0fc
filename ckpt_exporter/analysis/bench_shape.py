"""What a burst looks like: names and sizes of the files of one checkpoint."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ckpt_exporter.analysis.numbers import plain, size_text
from ckpt_exporter.detect.layouts import is_noise
from ckpt_exporter.errors import UsageError
from ckpt_exporter.logs import one_line

# A published case: 8 GPUs, and a checkpoint of 65.6 GB that each of them writes.
PUBLISHED_FILES: Final = 8
PUBLISHED_FILE_BYTES: Final = 65_600_000_000
DEFAULT_SCALE: Final = 0.01
LAYOUTS: Final = ("dcp", "hf_trainer", "deepspeed", "plain")
_MARKER_BYTES: Final = 4096
_MAX_MARKER_BYTES: Final = 16 << 20
_MAX_FILES: Final = 100_000


@dataclass(frozen=True, slots=True)
class ShapeFile:
    """One file: its name below the checkpoint's parent, and its size."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Shape:
    """A checkpoint to write: its files by writer, and the small file that commits it, written last."""

    title: str
    files: tuple[ShapeFile, ...]
    marker: ShapeFile | None = None

    @property
    def bytes(self) -> int:
        """Bytes of the whole checkpoint."""
        return sum(file.bytes for file in self.files) + (self.marker.bytes if self.marker else 0)

    @property
    def count(self) -> int:
        """Number of files."""
        return len(self.files) + (self.marker is not None)


def layout_shape(layout: str, total_bytes: int, files: int) -> Shape:
    """Return a checkpoint of a layout with ``files`` equal shards. Raises UsageError."""
    if files < 1 or total_bytes < files:
        raise UsageError(
            f"cannot share {plain(total_bytes)} bytes among {plain(files)} files: write larger --bytes"
        )
    sizes = [total_bytes // files + (index < total_bytes % files) for index in range(files)]
    names, marker = _names(layout, files)
    shards = tuple(ShapeFile(name, size) for name, size in zip(names, sizes, strict=True))
    title = f"{layout}, {plain(files)} x {size_text(sizes[0])}"
    if marker is None:
        return Shape(title, shards)
    # DeepSpeed's is a pointer that holds the checkpoint's name, and no part of the checkpoint.
    return Shape(
        title, shards, ShapeFile(marker, len("global_step1") if marker == "latest" else _MARKER_BYTES)
    )


def _names(layout: str, files: int) -> tuple[list[str], str | None]:
    if layout == "dcp":
        return [f"step-1/__{rank}_0.distcp" for rank in range(files)], "step-1/.metadata"
    if layout == "hf_trainer":
        names = [f"checkpoint-1/model-{i:05}-of-{files:05}.safetensors" for i in range(1, files + 1)]
        return names, "checkpoint-1/trainer_state.json"
    if layout == "deepspeed":
        rank = "global_step1/bf16_zero_pp_rank_{}_mp_rank_00_optim_states.pt"
        return [rank.format(i) for i in range(files)], "latest"
    return [f"burst/shard-{rank}.bin" for rank in range(files)], None


def published_shape(scale: float) -> Shape:
    """Return the published checkpoint, each of its eight files scaled."""
    size = max(1, round(PUBLISHED_FILE_BYTES * scale))
    shape = layout_shape("dcp", size * PUBLISHED_FILES, PUBLISHED_FILES)
    return Shape(f"published case at {scale:g}: {shape.title}", shape.files, shape.marker)


def like_shape(directory: str, scale: float) -> Shape:
    """Return a checkpoint of the same names and sizes (scaled) as one that exists. Raises UsageError.

    A small file that was modified last is taken for the commit marker. Links and other things are left out.
    """
    base = os.path.basename(os.path.abspath(directory)) or "checkpoint"
    found = sorted(_walk(directory), key=lambda entry: entry[0])
    if not found:
        raise UsageError(f"--like={one_line(directory)} is no directory with files: name one checkpoint")
    newest = max(found, key=lambda entry: entry[2])
    marker = None
    if len(found) > 1 and newest[1] <= _MAX_MARKER_BYTES:
        marker = ShapeFile(f"{base}/{newest[0]}", newest[1])
        found.remove(newest)
    files = tuple(ShapeFile(f"{base}/{name}", round(size * scale)) for name, size, _ in found)
    if not sum(file.bytes for file in files):
        raise UsageError(f"--like={one_line(directory)} holds no bytes: name a finished checkpoint")
    scaled = f" at {scale:g}" if scale != 1 else ""
    return Shape(f"like {one_line(base)}{scaled}, {plain(len(files))} files", files, marker)


def existing_files(directory: str) -> tuple[ShapeFile, ...]:
    """Return the files of a checkpoint that exists, named from its parent. Raises UsageError.

    Empty files, links and other things are left out, and what the exporter would not look at.
    """
    base = os.path.basename(os.path.abspath(directory))
    found = sorted((name, size) for name, size, _ in _walk(directory, "--load") if size)
    files = tuple(ShapeFile(f"{base}/{name}", size) for name, size in found if not is_noise(f"{base}/{name}"))
    if not files:
        raise UsageError(f"--load={one_line(directory)} is no directory with files: name one checkpoint")
    return files


def _walk(directory: str, flag: str = "--like") -> Iterator[tuple[str, int, float]]:
    count = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(parent, name)
            try:
                status = os.lstat(path)
            except OSError:
                continue  # rotated away meanwhile
            if (status.st_mode & 0o170000) != 0o100000:
                continue
            count += 1
            if count > _MAX_FILES:
                raise UsageError(f"{flag}={one_line(directory)} has too many files: name one checkpoint")
            yield os.path.relpath(path, directory), status.st_size, status.st_mtime


def shares_of(files: tuple[ShapeFile, ...], writers: int) -> list[list[ShapeFile]]:
    """Share files out among writers, the largest first, each to whoever has least."""
    shares: list[list[ShapeFile]] = [[] for _ in range(min(writers, len(files)))]
    loads = [0] * len(shares)
    for file in sorted(files, key=lambda f: -f.bytes):
        least = loads.index(min(loads))
        shares[least].append(file)
        loads[least] += file.bytes
    return shares
