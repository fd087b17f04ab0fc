"""What happens to the cluster in the test, and what Prometheus says of it afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster.network import bridge
from tests.cluster.nodes import Job, Node, cpu_seconds, node_at, resident_bytes
from tests.cluster.rules import shorten
from tests.integration.daemon import wait_until
from tests.integration.prometheus import Prometheus, running
from tests.integration.rule_files import RULES

NODES = 32
BIG, SMALL, LONG = "7001", "7002", "7013"
LONG_SECONDS = 30.0
# Nodes of the big job whose clocks are wrong, and by how much.
SKEWS = {3: 137, 5: -95}
SAVES = 10
# Exporters that are started at once.
AT_ONCE = 8
# How long GPUs have to train before an exporter that has just started knows what they do in training.
SETTLING_SECONDS = 14.0
MIB = 1 << 20
FIRST_SECONDS = 22.0
CONFIG = """\
global: {{scrape_interval: 4s, scrape_timeout: 4s, evaluation_interval: 4s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: ckpt-exporter
    file_sd_configs: [{{files: [{targets}], refresh_interval: 1s}}]
"""


@dataclass
class Told:
    """What was done, and what was measured of it."""

    jobs: Mapping[str, Job]
    lost: Node
    added: Node
    series: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def by_run(self, name: str) -> dict[str, float]:
        """Return a recorded series of each job."""
        return {one["metric"]["run_id"]: float(one["value"][1]) for one in self.series[name]}

    @property
    def targets(self) -> list[str]:
        """All targets that Prometheus had at the end."""
        return [one["metric"]["instance"] for one in self.series["up"]]

    @property
    def down(self) -> list[str]:
        """Those that did not answer."""
        return [one["metric"]["instance"] for one in self.series["up"] if one["value"][1] == "0"]

    @property
    def up(self) -> int:
        """How many answered."""
        return len(self.targets) - len(self.down)


ASKED = (
    "up",
    "run:ckpt_gpu_bubble_seconds:increase1h",
    "run:ckpt_gpu_observed_seconds:increase1h",
    "run:ckpt_bubble_share:ratio1h",
    "run_cause:ckpt_gpu_stall_share:ratio1h",
    "instance_run:ckpt_bubble_share:ratio1h",
    "run:ckpt_saves:increase1h",
    "run:ckpt_save_bytes:increase1h",
    "run:ckpt_gpus_observed:count1h",
    "run:ckpt_last_save_duration_seconds:max",
    "run:ckpt_last_save_duration_seconds:spread",
    "scrape_samples_scraped",
    "scrape_duration_seconds",
)
FIGURES = (
    "quantile(0.5, avg_over_time(scrape_duration_seconds[4m]))",
    "max(max_over_time(scrape_duration_seconds[4m]))",
    "sum(scrape_samples_post_metric_relabeling)",
    'count({__name__=~".+:.+"})',
)


def ask(server: Prometheus, query: str) -> list[dict[str, Any]]:
    """Ask for the present value of a query."""
    address = f"{server.url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    with urllib.request.urlopen(address, timeout=30) as answer:
        result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return result


def tell(place: Path) -> Told:
    """Let it all happen; everything is torn down in any case."""
    os.chmod(place, 0o755)
    backing = place / "backing"
    backing.mkdir()
    with contextlib.ExitStack() as stack:
        stack.enter_context(bridge())
        nodes = [
            stack.enter_context(_node(number, place, backing, directory_of(number)))
            for number in range(1, NODES + 1)
        ]
        jobs = _jobs(nodes)
        for job in jobs.values():
            stack.callback(job.stop)
            (backing / job.name).mkdir()
        (backing / "scratch").mkdir()
        server = stack.enter_context(_prometheus(place, nodes[:-1]))
        told = Told(jobs, lost=nodes[28], added=nodes[31])
        _happen(told, nodes, place, server)
        _report(told, nodes, place, server)
        return told


def directory_of(number: int) -> str:
    """Name the directory that a node watches: its job's."""
    if number <= 8:
        return "big"
    if number <= 12:
        return "small"
    return f"single{number}" if number <= 20 else "scratch"


def _node(number: int, place: Path, backing: Path, directory: str) -> contextlib.AbstractContextManager[Node]:
    return node_at(number, place / f"node{number:02d}", backing, directory, SKEWS.get(number, 0))


def _jobs(nodes: Sequence[Node]) -> dict[str, Job]:
    jobs = {
        BIG: Job("big", BIG, nodes[:8], 4 * MIB, 5.0, 14.0),
        SMALL: Job("small", SMALL, nodes[8:12], 3 * MIB, 4.0, 15.0),
    }
    # Its exporter is killed in the middle of a save, which has to go on until another one is up.
    jobs[LONG] = Job("single13", LONG, nodes[12:13], 4 * MIB, LONG_SECONDS, 16.0)
    for node in nodes[13:20]:
        jobs[str(7000 + node.number)] = Job(
            node.directory, str(7000 + node.number), [node], 2 * MIB, 3.0, 16.0
        )
    return jobs


@contextlib.contextmanager
def _prometheus(place: Path, nodes: Sequence[Node]) -> Iterator[Prometheus]:
    rules, targets, config = place / "rules.yml", place / "targets.json", place / "prometheus.yml"
    assert shorten(RULES, rules) == 4
    _aim(targets, nodes)
    config.write_text(CONFIG.format(rules=rules, targets=targets), encoding="utf-8")
    with running(config, place / "data") as server:
        yield server


def _aim(targets: Path, nodes: Sequence[Node]) -> None:
    temporary = targets.with_suffix(".new")
    temporary.write_text(json.dumps([{"targets": [node.target for node in nodes]}]), encoding="utf-8")
    temporary.rename(targets)


def _happen(told: Told, nodes: Sequence[Node], place: Path, server: Prometheus) -> None:
    for first in range(0, NODES - 1, AT_ONCE):
        restart(nodes[first : min(first + AT_ONCE, NODES - 1)])
    wait_until(lambda: len(ask(server, "up == 1")) == NODES - 1, 60, what="31 exporters up")
    for job in told.jobs.values():
        job.start()
    threads = [
        threading.Thread(target=job.run, args=(saves_of(job), FIRST_SECONDS + i), name=job.name)
        for i, job in enumerate(told.jobs.values())
    ]
    for thread in threads:
        thread.start()
    big, single = told.jobs[BIG], told.jobs[LONG]
    # Two saves are undisturbed. Then a waiting node and a writing one are killed in the middle of a save.
    wait_until(lambda: big.saves == 2, 180)
    for first in range(20, 31, AT_ONCE):
        restart(nodes[first : min(first + AT_ONCE, 31)])
    for job, node in ((big, nodes[6]), (single, nodes[12])):
        assert job.midway.wait(120)
        restart([node], signal.SIGKILL)
    told.lost.stop(signal.SIGKILL)
    told.added.start()
    _aim(place / "targets.json", nodes)
    # All others in turn, between two saves of theirs: a restart takes seconds, and a job trains for longer.
    for job in told.jobs.values():
        for some in (job.nodes[:4], job.nodes[4:]):
            others = [node for node in some if node not in (nodes[6], nodes[12])]
            if others and job.saving.acquire(timeout=120):
                restart(others)
                threading.Timer(SETTLING_SECONDS, job.saving.release).start()
    for thread in threads:
        thread.join()
    # What was counted last is in the rules half a minute later.
    time.sleep(34)
    for name in ASKED:
        told.series[name] = ask(server, name)


def saves_of(job: Job) -> int:
    """Return how often a job saves: a long save more seldom."""
    return SAVES if job.write_seconds < LONG_SECONDS else SAVES // 2


def restart(nodes: Sequence[Node], number: int = signal.SIGTERM) -> None:
    """Stop exporters and start them again, as an update would."""
    for node in nodes:
        node.stop(number)
        node.start()
    for node in nodes:
        node.wait_until_up()


def _report(told: Told, nodes: Sequence[Node], place: Path, server: Prometheus) -> None:
    lines = []
    for run_id, job in told.jobs.items():
        figures = {name: told.by_run(name).get(run_id) for name in ASKED if name.startswith("run:")}
        lines.append(
            f"{run_id} truth {job.lost_gpu_seconds:.1f} GPU-s {job.saves} saves {job.bytes} B: {figures}"
            f" {[round(seconds, 1) for seconds in job.lost_by_save]}"
        )
    for name in ("run_cause:ckpt_gpu_stall_share:ratio1h", "instance_run:ckpt_bubble_share:ratio1h"):
        for one in told.series[name]:
            if one["metric"]["run_id"] in (BIG, SMALL):
                shown = {
                    key: value
                    for key, value in one["metric"].items()
                    if key in ("cause", "instance", "run_id")
                }
                lines.append(f"{name} {shown} {one['value'][1]}")
    alive = [node for node in nodes if node.process is not None]
    rss = sorted(resident_bytes(node.process.pid) / MIB for node in alive if node.process)
    cpu = sorted(node.cpu_seconds + cpu_seconds(node.process.pid) for node in alive if node.process)
    lines.append(f"RSS MiB min {rss[0]:.0f} median {rss[len(rss) // 2]:.0f} max {rss[-1]:.0f}")
    lines.append(f"CPU s in all: {sum(cpu):.0f}; of one: {cpu[0]:.1f} to {cpu[-1]:.1f}")
    samples = sorted(
        float(one["value"][1]) for one in told.series["scrape_samples_scraped"] if one["value"][1] != "0"
    )
    lines.append(f"samples a scrape {samples[0]:.0f} to {samples[-1]:.0f}")
    for query in FIGURES:
        lines.append(f"{query}: {[one['value'][1] for one in ask(server, query)]}")
    (place / "report.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
