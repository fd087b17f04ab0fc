"""The web server over real sockets: formats, limits, hostile clients, errors a user can act on."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import http.client
import logging
import os
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from export_sample import HOSTILE_NAME, sample_snapshot
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from ckpt_exporter.errors import CkptExporterError, UsageError
from ckpt_exporter.metrics import build_registry
from ckpt_exporter.web.connections import Connections, Limits
from ckpt_exporter.web.listen import ListenAddress, bound_address, open_listener, parse_listen_address
from ckpt_exporter.web.pages.status import StatusPage
from ckpt_exporter.web.server import WebServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROMETHEUS_ACCEPT = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)


@dataclass
class Site:
    """A running server whose answers a test can change."""

    server: WebServer
    health: dict[str, bool]
    page: list[Callable[[], str]]
    clients: list[socket.socket] = field(default_factory=list)

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
        """Ask over HTTP and return response and body; ``accept_encoding`` names ``Accept-Encoding``."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=20)
        with contextlib.closing(connection):
            connection.request(
                method, path, headers={name.replace("_", "-"): text for name, text in headers.items()}
            )
            response = connection.getresponse()
            return response, response.read()

    def connect(self) -> socket.socket:
        """Open a plain connection that is closed with the test."""
        client = socket.create_connection(("127.0.0.1", self.server.port), timeout=20)
        self.clients.append(client)
        return client

    def raw(self, sent: bytes) -> bytes:
        """Send bytes and return all that comes back."""
        client = self.connect()
        client.sendall(sent)
        return read_all(client)


def read_all(client: socket.socket) -> bytes:
    """Read until the server closes; a reset counts as closed."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while data := client.recv(65536):
            received += data
    return received


def ask(port: int) -> bytes:
    """Send a small request on a connection of its own and return the answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        return read_all(client)


