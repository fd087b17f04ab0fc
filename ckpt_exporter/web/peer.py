"""One connection that never blocks: handshake, request heads, response, farewell, each with its deadline."""

from __future__ import annotations

import contextlib
import re
import selectors
import socket
import ssl
from dataclasses import dataclass, field
from enum import Enum, auto

from ckpt_exporter.web.tls import TlsGate

_HEAD_END = re.compile(rb"\r?\n\r?\n")
_SEND_BYTES = 64 * 1024
_PLAIN_TO_TLS = b"HTTP/1.0 400 Bad Request\r\nConnection: close\r\n\r\nhttps is spoken here\n"


class Stage(Enum):
    """What a connection is doing."""

    HANDSHAKE = auto()
    HEAD = auto()  # waiting for a request, or for the rest of one
    LINE = auto()  # a stranger's request, until it is its turn
    WORK = auto()  # a thread makes the response
    SEND = auto()
    FAREWELL = auto()  # everything is sent; the client's rest is read away
    CLOSED = auto()


class RefusedError(Exception):
    """The client may not come in."""


@dataclass(eq=False, slots=True)
class Peer:
    """A connection and what is known of it. ``deadline`` is monotonic seconds; ``wants`` selector events."""

    sock: socket.socket
    address: str
    gate: TlsGate | None
    deadline: float
    stage: Stage = Stage.HEAD
    wants: int = selectors.EVENT_READ
    registered: int = 0
    received: bytearray = field(default_factory=bytearray)
    outgoing: memoryview = field(default_factory=lambda: memoryview(b""))
    keep: bool = False
    idle: bool = False  # between two requests of one connection
    ended: bool = False  # the client sends nothing more

    def shake_hands(self) -> bool:
        """Go on with the handshake; True when it is done. Raises RefusedError and OSError."""
        if not isinstance(self.sock, ssl.SSLSocket):
            return True
        try:
            self.sock.do_handshake()
        except ssl.SSLWantReadError:
            self.wants = selectors.EVENT_READ
            return False
        except ssl.SSLWantWriteError:
            self.wants = selectors.EVENT_WRITE
            return False
        except ssl.SSLError as error:
            if error.reason == "HTTP_REQUEST":
                with contextlib.suppress(OSError):
                    socket.socket.send(self.sock, _PLAIN_TO_TLS)
            raise
        if self.gate is not None and not self.gate.admits(self.sock.getpeercert()):
            raise RefusedError
        self.wants = selectors.EVENT_READ
        return True

    def receive(self, limit: int) -> bool:
        """Take in what has arrived; False when there is nothing more to take now. Raises OSError."""
        try:
            data = self.sock.recv(limit)
        except (BlockingIOError, ssl.SSLWantReadError):
            self.wants = selectors.EVENT_READ
            return False
        except ssl.SSLWantWriteError:
            self.wants = selectors.EVENT_WRITE
            return False
        self.ended = not data
        self.received += data
        return bool(data)

    def take_head(self, limit: int) -> bytes | None:
        """Cut the next request head off what has arrived, None while it is incomplete.

        A head beyond the limit comes back as empty bytes.
        """
        end = _HEAD_END.search(self.received)
        if (end.end() if end else len(self.received)) > limit:
            self.received.clear()
            return b""
        if end is None:
            return None
        head = bytes(self.received[: end.end()])
        del self.received[: end.end()]
        return head

    def send(self) -> bool:
        """Send what the connection takes now; True when all is sent. Raises OSError."""
        try:
            while self.outgoing:
                sent = self.sock.send(self.outgoing[:_SEND_BYTES])
                self.outgoing = self.outgoing[sent:]
        except (BlockingIOError, ssl.SSLWantWriteError):
            self.wants = selectors.EVENT_WRITE
            return False
        except ssl.SSLWantReadError:
            self.wants = selectors.EVENT_READ
            return False
        return True

    def say_goodbye(self) -> None:
        """Tell the client that nothing more comes. Raises OSError."""
        if isinstance(self.sock, ssl.SSLSocket):
            with contextlib.suppress(ssl.SSLError, ValueError):
                self.sock.unwrap()
        self.sock.shutdown(socket.SHUT_WR)
        self.wants = selectors.EVENT_READ

    def read_away(self, limit: int) -> bool:
        """Drop what the client still sends; True when it has gone. Raises OSError."""
        # Below TLS, if there is any: what is dropped need not be decrypted.
        with contextlib.suppress(BlockingIOError):
            return not socket.socket.recv(self.sock, limit)
        return False
