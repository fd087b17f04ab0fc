"""What someone who may write below a checkpoint directory can make the daemon do."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import subprocess
import threading
import time
from typing import TYPE_CHECKING

import pytest

from ckpt_exporter.sources.filestat import open_folder, open_quietly
from ckpt_exporter.sources.roots import expand
from tests.integration import checkpoints
from tests.integration.daemon import wait_until, watching
from tests.integration.watching import exchange, fast
from tests.integration.watching import watching as watched_source

if TYPE_CHECKING:
    from pathlib import Path

NOBODY = 65534


def test_pipes_devices_and_sockets_stay_closed(tmp_path: Path) -> None:
    """A pipe, a device and a socket with the names of checkpoints are no files and are never opened."""
    with watching(tmp_path, "a") as daemon:
        root = tmp_path / "a"
        pipe = root / "model-step-1.pt"
        os.mkfifo(pipe)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(root / "model-step-2.pt"))
        if os.geteuid() == 0:
            os.mknod(root / "model-step-3.pt", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        truth = checkpoints.plain_file(root, 4, 50_000)
        daemon.expect("a", 1, size_bytes=truth.size_bytes, files=1)
        # Without a reader a pipe can't be opened for writing.
        with pytest.raises(OSError, match="No such device or address"):
            os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)


def test_a_name_that_became_a_pipe_is_not_opened(tmp_path: Path) -> None:
    """The last look before an open is at what is opened, not at a name that may stand for something else."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    for name in ("pipe", "link"):
        with pytest.raises(OSError, match=r"not a regular file"):
            open_quietly(str(tmp_path / name))
    os.close(open_quietly(str(tmp_path / "file")))


def test_links_lead_nowhere(tmp_path: Path) -> None:
    """Links to itself, upwards and to a tree elsewhere are neither walked nor counted."""
    outside = tmp_path / "outside"
    (outside / "deeper").mkdir(parents=True)
    (outside / "model-step-1.pt").write_bytes(b"x" * 70_000)
    with watching(tmp_path, "a") as daemon:
        root = tmp_path / "a"
        for name, target in (("self", "."), ("up", ".."), ("one", "two"), ("two", "one")):
            (root / name).symlink_to(target)
        (root / "checkpoint-7").symlink_to(outside)
        (root / "model-step-9.pt").symlink_to(outside / "model-step-1.pt")
        truth = checkpoints.plain_file(root, 4, 50_000)
        daemon.expect("a", 1, size_bytes=truth.size_bytes, files=1)
        assert daemon.scrape().value("ckpt_watched_directories", dir="a") == 1


def test_a_link_laid_in_the_way_is_refused(tmp_path: Path) -> None:
    """A directory is listed only if no part of its path below the root is a link; the root's own may be."""
    (tmp_path / "tree" / "real" / "sub").mkdir(parents=True)
    (tmp_path / "outside" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "swapped").symlink_to(tmp_path / "outside")
    (tmp_path / "root").symlink_to("tree")
    for root in (str(tmp_path / "tree"), str(tmp_path / "root")):
        for good in (root, f"{root}/real", f"{root}/real/sub"):
            os.close(open_folder(root, good))
        for bad in (f"{root}/swapped", f"{root}/swapped/sub"):
            with pytest.raises(OSError, match=r".") as caught:
                open_folder(root, bad)
            assert caught.value.errno in (errno.ELOOP, errno.ENOTDIR)


def test_directories_swapped_for_links_under_the_walk(tmp_path: Path) -> None:
    """Whoever exchanges directories with links as fast as possible gets nothing from elsewhere listed."""
    outside, recording = tmp_path / "outside", tmp_path / "recording"
    for number in range(10):
        (outside / f"s{number}").mkdir(parents=True)
        (outside / f"s{number}" / "secret.pt").write_bytes(b"x" * 5_000)
    with watching(tmp_path, "a", arguments=[f"--record.path={recording}"]) as daemon:
        swapper = threading.Thread(target=_swap, args=(tmp_path / "a", outside, time.monotonic() + 2.5))
        swapper.start()
        swapper.join()
        truth = checkpoints.plain_file(tmp_path / "a", 4, 50_000)
        daemon.expect("a", 1, size_bytes=truth.size_bytes, files=1)
    lines = recording.read_text()
    assert "model-step-4.pt" in lines
    assert "secret" not in lines


def _swap(root: Path, outside: Path, ends: float) -> None:
    number = 0
    while time.monotonic() < ends:
        number += 1
        real, link = root / f"d{number}", root / f"l{number}"
        for below in range(10):
            (real / f"s{below}").mkdir(parents=True)
        link.symlink_to(outside)
        for _ in range(100):
            exchange(str(real), str(link))


