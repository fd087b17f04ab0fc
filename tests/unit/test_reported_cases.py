"""Faults that people reported of exporters and of what surrounds a save, each with its right value."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest

from ckpt_exporter.bubble.detector import BubbleDetector
from ckpt_exporter.detect.inventory import MAX_FILES, KnownFile
from ckpt_exporter.ledger import Ledger
from ckpt_exporter.metrics import build_registry, expose
from ckpt_exporter.model import DetectSettings, DirectorySettings, FileEvent, WatchChange, Writers
from ckpt_exporter.sources.mounts import is_shared
from tests import gpu_profiles
from tests.gpu_profiles import Noise, Profile, Stop
from tests.story import Story
from tests.unit.scraping import scrape, series

MB = 1 << 20
ALL = tuple(range(8))


class Node:
    """A ledger that is told of files, as the daemon tells it."""

    def __init__(self, *names: str) -> None:
        self.settings = [DirectorySettings(name, f"/data/{name}") for name in names or ("a",)]
        self.ledger = Ledger(self.settings, DetectSettings())
        self.now = 0.0

    def event(self, kind: Any, path: str, **more: Any) -> None:
        self.ledger.feed(FileEvent(self.now, kind, f"/data/{path}", **more))

    def save(self, path: str, size: int, seconds: float = 1.0) -> None:
        """Write one file, and wait until its save is judged."""
        self.event("create", path)
        self.now += seconds
        self.event("close_write", path, size=size)
        self.now += 30
        self.ledger.tick(self.now)

    def value(self, name: str, **labels: str) -> float | None:
        return series(scrape(self.ledger.snapshot(self.now))).get((name, tuple(sorted(labels.items()))))


# --- saves ----------------------------------------------------------------------------------------------


def test_save_three_times_as_slow_as_the_one_before() -> None:
    """The same bytes in 5 s and then in 15 s: three times as long, at a third of the bandwidth."""
    story = (
        Story().write("ckpt-1/model.bin", 0, 5, 300 * MB).write("ckpt-2/model.bin", 60, 75, 300 * MB).at(200)
    )

    first, second = story.saves
    assert second.duration_seconds / first.duration_seconds == 3.0  # type: ignore[operator]
    assert first.average_bandwidth / second.average_bandwidth == 3.0  # type: ignore[operator]


def test_newest_checkpoint_deleted_right_after_a_save_of_198_seconds() -> None:
    """Small files to 8.7 s, one more to 198.6 s, then removed: one save, one deletion, nothing left of it."""
    node = Node()
    for name, begin, end in (
        ("config.json", 0, 8.1),
        ("tokenizer.json", 8.1, 8.7),
        ("optimizer.pt", 8.7, 198.6),
    ):
        node.now = begin
        node.event("create", f"a/checkpoint-500/{name}")
        node.now = end
        node.event("close_write", f"a/checkpoint-500/{name}", size=30 * MB)
    node.event("close_write", "a/checkpoint-500/trainer_state.json", size=1000)
    node.now = 210.0
    node.ledger.feed(WatchChange(node.now, "a", "rescan", "start"))
    node.ledger.tick(node.now)
    assert node.value("ckpt_retained_checkpoints", dir="a") == 1
    node.event("deleted", "a/checkpoint-500", is_dir=True)

    assert node.value("ckpt_saves_total", dir="a", result="complete") == 1
    assert node.value("ckpt_last_save_duration_seconds", dir="a") == pytest.approx(198.6)
    assert node.value("ckpt_deleted_checkpoints_total", dir="a") == 1
    assert node.value("ckpt_retained_bytes", dir="a") == 0  # what the alert on the newest checkpoint compares
    assert node.value("ckpt_last_save_bytes", dir="a") == 90 * MB + 1000


def test_last_step_is_of_the_latest_save_not_of_the_largest_name_or_the_newest_time() -> None:
    """Beside a stale checkpoint-5000 of a newer time, 9900 and 10000 are saved: the last step is 10000."""
    node = Node()
    stale = {"size": 9 * MB, "initial": True, "found": True, "modified": 5000.0}
    node.event("create", "a/checkpoint-5000/model.bin", **stale)
    node.ledger.feed(WatchChange(0, "a", "rescan", "start"))
    for step in (9900, 10000):
        node.save(f"a/checkpoint-{step}/model.bin", 9 * MB)
    assert node.value("ckpt_last_save_step", dir="a") == 10000
    assert node.value("ckpt_retained_checkpoints", dir="a") == 3

    node.event("deleted", "a/checkpoint-10000", is_dir=True)
    assert node.value("ckpt_last_save_step", dir="a") == 10000
    assert node.value("ckpt_retained_checkpoints", dir="a") == 2
    assert node.value("ckpt_deleted_checkpoints_total", dir="a") == 1


def test_one_file_is_nearly_all_of_a_save() -> None:
    """Of 50 MB and nine files of 20 kB the largest has 99.6 %; the save is 250 times the one before."""
    story = Story(min_bytes=1).write("ckpt-1/part.bin", 0, 1, 200_000)
    story.at(20).create("ckpt-2/model.bin").at(30).close("ckpt-2/model.bin", 50_000_000)
    for i in range(9):
        story.write(f"ckpt-2/part{i}.bin", 30 + i, 30.5 + i, 20_000)
    before, save = story.at(100).saves

    assert save.bytes == 50_180_000
    assert max(shard.bytes for shard in save.shards) / save.bytes == pytest.approx(0.996, abs=0.0005)
    assert save.bytes / before.bytes == pytest.approx(250.9)


# --- GPUs -----------------------------------------------------------------------------------------------


def test_node_that_waits_for_another_nodes_save_loses_its_time_visibly() -> None:
    """GPUs spin for 60 s while nothing is written here: 480 GPU-seconds of stall, none of them a save's."""
    profile = Profile("b", 300, stops=(Stop(ALL, 120, 180, "spin"),), writers=(gpu_profiles.job(ALL),))
    outcome = gpu_profiles.play(profile)

    by_cause: dict[str, float] = {}
    for status in outcome.statuses():
        for cause, seconds in status.stall_seconds.items():
            by_cause[cause] = by_cause.get(cause, 0.0) + seconds
    assert outcome.bubbles == []
    assert by_cause.get("checkpoint_save", 0.0) == 0.0
    assert sum(by_cause.values()) == pytest.approx(480, rel=0.02)


