"""Writers, run as processes of their own: ``python -m benchmarks.load KIND ARGUMENTS``."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count

BLOCK = os.urandom(1 << 20)
REWRITTEN_BYTES = 4 << 20  # stays in the processor's cache, so that memory's noise does not hide the cost
FRESH_LIMIT_BYTES = 3 << 30
WARM_SECONDS = 0.15


def throughput(directory: str, name: str, block_bytes: int, seconds: float, *, fresh: bool) -> float:
    """Write for ``seconds`` into a file that was opened shortly before; return bytes per second.

    In place: a file of fixed size again and again, so that allocating pages does not hide the watcher's
    cost. Fresh: appended, as a save writes; cut back to nothing at a limit that is rarely reached.
    """
    path = os.path.join(directory, name)
    block = memoryview(BLOCK)[:block_bytes]
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    limit = FRESH_LIMIT_BYTES if fresh else REWRITTEN_BYTES
    written = _write_for(fd, block, limit, WARM_SECONDS, fresh=fresh)
    started = time.perf_counter()
    written = _write_for(fd, block, limit, seconds, fresh=fresh)
    elapsed = time.perf_counter() - started
    os.close(fd)
    os.unlink(path)
    return written / elapsed


def _write_for(fd: int, block: memoryview, limit: int, seconds: float, *, fresh: bool) -> int:
    written, ends = 0, time.perf_counter() + seconds
    per_look = max(1, (1 << 20) // len(block))
    position = os.lseek(fd, 0, os.SEEK_CUR)
    while time.perf_counter() < ends:
        if position >= limit:
            os.lseek(fd, 0, os.SEEK_SET)
            position = 0
            if fresh:
                os.ftruncate(fd, 0)
        for _ in range(per_look):
            os.write(fd, block)
        written += per_look * len(block)
        position += per_look * len(block)
    return written


def serve_throughput() -> None:
    """Answer each line on standard input with a throughput, until it ends."""
    for i, line in enumerate(sys.stdin):
        task = json.loads(line)
        print(throughput(name=f"model-{i}.pt", **task), flush=True)


def shards(base: str, saves: int, files: int, file_bytes: int) -> None:
    """Write Trainer-like saves of ``files`` round robin in 64 KiB blocks; keep only the last save."""
    block = memoryview(BLOCK)[: 64 << 10]
    for step in range(1, saves + 1):
        directory = os.path.join(base, f"checkpoint-{step}")
        os.makedirs(directory)
        with ExitStack() as stack:
            names = [os.path.join(directory, f"optimizer-{i}.pt") for i in range(files)]
            streams = [stack.enter_context(open(name, "wb", buffering=0)) for name in names]
            for _ in range(file_bytes // len(block)):
                for stream in streams:
                    stream.write(block)
        _put(os.path.join(directory, "trainer_state.json"), b"{}")
        shutil.rmtree(os.path.join(base, f"checkpoint-{step - 1}"), ignore_errors=True)


def steady(bytes_per_second: float, directories: list[str]) -> None:
    """Keep one save open in each directory, 64 MiB a file, until killed."""
    for step in count(1):
        paths = [os.path.join(directory, f"step-{step}.pt") for directory in directories]
        with ExitStack() as stack:
            streams = [stack.enter_context(open(path, "wb", buffering=0)) for path in paths]
            for _ in range(64):
                for stream in streams:
                    stream.write(BLOCK)
                    time.sleep(len(BLOCK) / bytes_per_second)
        for directory in directories:
            if step > 2:
                os.unlink(os.path.join(directory, f"step-{step - 2}.pt"))


# --- random saves with a log


@dataclass(slots=True)
class Pen:
    """Write files at a random pace, and note when the first was opened, and the true bytes."""

    pace: random.Random
    opened: float = math.nan
    bytes: int = 0
    files: int = 0

    def put(self, path: str, size_bytes: int) -> None:
        rate = math.exp(self.pace.uniform(math.log(40e6), math.log(800e6)))
        if not self.files:
            self.opened = time.time()
        with open(path, "wb", buffering=0) as stream:
            for start in range(0, size_bytes, len(BLOCK)):
                step = min(len(BLOCK), size_bytes - start)
                stream.write(memoryview(BLOCK)[:step])
                time.sleep(step / rate)
        self.bytes += size_bytes
        self.files += 1


def _put(path: str, content: bytes) -> None:
    with open(path, "wb") as stream:
        stream.write(content)


def _parts(dice: random.Random, total: int, most: int) -> Iterator[int]:
    for _ in range(dice.randint(1, most) - 1):
        part = dice.randint(1, max(1, total // 2))
        total -= part
        yield part
    yield total


def _hf(pen: Pen, base: str, step: int, total: int) -> None:
    directory = os.path.join(base, f"checkpoint-{step}")
    os.makedirs(directory)
    pen.put(os.path.join(directory, "config.json"), 700)
    pen.put(os.path.join(directory, "model.safetensors"), total // 3)
    pen.put(os.path.join(directory, "optimizer.pt"), total - total // 3)
    pen.put(os.path.join(directory, "scheduler.pt"), 1064)
    pen.put(os.path.join(directory, "rng_state.pth"), 14244)
    pen.put(os.path.join(directory, "trainer_state.json"), 2048 + step)


def _dcp(pen: Pen, base: str, step: int, total: int) -> None:
    directory = os.path.join(base, f"step-{step}")
    os.makedirs(directory)
    for rank, part in enumerate(_parts(pen.pace, total, 4)):
        pen.put(os.path.join(directory, f"__{rank}_0.distcp"), part)
    pen.put(os.path.join(directory, ".metadata.tmp"), 9000 + step)
    os.rename(os.path.join(directory, ".metadata.tmp"), os.path.join(directory, ".metadata"))


def _staged(pen: Pen, base: str, step: int, total: int) -> None:
    directory = os.path.join(base, f"step_{step}")
    os.makedirs(directory + ".tmp")
    for i, part in enumerate(_parts(pen.pace, total, 3)):
        pen.put(os.path.join(directory + ".tmp", f"weights-{i}.bin"), part)
    os.rename(directory + ".tmp", directory)


def _single(pen: Pen, base: str, step: int, total: int) -> None:
    pen.put(os.path.join(base, f"model-step{step}.pt"), total)


LAYOUTS: dict[str, Callable[[Pen, str, int, int], None]] = {
    "hf": _hf, "dcp": _dcp, "staged": _staged, "single": _single,
}  # fmt: skip
NAMES = {"hf": "checkpoint-{}", "dcp": "step-{}", "staged": "step_{}", "single": "model-step{}.pt"}
KEEP = 3


def random_saves(base: str, saves: int, seed: int) -> None:
    """Write random saves back to back, each layout below its own directory; print the true log."""
    dice = random.Random(seed)
    written: dict[str, list[int]] = {layout: [] for layout in LAYOUTS}
    for step in range(1, saves + 1):
        layout = dice.choice(list(LAYOUTS))
        total = int(math.exp(dice.uniform(math.log(1.1e6), math.log(64e6))))
        pen = Pen(dice)
        LAYOUTS[layout](pen, os.path.join(base, layout), step, total)
        ended = time.time()
        line = {"layout": layout, "step": step, "start": pen.opened, "end": ended}
        print(json.dumps({**line, "bytes": pen.bytes, "files": pen.files}), flush=True)
        written[layout].append(step)
        if len(written[layout]) > KEEP:
            _remove(os.path.join(base, layout, NAMES[layout].format(written[layout].pop(0))))
        time.sleep(dice.uniform(0, 0.1))


def _remove(path: str) -> None:
    shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)


def main(kind: str, arguments: list[str]) -> None:
    if kind == "throughput":
        serve_throughput()
    elif kind == "shards":
        shards(arguments[0], *map(int, arguments[1:]))
    elif kind == "steady":
        steady(float(arguments[0]), arguments[1:])
    elif kind == "random":
        random_saves(arguments[0], int(arguments[1]), int(arguments[2]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