def test_links_that_match_a_pattern(tmp_path: Path) -> None:
    """A link that a user lays where a pattern matches leads to that user's own directories only."""
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    for name in ("mine", "users", "roots", "users/real"):
        (tmp_path / name / "ckpt").mkdir(parents=True)
    os.chown(tmp_path / "mine" / "ckpt", NOBODY, NOBODY)
    for name, target, owner in (
        ("own", "mine", NOBODY), ("laid-by-root", "roots", 0), ("astray", "roots", NOBODY),
    ):  # fmt: skip
        (tmp_path / "users" / name).mkdir()
        link = tmp_path / "users" / name / "ckpt"
        link.symlink_to(tmp_path / target / "ckpt")
        os.chown(link, owner, owner, follow_symlinks=False)
        if name == "astray":
            (tmp_path / "users" / "whole").symlink_to(tmp_path / "roots")
            os.chown(tmp_path / "users" / "whole", NOBODY, NOBODY, follow_symlinks=False)
    found = expand(f"{tmp_path}/users/*/ckpt", 10).roots
    assert found == [f"{tmp_path}/users/{name}/ckpt" for name in ("laid-by-root", "own", "real")]


def test_a_tree_deeper_than_a_path(tmp_path: Path) -> None:
    """Directories nested beyond what a path can name do not end or stop the watch."""
    with watching(tmp_path, "a") as daemon, contextlib.ExitStack() as cleaning:
        # Python's own way to remove a tree ends at a thousand levels.
        cleaning.callback(subprocess.run, ["rm", "-rf", os.fspath(tmp_path / "a")], check=True)
        descriptor = os.open(tmp_path / "a", os.O_RDONLY)
        for number in range(2_500):
            name = "n" * 255 if number < 10 else "d"
            os.mkdir(name, dir_fd=descriptor)
            below = os.open(name, os.O_RDONLY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        os.close(os.open("model-step-1.pt", os.O_CREAT | os.O_WRONLY, dir_fd=descriptor))
        os.close(descriptor)
        truth = checkpoints.plain_file(tmp_path / "a", 4, 50_000)
        daemon.expect("a", 1, size_bytes=truth.size_bytes, files=1, seconds=30.0)


def test_a_sparse_giant_costs_nothing(tmp_path: Path) -> None:
    """A file of eight terabytes without data is measured by asking, not by reading."""
    with watching(tmp_path, "a") as daemon:
        with open(tmp_path / "a" / "model-step-1.pt", "wb", buffering=0) as stream:
            stream.truncate(1 << 43)
            stream.write(b"x" * 5_000)
        daemon.expect("a", 1, size_bytes=1 << 43, files=1)


def test_more_directories_than_are_followed(tmp_path: Path) -> None:
    """Beyond a number of directories the rest of a tree is left alone, which shows until there is room."""
    for parent in "ab":
        for number in range(30):
            (tmp_path / parent / f"d{number}").mkdir(parents=True)
    with watched_source(str(tmp_path), settings=fast(max_directories=50, reconcile_seconds=0.2)) as watched:
        (status,) = watched.source.statuses()
        assert (status.watched_directories, status.truncated) == (50, True)
        (cut,) = watched.engine().trees.truncated
        whole = tmp_path / ("b" if cut.name == "a" else "a")
        for number in range(20):  # in the other one: nothing changes where the tree was cut
            (whole / f"d{number}").rmdir()
        wait_until(lambda: not watched.source.statuses()[0].truncated)
        wait_until(lambda: watched.source.statuses()[0].watched_directories == 3 + 10 + 30)


def test_many_names_in_one_directory(tmp_path: Path) -> None:
    """Listing one huge directory shows life on the way, and keeps no more files in mind than allowed."""
    beats = 0

    def beat() -> None:
        nonlocal beats
        beats += 1

    for number in range(5_000):
        (tmp_path / f"f{number}").touch()
    with watched_source(str(tmp_path), settings=fast(max_known_files=100)) as watched:
        trees = watched.engine().trees
        assert trees.tree.file_count <= 100
        trees._entry.beat, before = beat, trees._entry.beat
        items = list(trees._list(str(tmp_path), watched.engine().roots.find(str(tmp_path))))
        trees._entry.beat = before
    assert len(items) == 5_000
    assert beats >= 5


def test_a_step_of_a_thousand_digits_is_none(tmp_path: Path) -> None:
    """A name cannot put a number of any length into the exemplars, which would spoil the whole scrape."""
    with watching(tmp_path, "a") as daemon:
        where = tmp_path / "a" / ("checkpoint-" + "9" * 200)
        where.mkdir()
        checkpoints.put(where / "model.safetensors", 40_000)
        checkpoints.put(where / "trainer_state.json", 10)
        daemon.expect("a", 1, size_bytes=40_010, files=2)
        assert daemon.scrape().get("ckpt_last_save_step", dir="a") is None
        assert "9" * 100 not in daemon.text("application/openmetrics-text; version=1.0.0")
