"""Starting the daemon: what is there from the first scrape, and what a user's mistake gives."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration import checkpoints
from tests.integration.daemon import (
    REPOSITORY,
    RESULTS,
    Daemon,
    command,
    launch,
    run_to_end,
    wait_until,
    watching,
    write_config,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

NOBODY = 65534


@pytest.fixture
def public_path() -> Iterator[Path]:
    """Make a directory that any user may enter."""
    path = Path(tempfile.mkdtemp(prefix="ckpt-public-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def need_nobody() -> None:
    """Skip unless a daemon can be started as a user without any right."""
    if os.geteuid() != 0:
        pytest.skip("needs root to start the daemon as another user")


def assert_unprivileged(daemon: Daemon) -> None:
    """Check that the kernel sees a process of that user, without groups and without capabilities."""
    status = Path(f"/proc/{daemon.process.pid}/status").read_text().splitlines()
    fields = dict(line.split(":\t", 1) for line in status if ":\t" in line)
    assert fields["Uid"].split() == fields["Gid"].split() == [str(NOBODY)] * 4
    assert fields["Groups"].split() == []
    assert {int(fields[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}


def test_series_from_the_first_scrape(tmp_path: Path) -> None:
    """Every configured directory has its counters at 0 in the first scrape, also one that does not exist."""
    (tmp_path / "there").mkdir()
    config = write_config(
        tmp_path / "c.yml", {"there": tmp_path / "there", "missing": tmp_path / "not" / "yet"}
    )
    with launch(tmp_path / "log", "run", f"--config.file={config}") as daemon:
        scrape = daemon.scrape()
        for name in ("there", "missing"):
            for result in RESULTS:
                assert scrape.value("ckpt_saves_total", dir=name, result=result) == 0
            for counter in (
                "ckpt_save_bytes_total", "ckpt_save_files_total", "ckpt_written_bytes_total",
                "ckpt_write_active_seconds_total", "ckpt_deleted_checkpoints_total",
                "ckpt_save_duration_seconds_count", "ckpt_saves_in_progress", "ckpt_save_stalled",
                "ckpt_save_in_progress_seconds",
            ):  # fmt: skip
                assert scrape.value(counter, dir=name) == 0
            assert scrape.get("ckpt_last_save_duration_seconds", dir=name) is None
        assert scrape.value("ckpt_watch_up", dir="missing", backend="inotify") == 0
        assert scrape.value("ckpt_config_last_reload_successful") == 1


def test_directory_that_comes_later(tmp_path: Path) -> None:
    """A directory that is made after the start, several levels deep, is watched and its save counted."""
    late = tmp_path / "data" / "runs" / "ckpt"
    config = write_config(tmp_path / "c.yml", {"late": late})
    with launch(tmp_path / "log", "run", f"--config.file={config}") as daemon:
        late.mkdir(parents=True)
        daemon.wait_watching("late")
        truth = checkpoints.hugging_face(late, 100, 50_000)
        daemon.expect("late", 1, size_bytes=truth.size_bytes, files=truth.files)
        daemon.recheck()


def test_save_right_after_its_directory_was_made(tmp_path: Path) -> None:
    """A save that a job writes right after it has made the configured directory is counted."""
    late = tmp_path / "data" / "ckpt"
    config = write_config(tmp_path / "c.yml", {"late": late})
    with launch(tmp_path / "log", "run", f"--config.file={config}") as daemon:
        late.mkdir(parents=True)
        truth = checkpoints.hugging_face(late, 100, 50_000)
        daemon.expect("late", 1, size_bytes=truth.size_bytes, files=truth.files)


def test_symlinked_directory(tmp_path: Path) -> None:
    """A configured path that is a symbolic link is followed."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    config = write_config(tmp_path / "c.yml", {"link": tmp_path / "link"})
    with launch(tmp_path / "log", "run", f"--config.file={config}") as daemon:
        daemon.wait_watching("link")
        truth = checkpoints.distributed(tmp_path / "real", 10, 20_000)
        daemon.expect("link", 1, size_bytes=truth.size_bytes, files=truth.files)


