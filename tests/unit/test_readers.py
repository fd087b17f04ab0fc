"""Who reads: looks at a fake /proc, what they show of each reader, and what they may cost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ckpt_exporter.sources.pagemap import touched_bytes
from ckpt_exporter.sources.procfs import list_kernel_threads, list_pids_newest_first
from ckpt_exporter.sources.readers import FEW_PROCESSES, ReaderSearch
from tests.unit.test_writers import FakeProc

PAGE = 4096
SIZE = 40 * PAGE
ADDRESS = 0x10000


class Clock:
    """Time that a test lets pass; ``cost`` is what each reading of the cost clock adds."""

    def __init__(self, cost: float = 0.0) -> None:
        self.now, self.spent, self.cost = 100.0, 0.0, cost

    def __call__(self) -> float:
        return self.now

    def cost_clock(self) -> float:
        self.spent += self.cost
        return self.spent


class ReadingProc(FakeProc):
    """Processes that read."""

    def reads(self, pid: int, rchar: int, read_bytes: int = 0) -> None:
        """Set what a process has read."""
        text = f"rchar: {rchar}\nwchar: 0\nsyscr: 1\nsyscw: 1\nread_bytes: {read_bytes}\nwrite_bytes: 0\n"
        (self.base / str(pid) / "io").write_text(text)

    def memory(self, pid: int, pages: int, file_pages: int) -> None:
        """Set a process's pages: of addresses, and resident ones of files."""
        (self.base / str(pid) / "statm").write_text(f"{pages} 9 {file_pages} 1 0 1 0\n")

    def maps(self, pid: int, path: Path, touched: int, *, first: int = ADDRESS) -> None:
        """Map a file, of which the process has touched the first pages."""
        inode, end = path.stat().st_ino, first + SIZE
        text = f"7f00-7f10 r--p 00000000 00:00 0 \n{first:x}-{end:x} r--p 00000000 fe:00 {inode}   {path}\n"
        (self.base / str(pid) / "maps").write_text(text)
        entries = bytearray((first // PAGE + SIZE // PAGE) * 8)
        for page in range(touched):
            entries[(first // PAGE + page) * 8 + 7] = 0x80
        (self.base / str(pid) / "pagemap").write_bytes(entries)


@pytest.fixture
def proc(tmp_path: Path) -> ReadingProc:
    return ReadingProc(tmp_path)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(SIZE))
    return path


def wanted(path: Path) -> dict[str, tuple[tuple[int, int], int]]:
    status = path.stat()
    return {str(path): ((status.st_dev, status.st_ino), SIZE)}


def searching(proc: ReadingProc, clock: Clock) -> ReaderSearch:
    return ReaderSearch(clock, str(proc), cost_clock=clock.cost_clock)


def reader(proc: ReadingProc, pid: int, path: Path, *, pos: int = 0, flags: str = "0100000") -> None:
    proc.process(pid)
    proc.reads(pid, 1000)
    proc.memory(pid, 100, 5)
    proc.descriptor(pid, 5, path, flags=flags, pos=pos)


def test_a_reader_is_found_and_told_until_it_lets_go(proc: ReadingProc, model: Path) -> None:
    """The holder of the file is told with its position and counters, then once that it let go."""
    clock = Clock()
    search = searching(proc, clock)
    reader(proc, 7, model, pos=3 * PAGE)
    (first,) = search.look(wanted(model), search=True, opened=True)
    assert (first.pid, first.path, first.position, first.held, first.mapped) == (
        7, str(model), 3 * PAGE, True, False,
    )  # fmt: skip
    assert (first.rchar, first.resident_bytes, first.command) == (1000, 5 * PAGE, "python")
    proc.reads(7, 5000)
    os.unlink(proc.base / "7" / "fd" / "5")
    (last,) = search.look(wanted(model), search=False)
    assert (last.held, last.rchar, last.size) == (False, 5000, SIZE)
    assert search.look(wanted(model), search=False) == []


def test_writers_namesakes_and_others_are_no_readers(proc: ReadingProc, model: Path, tmp_path: Path) -> None:
    """Who holds it writable, or another file of its name, reads nothing of it; O_DIRECT is told."""
    other = tmp_path / "elsewhere" / model.name
    other.parent.mkdir()
    other.write_bytes(b"x")
    reader(proc, 7, model, flags="0100002")
    reader(proc, 8, other)
    reader(proc, 9, model, flags=f"0{0o100000 | os.O_DIRECT:o}")
    found = searching(proc, Clock()).look(wanted(model), search=True, opened=True)
    assert [(reading.pid, reading.direct) for reading in found] == [(9, True)]


def test_a_mapping_is_counted_by_its_own_pages(proc: ReadingProc, model: Path) -> None:
    """Of a mapped file 10 pages were touched; more is not asked for until nothing grows."""
    search = searching(proc, Clock())
    proc.process(7)
    proc.memory(7, 100, 15)
    proc.maps(7, model, 10)
    look = wanted(model)
    (first,) = search.look(look, search=True, opened=True)
    assert (first.mapped, first.mapped_bytes, first.resident_bytes) == (True, 10 * PAGE, 15 * PAGE)
    proc.maps(7, model, 30)
    proc.memory(7, 100, 45)
    (growing,) = search.look(look, search=False)
    (settled,) = search.look(look, search=False)
    (after,) = search.look(look, search=False)
    assert (growing.mapped_bytes, settled.mapped_bytes, after.mapped_bytes) == (None, 30 * PAGE, None)


def test_maps_are_read_again_when_the_process_maps_or_opens(proc: ReadingProc, model: Path) -> None:
    """A mapping that goes is noticed by the process's size, without reading its maps each time."""
    search = searching(proc, Clock())
    proc.process(7)
    proc.memory(7, 100, 15)
    proc.maps(7, model, 10)
    search.look(wanted(model), search=True, opened=True)
    assert [reading.held for reading in search.look(wanted(model), search=False)] == [True]
    (proc.base / "7" / "maps").write_text("")
    assert [reading.held for reading in search.look(wanted(model), search=False)] == [True]
    proc.memory(7, 60, 5)
    assert [reading.held for reading in search.look(wanted(model), search=False)] == [False]


def test_pages_of_a_process_that_may_not_be_asked_are_unknown(proc: ReadingProc) -> None:
    """Without the right to look, or the process, nothing is made up."""
    assert touched_bytes(12345, [(ADDRESS, ADDRESS + SIZE)], str(proc)) is None


def test_own_pages_are_counted_by_the_kernel() -> None:
    """The kernel answers about an own mapping that three pages of ten were written."""
    import ctypes
    import mmap

    with mmap.mmap(-1, 10 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as view:
        view.madvise(mmap.MADV_NOHUGEPAGE)
        for page in (0, 4, 9):
            view[page * PAGE] = 1
        holder = ctypes.c_char.from_buffer(view)
        address = ctypes.addressof(holder)
        assert touched_bytes(os.getpid(), [(address, address + 10 * PAGE)]) == 3 * PAGE
        del holder


def test_a_short_load_is_found_without_comparing_counters(proc: ReadingProc, model: Path) -> None:
    """Among many processes the first search finds the holder, although nothing is known of what grew."""
    for pid in range(100, 100 + 2 * FEW_PROCESSES):
        proc.process(pid)
        proc.reads(pid, 0)
    reader(proc, 77, model)
    (found,) = searching(proc, Clock()).look(wanted(model), search=True, opened=True)
    assert found.pid == 77


def test_who_read_since_the_last_search_is_found_among_many(proc: ReadingProc, model: Path) -> None:
    """When looking at all takes too long, only those whose counters grew in between are looked at."""
    clock = Clock(cost=0.06)  # one reading of the cost clock more than the first search may take
    search = searching(proc, clock)
    for pid in range(100, 100 + 2 * FEW_PROCESSES):
        proc.process(pid)
        proc.reads(pid, 0)
    reader(proc, 50, model)
    assert search.look(wanted(model), search=True, opened=True) == []
    proc.reads(50, 10_000_000)
    clock.now += 0.06
    (found,) = search.look(wanted(model), search=True)
    assert found.pid == 50


def test_searching_takes_a_twentieth_of_the_time(proc: ReadingProc, model: Path) -> None:
    """A search that took a second of processor is followed by none for twenty."""
    clock = Clock()
    search = searching(proc, clock)
    proc.process(3)
    search.look(wanted(model), search=True, opened=True)  # the first one, which has a share of its own
    clock.cost, clock.now = 1.0, 200.0
    search.look(wanted(model), search=True)
    reader(proc, 7, model)
    clock.now = 219.0
    assert search.look(wanted(model), search=True) == []
    clock.now = 221.0
    assert [reading.pid for reading in search.look(wanted(model), search=True)] == [7]


@pytest.mark.parametrize(("parent", "threads"), [(0, {2, 3, 40}), (1, set())])
def test_children_of_the_kernel_are_its_threads(proc: ReadingProc, parent: int, threads: set[int]) -> None:
    """Where process 2 is not of the kernel, as in a container, its children are processes like others."""
    proc.process(2, parent=parent)
    children = proc.base / "2/task/2/children"
    children.parent.mkdir(parents=True)
    children.write_text("3 40 ")
    assert list_kernel_threads(str(proc.base)) == threads


def test_short_loads_soon_after_each_other_are_found_on_credit(proc: ReadingProc, model: Path) -> None:
    """A first search of 0.05 s is paid for by a second; six loads in a row are sought, a seventh is not."""
    for pid in range(1000, 1000 + FEW_PROCESSES + 10):
        proc.process(pid)
        proc.reads(pid, 10)
    clock = Clock()
    search = searching(proc, clock)
    found = []
    for pid in range(10, 17):
        reader(proc, pid, model)
        clock.cost = 0.05 / 80  # each process that is passed over reads the cost clock once
        found.append(len(search.look(wanted(model), search=True, opened=True)))
        clock.cost = 0.0
        (proc.base / f"{pid}/fd/5").unlink()
        search.look(wanted(model), search=False)
    assert found == [1, 1, 1, 1, 1, 1, 0]


def test_a_file_that_is_forgotten_is_new_again(proc: ReadingProc, model: Path) -> None:
    """What was touched of a mapping is asked for again after its file was left alone."""
    search = searching(proc, Clock())
    proc.process(7)
    proc.memory(7, 100, 15)
    proc.maps(7, model, 10)
    search.look(wanted(model), search=True, opened=True)
    search.forget(str(model))
    search.forget_all()
    (again,) = search.look(wanted(model), search=True, opened=True)
    assert again.mapped_bytes == 10 * PAGE


def test_the_newest_processes_are_looked_at_first_although_numbers_begin_anew(proc: ReadingProc) -> None:
    """After the highest number come low ones: the latest process is the one that the kernel names."""
    for pid in (1, 40, 300, 32000):
        proc.process(pid)
    (proc.base / "loadavg").write_text("0.10 0.20 0.30 2/400 41\n")
    assert list_pids_newest_first(str(proc.base)) == [40, 1, 32000, 300]


def test_where_descriptors_stand_apart_no_position_tells(proc: ReadingProc, model: Path) -> None:
    """Two threads that read a file from different places have no position in common; a copy of one has."""
    reader(proc, 7, model, pos=3 * PAGE)
    proc.descriptor(7, 6, model, flags="0100000", pos=20 * PAGE)
    reader(proc, 8, model, pos=4 * PAGE)
    proc.descriptor(8, 6, model, flags="0100000", pos=4 * PAGE)
    found = searching(proc, Clock()).look(wanted(model), search=True, opened=True)
    assert {reading.pid: reading.position for reading in found} == {7: None, 8: 4 * PAGE}


def test_another_descriptor_of_a_known_reader_is_noticed(proc: ReadingProc, model: Path) -> None:
    """Only those of a known reader that count are looked at until a file is opened or one of them is shut."""
    search = searching(proc, Clock())
    reader(proc, 7, model, pos=3 * PAGE)
    search.look(wanted(model), search=True, opened=True)
    (before,) = search.look(wanted(model), search=False)
    proc.descriptor(7, 6, model, flags="0100000", pos=8 * PAGE)
    (unaware,) = search.look(wanted(model), search=False)
    assert (before.position, unaware.position) == (3 * PAGE, 3 * PAGE)
    (told,) = search.look(wanted(model), search=False, opened=True)
    assert told.position is None
    (proc.base / "7/fd/5").unlink()
    (left,) = search.look(wanted(model), search=False)
    assert left.position == 8 * PAGE
    proc.descriptor(7, 9, model, flags="0100000", pos=9 * PAGE)
    (proc.base / "7/fd/6").unlink()
    (last,) = search.look(wanted(model), search=False)
    assert last.position == 9 * PAGE


def test_a_second_reader_is_looked_for_as_soon_as_the_first_search_is_paid(
    proc: ReadingProc, model: Path
) -> None:
    """Among many processes one that opens the file while another reads it is found by its descriptor."""
    for pid in range(1000, 1000 + FEW_PROCESSES + 10):
        proc.process(pid)
        proc.reads(pid, 10)
    clock = Clock()
    search = searching(proc, clock)
    reader(proc, 7, model)
    look = wanted(model)
    assert [reading.pid for reading in search.look(look, search=True, opened=True)] == [7]
    reader(proc, 8, model)
    clock.now += 1.0
    assert [reading.pid for reading in search.look(look, search=True, opened=True)] == [7, 8]
