"""Every way to write a file ends in the right facts, whatever events the kernel raises for it."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.watching import (
    HAS_LIBAIO,
    Watched,
    direct_write,
    exchange,
    fallocate_keep_size,
    fast,
    libaio_write,
    link_unnamed,
    watching,
)

MIB = 1024 * 1024
BLOCK = b"c" * MIB
CREATE = os.O_CREAT | os.O_RDWR


@pytest.fixture(scope="module")
def shared_watch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with watching(str(tmp_path_factory.mktemp("root"))) as watched:
        yield watched


@pytest.fixture
def watched(shared_watch: Watched, request: pytest.FixtureRequest) -> Watched:
    """Give a directory of its own below the shared root, idle."""
    name = f"case-{abs(hash(request.node.name))}"
    root = os.path.join(shared_watch.root, name)
    os.mkdir(root)
    watched = Watched(shared_watch.source, shared_watch.seen, root)
    watched.idle()
    return watched


def by_append(path: str) -> None:
    with open(path, "wb") as file:
        for _ in range(3):
            file.write(BLOCK)


def by_pwrite(path: str) -> None:
    fd = os.open(path, CREATE)
    for index in (2, 0, 1):
        os.pwrite(fd, BLOCK, index * MIB)
    os.close(fd)


def by_ftruncate(path: str) -> None:
    fd = os.open(path, CREATE)
    os.ftruncate(fd, 3 * MIB)
    os.pwrite(fd, BLOCK, MIB)
    os.close(fd)


def by_fallocate(path: str) -> None:
    fd = os.open(path, CREATE)
    os.posix_fallocate(fd, 0, 3 * MIB)
    os.pwrite(fd, BLOCK, 0)
    os.close(fd)


def by_keep_size(path: str) -> None:
    fd = os.open(path, CREATE)
    fallocate_keep_size(fd, 8 * MIB)
    os.pwrite(fd, 3 * BLOCK, 0)
    os.close(fd)


def _source(path: str) -> int:
    fd = os.open(os.path.dirname(os.path.dirname(path)), os.O_TMPFILE | os.O_RDWR)
    os.pwrite(fd, 3 * BLOCK, 0)
    return fd


def by_copy_file_range(path: str) -> None:
    source, fd = _source(path), os.open(path, CREATE)
    while os.copy_file_range(source, fd, 3 * MIB):
        pass
    os.close(fd)
    os.close(source)


def by_sendfile(path: str) -> None:
    source, fd = _source(path), os.open(path, CREATE)
    offset = 0
    while offset < 3 * MIB:
        offset += os.sendfile(fd, source, offset, 3 * MIB)
    os.close(fd)
    os.close(source)


def by_mapping(path: str) -> None:
    fd = os.open(path, CREATE)
    os.ftruncate(fd, 3 * MIB)
    with mmap.mmap(fd, 3 * MIB) as mapping:
        os.close(fd)
        mapping[:] = 3 * BLOCK


def by_libaio(path: str) -> None:
    fd = os.open(path, CREATE)
    for index in range(3):
        libaio_write(fd, BLOCK, index * MIB)
    os.close(fd)


def by_libaio_direct(path: str) -> None:
    fd = os.open(path, CREATE | os.O_DIRECT)
    for index in range(3):
        libaio_write(fd, BLOCK, index * MIB)
    os.close(fd)


def by_direct(path: str) -> None:
    fd = os.open(path, CREATE | os.O_DIRECT)
    for index in range(3):
        direct_write(fd, BLOCK, index * MIB)
    os.close(fd)


def by_duplicate(path: str) -> None:
    fd = os.open(path, CREATE)
    other = os.dup(fd)
    os.write(fd, BLOCK)
    os.close(fd)
    os.write(other, 2 * BLOCK)
    os.close(other)


def by_unnamed(path: str) -> None:
    fd = os.open(os.path.dirname(path), os.O_TMPFILE | os.O_RDWR)
    os.write(fd, 3 * BLOCK)
    link_unnamed(fd, path)
    os.close(fd)


FRESH = [
    by_append,
    by_pwrite,
    by_ftruncate,
    by_fallocate,
    by_keep_size,
    by_copy_file_range,
    by_sendfile,
    by_mapping,
    by_libaio,
    by_libaio_direct,
    by_direct,
    by_duplicate,
    by_unnamed,
]
needs_libaio = pytest.mark.skipif(not HAS_LIBAIO, reason="the libaio calls are numbered for x86_64")


@pytest.mark.parametrize("write", FRESH, ids=lambda write: write.__name__)
def test_a_new_file_is_created_once_and_closed_once(watched: Watched, write: Callable[[str], None]) -> None:
    """Whatever the method, a new file of 3 MiB gives one create, one close, and its exact size."""
    if "libaio" in write.__name__ and not HAS_LIBAIO:
        pytest.skip("the libaio calls are numbered for x86_64")
    path = watched.path("shard")
    begin = time.monotonic()
    write(path)
    created, closed = watched.seen.wait_kinds(path, "create", "close_write")
    assert closed.size == 3 * MIB
    assert closed.inode == created.inode
    assert begin - 0.05 <= created.t <= closed.t <= time.monotonic()
    # Nothing more comes later.
    watched.idle()
    assert watched.seen.kinds(path) == ["create", "close_write"]


def over_truncated(path: str) -> None:
    with open(path, "wb") as file:
        file.write(2 * BLOCK)


def over_in_place(path: str) -> None:
    fd = os.open(path, os.O_RDWR)
    os.pwrite(fd, 2 * BLOCK, 0)
    os.close(fd)


def over_by_mapping(path: str) -> None:
    fd = os.open(path, os.O_RDWR)
    with mmap.mmap(fd, 2 * MIB) as mapping:
        mapping[:] = b"d" * 2 * MIB
        mapping.flush()
    os.close(fd)


def over_by_libaio(path: str) -> None:
    fd = os.open(path, os.O_RDWR)
    libaio_write(fd, 2 * BLOCK)
    os.close(fd)


def over_by_libaio_direct(path: str) -> None:
    fd = os.open(path, os.O_RDWR | os.O_DIRECT)
    libaio_write(fd, 2 * BLOCK)
    os.close(fd)


OVER = [over_truncated, over_in_place, over_by_mapping, over_by_libaio, over_by_libaio_direct]


@pytest.mark.parametrize("write", OVER, ids=lambda write: write.__name__)
def test_overwriting_an_existing_name_is_an_open_and_a_close(
    watched: Watched, write: Callable[[str], None]
) -> None:
    """An existing file that is written again raises no CREATE, yet gives one open and one close."""
    if "libaio" in write.__name__ and not HAS_LIBAIO:
        pytest.skip("the libaio calls are numbered for x86_64")
    path = watched.path("model.bin")
    with open(path, "wb") as file:
        file.write(2 * BLOCK)
    watched.seen.wait_kinds(path, "create", "close_write")
    watched.idle()
    write(path)
    events = watched.seen.wait_kinds(path, "create", "close_write", "open", "close_write")
    assert events[-1].size == 2 * MIB
    assert events[-2].t <= events[-1].t


@needs_libaio
def test_a_slow_silent_overwrite_is_noticed_while_it_runs(watched: Watched) -> None:
    """A libaio writer over an existing file raises no MODIFY; its open is reported before its close."""
    path = watched.path("model.bin")
    with open(path, "wb") as file:
        file.write(2 * BLOCK)
    watched.seen.wait_kinds(path, "create", "close_write")
    watched.idle()
    fd = os.open(path, os.O_RDWR)
    try:
        libaio_write(fd, BLOCK)
        watched.seen.wait_kinds(path, "create", "close_write", "open")
    finally:
        os.close(fd)
    watched.seen.wait_kinds(path, "create", "close_write", "open", "close_write")


def test_opening_for_writing_without_a_write_is_no_new_version(watched: Watched) -> None:
    """A file opened read-write and closed untouched gives neither an open nor a second close."""
    path, mark = watched.path("model.bin"), watched.path("mark")
    by_append(path)
    watched.seen.wait_kinds(path, "create", "close_write")
    watched.idle()
    os.close(os.open(path, os.O_RDWR))
    by_append(mark)
    watched.seen.wait_kinds(mark, "create", "close_write")
    assert watched.seen.kinds(path) == ["create", "close_write"]


def test_reading_gives_no_facts(watched: Watched) -> None:
    """Readers raise OPEN events, which must not look like writers."""
    path, mark = watched.path("model.bin"), watched.path("mark")
    by_append(path)
    watched.seen.wait_kinds(path, "create", "close_write")
    watched.idle()
    for _ in range(5):
        with open(path, "rb") as file:
            file.read()
    by_append(mark)
    watched.seen.wait_kinds(mark, "create", "close_write")
    assert watched.seen.kinds(path) == ["create", "close_write"]


def test_a_hard_link_carries_no_bytes(watched: Watched, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A hard link from outside is a link; a link to a file being written is one, too."""
    outside = str(tmp_path_factory.mktemp("outside") / "weights")
    by_append(outside)
    path = watched.path("weights")
    os.link(outside, path)
    watched.seen.wait_kinds(path, "link")
    other, alias = watched.path("shard"), watched.path("alias")
    with open(other, "wb") as file:
        file.write(BLOCK)
        os.link(other, alias)
        watched.seen.wait_kinds(alias, "link")
    watched.seen.wait_kinds(other, "create", "close_write")
    assert watched.seen.kinds(alias) == ["link"]


