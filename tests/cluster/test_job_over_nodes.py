"""Thirty-two exporters, and what a real Prometheus makes of them with the shipped rules.

A job of eight nodes saves by rank 0 alone, and all of its 64 GPUs wait; one of four nodes does so too; eight
more nodes train and save alone, eleven are idle, and one is added later. All exporters are restarted one
after the other, two of them in the middle of a save, one node is lost, and two have clocks that are minutes
off.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cluster.network import require_tools
from tests.cluster.story import BIG, LONG, SMALL, Told, tell
from tests.integration.prometheus import tool

pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.skipif(os.environ.get("CKPT_TEST_CLUSTER") != "1", reason="six minutes: CKPT_TEST_CLUSTER=1"),
]
SHARE = 0.03


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Run the whole story once."""
    require_tools()
    tool("prometheus")
    return tell(Path(tmp_path_factory.mktemp("cluster")))


@pytest.mark.parametrize("run_id", [BIG, SMALL])
def test_the_bubble_of_a_job_is_that_of_all_its_gpus(told: Told, run_id: str) -> None:
    """Within 3 % of what the GPUs really lost, though seven of eight nodes see no file being written."""
    assert told.by_run("run:ckpt_gpu_bubble_seconds:increase1h")[run_id] == pytest.approx(
        told.jobs[run_id].lost_gpu_seconds, rel=SHARE
    )


def test_saves_are_counted_once(told: Told) -> None:
    """Each job's saves are those that its writer made: through restarts, and one killed in mid-save."""
    counted = told.by_run("run:ckpt_saves:increase1h")

    assert {run_id: round(count) for run_id, count in counted.items()} == {
        run_id: job.saves for run_id, job in told.jobs.items()
    }


def test_bytes_are_counted_once(told: Told) -> None:
    """And so are their bytes; of a save in which the exporter was killed a file may be missing.

    On a shared file system, what was finished before the exporter came back may be another host's.
    """
    counted = told.by_run("run:ckpt_save_bytes:increase1h")
    long, first_file = told.jobs[LONG], told.jobs[LONG].size_bytes // 3
    others = {run_id: job.bytes for run_id, job in told.jobs.items() if run_id != LONG}

    assert (long.bytes - first_file) * 0.99 <= counted.pop(LONG) <= long.bytes * 1.01
    assert counted == pytest.approx(others, rel=0.01)


def test_all_gpus_of_a_job_are_observed(told: Told) -> None:
    """A node belongs to a job by the processes on its GPUs, whether it writes or not."""
    counted = told.by_run("run:ckpt_gpus_observed:count1h")

    assert counted == {run_id: 8 * len(job.nodes) for run_id, job in told.jobs.items()}


def test_the_slowest_node_is_the_one_that_writes(told: Told) -> None:
    """The last save took as long as the script let it take, and there is no spread with one writer."""
    durations = told.by_run("run:ckpt_last_save_duration_seconds:max")

    assert durations[BIG] == pytest.approx(told.jobs[BIG].write_seconds, rel=0.15)
    assert told.by_run("run:ckpt_last_save_duration_seconds:spread")[BIG] == 0


def test_a_lost_node_is_told_and_an_added_one_is_there(told: Told) -> None:
    """The target of the lost node is down, every other one is up."""
    assert told.down == [told.lost.target]
    assert told.up == 31
    assert told.added.target in told.targets
