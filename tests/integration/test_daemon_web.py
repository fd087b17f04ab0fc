"""The running daemon behind TLS and a password, and what it tells the service manager."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.integration.daemon import REPOSITORY, command, parse_scrape, run_to_end, wait_until
from tests.integration.prometheus import running
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
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


# Descriptor 3, and the process itself named in the environment.
AS_SYSTEMD = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.argv[2], sys.argv[2:])
"""


SCRAPE_OVER_TLS = """\
  - job_name: {job}
    scheme: https
    tls_config: {{ca_file: "{ca}"}}
    basic_auth: {{username: prometheus, password_file: {password}}}
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


class Service:
    """A daemon as a service manager starts it."""

    def __init__(self, manager: socket.socket, process: subprocess.Popen[bytes], port: int) -> None:
        self.process, self.port = process, port
        self._manager = manager
        self._told: list[str] = []

    def told(self) -> list[str]:
        """Return every line that the daemon has sent so far."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._told += self._manager.recv(4096).decode().split("\n")
        return self._told

    def scrape(self, password: str = PASSWORD) -> bytes:
        """Ask for the metrics over TLS."""
        header = f"Authorization: {basic('prometheus', password)}\r\n".encode()
        return tls_ask(self.port, client_context(), "/metrics", header)

    def value(self, name: str) -> float | None:
        """Return one value of a scrape."""
        return parse_scrape(self.scrape().partition(b"\r\n\r\n")[2].decode()).get(name)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """Start the daemon with a certificate and a user; on a socket that is handed over."""
    put_pair(tmp_path, authorities().server)
    web = put_config(tmp_path, tls=tls_block(), users={"prometheus": hashed()})
    (tmp_path / "ckpt").mkdir()
    config = tmp_path / "c.yml"
    config.write_text(
        f"directories: [{{name: a, path: {tmp_path}/ckpt}}]\nhistory: {{path: null}}\n"
        f"web: {{config_file: {web}, systemd_socket: true}}\n"
    )
    with contextlib.ExitStack() as stack:
        manager = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(0)
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        run = command("run", f"--config.file={config}")
        process = subprocess.Popen(
            [sys.executable, "-c", AS_SYSTEMD, str(listener.fileno()), *run],
            cwd=REPOSITORY, pass_fds=[listener.fileno()], stderr=subprocess.DEVNULL,
            env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify"), "LISTEN_FDS": "1",
                 "WATCHDOG_USEC": "2000000"},
        )  # fmt: skip
        made = Service(manager, process, listener.getsockname()[1])
        try:
            wait_until(lambda: "READY=1" in made.told(), what="ready")
            yield made
        finally:
            process.kill()
            process.wait()


def test_it_is_scraped_over_tls_with_a_password(service: Service) -> None:
    """On the passed socket it answers whom it should, counts whom not, and its probes need no password."""
    assert service.value("ckpt_web_config_last_reload_successful") == 1
    assert service.scrape("wrong").startswith(b"HTTP/1.1 401 ")
    assert b'ckpt_web_rejected_total{reason="unauthorized"} 1.0\n' in service.scrape()
    assert tls_ask(service.port, client_context(), "/-/healthy").startswith(b"HTTP/1.1 200 ")


def test_prometheus_scrapes_it_over_tls_with_a_password(service: Service, tmp_path: Path) -> None:
    """A real Prometheus that trusts its authority and knows the password scrapes it; others do not."""
    (tmp_path / "right").write_text(PASSWORD)
    (tmp_path / "wrong").write_text("wrong")
    config = tmp_path / "scrape.yml"
    config.write_text(
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\nscrape_configs:\n"
        + SCRAPE_OVER_TLS.format(job="right", port=service.port, password="right", ca=f"{tmp_path}/ca.crt")
        + SCRAPE_OVER_TLS.format(job="stranger", port=service.port, password="wrong", ca=f"{tmp_path}/ca.crt")
        + SCRAPE_OVER_TLS.format(job="distrustful", port=service.port, password="right", ca="")
        + f"  - {{job_name: plain, static_configs: [{{targets: ['127.0.0.1:{service.port}']}}]}}\n"
    )
    with running(config, tmp_path / "data") as server:
        wait_until(lambda: server.holds("count(up) == 4"), 30, what="four targets")
        wait_until(lambda: server.holds('up{job="right"} == 1'), 30, what="a scrape over TLS")

        assert server.holds('ckpt_saves_total{job="right", dir="a", result="complete"} == 0')
        assert not server.holds('up{job!="right"} == 1')
        assert not server.holds('ckpt_saves_total{job!="right"}')


def test_it_reads_its_web_configuration_again(service: Service, tmp_path: Path) -> None:
    """On SIGHUP a broken file shows in a metric and changes nothing, a new password is in force."""
    put_config(tmp_path, tls=tls_block(), users={"prometheus": "junk"})
    service.process.send_signal(signal.SIGHUP)
    wait_until(lambda: service.value("ckpt_web_config_last_reload_successful") == 0)
    put_config(tmp_path, tls=tls_block(), users={"prometheus": hashed("new")})
    service.process.send_signal(signal.SIGHUP)
    wait_until(lambda: service.scrape("new").startswith(b"HTTP/1.1 200 "))
    assert service.scrape().startswith(b"HTTP/1.1 401 ")


def test_what_it_tells_its_manager(service: Service) -> None:
    """Status, watchdog, reload and stop are told in their order, and it stops cleanly."""
    wait_until(lambda: service.told().count("WATCHDOG=1") >= 2)
    assert "STATUS=watching 1 of 1 directories" in service.told()
    service.process.send_signal(signal.SIGHUP)
    wait_until(lambda: service.told().count("READY=1") == 2)
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(timeout=10) == 0
    told = [line for line in service.told() if line.endswith("=1") and line != "WATCHDOG=1"]
    assert told == ["READY=1", "RELOADING=1", "READY=1", "STOPPING=1"]


def test_a_bad_web_configuration_at_the_start(tmp_path: Path) -> None:
    """The daemon does not start on a bad web-config file: status 2, one line for each problem."""
    web = put_config(tmp_path, tls={"cert_file": "none"}, users={"a": "b"})
    ended = run_to_end("run", f"--watch={tmp_path}/a", f"--web.config.file={web}")
    assert ended.returncode == 2
    problems = [line for line in ended.stderr.splitlines() if line.startswith(f"{web}: ")]
    assert {problem.split(": ")[1] for problem in problems} == {
        "tls_server_config.key_file",
        "basic_auth_users.a",
    }
    assert "Traceback" not in ended.stderr


def test_without_the_sockets_it_was_promised(tmp_path: Path) -> None:
    """Asked to take sockets by hand, it says in one line what to start; status 1."""
    ended = run_to_end("run", f"--watch={tmp_path}/a", "--web.systemd-socket")
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == (
        "ckpt-exporter: no socket from systemd: start ckpt-exporter.socket as well, "
        "or leave --web.systemd-socket away"
    )
