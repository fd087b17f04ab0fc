"""Run the real exporter beside a real training writer and collect what both say."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from framework_truth import MeasuredSave, Scrape, Truth, parse_replay, parse_truths
from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Callable

DIRECTORY = "fw"
QUIET_SECONDS = 2
MISSING_FRAMEWORK = 77  # a writer's exit status when its framework does not import
READY_WITHIN_SECONDS = 20.0
COUNTED_WITHIN_SECONDS = 60.0
STOPPED_WITHIN_SECONDS = 10.0
POLL_SECONDS = 0.1
WRITERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "writers")
WRITER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


@dataclass(frozen=True, slots=True)
class Measurement:
    """What the writer, the replayed recording and the last scrape say about the same saves."""

    truths: list[Truth]
    saves: list[MeasuredSave]
    scrape: Scrape


def free_port() -> int:
    """Return a TCP port of the loopback address that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until(condition: Callable[[], bool], timeout_seconds: float) -> bool:
    """Poll ``condition`` until it holds; return False if it never did in time."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


class Exporter:
    """One running exporter that watches ``watched`` and keeps its files in ``scratch``."""

    def __init__(self, watched: str, scratch: str) -> None:
        self._config = os.path.join(scratch, "config.yml")
        self._record = os.path.join(scratch, "record.jsonl")
        self._log = os.path.join(scratch, "exporter.log")
        with open(self._config, "w", encoding="utf-8") as file:
            json.dump(  # JSON is YAML, and quotes any path; replay needs the directory in the file too
                {
                    "directories": [{"name": DIRECTORY, "path": watched}],
                    "detect": {"quiet_seconds": QUIET_SECONDS},
                },
                file,
            )
        address = f"127.0.0.1:{free_port()}"
        self._url = f"http://{address}"
        arguments = [f"--config.file={self._config}", f"--record.path={self._record}"]
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [*_program(), "run", *arguments, f"--web.listen-address={address}"], stdout=log, stderr=log
            )

    def wait_ready(self) -> None:
        """Wait until the exporter watches and serves; fail the test with its log if it never does."""
        if not wait_until(self._is_ready, READY_WITHIN_SECONDS):
            pytest.fail(
                f"the exporter is not ready after {READY_WITHIN_SECONDS:.0f} s; its log:\n{self.log()}"
            )

    def _is_ready(self) -> bool:
        if self._process.poll() is not None:
            pytest.fail(f"the exporter exited with {self._process.returncode}; its log:\n{self.log()}")
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError):
            return False

    def scrape(self) -> Scrape:
        """Return the samples of the watched directory on the metrics page."""
        with urllib.request.urlopen(f"{self._url}/metrics", timeout=5) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        return {
            (sample.name, sample.labels.get("result", "")): sample.value
            for family in families
            for sample in family.samples
            if sample.labels.get("dir") == DIRECTORY and "le" not in sample.labels
        }

    def settled_scrape(self, saves: int) -> Scrape:
        """Return the metrics once ``saves`` are counted and the quiet time after them has brought no more."""
        wait_until(
            lambda: self.scrape().get(("ckpt_saves_total", "complete"), 0) >= saves, COUNTED_WITHIN_SECONDS
        )
        # A save that was split or invented ends a quiet time later than the ones that count.
        time.sleep(QUIET_SECONDS + 1)
        return self.scrape()

    def stop(self) -> None:
        """Ask the exporter to stop, and kill it if it does not."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOPPED_WITHIN_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def exit_status(self) -> int | None:
        """Return the exit status, None while the exporter runs."""
        return self._process.poll()

    def replay(self) -> list[MeasuredSave]:
        """Return the saves that the finished recording replays to."""
        command = [*_program(), "replay", self._record, "--format=json", f"--config.file={self._config}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            pytest.fail(f"replay exited with {done.returncode}: {done.stderr}")
        return parse_replay(done.stdout, DIRECTORY)

    def log(self) -> str:
        """Return everything the exporter has logged."""
        with open(self._log, encoding="utf-8", errors="replace") as file:
            return file.read()


def _program() -> list[str]:
    return [sys.executable, "-m", "ckpt_exporter"]


def run_writer(
    name: str, arguments: list[str], environment: dict[str, str], timeout_seconds: float
) -> list[Truth]:
    """Run one writer to its end and return its truth; skip the test where its framework does not import."""
    command = [sys.executable, os.path.join(WRITERS, f"{name}.py"), *arguments]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
        env=os.environ | WRITER_ENVIRONMENT | environment,
    )
    if done.returncode == MISSING_FRAMEWORK:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    if done.returncode:
        pytest.fail(f"{name} exited with {done.returncode}: {done.stderr[-4000:]}")
    return parse_truths(done.stdout)
