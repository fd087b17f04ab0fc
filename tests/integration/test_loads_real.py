"""Loads of real files by real processes: calls, mappings, past the page cache; copies are none."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ckpt_exporter.app import Exporter
from ckpt_exporter.config.schema import Config, HistorySettings, WebSettings
from ckpt_exporter.history.reading import read_history
from ckpt_exporter.model import DetectSettings, DirectorySettings, Fact, ReadEvent
from ckpt_exporter.sources.readers import readers_visible
from ckpt_exporter.sources.simulated import SimulatedGpus, TrainingState
from tests.integration.loading import Loading

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(not readers_visible(), reason="needs to see other users' processes"),
]

MIB = 1024 * 1024
SIZE = 48 * MIB
# A machine that runs other tests wakes a thread late; alone it is a tenth of this.
TOLERANCE_SECONDS = 0.25

# Each reads at its own pace for most of a second, and prints when it began and had its last byte.
_READERS = {
    "read": """
with open(path, "rb", buffering=0) as file:
    while file.readinto(block):
        time.sleep(0.03)
    done = time.monotonic()
""",
    "mapped": """
with open(path, "rb") as file:
    view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
for at in range(0, len(view), len(block)):
    view[at : at + len(block)].count(b"x")
    done = time.monotonic()
    time.sleep(0.03)
kept.append(view)
""",
    "direct": """
fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
while os.readv(fd, [block]):
    time.sleep(0.03)
done = time.monotonic()
os.close(fd)
""",
}
_FRAME = """
import mmap, os, sys, time
kept, block = [], mmap.mmap(-1, 2 * 1024 * 1024)
begun = time.monotonic()
for path in sys.argv[1:]:
    {body}
