"""A machine of its own for tests: Debian with systemd as PID 1, in a container that is thrown away."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

TOOLS = ("mmdebstrap", "systemd-nspawn", "nsenter")
PACKAGES = "systemd,systemd-sysv,dbus,python3,python3-venv"


def missing() -> str | None:
    """Say why no machine can be had here, None if one can."""
    if os.geteuid() != 0:
        return "needs root"
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"needs {', '.join(absent)}" if absent else None


def make_root(directory: Path) -> None:
    """Install a minimal Debian; takes a quarter of a minute and the network."""
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}", "bookworm", directory]
    subprocess.run(command, check=True, capture_output=True, timeout=300)


@dataclass(frozen=True)
class Machine:
    """A booted machine; it shares the host's network. ``leader`` is its PID 1 as the host counts."""

    leader: int

    def run(self, command: str, *, check: bool = True, seconds: float = 120.0, **environment: str) -> str:
        """Run a shell script inside, stop at its first failure, and return what it said."""
        enter = ["nsenter", "-t", str(self.leader), "-m", "-u", "-i", "-n", "-p", "--"]
        settings = [f"{name}={value}" for name, value in environment.items()]
        path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
        done = subprocess.run(
            [*enter, "/usr/bin/env", "-i", path, *settings, "/bin/sh", "-ec", command],
            capture_output=True, text=True, timeout=seconds, check=False,
        )  # fmt: skip
        said = done.stdout + done.stderr
        assert done.returncode == 0 or not check, f"{command}\n{said}"
        return said.strip()

    def unit(self, name: str, *properties: str) -> dict[str, str]:
        """Return properties of a unit."""
        wanted = [f"--property={name}" for name in properties]
        lines = self.run(f"systemctl show {name} {' '.join(wanted)}").splitlines()
        return dict(line.split("=", 1) for line in lines)


@contextlib.contextmanager
def booted(root: Path, binds: Sequence[str]) -> Iterator[Machine]:
    """Boot a root directory, which stays as it is, and switch the machine off at the end."""
    command = [
        "systemd-nspawn", "--quiet", f"--directory={root}", "--volatile=overlay", "--register=no",
        "--keep-unit", "--boot", "--console=pipe", *(f"--bind-ro={bind}" for bind in binds),
    ]  # fmt: skip
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            machine = Machine(_until(lambda: _leader(process.pid), "PID 1 of the machine"))
            _until(
                lambda: machine.run("systemctl is-system-running", check=False) in ("running", "degraded"),
                "boot",
            )
            yield machine
        finally:
            process.terminate()  # systemd-nspawn tells the machine to power off
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()


def _is_up(machine: Machine) -> bool:
    return machine.run("systemctl is-system-running", check=False) in ("running", "degraded")


def _until(condition: Callable[[], int], what: str, seconds: float = 30.0) -> int:
    ends = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < ends, f"not within {seconds} s: {what}"
        time.sleep(0.1)
    return found


def _leader(container: int) -> int:
    """Find the process that is PID 1 inside."""
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError):
                status = Path("/proc", name, "status").read_text()
                fields = dict(line.split(":", 1) for line in status.splitlines())
                if fields["NSpid"].split()[1:] == ["1"] and _descends(int(name), container):
                    return int(name)
    return 0


def _descends(pid: int, ancestor: int) -> bool:
    while pid > 1:
        if pid == ancestor:
            return True
        stat = Path(f"/proc/{pid}/stat").read_text()
        pid = int(stat.rpartition(")")[2].split()[1])
    return False