def test_path_that_is_a_file(tmp_path: Path) -> None:
    """A configured path that is a file is a state in the metrics; other directories go on."""
    (tmp_path / "file").write_text("no directory")
    (tmp_path / "good").mkdir()
    config = write_config(tmp_path / "c.yml", {"file": tmp_path / "file", "good": tmp_path / "good"})
    with launch(tmp_path / "log", "run", f"--config.file={config}") as daemon:
        daemon.wait_watching("good")
        truth = checkpoints.plain_file(tmp_path / "good", 1, 10_000)
        daemon.expect("good", 1, size_bytes=truth.size_bytes, files=1)
        up = daemon.scrape().series(dir="file")
        assert [value for name, value in up.items() if name.startswith("ckpt_watch_up")] == [0]
        assert daemon.tally("file")["complete"] == 0


def test_unreadable_directory(public_path: Path) -> None:
    """A directory that the daemon may not read is a state and one log line; the daemon goes on."""
    need_nobody()
    closed, good = public_path / "closed", public_path / "good"
    closed.mkdir(mode=0o700)
    good.mkdir()
    config = write_config(public_path / "c.yml", {"closed": closed, "good": good})
    with launch(public_path / "log", "run", f"--config.file={config}", user=NOBODY) as daemon:
        assert_unprivileged(daemon)
        daemon.wait_watching("good")
        truth = checkpoints.hugging_face(good, 7, 30_000)
        (good / "checkpoint-7" / "optimizer.pt").chmod(0o600)
        daemon.expect("good", 1, size_bytes=truth.size_bytes, files=truth.files)
        up = daemon.scrape().series(dir="closed")
        assert [value for name, value in up.items() if name.startswith("ckpt_watch_up")] == [0]
        assert len([line for line in daemon.log() if line.get("dir") == "closed"]) == 1


def test_save_of_private_files_seen_unprivileged(public_path: Path) -> None:
    """A daemon without any right counts a save whose files it may not open."""
    need_nobody()
    root = public_path / "ckpt"
    root.mkdir()
    config = write_config(public_path / "c.yml", {"ckpt": root})
    with launch(public_path / "log", "run", f"--config.file={config}", user=NOBODY) as daemon:
        assert_unprivileged(daemon)
        daemon.wait_watching("ckpt")
        before = os.umask(0o077)
        try:
            checkpoints.renamed_file(root, 3, 70_000)
        finally:
            os.umask(before)
        daemon.expect("ckpt", 1, size_bytes=70_000, files=1)


# Holds its file open until it is told to go on, so that its process can be found.
PRIVATE_WRITER = 'umask 077; exec > "$0"; head -c 300000 /dev/zero; echo open >&2; read line'


@pytest.mark.parametrize(("writer", "lost"), [(0, {"ckpt_run_info"}), (NOBODY, set[str]())])
def test_what_a_daemon_without_rights_cannot_tell(public_path: Path, writer: int, lost: set[str]) -> None:
    """Of a save by another user it does not know the run, of one by its own user it knows everything."""
    need_nobody()
    root = public_path / "ckpt"
    root.mkdir()
    root.chmod(0o777)
    config = f"--config.file={write_config(public_path / 'c.yml', {'ckpt': root})}"
    with (
        launch(public_path / "log", "run", config) as privileged,
        launch(public_path / "log-2", "run", config, user=NOBODY) as other,
    ):
        assert_unprivileged(other)
        daemons = (privileged, other)
        for daemon in daemons:
            daemon.wait_watching("ckpt")
        with subprocess.Popen(
            ["/bin/sh", "-c", PRIVATE_WRITER, root / "model-step-3.pt"], user=writer, group=writer,
            extra_groups=[], stdin=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "TORCHELASTIC_RUN_ID": "r7"},
        ) as process:  # fmt: skip
            assert process.stderr is not None
            assert process.stderr.readline() == b"open\n"
            knowing = daemons if not lost else (privileged,)
            wait_until(lambda: all("r7" in daemon.text() for daemon in knowing))
            wait_until(lambda: all(daemon.tally("ckpt")["open"] == 1 for daemon in daemons))
            process.communicate(b"\n")
        for daemon in daemons:
            daemon.expect("ckpt", 1, size_bytes=300_000, files=1)
        known, told = (daemon.scrape().series(dir="ckpt") for daemon in daemons)
    assert {name.split("[")[0] for name in known.keys() - told.keys()} == lost
    assert told.keys() <= known.keys()
    assert told["ckpt_last_save_step[]"] == 3


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("directories: [", "c.yml: "),
        ("directorys: []\n", "c.yml: directorys: "),
        ("directories: [{name: a, path: /data}]\ndetect: {quiet_second: 1}\n", "detect.quiet_second: "),
        ("directories: [{name: a, path: /data}]\ndetect: {quiet_seconds: soon}\n", "detect.quiet_seconds: "),
        ("directories: [{name: a, path: relative}]\n", "directories[0].path: "),
        ("directories: [{name: a, path: /a}, {name: a, path: /b}]\n", "directories[1].name: "),
        ("directories: []\n", "directories: "),
    ],
)
@pytest.mark.parametrize("subcommand", ["run", "check"])
def test_bad_configuration(tmp_path: Path, subcommand: str, text: str, problem: str) -> None:
    """A wrong configuration is refused with status 2 and lines that name the file and the key."""
    (tmp_path / "c.yml").write_text(text)
    ended = run_to_end(subcommand, f"--config.file={tmp_path / 'c.yml'}")
    assert ended.returncode == 2
    assert ended.stdout == ""
    lines = ended.stderr.splitlines()
    assert lines
    assert all(line.startswith(f"{tmp_path / 'c.yml'}: ") for line in lines)
    assert problem in ended.stderr


