"""The whole daemon as its user meets it: a subprocess, its log, its web server, its signals."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

REPOSITORY = Path(__file__).resolve().parents[2]
RESULTS = ("complete", "incomplete", "aborted")
# Longer than any of these tests waits on a busy machine; a test ends as soon as its condition holds.
PATIENCE_SECONDS = 30.0


def wait_until(condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS, *, what: str = "") -> None:
    """Poll until ``condition`` holds; fail after ``seconds``."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, f"not within {seconds} s: {what or condition}"
        time.sleep(0.02)


@dataclass(frozen=True)
class Scrape:
    """The samples of one scrape by name and labels."""

    samples: dict[tuple[str, frozenset[tuple[str, str]]], float]

    def get(self, name: str, **labels: str) -> float | None:
        """Return the value of one series, None if it is absent."""
        return self.samples.get((name, frozenset(labels.items())))

    def value(self, name: str, **labels: str) -> float:
        """Return the value of one series; it must exist."""
        return self.samples[name, frozenset(labels.items())]

    def series(self, **labels: str) -> dict[str, float]:
        """Return all series that carry these labels, written out."""
        wanted = set(labels.items())
        return {
            name + str(sorted(found - wanted)): value
            for (name, found), value in self.samples.items()
            if wanted <= found
        }


