"""A file server in memory with a clock of its own, and a node that looks at it while its GPUs are read.

What other hosts do is a script of actions at true times (seconds on the node's monotonic clock); the server
dates them by its clock. Nothing sleeps: waiting moves the one simulated clock on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from ckpt_exporter.ledger import TICK_SECONDS, Ledger
from ckpt_exporter.model import Bubble, DetectSettings, DirectorySettings, Fact, Save, Stall
from ckpt_exporter.sources.freshstat import FileServer, FreshStat, Name
from ckpt_exporter.sources.looker import Budget, Looker
from tests.gpu_profiles import Profile, Reader, gpu_set, ticks

UNIX = 1_764_470_400.0
ROOT = "/data/d"
Action = tuple[float, Callable[[], None]]


@dataclass
class _Inode:
    number: int
    is_dir: bool
    size: int = 0
    modified_ns: int = 0
    changed_ns: int = 0
    born_ns: int = 0


class Server(FileServer):
    """Names and times; ``skew`` seconds is its clock ahead of the node's. ``hangs``: every call fails."""

    def __init__(self, *, skew: float = 0.0, births: bool = False) -> None:
        self.now = 0.0
        self.skew = skew
        self.hangs = False
        self._births = births
        self._numbers = count(100)
        self._inodes: dict[str, _Inode] = {}
        self.asked = 0
        self.mkdir(ROOT)

    def _time(self) -> int:
        return int((UNIX + self.now + self.skew) * 1e9)

    def _touch_parent(self, path: str) -> None:
        parent = self._inodes.get(path.rpartition("/")[0])
        if parent is not None:
            parent.modified_ns = parent.changed_ns = self._time()

    # --- what hosts do ----------------------------------------------------------------------------------

    def mkdir(self, path: str) -> None:
        now = self._time()
        self._inodes[path] = _Inode(next(self._numbers), True, 4096, now, now, now)
        self._touch_parent(path)

    def write(self, path: str, size: int) -> None:
        """Write a file up to a size, making it if it is not there."""
        now = self._time()
        inode = self._inodes.get(path)
        if inode is None:
            inode = self._inodes[path] = _Inode(next(self._numbers), False, born_ns=now)
            self._touch_parent(path)
        inode.size, inode.modified_ns, inode.changed_ns = size, now, now

    def rename(self, path: str, to: str) -> None:
        for old in [name for name in self._inodes if name == to or name.startswith(to + "/")]:
            del self._inodes[old]
        for old in [name for name in self._inodes if name == path or name.startswith(path + "/")]:
            self._inodes[to + old[len(path) :]] = self._inodes.pop(old)
        self._inodes[to].changed_ns = self._time()
        self._touch_parent(path)
        self._touch_parent(to)

    def remove(self, path: str) -> None:
        for old in [name for name in self._inodes if name == path or name.startswith(path + "/")]:
            del self._inodes[old]
        self._touch_parent(path)

    # --- what a look asks -------------------------------------------------------------------------------

    def _get(self, path: str) -> _Inode:
        self.asked += 1
        if self.hangs:
            raise OSError(5, "no answer", path)
        if path not in self._inodes:
            raise FileNotFoundError(2, "gone", path)
        return self._inodes[path]

    def stat(self, path: str, *, follow: bool = False) -> FreshStat:
        inode = self._get(path)
        return FreshStat(
            inode.is_dir, not inode.is_dir, 43, inode.number, inode.size, inode.modified_ns, inode.changed_ns,
            inode.born_ns if self._births else None,
        )  # fmt: skip

    def names(self, root: str, path: str) -> Iterator[Name]:
        self._get(path)
        for other, inode in list(self._inodes.items()):
            parent, _, name = other.rpartition("/")
            if parent == path:
                yield Name(name, inode.number, inode.is_dir, False)


