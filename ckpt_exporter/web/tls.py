"""TLS as the web-config file asks for it: a context of the standard library, and who may come in."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import ssl
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ckpt_exporter.config.web_file import TlsSettings
from ckpt_exporter.config.web_values import CIPHER_SUITES, CURVES
from ckpt_exporter.errors import ConfigError

_MAX_PEM_BYTES: Final = 1024 * 1024
_VERSIONS: Final = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_VERIFY: Final = {
    "NoClientCert": ssl.CERT_NONE,
    # Others ask for one and never look at it; nobody gets in or stays out by it, so none is asked for.
    "RequestClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}


class _WrongError(Exception):
    """What is wrong, as the rest of the sentence; ``key`` where it is not the one that was being applied."""

    def __init__(self, what: str, key: str | None = None) -> None:
        super().__init__(what)
        self.key = key


@dataclass(frozen=True, slots=True)
class TlsGate:
    """A context for new connections. ``allowed_sans`` empty: every client that the context admits."""

    context: ssl.SSLContext
    allowed_sans: frozenset[str] = frozenset()

    def admits(self, certificate: Mapping[str, Any] | None) -> bool:
        """Tell whether a client with this verified certificate, or none, may go on."""
        if not self.allowed_sans or not certificate:
            return True  # whether a certificate is needed at all is the context's decision
        return any(_normal(value) in self.allowed_sans for _, value in certificate.get("subjectAltName", ()))


def open_gate(file: str, settings: TlsSettings) -> TlsGate:
    """Read certificates and keys and make a context; raises ConfigError with every problem."""
    # Not create_default_context: its choices change between Python versions; these stand here.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    problems: list[str] = []
    for key, apply in (
        (_given(settings, "cert"), _load_pair),
        (_given(settings, "client_ca"), _load_client_ca),
        ("cipher_suites", _set_versions_and_suites),
        ("curve_preferences", _set_curves),
    ):
        try:
            apply(context, settings)
        except _WrongError as wrong:
            problems.append(f"{file}: tls_server_config.{wrong.key or key}: {wrong}")
    if problems:
        raise ConfigError(problems)
    context.verify_mode = _VERIFY[settings.client_auth_type]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(["http/1.1"])
    return TlsGate(context, frozenset(map(_normal, settings.client_allowed_sans)))


def _given(settings: TlsSettings, name: str) -> str:
    return name if getattr(settings, name) is not None else f"{name}_file"


def _normal(name: str) -> str:
    """Write an IP address in its one usual form, so that ``2001:DB8::1`` is found."""
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(name))
    return name


# --- certificates ---------------------------------------------------------------------------------------


def _load_pair(context: ssl.SSLContext, settings: TlsSettings) -> None:
    certificate = _pem(settings.cert, settings.cert_file)
    if b"-----BEGIN CERTIFICATE" not in certificate:
        raise _WrongError("holds no certificate in PEM form")
    key = _private_key(settings)
    # OpenSSL wants names of files; what was read stays in memory, so that both are of one moment.
    with _in_memory(certificate) as certificate_path, _in_memory(key) as key_path:
        try:
            context.load_cert_chain(certificate_path, key_path, password=lambda: b"")
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise _WrongError("does not belong to the certificate", _given(settings, "key")) from error
            raise _WrongError(f"cannot be used with its key: {_reason(error)}") from error


def _private_key(settings: TlsSettings) -> bytes:
    name = _given(settings, "key")
    try:
        key = _pem(settings.key, settings.key_file)
    except _WrongError as wrong:
        raise _WrongError(str(wrong), name) from wrong
    if b"PRIVATE KEY-----" not in key:
        raise _WrongError("holds no private key in PEM form", name)
    if b"ENCRYPTED" in key:
        raise _WrongError("is encrypted, and nobody is there to type its password", name)
    return key


def _load_client_ca(context: ssl.SSLContext, settings: TlsSettings) -> None:
    if settings.client_ca is None and settings.client_ca_file is None:
        if settings.client_auth_type == "VerifyClientCertIfGiven":
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)  # what the format means by no CA
        return
    text = _pem(settings.client_ca, settings.client_ca_file)
    try:
        context.load_verify_locations(cadata=text.decode("ascii", "replace"))
    except (ssl.SSLError, ValueError) as error:
        raise _WrongError("holds no certificate in PEM form") from error


def _pem(text: str | None, path: str | None) -> bytes:
    return text.encode() if text is not None else _read(str(path))


def _read(path: str) -> bytes:
    try:
        # Not blocking: a name may be that of a FIFO that nobody writes.
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(number, "rb") as stream:
            if not stat.S_ISREG(os.fstat(number).st_mode):
                raise _WrongError(f"must be a file (got {path})")
            content = stream.read(_MAX_PEM_BYTES + 1)
    except OSError as error:
        raise _WrongError(f"cannot be read: {error.strerror} (got {path})") from error
    if len(content) > _MAX_PEM_BYTES:
        raise _WrongError(f"is larger than 1 MiB (got {path})")
    return content


@contextlib.contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """Name bytes as a file that no directory holds."""
    number = os.memfd_create("ckpt-exporter-tls", os.MFD_CLOEXEC)
    try:
        os.write(number, content)
        yield f"/proc/self/fd/{number}"
    finally:
        os.close(number)


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()


# --- options --------------------------------------------------------------------------------------------


def _set_versions_and_suites(context: ssl.SSLContext, settings: TlsSettings) -> None:
    context.minimum_version = _VERSIONS[settings.min_version]
    context.maximum_version = _VERSIONS[settings.max_version]
    if settings.prefer_server_cipher_suites:
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    else:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    if not settings.cipher_suites:
        return
    suites = [CIPHER_SUITES[name] for name in settings.cipher_suites if name in CIPHER_SUITES]
    if not suites:  # only suites of TLS 1.3 were named, so nothing older may be spoken
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        return
    try:
        context.set_ciphers(":".join(suites))
    except ssl.SSLError as error:
        raise _WrongError(f"cannot be had from this machine's TLS library: {_reason(error)}") from error


def _set_curves(context: ssl.SSLContext, settings: TlsSettings) -> None:
    curves = [CURVES[name] for name in settings.curve_preferences]
    if not curves:
        return
    try:
        if hasattr(context, "set_groups"):  # Python 3.15
            context.set_groups(":".join(curves))
        elif len(curves) == 1:
            context.set_ecdh_curve(curves[0])
        else:
            raise _WrongError("must name one curve: Python before 3.15 cannot set several")
    except (ssl.SSLError, ValueError) as error:
        raise _WrongError(f"cannot be had from this machine's TLS library: {error}") from error