def test_every_problem_at_once(tmp_path: Path) -> None:
    """All problems of a configuration are named in one run, with a hint at the nearest key."""
    (tmp_path / "c.yml").write_text(
        "directories: [{name: a, path: /a}]\ndetect: {quiet_secs: 1, min_bytes: -1}\nweb: {listen: x}\n"
    )
    ended = run_to_end("check", f"--config.file={tmp_path / 'c.yml'}")
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 3
    assert "quiet_seconds" in ended.stderr


def test_check_of_a_good_file(tmp_path: Path) -> None:
    """A good configuration passes ``check`` with status 0, and nothing is made."""
    config = write_config(tmp_path / "c.yml", {"a": tmp_path / "none"})
    ended = run_to_end("check", f"--config.file={config}")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert not (tmp_path / "none").exists()


def test_missing_configuration_file(tmp_path: Path) -> None:
    """A configuration file that does not exist is named in one line."""
    ended = run_to_end("run", f"--config.file={tmp_path / 'none.yml'}")
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert "none.yml" in ended.stderr


def test_nothing_to_watch() -> None:
    """``run`` without configuration and directory is a usage error that says what to write."""
    ended = run_to_end("run")
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert "--watch" in ended.stderr


def test_port_in_use(tmp_path: Path) -> None:
    """An address that is taken ends the program with status 1 and one line."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run_to_end("run", "--watch", tmp_path, f"--web.listen-address=127.0.0.1:{port}")
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1
    assert str(port) in ended.stderr


def test_recording_below_a_watched_directory(tmp_path: Path) -> None:
    """A recording that would be written below a watched directory is refused."""
    ended = run_to_end(
        "run", "--watch", tmp_path, f"--record.path={tmp_path / 'rec'}", "--web.listen-address=127.0.0.1:0"
    )
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1
    assert not (tmp_path / "rec").exists()


@pytest.mark.alone
def test_demo() -> None:
    """The demo shows a complete save within 15 seconds, its bubble within 30, and cleans up after itself."""
    with tempfile.TemporaryDirectory(prefix="ckpt-demo-") as log:
        with launch(Path(log, "log"), "demo", "--duration=60") as daemon:
            complete = {"dir": "demo", "result": "complete"}
            wait_until(lambda: daemon.scrape().value("ckpt_saves_total", **complete) >= 1, 15.0)
            assert daemon.scrape().value("ckpt_last_save_step", dir="demo") >= 100
            bubble = ("ckpt_last_save_bubble_seconds", frozenset({("dir", "demo")}))
            wait_until(lambda: bubble in daemon.scrape().samples, 15.0)
            path = next(line["path"] for line in daemon.logged("save ended"))
        assert not os.path.exists(os.path.dirname(path))


def test_demo_ends_by_itself(tmp_path: Path) -> None:
    """The demo ends after its duration with status 0."""
    ended = subprocess.run(
        command("demo", "--web.listen-address=127.0.0.1:0", "--duration=1"),
        cwd=REPOSITORY, capture_output=True, timeout=30, check=False,
    )  # fmt: skip
    assert ended.returncode == 0
    assert b"Traceback" not in ended.stderr


def test_logfmt_lines(tmp_path: Path) -> None:
    """A short life in logfmt is a few single lines that each begin with their time."""
    process = subprocess.Popen(
        command("run", "--watch", tmp_path, "--web.listen-address=127.0.0.1:0"),
        cwd=REPOSITORY, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "listening" in line:
            process.terminate()
    process.stderr.close()
    assert process.wait(timeout=10) == 0
    assert all(line.startswith("ts=") for line in lines)


def test_watch_flag_names_its_directory(tmp_path: Path) -> None:
    """``--watch NAME=PATH`` needs no configuration file."""
    (tmp_path / "ckpt").mkdir()
    with launch(tmp_path / "log", "run", "--watch", f"mine={tmp_path / 'ckpt'}") as daemon:
        daemon.wait_watching("mine")
        assert daemon.tally("mine")["complete"] == 0


def test_defaults_of_the_program(tmp_path: Path) -> None:
    """A burst smaller than ``min_bytes`` without a checkpoint's name is no save."""
    with watching(tmp_path, "a", min_bytes="1MiB") as daemon:
        checkpoints.put(tmp_path / "a" / "notes.bin", 1_000)
        checkpoints.put(tmp_path / "a" / "model.bin", 2 << 20)
        daemon.expect("a", 1, size_bytes=(2 << 20) + 1_000, files=2)
        checkpoints.put(tmp_path / "a" / "other.bin", 5_000)
        daemon.recheck(2.0)


