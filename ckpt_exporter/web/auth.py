"""Basic authentication: bcrypt once for each password, in turns, so that guessing costs little CPU."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final, Literal

from ckpt_exporter.errors import ConfigError

Verdict = Literal["right", "wrong", "busy", "unknown"]
CheckHash = Callable[[bytes, bytes], bool]

_BCRYPT_BYTES: Final = 72  # bcrypt never looked further, and its newer releases refuse longer passwords
_NO_PASSWORD: Final = "." * 53  # salt and digest that no password is known for
_REMEMBERED_RIGHT: Final = 64
_REMEMBERED_WRONG: Final = 256


def bcrypt_check(file: str) -> CheckHash:
    """Return bcrypt's comparison; raises ConfigError that says what to install."""
    try:
        import bcrypt  # noqa: PLC0415 (a node without users needs no bcrypt)
    except ImportError as error:
        raise ConfigError(
            [f"{file}: basic_auth_users: needs bcrypt, install it: pip install 'ckpt-exporter[auth]'"]
        ) from error
    return bcrypt.checkpw


class HashTurns:
    """One hash at a time, one waiting for each network, and a rest after a wrong password.

    A wrong one that took t seconds is followed by a rest of ``rest_ratio`` times t, so guessing never uses
    more than 1 / (1 + rest_ratio) of a core, from however many connections. ``clock`` is monotonic seconds.
    """

    def __init__(
        self,
        *,
        waiting: int = 8,
        patience_seconds: float = 5.0,
        rest_ratio: float = 9.0,
        max_rest_seconds: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._waiting_limit = waiting
        self._patience_seconds = patience_seconds
        self._rest_ratio = rest_ratio
        self._max_rest_seconds = max_rest_seconds
        self._clock = clock
        self._changed = threading.Condition()
        self._queue: OrderedDict[str, None] = OrderedDict()  # first come, first served
        self._rest_until = 0.0

    def run(self, client: str, check: Callable[[], bool]) -> bool | None:
        """Return what ``check`` does when it is this client's turn, None when it does not come soon."""
        network = _network(client)
        if not self._wait(network):
            return None
        began = self._clock()
        right = False
        try:
            right = check()
        finally:
            with self._changed:
                ended = self._clock()
                rest = min(self._max_rest_seconds, self._rest_ratio * (ended - began))
                self._rest_until = ended if right else ended + rest
                del self._queue[network]
                self._changed.notify_all()
        return right

    def has_place(self, client: str) -> bool:
        """Tell whether ``run`` would wait for a turn now."""
        with self._changed:
            return self._has_place(_network(client))

    def _has_place(self, network: str) -> bool:
        return network not in self._queue and len(self._queue) < self._waiting_limit

    def _wait(self, network: str) -> bool:
        with self._changed:
            if not self._has_place(network):
                return False
            self._queue[network] = None
            deadline = self._clock() + self._patience_seconds
            while (left := deadline - self._clock()) > 0:
                first = next(iter(self._queue)) == network
                rest = self._rest_until - self._clock()
                if first and rest <= 0:
                    return True
                self._changed.wait(min(left, rest) if first else left)
            del self._queue[network]
            self._changed.notify_all()
            return False


class Passwords:
    """The users of one web-config file. Each is checked by ``check_hash(password, hash)``.

    What a password was judged is remembered, up to a bound and under a keyed hash, so a scrape costs no
    bcrypt; a new file is a new object, which remembers nothing. An unknown user costs what the dearest
    known one does.
    """

    def __init__(self, users: Mapping[str, str], check_hash: CheckHash, turns: HashTurns) -> None:
        self._users = {name.encode(): text.encode() for name, text in users.items()}
        cost = max(text[4:6] for text in users.values())
        self._nobody = f"$2b${cost}${_NO_PASSWORD}".encode()
        self._check_hash = check_hash
        self._turns = turns
        self._key = os.urandom(32)
        self._lock = threading.Lock()
        # Apart, so that guesses cannot push out what a scrape needs.
        self._right: OrderedDict[bytes, None] = OrderedDict()
        self._wrong: OrderedDict[bytes, None] = OrderedDict()

    def knows(self, authorization: str) -> bool:
        """Tell whether an Authorization header was judged right before."""
        given = _credentials(authorization)
        if given is None:
            return False
        seen = self._digest(*given)
        with self._lock:
            return seen in self._right

    def judge(self, authorization: str, client: str, *, wait: bool = True) -> Verdict:
        """Judge one Authorization header of a client at this address; may take as long as a hash.

        Without ``wait`` it takes microseconds, and is ``unknown`` where a hash must decide.
        """
        given = _credentials(authorization)
        if given is None:
            return "wrong"
        user, password = given
        stored = self._users.get(user)
        seen = self._digest(user, password)
        remembered = self._remembered(seen)
        if remembered is not None:
            return remembered
        if not wait:
            return "unknown" if self._turns.has_place(client) else "busy"
        right = self._turns.run(client, lambda: self._compare(password, stored))
        if right is None:
            return "busy"
        self._remember(seen, right=right)
        return "right" if right else "wrong"

    def _compare(self, password: bytes, stored: bytes | None) -> bool:
        possible = b"\0" not in password
        match = self._check_hash(password[:_BCRYPT_BYTES] if possible else b"", stored or self._nobody)
        return match and possible and stored is not None

    def _digest(self, user: bytes, password: bytes) -> bytes:
        # The hash is in the key, too: what was right for an old one says nothing about a new one.
        parts = (user, self._users.get(user, b""), password)
        message = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.digest(self._key, message, hashlib.sha256)

    def _remembered(self, seen: bytes) -> Verdict | None:
        with self._lock:
            if seen in self._right:
                self._right.move_to_end(seen)
                return "right"
            return "wrong" if seen in self._wrong else None

    def _remember(self, seen: bytes, *, right: bool) -> None:
        known, limit = (self._right, _REMEMBERED_RIGHT) if right else (self._wrong, _REMEMBERED_WRONG)
        with self._lock:
            known[seen] = None
            while len(known) > limit:
                known.popitem(last=False)


def _credentials(authorization: str) -> tuple[bytes, bytes] | None:
    scheme, _, text = authorization.strip().partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        decoded = base64.b64decode(text.strip().encode("ascii"), validate=True)
    except (binascii.Error, ValueError):
        return None
    user, colon, password = decoded.partition(b":")
    return (user, password) if colon else None


def _network(client: str) -> str:
    """Return what one guesser can hardly have many of: an IPv4 address, an IPv6 network of 64 bits."""
    try:
        address = ipaddress.ip_address(client.partition("%")[0])
    except ValueError:
        return client
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
    return str(address)
