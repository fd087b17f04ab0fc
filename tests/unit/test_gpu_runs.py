"""Which run holds which GPU: told only where it is sure, and never for long after it has changed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ckpt_exporter.model import GpuRun
from ckpt_exporter.sources.gpu_runs import GpuRuns
from ckpt_exporter.sources.ownership import GpuOwners
from ckpt_exporter.sources.runs import RunIdentity
from tests.unit.export_sample import GPU_BACKEND, GPUS, empty_directory
from tests.unit.scraping import scrape, snapshot_of
from tests.unit.test_writers import FakeProc

if TYPE_CHECKING:
    from pathlib import Path

SLURM = "0::/slurm/uid_1000/job_{}/step_0\n"


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    """Two ranks of job 4711, one of 4712, and two processes of one script without a scheduler."""
    proc = FakeProc(tmp_path)
    for pid, job in ((40, 4711), (41, 4711), (42, 4712)):
        proc.process(pid, cgroup=SLURM.format(job), environment={})
    proc.process(50, command="train", environment={})
    proc.process(51, parent=50, session=50, command="rank", environment={})
    return proc


def runs(
    proc: FakeProc, holders: dict[int, tuple[int, ...]], *, known: bool = True
) -> dict[int, RunIdentity]:
    """Ask for the runs of some GPUs."""
    return GpuOwners(lambda: holders, lambda: known, proc=str(proc)).runs()


def test_each_gpu_has_its_own_run(proc: FakeProc) -> None:
    """Two jobs on one node hold different GPUs; several processes of one job on a GPU are one run."""
    found = runs(proc, {0: (40, 41), 1: (41,), 2: (42,), 3: ()})

    assert {gpu: run.run_id for gpu, run in found.items()} == {0: "4711", 1: "4711", 2: "4712"}


def test_a_process_tree_is_a_run_without_an_id(proc: FakeProc) -> None:
    """Without a scheduler the topmost process names the run, and there is no id to join nodes by."""
    found = runs(proc, {0: (50,), 1: (51,), 2: (50, 51)})

    assert {run.root_pid for run in found.values()} == {50}
    assert {run.run_id for run in found.values()} == {None}
    assert sorted(found) == [0, 1, 2]


SHARED = {"two jobs": (40, 42), "job and script": (40, 50), "unseen": (40, 99)}


@pytest.mark.parametrize("holders", SHARED.values(), ids=SHARED.keys())
def test_a_shared_gpu_has_no_run(proc: FakeProc, holders: tuple[int, ...]) -> None:
    """A GPU of two runs, or of one that can't be seen, is nobody's; the others keep theirs."""
    assert list(runs(proc, {0: holders, 1: (40,)})) == [1]


def test_pids_of_another_namespace_name_no_run(proc: FakeProc) -> None:
    """Where pids on GPUs are not this namespace's, they would name strangers."""
    assert runs(proc, {0: (40,)}, known=False) == {}


def test_what_was_known_is_forgotten_when_it_cannot_be_told_again(proc: FakeProc) -> None:
    """A run is gone from the metrics when its processes are, and when looking fails."""
    holders: dict[int, tuple[int, ...]] = {0: (40,)}
    owners = GpuOwners(lambda: holders, lambda: True, proc=str(proc))
    gpu_runs = GpuRuns(owners.runs)
    gpu_runs.look()
    assert gpu_runs.by_gpu() == {0: GpuRun("slurm-4711", "slurm", "4711")}

    holders[0] = ()
    gpu_runs.look()
    assert gpu_runs.by_gpu() == {}

    def fails() -> dict[int, RunIdentity]:
        raise PermissionError("/proc/40/stat")

    failing = GpuRuns(fails)
    failing.look()
    assert failing.by_gpu() == {}


def test_only_a_gpu_that_is_read_shows_its_run() -> None:
    """A GPU that is down, or that had the index before, does not take over the run of the index."""
    old = replace(GPUS[0], info=replace(GPUS[0].info, uuid="GPU-old"), up=False)
    text = scrape(
        snapshot_of(
            empty_directory("llama"),
            gpus=(old, *GPUS),
            gpu_backend=GPU_BACKEND,
            gpu_runs={0: GpuRun("llama-7b", "slurm", "8812"), 1: GpuRun("llama-7b", "slurm", "8812")},
        )
    )
    lines = [line for line in text.splitlines() if line.startswith("ckpt_gpu_run_info")]

    assert lines == [
        'ckpt_gpu_run_info{gpu="0",run="llama-7b",run_id="8812",scheduler="slurm",uuid="GPU-aaaa"} 1.0'
    ]


def test_a_run_of_which_nothing_is_known_has_no_series() -> None:
    """A series whose labels are all empty would say nothing."""
    nothing = {0: GpuRun(None, None, None)}
    text = scrape(snapshot_of(gpus=GPUS, gpu_backend=GPU_BACKEND, gpu_runs=nothing))

    assert "ckpt_gpu_run_info{" not in text
