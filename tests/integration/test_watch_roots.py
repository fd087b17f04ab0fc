"""The configured path may be missing, replaced, moved, a link, a pattern, unmounted or mounted over."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ckpt_exporter.model import DirectorySettings, FileEvent
from ckpt_exporter.sources.emitter import DirectoryEmitter
from tests.integration.watching import Watched, fast, watching


def put(path: object, size: int = 10) -> None:
    with open(str(path), "wb") as file:
        file.write(b"x" * size)


def up_changes(watched: Watched) -> list[tuple[str, str]]:
    return [change for change in watched.seen.changes() if change[0] in ("up", "down")]


def test_a_missing_root_is_watched_as_soon_as_it_appears(tmp_path) -> None:
    """A path that doesn't exist yet is a state; its directories appear one by one and nothing is lost."""
    root = tmp_path / "a" / "b" / "c"
    with watching(str(root), up=False, settings=fast(root_check_seconds=60.0)) as watched:
        watched.seen.wait(lambda: up_changes(watched) == [("down", "missing")])
        assert watched.source.statuses()[0].up is False
        assert watched.source.healthy
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "b").mkdir()
        root.mkdir()
        put(root / "model.pt")
        watched.seen.wait_kinds(str(root / "model.pt"), "create", "close_write", seconds=3)
        assert up_changes(watched)[1][0] == "up"


def test_a_removed_root_is_watched_again_when_it_is_back(tmp_path) -> None:
    """Rm -r of the root and mkdir of it again: down, up, a rescan, and the next save is seen."""
    root = tmp_path / "root"
    root.mkdir()
    put(root / "old")
    with watching(str(root), settings=fast(root_check_seconds=60.0)) as watched:
        shutil.rmtree(root)
        watched.seen.wait(lambda: ("down", "root_lost") in watched.seen.changes())
        assert "deleted" in watched.seen.kinds(str(root / "old"))
        root.mkdir()
        put(root / "new")
        watched.seen.wait_kinds(str(root / "new"), "create", "close_write", seconds=3)
        watched.seen.wait(lambda: watched.source.counters().rescans.get("root_lost") == 1)


def test_a_root_away_for_a_moment_loses_no_files(tmp_path) -> None:
    """A root that is renamed away and back within the outage time gives no event for its files."""
    root, away = tmp_path / "root", tmp_path / "away"
    (root / "step-1").mkdir(parents=True)
    put(root / "step-1" / "a")
    with watching(str(root), settings=fast(root_check_seconds=60.0)) as watched:
        os.rename(root, away)
        watched.seen.wait(lambda: ("down", "root_lost") in watched.seen.changes())
        put(away / "step-1" / "b")
        os.rename(away, root)
        watched.seen.wait_kinds(str(root / "step-1" / "b"), "create", "close_write", seconds=3)
        assert watched.seen.kinds(str(root / "step-1" / "a")) == []


def test_a_root_away_for_long_has_lost_its_files(tmp_path) -> None:
    """After the outage time the files of a vanished root count as deleted, each once."""
    root = tmp_path / "root"
    root.mkdir()
    put(root / "a")
    with watching(str(root), settings=fast(outage_seconds=0.6)) as watched:
        begin = time.monotonic()
        os.rename(root, tmp_path / "away")
        (event,) = watched.seen.wait_kinds(str(root / "a"), "deleted")
        assert event.t - begin >= 0.5
        root.mkdir()
        put(root / "a")
        watched.seen.wait_kinds(str(root / "a"), "deleted", "create", "close_write")


def test_a_replaced_root_is_compared_with_the_old_one(tmp_path) -> None:
    """Another directory at the root's path: what is missing in it is deleted, what is new is created."""
    root, other = tmp_path / "root", tmp_path / "other"
    root.mkdir()
    other.mkdir()
    put(root / "a")
    with watching(str(root)) as watched:
        put(other / "b")
        os.rename(root, tmp_path / "away")
        os.rename(other, root)
        watched.seen.wait_kinds(str(root / "a"), "deleted", seconds=3)
        watched.seen.wait_kinds(str(root / "b"), "create", "close_write")


