"""To which training run a writing process belongs: its cgroup, its environment, its ancestors."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ckpt_exporter.sources.procfs import Process, read_cgroups, read_environment, read_process

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_POD = re.compile(
    r"kubepods.*[/-]pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})"
)
_POD_SHORT = re.compile(r"kubepods.*[/-]pod([0-9A-Za-z][0-9A-Za-z_-]*?)(?:\.slice)?(?:/|$)")
_SLURM = re.compile(r"(?:/slurm[^/]*(?:/[^/]+)*?|slurmstepd\.scope)/job_(\d+)(?:/|$)")
_UNIT = re.compile(r"/([^/]+\.(?:service|scope))(?=/|$)")
# Units that hold whatever people and daemons start below them, not one run.
_NOT_A_RUN = re.compile(
    r"(session-.*|init|user@.*|ssh|sshd|ssh@.*|sshd@.*|cron|crond|atd|getty@.*|serial-getty@.*|docker|containerd"
    r"|kubelet|k3s|crio|podman|slurmd|slurmstepd|.*_slurmstepd|pbs|pbs_mom|lsfd|sgeexecd.*|supervisor|supervisord"
    r"|dbus.*|vte-spawn-.*|tmux-spawn-.*)\.(service|scope)"
)
_CONTAINER_HASH = re.compile(r"([0-9a-f]{12})[0-9a-f]{52}")
# Programs that start whole runs: the run lies below them.
_STARTERS = frozenset(
    {
        "atd", "conmon", "containerd-shim", "cron", "crond", "docker-init", "dumb-init", "init", "login",
        "pbs_mom", "sbatchd", "screen", "sge_execd", "sge_shepherd", "slurmd", "sshd", "sshd-session", "su",
        "sudo", "supervisord", "systemd", "tini", "tmux: server",
    }
)  # fmt: skip
_SHELLS = frozenset({"ash", "bash", "csh", "dash", "fish", "ksh", "sh", "tcsh", "zsh"})
# Variables that a launcher gives to each rank it starts, often in a session of the rank's own.
_RANK_VARIABLES = ("TORCHELASTIC_RUN_ID", "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK")
_ANCESTOR_LIMIT = 64
# A name becomes a label: longer ones, which any process can give itself, are cut.
_NAME_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """Whose run some processes belong to.

    ``run`` is a short stable name for people, ``run_id`` the scheduler's own id or None. ``root_pid`` is the
    run's topmost process on this host: its descendants are the run's processes.
    """

    run: str | None
    scheduler: str | None
    run_id: str | None
    root_pid: int | None


@dataclass(frozen=True, slots=True)
class _Owner:
    # Not compared: a job's name is only known where the environment may be read.
    run: str | None = field(compare=False)
    scheduler: str | None
    run_id: str | None


_NOBODY = _Owner(None, None, None)


def identify_run(pids: Collection[int], *, proc: str = "/proc") -> RunIdentity:
    """Find the run that some processes belong to; of several runs, the one with the most of them.

    The cgroup decides before the environment, which a process inherits from wherever it was started.
    Without a scheduler the root is the topmost ancestor of the same session, or beyond it the launcher
    of a distributed rank, below the shell, login or daemon that started the run.
    """
    chains = [chain for pid in sorted(pids) if (chain := _ancestors(pid, proc))]
    if not chains:
        return RunIdentity(None, None, None, None)
    owners = [_owner(chain[0].pid, proc) for chain in chains]
    owner = Counter(owners).most_common(1)[0][0]
    roots = [_root(chain, owner, proc) for chain, of in zip(chains, owners, strict=True) if of == owner]
    root = Counter(roots).most_common(1)[0][0]
    name = owner.run or f"{root.command}-{root.session}"
    return RunIdentity(
        run=name[:_NAME_CHARACTERS],
        scheduler=owner.scheduler,
        run_id=owner.run_id[:_NAME_CHARACTERS] if owner.run_id is not None else None,
        root_pid=root.pid,
    )


def _ancestors(pid: int, proc: str) -> list[Process]:
    chain: list[Process] = []
    while pid > 0 and len(chain) < _ANCESTOR_LIMIT:
        process = read_process(pid, proc)
        if process is None:
            break
        chain.append(process)
        pid = process.parent
    return chain


def _root(chain: list[Process], owner: _Owner, proc: str) -> Process:
    root = chain[0]
    for parent in chain[1:]:
        if not _belongs(parent, root, owner, proc):
            break
        root = parent
    return root


def _belongs(parent: Process, child: Process, owner: _Owner, proc: str) -> bool:
    if owner.scheduler is None:
        return _is_above(parent, child, proc)
    if owner.scheduler == "torchelastic":
        # A rank's parent is a rank or its launcher, which does not have the variable that it gives to ranks.
        return _owner(child.pid, proc) == owner and not _starts_runs(parent)
    # Slurm's step daemon is there for one step alone, and the ranks of the step are its children.
    is_step = owner.scheduler == "slurm" and parent.command.startswith("slurmstepd")
    return is_step or _owner(parent.pid, proc) == owner


def _is_above(parent: Process, child: Process, proc: str) -> bool:
    if _starts_runs(parent) or _owner(parent.pid, proc).scheduler is not None:
        return False
    if parent.session == child.session:
        return True
    environment = read_environment(child.pid, proc)
    return any(variable in environment for variable in _RANK_VARIABLES)


def _starts_runs(process: Process) -> bool:
    if process.pid == 1 or process.command in _STARTERS or process.command.startswith("containerd-shim"):
        return True
    # A shell that leads a session on a terminal is somebody's prompt; any other shell runs a script.
    on_terminal = process.terminal != 0 and process.pid == process.session
    return process.command in _SHELLS and on_terminal


def _owner(pid: int, proc: str) -> _Owner:
    cgroups = read_cgroups(pid, proc)
    environment = read_environment(pid, proc)
    for path in cgroups:
        if pod := _POD.search(path) or _POD_SHORT.search(path):
            uid = pod[1].replace("_", "-")
            return _Owner(run=f"pod-{uid[:8]}", scheduler="kubernetes", run_id=uid)
    for path in cgroups:
        if job := _SLURM.search(path):
            return _slurm(job[1], environment)
    return _owner_by_environment(environment) or _owner_by_unit(cgroups) or _NOBODY


def _slurm(job_id: str, environment: Mapping[str, str]) -> _Owner:
    known = environment.get("SLURM_JOB_ID") == job_id
    name = environment.get("SLURM_JOB_NAME") if known else None
    return _Owner(run=name or f"slurm-{job_id}", scheduler="slurm", run_id=job_id)


def _owner_by_environment(environment: Mapping[str, str]) -> _Owner | None:
    if job := environment.get("SLURM_JOB_ID"):
        return _slurm(job, environment)
    for scheduler, id_key, name_key in (
        ("pbs", "PBS_JOBID", "PBS_JOBNAME"),
        ("lsf", "LSB_JOBID", "LSB_JOBNAME"),
        ("sge", "JOB_ID", "JOB_NAME"),
    ):
        job = environment.get(id_key)
        # JOB_ID is too common a name to stand for Grid Engine alone.
        if job and (scheduler != "sge" or any(key.startswith("SGE_") for key in environment)):
            return _Owner(environment.get(name_key) or f"{scheduler}-{job}", scheduler, job)
    elastic = environment.get("TORCHELASTIC_RUN_ID")
    # "none" is what the launcher says if nobody gave it an id.
    if elastic and elastic != "none":
        return _Owner(run=elastic, scheduler="torchelastic", run_id=elastic)
    return None


def _owner_by_unit(cgroups: Collection[str]) -> _Owner | None:
    for path in cgroups:
        units = [unit for unit in _UNIT.findall(path) if not _NOT_A_RUN.fullmatch(unit)]
        if units:
            unit = units[-1]
            name = _CONTAINER_HASH.sub(r"\1", unit.rpartition(".")[0])
            return _Owner(run=name, scheduler="systemd", run_id=unit)
    return None