def wait_for(condition: Callable[[], bool]) -> None:
    """Poll for at most ten seconds until a condition holds."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.01)


@contextlib.contextmanager
def serving(telemetry_path: str = "/metrics", limits: Limits | None = None) -> Iterator[Site]:
    """Run a server with the sample data on a free port of the loopback address."""
    health = {"healthy": True, "ready": True}
    page: list[Callable[[], str]] = [StatusPage(sample_snapshot, started=0.0, telemetry_path=telemetry_path)]

    def current_page() -> str:
        return page[0]()

    server = WebServer(
        "127.0.0.1:0",
        telemetry_path,
        build_registry(sample_snapshot),
        current_page,
        lambda: health["healthy"],
        lambda: health["ready"],
        limits=limits,
    )
    server.start()
    site = Site(server, health, page)
    try:
        yield site
    finally:
        server.stop()
        for client in site.clients:
            client.close()


@pytest.fixture
def site() -> Iterator[Site]:
    """Run a server with the default limits."""
    with serving() as running:
        yield running


# --- metrics --------------------------------------------------------------------------------------------


def test_metrics_in_the_text_format(site: Site) -> None:
    """Without an Accept header the answer is the text format, neither cached nor guessed at."""
    response, body = site.get("/metrics")
    assert response.status == 200
    assert response.getheader("Content-Type") == "text/plain; version=0.0.4; charset=utf-8"
    assert response.getheader("Cache-Control") == "no-store"
    assert response.getheader("X-Content-Type-Options") == "nosniff"
    assert response.getheader("Content-Length") == str(len(body))
    assert b'ckpt_saves_total{dir="llama",result="complete"} 2.0\n' in body


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        (PROMETHEUS_ACCEPT, True),
        ("application/openmetrics-text", True),
        ('application/openmetrics-text; version="1.0.0"', True),
        ("application/openmetrics-text;version=0.0.1", False),
        ("application/openmetrics-text;version=abc", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=0.2, text/plain;q=0.9", False),
        ("application/openmetrics-text;q=wrong", False),
        ("text/html,*/*;q=0.8", False),
        ("*/*", False),
        ("image/png", False),
        (";;,,=", False),
    ],
)
def test_format_follows_accept(site: Site, accept: str, openmetrics: bool) -> None:
    """OpenMetrics 1.0 is sent to whom it asks for it, the text format to everyone else."""
    response, body = site.get("/metrics", accept=accept)
    kind = "application/openmetrics-text; version=1.0.0" if openmetrics else "text/plain; version=0.0.4"
    assert response.getheader("Content-Type") == f"{kind}; charset=utf-8"
    assert body.endswith(b"# EOF\n") == openmetrics
    if openmetrics:
        assert list(parse_openmetrics(body.decode()))


@pytest.mark.parametrize(
    ("accept_encoding", "compressed"),
    [("gzip", True), ("deflate, gzip;q=0.5", True), ("*", True), ("gzip;q=0", False), ("br", False)],
)
def test_gzip_when_accepted(site: Site, accept_encoding: str, compressed: bool) -> None:
    """A body is compressed for who accepts it, and the length is that of what is sent."""
    response, body = site.get("/metrics?name[]=ckpt_saves_in_progress", accept_encoding=accept_encoding)
    assert response.getheader("Content-Encoding") == ("gzip" if compressed else None)
    assert response.getheader("Content-Length") == str(len(body))
    assert response.getheader("Vary") == "Accept, Accept-Encoding"
    text = gzip.decompress(body) if compressed else body
    assert b'ckpt_saves_in_progress{dir="llama"} 2.0\n' in text


@pytest.mark.parametrize(
    "query",
    ["name[]=ckpt_watch_up&name[]=ckpt_saves_total", "name%5B%5D=ckpt_watch_up&name%5B%5D=ckpt_saves_total"],
)
def test_name_filter(site: Site, query: str) -> None:
    """``name[]`` keeps the samples of these names only."""
    _, body = site.get(f"/metrics?{query}")
    names = {line.partition(b"{")[0] for line in body.splitlines() if not line.startswith(b"#")}
    assert names == {b"ckpt_watch_up", b"ckpt_saves_total"}


def test_unknown_name_gives_an_empty_scrape(site: Site) -> None:
    """A filter that matches nothing is no error."""
    response, body = site.get("/metrics?name[]=nothing")
    assert (response.status, body) == (200, b"")


def test_endless_query_is_refused(site: Site) -> None:
    """A query of very many fields is a bad request."""
    response, _ = site.get("/metrics?" + "&".join(["name[]=a"] * 101))
    assert response.status == 400


def test_telemetry_path_can_be_moved() -> None:
    """Metrics are served where configured, and the page links there."""
    with serving("/federate/ckpt") as site:
        assert site.get("/federate/ckpt")[0].status == 200
        assert site.get("/metrics")[0].status == 404
        assert b'href="/federate/ckpt"' in site.get("/")[1]


def test_metrics_may_take_the_root() -> None:
    """With the telemetry path ``/`` there is no status page."""
    with serving("/") as site:
        assert site.get("/")[1].startswith(b"# HELP ckpt_")


@pytest.mark.parametrize("path", ["metrics", "", "//x", "/a b", "/a?b", "/a#b", "/a\nb", "/-/ready"])
def test_impossible_telemetry_path(path: str) -> None:
    """A path that no client could ask for is a usage error that names the option."""
    with pytest.raises(UsageError, match=r"--web\.telemetry-path"), serving(path):
        pass


# --- other paths and methods ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["healthy", "ready"])
def test_health_checks(site: Site, name: str) -> None:
    """A health path answers 200 or 503 as its own check says."""
    assert site.get(f"/-/{name}")[0].status == 200
    site.health[name] = False
    response, body = site.get(f"/-/{name}")
    assert (response.status, body) == (503, f"ckpt-exporter is not {name}\n".encode())
    other = {"healthy": "ready", "ready": "healthy"}[name]
    assert site.get(f"/-/{other}")[0].status == 200


@pytest.mark.parametrize("path", ["/nothing", "/metrics/", "/-/", "/%2e%2e/etc/passwd", "/<script>"])
def test_unknown_path_is_404(site: Site, path: str) -> None:
    """Anything else is not found, and what was asked is not echoed."""
    response, body = site.get(path)
    assert (response.status, body) == (404, b"not found\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "BREW"])
def test_other_methods_are_refused(site: Site, method: str) -> None:
    """Only GET and HEAD are served, and the answer says so."""
    response, _ = site.get("/metrics", method)
    assert response.status == 405
    assert response.getheader("Allow") == "GET, HEAD"


def test_refusal_reaches_a_client_that_sends_a_body(site: Site) -> None:
    """A request body that nobody reads does not reset the connection under the answer."""
    body = b"x" * 16_000_000  # more than the kernel buffers, so sending fails if the server just closes
    head = b"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
    assert site.raw(head + body).startswith(b"HTTP/1.1 405 ")


@pytest.mark.parametrize("path", ["/metrics?name[]=ckpt_watch_up", "/", "/-/healthy", "/nothing"])
def test_head_is_get_without_the_body(site: Site, path: str) -> None:
    """HEAD has the status and headers of GET and no body."""
    get, body = site.get(path)
    head, nothing = site.get(path, "HEAD")
    assert nothing == b""
    assert site.raw(b"HEAD %s HTTP/1.1\r\n\r\n" % path.encode()).endswith(b"\r\n\r\n")
    assert head.status == get.status
    assert head.getheader("Content-Length") == str(len(body))
    assert head.getheader("Content-Type") == get.getheader("Content-Type")


def test_a_page_that_raises_costs_one_response(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """An error inside a page is a 500 without details, logged, and the server goes on."""

    def broken() -> str:
        raise RuntimeError("secret detail")

    site.page[0] = broken
    response, body = site.get("/")
    assert response.status == 500
    assert b"secret" not in body
    assert "request for '/' failed" in caplog.text
    assert site.get("/metrics")[0].status == 200


def test_page_with_a_lone_surrogate_is_still_sent(site: Site) -> None:
    """A page is sent even if a name in it can't be encoded."""
    site.page[0] = lambda: "<p>\udcff</p>"
    assert site.get("/")[1] == b"<p>\\udcff</p>"


