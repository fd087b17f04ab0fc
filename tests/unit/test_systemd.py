"""What the daemon tells systemd, and the sockets that it takes from it."""

from __future__ import annotations

import fcntl
import os
import socket
from typing import TYPE_CHECKING

import pytest

from ckpt_exporter.errors import CkptExporterError
from ckpt_exporter.systemd import ServiceManager, take_sockets
from tests.unit.web_site import ask

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PID = 4711


class Manager:
    """A service manager's end of the socket."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + path[1:] if path.startswith("@") else path)
        self.socket.settimeout(0)
        self.environment = {"NOTIFY_SOCKET": path}
        self.now = 1000.0

    def service(self, **environment: str) -> ServiceManager:
        """Return the daemon's end."""
        return ServiceManager(self.environment | environment, pid=PID, clock=lambda: self.now)

    def told(self) -> list[str]:
        """Return the lines that have arrived."""
        lines: list[str] = []
        while True:
            try:
                lines += self.socket.recv(4096).decode().split("\n")
            except BlockingIOError:
                return lines


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    """Listen as systemd does, in the file system or beside it."""
    made = Manager(str(tmp_path / "notify") if request.param == "path" else f"@{tmp_path}")
    yield made
    made.socket.close()


def test_readiness_is_told_once(manager: Manager) -> None:
    """READY comes when everything is watched, once; the status when it changes."""
    service = manager.service()
    service.update(ready=False, healthy=True, status="watching 0 of 1 directories")
    assert manager.told() == ["STATUS=watching 0 of 1 directories"]
    service.update(ready=True, healthy=True, status="watching 1 of 1\ndirectories")
    assert manager.told() == ["READY=1", "STATUS=watching 1 of 1\\ndirectories"]
    service.update(ready=True, healthy=True, status="watching 1 of 1\ndirectories")
    assert manager.told() == []


def test_reload_and_stop(manager: Manager) -> None:
    """A reload begins with RELOADING and the time, and ends with READY; the end says STOPPING."""
    service = manager.service()
    service.update(ready=True, healthy=True, status="")
    manager.told()
    service.reloading()
    assert manager.told() == ["RELOADING=1", "MONOTONIC_USEC=1000000000"]
    service.update(ready=True, healthy=True, status="")
    assert manager.told() == ["READY=1"]
    service.stopping()
    assert manager.told() == ["STOPPING=1", "STATUS=stopping"]


def test_watchdog(manager: Manager) -> None:
    """The watchdog is petted a few times in its interval while healthy, and never while not."""
    service = manager.service(WATCHDOG_USEC="8000000", WATCHDOG_PID=str(PID))
    petted = []
    for second, healthy in ((0, True), (1, True), (2, True), (4, False), (6, False), (7, True)):
        manager.now = 1000.0 + second
        service.update(ready=False, healthy=healthy, status="")
        petted.append(manager.told() == ["WATCHDOG=1"])
    assert petted == [True, False, True, False, False, True]


@pytest.mark.parametrize(
    "environment",
    [{}, {"WATCHDOG_USEC": "8000000", "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "-5"}],
)
def test_no_watchdog(manager: Manager, environment: dict[str, str]) -> None:
    """Without a watchdog, or with one meant for another process, nothing is petted."""
    service = manager.service(**environment)
    service.update(ready=False, healthy=True, status="")
    assert manager.told() == []


def test_looks_often_until_ready(manager: Manager) -> None:
    """Until readiness has been told the loop comes back at once; then a watchdog or nothing sets its pace."""
    watched, unwatched = manager.service(WATCHDOG_USEC="8000000"), manager.service()
    assert (watched.pause_seconds, unwatched.pause_seconds) == (0.25, 0.25)
    for service in (watched, unwatched):
        service.update(ready=True, healthy=True, status="")
    assert watched.pause_seconds == pytest.approx(8 / 3)
    assert unwatched.pause_seconds == float("inf")


def test_without_a_manager_nothing_is_said() -> None:
    """Started by hand, or with a manager that has gone, the daemon goes on."""
    for environment in ({}, {"NOTIFY_SOCKET": "/nowhere/notify"}):
        service = ServiceManager(environment, pid=PID)
        service.update(ready=True, healthy=True, status="x")
        service.stopping()


# --- sockets --------------------------------------------------------------------------------------------


def passed(*sockets: socket.socket, at: int) -> dict[str, str]:
    """Put sockets where systemd would, and return what it would say."""
    for number, listener in enumerate(sockets):
        os.dup2(listener.fileno(), at + number)
        os.set_inheritable(at + number, True)
        listener.close()
    return {"LISTEN_PID": str(PID), "LISTEN_FDS": str(len(sockets)), "LISTEN_FDNAMES": "a:b", "X": "y"}


def test_sockets_are_taken(tmp_path: Path) -> None:
    """Every passed socket serves, is closed in child processes, and the environment forgets it."""
    first = socket.create_server(("127.0.0.1", 0))
    second = socket.socket(socket.AF_UNIX)
    second.bind(str(tmp_path / "s"))
    second.listen()
    port = first.getsockname()[1]
    environment = passed(first, second, at=200)
    taken = take_sockets(environment, pid=PID, first=200)
    try:
        assert environment == {"X": "y"}
        assert [listener.family for listener in taken] == [socket.AF_INET, socket.AF_UNIX]
        assert all(fcntl.fcntl(listener, fcntl.F_GETFD) & fcntl.FD_CLOEXEC for listener in taken)
        from tests.unit.test_web_connections import serving_ok

        with serving_ok(taken):
            assert ask(port).startswith(b"ok ")
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(tmp_path / "s"))
                client.sendall(b"GET / HTTP/1.0\r\n\r\n")
                assert client.recv(100).startswith(b"ok ")
    finally:
        for listener in taken:
            listener.close()


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"LISTEN_PID": "1", "LISTEN_FDS": "1"},
        {"LISTEN_PID": str(PID), "LISTEN_FDS": "0"},
        {"LISTEN_PID": str(PID), "LISTEN_FDS": "many"},
        {"LISTEN_PID": str(PID), "LISTEN_FDS": "100000"},
    ],
)
def test_no_sockets(environment: dict[str, str]) -> None:
    """Asked to take sockets where there are none, the daemon says what to start."""
    with pytest.raises(CkptExporterError, match=r"start ckpt-exporter\.socket"):
        take_sockets(environment, pid=PID, first=200)


def test_what_is_no_listening_socket(tmp_path: Path) -> None:
    """A descriptor that is a file, or a socket that does not listen, is named."""
    with pytest.raises(CkptExporterError, match="descriptor 211 from systemd is no socket"):
        take_sockets({"LISTEN_PID": str(PID), "LISTEN_FDS": "1"}, pid=PID, first=211)
    environment = passed(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), at=210)
    with pytest.raises(CkptExporterError, match="descriptor 210 from systemd does not listen"):
        take_sockets(environment, pid=PID, first=210)
    os.close(210)