@pytest.mark.parametrize("phase", [0.0, 0.25, 0.5, 0.75])
def test_dip_shorter_than_the_distance_of_two_readings(phase: float) -> None:
    """A stop of 0.3 s read once a second may be missed, but is never made longer than one reading."""
    save = gpu_profiles.save(100.0 + phase, 100.3 + phase)
    stops = (Stop(ALL, 100.0 + phase, 100.3 + phase, "spin"),)
    profile = Profile(
        "s", 200, stops=stops, saves=(save,), writers=(gpu_profiles.job(ALL),), hz=1.0, noise=Noise()
    )
    bubble = gpu_profiles.play(profile, BubbleDetector()).bubble

    assert bubble.skipped is not None or 0.0 <= (bubble.seconds or 0.0) <= 1.0


def test_utilisation_of_single_processes_is_never_asked() -> None:
    """Whose a GPU is, its list of processes tells; their utilisation, often stale or false, is not read."""
    package = Path(__file__).resolve().parents[2] / "ckpt_exporter"
    sources = "".join(path.read_text(encoding="utf-8") for path in package.rglob("*.py"))

    assert "nvmlDeviceGetComputeRunningProcesses" in sources
    assert "ProcessUtilization" not in sources
    assert "ProcessesUtilization" not in sources


# --- the exporter ---------------------------------------------------------------------------------------


def test_four_hundred_steps_and_fifty_processes_add_no_series() -> None:
    """After 400 saves by 50 processes there are as many series as after two."""
    node, counts = Node(), {}
    for step in range(1, 401):
        path, pid = f"a/ckpt-{step}/model.bin", 4000 + step % 50
        node.event("create", path)
        node.ledger.feed(Writers(node.now, "a", (pid,), run="job", paths=(f"/data/{path}",)))
        node.now += 1
        node.event("close_write", path, size=2 * MB)
        node.now += 30
        node.ledger.tick(node.now)
        if step in (2, 400):
            counts[step] = len(series(scrape(node.ledger.snapshot(node.now))))
    assert node.value("ckpt_saves_total", dir="a", result="complete") == 400
    assert counts[2] == counts[400]


def test_ten_reloads_leave_the_same_series() -> None:
    """Two directories, reloaded ten times: every scrape has the same series, none of them twice."""
    node = Node("a", "b")
    registry = build_registry(lambda: node.ledger.snapshot(node.now), process_metrics=False)
    pages = []
    for _ in range(10):
        node.ledger.reconfigure(node.settings, DetectSettings())
        lines = expose(registry).body.decode().splitlines()
        pages.append([line.rpartition(" ")[0] for line in lines if not line.startswith("#")])

    assert all(len(page) == len(set(page)) for page in pages)
    assert all(page == pages[0] for page in pages)


def test_churn_of_files_leaves_nothing_behind() -> None:
    """After 100 directories of 34 files each came and went, as much is kept in memory as after 10."""
    story = Story()

    def churn(first: int, last: int) -> int:
        for number in range(first, last):
            story.at(number * 0.01).mkdir(f"cache{number}")
            for part in range(34):
                name = f"cache{number}/part{part}.bin"
                story.create(name, size=0).close(name, 100).delete(name)
            story.delete(f"cache{number}", is_dir=True)
        gc.collect()
        return len(gc.get_objects())

    before = churn(0, 10)
    assert churn(10, 100) - before < 100
    assert story.at(10_000).saves == []
    assert not story.open_saves()
    assert list(story.detector.inventory.units()) == []


def test_scrape_of_a_large_tree_asks_the_disk_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 200,000 files retained, as many as are remembered, a scrape tells of all of them from memory."""
    node = Node()
    node.ledger.feed(WatchChange(0, "a", "rescan", "start"))
    inventory = node.ledger._shelf.books["a"].detector.inventory
    for number in range(MAX_FILES):
        inventory.put(f"step-{number // 100}/part{number}.bin", KnownFile(f"step-{number // 100}", MB))
    for key, _ in list(inventory.units()):
        inventory.complete(key)

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("a scrape must not touch a disk")

    for call in ("stat", "lstat", "scandir", "listdir", "open", "walk"):
        monkeypatch.setattr(os, call, forbidden)
    assert node.value("ckpt_retained_checkpoints", dir="a") == 2000
    assert node.value("ckpt_retained_bytes", dir="a") == 200_000 * MB


# --- file systems of other hosts ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fstype", "shared"),
    [
        *(
            (name, True)
            for name in ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "lustre", "gpfs", "ceph")
        ),
        *((name, False) for name in ("ext4", "xfs", "btrfs", "tmpfs", "fuseblk", "overlay")),
    ],
)
def test_file_systems_whose_changes_may_raise_no_event(fstype: str, shared: bool) -> None:
    """What other hosts can change unseen is known by its type: there only local events are trusted."""
    assert is_shared(fstype) is shared
