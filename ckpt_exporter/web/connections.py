"""Connections under limits: one loop collects request heads, a thread answers each complete one.

A client that is slow or silent costs a descriptor for at most ``timeout_seconds``, never a thread, so idle
connections can't keep a scrape waiting.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import re
import selectors
import socket
import threading
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING

from ckpt_exporter.web.protocol import refusal

if TYPE_CHECKING:
    from collections.abc import Callable

_LOG = logging.getLogger(__name__)

_HEAD_END = re.compile(rb"\r?\n\r?\n")
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_RETRY_SECONDS = 0.5  # after an error that will not go away at once
_LINGER_SECONDS = 0.5
_STOP_SECONDS = 0.4
_BUSY = refusal(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests at once, try again")
_TOO_LARGE = refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "request line and headers are too large")


@dataclass(frozen=True, slots=True)
class Limits:
    """What clients may take: requests in work, connections still without one, seconds, bytes of a head."""

    requests: int = 40
    waiting: int = 256
    timeout_seconds: float = 10.0
    head_bytes: int = 16 * 1024


@dataclass(slots=True)
class _Waiting:
    """A connection whose request is not complete yet."""

    client: str
    deadline: float
    received: bytearray = field(default_factory=bytearray)


class Connections:
    """Takes connections from a listening socket and answers each by ``respond(head, client) -> bytes``."""

    def __init__(
        self,
        listener: socket.socket,
        respond: Callable[[bytes, str], bytes],
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listener = listener
        self._respond = respond
        self._limits = limits
        self._clock = clock
        self._waiting: dict[socket.socket, _Waiting] = {}  # oldest first, so nearest deadline first
        self._active: set[socket.socket] = set()
        self._idle = threading.Condition()  # guards _active
        self._stopping = threading.Event()
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._run, name="web", daemon=True)

    def start(self) -> None:
        """Begin to accept connections."""
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread.start()

    def stop(self) -> None:
        """Close every connection and the listening socket, in less than a second."""
        self._stopping.set()
        self._wake.send(b"x")
        self._thread.join(_STOP_SECONDS)
        with self._idle:
            for connection in self._active:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            self._idle.wait_for(lambda: not self._active, _STOP_SECONDS)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._guarded_round()
        for connection in list(self._waiting):
            self._forget(connection).close()
        self._selector.close()
        for owned in (self._listener, self._wake, self._woken):
            owned.close()

    def _guarded_round(self) -> None:
        try:
            self._round()
        except Exception:  # noqa: BLE001 (the thread must outlive any one connection)
            _LOG.error("web server loop failed, going on", exc_info=True)
            self._stopping.wait(_RETRY_SECONDS)

    def _round(self) -> None:
        for key, _ in self._selector.select(self._seconds_to_deadline()):
            if key.fileobj is self._listener:
                self._accept()
            elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._waiting:
                self._receive(key.fileobj)
        now = self._clock()
        while self._waiting and next(iter(self._waiting.values())).deadline <= now:
            self._drop_oldest()

    def _seconds_to_deadline(self) -> float | None:
        oldest = next(iter(self._waiting.values()), None)
        return None if oldest is None else max(0.0, oldest.deadline - self._clock())

    def _accept(self) -> None:
        try:
            connection, where = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            if error.errno not in _OUT_OF_RESOURCES:
                raise
            if self._waiting:
                self._drop_oldest()
            else:
                self._stopping.wait(_RETRY_SECONDS)
            return
        connection.settimeout(0)
        if len(self._waiting) >= self._limits.waiting:
            self._drop_oldest()
        deadline = self._clock() + self._limits.timeout_seconds
        self._waiting[connection] = _Waiting(f"{where[0]}:{where[1]}", deadline)
        self._selector.register(connection, selectors.EVENT_READ)

    def _receive(self, connection: socket.socket) -> None:
        waiting = self._waiting[connection]
        try:
            data = connection.recv(self._limits.head_bytes)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._forget(connection).close()
            return
        searched = max(0, len(waiting.received) - 3)  # the end may straddle two reads
        waiting.received += data
        end = _HEAD_END.search(waiting.received, searched)
        if (end.end() if end else len(waiting.received)) > self._limits.head_bytes:
            self._dispatch(connection, waiting.client, None)
        elif end:
            self._dispatch(connection, waiting.client, bytes(waiting.received[: end.end()]))

    def _forget(self, connection: socket.socket) -> socket.socket:
        self._selector.unregister(connection)
        del self._waiting[connection]
        return connection

    def _drop_oldest(self) -> None:
        self._forget(next(iter(self._waiting))).close()

    def _dispatch(self, connection: socket.socket, client: str, head: bytes | None) -> None:
        self._forget(connection)
        with self._idle:
            room = len(self._active) < self._limits.requests
            if room:
                self._active.add(connection)
        if not room or not self._start_worker(connection, client, head):
            with contextlib.suppress(OSError):
                connection.send(_BUSY)
            connection.close()

    def _start_worker(self, connection: socket.socket, client: str, head: bytes | None) -> bool:
        arguments = (connection, client, head)
        try:
            threading.Thread(target=self._serve, args=arguments, name="web-request", daemon=True).start()
        except RuntimeError:  # the process may have no more threads
            with self._idle:
                self._active.discard(connection)
            return False
        return True

    def _serve(self, connection: socket.socket, client: str, head: bytes | None) -> None:
        try:
            response = _TOO_LARGE if head is None else self._respond(head, client)
            # For sendall this is the time for all of it, so a slow reader can't stretch it.
            connection.settimeout(self._limits.timeout_seconds)
            connection.sendall(response)
            self._linger(connection)
        except OSError:
            _LOG.debug("client %s left before the end of its response", client)
        finally:
            with self._idle:
                self._active.discard(connection)
                self._idle.notify_all()
            connection.close()

    def _linger(self, connection: socket.socket) -> None:
        # Closing while a request body is unread resets the connection and may take the response with it.
        deadline = self._clock() + _LINGER_SECONDS
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(_LINGER_SECONDS)
        while self._clock() < deadline and connection.recv(64 * 1024):
            pass
