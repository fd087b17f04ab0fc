"""Random training histories that know their own truth: actions on files, and the saves they amount to."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

QUIET = 10.0
GIVEN_UP = 600.0
MIB = 1 << 20


@dataclass(frozen=True)
class Truth:
    """A save as its writer knows it."""

    job: str
    step: int | None
    result: str
    bytes: int
    files: int
    start: float
    end: float
    duration_known: bool = True


@dataclass(order=True)
class Action:
    """One thing that happens to a file; ``order`` keeps actions of one moment as written."""

    t: float
    order: int
    kind: str = field(compare=False)
    name: str = field(compare=False, default="")
    to: str | None = field(compare=False, default=None)
    size: int | None = field(compare=False, default=None)
    is_dir: bool = field(compare=False, default=False)


class Writer:
    """Writes one save and notes what it did."""

    def __init__(self, job: str, step: int, t: float, seed: int, rng: random.Random) -> None:
        self.job = job
        self.step = step
        self.t = t
        self.seed = seed
        self.rng = rng
        self.actions: list[Action] = []
        self.sizes: dict[str, int] = {}
        self.start: float | None = None
        self.end = t
        self.killed = False

    def act(self, kind: str, name: str, **more: Any) -> None:
        self.actions.append(Action(self.t, len(self.actions), kind, f"{self.job}/{name}", **more))

    def wait(self, low: float, high: float) -> None:
        self.t += self.rng.uniform(low, high)

    def file(self, name: str, size: int, *, overwrite: bool = False, long_pause: bool = False) -> None:
        """Write one file: opened, a few looks at how far it is, closed."""
        if self.killed:
            return
        self.start = self.t if self.start is None else self.start
        self.act("open" if overwrite else "create", name, size=0)
        for part in range(self.rng.randrange(3)):
            self.wait(0.05, 40.0 if long_pause else 0.5)
            self.act("progress", name, size=size * (part + 1) // 4)
        self.wait(0.01, 2.0)
        self.act("close_write", name, size=size)
        self.sizes[name] = size
        self.end = self.t

    def kill_while_writing(self, name: str, size: int) -> None:
        self.start = self.t if self.start is None else self.start
        self.act("create", name, size=0)
        self.wait(0.5, 2.0)
        self.act("close_write", name, size=size)
        self.sizes[name] = size
        self.end = self.t
        self.killed = True

    def rename(self, name: str, to: str, *, is_dir: bool = False) -> None:
        if self.killed:
            return
        to_job = f"{self.job}/{to}"
        self.act("moved", name, to=to_job, is_dir=is_dir)
        if is_dir:
            self.sizes = {to + path[len(name) :]: size for path, size in self.sizes.items()}
        else:
            self.sizes[to] = self.sizes.pop(name)
        self.end = self.t

    def pointer(self, name: str) -> None:
        if self.killed:
            return
        self.act("create", name, size=0)
        self.wait(0.001, 0.01)
        self.act("close_write", name, size=12)
        self.end = self.t

    def truth(self, result: str = "complete", *, step: int | None = -1, duration_known: bool = True) -> Truth:
        assert self.start is not None
        number = self.step if step == -1 else step
        total = sum(self.sizes.values())
        return Truth(self.job, number, result, total, len(self.sizes), self.start, self.end, duration_known)


def _big(w: Writer, part: object = 0) -> int:
    """Size of one part of the model: the same in every save of a run, give or take a little."""
    return random.Random(f"{w.seed} {part}").randrange(MIB, 64 * MIB) + w.rng.randrange(1000)


def hf_trainer(w: Writer, ending: str) -> Truth:
    base = f"checkpoint-{w.step}"
    w.file(f"{base}/config.json", 700)
    w.wait(0, 3)
    if w.rng.random() < 0.5:
        w.file(f"{base}/.tmpAbCdE1", _big(w, "model"))
        w.rename(f"{base}/.tmpAbCdE1", f"{base}/model.safetensors")
    else:
        w.file(f"{base}/model.safetensors", _big(w, "model"), long_pause=True)
    w.file(f"{base}/training_args.bin", 5_000)
    if ending == "killed":
        w.kill_while_writing(f"{base}/optimizer.pt", _big(w))
        return w.truth("incomplete")
    w.wait(0, 70)  # a long pause with nothing open: the name holds the save together
    w.file(f"{base}/optimizer.pt", _big(w, "optimizer"), long_pause=True)
    w.wait(0, 70)
    w.file(f"{base}/trainer_state.json", 1_000)
    return w.truth()


def deepspeed(w: Writer, ending: str) -> Truth:
    base = f"global_step{w.step}"
    ranks = w.rng.randrange(1, 5)
    w.file(f"{base}/mp_rank_00_model_states.pt", _big(w))
    for rank in range(ranks):
        w.wait(0, 60)
        if ending == "killed" and rank == ranks - 1:
            w.kill_while_writing(f"{base}/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", _big(w, rank))
            return w.truth("incomplete")
        w.file(f"{base}/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", _big(w, rank))
    w.pointer("latest")
    return w.truth()


def sharded(w: Writer, ending: str) -> Truth:
    base = f"step-{w.step}"
    shards = w.rng.randrange(1, 6)
    for shard in range(shards):
        if shard:
            w.wait(0, 90)
        if ending == "killed" and shard == shards - 1:
            w.kill_while_writing(f"{base}/__{shard}_0.distcp", _big(w, shard))
            return w.truth("incomplete")
        w.file(f"{base}/__{shard}_0.distcp", _big(w, shard), long_pause=True)
    w.wait(0, 60)
    w.file(f"{base}/.metadata.tmp", 5_000)
    w.rename(f"{base}/.metadata.tmp", f"{base}/.metadata")
    return w.truth()


def megatron(w: Writer, ending: str) -> Truth:
    base = f"iter_{w.step:07d}"
    for rank in range(w.rng.randrange(1, 4)):
        w.file(f"{base}/__{rank}_0.distcp", _big(w, rank))
        w.wait(0, 30)
    if ending == "killed":
        w.kill_while_writing(f"{base}/__9_0.distcp", _big(w))
        return w.truth("incomplete")
    w.file(f"{base}/.metadata.tmp", 8_000)
    w.rename(f"{base}/.metadata.tmp", f"{base}/.metadata")
    w.file(f"{base}/metadata.json", 63)
    w.wait(0, 30)
    w.pointer("latest_checkpointed_iteration.txt")
    return w.truth()


def orbax(w: Writer, ending: str) -> Truth:
    staged = f"{w.step}.orbax-checkpoint-tmp"
    w.file(f"{staged}/_CHECKPOINT_METADATA", 165)
    for part in range(w.rng.randrange(1, 6)):
        w.wait(0, 40)
        w.file(f"{staged}/state/d/{part:032x}", _big(w, part))
    if ending == "killed":
        w.kill_while_writing(f"{staged}/state/d/last", _big(w))
        return w.truth("incomplete")
    w.wait(0, 30)
    w.rename(staged, str(w.step), is_dir=True)
    return w.truth()


def staged_directory(w: Writer, ending: str) -> Truth:
    staged = f"tmp-checkpoint-{w.step}"
    for part in range(w.rng.randrange(1, 5)):
        w.wait(0, 40)
        w.file(f"{staged}/part{part}.bin", _big(w, part))
    if ending == "killed":
        return w.truth("incomplete")
    w.wait(0, 30)
    w.rename(staged, f"checkpoint-{w.step}", is_dir=True)
    return w.truth()


def one_file(w: Writer, ending: str) -> Truth:
    name = f"model_step{w.step}.pt"
    w.file(name, _big(w), long_pause=True)
    return w.truth()


def staged_file(w: Writer, ending: str) -> Truth:
    name = f"ck-{w.step}.pt"
    w.file(f"{name}.tmp", _big(w), long_pause=True)
    w.wait(0, 0.5)
    if ending == "killed":
        w.act("deleted", f"{name}.tmp")
        return w.truth("aborted")
    w.rename(f"{name}.tmp", name)
    return w.truth()


def rewritten_name(w: Writer, ending: str) -> Truth:
    w.file("model.pt", _big(w), overwrite=True)
    return w.truth(step=None)


def moved_in(w: Writer, ending: str) -> Truth:
    name = f"epoch=0-step={w.step}.ckpt"
    size = _big(w)
    w.start = w.end = w.t
    w.act("arrived", name, size=size)
    w.sizes[name] = size
    return w.truth(duration_known=False)


def numbered_directory(w: Writer, ending: str) -> Truth:
    base = f"ckpt-{w.step}"
    w.act("create", base, is_dir=True)
    for part in range(1 + w.seed % 29):  # as many in every save of a run
        w.file(f"{base}/sub{part % 3}/part-{part}.bin", _big(w, part))
        w.wait(0, 5)
    return w.truth()


LAYOUTS: dict[str, Callable[[Writer, str], Truth]] = {
    f.__name__: f
    for f in (
        hf_trainer, deepspeed, sharded, megatron, orbax, staged_directory, one_file, staged_file,
        rewritten_name, moved_in, numbered_directory,
    )
}  # fmt: skip


@dataclass
class History:
    """Actions in time order and the saves that they amount to."""

    actions: list[Action]
    truths: list[Truth]
    end: float

    def __repr__(self) -> str:
        told = "\n".join(
            f"  {a.t:9.3f} {a.kind:12} {a.name}{' -> ' + a.to if a.to else ''} {a.size or ''}"
            for a in self.actions
        )
        return f"History(truths={self.truths},\n{told}\n)"


@dataclass
class _Job:
    layout: str
    saves: int
    gap: float
    first: float
    retain: int
    endings: list[str]
    seed: int


def _write(job: _Job, name: str) -> Iterator[tuple[list[Action], Truth]]:
    rng = random.Random(job.seed)
    t, kept = job.first, []
    for index in range(job.saves):
        writer = Writer(name, 10 * (index + 1), t, job.seed, rng)
        # Saves without `latest` are broken only where others are seen to have it: it can be turned off.
        always_fine = job.layout == "deepspeed" and index == 0
        ending = "fine" if always_fine else job.endings[index % len(job.endings)]
        truth = LAYOUTS[job.layout](writer, ending)
        if truth.result == "complete":
            kept.append(writer)
        after = Writer(name, 0, writer.t + rng.uniform(16, 40), job.seed, rng)
        if len(kept) > job.retain and job.layout not in ("rewritten_name", "staged_file"):
            for path in kept.pop(0).sizes:
                after.act("deleted", path)
        if rng.random() < 0.5:
            after.act("create", "events.out.tfevents.1.host", size=0)
            after.act("close_write", "events.out.tfevents.1.host", size=3 * MIB)
        yield writer.actions + after.actions, truth
        t = writer.t + QUIET + 6 + job.gap


def _history(jobs: list[_Job]) -> History:
    actions: list[Action] = []
    truths: list[Truth] = []
    for number, job in enumerate(jobs):
        for written, truth in _write(job, f"job{number}"):
            actions += written
            truths.append(truth)
    ordered = sorted(enumerate(actions), key=lambda pair: (pair[1].t, pair[0]))
    end = max(action.t for action in actions) + 2 * GIVEN_UP
    return History([action for _, action in ordered], truths, end)


JOBS = st.builds(
    _Job,
    layout=st.sampled_from(sorted(LAYOUTS)),
    saves=st.integers(1, 4),
    gap=st.floats(0, 100),
    first=st.floats(0, 60),
    retain=st.integers(1, 3),
    endings=st.lists(st.sampled_from(["fine", "fine", "fine", "killed"]), min_size=1, max_size=4),
    seed=st.integers(0, 1 << 30),
)
HISTORIES = st.builds(_history, st.lists(JOBS, min_size=1, max_size=4))
