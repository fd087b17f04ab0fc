"""Malformed requests and hostile clients: limits hold and a scrape is still answered."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from ckpt_exporter.errors import CkptExporterError
from ckpt_exporter.web.connections import Connections, Limits
from ckpt_exporter.web.protocol import Reply
from tests.unit.web_site import Site, ask, read_all, serving, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@pytest.fixture
def site() -> Iterator[Site]:
    """Run a server with the default limits."""
    with serving() as running:
        yield running


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /-/healthy HTTP/1.1\r\nHost: a\r\n\r\n", b"200"),
        (b"GET /-/healthy HTTP/1.0\n\n", b"200"),
        (b"GET http://elsewhere/-/healthy HTTP/1.1\r\n\r\n", b"200"),
        (b"GET http://[bad/ HTTP/1.1\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00 TLS hello\r\n\r\n", b"400"),
        (b"GET\r\n\r\n", b"400"),
        (b"GET / HTTP/9.9\r\n\r\n", b"505"),
        (b"GET / HTTP/0.9\r\n\r\n", b"505"),
        (b"GET / HTTP/00.0\r\n\r\n", b"505"),
        (b"GET /\r\n\r\n", b"400"),
        (b"GET / HTTP/x\r\n\r\n", b"400"),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n", b"414"),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 20_000 + b"\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 200 + b"\r\n", b"431"),
        (b"GET /" + b"a" * 100_000, b"431"),
    ],
)
def test_request_heads(site: Site, sent: bytes, status: bytes) -> None:
    """A malformed or oversized request gets its own status and does no harm."""
    answer = site.raw(sent)
    assert answer.split(b" ", 2)[1] == status
    assert (b"Connection: close" in answer) == (status != b"200" or b"HTTP/1.0" in sent)
    assert site.get("/-/healthy")[0].status == 200


def test_idle_connections_do_not_hold_up_a_scrape(site: Site) -> None:
    """With 200 silent connections open a scrape is answered, by no more threads than before."""
    for _ in range(200):
        site.connect()
    threads = threading.active_count()
    assert site.get("/metrics")[0].status == 200
    wait_for(lambda: threading.active_count() <= threads)
    assert not [thread for thread in threading.enumerate() if thread.name == "web-request"]


def test_too_many_silent_connections_lose_the_oldest() -> None:
    """Beyond the limit of waiting connections the oldest is closed and the newest is served."""
    with serving(limits=Limits(waiting=3)) as site:
        first, *others = [site.connect() for _ in range(3)]
        assert site.get("/-/healthy")[0].status == 200
        assert read_all(first) == b""
        others[-1].sendall(b"GET /-/ready HTTP/1.0\r\n\r\n")
        assert read_all(others[-1]).startswith(b"HTTP/1.1 200 ")


def test_a_slow_request_head_is_cut_off() -> None:
    """The time for a head is counted from the connection, so trickling bytes does not stretch it."""
    with serving(limits=Limits(timeout_seconds=0.3)) as site:
        client = site.connect()
        client.settimeout(0.02)
        began = time.monotonic()
        closed = False
        while not closed and time.monotonic() - began < 10:
            try:
                client.sendall(b"G")
                closed = client.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                closed = True
        assert closed


def test_a_head_in_pieces_is_put_together(site: Site) -> None:
    """A request may arrive in pieces, its end split anywhere."""
    head = b"GET /-/healthy HTTP/1.0\r\nHost: a\r\n\r\n"
    for cut in (1, 10, len(head) - 3, len(head) - 2, len(head) - 1):
        client = site.connect()
        client.sendall(head[:cut])
        time.sleep(0.02)  # lets the server read the first part alone; if it does not, less is tested
        client.sendall(head[cut:])
        assert read_all(client).startswith(b"HTTP/1.1 200 ")


def test_a_reader_that_does_not_read_is_cut_off() -> None:
    """A client that takes no answer loses its connection after the time limit and frees its place."""
    with serving(limits=Limits(requests=1, timeout_seconds=0.3)) as site:
        asked = threading.Event()

        def endless() -> str:
            asked.set()
            return "x" * 50_000_000

        site.page[0] = endless
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        site.clients.append(client)
        client.connect(("127.0.0.1", site.server.port))
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert asked.wait(20)

        def served() -> bool:
            with contextlib.suppress(OSError):  # on a busy machine its own request may be too slow
                return site.get("/-/healthy")[0].status == 200
            return False

        wait_for(served)


def test_requests_beyond_the_limit_get_503_at_once() -> None:
    """While the places are taken further requests are told so, and later ones are served again."""
    entered, release = threading.Semaphore(0), threading.Event()

    def slow() -> str:
        entered.release()
        release.wait(20)
        return "done"

    with serving(limits=Limits(requests=2)) as site:
        site.page[0] = slow
        busy = [site.connect() for _ in range(2)]
        for client in busy:
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert entered.acquire(timeout=20)
        response, body = site.get("/-/healthy")
        assert (response.status, body) == (503, b"too many requests at once, try again\n")
        release.set()
        for client in busy:
            assert read_all(client).endswith(b"done")
        wait_for(lambda: site.get("/-/healthy")[0].status == 200)


def test_a_connection_carries_many_requests(site: Site) -> None:
    """One connection serves request after request, also those sent before the first answer."""
    client = site.connect()
    client.sendall(b"GET /-/healthy HTTP/1.1\r\n\r\n" * 50 + b"GET /-/ready HTTP/1.0\r\n\r\n")
    assert read_all(client).count(b"HTTP/1.1 200 OK") == 51


@pytest.mark.parametrize(
    "head",
    [
        b"GET /-/healthy HTTP/1.0\r\n",
        b"GET /-/healthy HTTP/1.1\r\nConnection: Foo, Close\r\n",
        b"GET /-/healthy HTTP/1.1\r\nContent-Length: 5\r\n",
        b"GET /-/healthy HTTP/1.1\r\nContent-Length: 0\r\nContent-Length: 5\r\n",
        b"GET /-/healthy HTTP/1.1\r\nTransfer-Encoding: chunked\r\n",
        b"GET /-/healthy HTTP/1.1\r\nTransfer-Encoding: xchunked\r\nContent-Length: 0\r\n",
        b"GET /-/healthy HTTP/1.1\r\nUpgrade: h2c\r\n",
        b"POST /-/healthy HTTP/1.1\r\nContent-Length: 29\r\n",
    ],
)
def test_nothing_behind_a_body_is_a_request(site: Site, head: bytes) -> None:
    """After a request that may have a body the connection ends: what follows is never taken for a request."""
    answer = site.raw(head + b"\r\nGET /smuggled HTTP/1.1\r\n\r\n")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"Connection: close" in answer
    assert b"404" not in answer


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /-/healthy HTTP/1.1\r\nA: b\0c\r\n\r\n",
        b"GET /-/healthy\0 HTTP/1.1\r\n\r\n",
        b"GET /-/healthy HTTP/1.1\r\nA : b\r\n\r\n",
        b"GET /-/healthy HTTP/1.1\r\nA: b\r\n folded\r\n\r\n",
        b"GET /-/healthy HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /-/healthy HTTP/1.1\r\n: no name\r\n\r\n",
        b"GET /-/healthy HTTP/1.1\r\nA: b\rContent-Length: 5\r\n\r\n",
        b"GET /-/healthy  HTTP/1.1\r\n\r\n",
        b"GET\t/-/healthy HTTP/1.1\r\n\r\n",
        b"GET /-/healthy HTTP/1.1 x\r\n\r\n",
        b"\xa0 \xa0 \xa0\r\n\r\n",
        b"GET /\x85 HTTP/1.1\r\n\r\n",
        b"\r\n\r\nGET / HTTP/1.1\r\n\r\n",
    ],
)
def test_what_servers_read_differently_is_refused(site: Site, sent: bytes) -> None:
    """NULs, folded lines, spaces and bare carriage returns in a head are a bad request, and end it."""
    answer = site.raw(sent)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    "path", [b"/x%0d%0aSet-Cookie:a=b", b"/?a=%0d%0aB:c", b"//evil.example/", b"/..;/metrics"]
)
def test_nothing_of_a_request_comes_back_in_a_header(site: Site, path: bytes) -> None:
    """What a client wrote is in no header of the answer."""
    head = site.raw(b"GET " + path + b" HTTP/1.0\r\nX: y\r\n\r\n").partition(b"\r\n\r\n")[0]
    assert not {b"Set-Cookie", b"evil", b"B:c", b"Location"} & set(
        re.findall(rb"Set-Cookie|evil|B:c|Location", head)
    )


def test_many_slow_readers_lose_the_oldest_by_bytes() -> None:
    """What is sent to clients that do not read stays below a limit; the oldest of them goes first."""
    with serving(limits=Limits(unsent_bytes=50_000_000)) as site:
        asked: list[int] = []

        def large() -> str:
            asked.append(1)
            return "x" * 20_000_000

        site.page[0] = large
        connections = site.server._connections
        assert connections is not None
        for number in range(1, 6):
            site.connect().sendall(b"GET / HTTP/1.1\r\n\r\n")
            wait_for(lambda number=number: len(asked) == number and connections._unsent_bytes > 0)  # type: ignore[misc]
            assert connections._unsent_bytes <= 50_000_000
        wait_for(lambda: site.server.rejected["crowded"] >= 1)
        assert connections._unsent_bytes <= 50_000_000
        assert site.get("/-/healthy")[0].status == 200


def test_an_idle_connection_is_given_up_in_the_end() -> None:
    """A kept connection without a next request ends after its time, and is no offence."""
    with serving(limits=Limits(idle_seconds=0.2)) as site:
        client = site.connect()
        client.sendall(b"GET /-/healthy HTTP/1.1\r\n\r\n")
        assert read_all(client).endswith(b"is healthy\n")
        assert site.server.rejected["slow"] == 0


def test_a_second_request_must_not_trickle() -> None:
    """On a kept connection a request head has the time of a first one, not the time for idling."""
    with serving(limits=Limits(timeout_seconds=0.2, idle_seconds=600.0)) as site:
        client = site.connect()
        client.sendall(b"GET /-/healthy HTTP/1.1\r\n\r\n")
        assert client.recv(4096).endswith(b"is healthy\n")
        client.sendall(b"GET /-/hea")
        assert read_all(client) == b""
        assert site.server.rejected["slow"] == 1


def test_several_addresses() -> None:
    """Each listen address is served; one that is taken closes the others again."""
    with serving(addresses=("127.0.0.1:0", "127.0.0.2:0")) as site:
        assert len(site.server.addresses) == 2
        for address in site.server.addresses:
            host, _, port = address.rpartition(":")
            with socket.create_connection((host, int(port)), timeout=20) as client:
                client.sendall(b"GET /-/healthy HTTP/1.0\r\n\r\n")
                assert read_all(client).startswith(b"HTTP/1.1 200 ")
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(CkptExporterError), serving(addresses=("127.0.0.1:0", site.server.addresses[1])):
            pass
        assert len(os.listdir("/proc/self/fd")) <= before


def test_clients_that_leave_are_forgotten(site: Site) -> None:
    """Connections opened and closed, or reset, leave no descriptor behind."""

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    site.get("/metrics")
    before = descriptors()
    for index in range(50):
        client = site.connect()
        if index % 2:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        client.close()
    wait_for(lambda: descriptors() <= before)
    assert site.get("/metrics")[0].status == 200


class FailingListener(socket.socket):
    """A listening socket whose accept fails first in the given ways."""

    failures: list[Exception]

    def accept(self) -> tuple[socket.socket, object]:
        """Fail while there is a failure left."""
        if self.failures:
            raise self.failures.pop(0)
        return super().accept()


@contextlib.contextmanager
def failing(failures: list[Exception]) -> Iterator[int]:
    """Serve ``ok`` behind a listener that fails as often as the list says; yield its port."""
    listener = FailingListener(socket.AF_INET, socket.SOCK_STREAM)
    listener.failures = failures
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    listener.settimeout(0)
    with serving_ok([listener]):
        yield listener.getsockname()[1]


class SaysOk:
    """Knows everybody."""

    def knows(self, head: bytes) -> bool:
        return True

    def refuse(self, head: bytes, client: str) -> Reply | None:
        return None

    def respond(self, head: bytes, client: str) -> Reply:
        return Reply(b"ok " + head)


@contextlib.contextmanager
def serving_ok(listeners: Sequence[socket.socket]) -> Iterator[Connections]:
    """Answer ``ok`` and the request to all who connect."""
    connections = Connections(listeners, SaysOk(), Limits(timeout_seconds=60))
    connections.start()
    try:
        yield connections
    finally:
        connections.stop()


@pytest.mark.parametrize(
    "failure",
    [
        ConnectionAbortedError(),
        OSError(errno.EMFILE, "Too many open files"),
        OSError(errno.EIO, "Input/output error"),
        RuntimeError("broken on purpose"),
    ],
    ids=repr,
)
def test_a_failing_accept_does_not_end_the_server(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever accept fails with, the connection is taken up later."""
    with failing([failure]) as port:
        assert ask(port) == b"ok GET / HTTP/1.1\r\n\r\n"


