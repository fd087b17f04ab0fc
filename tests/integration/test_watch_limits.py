"""The kernel's limits, lost events, broken inotify and failing threads: nothing is lost, all is counted."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Iterator

import pytest

from ckpt_exporter.model import DirectorySettings, Fact
from ckpt_exporter.sources.inotify_calls import InotifyCalls, RawEvent
from ckpt_exporter.sources.watch import WatchSource
from tests.integration.watching import FAST, Recorder, fast, watching


def put(path: str, size: int = 10) -> None:
    with open(path, "wb") as file:
        file.write(b"x" * size)


class Pausable(InotifyCalls):
    """Reads nothing while paused, as a thread that gets no time would."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = threading.Event()
        self.reading.set()
        self.waiting = threading.Event()

    def read(self, fd: int) -> list[RawEvent]:
        if not self.reading.is_set():
            self.waiting.set()
            self.reading.wait(30)
        return super().read(fd)


@pytest.fixture
def short_queue() -> Iterator[int]:
    """Lets new instances queue only 256 events, and puts the machine's setting back."""
    path = "/proc/sys/fs/inotify/max_queued_events"
    try:
        with open(path, "r+") as file:
            before = file.read()
            file.seek(0)
            file.write("256")
    except OSError as error:
        pytest.skip(f"can't set {path}: {error.strerror}")
    yield 256
    with open(path, "w") as file:
        file.write(before)


@pytest.mark.alone
def test_an_overflow_in_a_save_loses_nothing(tmp_path, short_queue: int) -> None:
    """Events are dropped in the middle of a save: one overflow is counted and a rescan finds every file."""
    calls = Pausable()
    with watching(str(tmp_path), calls=calls) as watched:
        os.mkdir(watched.path("old"))
        put(watched.path("old/gone"))
        put(watched.path("old/kept"))
        watched.seen.wait_kinds(watched.path("old/gone"), "create", "close_write")
        watched.seen.wait_kinds(watched.path("old/kept"), "create", "close_write")
        folder = watched.path("step-1/deep")
        os.makedirs(folder)
        watched.seen.wait(
            lambda: watched.engine().roots.find(folder) and watched.engine().roots.find(folder).wd > 0
        )
        put(f"{folder}/0", 100)
        calls.reading.clear()
        put(f"{folder}/1", 100)
        assert calls.waiting.wait(10)
        for index in range(2, 2000):
            put(f"{folder}/{index}", 100)
        os.unlink(watched.path("old/gone"))
        os.rename(watched.path("old"), watched.path("renamed"))
        calls.reading.set()
        expected = {f"{folder}/{index}" for index in range(2000)}
        watched.seen.wait(lambda: closed(watched.seen) >= expected, 20)
        assert watched.source.counters().overflows >= 1
        watched.seen.wait(lambda: watched.source.counters().rescans.get("overflow", 0) >= 1)
        watched.seen.wait(lambda: not watched.source.saving("run"))
        created = [event.path for event in watched.seen.events() if event.event == "create"]
        assert len(created) == len(set(created)) == 2002
        sizes = {
            event.size
            for event in watched.seen.events()
            if event.path in expected and event.event == "close_write"
        }
        assert sizes == {100}
        gone = [event.path for event in watched.seen.events() if event.event == "deleted"]
        assert gone in ([watched.path("old/gone")], [watched.path("renamed/gone")])
        put(watched.path("renamed/late"))
        watched.seen.wait_kinds(watched.path("renamed/late"), "create", "close_write")


def closed(seen: Recorder) -> set[str | None]:
    return {event.path for event in seen.events() if event.event == "close_write"}


