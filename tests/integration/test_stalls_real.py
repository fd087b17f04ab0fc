"""Why GPUs stand still, told from real processes that read, burn processor time, or sleep."""

from __future__ import annotations

import contextlib
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckpt_exporter.ledger import Ledger
from ckpt_exporter.model import (
    Bubble,
    DetectSettings,
    DirectorySettings,
    Fact,
    GpuInfo,
    GpuSample,
    GpuSet,
    HostEvidence,
    Stall,
)
from ckpt_exporter.sources.host_evidence import HostEvidenceSource
from ckpt_exporter.sources.ownership import GpuOwners
from ckpt_exporter.sources.procfs import read_reads
from ckpt_exporter.sources.runs import identify_run

WORK = {"util": 0.92, "mem_util": 0.6, "power_w": 549.0}
IDLE = {"util": 0.0, "mem_util": 0.0, "power_w": 150.0}
LOOKS = 5

# What a data worker does once it is up: read past the page cache, prepare, or wait for something else.
WORKERS = {
    "reads": """
import mmap, os, sys, time
print(flush=True)
fd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
area = mmap.mmap(-1, 1 << 20)
while True:
    os.lseek(fd, 0, os.SEEK_SET)
    while os.readv(fd, [area]):
        time.sleep(0.005)
""",
    "burns": "print(flush=True)\nwhile True: pass",
    "sleeps": "import time; print(flush=True); time.sleep(600)",
}
# A rank holds a GPU and waits for its worker.
RANK = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]], check=False)"


@contextlib.contextmanager
def rank(kind: str, data: Path) -> Iterator[int]:
    """Run a rank and its worker in a session of their own."""
    command = [sys.executable, "-c", RANK, WORKERS[kind], str(data)]
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
    finally:
        os.killpg(process.pid, 9)
        process.communicate()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Lay 16 MiB on a disk, for reads that bypass the page cache."""
    path = tmp_path / "data.bin"
    path.write_bytes(bytes(16 << 20))
    before = read_reads(os.getpid(), "/proc")
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        os.readv(fd, [mmap.mmap(-1, 1 << 20)])
        os.close(fd)
    if before is None or read_reads(os.getpid(), "/proc")[2] - before[2] < 1 << 20:  # type: ignore[index]
        pytest.skip("temporary files are not read from storage here, or that can't be seen")
    return path


def test_reading_burning_and_sleeping_workers_are_told_apart(data: Path) -> None:
    """Of three runs without kernels, one that reads surely loads data, one that burns may, one asleep not."""
    kinds = list(WORKERS)
    costs: list[Bubble | Stall] = []
    facts: list[Fact] = []
    ledger = Ledger(
        [DirectorySettings("d", "/nowhere")],
        DetectSettings(),
        on_bubble=costs.append,
        on_fact=facts.append,
        on_low=lambda: source.wake(),  # noqa: PLW0108 (there is no source yet)
    )
    with contextlib.ExitStack() as stack:
        pids = {gpu: (stack.enter_context(rank(kind, data)),) for gpu, kind in enumerate(kinds)}
        if any(identify_run(holders).root_pid != holders[0] for holders in pids.values()):
            pytest.skip("what this test starts counts as part of one larger run on this host")
        source = HostEvidenceSource(
            ledger.feed,
            time.monotonic,
            unexplained=lambda: ledger.unexplained(time.monotonic()),
            pids_by_gpu=lambda: pids,
            gpus_of=GpuOwners(lambda: pids, lambda: True).gpus_of,
        )
        source.start()
        stack.callback(source.stop)
        began, ended = stand_still(ledger, len(kinds), facts)
        feed(ledger, len(kinds), ended, ended + 20.0, WORK)
    ledger.tick(ended + 60.0)
    told = {kinds[s.gpu]: (s.cause, s.confidence) for s in costs if isinstance(s, Stall)}
    looks = [fact for fact in facts if isinstance(fact, HostEvidence)]
    assert told == {
        "reads": ("data_loading", "high"),
        "burns": ("data_loading", "medium"),
        "sleeps": ("other", "low"),
    }, looks
    assert min(look.since for look in looks) >= began


def feed(ledger: Ledger, gpus: int, start: float, end: float, shown: dict[str, float]) -> None:
    """Feed two readings a second, without waiting for their time."""
    for i in range(round(2 * (end - start))):
        for gpu in range(gpus):
            ledger.feed(GpuSample(start + i / 2, gpu, f"GPU-{gpu}", power_window_s=0.0, processes=1, **shown))


def stand_still(ledger: Ledger, gpus: int, facts: list[Fact]) -> tuple[float, float]:
    """Let GPUs have worked for a minute, and stand still from now on until all were looked at a few times."""
    began = time.monotonic()
    infos = tuple(GpuInfo(gpu, f"GPU-{gpu}", limit_w=700.0) for gpu in range(gpus))
    ledger.feed(GpuSet(began - 60.0, infos))
    feed(ledger, gpus, began - 60.0, began, WORK)
    t = began
    while sum(isinstance(fact, HostEvidence) for fact in facts) < LOOKS * gpus:
        now = time.monotonic()
        assert now < began + 60.0, "nobody looked"
        if t < now + 1.0:  # readings have no gap, however long this process had to wait
            feed(ledger, gpus, t, t + 0.5, IDLE)
            t += 0.5
        else:
            time.sleep(0.1)
    return began, t
