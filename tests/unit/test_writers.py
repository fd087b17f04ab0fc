"""Who writes: scans of a fake /proc, the run that processes belong to, and the bounded cost of scanning."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from ckpt_exporter.model import Writers
from ckpt_exporter.sources.procfs import read_process
from ckpt_exporter.sources.writers import (
    WriterScan,
    find_writers,
    identify_run,
    io_written,
    parse_inode,
    write_position,
)

if TYPE_CHECKING:
    from pathlib import Path

KIB = 1024


class FakeProc:
    """A /proc in a directory; descriptors are real links, so that ``stat`` through them works."""

    def __init__(self, base: Path) -> None:
        self.base = base / "proc"
        self.base.mkdir()

    def __str__(self) -> str:
        return str(self.base)

    def process(
        self,
        pid: int,
        *,
        parent: int = 1,
        command: str = "python",
        session: int | None = None,
        terminal: int = 0,
        state: str = "S",
        flags: int = 0x400000,
        started: int = 500,
        cgroup: str = "0::/\n",
        environment: dict[str, str] | None = None,
        io: tuple[int, int] | None = (0, 0),
    ) -> None:
        """Add or replace a process."""
        home = self.base / str(pid)
        (home / "fd").mkdir(parents=True, exist_ok=True)
        (home / "fdinfo").mkdir(exist_ok=True)
        # Fields 4.. of the file: ppid pgrp session tty_nr tpgid flags, 12 more up to field 21, starttime.
        session = session if session is not None else pid
        numbers = [parent, pid, session, terminal, 0, flags, *[0] * 12, started, 0, 0]
        text = f"{pid} ({command}) {state} " + " ".join(str(number) for number in numbers)
        (home / "stat").write_text(text + "\n")
        (home / "cgroup").write_text(cgroup)
        (home / "maps").write_text("")
        if environment is not None:
            (home / "environ").write_bytes(
                b"".join(f"{key}={value}".encode() + b"\0" for key, value in environment.items())
            )
        if io is not None:
            self.io(pid, *io)

    def io(self, pid: int, wchar: int, write_bytes: int) -> None:
        """Set a process's I/O counters."""
        (self.base / str(pid) / "io").write_text(
            f"rchar: 1\nwchar: {wchar}\nsyscr: 1\nsyscw: 1\nread_bytes: 0\n"
            f"write_bytes: {write_bytes}\ncancelled_write_bytes: 0\n"
        )

    def descriptor(
        self, pid: int, fd: int, target: Path | str, *, flags: str = "0100001", pos: int = 0
    ) -> None:
        """Add an open file to a process."""
        (self.base / str(pid) / "fd" / str(fd)).symlink_to(target)
        text = f"pos:\t{pos}\nflags:\t{flags}\nmnt_id:\t27\nino:\t12\n"
        (self.base / str(pid) / "fdinfo" / str(fd)).write_text(text)


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    """Give a /proc with an init process."""
    proc = FakeProc(tmp_path)
    proc.process(1, parent=0, command="systemd", cgroup="0::/init.scope\n")
    return proc


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    """Give a file that is being written."""
    shard = tmp_path / "model.pt"
    shard.write_bytes(b"x")
    return shard


def file_id(path: Path) -> tuple[int, int]:
    """Return st_dev and st_ino."""
    status = path.stat()
    return status.st_dev, status.st_ino


def inode_text(path: Path) -> str:
    """Return major:minor:inode."""
    device, number = file_id(path)
    return f"{os.major(device)}:{os.minor(device)}:{number}"


# --- single reads ---------------------------------------------------------------------------------------


def test_command_with_spaces_and_parentheses(proc: FakeProc) -> None:
    """A command named ``a) S 7 (b`` does not shift the fields behind it."""
    proc.process(40, parent=7, command="a) S 7 (b", session=33, started=777)
    process = read_process(40, str(proc))
    assert process is not None
    assert (process.command, process.parent, process.session, process.started) == ("a) S 7 (b", 7, 33, 777)


