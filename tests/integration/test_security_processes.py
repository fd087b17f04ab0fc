"""What someone with an account on the node can make the daemon do, and what it tells about processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ckpt_exporter.sources.procfs import read_bytes, read_environment
from ckpt_exporter.sources.runs import identify_run
from tests.integration.daemon import get, wait_until, watching

NOBODY = 65534
SECRET = "hunter2-geheim"
# Holds the file open until it is told to go on, so that its process is found.
WRITER = """
import sys
with open(sys.argv[1], "wb", buffering=0) as stream:
    stream.write(b"w" * 300_000)
    print("open", flush=True)
    sys.stdin.readline()
"""


def as_nobody(line: str) -> subprocess.CompletedProcess[str]:
    """Run a shell's line as somebody without any right."""
    return subprocess.run(
        ["/bin/sh", "-c", line], user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, text=True,
        check=False, cwd="/",
    )  # fmt: skip


def test_environment_and_command_line_stay_secret(tmp_path: Path) -> None:
    """No secret of a writer's environment or arguments is in a metric, on the page, in log or recording."""
    recording = tmp_path / "recording"
    with watching(tmp_path, "a", arguments=[f"--record.path={recording}"]) as daemon:
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, tmp_path / "a" / "model-step-1.pt", f"--token={SECRET}"],
            env={**os.environ, "API_KEY": SECRET, "TORCHELASTIC_RUN_ID": "open-run"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"open\n"
        wait_until(lambda: "open-run" in daemon.text())
        text = daemon.text()
        writer.communicate(b"\n", timeout=10)
        daemon.expect("a", 1, size_bytes=300_000, files=1)
        told = [text, daemon.text("application/openmetrics-text"), get(daemon.url + "/")]
        # Without the values, in whose digits any number may be.
        samples = [line.rpartition(" ")[0] for line in text.splitlines() if line.startswith("ckpt_")]
    told += [daemon.log_path.read_text(), recording.read_text()]
    assert 'run="open-run"' in text
    assert not [text for text in told if SECRET in text]
    pid = re.compile(rf'(?<!le)="[^"]*(?<!\d){writer.pid}(?!\d)')
    assert not [line for line in samples if "model-step-1" in line or pid.search(line)]


def test_a_run_name_of_any_length_is_cut(tmp_path: Path) -> None:
    """A process that gives itself a name of 100,000 characters gets a label of 200."""
    environment = {"TORCHELASTIC_RUN_ID": "x" * 100_000}
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], env=environment, stdin=subprocess.PIPE
    ) as process:
        try:
            found = identify_run((process.pid,))
        finally:
            process.communicate(b"\n")
    if found.scheduler == "torchelastic":
        assert (found.run, found.run_id) == ("x" * 200, "x" * 200)
    assert all(len(text or "") <= 200 for text in (found.run, found.run_id))


def test_an_environment_without_end(tmp_path: Path) -> None:
    """Of an environment laid over all of a process's memory the beginning is read, not all of it."""
    (tmp_path / "7").mkdir()
    with open(tmp_path / "7" / "environ", "wb") as stream:
        stream.write(b"A=b\0")
        stream.truncate(1 << 40)
    assert len(read_bytes(f"{tmp_path}/7/environ") or b"") == 8 * 1024 * 1024
    assert read_environment(7, str(tmp_path))["A"] == "b"


def test_signals_of_other_users(tmp_path: Path) -> None:
    """Another user can neither end the daemon nor make it read its configuration or let go of the GPUs."""
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    with watching(tmp_path, "a") as daemon:
        for name in ("TERM", "HUP", "USR1", "KILL", "STOP"):
            ended = as_nobody(f"kill -{name} {daemon.process.pid}")
            assert ended.returncode != 0
            assert "not permitted" in ended.stderr
        assert daemon.scrape().value("ckpt_config_last_reload_successful") == 1
        assert not daemon.logged("configuration reloaded")


def test_memory_and_descriptors_of_the_daemon_are_its_own(tmp_path: Path) -> None:
    """Another user can read neither the daemon's memory, nor its environment, nor what it has open."""
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    with watching(tmp_path, "a") as daemon:
        where = f"/proc/{daemon.process.pid}"
        for what in ("environ", "mem", "fd/", "maps"):
            ended = as_nobody(f"ls {where}/{what} && cat {where}/{what}")
            assert ended.returncode != 0
            assert "ermission denied" in ended.stderr


def test_the_daemon_listens_for_no_commands(tmp_path: Path) -> None:
    """The daemon has one listening socket, that of its web server, and none of another kind."""
    with watching(tmp_path, "a") as daemon:
        inodes = set()
        for link in Path(f"/proc/{daemon.process.pid}/fd").iterdir():
            target = os.readlink(link)
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
        tables = {
            name: Path(f"/proc/{daemon.process.pid}/net/{name}") for name in ("tcp", "tcp6", "udp", "unix")
        }
        open_in = {
            name: [line for line in path.read_text().splitlines()[1:] if inodes & set(line.split())]
            for name, path in tables.items()
            if path.exists()
        }
    listening = [line for line in [*open_in["tcp"], *open_in.get("tcp6", [])] if line.split()[3] == "0A"]
    assert len(listening) == 1
    assert not open_in["udp"]
