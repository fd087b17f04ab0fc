"""Live bytes of a file that is being written, against what its writer knows, on each file system."""

from __future__ import annotations

import bisect
import mmap
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from ckpt_exporter.model import FileEvent, Progress
from tests.integration.watching import Recorder, Watched, direct_write, fast, watching

MIB = 1024 * 1024
SIZE_MIB = 64
BLOCK = b"p" * MIB
CREATE = os.O_CREAT | os.O_RDWR

Write = Callable[[int, int], None]


class PacedWriter(threading.Thread):
    """Writes one file block by block over about two seconds, noting when how much was written."""

    def __init__(self, path: str, prepare: Callable[[int], Write], *, direct: bool = False) -> None:
        super().__init__(name=f"writer-{os.path.basename(path)}")
        self.path = path
        self._prepare = prepare
        self._flags = CREATE | (os.O_DIRECT if direct else 0)
        self.times: list[float] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            fd = os.open(self.path, self._flags)
            try:
                write = self._prepare(fd)
                for index in range(SIZE_MIB):
                    write(fd, index)
                    self.times.append(time.monotonic())
                    time.sleep(2.0 / SIZE_MIB)
            finally:
                os.close(fd)
        except BaseException as error:
            self.failure = error

    def written(self, t: float) -> int:
        return bisect.bisect_right(self.times, t) * MIB

    def error(self, fact: Progress) -> float:
        """Return by how much of the file the position is off, allowing 20 ms for taking the time."""
        assert fact.position is not None
        low, high = self.written(fact.t - 0.02), self.written(fact.t + 0.02)
        return max(low - fact.position, fact.position - high, 0) / (SIZE_MIB * MIB)


def append(fd: int) -> Write:
    return lambda fd, index: _all(os.write(fd, BLOCK))


def preallocate(fd: int) -> Write:
    os.posix_fallocate(fd, 0, SIZE_MIB * MIB)
    return lambda fd, index: _all(os.pwrite(fd, BLOCK, index * MIB))


def sparse_in_random_order(fd: int) -> Write:
    os.ftruncate(fd, SIZE_MIB * MIB)
    order = list(range(SIZE_MIB))
    random.Random(7).shuffle(order)
    return lambda fd, index: _all(os.pwrite(fd, BLOCK, order[index] * MIB))


def sparse_mapping(fd: int) -> Write:
    os.ftruncate(fd, SIZE_MIB * MIB)
    mapping = mmap.mmap(fd, SIZE_MIB * MIB)

    def write(_fd: int, index: int) -> None:
        mapping[index * MIB : (index + 1) * MIB] = BLOCK
        if index == SIZE_MIB - 1:
            mapping.close()

    return write


def preallocate_direct(fd: int) -> Write:
    os.posix_fallocate(fd, 0, SIZE_MIB * MIB)
    return lambda fd, index: direct_write(fd, BLOCK, index * MIB)


def _all(count: int) -> None:
    assert count == MIB


PATTERNS = {
    "append": append,
    "preallocate": preallocate,
    "sparse": sparse_in_random_order,
    "mapping": sparse_mapping,
    "direct": preallocate_direct,
}


@pytest.mark.alone
@pytest.mark.parametrize("filesystem", ["disk", "tmpfs", "ext4", "xfs", "btrfs"], indirect=True)
def test_positions_are_within_three_percent_of_the_truth(filesystem: Path) -> None:
    """Appended, preallocated, sparse, mapped and direct writes: no position is off by more than 3 %."""
    writers: dict[str, PacedWriter] = {}
    with watching(str(filesystem)) as watched:
        for name, pattern in PATTERNS.items():
            if name == "direct" and not _takes_direct(filesystem):
                continue
            path = watched.path(name)
            writers[name] = PacedWriter(path, pattern, direct=name == "direct")
        for writer in writers.values():
            writer.start()
        for writer in writers.values():
            writer.join()
            assert writer.failure is None
        for writer in writers.values():
            events = watched.seen.wait_kinds(writer.path, "create", "close_write")
            assert events[1].size == SIZE_MIB * MIB
    errors = {name: _errors(watched.seen, writer) for name, writer in writers.items()}
    print({name: f"{max(values) * 100:.2f} % of {len(values)}" for name, values in errors.items()})
    for name, values in errors.items():
        # Memory file systems are walked once a second at most, which slows their writer least.
        assert len(values) >= 2, f"{name}: too few positions"
        assert max(values) <= 0.03, f"{name}: {max(values):.3f}"