def test_a_symlinked_root_keeps_the_configured_spelling(tmp_path) -> None:
    """Facts of a root that is a symlink carry the link's path; pointing it elsewhere is noticed."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    link = tmp_path / "link"
    link.symlink_to("one")
    with watching(str(link)) as watched:
        put(tmp_path / "one" / "a")
        watched.seen.wait_kinds(str(link / "a"), "create", "close_write")
        temporary = tmp_path / "link.tmp"
        temporary.symlink_to("two")
        os.rename(temporary, link)
        watched.seen.wait(lambda: "deleted" in watched.seen.kinds(str(link / "a")))
        put(tmp_path / "two" / "b")
        watched.seen.wait_kinds(str(link / "b"), "create", "close_write")


def test_a_pattern_takes_in_new_matches_at_once(tmp_path) -> None:
    """A * in the path: each match is watched, a new one from the moment it appears, others never."""
    (tmp_path / "job-1" / "ckpt").mkdir(parents=True)
    pattern = str(tmp_path / "job-*" / "ckpt")
    with watching(pattern, settings=fast(root_check_seconds=60.0)) as watched:
        one, two = tmp_path / "job-1" / "ckpt" / "a", tmp_path / "job-2" / "ckpt" / "a"
        put(one)
        watched.seen.wait_kinds(str(one), "create", "close_write")
        two.parent.mkdir(parents=True)
        put(two)
        (tmp_path / "other" / "ckpt").mkdir(parents=True)
        put(tmp_path / "other" / "ckpt" / "a")
        watched.seen.wait_kinds(str(two), "create", "close_write", seconds=3)
        assert watched.seen.kinds(str(tmp_path / "other" / "ckpt" / "a")) == []


def test_a_double_star_matches_at_any_depth(tmp_path) -> None:
    """A ** finds roots at every depth, now and later, and a match inside a match stays one root."""
    (tmp_path / "x" / "ckpt" / "ckpt").mkdir(parents=True)
    with watching(str(tmp_path / "**" / "ckpt"), settings=fast(root_check_seconds=60.0)) as watched:
        inner = tmp_path / "x" / "ckpt" / "ckpt" / "a"
        put(inner)
        watched.seen.wait_kinds(str(inner), "create", "close_write")
        deep = tmp_path / "p" / "q" / "r" / "ckpt"
        deep.mkdir(parents=True)
        put(deep / "a")
        watched.seen.wait_kinds(str(deep / "a"), "create", "close_write", seconds=3)
        assert len(watched.engine().roots.roots) == 2


def test_a_root_that_is_a_file_is_a_state(tmp_path) -> None:
    """A path that is a file is reported as such and watched once it is a directory."""
    root = tmp_path / "root"
    put(root)
    with watching(str(root), up=False) as watched:
        watched.seen.wait(lambda: up_changes(watched) == [("down", "not_a_directory")])
        root.unlink()
        root.mkdir()
        put(root / "a")
        watched.seen.wait_kinds(str(root / "a"), "create", "close_write")


def test_an_unreadable_root_is_a_state(tmp_path) -> None:
    """Without the right to read the root the watch is down for that reason, and other roots work."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    code = textwrap.dedent(
        """
        import os, sys
        from tests.integration.watching import watching
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
        with watching(sys.argv[1], sys.argv[2], up=False) as watched:
            watched.seen.wait(lambda: ("down", "permission_denied") in watched.seen.changes())
            watched.seen.wait(lambda: ("rescan", "start") in watched.seen.changes())
            open(sys.argv[2] + "/a", "w").close()
            watched.seen.wait_kinds(sys.argv[2] + "/a", "create", "close_write")
            assert watched.source.healthy
        """
    )
    base = Path("/tmp") / f"ckpt-unreadable-{os.getpid()}"
    closed, opened = base / "closed", base / "open"
    closed.mkdir(parents=True)
    opened.mkdir()
    base.chmod(0o755)
    closed.chmod(0o700)
    opened.chmod(0o777)
    try:
        _as_nobody(code, str(closed), str(opened))
    finally:
        shutil.rmtree(base)