def test_page_may_load_nothing(site: Site) -> None:
    """The status page forbids scripts, frames and foreign assets."""
    response, _ = site.get("/")
    assert response.getheader("Content-Type") == "text/html; charset=utf-8"
    policy = response.getheader("Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert "script-src" not in policy


def test_hostile_names_in_the_scrape(site: Site) -> None:
    """A name with quotes, newline, markup and a lone byte leaves the scrape parseable."""
    _, body = site.get("/metrics", accept=PROMETHEUS_ACCEPT)
    found = {
        sample.labels.get("dir") for family in parse_openmetrics(body.decode()) for sample in family.samples
    }
    assert HOSTILE_NAME.replace("\udcff", "\\xff") in found


# --- malformed and hostile clients ----------------------------------------------------------------------


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
    assert b"Connection: close" in answer
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
        others[-1].sendall(b"GET /-/ready HTTP/1.1\r\n\r\n")
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
    head = b"GET /-/healthy HTTP/1.1\r\nHost: a\r\n\r\n"
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
        wait_for(lambda: site.get("/-/healthy")[0].status == 200)


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
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert entered.acquire(timeout=20)
        response, body = site.get("/-/healthy")
        assert (response.status, body) == (503, b"too many requests at once, try again\n")
        release.set()
        for client in busy:
            assert read_all(client).endswith(b"done")
        wait_for(lambda: site.get("/-/healthy")[0].status == 200)


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
    connections = Connections(listener, lambda head, _client: b"ok " + head, Limits(timeout_seconds=60))
    port = listener.getsockname()[1]
    connections.start()
    try:
        yield port
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
    assert message.startswith("127.0.0.1:")
    assert "\\x1b[31m" in message
    assert " 404 " in message


# --- listening ------------------------------------------------------------------------------------------


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