def _takes_direct(directory: Path) -> bool:
    try:
        fd = os.open(directory / "probe", CREATE | os.O_DIRECT)
    except OSError:
        return False
    os.close(fd)
    os.unlink(directory / "probe")
    return True


def _errors(seen: Recorder, writer: PacedWriter) -> list[float]:
    end = writer.times[-1]
    facts = [fact for fact in seen.progress(writer.path) if fact.position is not None and fact.t <= end]
    return [writer.error(fact) for fact in facts]


def test_the_method_says_how_the_position_was_found(tmp_path) -> None:
    """A preallocated file is measured by its data, a plain append by its size."""
    with watching(str(tmp_path)) as watched:
        one, other = watched.path("preallocated"), watched.path("appended")
        with open(one, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, 8 * MIB)
            os.pwrite(file.fileno(), BLOCK, 0)
            fact = watched.seen.wait(lambda: [p for p in watched.seen.progress(one) if p.position])[0]
            assert (fact.size, fact.position, fact.method, fact.writers) == (8 * MIB, MIB, "data", 1)
        with open(other, "wb", 0) as file:
            file.write(BLOCK)
            fact = watched.seen.wait(lambda: [p for p in watched.seen.progress(other) if p.position])[0]
            assert (fact.size, fact.position, fact.method) == (MIB, MIB, "size")


def test_overwriting_in_place_asks_who_knows(tmp_path) -> None:
    """Only the writers' own counters show how far an overwrite in place is; without them it is unknown."""
    answers: list[tuple[str, str]] = []

    def position(path: str, inode: str) -> tuple[int, str]:
        answers.append((path, inode))
        return 12345, "io"

    path = str(tmp_path / "model.bin")
    with open(path, "wb") as file:
        file.write(4 * BLOCK)
    for hook, expected in ((position, (12345, "io")), (lambda _path, _inode: None, (None, None))):
        with watching(str(tmp_path), overwrite_position=hook) as watched:
            watched.idle()
            with open(path, "r+b", 0) as file:
                file.write(BLOCK)
                facts = watched.seen.wait(lambda: watched.seen.progress(path))
                assert (facts[-1].position, facts[-1].method) == expected
            watched.seen.wait_kinds(path, "open", "close_write")
    st = os.stat(path)
    assert answers[0] == (path, f"{os.major(st.st_dev)}:{os.minor(st.st_dev)}:{st.st_ino}")


def test_an_unchanged_file_repeats_once_a_second(tmp_path) -> None:
    """While nothing changes, progress is repeated about once a second and not at every look."""
    with watching(str(tmp_path)) as watched:
        path = watched.path("slow")
        with open(path, "wb", 0) as file:
            file.write(BLOCK)
            watched.seen.wait(lambda: len(watched.seen.progress(path)) >= 4)
            times = [fact.t for fact in watched.seen.progress(path)]
            assert all(later - earlier >= 0.95 for earlier, later in pairwise(times[1:]))


def test_a_silent_writer_keeps_its_file_open(tmp_path) -> None:
    """A file without a change for longer than the silence limit stays open while its writer lives."""
    with watching(str(tmp_path), settings=fast(silent_probe_seconds=0.3)) as watched:
        path = watched.path("slow")
        with open(path, "wb", 0) as file:
            file.write(BLOCK)
            watched.seen.wait(lambda: len(watched.seen.progress(path)) >= 3)
            assert watched.source.saving("run")
            assert watched.seen.kinds(path) == ["create"]
        watched.seen.wait_kinds(path, "create", "close_write")


