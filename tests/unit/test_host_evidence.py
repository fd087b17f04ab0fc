"""Looks at a host: processes, pressure and traffic as /proc and /sys tell them, and when they are taken."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ckpt_exporter.model import Fact, HostEvidence
from ckpt_exporter.sources.host_evidence import HostEvidenceSource, HostLooks
from ckpt_exporter.sources.pressure import Traffic, read_pressure


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Host:
    """A /proc and a /sys of our own."""

    def __init__(self, root: Path) -> None:
        self.proc, self.sys = str(root / "proc"), str(root / "sys")
        self._root = root
        self.write("proc/sys/kernel/task_delayacct", "0\n")

    def write(self, path: str, text: str) -> None:
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def process(
        self,
        pid: int,
        parent: int,
        *,
        ticks: int = 0,
        state: str = "S",
        io: str | None = "0 0 0",
        blkio: int = 0,
    ) -> None:
        """Tell ``ticks`` of processor time, ``blkio`` of waiting; ``io``: rchar, read_bytes, write_bytes."""
        fields = [state, str(parent), "1", "50", *["0"] * 7, str(ticks), *["0"] * 7, str(pid), *["0"] * 19]
        stat = f"{pid} (a (b)) {' '.join(fields)} {blkio} 0 0\n"
        self.write(f"proc/{pid}/stat", stat)
        self.write(f"proc/{pid}/task/{pid}/stat", stat)
        if io is not None:
            called, read, written = io.split()
            counters = f"rchar: {called}\nwchar: 0\nread_bytes: {read}\nwrite_bytes: {written}\n"
            self.write(f"proc/{pid}/io", counters)

    def pressure(self, path: str, total: int) -> None:
        self.write(path, f"some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\nfull avg10=0.00 total=0\n")

    def network(self, received: int, sent: int) -> None:
        line = f"{received} 1 0 0 0 0 0 0 {sent} 1 0 0 0 0 0 0\n"
        self.write("proc/net/dev", f"Inter-|\n face |\n    lo: {line}  eth0: {line}docker0: {line}")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def looks(host: Host, clock: Clock) -> HostLooks:
    return HostLooks(clock, Traffic(clock, host.proc, host.sys), proc=host.proc, sys=host.sys)


def test_what_a_run_did_between_two_looks(host: Host) -> None:
    """The holder of a GPU (pid 51) used 0.1 s; its worker 0.4 s, read 700 bytes and 900 by calls, wrote 5.

    The worker is in uninterruptible sleep at the second look; a stranger (pid 90) does not count.
    """
    clock = Clock()
    found = looks(host, clock)
    host.process(50, 1)
    host.process(51, 50, ticks=100)
    host.process(52, 51, ticks=200, io="1000 100 20")
    host.process(90, 1, ticks=0, state="D")
    assert found.look((0, 1), {51}) is None
    clock.now += 2.0
    host.process(51, 50, ticks=110)
    host.process(52, 51, ticks=240, io="1900 800 25", state="D")
    host.process(90, 1, ticks=500, io="9999 9999 9999", state="D")
    told = found.look((0, 1), {51})
    assert told == HostEvidence(
        1002.0, 1000.0, (0, 1), processes=3, unread=0, cpu_seconds=0.5, worker_cpu_seconds=0.4, waiting=1,
        worker_waiting=1, runnable=0, read_bytes=700, called_bytes=900, written_bytes=5,
    )  # fmt: skip


def test_counters_that_may_not_be_read_are_unknown(host: Host) -> None:
    """A process that hides its I/O is counted as such, and its bytes are left out, not 0."""
    clock = Clock()
    found = looks(host, clock)
    for _ in range(2):
        host.process(51, 1, ticks=100, io=None, state="R")
        told = found.look((0,), {51})
        clock.now += 1.0
    assert told is not None
    assert (told.processes, told.unread, told.read_bytes, told.written_bytes) == (1, 1, None, None)
    assert (told.cpu_seconds, told.runnable) == (0.0, 0)  # it holds the GPU: that it runs is no worker's work


def test_a_worker_that_wants_a_processor(host: Host) -> None:
    """A worker in state R is runnable, also where it gets no time; a pid used again is another process."""
    clock = Clock()
    found = looks(host, clock)
    for state in ("S", "R"):
        host.process(51, 1)
        host.process(52, 51, state=state)
        told = found.look((0,), {51})
        clock.now += 1.0
    assert told is not None
    assert (told.runnable, told.processes) == (1, 2)
    stat = Path(host.proc, "52", "stat")
    stat.write_text(stat.read_text().replace(" 52 0", " 7777 0"))
    told = found.look((0,), {51})
    assert told is not None
    assert told.processes == 1


def test_waiting_that_the_kernel_counts(host: Host) -> None:
    """Where the kernel counts how long threads wait for I/O, 50 ticks more are half a second."""
    clock = Clock()
    host.write("proc/sys/kernel/task_delayacct", "1\n")
    found = looks(host, clock)
    host.process(51, 1, blkio=100)
    found.look((0,), {51})
    host.process(51, 1, blkio=150)
    clock.now += 1.0
    told = found.look((0,), {51})
    assert told is not None
    assert told.io_wait_seconds == 0.5


def test_without_known_processes_the_host_is_looked_at(host: Host) -> None:
    """Pressure of the whole host in seconds: 0.3 s for I/O of 1 s; what the kernel lacks is unknown."""
    clock = Clock()
    found = looks(host, clock)
    host.pressure("proc/pressure/io", 1_000_000)
    found.look((), ())
    host.pressure("proc/pressure/io", 1_300_000)
    clock.now += 1.0
    told = found.look((), ())
    assert told == HostEvidence(1001.0, 1000.0, (), io_pressure_seconds=0.3, pressure_of="host")


@pytest.mark.parametrize(
    ("cgroup", "of", "seconds"),
    [("0::/kubepods/pod1/a", "run", 7.0), ("0::/", "host", 1.0), ("0::/system.slice", "host", 1.0)],
)
def test_pressure_of_the_runs_own_group(host: Host, cgroup: str, of: str, seconds: float) -> None:
    """A run in a group of its own has that group's pressure, one in a shared group the host's."""
    host.write("proc/51/cgroup", cgroup + "\n")
    for name in ("io", "memory", "cpu"):
        host.pressure(f"proc/pressure/{name}", 1_000_000)
        host.pressure(f"sys/fs/cgroup/kubepods/pod1/a/{name}.pressure", 7_000_000)
        host.pressure(f"sys/fs/cgroup/system.slice/{name}.pressure", 9_000_000)
    found = read_pressure(51, host.proc, host.sys)
    assert found is not None
    assert (found.of, found.io, found.memory, found.cpu) == (of, seconds, seconds, seconds)
    assert read_pressure(51, host.proc + "/none", host.sys) is None


def test_traffic_of_real_interfaces(host: Host) -> None:
    """Ethernet with a device and InfiniBand in words of 4 bytes count, loopback and bridges do not.

    In 20 s of work 4,000 bytes went, 200 a second; a first stretch after 5 s would know no usual rate.
    """
    clock = Clock()
    host.write("sys/class/net/eth0/device/vendor", "x")
    host.write("sys/class/net/docker0/mtu", "1500")
    host.network(1000, 500)
    traffic = Traffic(clock, host.proc, host.sys)
    host.write("sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data", "250\n")
    host.write("sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data", "125\n")
    host.network(3000, 1000)
    assert traffic.read() == 3000 + 1000 + 4 * 375
    clock.now += 5.0
    traffic.still()
    assert traffic.usual is None
    clock.now += 15.0
    traffic.still()
    assert traffic.usual == pytest.approx((5500 - 1500) / 20.0)


def test_looks_are_taken_only_between_waking_and_the_end_of_the_stretch(host: Host) -> None:
    """The source sleeps until it is woken, asks for the GPUs, and sleeps again once all of them work."""
    asked: list[int] = []
    facts: list[Fact] = []
    over = threading.Event()

    def unexplained() -> tuple[int, ...] | None:
        asked.append(1)
        if len(asked) < 3:
            return (0,)
        over.set()
        return None

    clock = Clock()
    source = HostEvidenceSource(
        facts.append,
        clock,
        unexplained=unexplained,
        pids_by_gpu=lambda: {0: (51,)},
        gpus_of=lambda _pids: (0, 1),
        proc=host.proc,
        sys=host.sys,
        look_seconds=0.01,
    )
    host.process(51, 1)
    source.start()
    try:
        assert not over.wait(0.05)
        assert asked == []
        source.wake()
        assert over.wait(5.0)
        assert [fact.gpus for fact in facts if isinstance(fact, HostEvidence)] == [(0, 1)]
        assert not threading.Event().wait(0.05)
        assert len(asked) == 3
    finally:
        source.stop()