def test_symbolic_links_carry_no_bytes(watched: Watched) -> None:
    """A symlink is a link event; swapping it by a rename is a link again and no file that moved in."""
    path, temporary = watched.path("latest"), watched.path("latest.tmp")
    os.symlink("step-1", path)
    watched.seen.wait_kinds(path, "link")
    os.symlink("step-2", temporary)
    watched.seen.wait_kinds(temporary, "link")
    os.rename(temporary, path)
    watched.seen.wait_kinds(path, "link", "link")
    assert watched.seen.kinds(temporary) == ["link", "deleted"]


def test_links_swapped_quickly_are_still_no_files(watched: Watched) -> None:
    """A symlink that has its final name before anyone could look at the first one is a link, not a file."""
    path, temporary = watched.path("latest"), watched.path("latest.tmp")
    for step in range(50):
        os.symlink(f"step-{step}", temporary)
        os.rename(temporary, path)
    watched.seen.wait(lambda: watched.seen.kinds(path))
    watched.idle()
    assert {event.event for event in watched.seen.events(path)} == {"link"}
    assert {event.event for event in watched.seen.events(temporary)} <= {"link", "deleted"}


def test_a_fifo_is_no_file(watched: Watched) -> None:
    """Names that hold no data (a fifo) give no facts."""
    path, mark = watched.path("fifo"), watched.path("mark")
    os.mkfifo(path)
    by_append(mark)
    watched.seen.wait_kinds(mark, "create", "close_write")
    assert watched.seen.kinds(path) == []