def test_without_the_right_to_open_size_and_allocation_do(tmp_path) -> None:
    """Files of another user with mode 0600 are measured by stat alone, and closed by their event."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    code = (
        "import os,sys\n"
        "from tests.integration.watching import watching\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "with watching(sys.argv[1]) as watched:\n"
        "  print('ready', flush=True)\n"
        "  path = sys.argv[1] + '/model.safetensors'\n"
        "  facts = watched.seen.wait(lambda: [p for p in watched.seen.progress(path) if p.position])\n"
        "  print(facts[-1].position, facts[-1].method, flush=True)\n"
        "  watched.seen.wait_kinds(path, 'create', 'close_write')\n"
        "  print('closed', flush=True)\n"
    )
    base = Path("/tmp") / f"ckpt-denied-{os.getpid()}"
    base.mkdir()
    base.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        with subprocess.Popen(
            [sys.executable, "-c", code, str(base)], env=environment, stdout=subprocess.PIPE, text=True
        ) as watcher:
            assert watcher.stdout is not None
            assert watcher.stdout.readline() == "ready\n"
            fd = os.open(base / "model.safetensors", CREATE, 0o600)
            os.pwrite(fd, BLOCK, 0)
            os.fsync(fd)
            assert watcher.stdout.readline() == f"{MIB} allocated\n"
            os.close(fd)
            assert watcher.stdout.readline() == "closed\n"
    finally:
        shutil.rmtree(base)


def test_on_a_shared_file_system_only_sizes_are_asked(tmp_path) -> None:
    """Where other hosts write too, nothing is opened: progress is the size, and a found file isn't local."""
    mountinfo = tmp_path / "mountinfo"
    root = tmp_path / "root"
    root.mkdir()
    mountinfo.write_text(f"36 35 0:99 / {root} rw,noatime - nfs4 server:/export rw\n")
    with watching(str(root), mountinfo=str(mountinfo)) as watched:
        path = watched.path("model.pt")
        with open(path, "wb", 0) as file:
            os.posix_fallocate(file.fileno(), 0, 8 * MIB)
            fact = watched.seen.wait(lambda: [p for p in watched.seen.progress(path) if p.size])[0]
            assert (fact.position, fact.method) == (8 * MIB, "size")
        watched.seen.wait_kinds(path, "create", "close_write")


def test_a_file_that_was_open_before_the_watch_of_a_shared_mount(tmp_path: Path) -> None:
    """Its writer goes on until it closes it; one that is cut and written anew begins with nothing."""
    root = tmp_path / "nfs"
    (root / "a").mkdir(parents=True)
    (root / "b").mkdir()
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text(f"36 35 0:99 / {root} rw,noatime - nfs4 server:/export rw\n")
    before, finished = root / "a" / "open", root / "b" / "finished"
    finished.write_bytes(b"x" * 500_000)
    with open(before, "wb", buffering=0) as file:
        file.write(b"x" * 300_000)
        with watching(str(root), mountinfo=str(mountinfo)) as watched:
            watched.idle()
            file.write(b"x" * 100_000)
            (goes_on,) = watched.seen.wait(lambda: opened(watched, before))
            finished.write_bytes(b"x" * 100_000)
            watched.seen.wait_kinds(str(finished), "open", "close_write")
            (anew,) = opened(watched, finished)
            found = [fact for fact in watched.seen.facts if isinstance(fact, FileEvent) and fact.found]
            file.close()
            watched.seen.wait_kinds(str(before), "close_write")
    assert (goes_on.size, goes_on.initial, anew.initial) == (400_000, True, False)
    # Cut before its opening is told (then 0), or (since Linux 6.8) after that: as much as was there by then.
    assert anew.size is not None
    assert anew.size <= 100_000
    assert {(fact.initial, fact.local) for fact in found} == {(True, False)}


def opened(watched: Watched, path: Path) -> list[FileEvent]:
    """List the write-opens of a file, also of a writer that was there before the watch."""
    events = [fact for fact in watched.seen.facts if isinstance(fact, FileEvent) and fact.event == "open"]
    return [event for event in events if event.path == str(path)]
