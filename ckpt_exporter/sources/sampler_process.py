"""Life and pipes of the sampler's child process, seen from the daemon."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

MODULE = "ckpt_exporter.sources.sampler_child"
LONGEST_LINE_BYTES = 4 << 20
READ_BYTES = 1 << 16
# A child that is told to end has half a second for the driver call it is in; then it ends by itself.
LEAVE_SECONDS = 0.6
TERMINATE_SECONDS = 0.15
KILL_SECONDS = 0.1


class ChildProcess:
    """One child. ``settings`` go to it as JSON, ``environment`` is added to the daemon's own."""

    def __init__(self, settings: Mapping[str, object], environment: Mapping[str, str]) -> None:
        self._rest = b""
        self._process = subprocess.Popen(  # noqa: S603 (this package's own module)
            [sys.executable, "-m", MODULE, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            cwd="/",  # the daemon's may be on a mount that goes away
            start_new_session=True,  # an interrupt from a terminal is for the daemon alone
            env={**os.environ, "PYTHONPATH": _search_path(), **environment},
        )
        assert self._process.stdin is not None  # noqa: S101 (for the type checker)
        assert self._process.stdout is not None  # noqa: S101
        self._commands, self._lines = self._process.stdin, self._process.stdout
        os.set_blocking(self._commands.fileno(), False)
        os.set_blocking(self._lines.fileno(), False)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def descriptor(self) -> int:
        """What to wait on for lines."""
        return self._lines.fileno()

    @property
    def status(self) -> int | None:
        """Exit status once it has ended, negative for a signal; None before. Reaps it."""
        return self._process.poll()

    def tell(self, **command: object) -> None:
        """Send a command; one that a hanging or ended child can't take is lost."""
        with contextlib.suppress(OSError):
            os.write(self._commands.fileno(), json.dumps(command).encode() + b"\n")

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """Return the messages that are there, and whether more may come."""
        messages: list[dict[str, Any]] = []
        while True:
            try:
                data = os.read(self._lines.fileno(), READ_BYTES)
            except BlockingIOError:
                return messages, True
            if not data or len(self._rest) > LONGEST_LINE_BYTES:
                return messages, False
            *lines, self._rest = (self._rest + data).split(b"\n")
            messages += [json.loads(line) for line in lines]

    def end(self) -> bool:
        """Let it release its handles and end, harder if it does not; False if it can't be ended.

        Takes less than a second: politely first, since a killed process leaves the driver to clean up.
        """
        self._commands.close()
        for wait_seconds, harder in (
            (LEAVE_SECONDS, self._process.terminate),
            (TERMINATE_SECONDS, self._process.kill),
            (KILL_SECONDS, None),
        ):
            try:
                self._process.wait(wait_seconds)
                break
            except subprocess.TimeoutExpired:
                if harder is not None:
                    harder()
        self._lines.close()
        return self.status is not None


def _search_path() -> str:
    """Let the child find the same packages as this process, wherever it was started."""
    return os.pathsep.join(os.path.abspath(path) for path in sys.path)