@pytest.mark.parametrize(
    ("flags", "expected"), [("0100001", 4096), ("02", 4096), ("0100000", None), ("02100000", None)]
)
def test_write_position_only_of_a_writable_descriptor(
    proc: FakeProc, shard: Path, flags: str, expected: int | None
) -> None:
    """The low two bits of the octal flags tell write-only (1) and read-write (2) from read-only (0)."""
    proc.process(40)
    proc.descriptor(40, 3, shard, flags=flags, pos=4096)
    assert write_position(40, 3, str(proc)) == expected
    assert write_position(40, 9, str(proc)) is None


def test_io_written_leaves_out_what_cannot_be_read(proc: FakeProc) -> None:
    """A process without a readable io file is absent, not zero."""
    proc.process(40, io=(10, 20))
    proc.process(41, io=None)
    assert io_written([40, 41, 42], str(proc)) == {40: (10, 20)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8:1:77", (os.makedev(8, 1), 77)),
        ("0:52:9", (os.makedev(0, 52), 9)),
        ("8:1", None),
        ("", None),
        (None, None),
    ],
)
def test_parse_inode(text: str | None, expected: tuple[int, int] | None) -> None:
    """major:minor:inode becomes what stat says; anything else is unknown."""
    assert parse_inode(text) == expected


# --- the two-stage scan ---------------------------------------------------------------------------------


def test_scan_finds_the_process_that_holds_the_file_for_writing(proc: FakeProc, shard: Path) -> None:
    """Of three that wrote, only the one with a writable descriptor of the file is a writer."""
    for pid in (40, 41, 42):
        proc.process(pid, io=(KIB * KIB, 0))
    proc.descriptor(40, 5, shard, pos=512)
    proc.descriptor(41, 5, shard, flags="0100000")
    proc.descriptor(42, 5, shard.parent)
    found = find_writers([file_id(shard)], [str(shard)], proc=str(proc), previous={})
    assert found.pids == (40,)
    assert [(file.pid, file.fd, file.path, file.position) for file in found.files] == [
        (40, 5, str(shard), 512)
    ]


@pytest.mark.parametrize(
    ("before", "after", "candidate"),
    [
        ((100, 0), (100 + 64 * KIB, 0), False),
        ((100, 0), (101 + 64 * KIB, 0), True),
        ((0, 0), (0, 65 * KIB), True),
        ((10**9, 10**9), (70 * KIB, 0), True),
        ((10**9, 10**9), (10, 10), False),
    ],
)
def test_only_processes_that_wrote_more_than_64_kib_are_looked_at(
    proc: FakeProc, shard: Path, before: tuple[int, int], after: tuple[int, int], candidate: bool
) -> None:
    """Either counter counts; counters that fell are those of a new process with the old pid."""
    proc.process(40, io=after)
    proc.descriptor(40, 5, shard)
    found = find_writers([file_id(shard)], [str(shard)], proc=str(proc), previous={1: (0, 0), 40: before})
    assert found.pids == ((40,) if candidate else ())
    assert found.counters[40] == after


def test_known_writers_are_looked_at_even_if_they_pause(proc: FakeProc, shard: Path) -> None:
    """A writer that is silent between two of its writes still holds the file."""
    proc.process(40, io=(5, 5))
    proc.descriptor(40, 5, shard)
    arguments = ([file_id(shard)], [str(shard)])
    assert find_writers(*arguments, proc=str(proc), previous={40: (5, 5)}).pids == ()
    assert find_writers(*arguments, proc=str(proc), previous={40: (5, 5)}, known=[40]).pids == (40,)
    assert find_writers(*arguments, proc=str(proc), previous={40: (5, 5)}, everyone=True).pids == (40,)