@pytest.mark.alone
def test_an_overflow_while_a_file_is_open_ends_with_its_close(tmp_path, short_queue: int) -> None:
    """The close of an open file is among the lost events: it is found closed at its final size."""
    calls = Pausable()
    with watching(str(tmp_path), calls=calls) as watched:
        path = watched.path("model.pt")
        with open(path, "wb") as file:
            file.write(b"x" * 1000)
            file.flush()
            watched.seen.wait(lambda: watched.seen.progress(path))
            calls.reading.clear()
            os.mkdir(watched.path("other"))
            assert calls.waiting.wait(10)
            for index in range(1000):
                put(watched.path(str(index)))
            file.write(b"x" * 500)
        calls.reading.set()
        events = watched.seen.wait_kinds(path, "create", "close_write")
        assert (events[1].size, events[1].found) == (1500, True)


class FewWatches(InotifyCalls):
    """A kernel that allows only so many watches."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.watched: set[int] = set()

    def add_watch(self, fd: int, path: bytes, mask: int) -> int:
        wd = super().add_watch(fd, path, mask)
        if wd not in self.watched and len(self.watched) >= self.limit:
            super().rm_watch(fd, wd)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.watched.add(wd)
        return wd

    def rm_watch(self, fd: int, wd: int) -> None:
        self.watched.discard(wd)
        super().rm_watch(fd, wd)


def test_beyond_the_watch_limit_the_rest_is_polled(tmp_path, caplog: pytest.LogCaptureFixture) -> None:
    """With watches for half of the tree coverage says so, the log names the sysctl, all files are seen."""
    for index in range(40):
        (tmp_path / f"step-{index}").mkdir()
    with (
        caplog.at_level(logging.WARNING, "ckpt_exporter.watch"),
        watching(str(tmp_path), calls=FewWatches(22)) as watched,
    ):
        status = watched.source.statuses()[0]
        assert status.limit_reached
        assert status.watched_directories == 21  # one watch is the canary's
        assert status.coverage == pytest.approx(21 / 41)
        assert status.up
        for index in range(40):
            put(watched.path(f"step-{index}/model.pt"))
        expected = {watched.path(f"step-{index}/model.pt") for index in range(40)}
        watched.seen.wait(lambda: closed(watched.seen) == expected)
        os.makedirs(watched.path("new/deep"))
        put(watched.path("new/deep/model.pt"))
        watched.seen.wait_kinds(watched.path("new/deep/model.pt"), "create", "close_write")
    assert "fs.inotify.max_user_watches" in caplog.text
    assert sum("max_user_watches" in record.message for record in caplog.records) == 1


class NoInstances(InotifyCalls):
    """A kernel that has no inotify instance left, for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.allowed = threading.Event()

    def init(self) -> int:
        if not self.allowed.is_set():
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().init()


def test_without_an_instance_it_polls_and_comes_back(tmp_path, caplog: pytest.LogCaptureFixture) -> None:
    """EMFILE from inotify_init: saves are found by polling, the sysctl is named, inotify returns later."""
    calls = NoInstances()
    put(str(tmp_path / "old"))
    with (
        caplog.at_level(logging.WARNING, "ckpt_exporter.watch"),
        watching(str(tmp_path), calls=calls, settings=fast(retry_seconds=1.0)) as watched,
    ):
        assert watched.source.statuses()[0].backend == "poll"
        os.mkdir(watched.path("step-1"))
        path = watched.path("step-1/model.pt")
        with open(path, "wb") as file:
            for _ in range(3):
                file.write(b"x" * 100_000)
                file.flush()
                time.sleep(0.2)
        (created, done) = watched.seen.wait_kinds(path, "create", "close_write")
        assert (created.found, done.found, done.size) == (True, True, 300_000)
        assert watched.seen.progress(path)
        os.rename(watched.path("step-1"), watched.path("step-2"))
        watched.seen.wait(
            lambda: [e for e in watched.seen.facts if getattr(e, "to", None) == watched.path("step-2")]
        )
        calls.allowed.set()
        watched.seen.wait(lambda: watched.source.statuses()[0].backend == "inotify")
        watched.seen.wait(lambda: watched.source.counters().rescans.get("inotify"))
        put(watched.path("step-2/more.pt"))
        watched.seen.wait_kinds(watched.path("step-2/more.pt"), "create", "close_write")
        assert watched.seen.kinds(watched.path("old")) == []
        assert watched.seen.kinds(watched.path("step-2/model.pt")) == []
        assert watched.source.statuses()[0].up
    assert "fs.inotify.max_user_instances" in caplog.text