def test_a_rename_before_the_close_is_followed(watched: Watched) -> None:
    """Safetensors renames its temporary file before it closes it: the close counts for the new name."""
    temporary, path = watched.path(".tmpAbC"), watched.path("model.safetensors")
    with open(temporary, "wb") as file:
        file.write(3 * BLOCK)
        os.rename(temporary, path)
    events = watched.seen.wait_kinds(path, "moved", "close_write")
    assert (events[0].path, events[0].to) == (temporary, path)
    assert events[1].size == 3 * MIB
    assert watched.seen.kinds(temporary) == ["create", "moved"]


def test_a_rename_over_an_existing_name_replaces_it(watched: Watched) -> None:
    """An atomic replace is a new file, its close and one move; the old file gives no delete."""
    path, temporary = watched.path("latest.ckpt"), watched.path("latest.ckpt.tmp")
    by_append(path)
    by_append(temporary)
    os.rename(temporary, path)
    watched.seen.wait_kinds(temporary, "create", "close_write", "moved")
    assert watched.seen.kinds(path) == ["create", "close_write", "moved"]


def test_a_file_renamed_in_and_out(watched: Watched, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A file that arrives by a rename has no old name and its full size; one that leaves has no new name."""
    outside = str(tmp_path_factory.mktemp("outside") / "model.pt")
    path = watched.path("model.pt")
    by_append(outside)
    os.rename(outside, path)
    (arrived,) = watched.seen.wait_kinds(path, "moved")
    assert (arrived.path, arrived.to, arrived.size) == (None, path, 3 * MIB)
    os.rename(path, outside)
    left = watched.seen.wait_kinds(path, "moved", "moved")[1]
    assert (left.path, left.to) == (path, None)


def test_exchanged_files_are_two_moves(watched: Watched) -> None:
    """RENAME_EXCHANGE of two files gives both moves, and later writes land on the right names."""
    one, other = watched.path("one"), watched.path("other")
    by_append(one)
    over_truncated(other)
    watched.seen.wait_kinds(other, "create", "close_write")
    exchange(one, other)
    watched.seen.wait(lambda: watched.seen.kinds(one).count("moved") == 2)
    moves = [(event.path, event.to) for event in watched.seen.events(one) if event.event == "moved"]
    assert moves == [(one, other), (other, one)]


def test_a_file_unlinked_while_open_stays_deleted(watched: Watched) -> None:
    """Writes and the close of an unlinked file still raise events under its name; they revive nothing."""
    path, mark = watched.path("gone"), watched.path("mark")
    with open(path, "wb") as file:
        file.write(BLOCK)
        watched.seen.wait_kinds(path, "create")
        os.unlink(path)
        watched.seen.wait_kinds(path, "create", "deleted")
        file.write(BLOCK)
    by_append(mark)
    watched.seen.wait_kinds(mark, "create", "close_write")
    assert watched.seen.kinds(path) == ["create", "deleted"]


def test_a_killed_writer_closes_its_file(watched: Watched) -> None:
    """SIGKILL in mid-write ends in a close with the size reached, for the detector to judge."""
    path = watched.path("partial")
    code = (
        "import sys,time\n"
        "f=open(sys.argv[1],'wb',0); f.write(b'x'*1000000); print('.',flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        watched.seen.wait_kinds(path, "create")
        writer.send_signal(signal.SIGKILL)
    assert watched.seen.wait_kinds(path, "create", "close_write")[1].size == 1_000_000


def test_a_forked_child_keeps_the_file_open(watched: Watched) -> None:
    """While a child that was forked with the file open lives, the file is not closed."""
    path = watched.path("inherited")
    code = (
        "import os,sys,time\n"
        "f=open(sys.argv[1],'wb',0); f.write(b'x'*1000)\n"
        "os.set_inheritable(f.fileno(),True)\n"
        "if os.fork()==0:\n sys.stdin.read(); os._exit(0)\n"
        "f.close(); print('.',flush=True); os.wait()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        writer.stdout.readline()
        held = watched.seen.wait(lambda: [p for p in watched.seen.progress(path) if p.size == 1000])
        assert held[0].writers == 1
        assert watched.seen.kinds(path) == ["create"]
        writer.stdin.close()
        watched.seen.wait_kinds(path, "create", "close_write")


def test_one_of_two_writers_closing_does_not_close_the_file(watched: Watched) -> None:
    """A file that two writers opened is closed when the second lets go of it."""
    path = watched.path("consolidated")
    first, second = os.open(path, CREATE), os.open(path, CREATE)
    os.pwrite(first, BLOCK, 0)
    os.close(first)
    watched.seen.wait(lambda: [p for p in watched.seen.progress(path) if p.size == MIB])
    os.pwrite(second, BLOCK, MIB)
    watched.seen.wait(lambda: [p for p in watched.seen.progress(path) if p.size == 2 * MIB])
    assert watched.seen.kinds(path) == ["create"]
    os.close(second)
    assert watched.seen.wait_kinds(path, "create", "close_write")[1].size == 2 * MIB


HOSTILE = [
    b"\xff\xfe.pt",
    b"new\nline.pt",
    b"tab\tquote\"'.pt",
    b"x" * 255,
    "é∂.pt".encode(),
    b"#12",
    b" ",
    b"-rf",
]


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: ascii(name)[:20])
def test_any_file_name_the_kernel_allows_is_followed(watched: Watched, name: bytes) -> None:
    """Names are bytes: invalid UTF-8, newlines and 255 bytes survive the way through."""
    path = os.path.join(watched.root, os.fsdecode(name))
    by_append(path)
    closed = watched.seen.wait_kinds(path, "create", "close_write")[1]
    assert os.fsencode(closed.path or "") == os.fsencode(watched.root) + b"/" + name


def test_own_looks_cause_no_facts(watched: Watched) -> None:
    """The lease probe, the data walk and the rescans open files and directories without being noticed."""
    path = watched.path("sparse")
    fd = os.open(path, CREATE)
    os.ftruncate(fd, 4 * MIB)
    for index in range(4):
        os.pwrite(fd, BLOCK, index * MIB)
        watched.seen.wait(
            lambda index=index: any(p.position == (index + 1) * MIB for p in watched.seen.progress(path))
        )
    os.close(fd)
    watched.seen.wait_kinds(path, "create", "close_write")
    before = len(watched.seen.events())
    watched.idle()
    watched.engine().rescan("periodic")
    watched.engine().wake()
    watched.idle()
    assert len(watched.seen.events()) == before
    assert not [hint for hint in watched.engine()._changes.hints if hint.startswith(watched.root)]


def test_a_change_without_an_event_is_found(tmp_path: Path) -> None:
    """A file whose time changed while no event came is found by a look at all files, and only that file."""
    root = str(tmp_path)
    for name in ("changed", "same"):
        by_append(os.path.join(root, name))
    with watching(root, settings=fast(reconcile_seconds=0.3, upkeep_share=1.0)) as watched:
        watched.idle()
        path = watched.path("changed")
        os.utime(path, ns=(1, 1_700_000_000_123_456_789))  # raises none of the events that are asked for
        opened = watched.seen.wait_kinds(path, "open", "close_write")[0]
        assert opened.found
        assert watched.seen.kinds(watched.path("same")) == []
