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
from statistics import median

BLOCK = os.urandom(1 << 20)
TURN_BYTES = 4 << 20  # stays in the processor's cache, so that memory's noise does not hide the cost
NOTICED_SECONDS = 0.03  # by then a watcher has taken in that a file is being written
Took = tuple[float, float]  # seconds of the clock, seconds of this thread's processor time


def turns(
    places: dict[str, str], name: str, block_bytes: int, repeats: int, *, fresh: bool
) -> dict[str, Took]:
    """Write to one new file in each place, by two names, in turns; return what a turn took, by name (median).

    ``here`` is the directory that is watched, ``beside`` the one that is not: two names of one file, so that
    both write to the same pages. Each repeat gives every name two turns, the second in the opposite order.
    """
    block = memoryview(BLOCK)[:block_bytes]
    opened: dict[str, int] = {}
    for place, base in places.items():
        here, beside = os.path.join(base, "here", name), os.path.join(base, "beside", name)
        opened[place] = os.open(here, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.link(here, beside)
        opened[f"{place} beside"] = os.open(beside, os.O_WRONLY)
        _turn(opened[place], block, fresh=False)
    time.sleep(NOTICED_SECONDS)
    taken: dict[str, list[Took]] = {label: [] for label in opened}
    for _ in range(repeats):
        order = random.sample(list(opened), len(opened))
        for label in (*order, *reversed(order)):
            taken[label].append(_turn(opened[label], block, fresh=fresh))
    for label, fd in opened.items():
        os.close(fd)
        place, _, beside = label.partition(" ")
        os.unlink(os.path.join(places[place], beside or "here", name))
    return {label: (median(w for w, _ in took), median(c for _, c in took)) for label, took in taken.items()}


def _turn(fd: int, block: memoryview, *, fresh: bool) -> Took:
    os.lseek(fd, 0, os.SEEK_SET)
    if fresh:
        os.ftruncate(fd, 0)
    started, used = time.perf_counter(), time.thread_time()
    for _ in range(TURN_BYTES // len(block)):
        os.write(fd, block)
    return time.perf_counter() - started, time.thread_time() - used


def serve_turns() -> None:
    """Answer each line on standard input with what one round took, until it ends."""
    for line in sys.stdin:
        print(json.dumps(turns(**json.loads(line))), flush=True)


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
    if kind == "turns":
        serve_turns()
    elif kind == "shards":
        shards(arguments[0], *map(int, arguments[1:]))
    elif kind == "steady":
        steady(float(arguments[0]), arguments[1:])
    elif kind == "random":
        random_saves(arguments[0], int(arguments[1]), int(arguments[2]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
