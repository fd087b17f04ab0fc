"""The unit files on a booted machine: installed by the README's words, with the shipped rights only.

Needs root, mmdebstrap and systemd-nspawn, and takes about a minute and a half, so it must be asked for:
``CKPT_EXPORTER_BOOT=1 make test-deploy``. ``CKPT_EXPORTER_BOOT_ROOT=DIR`` keeps the Debian root for later.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.deploy.nspawn import Machine, booted, make_root, missing
from tests.integration.daemon import Scrape, parse_scrape, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).resolve().parents[2]
UNITS = REPOSITORY / "deploy/systemd"
UNIT = "ckpt-exporter.service"
DROP_INS = f"/etc/systemd/system/{UNIT}.d"

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not os.environ.get("CKPT_EXPORTER_BOOT"), reason="CKPT_EXPORTER_BOOT=1 asks for a booted machine"
    ),
]


def script(number: int) -> str:
    """Return one of the README's shell blocks."""
    return re.findall(r"^```sh\n(.*?)^```", (UNITS / "README.md").read_text(), re.DOTALL | re.MULTILINE)[
        number
    ]


def make_wheels(directory: Path) -> None:
    """Build our wheel, and fetch what it needs for the Python of Debian 12."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", directory, REPOSITORY], check=True, timeout=300)
    (wheel,) = directory.glob("ckpt_exporter-*.whl")
    target = ["--python-version=3.11", "--only-binary=:all:", "--dest", directory]
    subprocess.run([*pip, "download", *target, f"{wheel}[auth]"], check=True, timeout=300)


class Installed:
    """A machine with the exporter on it."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def configure(self, *paths: str) -> None:
        """Write the configuration for these directories, each named by its last part."""
        listed = "".join(f"  - {{name: {path.rpartition('/')[2]}, path: {path}}}\n" for path in paths)
        settings = "detect: {quiet_seconds: 1}\n"
        text = f"directories:\n{listed}{settings}web: {{listen_address: '127.0.0.1:{self.port}'}}\n"
        self.machine.run(f"cat > /etc/ckpt-exporter/config.yml <<'END'\n{text}END")

    def drop_in(self, name: str, text: str | None = None) -> None:
        """Install one of the shipped drop-ins, or a text of the test's."""
        source = (
            f"cp /units/drop-ins/{name}.conf {DROP_INS}/"
            if text is None
            else f"printf '{text}' > {DROP_INS}/{name}.conf"
        )
        self.machine.run(f"mkdir -p {DROP_INS}; {source}; systemctl daemon-reload; systemctl restart {UNIT}")

    def remove_drop_ins(self) -> None:
        """Go back to the unit as shipped."""
        self.machine.run(f"rm -rf {DROP_INS}; systemctl daemon-reload; systemctl restart {UNIT}")

    def show(self, *properties: str) -> dict[str, str]:
        """Return properties of the service."""
        return self.machine.unit(UNIT, *properties)

    def scrape(self, path: str = "/metrics") -> Scrape:
        """Scrape from outside."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return parse_scrape(answer.read().decode())

    def value(self, name: str, **labels: str) -> float | None:
        """Return one value of a scrape, None where it is absent or nobody answers."""
        try:
            return self.scrape().get(name, **labels)
        except (urllib.error.URLError, ConnectionError):
            return None

    def save(self, path: str, mode: str = "644") -> None:
        """Write a checkpoint of 2 000 000 bytes as root."""
        self.machine.run(
            f"mkdir -p {path}; head -c 2000000 /dev/zero > {path}/a.tmp; chmod {mode} {path}/a.tmp; "
            f"mv {path}/a.tmp {path}/model.safetensors"
        )

    def slow_save(self, path: str) -> None:
        """Write a checkpoint of 4 000 000 bytes as root, with time to look who writes."""
        self.machine.run(
            f"mkdir {path}; exec 9> {path}/model.safetensors; "
            "for i in 1 2 3 4 5 6 7 8; do head -c 500000 /dev/zero >&9; sleep 0.3; done"
        )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """Boot a machine and install as the README says, from wheels."""
    if (why := missing()) is not None:
        pytest.skip(why)
    base = tmp_path_factory.mktemp("boot")
    kept = os.environ.get("CKPT_EXPORTER_BOOT_ROOT")
    root = Path(kept) if kept else base / "root"
    if not (root / "etc").is_dir():
        make_root(root)
    wheels = base / "wheels"
    wheels.mkdir()
    make_wheels(wheels)
    with booted(root, [f"{wheels}:/wheels", f"{UNITS}:/units"]) as machine:
        made = Installed(machine)
        offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        machine.run(f"cd /units\n{script(0)}", seconds=300, **offline)
        machine.run("mkdir -p /data/ckpt /data/other")
        made.configure("/data/ckpt")
        machine.run(script(1))
        yield made


def test_installed_by_the_readme(installed: Installed) -> None:
    """It starts, says that it is ready and what it watches, and answers a scrape."""
    found = installed.show("ActiveState", "StatusText", "Type", "NRestarts")
    assert found == {
        "ActiveState": "active",
        "StatusText": "watching 1 of 1 directories",
        "Type": "notify",
        "NRestarts": "0",
    }
    assert installed.value("ckpt_watch_up", dir="ckpt", backend="inotify") == 1


def test_its_rights(installed: Installed) -> None:
    """It runs as its own user, without capability, with the call filter on, and its state is its own."""
    pid = installed.show("MainPID")["MainPID"]
    status = installed.machine.run(f"cat /proc/{pid}/status; stat -c '%U %a' /var/lib/ckpt-exporter; id -un")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert (fields["CapEff"], fields["CapBnd"]) == ("0" * 16, "0" * 16)
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
    assert fields["Uid"].split()[0] != "0"
    assert "ckpt-exporter 750" in status


def test_a_save_of_another_user(installed: Installed) -> None:
    """A save by root in a tree that others may list is whole: result, bytes, files and duration."""
    installed.save("/data/ckpt/checkpoint-1")
    wait_until(lambda: installed.value("ckpt_saves_total", dir="ckpt", result="complete") == 1, 30)
    scrape = installed.scrape()
    assert scrape.value("ckpt_last_save_bytes", dir="ckpt") == 2_000_000
    assert scrape.value("ckpt_last_save_files", dir="ckpt") == 1
    assert scrape.get("ckpt_last_save_duration_seconds", dir="ckpt") is not None


def test_files_that_only_their_owner_may_read(installed: Installed) -> None:
    """Sizes need no right to read: a save of 0600 files has all its bytes."""
    installed.save("/data/ckpt/checkpoint-2", mode="600")
    wait_until(lambda: installed.value("ckpt_saves_total", dir="ckpt", result="complete") == 2, 30)
    assert installed.value("ckpt_last_save_bytes", dir="ckpt") == 2_000_000


def test_what_is_lost(installed: Installed) -> None:
    """As shipped the run is unknown and no GPU is read, as the README says; nothing has failed."""
    installed.slow_save("/data/ckpt/checkpoint-3")
    wait_until(lambda: installed.value("ckpt_saves_total", dir="ckpt", result="complete") == 3, 30)
    assert installed.value("ckpt_last_save_bytes", dir="ckpt") == 4_000_000
    names = {name for name, _ in installed.scrape().samples}
    assert "ckpt_run_info" not in names
    assert "ckpt_gpu_up" not in names
    assert installed.value("ckpt_collector_success", collector="saves") == 1
    log = installed.machine.run(f"journalctl --no-pager -o cat -u {UNIT}")
    assert "Traceback" not in log
    assert "level=error" not in log


def test_a_tree_that_only_its_owner_may_list(installed: Installed) -> None:
    """A 0700 tree is a state (not watched, said in the log), and the drop-in for it makes it seen."""
    installed.machine.run("mkdir -m 700 -p /data/private")
    installed.configure("/data/ckpt", "/data/private")
    installed.machine.run(f"systemctl restart {UNIT}")
    assert installed.show("ActiveState", "StatusText") == {
        "ActiveState": "active", "StatusText": "watching 1 of 2 directories",
    }  # fmt: skip
    assert installed.value("ckpt_watch_up", dir="private", backend="inotify") == 0
    installed.drop_in("read-private-trees")
    wait_until(lambda: installed.value("ckpt_watch_up", dir="private", backend="inotify") == 1)
    installed.save("/data/private/checkpoint-3", mode="600")
    wait_until(lambda: installed.value("ckpt_saves_total", dir="private", result="complete") == 1, 30)
    installed.remove_drop_ins()
    installed.configure("/data/ckpt")


def test_finding_writers(installed: Installed) -> None:
    """With the drop-in for it the writer of a save is found."""
    installed.drop_in("find-writers")
    wait_until(lambda: installed.value("ckpt_watch_up", dir="ckpt", backend="inotify") == 1)
    installed.slow_save("/data/ckpt/checkpoint-4")
    wait_until(lambda: "ckpt_run_info" in {name for name, _ in installed.scrape().samples}, 30)
    installed.remove_drop_ins()


def test_reload(installed: Installed) -> None:
    """``systemctl reload`` adds a directory; a bad file leaves the service up and the old one in force."""
    installed.configure("/data/ckpt", "/data/other")
    installed.machine.run(f"systemctl reload {UNIT}")
    wait_until(lambda: installed.show("StatusText")["StatusText"] == "watching 2 of 2 directories")
    installed.machine.run(f"echo 'directories: 5' > /etc/ckpt-exporter/config.yml; systemctl reload {UNIT}")
    wait_until(lambda: installed.value("ckpt_config_last_reload_successful") == 0)
    assert installed.show("ActiveState", "SubState") == {"ActiveState": "active", "SubState": "running"}
    installed.configure("/data/ckpt")


def test_the_watchdog_starts_it_anew(installed: Installed) -> None:
    """A daemon that hangs is ended and started again, and knows the checkpoints on disk as before."""
    installed.drop_in("watchdog", "[Service]\\nWatchdogSec=3\\nTimeoutStopSec=3\\nTimeoutAbortSec=1\\n")
    wait_until(lambda: installed.value("ckpt_retained_checkpoints", dir="ckpt") == 4, 20)
    before = installed.show("MainPID", "NRestarts")
    installed.machine.run(f"kill -STOP {before['MainPID']}")
    wait_until(lambda: installed.show("NRestarts")["NRestarts"] == str(int(before["NRestarts"]) + 1), 30)
    wait_until(lambda: installed.value("ckpt_retained_checkpoints", dir="ckpt") == 4, 20)
    assert installed.show("MainPID")["MainPID"] != before["MainPID"]
    assert "watchdog" in installed.machine.run(f"journalctl --no-pager -o cat -u {UNIT}").lower()
    installed.remove_drop_ins()


def test_stop(installed: Installed) -> None:
    """It stops within two seconds, cleanly, and its state stays."""
    installed.machine.run("touch /var/lib/ckpt-exporter/kept")
    wait_until(lambda: installed.show("ActiveState")["ActiveState"] == "active")
    began = time.monotonic()
    installed.machine.run(f"systemctl stop {UNIT}")
    assert time.monotonic() - began < 2.5  # two seconds, and the time of nsenter and systemctl
    assert installed.show("ActiveState", "Result", "ExecMainStatus") == {
        "ActiveState": "inactive", "Result": "success", "ExecMainStatus": "0",
    }  # fmt: skip
    installed.machine.run(f"test -e /var/lib/ckpt-exporter/kept; systemctl start {UNIT}")


def test_sockets_of_systemd(installed: Installed) -> None:
    """With the socket unit a scrape that comes while the daemon is restarted waits, and is answered."""
    machine = installed.machine
    listen = f"[Socket]\\nListenStream=\\nListenStream=127.0.0.1:{installed.port}\\n"
    machine.run(f"systemctl stop {UNIT}; mkdir -p /etc/systemd/system/ckpt-exporter.socket.d; "
                f"printf '{listen}' > /etc/systemd/system/ckpt-exporter.socket.d/port.conf; "
                "systemctl daemon-reload; systemctl start ckpt-exporter.socket")  # fmt: skip
    installed.drop_in("socket")
    assert installed.value("ckpt_watch_up", dir="ckpt", backend="inotify") == 1
    machine.run(f"systemctl stop {UNIT}")
    assert installed.scrape("/metrics").samples  # this connection starts it again
