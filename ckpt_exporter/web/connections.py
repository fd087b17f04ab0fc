"""Connections under limits: one loop does all reading and writing, a thread makes each response.

A client that is slow or silent, in the handshake, in its request or in reading, costs a descriptor and never
a thread, so it can't keep a scrape waiting. Nor can a crowd that guesses passwords: requests of strangers
stand in line, and one of them is looked at when all else is done. Connections are kept for further requests:
a scraper that comes every 15 seconds shakes hands once.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import selectors
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

from ckpt_exporter.web.peer import Peer, RefusedError, Stage
from ckpt_exporter.web.protocol import Reply, refusal
from ckpt_exporter.web.tls import TlsGate

_LOG = logging.getLogger(__name__)

_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_RETRY_SECONDS = 0.5  # after an error that will not go away at once
_FAREWELL_SECONDS = 0.5
_FAREWELL_BYTES = 64 * 1024
_STOP_SECONDS = 0.4
_HANDSHAKES_A_ROUND = 8  # a signature takes up to milliseconds, and those who are in go first
_BUSY = refusal(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests at once, try again")
_TOO_LARGE = refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "request line and headers are too large")

# Why connections were cut off or requests turned away, as counted.
REASONS = ("busy", "crowded", "slow", "tls")


@dataclass(frozen=True, slots=True)
class Limits:
    """What clients may take.

    ``requests`` in work at once; ``waiting``: connections besides; ``timeout_seconds`` for a handshake and a
    request head, and again for taking a response; ``idle_seconds`` between two requests; bytes of a head;
    bytes of all responses that are not taken yet.
    """

    requests: int = 40
    waiting: int = 256
    timeout_seconds: float = 10.0
    idle_seconds: float = 150.0  # longer than the usual scrape intervals
    head_bytes: int = 16 * 1024
    unsent_bytes: int = 32 * 1024 * 1024


class Responder(Protocol):
    """Makes responses to request heads; ``client`` is the address that it came from."""

    def knows(self, head: bytes) -> bool:
        """Tell at a glance whether the request may be answered in a thread at once; admits nobody."""

    def refuse(self, head: bytes, client: str) -> Reply | None:
        """Return the refusal of a stranger's request, None where that takes longer; never waits."""

    def respond(self, head: bytes, client: str) -> Reply:
        """Return the response; may take as long as the hash of a password."""


