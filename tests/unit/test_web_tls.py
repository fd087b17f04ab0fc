"""TLS: versions, client certificates, renewal without restart, clients that stall."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING

import pytest

from ckpt_exporter.errors import ConfigError
from ckpt_exporter.web.connections import Limits
from ckpt_exporter.web.security import SecurityFile
from ckpt_exporter.web.tls import TlsGate
from tests.unit.test_web_auth import basic
from tests.unit.web_certificates import (
    PASSWORD,
    authorities,
    client_context,
    hashed,
    put_config,
    put_pair,
    tls_ask,
    tls_block,
    tls_connect,
)
from tests.unit.web_site import Site, read_all, serving, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VERIFY = {"client_ca_file": "ca.crt", "client_auth_type": "RequireAndVerifyClientCert"}
OK = b"HTTP/1.1 200 OK"


@contextlib.contextmanager
def tls_site(directory: Path, limits: Limits | None = None, **changes: object) -> Iterator[Site]:
    """Run a server that speaks TLS."""
    put_pair(directory, authorities().server)
    with serving(config_file=put_config(directory, tls=tls_block(**changes)), limits=limits) as site:
        yield site


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions(tmp_path: Path, version: ssl.TLSVersion) -> None:
    """TLS 1.2 and 1.3 are spoken by default, with HTTP/1.1 agreed on."""
    with tls_site(tmp_path) as site:
        context = client_context(minimum_version=version, maximum_version=version)
        context.set_alpn_protocols(["h2", "http/1.1"])
        assert tls_ask(site.server.port, context).startswith(OK)
        with tls_connect(site.server.port, context) as client:
            assert client.selected_alpn_protocol() == "http/1.1"
            assert client.compression() is None


def test_minimum_version(tmp_path: Path) -> None:
    """A client below the minimum version gets no connection, and it is counted."""
    with tls_site(tmp_path, min_version="TLS13") as site:
        assert tls_ask(site.server.port, client_context(maximum_version=ssl.TLSVersion.TLSv1_2)) == b""
        assert tls_ask(site.server.port, client_context()).startswith(OK)
        assert site.server.rejected["tls"] == 1


def test_cipher_suite_and_curve(tmp_path: Path) -> None:
    """Only the named suite of TLS 1.2 is spoken."""
    suite = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"
    with tls_site(tmp_path, cipher_suites=[suite], curve_preferences=["CurveP384"]) as site:
        old = client_context(maximum_version=ssl.TLSVersion.TLSv1_2)
        with tls_connect(site.server.port, old) as client:
            cipher = client.cipher()
        assert cipher is not None
        assert cipher[0] == "ECDHE-ECDSA-AES256-GCM-SHA384"
        old.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
        assert tls_ask(site.server.port, old) == b""
        other_curve = client_context()
        other_curve.set_ecdh_curve("prime256v1")
        assert tls_ask(site.server.port, other_curve) == b""


def test_only_suites_of_tls_13(tmp_path: Path) -> None:
    """Naming suites of TLS 1.3 alone leaves TLS 1.3 alone."""
    with tls_site(tmp_path, cipher_suites=["TLS_AES_128_GCM_SHA256"]) as site:
        assert tls_ask(site.server.port, client_context(maximum_version=ssl.TLSVersion.TLSv1_2)) == b""
        assert tls_ask(site.server.port, client_context()).startswith(OK)


@pytest.mark.parametrize(
    ("settings", "admitted"),
    [
        ({"client_auth_type": "NoClientCert"}, {"none", "client", "wrong_name", "foreign"}),
        (
            {"client_auth_type": "RequestClientCert", "client_ca_file": "ca.crt"},
            {"none", "client", "wrong_name", "foreign"},
        ),
        (
            {"client_auth_type": "VerifyClientCertIfGiven", "client_ca_file": "ca.crt"},
            {"none", "client", "wrong_name"},
        ),
        (VERIFY, {"client", "wrong_name"}),
        ({**VERIFY, "client_allowed_sans": ["prometheus.example"]}, {"client"}),
        ({**VERIFY, "client_allowed_sans": ["2001:DB8:0::1"]}, {"client"}),
        ({**VERIFY, "client_allowed_sans": ["example", "*.example"]}, set()),
    ],
)
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_client_certificates(
    tmp_path: Path, settings: dict[str, object], admitted: set[str], version: ssl.TLSVersion
) -> None:
    """Each way to ask for client certificates lets in exactly those it should, health paths included."""
    made = authorities()
    leaves = {"client": made.client, "wrong_name": made.wrong_name, "foreign": made.foreign, "none": None}
    with tls_site(tmp_path, **settings) as site:
        answered = {
            name
            for name, leaf in leaves.items()
            if tls_ask(site.server.port, client_context(leaf, maximum_version=version)).startswith(OK)
        }
    assert answered == admitted


def test_every_kind_of_name_counts() -> None:
    """DNS names, addresses, mail addresses and URIs of a certificate are compared whole."""
    gate = TlsGate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), frozenset({"spiffe://x/y", "10.0.0.1", "a@b.c"}))
    for kind, value, admitted in (
        ("URI", "spiffe://x/y", True),
        ("IP Address", "10.0.0.1", True),
        ("email", "a@b.c", True),
        ("DNS", "a.b", False),
        ("URI", "spiffe://x/y/z", False),
    ):
        assert gate.admits({"subjectAltName": (("DNS", "z"), (kind, value))}) == admitted
    assert not gate.admits({"subject": ()})


def test_plain_http_is_told(tmp_path: Path) -> None:
    """A request without TLS gets a line that says so, not silence."""
    with tls_site(tmp_path) as site:
        assert site.raw(b"GET /metrics HTTP/1.1\r\n\r\n").endswith(b"https is spoken here\n")


def test_no_renegotiation(tmp_path: Path) -> None:
    """A server context refuses renegotiation and compression."""
    put_pair(tmp_path, authorities().server)
    gate = SecurityFile(str(put_config(tmp_path, tls=tls_block()))).current.gate
    assert gate is not None
    assert gate.context.options & ssl.OP_NO_RENEGOTIATION
    assert gate.context.options & ssl.OP_NO_COMPRESSION


# --- clients that stall ---------------------------------------------------------------------------------


def test_stalled_handshakes_do_not_hold_up_a_scrape(tmp_path: Path) -> None:
    """200 clients silent before or in the handshake cost no thread, and a scrape is answered."""
    with tls_site(tmp_path) as site:
        for number in range(200):
            client = site.connect()
            if number % 2:
                client.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")  # the first bytes of a hello
        threads = threading.active_count()
        assert tls_ask(site.server.port, client_context(), "/metrics").startswith(OK)
        wait_for(lambda: threading.active_count() <= threads)


def test_a_stalled_handshake_is_cut_off(tmp_path: Path) -> None:
    """A handshake has the same time as a request head, and the descriptor is free afterwards."""
    with tls_site(tmp_path, limits=Limits(timeout_seconds=0.3)) as site:
        before = len(os.listdir("/proc/self/fd"))
        client = site.connect()
        assert read_all(client) == b""
        wait_for(lambda: len(os.listdir("/proc/self/fd")) <= before + 1)
        assert site.server.rejected["slow"] == 1


def test_connections_are_kept_over_tls(tmp_path: Path) -> None:
    """A second scrape needs no second handshake, and pipelined requests are answered in order."""
    with tls_site(tmp_path) as site, tls_connect(site.server.port, client_context()) as client:
        for _ in range(3):
            client.sendall(b"GET /-/healthy HTTP/1.1\r\nHost: a\r\n\r\n")
            assert client.recv(65536).endswith(b"ckpt-exporter is healthy\n")
        client.sendall(
            b"GET /-/healthy HTTP/1.1\r\n\r\nGET /-/ready HTTP/1.1\r\n\r\n"
            b"GET /nothing HTTP/1.1\r\nConnection: close\r\n\r\n"
        )
        received = b""
        while data := client.recv(65536):
            received += data
        assert [line for line in received.splitlines() if line.startswith(b"HTTP/")] == [
            OK,
            OK,
            b"HTTP/1.1 404 Not Found",
        ]


def test_a_slow_reader_over_tls_costs_no_thread(tmp_path: Path) -> None:
    """A client that does not read its response holds no thread while it is waited for."""
    with tls_site(tmp_path) as site:
        site.page[0] = lambda: "x" * 20_000_000
        threads = threading.active_count()
        with tls_connect(site.server.port, client_context()) as client:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            connections = site.server._connections
            assert connections is not None
            wait_for(lambda: connections._unsent_bytes > 0)
            wait_for(lambda: threading.active_count() <= threads)
            assert tls_ask(site.server.port, client_context()).startswith(OK)
            received = 0
            while received < 20_000_000 and (data := client.recv(1 << 20)):
                received += len(data)
            assert received > 20_000_000


# --- changes --------------------------------------------------------------------------------------------


def served_certificate(site: Site) -> bytes | None:
    with tls_connect(site.server.port, client_context()) as client:
        return client.getpeercert(binary_form=True)


def der(pem: bytes) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pem.decode())


def test_a_renewed_certificate_is_served(tmp_path: Path) -> None:
    """New files are taken up without a restart; a connection of before is not kept."""
    with tls_site(tmp_path) as site, tls_connect(site.server.port, client_context()) as kept:
        assert served_certificate(site) == der(authorities().server.cert_chain_pems[0].bytes())
        put_pair(tmp_path, authorities().other_server)
        site.server._security.look()  # seen
        site.server._security.look()  # unchanged since, so taken over
        assert served_certificate(site) == der(authorities().other_server.cert_chain_pems[0].bytes())
        kept.sendall(b"GET /-/healthy HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            assert kept.recv(100) == b""


def test_the_thread_takes_up_a_change(tmp_path: Path) -> None:
    """A change is taken up by itself within a few seconds."""
    put_pair(tmp_path, authorities().server)
    file = SecurityFile(str(put_config(tmp_path, tls=tls_block())), look_seconds=0.02)
    first = file.current
    file.start()
    try:
        put_config(tmp_path, tls=tls_block(), users={"alice": hashed()})
        wait_for(lambda: file.current is not first)
        assert file.current.passwords is not None
    finally:
        file.stop()


def test_a_half_written_pair_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """While only the certificate is new the old pair stays in force, and says so; the new key ends it."""
    put_pair(tmp_path, authorities().server)
    file = SecurityFile(str(put_config(tmp_path, tls=tls_block())), unix=lambda: 5.0)
    gate = file.current.gate
    authorities().other_server.cert_chain_pems[0].write_to_path(tmp_path / "server.crt")
    for _ in range(4):
        file.look()
    assert file.current.gate is gate
    assert file.status is not None
    assert (file.status.successful, file.status.success_unix) == (False, 5.0)
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1  # told once, not at each look
    assert errors[0].fields["problem"].endswith("key_file: does not belong to the certificate")  # type: ignore[attr-defined]
    authorities().other_server.private_key_pem.write_to_path(tmp_path / "server.key")
    for _ in range(2):
        file.look()
    assert file.current.gate is not gate
    assert file.status.successful


@pytest.mark.parametrize("text", ["", "{}", "tls_server_config: [", "basic_auth_users: {alice: x}"])
def test_a_broken_file_keeps_the_old_in_force(tmp_path: Path, text: str) -> None:
    """A truncated, broken or emptied file never opens the door: users and TLS stay until a restart."""
    put_pair(tmp_path, authorities().server)
    path = put_config(tmp_path, tls=tls_block(), users={"alice": hashed()})
    with serving(config_file=path) as site:
        path.write_text(text)
        site.server.reload()
        status = site.server.config_status
        assert status is not None
        assert not status.successful
        assert tls_ask(site.server.port, client_context(), "/metrics").startswith(b"HTTP/1.1 401 ")
        good = f"Authorization: {basic('alice', PASSWORD)}\r\n".encode()
        assert tls_ask(site.server.port, client_context(), "/metrics", good).startswith(OK)


def test_a_missing_file_keeps_the_old_in_force(tmp_path: Path) -> None:
    """A web-config file that is removed changes nothing but the status, and coming back mends it."""
    put_pair(tmp_path, authorities().server)
    path = put_config(tmp_path, tls=tls_block())
    file = SecurityFile(str(path))
    path.unlink()
    file.look()
    file.look()
    assert file.current.gate is not None
    assert file.status is not None
    assert not file.status.successful
    put_config(tmp_path, tls=tls_block())
    file.look()
    file.look()
    assert file.status.successful


def test_a_removed_user_is_out(tmp_path: Path) -> None:
    """A password that was remembered as right is forgotten when its user goes."""
    path = put_config(tmp_path, users={"alice": hashed(), "bob": hashed("other")})
    with serving(config_file=path) as site:
        good = basic("alice", PASSWORD)
        assert site.get("/metrics", authorization=good)[0].status == 200
        put_config(tmp_path, users={"bob": hashed("other")})
        site.server.reload()
        assert site.get("/metrics", authorization=good)[0].status == 401


def test_a_bad_file_at_the_start(tmp_path: Path) -> None:
    """The server does not start on a bad file, or without it."""
    for text in ("x: 1", None):
        path = tmp_path / "web.yml"
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_text(text)
        with pytest.raises(ConfigError, match=r"web\.yml: "), serving(config_file=path):
            pass


def test_stop_with_handshakes_open(tmp_path: Path) -> None:
    """Stopping does not wait for clients in the handshake."""
    with tls_site(tmp_path) as site:
        client: socket.socket = site.connect()
        client.sendall(b"\x16\x03\x01")
        began = time.monotonic()
        site.server.stop()
        assert time.monotonic() - began < 1  # the promise of stop()
        assert read_all(client) == b""
