"""Nodes and the jobs on them: exporters in namespaces of their own, and trainings whose cost is known."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ckpt_exporter.sources.simulated import TrainingState, write_training_state
from tests.cluster.network import PORT, address, namespace, view
from tests.integration.daemon import wait_until

GPUS = 8
ROOT = Path(__file__).resolve().parents[2]
STAGING_SECONDS = 0.6
AFTER_SECONDS = 0.4
# A dip is judged a moment after it is over.
JUDGING_SECONDS = 12.0


@dataclass
class Node:
    """One node: its files, its view of the shared file system and its exporter."""

    number: int
    place: Path
    netns: str
    directory: str
    skew_seconds: int = 0
    process: subprocess.Popen[bytes] | None = None
    cpu_seconds: float = 0.0

    @property
    def target(self) -> str:
        """Where Prometheus finds the exporter."""
        return f"{address(self.number)}:{PORT}"

    @property
    def base(self) -> str:
        """The job's directory as this node sees it."""
        return str(self.place / "mnt" / self.directory)

    def tell(self, state: TrainingState) -> None:
        """Let the GPUs do something else."""
        write_training_state(str(self.place / "state"), state)

    def start(self) -> None:
        """Start the exporter."""
        told = {
            "node": self.number,
            "place": str(self.place),
            "directories": {self.directory: self.base},
            "address": self.target,
            "skew_seconds": self.skew_seconds,
        }
        environment = {**os.environ, "NODE_NAME": f"node{self.number:02d}"}
        command = ["nsenter", f"--net={self.netns}", sys.executable, "-m", "tests.cluster.exporter"]
        with open(self.place / "log", "ab") as log:
            # A session of its own, as a service has: the kernel then shares the cores out fairly.
            self.process = subprocess.Popen(
                [*command, json.dumps(told)],
                cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def wait_until_up(self) -> None:
        """Wait until the exporter answers."""
        wait_until(self._answers, 120, what=f"exporter of node {self.number}")

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{self.target}/-/ready", timeout=5):
            return True
        return False

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End the exporter, kindly or not."""
        process, self.process = self.process, None
        if process is None:
            return
        self.cpu_seconds += cpu_seconds(process.pid)
        process.send_signal(number)
        process.wait(timeout=30)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process so far."""
    with open(f"/proc/{pid}/stat", encoding="utf-8") as stream:
        fields = stream.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """Return the memory that a process has."""
    with open(f"/proc/{pid}/statm", encoding="utf-8") as stream:
        return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@dataclass
class Job:
    """A training on some nodes; the rank on the first of them writes, and all GPUs wait for it."""

    name: str
    run_id: str
    nodes: Sequence[Node]
    size_bytes: int
    write_seconds: float
    train_seconds: float
    saves: int = 0
    bytes: int = 0
    lost_gpu_seconds: float = 0.0
    lost_by_save: list[float] = field(default_factory=list)
    # Held while a save runs and is judged: whoever takes it finds the job training.
    saving: threading.Lock = field(default_factory=threading.Lock)
    midway: threading.Event = field(default_factory=threading.Event)
    ranks: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self) -> None:
        """Start a rank on each node; they hold the GPUs."""
        environment = {**os.environ, "SLURM_JOB_ID": self.run_id, "SLURM_JOB_NAME": self.name}
        for node in self.nodes:
            rank = subprocess.Popen(
                [sys.executable, "-S", str(ROOT / "tests" / "cluster" / "rank.py")],
                env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                text=True, start_new_session=True,
            )  # fmt: skip
            self.ranks.append(rank)
            (node.place / "pids").write_text(str(rank.pid), encoding="utf-8")
            node.tell("training")

    def save(self) -> None:
        """Save once; what that costs is known from when the GPUs were told to stop and to go on."""
        writer, rank = self.nodes[0], self.ranks[0]
        assert rank.stdin is not None
        assert rank.stdout is not None
        with self.saving:
            told = [
                (node, self._tell(node, "saving" if node is writer else "waiting")) for node in self.nodes
            ]
            time.sleep(STAGING_SECONDS)
            self.midway.set()
            step = 100 * (self.saves + 1)
            rank.stdin.write(f"{writer.base} {self.size_bytes} {self.write_seconds} {step}\n")
            rank.stdin.flush()
            self.bytes += int(rank.stdout.readline())
            self.saves += 1
            time.sleep(AFTER_SECONDS)
            self.midway.clear()
            self.lost_by_save.append(sum(self._tell(node, "training") - t for node, t in told) * GPUS)
            self.lost_gpu_seconds += self.lost_by_save[-1]
            time.sleep(JUDGING_SECONDS)

    @staticmethod
    def _tell(node: Node, state: TrainingState) -> float:
        before = time.monotonic()
        node.tell(state)
        return (before + time.monotonic()) / 2

    def run(self, saves: int, first_seconds: float) -> None:
        """Train and save so many times, then train on."""
        time.sleep(first_seconds)
        for _ in range(saves):
            self.save()
            time.sleep(self.train_seconds)

    def stop(self) -> None:
        """End the ranks."""
        for rank in self.ranks:
            rank.kill()
            rank.wait()
            for stream in (rank.stdin, rank.stdout):
                if stream is not None:
                    stream.close()


@contextlib.contextmanager
def node_at(number: int, place: Path, backing: Path, directory: str, skew_seconds: int = 0) -> Iterator[Node]:
    """Make a node whose exporter is not yet started; end all of it afterwards."""
    place.mkdir(parents=True)
    with namespace(number) as netns, view(backing, place / "mnt"):
        node = Node(number, place, netns, directory, skew_seconds)
        node.tell("stopped")
        try:
            yield node
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired):
                node.stop(signal.SIGKILL)
