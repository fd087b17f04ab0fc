"""How hostile clients change a scrape: silent, slow and oversized ones, over TLS and in the clear."""

from __future__ import annotations

import base64
import contextlib
import http.client
import os
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import bcrypt
import psutil
import trustme

from benchmarks.processes import Running, exporter, free_port, running, scratch, until
from benchmarks.report import Outcome, Row, percentile

CLIENTS = 200
PATIENCE_SECONDS = 3.0
TARGET_MS = 100.0
GUESSING_ROUNDS = 5
PASSWORD = "benchmark"
AUTHORIZATION = "Basic " + base64.b64encode(f"prometheus:{PASSWORD}".encode()).decode()


def measure(quick: bool) -> Outcome:
    scrapes, row_of = (20, 200) if quick else (50, 1000)
    rows: list[Row] = []
    with ExitStack() as stack:
        base = stack.enter_context(scratch())
        trust = _certificates(base)
        servers = {
            "ours": stack.enter_context(_ours(base)),
            "client library": stack.enter_context(_theirs(base)),
        }
        for server in servers.values():
            until(lambda server=server: _times(server, trust, 1)[0] is not None, 20, "a first scrape")
        for herd, what in HERDS.items():
            for name, server in servers.items():
                rows.append(_under(herd, what, name, server, trust, scrapes))
        for name, server in servers.items():
            rows.append(
                _row(
                    f"{row_of} in a row, {name}", _times(server, trust, row_of), server, judged=name == "ours"
                )
            )
        rows.append(
            _row(
                f"{row_of} in a row on one connection, ours",
                _kept(servers["ours"], trust, row_of),
                servers["ours"],
            )
        )
    return Outcome(
        "the server of the client library (prometheus_client.start_http_server), with a certificate as well",
        "TLS for both, a password for ours alone (bcrypt, cost 10). "
        f"{CLIENTS} clients of a kind at once, then {scrapes} scrapes, each on a new connection; "
        f"no answer within {PATIENCE_SECONDS:g} s ends the try; "
        f"those who guess come {GUESSING_ROUNDS} times, each time with new connections. "
        "Threads, descriptors and memory as they are after the scrapes, with the clients still there.",
        tuple(rows),
    )


# --- servers --------------------------------------------------------------------------------------------


def _certificates(base: str) -> ssl.SSLContext:
    authority = trustme.CA()
    leaf = authority.issue_cert("127.0.0.1")
    leaf.cert_chain_pems[0].write_to_path(os.path.join(base, "server.crt"))
    leaf.private_key_pem.write_to_path(os.path.join(base, "server.key"))
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(trust)
    return trust


@contextmanager
def _ours(base: str) -> Iterator[Running]:
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(10)).decode()
    with open(os.path.join(base, "web.yml"), "w", encoding="utf-8") as stream:
        stream.write("tls_server_config: {cert_file: server.crt, key_file: server.key}\n")
        stream.write(f"basic_auth_users: {{prometheus: {hashed}}}\n")
    watched = os.path.join(base, "watched")
    os.mkdir(watched)
    config = f"--web.config.file={base}/web.yml"
    with exporter(f"--watch={watched}", config, wait=False) as server:
        yield server


@contextmanager
def _theirs(base: str) -> Iterator[Running]:
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "benchmarks.client_server",
        str(port),
        f"{base}/server.crt",
        f"{base}/server.key",
    ]
    with running(command, port=port) as server:
        yield server


# --- clients that do harm -------------------------------------------------------------------------------


@contextmanager
def _connections(
    port: int, trust: ssl.SSLContext | None, small: bool = False
) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        made = []
        for _ in range(CLIENTS):
            client = socket.socket()
            stack.callback(client.close)
            if small:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            client.settimeout(PATIENCE_SECONDS)
            try:
                client.connect(("127.0.0.1", port))
                if trust is not None:
                    client = trust.wrap_socket(client, server_hostname="127.0.0.1")
                    stack.callback(client.close)
            except OSError:  # it takes no more, and the others would wait as long
                break
            made.append(client)
        yield made


@contextmanager
def _nobody(_port: int, _trust: ssl.SSLContext) -> Iterator[None]:
    yield


@contextmanager
def _silent(port: int, _trust: ssl.SSLContext) -> Iterator[None]:
    with _connections(port, None):
        yield


@contextmanager
def _slow_heads(port: int, trust: ssl.SSLContext) -> Iterator[None]:
    with _connections(port, trust) as clients:
        for client in clients:
            with contextlib.suppress(OSError):
                client.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        yield


