"""Loads of real files by real processes: calls, mappings, past the page cache; copies are none."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckpt_exporter.ledger import Ledger
from ckpt_exporter.model import DetectSettings, DirectorySettings, Fact, Load, ReadEvent, Save
from ckpt_exporter.sources.readers import readers_visible
from ckpt_exporter.sources.reading import ReadersSource
from ckpt_exporter.sources.watch import WatchSource
from tests.integration.watching import FAST

pytestmark = pytest.mark.skipif(not readers_visible(), reason="needs to see other users' processes")

MIB = 1024 * 1024
SIZE = 48 * MIB
QUIET_SECONDS = 1.0
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


class Loading:
    """A watched directory with one checkpoint of two files, and the loads seen of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.loads: list[Load] = []
        self.saves: list[Save] = []
        self.facts: list[Fact] = []
        directory = DirectorySettings("d", str(root))
        self._ledger = Ledger(
            [directory],
            DetectSettings(quiet_seconds=QUIET_SECONDS),
            on_load=self.loads.append,
            on_save=self.saves.append,
            on_fact=self.facts.append,
        )
        self._readers = ReadersSource(self._ledger.feed, time.monotonic)
        self._readers.replace_directories(["d"])
        self._watch = WatchSource([directory], self._emit, settings=FAST)
        self.files = [str(root / "checkpoint-7" / f"model-{i}.safetensors") for i in range(2)]
        (root / "checkpoint-7").mkdir()
        for file in self.files:
            with open(file, "wb") as stream:
                stream.write(os.urandom(SIZE))
                os.fsync(stream.fileno())

    def _emit(self, fact: Fact) -> None:
        if not isinstance(fact, ReadEvent):
            self._ledger.feed(fact)
        elif not self._readers.is_own("d", fact):
            self._ledger.feed(fact)
            self._readers.note("d", fact)

    def start(self) -> None:
        self._watch.start()
        self.wait(lambda: any(status.up for status in self._watch.statuses()))

    def stop(self) -> None:
        self._watch.stop()
        self._readers.stop()

    def wait(self, condition, seconds: float = 15.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not seen; loads: {self.loads}"
            self._ledger.tick(time.monotonic())
            time.sleep(0.02)

    def settle(self) -> None:
        """Wait until every load begun so far is judged."""
        begun = time.monotonic()
        self.wait(lambda: not self._ledger.loading and time.monotonic() - begun > 0.3)

    def cool(self) -> None:
        """Empty the page cache of the files; done before the watch begins, since it opens them."""
        for file in self.files:
            fd = os.open(file, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)

    def warm(self) -> None:
        for file in self.files:
            Path(file).read_bytes()

    def read_by(self, how: str, processes: int = 1) -> tuple[float, float]:
        """Run readers; return when the first began and when the last had its last byte."""
        program = _FRAME.format(body=_READERS[how].strip().replace("\n", "\n    "))
        running = [
            subprocess.Popen(
                [sys.executable, "-c", program, *self.files],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(processes)
        ]
        said = [process.stdout.readline().split() for process in running if process.stdout]
        self.wait(lambda: self.loads)
        for process in running:
            process.communicate()
        return min(float(begun) for begun, _ in said), max(float(done) for _, done in said)


@pytest.fixture
def loading(tmp_path: Path) -> Iterator[Loading]:
    watched = Loading(tmp_path)
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
    begun, done = loading.read_by(how)
    (load,) = loading.loads
    assert (load.bytes, load.files, load.readers, load.step) == (2 * SIZE, 2, 1, 7)
    assert load.start == pytest.approx(begun, abs=TOLERANCE_SECONDS)
    assert load.end == pytest.approx(done, abs=TOLERANCE_SECONDS)
    # The first touch of a mapping brings in up to 8 MiB before anybody can look: a sixth of these files.
    close = 0.2 if how == "mapped" else 0.1
    assert load.cached_ratio == pytest.approx(0.0 if cold or how == "direct" else 1.0, abs=close)


def test_many_readers_of_one_checkpoint(loading: Loading) -> None:
    """Three processes that read all of it are three readers of its bytes."""
    loading.warm()
    loading.start()
    loading.read_by("read", processes=3)
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


def test_a_save_during_a_load_stays_exact(loading: Loading) -> None:
    """A checkpoint written while another is read has its own bytes, and both are told."""
    loading.warm()
    loading.start()
    new = loading.root / "checkpoint-8"
    new.mkdir()
    (new / "model.safetensors").write_bytes(b"y" * (3 * MIB))
    loading.read_by("read")
    loading.wait(lambda: loading.saves)
    (save,) = loading.saves
    assert (save.step, save.bytes, save.files) == (8, 3 * MIB, 1)
    assert [load.step for load in loading.loads] == [7]
