"""The web-config file, in the format of Prometheus exporters: certificates, users, headers, rate limit."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ckpt_exporter.config.document import Document, Path, given_once, read_document
from ckpt_exporter.config.load import got
from ckpt_exporter.config.values import InvalidValueError, Read, read_switch
from ckpt_exporter.config.web_values import (
    CIPHER_SUITES,
    FILES,
    HEADERS,
    LISTS,
    RATE_KEYS,
    SECRETS,
    TLS_KEYS,
    VERIFYING,
    header_reader,
    read_hash,
)
from ckpt_exporter.errors import ConfigError
from ckpt_exporter.logs import one_line


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """How to speak TLS. Of each pair of file and text at most one is set; paths are absolute."""

    cert_file: str | None = None
    cert: str | None = None
    key_file: str | None = None
    key: str | None = field(default=None, repr=False)
    client_ca_file: str | None = None
    client_ca: str | None = None
    client_auth_type: str = "NoClientCert"
    client_allowed_sans: tuple[str, ...] = ()
    min_version: str = "TLS12"
    max_version: str = "TLS13"
    cipher_suites: tuple[str, ...] = ()
    prefer_server_cipher_suites: bool = True
    curve_preferences: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """Return the files that are read besides the web-config file."""
        named = (self.cert_file, self.key_file, self.client_ca_file)
        return tuple(path for path in named if path is not None)


@dataclass(frozen=True, slots=True)
class RateLimit:
    """One request per ``interval_seconds`` on average, ``burst`` at once."""

    interval_seconds: float
    burst: int


@dataclass(frozen=True, slots=True)
class WebFile:
    """One checked web-config file; ``users`` maps names to bcrypt hashes."""

    file: str
    tls: TlsSettings | None = None
    headers: tuple[tuple[str, str], ...] = ()
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    rate_limit: RateLimit | None = None


def load_web_file(path: str) -> WebFile:
    """Read and check a web-config file; raises ConfigError with every problem.

    What stands in the files that it names is not looked at. No message shows a key or a password hash.
    """
    reading = _Reading(path, read_document(path))
    settings = reading.read()
    if reading.problems:
        raise ConfigError(reading.problems)
    return settings


# --- the file -------------------------------------------------------------------------------------------


class _Secret:
    """Stands for a value that no message may show."""


class _Reading:
    """One pass over one document, noting everything that is wrong."""

    def __init__(self, path: str, document: Document) -> None:
        self.problems: list[str] = []
        self._path = path
        self._file = one_line(path)
        self._document = document
        self._sections: dict[str, Callable[[Path, dict[object, object]], Any]] = {
            "tls_server_config": self._tls,
            "http_server_config": self._http,
            "basic_auth_users": self._users,
            "rate_limit": self._rate,
        }

    def read(self) -> WebFile:
        document = self._document.value
        if document is None:
            return WebFile(self._path)
        if not isinstance(document, dict):
            self.problems.append(f"{self._file}: must be keys and values at the top level")
            return WebFile(self._path)
        found: dict[str, Any] = {}
        for name, block in self._known((), document, tuple(self._sections)):
            if block is None:
                continue
            if isinstance(block, dict):
                found[name] = self._sections[name]((name,), block)
            else:
                self._problem((name,), "must be keys and values", _Secret)
        return WebFile(
            self._path,
            tls=found.get("tls_server_config"),
            headers=found.get("http_server_config", ()),
            users=found.get("basic_auth_users", {}),
            rate_limit=found.get("rate_limit"),
        )

    def _problem(self, path: Path, what: str, value: object = _Secret, hint: str = "") -> None:
        shown = "" if value is _Secret else f" (got {got(value)})"
        self.problems.append(f"{self._file}: {_join(path)}: {what}{shown}{hint}")

    def _known(
        self, path: Path, block: dict[object, object], known: Collection[str]
    ) -> list[tuple[str, Any]]:
        self._refuse_repeated(path, block)
        for name in block:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1) if isinstance(name, str) else []
                hint = f"; did you mean '{near[0]}'?" if near else f"; known keys: {', '.join(known)}"
                self._problem((*path, name), "unknown key", hint=hint)
        return [(str(name), value) for name, value in block.items() if name in known]

    def _refuse_repeated(self, path: Path, block: dict[object, object]) -> None:
        for name in block:
            lines = self._document.repeated.get((*path, name), ())
            if lines:
                self._problem((*path, name), given_once(lines))

    def _value(self, path: Path, read: Read, given: object, *, secret: bool = False) -> Any:
        try:
            return read(given)
        except InvalidValueError as wrong:
            self._problem(path, str(wrong), _Secret if secret else given)
            return None

    def _list(self, path: Path, read: Read, given: object) -> tuple[str, ...]:
        if not isinstance(given, list):
            self._problem(path, "must be a list", given)
            return ()
        places = [(*path[:-1], f"{path[-1]}[{index}]") for index in range(len(given))]
        return tuple(self._value(place, read, item) for place, item in zip(places, given, strict=True))

    def _tls(self, path: Path, block: dict[object, object]) -> TlsSettings | None:
        values: dict[str, Any] = {}
        for name, given in self._known(path, block, tuple(TLS_KEYS)):
            place, read = (*path, name), TLS_KEYS[name]
            if name in LISTS:
                values[name] = self._list(place, read, given)
            else:
                values[name] = self._value(place, read, given, secret=name in SECRETS)
                if name in FILES and values[name] is not None:
                    values[name] = os.path.join(os.path.dirname(os.path.abspath(self._path)), values[name])
        if not block:
            return None
        self._check_pairs(path, block)
        settings = TlsSettings(**{name: value for name, value in values.items() if value is not None})
        self._check_client_auth(path, block, settings)
        if settings.min_version > settings.max_version:
            self._problem((*path, "min_version"), f"must not be above max_version {settings.max_version}",
                          settings.min_version)  # fmt: skip
        old_suites = CIPHER_SUITES.keys() & set(settings.cipher_suites)
        if settings.max_version == "TLS12" and settings.cipher_suites and not old_suites:
            self._problem(
                (*path, "cipher_suites"), "must name one of TLS 1.2, which is all that max_version leaves"
            )
        return settings

    def _check_pairs(self, path: Path, block: Mapping[object, object]) -> None:
        for text in ("cert", "key", "client_ca"):
            if text in block and f"{text}_file" in block:
                self._problem((*path, text), f"must not stand beside {text}_file")
            if text != "client_ca" and text not in block and f"{text}_file" not in block:
                self._problem((*path, f"{text}_file"), f"is missing (or {text} with the PEM text itself)")

    def _check_client_auth(self, path: Path, block: Mapping[object, object], tls: TlsSettings) -> None:
        if "client_auth_type" in block and block["client_auth_type"] not in (
            *VERIFYING,
            "NoClientCert",
            "RequestClientCert",
        ):
            return  # reported already
        has_ca = "client_ca" in block or "client_ca_file" in block
        if has_ca and tls.client_auth_type == "NoClientCert":
            self._problem((*path, "client_auth_type"), "is missing: a client CA alone lets everyone in; "
                          "write RequireAndVerifyClientCert")  # fmt: skip
        elif tls.client_auth_type == "RequireAndVerifyClientCert" and not has_ca:
            self._problem(
                (*path, "client_ca_file"), "is missing, RequireAndVerifyClientCert needs the CA to verify by"
            )
        elif tls.client_allowed_sans and tls.client_auth_type not in VERIFYING:
            self._problem((*path, "client_allowed_sans"), "needs client_auth_type RequireAndVerifyClientCert")
        if block.get("client_allowed_sans") == []:
            self._problem(
                (*path, "client_allowed_sans"), "must name at least one, an empty list lets nobody in"
            )

    def _http(self, path: Path, block: dict[object, object]) -> tuple[tuple[str, str], ...]:
        headers: tuple[tuple[str, str], ...] = ()
        for name, given in self._known(path, block, ("http2", "headers")):
            place = (*path, name)
            if name == "http2":
                self._value(place, read_switch, given)
            elif isinstance(given, dict):
                headers = self._headers(place, given)
            elif given is not None:
                self._problem(place, "must be keys and values", given)
        return headers

    def _headers(self, path: Path, block: dict[object, object]) -> tuple[tuple[str, str], ...]:
        read = {
            name: self._value((*path, name), header_reader(HEADERS[name]), given)
            for name, given in self._known(path, block, tuple(HEADERS))
        }
        return tuple((name, value) for name, value in read.items() if value)  # the format: unset if blank

    def _users(self, path: Path, block: dict[object, object]) -> dict[str, str]:
        self._refuse_repeated(path, block)
        users: dict[str, str] = {}
        for name, given in block.items():
            if not isinstance(name, str) or not name or ":" in name or not name.isprintable():
                self._problem(
                    (*path, name), "must be a user name: printable text without a colon, in quotes if need be"
                )
            else:
                users[name] = self._value((*path, name), read_hash, given, secret=True)
        return users

    def _rate(self, path: Path, block: dict[object, object]) -> RateLimit | None:
        values = {
            name: self._value((*path, name), RATE_KEYS[name], given)
            for name, given in self._known(path, block, tuple(RATE_KEYS))
        }
        interval, burst = values.get("interval", 0.0), values.get("burst", 0)
        if interval and burst == 0:
            self._problem((*path, "burst"), "must be at least 1, or nothing is ever answered", burst)
        return RateLimit(interval, burst) if interval and burst else None


def _join(path: Path) -> str:
    return ".".join(
        one_line(part) if isinstance(part, str) and 0 < len(part) <= 60 else got(part) for part in path
    )