@contextmanager
def _slow_readers(port: int, trust: ssl.SSLContext) -> Iterator[None]:
    request = f"GET /metrics HTTP/1.1\r\nHost: a\r\nAuthorization: {AUTHORIZATION}\r\n\r\n".encode()
    with _connections(port, trust, small=True) as clients:
        for client in clients:
            with contextlib.suppress(OSError):
                client.sendall(request)
        yield


@contextmanager
def _oversized(port: int, trust: ssl.SSLContext) -> Iterator[None]:
    with _connections(port, trust) as clients:
        for client in clients:
            client.settimeout(0)
            with contextlib.suppress(OSError):
                client.sendall(b"GET /" + b"a" * 1_000_000)
        yield


@contextmanager
def _guessers(port: int, trust: ssl.SSLContext) -> Iterator[None]:
    with _connections(port, trust) as clients:
        for number, client in enumerate(clients):
            secret = base64.b64encode(f"prometheus:guess{number}".encode()).decode()
            with contextlib.suppress(OSError):
                client.sendall(f"GET /metrics HTTP/1.1\r\nAuthorization: Basic {secret}\r\n\r\n".encode())
        yield


Herd = Callable[[int, ssl.SSLContext], contextlib.AbstractContextManager[None]]
HERDS: dict[Herd, str] = {
    _nobody: "nobody else",
    _silent: "silent before the handshake",
    _slow_heads: "stuck in their request",
    _slow_readers: "not reading their response",
    _oversized: "sending 1 MB of request line",
    _guessers: "each guessing a password",
}


# --- scrapes --------------------------------------------------------------------------------------------


def _under(
    herd: Herd,
    what: str,
    name: str,
    server: Running,
    trust: ssl.SSLContext,
    scrapes: int,
) -> Row:
    times: list[float | None] = []
    for _ in range(GUESSING_ROUNDS if herd is _guessers else 1):  # all in their first second: chance counts
        with herd(server.port, trust):
            if herd is _slow_readers:  # what is measured is their not reading, not their asking all at once
                _settle(server)
            times += _times(server, trust, scrapes)
            row = _row(f"{what}, {name}", times, server, judged=name == "ours")
    return row


def _settle(server: Running) -> None:
    before = -1.0
    ends = time.monotonic() + 10
    while server.cpu_seconds - before > 0.02 and time.monotonic() < ends:
        before = server.cpu_seconds
        time.sleep(0.5)


def _times(server: Running, trust: ssl.SSLContext, scrapes: int) -> list[float | None]:
    """Return latencies in milliseconds, None for no answer; gives up after three of these."""
    times: list[float | None] = []
    while len(times) < scrapes and times.count(None) < 3:
        connection = http.client.HTTPSConnection(
            "127.0.0.1", server.port, timeout=PATIENCE_SECONDS, context=trust
        )
        started = time.perf_counter()
        try:
            times.append(_timed(connection, started))
        except OSError:
            times.append(None)
        finally:
            connection.close()
    return times


def _kept(server: Running, trust: ssl.SSLContext, scrapes: int) -> list[float | None]:
    connection = http.client.HTTPSConnection(
        "127.0.0.1", server.port, timeout=PATIENCE_SECONDS, context=trust
    )
    times: list[float | None] = []
    with contextlib.closing(connection):
        for _ in range(scrapes):
            started = time.perf_counter()
            times.append(_timed(connection, started))
    return times


def _timed(connection: http.client.HTTPConnection, started: float) -> float | None:
    connection.request("GET", "/metrics", headers={"Authorization": AUTHORIZATION})
    response = connection.getresponse()
    whole = len(response.read()) > 1_000 and response.status == 200
    return (time.perf_counter() - started) * 1e3 if whole else None


def _row(what: str, times: list[float | None], server: Running, *, judged: bool = True) -> Row:
    answered = [latency for latency in times if latency is not None]
    process = psutil.Process(server.process.pid)
    figure = "no answer"
    if answered:
        figure = f"p50 {percentile(answered, 50):.1f}, max {max(answered):.1f} ms (n={len(answered)})"
        if len(answered) < len(times):
            figure += f", {len(times) - len(answered)} without answer"
    figure += f"; {process.num_threads()} threads, {process.num_fds()} descriptors"
    figure += f", {server.rss_bytes / 2**20:.0f} MiB"
    if not judged:
        return Row(what, figure)
    met = len(answered) == len(times) and max(answered) < TARGET_MS
    return Row(what, figure, f"max < {TARGET_MS:.0f} ms", met)
