"""Certificates for tests of TLS, made once for all of them."""

from __future__ import annotations

import contextlib
import socket
import ssl
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import bcrypt
import trustme
import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

PASSWORD = "correct horse"


@dataclass(frozen=True)
class Authorities:
    """One CA that is trusted and one that is not, and what they issued."""

    ours: trustme.CA
    theirs: trustme.CA
    server: trustme.LeafCert
    other_server: trustme.LeafCert
    client: trustme.LeafCert
    wrong_name: trustme.LeafCert
    foreign: trustme.LeafCert


@cache
def authorities() -> Authorities:
    """Make them."""
    ours, theirs = trustme.CA(), trustme.CA()
    return Authorities(
        ours,
        theirs,
        ours.issue_cert("127.0.0.1", "localhost"),
        ours.issue_cert("127.0.0.1", "localhost"),
        ours.issue_cert("prometheus.example", "2001:db8::1"),
        ours.issue_cert("laptop.example"),
        theirs.issue_cert("prometheus.example"),
    )


@cache
def hashed(password: str = PASSWORD, cost: int = 4) -> str:
    """Return a bcrypt hash, of the lowest cost unless asked."""
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(cost)).decode()


def put_pair(directory: Path, leaf: trustme.LeafCert) -> None:
    """Write certificate and key of the server, and the CA for clients."""
    leaf.cert_chain_pems[0].write_to_path(directory / "server.crt")
    leaf.private_key_pem.write_to_path(directory / "server.key")
    authorities().ours.cert_pem.write_to_path(directory / "ca.crt")


def tls_block(**changes: object) -> dict[str, object]:
    """Return a ``tls_server_config`` with the server's certificate."""
    return {"cert_file": "server.crt", "key_file": "server.key", **changes}


def put_config(
    directory: Path,
    *,
    tls: Mapping[str, object] | None = None,
    users: Mapping[str, str] | None = None,
    **sections: object,
) -> Path:
    """Write a web-config file, whole, as careful programs do."""
    document: dict[str, object] = dict(sections)
    if tls is not None:
        document["tls_server_config"] = dict(tls)
    if users is not None:
        document["basic_auth_users"] = dict(users)
    path = directory / "web.yml"
    new = directory / "web.yml.new"
    new.write_text(yaml.safe_dump(document), encoding="utf-8")
    new.rename(path)
    return path


def client_context(leaf: trustme.LeafCert | None = None, **versions: ssl.TLSVersion) -> ssl.SSLContext:
    """Return what a client of ours speaks; ``maximum_version`` and ``minimum_version`` may be given."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authorities().ours.configure_trust(context)
    if leaf is not None:
        leaf.configure_cert(context)
    for name, version in versions.items():
        setattr(context, name, version)
    return context


def tls_ask(port: int, context: ssl.SSLContext, path: str = "/-/healthy", extra: bytes = b"") -> bytes:
    """Ask over TLS and return all that comes back; nothing when the server hangs up on us."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as plain:
        try:
            with context.wrap_socket(plain, server_hostname="127.0.0.1") as client:
                client.sendall(b"GET %s HTTP/1.0\r\n%s\r\n" % (path.encode(), extra))
                received = b""
                while data := client.recv(65536):
                    received += data
                return received
        except (ssl.SSLError, ConnectionError):
            return b""


def tls_connect(port: int, context: ssl.SSLContext) -> ssl.SSLSocket:
    """Open a TLS connection; the caller closes it."""
    plain = socket.create_connection(("127.0.0.1", port), timeout=20)
    with contextlib.ExitStack() as stack:
        stack.callback(plain.close)
        client = context.wrap_socket(plain, server_hostname="127.0.0.1")
        stack.pop_all()
    return client