# Stands before the real module: says that the import has come so far, and goes on when told to.
BLOCKED_IMPORT = """
import importlib, os, sys
with open(os.environ["GATE"]) as gate:
    gate.read()
sys.path.remove(os.path.dirname(__file__))
del sys.modules["yaml"]
importlib.import_module("yaml")
"""


def open_gate(path: Path) -> int:
    """Wait until somebody reads from a fifo; return its other end."""
    found: list[int] = []

    def opened() -> bool:
        with contextlib.suppress(OSError):
            found.append(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        return bool(found)

    wait_until(opened)
    return found[0]


@contextlib.contextmanager
def blocked_start(tmp_path: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start the program and hold it in the middle of its imports until the returned descriptor is closed."""
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "yaml.py").write_text(BLOCKED_IMPORT)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "first"), "GATE": str(gate)}
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(command(*arguments), cwd=REPOSITORY, stderr=log, env=environment)
    try:
        yield process, open_gate(gate)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_before_it_has_loaded(tmp_path: Path, number: signal.Signals) -> None:
    """A stop that comes while modules are still being loaded ends with status 0 and not a word."""
    with blocked_start(tmp_path, "run", f"--watch={tmp_path}") as (process, gate):
        process.send_signal(number)
        assert process.wait(timeout=20) == 0
        os.close(gate)
    assert (tmp_path / "log").read_text() == ""


def test_stopped_while_it_waits_for_its_configuration(tmp_path: Path) -> None:
    """A stop that comes while the configuration cannot be read yet ends with status 0 and not a word."""
    os.mkfifo(tmp_path / "c.yml")
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(
            command("run", f"--config.file={tmp_path}/c.yml"), cwd=REPOSITORY, stderr=log
        )
    try:
        gate = open_gate(tmp_path / "c.yml")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
        os.close(gate)
    finally:
        process.kill()
        process.wait()
    assert (tmp_path / "log").read_text() == ""


def test_reload_before_it_has_loaded(tmp_path: Path) -> None:
    """A reload asked for while modules are still being loaded neither ends the daemon nor gets lost."""
    config = write_config(tmp_path / "c.yml", {"a": tmp_path})
    arguments = (f"--config.file={config}", "--web.listen-address=127.0.0.1:0", "--log.format=json")
    with blocked_start(tmp_path, "run", *arguments) as (process, gate):
        process.send_signal(signal.SIGHUP)
        os.close(gate)
        wait_until(lambda: "configuration reloaded" in (tmp_path / "log").read_text())
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0


def test_other_commands_are_ended_by_a_signal(tmp_path: Path) -> None:
    """A report that is ended by SIGTERM does not claim to have succeeded."""
    with blocked_start(tmp_path, "report") as (process, gate):
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == -signal.SIGTERM
        os.close(gate)
