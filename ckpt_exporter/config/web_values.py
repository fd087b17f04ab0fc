"""Readers of single values of the web-config file, and the words of its format."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from ckpt_exporter.config.values import InvalidValueError, Read, one_of, read_switch, read_text

# In Go's words, as the format has them. Which of them mean what here is decided in ``_check_client_auth``.
CLIENT_AUTH_TYPES: Final = (
    "NoClientCert",
    "RequestClientCert",
    "RequireAnyClientCert",
    "RequireClientCert",  # an older word for RequireAnyClientCert
    "VerifyClientCertIfGiven",
    "RequireAndVerifyClientCert",
)
VERIFYING: Final = ("VerifyClientCertIfGiven", "RequireAndVerifyClientCert")
_VERSIONS: Final = ("TLS12", "TLS13")

# Names of the format to OpenSSL's.
CIPHER_SUITES: Final[Mapping[str, str]] = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
}
# Always offered by TLS 1.3; the format accepts their names and changes nothing by them.
TLS13_SUITES: Final = (
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
)
CURVES: Final[Mapping[str, str]] = {
    "CurveP256": "prime256v1",
    "CurveP384": "secp384r1",
    "CurveP521": "secp521r1",
    "X25519": "X25519",
}
# The only headers that the format lets a user set, and the values where these are words.
HEADERS: Final[Mapping[str, tuple[str, ...]]] = {
    "Content-Security-Policy": (),
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
}
_HEADER_VALUE: Final = re.compile(r"[\x20-\x7e]{0,4096}")
_BCRYPT_HASH: Final = re.compile(r"\$2[aby]\$([0-9]{2})\$[./A-Za-z0-9]{53}")
_MIN_COST, _MAX_COST = 4, 18  # below, bcrypt refuses; above, one login keeps a core busy for many seconds
_GO_DURATION: Final = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ns|us|µs|ms|s|m|h))+")
_GO_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|µs|ms|s|m|h)")
_GO_UNIT_SECONDS: Final = {
    "ns": Fraction(1, 10**9), "us": Fraction(1, 10**6), "µs": Fraction(1, 10**6), "ms": Fraction(1, 1000),
    "s": Fraction(1), "m": Fraction(60), "h": Fraction(3600),
}  # fmt: skip
_MAX_INTERVAL_SECONDS: Final = 86400


def _read_pem(value: object) -> str:
    text = read_text(value)
    if "-----BEGIN " not in text:
        raise InvalidValueError(
            "must be PEM text that begins with -----BEGIN (for a file use the key with _file)"
        )
    return text


def _read_version(value: object) -> str:
    if value in ("TLS10", "TLS11"):
        raise InvalidValueError("must be TLS12 or TLS13; older versions are broken and not offered here")
    return str(one_of(_VERSIONS)(value))


def _read_auth_type(value: object) -> str:
    word = str(one_of(CLIENT_AUTH_TYPES)(value))
    if word in ("RequireAnyClientCert", "RequireClientCert"):
        raise InvalidValueError(
            "must be another: it lets in whoever makes a certificate of his own, and Python's TLS library "
            "cannot accept one unverified; use RequireAndVerifyClientCert"
        )
    return word


def read_hash(value: object) -> str:
    """Return a bcrypt hash of bearable cost."""
    match = _BCRYPT_HASH.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise InvalidValueError("must be a bcrypt hash such as htpasswd -nB prints behind the colon")
    if not _MIN_COST <= int(match[1]) <= _MAX_COST:
        raise InvalidValueError(
            f"must have a bcrypt cost from {_MIN_COST} to {_MAX_COST}, has {int(match[1])}"
        )
    return match[0]


def _read_interval(value: object) -> float:
    """Return seconds from Go's way to write durations, where a bare number is nanoseconds."""
    seconds = Fraction(-1)
    if isinstance(value, int) and not isinstance(value, bool):
        seconds = Fraction(value, 10**9)
    elif isinstance(value, str) and len(value) < 100 and _GO_DURATION.fullmatch(value):
        seconds = sum(
            (Fraction(n) * _GO_UNIT_SECONDS[unit] for n, unit in _GO_PART.findall(value)), Fraction()
        )
    elif value == "0":
        seconds = Fraction()
    if not 0 <= seconds <= _MAX_INTERVAL_SECONDS:
        raise InvalidValueError("must be a duration such as 1s, 100ms or 1m30s, at most 24h")
    return float(seconds)


def _read_burst(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1_000_000:
        raise InvalidValueError("must be a whole number from 0 to 1000000")
    return value


def header_reader(allowed: tuple[str, ...]) -> Read:
    """Make a reader of header values: any line of text, or one of ``allowed``; empty means unset."""

    def read(value: object) -> str:
        text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        if not isinstance(text, str) or not _HEADER_VALUE.fullmatch(text):
            raise InvalidValueError("must be one line of printable ASCII text")
        if text and allowed and text not in allowed:
            raise InvalidValueError(f"must be {' or '.join(allowed)}")
        return text

    return read


TLS_KEYS: Final[Mapping[str, Read]] = {
    "cert": _read_pem,
    "key": _read_pem,
    "client_ca": _read_pem,
    "cert_file": read_text,
    "key_file": read_text,
    "client_auth_type": _read_auth_type,
    "client_ca_file": read_text,
    "client_allowed_sans": read_text,
    "min_version": _read_version,
    "max_version": _read_version,
    "cipher_suites": one_of((*CIPHER_SUITES, *TLS13_SUITES)),
    "prefer_server_cipher_suites": read_switch,
    "curve_preferences": one_of(tuple(CURVES)),
}
LISTS: Final = ("client_allowed_sans", "cipher_suites", "curve_preferences")
FILES: Final = ("cert_file", "key_file", "client_ca_file")
SECRETS: Final = ("key", "cert", "client_ca")
RATE_KEYS: Final[Mapping[str, Read]] = {"interval": _read_interval, "burst": _read_burst}
