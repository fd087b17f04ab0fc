"""Readers of single configuration values: each returns the checked value or says what it must be."""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
import unicodedata
from collections.abc import Callable, Collection
from fractions import Fraction
from typing import Final

Read = Callable[[object], object]

MAX_NAME_CHARACTERS: Final = 128
_MAX_PATH_BYTES: Final = 4095  # PATH_MAX without its final NUL
_MAX_BYTES: Final = 2**63 - 1
_MAX_DURATION_SECONDS: Final = 100 * 365 * 86400

_UNIT_BYTES: Final = {
    "B": 1,
    "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
_SIZE: Final = re.compile(rf"([0-9]{{1,18}}(?:\.[0-9]{{1,9}})?) ?({'|'.join(_UNIT_BYTES)})?")
_DURATION: Final = re.compile(r"([0-9]{1,9})([dhms])")
_UNIT_SECONDS: Final = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?")
_URL_PATH: Final = re.compile(r"(?:/[A-Za-z0-9._~-]+)+")
_HTTP_URL: Final = re.compile(r"http://([^/?#@]+)(/[A-Za-z0-9._~/-]*)?")
_ADDRESS_ADVICE: Final = "must be an address such as :10047, 127.0.0.1:10047, [::1]:10047 or host:10047"


class InvalidValueError(ValueError):
    """What is wrong with one value, as the rest of the sentence that begins with its key."""


# --- text -----------------------------------------------------------------------------------------------


def read_text(value: object) -> str:
    """Return non-empty text that has a UTF-8 form and no NUL."""
    if not isinstance(value, str):
        # YAML makes numbers, switches and nothing out of unquoted words such as 7, on and null.
        advice = ", put it in quotes" if isinstance(value, bool | int | float) else ""
        raise InvalidValueError(f"must be text{advice}")
    if not value.strip():
        raise InvalidValueError("must not be empty")
    return value


def read_name(value: object) -> str:
    """Return a label value: text without control characters, at most 128 characters."""
    text = read_text(value)
    if any(unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") for char in text):
        raise InvalidValueError("must not contain control characters")
    if len(text) > MAX_NAME_CHARACTERS:
        raise InvalidValueError(f"must have at most {MAX_NAME_CHARACTERS} characters, has {len(text)}")
    return text


def read_switch(value: object) -> bool:
    """Return true or false."""
    if not isinstance(value, bool):
        raise InvalidValueError("must be true or false")
    return value


def read_pattern(value: object) -> str:
    """Return a pattern of file names."""
    text = read_text(value)
    _check_bytes(text)
    return text


def one_of(allowed: Collection[str]) -> Read:
    """Make a reader that takes one of the words, and names the nearest when it is none of them."""

    def read(value: object) -> str:
        if isinstance(value, str) and value in allowed:
            return value
        near = difflib.get_close_matches(value, allowed, n=1) if isinstance(value, str) else []
        hint = f", did you mean '{near[0]}'?" if near else ""
        raise InvalidValueError(f"must be one of {', '.join(allowed)}{hint}")

    return read


def read_when(value: object) -> str:
    """Return ``auto``, ``on`` or ``off``; YAML takes the last two, unquoted, for a switch."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(one_of(("auto", "on", "off"))(value))


def optional(read: Read) -> Read:
    """Make a reader that also takes nothing (null)."""
    return lambda value: None if value is None else read(value)


# --- paths ----------------------------------------------------------------------------------------------


def _check_bytes(text: str) -> None:
    try:
        size = len(os.fsencode(text))
    except UnicodeEncodeError:
        raise InvalidValueError("must be a possible file name, has a character without bytes") from None
    if "\0" in text:
        raise InvalidValueError("must not contain the NUL character")
    if size > _MAX_PATH_BYTES:
        raise InvalidValueError(f"must have at most {_MAX_PATH_BYTES} bytes, has {size}")


def read_file_path(value: object) -> str:
    """Return an absolute path without ``..``, doubled or trailing slashes."""
    text = read_text(value)
    _check_bytes(text)
    if not text.startswith("/"):
        raise InvalidValueError("must be an absolute path")
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise InvalidValueError("must not contain '..'")
    if not parts:
        raise InvalidValueError("must be below /")
    return "/" + "/".join(parts)


# --- numbers --------------------------------------------------------------------------------------------


def number_up_to(maximum: float) -> Read:
    """Make a reader of numbers above 0 and at most ``maximum``."""

    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidValueError("must be a number")
        if not 0 < value <= maximum:  # also turns away what is not a number and infinity
            raise InvalidValueError(f"must be above 0 and at most {maximum}")
        return float(value)

    return read


def whole_number(minimum: int, maximum: int) -> Read:
    """Make a reader of whole numbers; flags bring them as text."""

    def read(value: object) -> int:
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise InvalidValueError(f"must be a whole number from {minimum} to {maximum}")
        return value

    return read


def read_size(value: object) -> int:
    """Return bytes from a whole number or text such as ``1MiB`` (1024²) and ``500kB`` (1000)."""
    if isinstance(value, str) and (match := _SIZE.fullmatch(value)):
        size = Fraction(match[1]) * _UNIT_BYTES[match[2] or "B"]
        if size.denominator != 1:
            raise InvalidValueError("must come to a whole number of bytes")
        value = int(size)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidValueError("must be a size such as 1MiB, 500kB or 1048576")
    if not 0 <= value <= _MAX_BYTES:
        raise InvalidValueError(f"must be from 0 to {_MAX_BYTES} bytes")
    return value


def read_duration(value: object) -> int:
    """Return seconds from a whole number or text such as ``90d``, ``12h``, ``30m``, ``45s``."""
    if isinstance(value, str) and (match := _DURATION.fullmatch(value)):
        value = int(match[1]) * _UNIT_SECONDS[match[2]]
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidValueError("must be a duration such as 90d, 12h, 30m, 45s or whole seconds")
    if not 0 < value <= _MAX_DURATION_SECONDS:
        raise InvalidValueError("must be above 0 and at most 36500d")
    return value


# --- web ------------------------------------------------------------------------------------------------


def _is_host(host: str) -> bool:
    if host.startswith("[") and host.endswith("]"):
        return _is_ip(host[1:-1], ipaddress.IPv6Address)
    if re.fullmatch(r"[0-9.]+", host):
        return _is_ip(host, ipaddress.IPv4Address)
    return _HOST_NAME.fullmatch(host) is not None


def _is_ip(text: str, kind: type[ipaddress.IPv4Address | ipaddress.IPv6Address]) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True


def split_listen_address(text: str) -> tuple[str, int]:
    """Split ``host:port`` into the host without brackets and the port.

    An empty host means all addresses, port 0 any free port. Raises InvalidValueError.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or (host and not _is_host(host)):
        raise InvalidValueError(_ADDRESS_ADVICE)
    if int(port) > 65535:
        raise InvalidValueError("must have a port from 0 to 65535")
    return host.removeprefix("[").removesuffix("]"), int(port)


def read_listen_address(value: object) -> str:
    """Return a listen address as written; ``split_listen_address`` takes it apart."""
    if not isinstance(value, str):
        raise InvalidValueError(_ADDRESS_ADVICE)
    split_listen_address(value)
    return value


def read_listen_addresses(value: object) -> str | tuple[str, ...]:
    """Return one listen address, or of a list all of them; one that is alone is not a list any more."""
    if not isinstance(value, list | tuple):
        return read_listen_address(value)
    addresses = tuple(map(read_listen_address, value))
    if not addresses or len(set(addresses)) < len(addresses):
        raise InvalidValueError("must be an address, or a list of different ones")
    return addresses if len(addresses) > 1 else addresses[0]


def read_telemetry_path(value: object) -> str:
    """Return the URL path of the metrics; the status page and the health paths keep theirs."""
    if not isinstance(value, str) or not _URL_PATH.fullmatch(value):
        raise InvalidValueError("must be a URL path such as /metrics")
    if value in ("/-/healthy", "/-/ready"):
        raise InvalidValueError("must not be a health path")
    return value


def read_http_url(value: object) -> str:
    """Return the URL of another exporter's metrics: plain HTTP, host and port, no user, no query."""
    found = _HTTP_URL.fullmatch(value) if isinstance(value, str) and len(value) <= _MAX_PATH_BYTES else None
    if found is None:
        raise InvalidValueError("must be a URL such as http://127.0.0.1:9400/metrics")
    split_listen_address(found[1] if re.search(r":[0-9]+$", found[1]) else f"{found[1]}:80")
    return found[0]
