"""What systemd and a service tell each other: readiness, status, watchdog, sockets; silent elsewhere.

By sd_notify(3) and sd_listen_fds(3): a datagram to $NOTIFY_SOCKET, descriptors from 3 on.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import Final

from ckpt_exporter.errors import CkptExporterError
from ckpt_exporter.logs import log_event, one_line

_LOG = logging.getLogger(__name__)

_FIRST_SOCKET: Final = 3
_MAX_SOCKETS: Final = 64
_READY_SECONDS: Final = 0.25  # whoever waits for the start learns of its end that late
_SEND_SECONDS: Final = 0.5  # the manager takes a datagram at once, or it has worse troubles
_NO_SOCKETS: Final = (
    "no socket from systemd: start ckpt-exporter.socket as well, or leave --web.systemd-socket away"
)


class ServiceManager:
    """Tells the service manager how the daemon is, by the environment it gave; without one does nothing.

    ``clock`` is monotonic seconds.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        pid: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._clock = clock
        self._watchdog_seconds = _watchdog_seconds(environment, os.getpid() if pid is None else pid)
        self._ready = False
        self._status = ""
        self._petted = -float("inf")
        self._complained = False

    @property
    def pause_seconds(self) -> float:
        """How long the main loop may wait between two calls of ``update``."""
        if self._address and not self._ready:
            return _READY_SECONDS
        return float("inf") if self._watchdog_seconds is None else self._watchdog_seconds / 3

    def update(self, *, ready: bool, healthy: bool, status: str) -> None:
        """Tell what has changed; while healthy, pet the watchdog."""
        lines = []
        if ready and not self._ready:
            self._ready = True
            lines.append("READY=1")
        if status != self._status:
            self._status = status
            lines.append(f"STATUS={one_line(status)}")
        if self._is_due(healthy=healthy):
            lines.append("WATCHDOG=1")
        self._send(lines)

    def reloading(self) -> None:
        """Tell that the configuration is being read; the next ``update`` that is ready ends it."""
        self._ready = False
        self._send(["RELOADING=1", f"MONOTONIC_USEC={int(self._clock() * 1e6)}"])

    def stopping(self) -> None:
        """Tell that the end has begun."""
        self._send(["STOPPING=1", "STATUS=stopping"])

    def _is_due(self, *, healthy: bool) -> bool:
        if self._watchdog_seconds is None:
            return False
        if not healthy:
            if not self._complained:
                log_event(_LOG, logging.ERROR, "not healthy: the watchdog of the service manager will act")
            self._complained = True
            return False
        self._complained = False
        now = self._clock()
        if now - self._petted < self._watchdog_seconds / 4:
            return False
        self._petted = now
        return True

    def _send(self, lines: list[str]) -> None:
        if not self._address or not lines:
            return
        # A leading @ stands for the NUL byte of an abstract address.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(_SEND_SECONDS)
                sender.sendto("\n".join(lines).encode(), address)
        except OSError as error:
            log_event(_LOG, logging.WARNING, "the service manager was not told", reason=error.strerror)


def _watchdog_seconds(environment: Mapping[str, str], pid: int) -> float | None:
    meant_for = environment.get("WATCHDOG_PID", str(pid))
    microseconds = environment.get("WATCHDOG_USEC", "")
    if meant_for != str(pid) or not microseconds.isdecimal() or int(microseconds) == 0:
        return None
    return int(microseconds) / 1e6


def take_sockets(
    environment: MutableMapping[str, str], *, pid: int | None = None, first: int = _FIRST_SOCKET
) -> tuple[socket.socket, ...]:
    """Return the listening sockets that systemd passed, and hide them from child processes.

    Raises CkptExporterError when there is none, or one that is no listening stream socket.
    """
    meant_for = environment.pop("LISTEN_PID", "")
    count = environment.pop("LISTEN_FDS", "")
    environment.pop("LISTEN_FDNAMES", None)
    if meant_for != str(os.getpid() if pid is None else pid) or not count.isdecimal():
        raise CkptExporterError(_NO_SOCKETS)
    if not 0 < int(count) <= _MAX_SOCKETS:
        raise CkptExporterError(_NO_SOCKETS)
    return tuple(_listening(number) for number in range(first, first + int(count)))


def _listening(number: int) -> socket.socket:
    try:
        os.set_inheritable(number, False)  # noqa: FBT003 (it takes no keywords)
        passed = socket.socket(fileno=number)
    except OSError as error:
        raise CkptExporterError(f"descriptor {number} from systemd is no socket: {error.strerror}") from error
    if passed.type != socket.SOCK_STREAM or not passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        passed.detach()
        raise CkptExporterError(f"descriptor {number} from systemd does not listen: use ListenStream=")
    passed.settimeout(0)
    return passed