class Connections:
    """Takes connections from listening sockets and has each request answered by ``responder``.

    ``gate`` returns how to speak TLS now, None for not at all; connections of an earlier gate end.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        responder: Responder,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
        gate: Callable[[], TlsGate | None] = lambda: None,
    ) -> None:
        self._listeners = tuple(listeners)
        self._responder = responder
        self._limits = limits
        self._clock = clock
        self._gate = gate
        self.refused = Counter(dict.fromkeys(REASONS, 0))
        self._peers: dict[Peer, None] = {}  # the one longest without a new request first
        self._working = 0
        self._line: deque[tuple[Peer, bytes]] = deque()
        self._unsent_bytes = 0
        self._next_deadline = math.inf
        self._replies: deque[tuple[Peer, Reply]] = deque()
        self._stopping = threading.Event()
        self._wake, self._woken = socket.socketpair()
        self._wake.settimeout(0)
        self._woken.settimeout(0)
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._run, name="web", daemon=True)

    def start(self) -> None:
        """Begin to accept connections."""
        for listener in (*self._listeners, self._woken):
            self._selector.register(listener, selectors.EVENT_READ)
        self._thread.start()

    def stop(self) -> None:
        """Close every connection and the listening sockets, in less than a second."""
        self._stopping.set()
        self._wake_up()
        self._thread.join(_STOP_SECONDS)
        self._wake.close()  # a worker that comes later is no longer heard, and need not be

    # --- the loop ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._guarded_round()
        for peer in list(self._peers):
            self._close(peer)
        self._selector.close()
        for owned in (*self._listeners, self._woken):
            owned.close()

    def _guarded_round(self) -> None:
        try:
            self._round()
        except Exception:  # noqa: BLE001 (the thread must outlive any one connection)
            _LOG.error("web server loop failed, going on", exc_info=True)
            self._stopping.wait(_RETRY_SECONDS)

    def _round(self) -> None:
        shaking: list[Peer] = []
        for key, _ in self._selector.select(0.0 if self._line else self._seconds_to_deadline()):
            if isinstance(key.data, Peer):
                if key.data.stage is Stage.HANDSHAKE:
                    shaking.append(key.data)
                else:
                    self._advance(key.data)
            elif key.fileobj is self._woken:
                self._take_replies()
            elif isinstance(key.fileobj, socket.socket):
                self._accept(key.fileobj)
        for peer in shaking[:_HANDSHAKES_A_ROUND]:  # the others are told of again
            self._advance(peer)
        self._serve_stranger()
        if self._next_deadline <= self._clock():
            self._expire()

    def _seconds_to_deadline(self) -> float | None:
        left = self._next_deadline - self._clock()
        return None if left == math.inf else max(0.0, left)

    def _expire(self) -> None:
        now = self._clock()
        for peer in [peer for peer in self._peers if peer.deadline <= now]:
            if not peer.idle and peer.stage is not Stage.FAREWELL:
                self.refused["slow"] += 1
            self._close(peer)
        self._next_deadline = min((peer.deadline for peer in self._peers), default=math.inf)

    def _set_deadline(self, peer: Peer, seconds: float) -> None:
        peer.deadline = self._clock() + seconds
        self._next_deadline = min(self._next_deadline, peer.deadline)

    def _wake_up(self) -> None:
        with contextlib.suppress(OSError):  # full: it wakes up anyway; closed: it has ended
            self._wake.send(b"x")

    # --- coming and going -------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, where = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            if error.errno not in _OUT_OF_RESOURCES:
                raise
            if not self._drop_oldest():
                self._stopping.wait(_RETRY_SECONDS)
            return
        sock.settimeout(0)
        if sock.family != socket.AF_UNIX:  # small responses at once, also on a kept connection
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self._peers) - self._working >= self._limits.waiting:
            self._drop_oldest()
        address = str(where[0]) if isinstance(where, tuple) else "unix"
        gate = self._gate()
        peer = Peer(sock, address, gate, math.inf)
        self._peers[peer] = None
        self._set_deadline(peer, self._limits.timeout_seconds)
        if gate is not None:
            self._begin_tls(peer, gate)
        self._listen_to(peer)

    def _begin_tls(self, peer: Peer, gate: TlsGate) -> None:
        peer.stage = Stage.HANDSHAKE
        try:
            peer.sock = gate.context.wrap_socket(
                peer.sock, server_side=True, do_handshake_on_connect=False, suppress_ragged_eofs=True
            )
        except OSError:  # gone, or with bytes that no handshake begins with
            self._close(peer)

    def _listen_to(self, peer: Peer) -> None:
        """Have the selector report what the connection needs next; in line or at work, nothing."""
        wanted = 0 if peer.stage in (Stage.LINE, Stage.WORK, Stage.CLOSED) else peer.wants
        if wanted == peer.registered:
            return
        if not wanted:
            self._selector.unregister(peer.sock)
        elif peer.registered:
            self._selector.modify(peer.sock, wanted, peer)
        else:
            self._selector.register(peer.sock, wanted, peer)
        peer.registered = wanted

    def _close(self, peer: Peer) -> None:
        if peer.stage is Stage.CLOSED:
            return
        if peer.stage is Stage.WORK:
            self._working -= 1
        self._unsent_bytes -= len(peer.outgoing)
        peer.outgoing = memoryview(b"")
        peer.stage = Stage.CLOSED
        self._listen_to(peer)
        self._peers.pop(peer, None)
        with contextlib.suppress(OSError):
            peer.sock.close()

    def _drop_oldest(self, stage: Stage | None = None) -> bool:
        for peer in self._peers:
            if peer.stage is not Stage.WORK and stage in (None, peer.stage):
                self.refused["crowded"] += not peer.idle
                self._close(peer)
                return True
        return False

    # --- one step of one connection ---------------------------------------------------------------------

    def _advance(self, peer: Peer) -> None:
        if peer.stage is Stage.CLOSED:  # earlier in the same round
            return
        try:
            self._step(peer)
        except (OSError, RefusedError) as error:
            if peer.stage is Stage.HANDSHAKE:
                self.refused["tls"] += 1
                _LOG.debug("%s: no TLS: %a", peer.address, str(error) or "no allowed name in its certificate")
            self._close(peer)
        self._listen_to(peer)

    def _step(self, peer: Peer) -> None:
        if peer.stage is Stage.HANDSHAKE and peer.shake_hands():
            peer.stage = Stage.HEAD
        if peer.stage is Stage.HEAD:
            self._read_head(peer)
        elif peer.stage is Stage.SEND:
            self._send(peer)
        elif peer.stage is Stage.FAREWELL and peer.read_away(_FAREWELL_BYTES):
            self._close(peer)

    def _read_head(self, peer: Peer) -> None:
        if peer.gate is not self._gate():  # what it was let in by is no longer in force
            self._close(peer)
            return
        while peer.receive(self._limits.head_bytes):
            if peer.idle:
                peer.idle = False
                self._set_deadline(peer, self._limits.timeout_seconds)
            if self._begin_work(peer):
                return
        if peer.ended:
            self._close(peer)

    def _begin_work(self, peer: Peer) -> bool:
        head = peer.take_head(self._limits.head_bytes)
        if head is None:
            return False
        self._peers[peer] = self._peers.pop(peer)  # to the end: it has asked for something
        if not head:
            self._begin_sending(peer, _TOO_LARGE)
        elif self._responder.knows(head):
            self._work_or_refuse(peer, head)
        else:
            peer.stage = Stage.LINE
            self._line.append((peer, head))
        return True

    def _work_or_refuse(self, peer: Peer, head: bytes) -> None:
        if self._working >= self._limits.requests or not self._start_worker(peer, head):
            self.refused["busy"] += 1
            self._begin_sending(peer, _BUSY)
        else:
            peer.stage = Stage.WORK
            peer.deadline = math.inf
            self._working += 1

    def _serve_stranger(self) -> None:
        """Refuse the first in line, here: as many threads as guesses would be in the way of everyone."""
        while self._line:
            peer, head = self._line.popleft()
            if peer.stage is not Stage.LINE:  # closed while it waited
                continue
            reply = self._responder.refuse(head, peer.address)
            if reply is None:
                self._work_or_refuse(peer, head)
            else:
                self._answer(peer, reply)
            self._listen_to(peer)
            return

    def _begin_sending(self, peer: Peer, reply: Reply) -> None:
        room = self._limits.unsent_bytes - len(reply.data)
        while self._unsent_bytes > max(0, room) and self._drop_oldest(Stage.SEND):
            pass
        peer.stage = Stage.SEND
        peer.outgoing = memoryview(reply.data)
        peer.keep = reply.keep and peer.gate is self._gate()
        self._unsent_bytes += len(reply.data)
        self._set_deadline(peer, self._limits.timeout_seconds)
        self._send(peer)

    def _send(self, peer: Peer) -> None:
        before = len(peer.outgoing)
        done = peer.send()
        self._unsent_bytes -= before - len(peer.outgoing)
        if not done:
            return
        if peer.keep:
            self._await_next(peer)
            return
        # Closing while a request body is unread resets the connection and may take the response with it.
        peer.stage = Stage.FAREWELL
        self._set_deadline(peer, _FAREWELL_SECONDS)
        peer.say_goodbye()

    def _await_next(self, peer: Peer) -> None:
        peer.stage = Stage.HEAD
        peer.wants = selectors.EVENT_READ
        peer.idle = not peer.received
        limits = self._limits
        self._set_deadline(peer, limits.idle_seconds if peer.idle else limits.timeout_seconds)
        # A client may have sent its next request already; in TLS the selector does not know of it.
        if not self._begin_work(peer):
            self._read_head(peer)

    # --- responses --------------------------------------------------------------------------------------

    def _start_worker(self, peer: Peer, head: bytes) -> bool:
        arguments = (peer, head)
        try:
            threading.Thread(target=self._work, args=arguments, name="web-request", daemon=True).start()
        except RuntimeError:  # the process may have no more threads
            return False
        return True

    def _work(self, peer: Peer, head: bytes) -> None:
        reply = Reply(b"")
        try:
            reply = self._responder.respond(head, peer.address)
        except Exception:  # noqa: BLE001 (thread boundary: the connection must end)
            _LOG.error("a request failed", exc_info=True)
        finally:
            self._replies.append((peer, reply))
            self._wake_up()

    def _take_replies(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)
        while self._replies:
            peer, reply = self._replies.popleft()
            if peer.stage is not Stage.WORK:
                continue
            self._working -= 1
            self._answer(peer, reply)
            self._listen_to(peer)

    def _answer(self, peer: Peer, reply: Reply) -> None:
        try:
            self._begin_sending(peer, reply)
        except OSError:
            _LOG.debug("client %s left before the end of its response", peer.address)
            self._close(peer)