def test_first_scan_of_many_processes_is_a_baseline(proc: FakeProc, shard: Path) -> None:
    """Without earlier counters 65 processes are too many to look at, 64 are not."""
    for pid in range(100, 163):
        proc.process(pid, io=(KIB * KIB, 0))
    proc.descriptor(100, 5, shard)
    arguments = ([file_id(shard)], [str(shard)])
    few = find_writers(*arguments, proc=str(proc), previous=None)
    assert (few.pids, few.inspected) == ((100,), 64)
    proc.process(163, io=(0, 0))
    many = find_writers(*arguments, proc=str(proc), previous=None)
    assert (many.pids, many.inspected, len(many.counters)) == ((), 0, 65)


def test_renamed_file_is_found_by_its_base_name(proc: FakeProc, shard: Path, tmp_path: Path) -> None:
    """Through another mount the same file has another path: the name lets it in, the inode decides."""
    (tmp_path / "elsewhere").mkdir()
    other = tmp_path / "elsewhere" / "model.pt"
    os.link(shard, other)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "model.pt").write_bytes(b"another file of this name")
    proc.process(40, io=(KIB * KIB, 0))
    proc.descriptor(40, 5, other)
    proc.process(41, io=(KIB * KIB, 0))
    proc.descriptor(41, 5, foreign / "model.pt")
    assert find_writers([file_id(shard)], [str(shard)], proc=str(proc), previous={}).pids == (40,)