def parse_scrape(text: str) -> Scrape:
    """Parse the text format as Prometheus would."""
    return Scrape(
        {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
    )


def get(url: str, accept: str = "text/plain") -> str:
    """Fetch a page; raises URLError and HTTPError."""
    request = urllib.request.Request(url, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return str(answer.read().decode("utf-8"))


def write_config(path: Path, directories: Mapping[str, Path | str], **detect: object) -> Path:
    """Write a configuration whose saves end after one quiet second, and nothing is too small."""
    document = {
        "directories": [{"name": name, "path": os.fspath(where)} for name, where in directories.items()],
        "detect": {"quiet_seconds": 1, "min_bytes": 1, **detect},
        "history": {"path": None},
    }
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def command(*arguments: str | os.PathLike[str], user: int | None = None) -> list[str]:
    """Return the command line of the program under test; with ``user`` (needs root), run by that user."""
    program = ["ckpt_exporter"] if user is None else ["tests.integration.unprivileged", str(user)]
    return [sys.executable, "-m", *program, *map(os.fspath, arguments)]


def run_to_end(*arguments: str | os.PathLike[str], seconds: float = 30.0) -> subprocess.CompletedProcess[str]:
    """Run the program until it ends by itself."""
    return subprocess.run(
        command(*arguments), cwd=REPOSITORY, capture_output=True, text=True, timeout=seconds, check=False
    )


@dataclass
class Daemon:
    """A running ``ckpt-exporter run`` or ``demo``."""

    process: subprocess.Popen[bytes]
    log_path: Path
    url: str = ""
    _expected: list[tuple[str, dict[str, float]]] = field(default_factory=list)

    # --- what it says -----------------------------------------------------------------------------------

    def log(self) -> list[dict[str, Any]]:
        """Return the log lines; each must be one JSON object."""
        text = self.log_path.read_text(encoding="utf-8")
        lines = text.split("\n")
        return [json.loads(line) for line in lines[:-1]]  # the last may be in the making

    def logged(self, message: str, **fields: object) -> list[dict[str, Any]]:
        """Return the log lines with this message and these fields."""
        return [
            line
            for line in self.log()
            if line["msg"] == message and all(line.get(key) == value for key, value in fields.items())
        ]

    def saves(self, name: str) -> list[dict[str, Any]]:
        """Return the saves of one directory that the log tells of."""
        return self.logged("save ended", dir=name)

    def text(self, accept: str = "text/plain", query: str = "") -> str:
        """Return the metrics page."""
        return get(f"{self.url}/metrics{query}", accept)

    def scrape(self, *names: str) -> Scrape:
        """Scrape everything, or only the named families."""
        query = "?" + urllib.parse.urlencode([("name[]", name) for name in names]) if names else ""
        return parse_scrape(self.text(query=query))

    def tally(self, name: str) -> dict[str, float]:
        """Return what was counted in one directory."""
        scrape = self.scrape()
        counted = {result: scrape.value("ckpt_saves_total", dir=name, result=result) for result in RESULTS}
        counted["bytes"] = scrape.value("ckpt_save_bytes_total", dir=name)
        counted["files"] = scrape.value("ckpt_save_files_total", dir=name)
        counted["open"] = scrape.value("ckpt_saves_in_progress", dir=name)
        counted["deleted"] = scrape.value("ckpt_deleted_checkpoints_total", dir=name)
        return counted

    # --- what it should say -----------------------------------------------------------------------------

    def expect(
        self,
        name: str,
        complete: int = 0,
        *,
        size_bytes: int = 0,
        files: int = 0,
        incomplete: int = 0,
        aborted: int = 0,
        deleted: int = 0,
        seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """Wait until exactly this was counted and nothing is open; ``recheck`` will ask for it again."""
        expected: dict[str, float] = {
            "complete": complete, "incomplete": incomplete, "aborted": aborted,
            "bytes": size_bytes, "files": files, "open": 0, "deleted": deleted,
        }  # fmt: skip
        ends = time.monotonic() + seconds
        while (counted := self.tally(name)) != expected and time.monotonic() < ends:
            time.sleep(0.05)
        assert counted == expected, f"{name}: {self.saves(name)}"
        self._expected.append((name, expected))

    def recheck(self, quiet_seconds: float = 1.5) -> None:
        """Check that nothing was counted twice, or invented later, in any directory."""
        time.sleep(quiet_seconds)
        for name, expected in self._expected:
            assert self.tally(name) == expected, f"{name}, later: {self.saves(name)}"

    # --- what happens to it -----------------------------------------------------------------------------

    def wait_watching(self, *names: str) -> None:
        """Wait until these directories are watched."""
        wait_until(lambda: self._watching(names), what=f"watch of {names}")

    def _watching(self, names: Sequence[str]) -> bool:
        scrape = self.scrape("ckpt_watch_up")
        return all(scrape.get("ckpt_watch_up", dir=name, backend="inotify") == 1 for name in names)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def stop(self) -> float:
        """End it as a service manager would; return the seconds it took. It must go cleanly."""
        began = time.monotonic()
        self.signal(signal.SIGTERM)
        status = self.process.wait(timeout=10)
        took = time.monotonic() - began
        assert status == 0
        assert "Traceback" not in self.log_path.read_text(encoding="utf-8")
        return took

    def kill(self) -> None:
        """End it whatever state it is in."""
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def launch(log_path: Path, *arguments: str | os.PathLike[str], user: int | None = None) -> Iterator[Daemon]:
    """Start the program, wait until it is ready, and stop it at the end unless it has ended."""
    line = command(*arguments, "--web.listen-address=127.0.0.1:0", "--log.format=json", user=user)
    with open(log_path, "wb") as log:
        process = subprocess.Popen(line, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=log)
    daemon = Daemon(process, log_path)
    try:
        wait_until(lambda: _is_ready(daemon), what="ready")
        yield daemon
        if process.poll() is None:
            daemon.stop()
    finally:
        if process.poll() is None:
            daemon.kill()


def _is_ready(daemon: Daemon) -> bool:
    assert daemon.process.poll() is None, daemon.log_path.read_text(encoding="utf-8")
    for line in daemon.logged("listening"):
        daemon.url = f"http://{line['address']}"
        with contextlib.suppress(urllib.error.URLError):
            return get(daemon.url + "/-/ready") != ""
    return False


@contextlib.contextmanager
def watching(
    base: Path, *names: str, arguments: Sequence[str] = (), user: int | None = None, **detect: object
) -> Iterator[Daemon]:
    """Start the daemon on new directories below ``base`` and wait until each is watched."""
    for name in names:
        (base / name).mkdir(parents=True, exist_ok=True)
    config = write_config(base / "config.yml", {name: base / name for name in names}, **detect)
    with launch(base / "daemon.log", "run", f"--config.file={config}", *arguments, user=user) as daemon:
        daemon.wait_watching(*names)
        yield daemon
