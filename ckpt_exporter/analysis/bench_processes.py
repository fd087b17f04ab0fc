"""Writers or readers as processes of their own, that begin together and answer each for itself."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import IO, Any, Final, Literal

from ckpt_exporter.errors import CkptExporterError
from ckpt_exporter.ledger import TICK_SECONDS
from ckpt_exporter.logs import one_line

_STOP_SECONDS: Final = 10.0
_DOING: Final = {"writer": "writing", "reader": "reading"}

Kind = Literal["writer", "reader"]
Check = Callable[[], None]  # raises where the bench was asked to stop


class Workers:
    """One process of a module for each task.

    A context manager: leaving it ends them, whatever they are doing.
    """

    def __init__(self, module: str, kind: Kind, tasks: Sequence[dict[str, Any]], check: Check) -> None:
        self._module = module
        self._kind = kind
        self._tasks = tasks
        self._check = check
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Workers:
        with contextlib.ExitStack() as unless_ready:
            unless_ready.callback(self._end)
            for _ in self._tasks:
                self._processes.append(_start(self._module))
            for process, task in zip(self._processes, self._tasks, strict=True):
                _send(process, task)
            for process in self._processes:
                self._expect(process)
            unless_ready.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def pids(self) -> frozenset[int]:
        """Process ids."""
        return frozenset(process.pid for process in self._processes)

    def _expect(self, process: subprocess.Popen[str]) -> None:
        """Wait until one is ready, so that all begin together."""
        stream = process.stdout
        if stream is None or stream.readline().strip() != "ready":
            self._check()
            raise CkptExporterError(f"a {self._kind} could not be started")

    def work(self, meanwhile: Callable[[], None]) -> list[dict[str, Any]]:
        """Let all begin and wait for their answers, calling ``meanwhile`` ten times a second.

        Raises CkptExporterError where one failed or went away.
        """
        answers: list[dict[str, Any]] = []
        threads = [
            threading.Thread(target=_read_answer, args=(process, answers), daemon=True)
            for process in self._processes
        ]
        for process in self._processes:
            _send(process, "go")
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            self._check()
            meanwhile()
            next((thread for thread in threads if thread.is_alive()), threads[0]).join(TICK_SECONDS)
        failed = [answer["error"] for answer in answers if "error" in answer]
        if failed or len(answers) < len(self._processes):
            why = one_line(failed[0]) if failed else f"a {self._kind} ended early"
            raise CkptExporterError(f"{_DOING[self._kind]} failed: {why}")
        return answers

    def _end(self) -> None:
        for process in self._processes:
            _end(process)


def _start(module: str) -> subprocess.Popen[str]:
    # A session of its own: Ctrl-C reaches the bench alone, which then ends its processes.
    return subprocess.Popen(  # noqa: S603 (this package's own module)
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd="/",
        env={**os.environ, "PYTHONPATH": _package_root()},
    )


def _package_root() -> str:
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def _send(process: subprocess.Popen[str], message: object) -> None:
    with contextlib.suppress(BrokenPipeError):  # told by its exit status
        stream: IO[str] | None = process.stdin
        if stream is not None:
            stream.write(json.dumps(message) + "\n")
            stream.flush()


def _read_answer(process: subprocess.Popen[str], answers: list[dict[str, Any]]) -> None:
    line = process.stdout.readline() if process.stdout is not None else ""
    if line:
        answers.append(json.loads(line))


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):  # hangs in a dead mount: it ends when that answers
        process.wait(_STOP_SECONDS)
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
