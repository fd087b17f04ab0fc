"""The sampler's own process: a lost GPU or a wedged driver takes down this process, not the daemon.

Commands come as lines of JSON on standard input, readings go out as lines of JSON on standard output. The
end of standard input means that the parent is gone. It imports as little as it can: it lives as long as the
daemon.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import select
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from ckpt_exporter.sources.backends import BACKENDS, Backend
from ckpt_exporter.sources.sampler_pace import CallTimes, Pace
from ckpt_exporter.sources.sampler_reader import BackendDownError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_exporter.sources.sampler_reader import Reader

FAILED_TICKS = 3
HEARTBEAT_SECONDS = 2.0
SUSPECT_SECONDS = 10.0  # how often GPUs are looked for anew while one can't be read
GRACE_SECONDS = 0.5  # how long a driver call may keep this process when it has to end
STUCK_STATUS = 3


class Control:
    """What the parent wants, read by a thread of its own, since a driver call may block the main one.

    When the process has to end and the main thread does not come back from the driver, it ends anyway.
    """

    def __init__(self, commands: int) -> None:
        self.saving = False
        self.stopping = False
        self.changed = threading.Event()
        self.finished = threading.Event()
        self._commands = commands
        self._signals, waker = os.pipe()
        os.set_blocking(waker, False)
        # The handler in C writes a byte at once; one in Python would wait for the driver call.
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=self._listen, name="control", daemon=True).start()

    def _listen(self) -> None:
        poll, rest = select.poll(), b""
        for descriptor in (self._commands, self._signals):
            poll.register(descriptor, select.POLLIN)
        while True:
            ready = [descriptor for descriptor, _ in poll.poll()]
            data = os.read(self._commands, 4096) if self._commands in ready else b""
            if self._signals in ready or not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self.saving = bool(json.loads(line).get("saving"))
                self.changed.set()
        self.stopping = True
        self.changed.set()
        if not self.finished.wait(GRACE_SECONDS):
            os._exit(STUCK_STATUS)


class Output:
    """Lines to the parent; any line is a sign of life."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._encode = json.JSONEncoder(separators=(",", ":")).encode
        self._last = time.monotonic()

    def send(self, kind: str, **values: object) -> None:
        """Write one line."""
        data = self._encode({"kind": kind, **values}).encode() + b"\n"
        while data:
            data = data[os.write(self._descriptor, data) :]
        self._last = time.monotonic()

    def beat(self) -> None:
        """Show life, if nothing was said for long."""
        if time.monotonic() - self._last >= HEARTBEAT_SECONDS:
            self.send("alive")


class Sampler:
    """The loop: when to read what."""

    def __init__(self, settings: Mapping[str, Any], control: Control, output: Output) -> None:
        self._settings = settings
        self._control = control
        self._output = output
        self._times = CallTimes()
        self._pace = Pace(settings["sample_hz"], settings["saving_hz"])
        self._identities: list[dict[str, Any]] | None = None
        self._identity_due = self._pids_due = float("-inf")
        self._failed_ticks = 0

    def run(self) -> None:
        """Sample until told to stop; raises BackendDownError."""
        self._output.send("init")
        reader = self._open()
        try:
            while not self._control.stopping:
                began = time.monotonic()
                saving = self._control.saving
                self._look(reader, began)
                self._tick(reader)
                self._wait(reader, began, saving=saving)
        finally:
            # On a driver that is gone even this fails; the process ends anyway, and its handles with it.
            with contextlib.suppress(Exception):
                reader.close()

    def _open(self) -> Reader:
        backend = BACKENDS[self._settings["backend"]]
        library = _load(backend)
        # Only now: without the library a binding of thousands of lines would be read for nothing.
        module = importlib.import_module(backend.module)
        reader: Reader = module.open_reader(library, self._times, time.monotonic, self._settings)
        reader.open()
        return reader

    def _look(self, reader: Reader, now: float) -> None:
        """Find out anew which GPUs there are, and who uses them, where that is due."""
        if now >= self._identity_due:
            identities = reader.enumerate()
            self._identity_due = now + self._settings["identity_seconds"]
            if identities != self._identities:
                self._identities = identities
                self._output.send("gpus", t=now, gpus=identities)
                self._pids_due = now
        if now >= self._pids_due:
            self._pids_due = now + self._settings["process_seconds"]
            pids = reader.read_pids()
            self._output.send("pids", known=reader.mapping_known, pids=pids)

    def _tick(self, reader: Reader) -> None:
        self._times.tick.clear()
        rows = []
        for gpu in reader.gpus:
            row = reader.read(gpu)
            if row is not None:
                rows.append(row)
            self._output.beat()
        self._pace.note_tick(self._times.tick)
        counts, seconds = self._times.take()
        self._output.send("tick", rows=rows, calls=counts, call_seconds=round(seconds, 7))
        lost = [gpu for gpu in reader.gpus if gpu.error is not None]
        if lost:
            self._identity_due = min(self._identity_due, time.monotonic() + self._suspect_seconds())
        self._judge(reader, lost)

    def _suspect_seconds(self) -> float:
        return min(SUSPECT_SECONDS, float(self._settings["identity_seconds"]))

    def _judge(self, reader: Reader, lost: list[Any]) -> None:
        """Give up when all GPUs fail for a reason that is not their own."""
        foreign = [gpu for gpu in lost if gpu.down_state is not None]
        all_fail = bool(reader.gpus) and len(foreign) == len(reader.gpus)
        self._failed_ticks = self._failed_ticks + 1 if all_fail else 0
        if self._failed_ticks >= FAILED_TICKS:
            raise BackendDownError(foreign[0].down_state, str(foreign[0].error))

    def _wait(self, reader: Reader, began: float, *, saving: bool) -> None:
        while not self._control.stopping:
            wanted = self._control.saving
            if wanted and not saving:
                self._pids_due = float("-inf")  # who trains here now
            saving = wanted
            ends = began + self._pace.interval_seconds(saving=saving and reader.fast)
            left = ends - time.monotonic()
            if left <= 0:
                return
            self._control.changed.wait(min(left, HEARTBEAT_SECONDS))
            self._control.changed.clear()
            self._output.beat()


def _load(backend: Backend) -> ctypes.CDLL | None:
    """Load the first library there is; None where none is needed; raises BackendDownError."""
    reasons = []
    for name in backend.libraries:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            reasons.append(str(error))
    if reasons:
        raise BackendDownError("library_missing", reasons[0])
    return None


def main() -> None:
    """Run until standard input ends; settings are JSON in the first argument."""
    settings = json.loads(sys.argv[1])
    descriptor = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints is not for the parent to parse
    control, output = Control(0), Output(descriptor)
    try:
        Sampler(settings, control, output).run()
    except BackendDownError as error:
        output.send("down", state=error.state, text=str(error))
    except BrokenPipeError:
        pass
    except Exception as error:  # noqa: BLE001 (process boundary: the parent logs it in one line)
        output.send("down", state="crashed", text=f"{type(error).__name__}: {error}")
    finally:
        control.finished.set()


if __name__ == "__main__":
    main()