def _as_nobody(code: str, *arguments: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment, cwd=os.getcwd(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.fixture
def mounts(tmp_path) -> Iterator[Callable[[Path], None]]:
    """Mounts a tmpfs on a directory; all are gone afterwards."""
    mounted: list[Path] = []

    def mount(where: Path) -> None:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=16m", "ckpt-test", str(where)],
            check=False,
            capture_output=True,
        )
        if done.returncode != 0:
            pytest.skip(f"can't mount here: {done.stderr.decode().strip()}")
        mounted.append(where)

    yield mount
    for where in reversed(mounted):
        subprocess.run(["umount", "-l", str(where)], check=False, capture_output=True)


def test_a_file_system_mounted_over_the_root_is_watched(tmp_path, mounts) -> None:
    """A mount over the root is noticed by itself; files below it aren't deleted, new ones are seen."""
    root = tmp_path / "root"
    root.mkdir()
    put(root / "below")
    with watching(str(root), settings=fast(root_check_seconds=60.0)) as watched:
        mounts(root)
        watched.seen.wait(lambda: watched.source.counters().rescans.get("mount_changed"))
        put(root / "above")
        watched.seen.wait_kinds(str(root / "above"), "create", "close_write")
        assert watched.seen.kinds(str(root / "below")) == []


def test_an_unmount_for_a_moment_deletes_nothing(tmp_path, mounts) -> None:
    """The root's file system goes and comes back (case: flapping mount): its files give no events."""
    root, kept = tmp_path / "root", tmp_path / "kept"
    root.mkdir()
    kept.mkdir()
    mounts(kept)
    put(kept / "a")
    subprocess.run(["mount", "--bind", str(kept), str(root)], check=True)
    try:
        with watching(str(root), settings=fast(root_check_seconds=60.0, outage_seconds=60.0)) as watched:
            subprocess.run(["umount", "-l", str(root)], check=True)
            watched.seen.wait(lambda: watched.source.counters().rescans.get("mount_changed") == 1)
            subprocess.run(["mount", "--bind", str(kept), str(root)], check=True)
            watched.seen.wait(lambda: watched.source.counters().rescans.get("mount_changed") == 2)
            put(root / "b")
            watched.seen.wait_kinds(str(root / "b"), "create", "close_write")
            assert watched.seen.kinds(str(root / "a")) == []
    finally:
        subprocess.run(["umount", "-l", str(root)], check=False, capture_output=True)


def test_an_unmounted_root_without_return_is_believed_gone(tmp_path, mounts) -> None:
    """When the file system stays away, its files count as deleted after the outage time."""
    root = tmp_path / "root"
    root.mkdir()
    mounts(root)
    put(root / "a")
    with watching(str(root), settings=fast(outage_seconds=0.6)) as watched:
        # Busy for as long as the watch happens to look into it.
        watched.seen.wait(lambda: subprocess.run(["umount", str(root)], check=False).returncode == 0)
        watched.seen.wait_kinds(str(root / "a"), "deleted")
        put(root / "b")
        watched.seen.wait_kinds(str(root / "b"), "create", "close_write")


def test_a_mount_below_the_root_is_watched(tmp_path, mounts) -> None:
    """A file system mounted on a directory inside the tree is watched from then on."""
    below = tmp_path / "step-1"
    below.mkdir()
    with watching(str(tmp_path)) as watched:
        mounts(below)
        watched.seen.wait(lambda: watched.source.counters().rescans.get("mount_changed"))
        put(below / "a")
        watched.seen.wait_kinds(str(below / "a"), "create", "close_write")


def test_a_reload_leaves_unchanged_directories_alone(tmp_path) -> None:
    """update() keeps the thread of an unchanged directory, ends the removed one, begins the new one."""
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    for folder in (one, two, three):
        folder.mkdir()
    with watching(str(one), str(two)) as watched:
        kept = watched.source._emitters["run"]
        dropped = watched.source._emitters["run1"]
        watched.source.update([DirectorySettings("run", str(one)), DirectorySettings("new", str(three))])
        assert watched.source._emitters["run"] is kept
        assert not dropped.is_alive()
        watched.seen.wait(lambda: watched.seen.changes().count(("rescan", "start")) == 3)
        put(three / "a")
        watched.seen.wait_kinds(str(three / "a"), "create", "close_write")
        put(one / "a")
        put(two / "a")
        watched.seen.wait_kinds(str(one / "a"), "create", "close_write")
        assert watched.seen.kinds(str(two / "a")) == []
        assert [status.directory for status in watched.source.statuses()] == ["run", "new"]


def test_the_first_facts_of_a_new_directory_are_told(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory added by a reload is told of from its thread's first moment, however late others go on."""
    one, new = tmp_path / "one", tmp_path / "new"
    one.mkdir()
    new.mkdir()
    start = DirectoryEmitter.start

    def start_and_wait(emitter: DirectoryEmitter) -> None:
        start(emitter)
        deadline = time.monotonic() + 10.0
        while watched.source.counters().rescans.get("start", 0) < 2 or not emitter._event_queue.empty():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    with watching(str(one)) as watched:
        monkeypatch.setattr(DirectoryEmitter, "start", start_and_wait)
        watched.source.update([DirectorySettings("run", str(one)), DirectorySettings("new", str(new))])
        watched.seen.wait(lambda: watched.seen.changes().count(("rescan", "start")) == 2, 5.0)


def test_descriptors_are_given_back(tmp_path) -> None:
    """Starting, reloading and stopping leaves no descriptor open."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with watching(str(tmp_path)) as watched:
            put(tmp_path / "a")
            watched.seen.wait(lambda: "close_write" in watched.seen.kinds())
            watched.source.update([])
    assert len(os.listdir("/proc/self/fd")) == before


def test_initial_files_of_a_late_root_are_initial(tmp_path) -> None:
    """Old files that come with a root that appears later are marked as there before, not as a save."""
    staged, root = tmp_path / "staged", tmp_path / "root"
    staged.mkdir()
    put(staged / "old")
    time.sleep(2.2)  # older than the coarsest clock a file system keeps
    with watching(str(root), up=False) as watched:
        watched.seen.wait(lambda: up_changes(watched) == [("down", "missing")])
        os.rename(staged, root)
        put(root / "new")
        watched.seen.wait(lambda: watched.seen.kinds(str(root / "new"))[-1:] == ["close_write"])
        watched.seen.wait(lambda: ("rescan", "appeared") in watched.seen.changes())
        found = [
            fact
            for fact in watched.seen.facts
            if isinstance(fact, FileEvent) and fact.path == str(root / "old")
        ]
        assert [fact.initial for fact in found] == [True]