def test_a_flapping_mount_is_no_storm_when_polled(tmp_path) -> None:
    """All files vanish for a moment and are back with the same inodes: no delete, no create is reported."""
    root, away = tmp_path / "root", tmp_path / "away"
    root.mkdir()
    for index in range(1000):
        put(str(root / str(index)))
    with watching(str(root), calls=NoInstances(), settings=fast(retry_seconds=60.0)) as watched:
        os.rename(root, away)
        watched.seen.wait(lambda: ("down", "missing") in watched.seen.changes())
        os.rename(away, root)
        watched.seen.wait(lambda: watched.seen.changes()[-1][0] == "up")
        os.rename(root, away)
        root.mkdir()  # the empty mount point
        rounds = watched.engine().rounds
        watched.seen.wait(lambda: watched.engine().rounds >= rounds + 2)
        root.rmdir()
        os.rename(away, root)
        put(str(root / "mark"))
        watched.seen.wait_kinds(str(root / "mark"), "create", "close_write")
        assert watched.seen.kinds() == ["create", "close_write"]


class Deaf(InotifyCalls):
    """An inotify that never delivers an event, as in some sandboxes."""

    def __init__(self, deaf_instances: int) -> None:
        super().__init__()
        self.deaf_instances = deaf_instances
        self.instances: list[int] = []

    def init(self) -> int:
        fd = super().init()
        self.instances.append(fd)
        return fd

    def read(self, fd: int) -> list[RawEvent]:
        events = super().read(fd)
        return [] if len(self.instances) <= self.deaf_instances else events


CANARY = {"canary_seconds": 0.5, "canary_wait_seconds": 0.2}


def test_a_deaf_instance_is_replaced(tmp_path) -> None:
    """The canary raises no event: a new instance is made and the files that were missed are found."""
    with watching(str(tmp_path), calls=Deaf(1), settings=fast(**CANARY)) as watched:
        put(watched.path("model.pt"))
        watched.seen.wait_kinds(watched.path("model.pt"), "create", "close_write")
        assert watched.source.counters().rescans["canary"] == 1
        assert watched.source.statuses()[0].backend == "inotify"
        put(watched.path("next.pt"))
        watched.seen.wait_kinds(watched.path("next.pt"), "create", "close_write")


def test_an_inotify_that_stays_deaf_is_given_up(tmp_path) -> None:
    """Two deaf instances in a row: the directory is polled, and no file is missed or seen twice."""
    settings = fast(retry_seconds=60.0, **CANARY)
    with watching(str(tmp_path), calls=Deaf(1000), settings=settings) as watched:
        put(watched.path("model.pt"))
        watched.seen.wait(lambda: watched.source.statuses()[0].backend == "poll")
        put(watched.path("next.pt"))
        watched.seen.wait_kinds(watched.path("next.pt"), "create", "close_write")
        watched.seen.wait_kinds(watched.path("model.pt"), "create", "close_write")


def test_a_canary_that_sings_changes_nothing(tmp_path) -> None:
    """With a working inotify many canaries pass without a rescan or a fact."""
    settings = fast(canary_seconds=0.05, canary_wait_seconds=1.0)
    with watching(str(tmp_path), settings=settings) as watched:
        put(watched.path("model.pt"))
        watched.seen.wait_kinds(watched.path("model.pt"), "create", "close_write")
        until = time.monotonic() + 1.0
        watched.seen.wait(lambda: time.monotonic() > until)
        assert watched.source.counters().rescans == {"start": 1}
        assert watched.seen.kinds() == ["create", "close_write"]


