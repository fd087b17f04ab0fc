"""Listening: the usual ways to write an address, and errors a user can act on."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import socket

import pytest

from ckpt_exporter.errors import CkptExporterError, UsageError
from ckpt_exporter.web.listen import (
    ListenAddress,
    bound_address,
    is_foreign_name,
    open_listener,
    parse_listen_address,
)
from tests.unit.web_site import serving


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        (":10047", "", 10047),
        ("127.0.0.1:0", "127.0.0.1", 0),
        ("localhost:9100", "localhost", 9100),
        ("[::1]:9100", "::1", 9100),
        ("[::]:65535", "::", 65535),
    ],
)
def test_listen_addresses(text: str, host: str, port: int) -> None:
    """The usual ways to write an address are understood, and printed the same way."""
    address = parse_listen_address(text)
    assert address == ListenAddress(host, port)
    assert str(address) == text


@pytest.mark.parametrize(
    "text", ["", "9100", "localhost", "host:", "::1:9100", ":http", ":-1", ":65536", "[::1]", ":²"]
)
def test_malformed_listen_address(text: str) -> None:
    """Anything else is a usage error of one line that repeats it."""
    with pytest.raises(UsageError) as caught:
        parse_listen_address(text)
    assert str(caught.value).startswith(f"cannot listen on {text}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "foreign"),
    [
        ("evil.example", True),
        ("Evil.Example.:10047", True),
        ("127.0.0.1.evil.example", True),
        ("127.0.0.1,evil.example", True),  # two headers
        ("", False),
        ("localhost:10047", False),
        ("x.localhost", False),
        ("127.0.0.1:10047", False),
        ("[::1]:10047", False),
        ("node1", False),
        ("Node1.Cluster.example:10047", False),
    ],
)
def test_foreign_names(host: str, foreign: bool) -> None:
    """Foreign is what a stranger can own: a name with a dot, no address, not one of ours."""
    assert is_foreign_name(host, {"node1.cluster.example"}) is foreign


@pytest.mark.parametrize(
    ("addresses", "status"),
    [(("127.0.0.1:0",), 421), (("127.0.0.1:0", "[::1]:0"), 421), (("127.0.0.1:0", "0.0.0.0:0"), 200)],
)
def test_foreign_names_on_a_loopback_address(addresses: tuple[str, ...], status: int) -> None:
    """Loopback alone refuses other sites' names and counts them; elsewhere any name may be meant."""
    with serving(addresses=addresses) as site:
        assert site.get("/metrics", host="evil.example")[0].status == status
        assert site.server.rejected["misdirected"] == (status == 421)
        assert site.get("/metrics", host="localhost")[0].status == 200


def test_port_in_use() -> None:
    """A second server on a port says who may hold it and what to change."""
    with serving() as site:
        address = site.server.address
        with pytest.raises(CkptExporterError) as caught:
            open_listener(parse_listen_address(address))
    assert str(caught.value) == (
        f"cannot listen on {address}: address already in use (another exporter? choose --web.listen-address)"
    )


def test_port_in_use_on_all_addresses() -> None:
    """The message repeats the address as it was written."""
    with contextlib.closing(open_listener(ListenAddress("", 0))) as first:
        port = bound_address(first).port
        with pytest.raises(CkptExporterError, match=rf"^cannot listen on :{port}: address already in use"):
            open_listener(ListenAddress("", port))


@pytest.mark.parametrize("host", ["no-such-host", "a" * 300])
def test_unknown_host(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that does not exist, or can't, is one line."""
    real = socket.getaddrinfo

    def without_dns(name: str, *arguments: object, **options: object) -> object:
        if name == "no-such-host":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(name, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", without_dns)
    with pytest.raises(CkptExporterError, match="no such host name or address") as caught:
        open_listener(ListenAddress(host, 9100))
    assert str(caught.value).startswith(f"cannot listen on {host}:9100: ")


def test_a_name_with_both_protocols_means_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    """``localhost:PORT`` listens where a scrape of 127.0.0.1 finds it."""
    both = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_arguments, **_options: both)
    with contextlib.closing(open_listener(ListenAddress("localhost", 0))) as listener:
        assert bound_address(listener).host == "127.0.0.1"


def test_address_of_another_machine() -> None:
    """An address that is not ours is one line."""
    with pytest.raises(CkptExporterError, match="this machine does not have that address"):
        open_listener(ListenAddress("192.0.2.1", 0))


def test_privileged_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that needs privileges is one line."""

    def refuse(_self: socket.socket, _where: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket, "socket", type("Refusing", (socket.socket,), {"bind": refuse}))
    with pytest.raises(CkptExporterError, match=r"^cannot listen on :80: permission denied \("):
        open_listener(ListenAddress("", 80))


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("host", ["", "::"])
def test_all_addresses_are_ipv4_and_ipv6(host: str) -> None:
    """``:PORT`` is reached by both protocols."""
    with contextlib.closing(open_listener(ListenAddress(host, 0))) as listener:
        port = bound_address(listener).port
        for target in ("127.0.0.1", "::1"):
            socket.create_connection((target, port), timeout=10).close()


def test_without_ipv6_all_addresses_are_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel has no IPv6, ``:PORT`` still listens."""
    real = socket.socket

    class NoSix(real):
        def __init__(self, family: int, *arguments: int) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, *arguments)

    monkeypatch.setattr(socket, "socket", NoSix)
    with contextlib.closing(open_listener(ListenAddress("", 0))) as listener:
        assert bound_address(listener).host == "0.0.0.0"


def test_listening_socket_options() -> None:
    """A restart need not wait, the port is shared with nobody, and child processes do not inherit it."""
    with contextlib.closing(open_listener(ListenAddress("127.0.0.1", 0))) as listener:
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) == 1
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT) == 0
        assert fcntl.fcntl(listener.fileno(), fcntl.F_GETFD) & fcntl.FD_CLOEXEC


def test_server_reports_the_chosen_port() -> None:
    """Port 0 becomes a real one that can be asked for."""
    with serving() as site:
        assert site.server.port > 0
        assert site.server.address == f"127.0.0.1:{site.server.port}"
