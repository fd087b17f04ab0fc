"""A shared directory for real: a FUSE mount, and another host that writes into what lies behind it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ckpt_exporter.app import Exporter
from ckpt_exporter.config.schema import Config, GpuSettings, HistorySettings, WebSettings
from ckpt_exporter.model import DetectSettings, DirectorySettings
from ckpt_exporter.sources import elsewhere
from ckpt_exporter.sources.simulated import SimulatedGpus, TrainingState
from tests.integration.daemon import Scrape, get, parse_scrape, wait_until

BASELINE_SECONDS = 10.0


def why_no_mount() -> str:
    """Say what is missing for a FUSE mount; empty if nothing is."""
    if shutil.which("bindfs") is None:
        return "bindfs is not installed"
    return "" if os.geteuid() == 0 and os.path.exists("/dev/fuse") else "no right to mount"


pytestmark = pytest.mark.skipif(bool(why_no_mount()), reason=why_no_mount())


@dataclass
class Shared:
    """A directory behind a mount: ``back`` is where other hosts write, ``mount`` what this host sees."""

    back: Path
    mount: Path
    process: subprocess.Popen[bytes]


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    """Mount a directory at another place."""
    back, mount = tmp_path / "back", tmp_path / "mount"
    back.mkdir()
    mount.mkdir()
    process = subprocess.Popen(["bindfs", "-f", os.fspath(back), os.fspath(mount)])
    try:
        wait_until(lambda: os.path.ismount(mount), what="mounted")
        yield Shared(back, mount, process)
    finally:
        process.send_signal(signal.SIGCONT)
        subprocess.run(["umount", "-l", os.fspath(mount)], check=False)
        process.terminate()
        process.wait(timeout=10)


@dataclass
class Running:
    """A daemon in this process, and what its GPUs do."""

    exporter: Exporter
    state: list[TrainingState] = field(default_factory=lambda: ["training"])

    def scrape(self) -> Scrape:
        return parse_scrape(get(f"http://{self.exporter.address}/metrics"))


@contextmanager
def running(directories: dict[str, Path], *, gpus: bool = False) -> Iterator[Running]:
    """Run a daemon with a second between its looks."""
    config = Config(
        tuple(DirectorySettings(name, os.fspath(path)) for name, path in directories.items()),
        DetectSettings(quiet_seconds=1.0, min_bytes=1, elsewhere_interval_seconds=1.0),
        GpuSettings("none"),
        HistorySettings(path=None),
        WebSettings("127.0.0.1:0"),
    )
    state: list[TrainingState] = ["training"]
    simulated = (
        "simulated",
        lambda emit, _saving: SimulatedGpus(emit, sample_hz=10, count=2, state=lambda: state[0]),
    )
    exporter = Exporter(config, gpus=simulated if gpus else None)
    ended = threading.Event()

    def pass_time() -> None:
        while not ended.wait(min(exporter.tick(), 0.5)):
            pass

    thread = threading.Thread(target=pass_time, daemon=True)
    exporter.start()
    thread.start()
    try:
        yield Running(exporter, state)
    finally:
        ended.set()
        thread.join(5)
        exporter.stop()


def write_checkpoint(directory: Path, seconds: float) -> None:
    """Write what the transformers trainer writes, for so long."""
    directory.mkdir()
    with (directory / "model.safetensors").open("wb") as file:
        for _ in range(10):
            file.write(bytes(100_000))
            file.flush()
            time.sleep(seconds / 10)
    (directory / "trainer_state.json").write_text("{}")


def test_a_save_behind_the_mount_is_another_hosts_and_its_dip_is_charged_here(shared: Shared) -> None:
    """The node that waits has the bubble and no save, the one that writes has the save: one of each."""
    with running({"d": shared.mount}, gpus=True) as waits, running({"d": shared.back}) as writes:
        wait_until(lambda: waits.scrape().get("ckpt_elsewhere_up", dir="d") == 1, what="looking")
        time.sleep(BASELINE_SECONDS)  # what a dip is compared with
        waits.state[0] = "saving"
        began = time.monotonic()
        write_checkpoint(shared.back / "checkpoint-7", 6.0)
        end_unix = (shared.back / "checkpoint-7" / "trainer_state.json").stat().st_mtime
        waits.state[0] = "training"
        lost = time.monotonic() - began

        bubble = {"name": "ckpt_bubble_seconds_count", "dir": "d"}
        wait_until(lambda: waits.scrape().value(**bubble) == 1, 40, what="bubble")
        here, there = waits.scrape(), writes.scrape()
        pages = [get(f"http://{daemon.exporter.address}/") for daemon in (waits, writes)]
    uuid = waits.exporter.snapshot().gpus[0].info.uuid
    assert here.value("ckpt_gpu_bubble_seconds_total", dir="d", gpu="0", uuid=uuid) == pytest.approx(
        lost, rel=0.03
    )
    assert here.value("ckpt_remote_saves_total", dir="d", result="complete") == 1
    assert here.value("ckpt_last_remote_save_end_timestamp_seconds", dir="d") == pytest.approx(
        end_unix, abs=0.1
    )
    for scrape, count, size in ((here, 0, 0), (there, 1, 1_000_002)):
        assert scrape.value("ckpt_saves_total", dir="d", result="complete") == count
        assert scrape.value("ckpt_save_bytes_total", dir="d") == size
    assert there.get("ckpt_remote_saves_total", dir="d", result="complete") is None
    # The page of the node that waits shows and draws it as made elsewhere, that of the writer does not.
    assert ["Latest saves made elsewhere" in page for page in pages] == [True, False]
    assert [page.count('<rect class="save elsewhere"') > 1 for page in pages] == [True, False]


def test_a_mount_that_hangs_holds_up_its_own_looks_alone(
    shared: Shared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the file server is stopped, scrapes are answered and another directory's save is counted."""
    monkeypatch.setattr(elsewhere, "HUNG_SECONDS", 1.0)
    other = tmp_path / "other"
    other.mkdir()
    with running({"d": shared.mount, "other": other}) as daemon:
        wait_until(lambda: daemon.scrape().get("ckpt_elsewhere_up", dir="d") == 1, what="looking")
        shared.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: daemon.scrape().get("ckpt_elsewhere_up", dir="d") == 0, 30, what="hung")
        write_checkpoint(other / "checkpoint-1", 0.5)
        saved = {"name": "ckpt_saves_total", "dir": "other", "result": "complete"}
        wait_until(lambda: daemon.scrape().value(**saved) == 1, 30, what="save")
        shared.process.send_signal(signal.SIGCONT)
        wait_until(lambda: daemon.scrape().get("ckpt_elsewhere_up", dir="d") == 1, 30, what="answers")