def test_a_dead_thread_is_started_again(tmp_path) -> None:
    """An emitter that fails is replaced; it is unhealthy meanwhile, and what happened in between is found."""
    with watching(str(tmp_path), settings=fast(restart_seconds=0.3)) as watched:
        put(watched.path("before"))
        watched.seen.wait_kinds(watched.path("before"), "create", "close_write")
        emitter = watched.source._emitters["run"]
        emitter.fail_next_step = True
        emitter.engine.wake()
        watched.seen.wait(lambda: not emitter.is_alive())
        put(watched.path("between"))
        watched.seen.wait_kinds(watched.path("between"), "create", "close_write")
        watched.seen.wait(lambda: watched.source.counters().rescans.get("restart") == 1)
        assert watched.source.healthy
        assert watched.seen.kinds(watched.path("before")) == ["create", "close_write"]
        put(watched.path("after"))
        watched.seen.wait_kinds(watched.path("after"), "create", "close_write")


def test_a_dead_thread_is_unhealthy(tmp_path) -> None:
    """Until the supervisor has restarted it, a dead emitter shows in healthy and in its status."""
    with watching(str(tmp_path), settings=fast(supervise_seconds=60.0)) as watched:
        assert watched.source.healthy
        emitter = watched.source._emitters["run"]
        emitter.fail_next_step = True
        emitter.engine.wake()
        watched.seen.wait(lambda: not emitter.is_alive())
        assert not watched.source.healthy
        assert watched.source.statuses()[0].up is False


def test_a_failing_reader_does_not_end_the_watch(tmp_path) -> None:
    """An exception in emit is counted and logged; the facts after it still come."""
    seen: list[Fact] = []

    def emit(fact: Fact) -> None:
        seen.append(fact)
        if len(seen) == 1:
            raise ValueError("a fault of the reader")

    source = WatchSource([DirectorySettings("run", str(tmp_path))], emit, settings=FAST)
    source.start()
    try:
        deadline = time.monotonic() + 10
        while len(seen) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(seen) >= 2
        assert source.handler.failures == 1
        assert source.healthy
    finally:
        source.stop()


def test_a_full_queue_loses_no_event(tmp_path) -> None:
    """While the reader hangs the bounded queue fills and the watch waits; every file is told afterwards."""
    recorder = Recorder()
    gate = threading.Event()
    gate.set()

    def emit(fact: Fact) -> None:
        gate.wait(30)
        recorder.emit(fact)

    source = WatchSource([DirectorySettings("run", str(tmp_path))], emit, settings=fast(queue_size=50))
    source.start()
    try:
        recorder.wait(lambda: ("rescan", "start") in recorder.changes())
        gate.clear()
        for index in range(300):
            put(str(tmp_path / str(index)))
        gate.set()
        recorder.wait(lambda: recorder.kinds().count("close_write") == 300)
        assert recorder.kinds().count("create") == 300
    finally:
        source.stop()


def test_a_hung_directory_stops_only_itself(tmp_path) -> None:
    """One directory's file system does not answer: it is down, the others go on, and stop() returns."""
    stuck = threading.Event()

    class Hanging(InotifyCalls):
        def add_watch(self, fd: int, path: bytes, mask: int) -> int:
            if b"bad" in path:
                stuck.wait(20)
            return super().add_watch(fd, path, mask)

    good, bad = tmp_path / "good", tmp_path / "bad"
    good.mkdir()
    bad.mkdir()
    try:
        # Far above the half second after which an idle thread shows that it lives.
        settings = fast(hung_seconds=2.0)
        with watching(str(good), str(bad), calls=Hanging(), settings=settings, up=False) as watched:
            watched.seen.wait(lambda: ("down", "hung") in watched.seen.changes())
            put(str(good / "a"))
            watched.seen.wait_kinds(str(good / "a"), "create", "close_write")
            assert [status.up for status in watched.source.statuses()] == [True, False]
            assert not watched.source.healthy
            assert sum(thread.name == "watch-run1" for thread in threading.enumerate()) == 1
    finally:
        stuck.set()
