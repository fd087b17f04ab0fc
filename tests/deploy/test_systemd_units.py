"""The unit files: systemd reads them without a word, they give away little, and they say why."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).resolve().parents[2] / "deploy/systemd"
SERVICE = UNITS / "ckpt-exporter.service"
DROP_INS = sorted((UNITS / "drop-ins").glob("*.conf"))
PROGRAM = "/opt/ckpt-exporter/bin/ckpt-exporter"

# The exposure that systemd-analyze gives, times ten; 25 is the bound with any one drop-in.
SHIPPED_EXPOSURE = 20
DROP_IN_EXPOSURE = dict.fromkeys(
    ("amd", "ascend", "find-writers", "gpu", "memory-limit", "read-private-trees", "socket"), 25
)

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


def directives(text: str) -> list[tuple[str, str]]:
    """Return keys and values without comments."""
    lines = (line for line in text.splitlines() if line and not line.startswith(("#", "[")))
    return [(key, value) for key, _, value in (line.partition("=") for line in lines)]


def unit_directory(base: Path, *drop_ins: Path) -> Path:
    """Copy the units to where the program exists."""
    program = base / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for unit in UNITS.glob("ckpt-exporter.s[eo]*[et]"):
        (base / unit.name).write_text(unit.read_text().replace(PROGRAM, str(program)))
    (base / "ckpt-exporter.service.d").mkdir()
    for drop_in in drop_ins:
        target = base / "ckpt-exporter.service.d" / drop_in.name
        target.write_text(drop_in.read_text().replace(PROGRAM, str(program)))
    return base


def verify(base: Path, unit: str) -> str:
    """Return what systemd has to say against a unit."""
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit],
        capture_output=True, text=True, check=False, env={**os.environ, "SYSTEMD_UNIT_PATH": f"{base}:"},
    )  # fmt: skip
    return done.stderr + (f"status {done.returncode}" if done.returncode else "")


@needs_systemd
@pytest.mark.parametrize("unit", ["ckpt-exporter.service", "ckpt-exporter.socket"])
def test_systemd_has_nothing_to_say(tmp_path: Path, unit: str) -> None:
    """Verification prints nothing: it warns of unknown keys with status 0."""
    assert verify(unit_directory(tmp_path), unit) == ""


@needs_systemd
@pytest.mark.parametrize("drop_in", DROP_INS, ids=lambda path: path.stem)
def test_drop_ins_are_read_without_a_word(tmp_path: Path, drop_in: Path) -> None:
    """Each drop-in on its own is verified with the unit."""
    assert verify(unit_directory(tmp_path, drop_in), "ckpt-exporter.service") == ""


@needs_systemd
def test_verification_would_speak(tmp_path: Path) -> None:
    """The check above notices an unknown key, also in a drop-in."""
    wrong = tmp_path / "wrong.conf"
    wrong.write_text("[Service]\nProtectEverything=yes\n")
    base = tmp_path / "units"
    base.mkdir()
    assert "ProtectEverything" in verify(unit_directory(base, wrong), "ckpt-exporter.service")


@needs_systemd
@pytest.mark.parametrize("drop_in", [None, *DROP_INS], ids=lambda path: path.stem if path else "shipped")
def test_exposure(tmp_path: Path, drop_in: Path | None) -> None:
    """The exposure that systemd computes stays at or below the bound."""
    unit = tmp_path / "ckpt-exporter.service"
    unit.write_text(SERVICE.read_text() + "\n" + (drop_in.read_text() if drop_in else ""))
    bound = DROP_IN_EXPOSURE[drop_in.stem] if drop_in else SHIPPED_EXPOSURE
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", f"--threshold={bound}", unit],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout.splitlines()[-2:]


def test_each_line_says_why() -> None:
    """Every group of settings of the service begins with a comment, and a group is small."""
    service = SERVICE.read_text().partition("[Service]\n")[2].partition("[Install]")[0]
    groups = re.split(r"(?:^|\n)(?:#[^\n]*\n|\n)+", service)
    assert service.startswith("#")
    sizes = {group: len(directives(group)) for group in groups}
    assert len(sizes) > 25
    assert [group for group, size in sizes.items() if size > 5] == []


def test_what_the_unit_promises() -> None:
    """Type, watchdog, restart and stop are as the README says."""
    settings = dict(directives(SERVICE.read_text()))
    assert settings["Type"] == "notify"
    assert settings["WatchdogSec"] == "30"
    assert settings["Restart"] == "always"
    assert settings["User"] != "root"
    assert settings["CapabilityBoundingSet"] == ""
    assert settings["StateDirectory"] == "ckpt-exporter"
    assert int(settings["TimeoutStopSec"]) <= 10
    assert settings["LimitCORE"] == "0"


@pytest.mark.parametrize(
    ("vendor", "devices"),
    [
        ("gpu", ["/dev/nvidiactl", *(f"/dev/nvidia{number}" for number in range(8))]),
        ("ascend", ["/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc",
                    *(f"/dev/davinci{number}" for number in range(16))]),
        ("amd", ["/dev/kfd", "char-drm"]),
    ],
)  # fmt: skip
def test_devices_of_a_vendor(vendor: str, devices: list[str]) -> None:
    """A drop-in for accelerators opens their devices and closes all others."""
    settings = directives((UNITS / f"drop-ins/{vendor}.conf").read_text())
    assert ("DevicePolicy", "closed") in settings
    allowed = {value.rpartition(" ")[0] for key, value in settings if key == "DeviceAllow"}
    assert set(devices) <= allowed
    assert not [device for device in allowed if not device.startswith(("/dev/", "char-"))]


def test_readme_and_drop_ins_agree() -> None:
    """Every drop-in is in the README's table, says where it goes, and the README names no other."""
    readme = (UNITS / "README.md").read_text()
    named = set(re.findall(r"`([a-z-]+)\.conf`", readme))
    assert named == {path.stem for path in DROP_INS} == set(DROP_IN_EXPOSURE)
    for path in DROP_INS:
        assert f"/etc/systemd/system/ckpt-exporter.service.d/{path.name}" in path.read_text()