print(begun, done, flush=True)
sys.stdin.read()
"""


def _program(how: str) -> str:
    return _FRAME.format(body=_READERS[how].strip().replace("\n", "\n    "))


@pytest.fixture
def loading(tmp_path: Path) -> Iterator[Loading]:
    watched = Loading(tmp_path)
    (tmp_path / "checkpoint-7").mkdir()
    watched.files = [str(tmp_path / "checkpoint-7" / f"model-{i}.safetensors") for i in range(2)]
    for file in watched.files:
        Path(file).write_bytes(os.urandom(SIZE))
    yield watched
    watched.stop()


@pytest.mark.parametrize("how", ["read", "mapped", "direct"])
@pytest.mark.parametrize("cold", [True, False], ids=["cold", "warm"])
def test_a_load_is_measured(loading: Loading, how: str, cold: bool) -> None:
    """Bytes, readers, times and the cached share are right however the files are read."""
    if cold:
        loading.cool()
    else:
        loading.warm()
    loading.start()
    begun, done = loading.run(_program(how), *loading.files)
    (load,) = loading.loads
    assert (load.bytes, load.files, load.readers, load.step) == (2 * SIZE, 2, 1, 7)
    assert load.start == pytest.approx(begun, abs=TOLERANCE_SECONDS)
    assert load.end == pytest.approx(done, abs=TOLERANCE_SECONDS)
    assert load.cached_ratio == pytest.approx(0.0 if cold or how == "direct" else 1.0, abs=0.05)


def test_many_readers_of_one_checkpoint(loading: Loading) -> None:
    """Three processes that read all of it are three readers of its bytes."""
    loading.warm()
    loading.start()
    loading.run(_program("read"), *loading.files, processes=3)
    (load,) = loading.loads
    assert (load.bytes, load.readers, len(load.pids)) == (2 * SIZE, 3, 3)


@pytest.mark.parametrize("command", ["cp -r", "tar cf", "md5sum"])
def test_a_copy_or_checksum_is_no_load(loading: Loading, command: str, tmp_path_factory) -> None:
    """Reading every file to copy or check it is no load."""
    loading.start()
    target = tmp_path_factory.mktemp("elsewhere") / "copy"
    source = str(loading.root / "checkpoint-7")
    arguments = {
        "cp -r": ["cp", "-r", source, str(target)],
        "tar cf": ["tar", "cf", str(target), "-C", str(loading.root), "checkpoint-7"],
        "md5sum": ["md5sum", *loading.files],
    }
    subprocess.run(arguments[command], check=True, stdout=subprocess.DEVNULL)
    loading.wait(lambda: any(isinstance(fact, ReadEvent) for fact in loading.facts))
    loading.settle()
    assert not loading.loads


def test_listing_a_tree_costs_no_more_than_before(loading: Loading) -> None:
    """A program that lists the tree, or looks at the names, is nothing to look after."""
    loading.start()
    subprocess.run(["ls", "-lR", str(loading.root)], check=True, stdout=subprocess.DEVNULL)
    marker = loading.root / "checkpoint-7" / "read-last.pt"
    marker.write_bytes(b"x")
    loading.wait(lambda: any(getattr(fact, "path", "") == str(marker) for fact in loading.facts))
    assert not [fact for fact in loading.facts if isinstance(fact, ReadEvent)]


def test_a_cold_start_ends_with_the_first_work_of_the_gpu(tmp_path: Path) -> None:
    """The whole exporter: a process loads, its GPU is idle for a while, then works."""
    file = tmp_path / "watched" / "checkpoint-7" / "model.safetensors"
    file.parent.mkdir(parents=True)
    file.write_bytes(os.urandom(SIZE))
    state: list[TrainingState] = ["loading"]
    pids: list[int] = []

    def gpus(emit: Callable[[Fact], None], _saving: Callable[[], bool]) -> SimulatedGpus:
        return SimulatedGpus(emit, count=1, state=lambda: state[0], sample_hz=10, pids=lambda: tuple(pids))

    config = Config(
        (DirectorySettings("d", str(tmp_path / "watched")),), DetectSettings(quiet_seconds=1.0),
        web=WebSettings("127.0.0.1:0"), history=HistorySettings(path=str(tmp_path / "history.db")),
    )  # fmt: skip
    exporter = Exporter(config, gpus=("simulated", gpus))
    exporter.start()
    deadline = time.monotonic() + 15.0
    while not all(watch.up for watch in exporter.snapshot().watches):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    reader = subprocess.Popen(
        [sys.executable, "-c", _program("read"), str(file)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        pids.append(reader.pid)
        assert reader.stdout is not None
        begun, done = map(float, reader.stdout.readline().split())
        while time.monotonic() < done + 2.5:
            exporter.tick()
            time.sleep(0.05)
        (before,) = exporter.snapshot().directories
        state[0], worked = "training", time.monotonic()
        deadline = worked + 15.0
        while (last := exporter.snapshot().directories[0].last_load) is None or last.first_gpu_work is None:
            assert time.monotonic() < deadline, last
            exporter.tick()
            time.sleep(0.05)
    finally:
        reader.communicate()
        exporter.stop()
    assert before.last_load is not None
    assert before.last_load.cold_start_seconds is None
    assert last.cold_start_seconds == pytest.approx(worked - begun, abs=0.1 + TOLERANCE_SECONDS)
    (kept,) = read_history(str(tmp_path / "history.db")).loads
    assert kept.cold_start_seconds == pytest.approx(last.cold_start_seconds)


def test_a_save_during_a_load_stays_exact(loading: Loading) -> None:
    """A checkpoint written while another is read has its own bytes, and both are told."""
    loading.warm()
    loading.start()
    new = loading.root / "checkpoint-8"
    new.mkdir()
    (new / "model.safetensors").write_bytes(b"y" * (3 * MIB))
    loading.run(_program("read"), *loading.files)
    loading.wait(lambda: loading.saves)
    (save,) = loading.saves
    assert (save.step, save.bytes, save.files) == (8, 3 * MIB, 1)
    assert [load.step for load in loading.loads] == [7]