def test_descriptors_of_other_names_are_not_asked(
    proc: FakeProc, shard: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """stat() through a descriptor can block on a dead mount, so only the save's own names get one."""
    proc.process(40, io=(KIB * KIB, 0))
    proc.descriptor(40, 3, "/mnt/dead/log.txt")
    proc.descriptor(40, 5, shard)
    asked: list[str] = []
    real_stat = os.stat

    def stat(path: str, **options: object) -> os.stat_result:
        asked.append(path)
        return real_stat(path)

    wanted = [file_id(shard)]
    monkeypatch.setattr(os, "stat", stat)
    find_writers(wanted, [str(shard)], proc=str(proc), previous={})
    monkeypatch.undo()
    assert asked == [f"{proc}/40/fd/5"]


def test_shared_writable_mapping_with_its_descriptor_closed(proc: FakeProc, shard: Path) -> None:
    """rw-s counts; private, read-only and other files' mappings do not."""
    device, number = file_id(shard)
    place = f"00000000 {os.major(device):02x}:{os.minor(device):02x} {number}"
    for pid, line in (
        (40, f"7f00-7f10 rw-s {place}    {shard}"),
        (41, f"7f00-7f10 rw-p {place}    {shard}"),
        (42, f"7f00-7f10 r--s {place}    {shard}"),
        (43, f"7f00-7f10 rw-s {place}1    {shard}"),
    ):
        proc.process(pid, io=(KIB * KIB, 0))
        (proc.base / str(pid) / "maps").write_text(f"5500-5600 r-xp 00000000 08:01 7 /bin/x\n{line}\n")
    found = find_writers([(device, number)], [str(shard)], proc=str(proc), previous={})
    assert [(file.pid, file.fd, file.position) for file in found.files] == [(40, None, None)]


@pytest.mark.parametrize(
    ("device", "path", "expected"),
    [
        (os.makedev(0, 52), "/d/model.pt", (40,)),
        (os.makedev(0, 52), "/elsewhere/model.pt", ()),
        (os.makedev(8, 1), "/d/model.pt", ()),
    ],
)
def test_mapping_on_a_file_system_with_anonymous_devices(
    proc: FakeProc, device: int, path: str, expected: tuple[int, ...]
) -> None:
    """Where stat has device 0:N (btrfs), inode and path together decide; elsewhere the device must agree."""
    proc.process(40, io=(KIB * KIB, 0))
    (proc.base / "40" / "maps").write_text(f"7f00-7f10 rw-s 00000000 00:31 77    {path} (deleted)\n")
    assert find_writers([(device, 77)], ["/d/model.pt"], proc=str(proc), previous={}).pids == expected


def test_vanished_and_unreadable_processes_are_left_out(proc: FakeProc, shard: Path) -> None:
    """A process that ended in mid-scan, or of which nothing may be read, does not stop the scan."""
    proc.process(40, io=(KIB * KIB, 0))
    proc.descriptor(40, 5, shard)
    (proc.base / "41").mkdir()
    (proc.base / "42").mkdir()
    (proc.base / "42" / "io").write_text("wchar: 9999999\nwrite_bytes: 0\n")
    (proc.base / "43").mkdir()
    (proc.base / "43" / "io").write_text("garbage\n")
    assert find_writers([file_id(shard)], [str(shard)], proc=str(proc), previous={}).pids == (40,)


def test_scan_without_proc_finds_nothing(tmp_path: Path) -> None:
    """No /proc is a state like no writer."""
    found = find_writers([(1, 2)], ["/x"], proc=str(tmp_path / "none"), previous=None)
    assert (found.pids, found.counters) == ((), {})


# --- the run --------------------------------------------------------------------------------------------

POD = "0e9b1c3a-1111-2222-3333-444455556666"


@pytest.mark.parametrize(
    ("cgroup", "environment", "expected"),
    [
        ("5:memory:/slurm/uid_0/job_123/step_0\n0::/\n", {}, ("slurm-123", "slurm", "123")),
        (
            "0::/system.slice/slurmstepd.scope/job_123/step_0/user/task_0\n",
            {"SLURM_JOB_ID": "123", "SLURM_JOB_NAME": "llama-70b"},
            ("llama-70b", "slurm", "123"),
        ),
        (
            "0::/system.slice/node7_slurmstepd.scope/job_9/step_batch\n",
            {"SLURM_JOB_ID": "8", "SLURM_JOB_NAME": "outer"},
            ("slurm-9", "slurm", "9"),
        ),
        ("0::/\n", {"SLURM_JOB_ID": "55", "SLURM_JOB_NAME": "n"}, ("n", "slurm", "55")),
        (
            f"3:cpu:/kubepods/burstable/pod{POD}/abcdef\n",
            {"SLURM_JOB_ID": "55"},
            ("pod-0e9b1c3a", "kubernetes", POD),
        ),
        (
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod"
            + POD.replace("-", "_")
            + ".slice/cri-containerd-0123.scope\n",
            {},
            ("pod-0e9b1c3a", "kubernetes", POD),
        ),
        (
            "0::/kubepods.slice/kubepods-pod1234_5678.slice/crio-1.scope\n",
            {},
            ("pod-1234-567", "kubernetes", "1234-5678"),
        ),
        ("0::/\n", {"PBS_JOBID": "77.head", "PBS_JOBNAME": "run7"}, ("run7", "pbs", "77.head")),
        ("0::/\n", {"LSB_JOBID": "78"}, ("lsf-78", "lsf", "78")),
        ("0::/\n", {"JOB_ID": "79", "JOB_NAME": "q", "SGE_ROOT": "/sge"}, ("q", "sge", "79")),
        ("0::/\n", {"JOB_ID": "79"}, ("python-40", None, None)),
        ("0::/\n", {"TORCHELASTIC_RUN_ID": "r1"}, ("r1", "torchelastic", "r1")),
        ("0::/\n", {"TORCHELASTIC_RUN_ID": "none"}, ("python-40", None, None)),
        ("0::/system.slice/train.service\n", {}, ("train", "systemd", "train.service")),
        (
            "0::/user.slice/user-0.slice/user@0.service/app.slice/run-r12.scope\n",
            {},
            ("run-r12", "systemd", "run-r12.scope"),
        ),
        ("1:name=systemd:/user.slice/user-0.slice/session-3.scope\n", {}, ("python-40", None, None)),
        ("0::/system.slice/ssh.service\n", {}, ("python-40", None, None)),
        (
            f"0::/system.slice/docker-{'ab' * 32}.scope\n",
            {},
            ("docker-" + "ab" * 6, "systemd", f"docker-{'ab' * 32}.scope"),
        ),
    ],
)
def test_run_from_cgroup_and_environment(
    proc: FakeProc, cgroup: str, environment: dict[str, str], expected: tuple[str, str | None, str | None]
) -> None:
    """The cgroup names the job before the environment does; what is nobody's job is named by its session."""
    proc.process(40, cgroup=cgroup, environment=environment)
    run = identify_run([40], proc=str(proc))
    assert (run.run, run.scheduler, run.run_id) == expected
    assert run.root_pid == 40


def test_run_without_a_readable_environment(proc: FakeProc) -> None:
    """An unprivileged reader still has the cgroup: id yes, name no."""
    proc.process(40, cgroup="5:memory:/slurm/uid_0/job_123/step_0\n", environment=None)
    run = identify_run([40], proc=str(proc))
    assert (run.run, run.scheduler, run.run_id) == ("slurm-123", "slurm", "123")


def test_root_of_a_launcher_whose_ranks_have_sessions_of_their_own(proc: FakeProc) -> None:
    """One rank writes; its root is the launcher below the prompt, so the other ranks belong to the run."""
    proc.process(10, command="sshd")
    proc.process(11, parent=10, command="bash", session=11, terminal=34816)
    proc.process(12, parent=11, command="torchrun", session=11, terminal=34816, environment={})
    rank = {"TORCHELASTIC_RUN_ID": "none", "LOCAL_RANK": "0"}
    proc.process(40, parent=12, session=40, environment=rank)
    proc.process(41, parent=12, session=41, environment=rank)
    run = identify_run([40], proc=str(proc))
    assert (run.run, run.root_pid) == ("torchrun-11", 12)
    assert identify_run([40, 41], proc=str(proc)) == run


def test_root_climbs_through_a_script_and_stops_at_the_login(proc: FakeProc) -> None:
    """``ssh host 'bash train.sh'`` has no terminal: the script belongs to the run, the login does not."""
    proc.process(10, command="sshd", session=10)
    proc.process(11, parent=10, command="bash", session=11)
    proc.process(40, parent=11, command="python3", session=11)
    assert identify_run([40], proc=str(proc)).root_pid == 11


def test_root_of_a_scheduler_job_is_its_topmost_process(proc: FakeProc) -> None:
    """Slurm's step daemon holds all ranks of a step, whether or not it sits in the job's cgroup."""
    job = "0::/system.slice/slurmstepd.scope/job_5/step_0/user/task_0\n"
    proc.process(20, command="slurmd", cgroup="0::/system.slice/slurmd.service\n")
    proc.process(21, parent=20, command="slurmstepd: [5", cgroup="0::/system.slice/slurmstepd.scope/system\n")
    for pid in (40, 41):
        environment = {"SLURM_JOB_ID": "5", "SLURM_JOB_NAME": "train"}
        proc.process(pid, parent=21, cgroup=job, environment=environment)
    for pids in ([40], [40, 41]):
        run = identify_run(pids, proc=str(proc))
        assert (run.run, run.run_id, run.root_pid) == ("train", "5", 21)


def test_root_of_a_pod_is_its_container_process(proc: FakeProc) -> None:
    """The runtime's shim is outside the pod's cgroup and outside the run."""
    pod = f"0::/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/cri-containerd-1.scope\n"
    proc.process(30, command="containerd-shim", cgroup="0::/system.slice/containerd.service\n")
    proc.process(31, parent=30, command="sh", session=31, cgroup=pod)
    proc.process(40, parent=31, session=31, cgroup=pod)
    assert identify_run([40], proc=str(proc)).root_pid == 31


def test_elastic_launcher_is_the_root_of_its_ranks(proc: FakeProc) -> None:
    """The launcher does not carry the id that it gives to its ranks, and the script above it is not asked."""
    proc.process(12, command="bash", session=12)
    proc.process(13, parent=12, command="torchrun", session=12, environment={})
    for pid in (40, 41):
        proc.process(pid, parent=13, environment={"TORCHELASTIC_RUN_ID": "r1"})
    proc.process(50, parent=40, environment={"TORCHELASTIC_RUN_ID": "r1"})
    for pids in ([40], [40, 41], [50]):
        run = identify_run(pids, proc=str(proc))
        assert (run.run_id, run.root_pid) == ("r1", 13)


def test_writers_of_two_runs_give_the_run_of_most_of_them(proc: FakeProc) -> None:
    """Two jobs in one tree never make a run whose root holds both."""
    for pid, job in ((40, 5), (41, 6), (42, 6)):
        proc.process(pid, cgroup=f"5:memory:/slurm/uid_0/job_{job}/step_0\n")
    assert identify_run([40, 41, 42], proc=str(proc)).run_id == "6"
    proc.process(50, command="train_a")
    proc.process(51, command="train_b")
    assert identify_run([50, 51], proc=str(proc)).root_pid == 50


def test_run_of_vanished_processes_is_unknown(proc: FakeProc) -> None:
    """Nothing is invented for a process that has gone."""
    run = identify_run([999], proc=str(proc))
    assert (run.run, run.scheduler, run.run_id, run.root_pid) == (None, None, None, None)


# --- the scan over time ---------------------------------------------------------------------------------


class Clock:
    """A clock that moves by ``cost`` at each second reading, as if the work between had taken so long."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.cost = 0.0
        self.readings = 0

    def __call__(self) -> float:
        """Read the clock."""
        self.readings += 1
        return self.now + (self.cost if self.readings % 2 == 0 else 0.0)

    @property
    def scans(self) -> int:
        """Count the scans: each reads the clock before and after."""
        return self.readings // 2


def test_scan_reports_writers_once_and_again_on_change(proc: FakeProc, shard: Path) -> None:
    """The first look finds who ever wrote at once; the same answer is not repeated, another file's is new."""
    proc.process(40, command="rank 0", io=(KIB * KIB, 0), cgroup="5:memory:/slurm/uid_0/job_123/step_0\n")
    proc.descriptor(40, 5, shard)
    clock = Clock()
    scan = WriterScan("llama", clock=clock, proc=str(proc))
    files: dict[str, str | None] = {str(shard): inode_text(shard)}
    assert scan.scan(1000.0, files) == Writers(
        t=1000.0,
        directory="llama",
        pids=(40,),
        run="slurm-123",
        scheduler="slurm",
        run_id="123",
        commands=("rank 0",),
        alive=True,
        paths=(str(shard),),
    )
    assert scan.scan(1001.0, files) is None
    second = shard.with_name("optim.pt")
    second.write_bytes(b"y")
    proc.descriptor(40, 6, second)
    changed = scan.scan(1002.0, {**files, str(second): inode_text(second)})
    assert changed is not None
    assert changed.paths == (str(shard), str(second))


def test_scan_at_most_once_a_second(proc: FakeProc, shard: Path) -> None:
    """Ten calls within a second cost one scan."""
    clock = Clock()
    scan = WriterScan("a", clock=clock, proc=str(proc))
    for step in range(10):
        scan.scan(1000.0 + step / 10, {str(shard): inode_text(shard)})
    assert clock.scans == 1
    scan.scan(1001.0, {str(shard): inode_text(shard)})
    assert clock.scans == 2


def test_expensive_scans_are_stretched_below_one_percent(proc: FakeProc, shard: Path) -> None:
    """Scans of 0.2 s each, asked for every 0.1 s over 1,000 s: at most 10 s of scanning.

    Ordinary scans may come every 40 s, looks at everyone every 40 s too, and the first two come early.
    """
    clock = Clock()
    clock.cost = 0.2
    scan = WriterScan("a", clock=clock, proc=str(proc))
    for step in range(10_000):
        scan.scan(1000.0 + step / 10, {str(shard): inode_text(shard)})
    assert clock.scans * clock.cost <= 10.0
    assert clock.scans >= 25


def test_no_open_file_costs_no_scan(proc: FakeProc) -> None:
    """Between saves nobody is looked for."""
    clock = Clock()
    scan = WriterScan("a", clock=clock, proc=str(proc))
    assert scan.scan(1000.0, {}) is None
    assert clock.scans == 0


def test_mapped_writer_without_counted_io_is_found_after_fruitless_scans(proc: FakeProc, shard: Path) -> None:
    """A writer into a mapping on tmpfs has no I/O counted: in the end every process is looked at."""
    clock = Clock()
    scan = WriterScan("a", clock=clock, proc=str(proc))
    files: dict[str, str | None] = {str(shard): inode_text(shard)}
    assert scan.scan(1000.0, files) is None
    device, number = file_id(shard)
    proc.process(40, io=(0, 0))
    (proc.base / "40" / "maps").write_text(
        f"7f00-7f10 rw-s 00000000 {os.major(device):02x}:{os.minor(device):02x} {number}  {shard}\n"
    )
    answers = [scan.scan(1000.0 + second, files) for second in (1, 2)]
    assert [answer.pids if answer else None for answer in answers] == [None, (40,)]


@pytest.mark.parametrize("end", ["gone", "zombie", "exiting", "reused"])
def test_ended_writer_is_noticed_between_scans(proc: FakeProc, shard: Path, end: str) -> None:
    """A killed writer is reported at the next call: gone, not yet reaped, dying, or its pid another's."""
    proc.process(40, started=500, io=(KIB * KIB, 0))
    proc.descriptor(40, 5, shard)
    scan = WriterScan("a", clock=Clock(), proc=str(proc))
    files: dict[str, str | None] = {str(shard): inode_text(shard)}
    first = scan.scan(1000.0, files)
    assert first is not None
    assert first.alive
    if end == "gone":
        (proc.base / "40").rename(proc.base / "gone")
    else:
        flags = 0x400004 if end == "exiting" else 0x400000  # PF_EXITING beside PF_RANDOMIZE
        state, started = "Z" if end == "zombie" else "D", 501 if end == "reused" else 500
        proc.process(40, started=started, state=state, flags=flags)
    ended = scan.scan(1000.1, files)
    assert ended is not None
    assert (ended.alive, ended.pids, ended.run) == (False, (40,), first.run)
    assert not scan.is_alive()


def test_dead_writers_make_room_for_living_ones(proc: FakeProc, tmp_path: Path) -> None:
    """A thousand short writers one after the other leave one remembered process, not a thousand."""
    scan = WriterScan("a", clock=Clock(), proc=str(proc))
    for index in range(50):
        shard = tmp_path / f"s{index}"
        shard.write_bytes(b"x")
        proc.process(100 + index, io=(KIB * KIB, 0))
        proc.descriptor(100 + index, 5, shard)
        scan.scan(1000.0 + index, {str(shard): inode_text(shard)})
        (proc.base / str(100 + index) / "stat").unlink()
        (proc.base / str(100 + index) / "fd" / "5").unlink()
    assert scan.last is not None
    assert scan.last.pids == (149,)


def test_forget_starts_anew(proc: FakeProc, shard: Path) -> None:
    """After forget the writers of the last save are not reported for the next one."""
    proc.process(40, io=(KIB * KIB, 0))
    proc.descriptor(40, 5, shard)
    scan = WriterScan("a", clock=Clock(), proc=str(proc))
    assert scan.scan(1000.0, {str(shard): inode_text(shard)}) is not None
    scan.forget()
    assert scan.last is None
    assert scan.scan(1000.1, {}) is None
    assert not scan.is_alive()