@needs_systemd
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_user_and_directories(tmp_path: Path) -> None:
    """The user is made without a shell, the directories with their owners."""
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    for tool, options, file in (
        ("systemd-sysusers", (), "ckpt-exporter.sysusers"),
        ("systemd-tmpfiles", ("--create",), "ckpt-exporter.tmpfiles"),
    ):
        done = subprocess.run(
            [tool, f"--root={root}", *options, UNITS / file], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    (line,) = [
        line for line in (root / "etc/passwd").read_text().splitlines() if line.startswith("ckpt-exporter:")
    ]
    _, _, uid, _, _, home, shell = line.split(":")
    assert (home, shell) == ("/var/lib/ckpt-exporter", "/usr/sbin/nologin")
    assert (root / "var/lib/ckpt-exporter").stat().st_uid == int(uid)
    assert (root / "var/lib/ckpt-exporter").stat().st_mode & 0o777 == 0o750
    assert (root / "etc/ckpt-exporter").stat().st_uid == 0
    assert (root / "etc/ckpt-exporter").stat().st_mode & 0o777 == 0o750


def test_the_environment_file_changes_nothing() -> None:
    """The environment file as shipped says what the unit says without it."""
    settings = dict(directives((UNITS / "ckpt-exporter.default").read_text()))
    assert settings == {"CKPT_EXPORTER_CONFIG": "/etc/ckpt-exporter/config.yml", "CKPT_EXPORTER_ARGS": ""}
    assert (
        "Environment=CKPT_EXPORTER_CONFIG=/etc/ckpt-exporter/config.yml CKPT_EXPORTER_ARGS=\n"
        in SERVICE.read_text()
    )