def test_without_descriptors_the_oldest_silent_connection_goes() -> None:
    """A scrape gets the descriptor that a silent client held."""
    failures: list[Exception] = []
    with failing(failures) as port, socket.create_connection(("127.0.0.1", port), timeout=20) as idle:
        assert ask(port).startswith(b"ok")  # connections are taken in order, so the silent one is in
        failures.append(OSError(errno.EMFILE, "Too many open files"))
        assert ask(port).startswith(b"ok")
        assert read_all(idle) == b""


def test_stopping_with_connections_open() -> None:
    """Stop closes silent and busy connections and the port, and does not wait for them."""
    entered, release = threading.Event(), threading.Event()

    def stuck() -> str:
        entered.set()
        release.wait(60)
        return ""

    with serving() as site:
        site.page[0] = stuck
        idle, busy = site.connect(), site.connect()
        busy.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert entered.wait(20)
        began = time.monotonic()
        site.server.stop()
        took = time.monotonic() - began
        release.set()
        assert took < 1  # the promise of stop(), less than a service manager waits
        assert read_all(idle) == b""
        assert read_all(busy) == b""
        with pytest.raises(ConnectionRefusedError):
            site.connect()
        site.server.stop()  # a second time is harmless


def test_requests_are_logged_at_debug_only(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """The access log is silent by default, escapes what clients send and looks up no name."""
    with caplog.at_level(logging.INFO):
        site.get("/metrics")
        site.raw(b"\x16\x03 hello\r\n\r\n")
    assert caplog.records == []
    with caplog.at_level(logging.DEBUG):
        site.raw(b"GET /a\x1b[31m HTTP/1.1\r\n\r\n")
        wait_for(lambda: bool(caplog.records))
    message = caplog.records[0].getMessage()
    assert message.startswith("127.0.0.1 ")
    assert "\\x1b[31m" in message
    assert " 400 " in message
