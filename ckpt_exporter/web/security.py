"""The web-config file in force: read at the start, and again whenever it or a file that it names changes."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from ckpt_exporter.config.web_file import RateLimit, WebFile, load_web_file
from ckpt_exporter.errors import ConfigError
from ckpt_exporter.logs import log_event, one_line
from ckpt_exporter.web.auth import CheckHash, HashTurns, Passwords, bcrypt_check
from ckpt_exporter.web.routes import HEALTH_PATHS, Request, Response, text_response
from ckpt_exporter.web.tls import TlsGate, open_gate

_LOG = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
_MAX_LOGGED_PROBLEMS: Final = 20
_CHALLENGE: Final = ("WWW-Authenticate", 'Basic realm="ckpt-exporter", charset="UTF-8"')
_RETRY: Final = ("Retry-After", "1")
_AUTHORIZATION: Final = re.compile(rb"\nauthorization:[ \t]*([^\r\n]*)", re.IGNORECASE)
_HEALTH_REQUEST: Final = re.compile(rb"[A-Z]+ (?:%b)[ ?]" % b"|".join(map(str.encode, HEALTH_PATHS)))

_Stamp = tuple[tuple[int, ...] | None, ...]


@dataclass(frozen=True, slots=True)
class SecurityStatus:
    """Outcome of the last reading of the web-config file."""

    successful: bool
    success_unix: float


class TokenBucket:
    """Let through one request per interval on average, and a burst at once."""

    def __init__(self, limit: RateLimit, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._lock = threading.Lock()
        self._tokens = float(limit.burst)
        self._counted = clock()

    def take(self) -> bool:
        """Take one token; False when there is none."""
        with self._lock:
            now = self._clock()
            gained = (now - self._counted) / self._limit.interval_seconds
            self._tokens = min(float(self._limit.burst), self._tokens + gained)
            self._counted = now
            if self._tokens < 1.0:
                return False
            self._tokens -= 1.0
            return True


@dataclass(frozen=True, slots=True)
class Security:
    """What one reading of the file asks for; without a file, nothing."""

    settings: WebFile | None = None
    gate: TlsGate | None = None
    passwords: Passwords | None = None
    bucket: TokenBucket | None = None

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """Headers that every response carries."""
        return self.settings.headers if self.settings is not None else ()

    def knows(self, head: bytes) -> bool:
        """Tell whether a request head is of someone who was let in before, or asks for what is open to all.

        A glance, for the order of service alone: who is let in is decided on the parsed request.
        """
        if self.passwords is None or _HEALTH_REQUEST.match(head):
            return True
        given = _AUTHORIZATION.search(head)
        return given is not None and self.passwords.knows(given[1].decode("latin-1"))

    def refusal(self, request: Request, *, wait: bool = True) -> Response | None:
        """Return why a request is not answered, None if it is. Health paths are open to all.

        Without ``wait`` None may also mean that a password must be hashed first.
        """
        if request.path in HEALTH_PATHS:
            return None
        if self.bucket is not None and not self.bucket.take():
            return text_response(HTTPStatus.TOO_MANY_REQUESTS, "rate limit reached, try again", _RETRY)
        if self.passwords is None:
            return None
        given = request.headers.get("authorization", "")
        verdict = self.passwords.judge(given, request.client, wait=wait)
        if verdict in ("right", "unknown"):
            return None
        if verdict == "busy":
            return text_response(HTTPStatus.TOO_MANY_REQUESTS, "too many logins at once, try again", _RETRY)
        return text_response(HTTPStatus.UNAUTHORIZED, "user and password needed", _CHALLENGE)


def read_security(path: str) -> Security:
    """Read a web-config file and all it names; raises ConfigError with every problem."""
    return _open(load_web_file(path), HashTurns())


def _open(settings: WebFile, turns: HashTurns) -> Security:
    file, problems = one_line(settings.file), list[str]()
    gate: TlsGate | None = None
    check: CheckHash | None = None
    try:
        gate = open_gate(file, settings.tls) if settings.tls is not None else None
    except ConfigError as error:
        problems += error.problems
    try:
        check = bcrypt_check(file) if settings.users else None
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)
    passwords = Passwords(settings.users, check, turns) if check is not None else None
    bucket = TokenBucket(settings.rate_limit) if settings.rate_limit is not None else None
    return Security(settings, gate, passwords, bucket)


class SecurityFile:
    """Keeps ``current`` up to date with the file, from a thread of its own; a bad file changes nothing.

    A change is taken over once it has stood still for ``look_seconds``: certificate and key are two files,
    and an editor may be at work. Raises ConfigError for a bad file at the start.
    """

    def __init__(
        self,
        path: str | None,
        *,
        look_seconds: float = LOOK_SECONDS,
        unix: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._look_seconds = look_seconds
        self._unix = unix
        self._turns = HashTurns()
        self._stop = threading.Event()
        self._lock = threading.Lock()  # one reading at a time
        self._watched: tuple[str, ...] = () if path is None else (path,)
        self._tried: _Stamp = ()
        self._seen: _Stamp = ()
        self.current = Security()
        self.status: SecurityStatus | None = None
        if path is not None:
            self.current = self._read(path)
            self.status = SecurityStatus(successful=True, success_unix=unix())
            _announce("web configuration in force", self.current)

    def start(self) -> None:
        """Begin to look for changes, if there is a file."""
        if self._path is not None:
            threading.Thread(target=self._watch, name="web-config", daemon=True).start()

    def stop(self) -> None:
        """Stop looking; returns at once."""
        self._stop.set()

    def look(self) -> None:
        """Read the files again if they have changed and then stood still since the last look."""
        stamp = tuple(map(_file_stamp, self._watched))
        still, self._seen = stamp == self._seen, stamp
        if still and stamp != self._tried:
            self.reload()

    def reload(self) -> None:
        """Read the files again now."""
        path = self._path
        if path is None:
            return
        with self._lock:
            try:
                security = self._read(path)
                _refuse_opening(path, self.current, security)
            except ConfigError as error:
                earlier = self.status.success_unix if self.status is not None else 0.0
                self.status = SecurityStatus(successful=False, success_unix=earlier)
                for problem in error.problems[:_MAX_LOGGED_PROBLEMS]:
                    log_event(_LOG, logging.ERROR, "web configuration not reloaded", problem=problem)
                return
            self.current = security
            self.status = SecurityStatus(successful=True, success_unix=self._unix())
            _announce("web configuration reloaded", security)

    def _read(self, path: str) -> Security:
        # Each file's stamp is taken before the file is read: a change during the reading is seen later.
        self._seen = self._tried = tuple(map(_file_stamp, self._watched))
        settings = load_web_file(path)
        named = settings.tls.files if settings.tls is not None else ()
        self._watched = (path, *named)
        self._seen = self._tried = (self._tried[0], *map(_file_stamp, named))
        return _open(settings, self._turns)

    def _watch(self) -> None:
        while not self._stop.wait(self._look_seconds):
            try:
                self.look()
            except Exception:  # noqa: BLE001 (thread boundary: what is in force stays in force)
                _LOG.error("web configuration could not be looked at", exc_info=True)


def _refuse_opening(path: str, old: Security, new: Security) -> None:
    """Refuse to take protection away while running: a half-written file has no users either."""
    file = one_line(path)
    kept: Mapping[str, tuple[object, object]] = {
        "tls_server_config": (old.gate, new.gate),
        "basic_auth_users": (old.passwords, new.passwords),
    }
    problems = [
        f"{file}: {key}: is gone; a restart is needed to serve without"
        for key, (before, after) in kept.items()
        if before is not None and after is None
    ]
    if problems:
        raise ConfigError(problems)


def _file_stamp(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _announce(message: str, security: Security) -> None:
    settings = security.settings
    tls = settings.tls if settings is not None else None
    log_event(
        _LOG, logging.INFO, message,
        tls=tls is not None,
        client_auth=tls.client_auth_type if tls is not None else None,
        users=len(settings.users) if settings is not None else 0,
    )  # fmt: skip
    if settings is not None and settings.users and security.gate is None:
        log_event(_LOG, logging.WARNING, "passwords travel in the clear: users without tls_server_config")
    if (
        settings is not None
        and settings.tls is not None
        and settings.tls.client_auth_type == "RequestClientCert"
    ):
        log_event(
            _LOG, logging.WARNING, "RequestClientCert keeps nobody out: no client certificate is asked for"
        )