class _NoWait:
    """Stands for the event that a worker waits on: waiting moves the clock on."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def wait(self, seconds: float) -> bool:
        self._node.pass_until(self._node.server.now + seconds)
        return False

    def is_set(self) -> bool:
        return False


@dataclass
class Node:
    """One host: what it is told of saves, bubbles and stalls."""

    server: Server
    actions: list[Action]
    profile: Profile | None = None
    local: list[Fact] = field(default_factory=list)
    interval: float = 5.0
    calls_per_second: float = 20.0
    settings: DetectSettings = field(default_factory=DetectSettings)
    saves: list[Save] = field(default_factory=list)
    remote: list[Save] = field(default_factory=list)
    bubbles: list[Bubble] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    told_at: list[float] = field(default_factory=list)  # when each bubble was, to a look
    stalls: list[Stall] = field(default_factory=list)

    def __post_init__(self) -> None:
        directory = DirectorySettings("d", ROOT, elsewhere="on")
        self.ledger = Ledger(
            (directory,), self.settings, unix_minus_t=UNIX,
            on_fact=self.facts.append,
            on_save=self.saves.append, on_remote_save=self.remote.append, on_bubble=self._cost,
        )  # fmt: skip
        self._queue: list[tuple[float, int, Fact]] = []
        self._order = count()
        self._todo = sorted(self.actions, key=lambda action: action[0])
        self.budget = Budget(self.calls_per_second, lambda: self.server.now, _NoWait(self))  # type: ignore[arg-type]
        self.looker = Looker(
            directory, self._queue_fact, self.budget, server=self.server,
            clock=lambda: self.server.now, wall=lambda: UNIX + self.server.now,
        )  # fmt: skip

    def _cost(self, cost: Bubble | Stall) -> None:
        if isinstance(cost, Bubble):
            self.bubbles.append(cost)
            self.told_at.append(self.server.now)
        else:
            self.stalls.append(cost)

    def _queue_fact(self, fact: Fact) -> None:
        heappush(self._queue, (fact.t, next(self._order), fact))

    def pass_until(self, t: float) -> None:
        """Let the other hosts act until a moment."""
        while self._todo and self._todo[0][0] <= t:
            self.server.now, act = max(self.server.now, self._todo[0][0]), self._todo.pop(0)[1]
            act()
        self.server.now = max(self.server.now, t)

    def run(self, until: float) -> Node:
        """Let everything happen until a moment, with a round of looks each interval; then stop."""
        for fact in (*self._readings(), *self.local):
            self._queue_fact(fact)
        start = 0.37  # in step with nothing
        while start < until:
            self.pass_until(start)
            self.looker.round()
            start = max(start + self.interval, self.server.now + 0.1)
            self._feed(min(start, until))
        self._feed(until)
        self.ledger.finish(until)
        return self

    def _feed(self, until: float) -> None:
        while self._queue and self._queue[0][0] < until:
            self.ledger.feed(heappop(self._queue)[2])
        self.ledger.tick(until + TICK_SECONDS)

    def _readings(self) -> Iterable[Fact]:
        if self.profile is None:
            return
        rng = random.Random(self.profile.seed)
        readers = [Reader(self.profile, gpu, rng) for gpu in range(self.profile.gpus)]
        yield gpu_set(self.profile)
        yield from self.profile.writers
        for t in ticks(self.profile, rng):
            for reader in readers:
                yield reader.read(t)

    @property
    def gpu_seconds(self) -> list[float]:
        """The bubble counter of each GPU."""
        return [status.bubble_seconds.get("d", 0.0) for status in self.ledger.gpu_statuses(1e9)]

    def stalled(self, cause: str) -> float:
        """GPU-seconds of stalls of one cause."""
        return sum(status.stall_seconds.get(cause, 0.0) for status in self.ledger.gpu_statuses(1e9))


def checkpoint(
    server: Server,
    name: str,
    begin: float,
    end: float,
    *,
    files: int = 3,
    staged: bool = False,
    size: int = 1 << 30,
) -> list[Action]:
    """Write a checkpoint of the transformers trainer: its files grow together, its state file commits."""
    final = f"{ROOT}/{name}"
    path = f"{ROOT}/tmp-{name}" if staged else final
    actions: list[Action] = [(begin, lambda: server.mkdir(path))]
    steps = max(2, int((end - begin) / 0.5))
    for i in range(files):
        file = f"{path}/model-{i:05}-of-{files:05}.safetensors"
        for step in range(steps):
            t = begin + 0.01 + (end - begin - 0.05) * step / (steps - 1)
            so_far = size * (step + 1) // steps
            actions.append((t, lambda file=file, so_far=so_far: server.write(file, so_far)))  # type: ignore[misc]
    actions.append((end - 0.02, lambda: server.write(f"{path}/trainer_state.json", 2000)))
    if staged:
        actions.append((end, lambda: server.rename(path, final)))
    return actions
