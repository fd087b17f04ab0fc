"""The listening socket: from ``--web.listen-address`` to a bound socket, or a message that helps."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from collections.abc import Collection
from dataclasses import dataclass

from ckpt_exporter.config.values import InvalidValueError, split_listen_address
from ckpt_exporter.errors import CkptExporterError, UsageError

_BACKLOG = 128

_HINTS = {
    errno.EADDRINUSE: "address already in use (another exporter? choose --web.listen-address)",
    errno.EACCES: "permission denied (a port below 1024 is for root; choose --web.listen-address)",
    errno.EADDRNOTAVAIL: "this machine does not have that address (choose --web.listen-address)",
}


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where to listen; an empty ``host`` means every address, IPv6 and IPv4."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_listen_address(text: str) -> ListenAddress:
    """Parse ``:PORT``, ``HOST:PORT`` or ``[IPV6]:PORT``; raise ``UsageError`` for anything else."""
    try:
        host, port = split_listen_address(text)
    except InvalidValueError as error:
        raise UsageError(f"cannot listen on {text}: the address {error}") from error
    return ListenAddress(host, port)


def open_listener(address: ListenAddress) -> socket.socket:
    """Bind and listen; raise ``CkptExporterError`` saying what to change.

    Port 0 takes a free one. The socket is closed in child processes and its port is never shared.
    """
    try:
        if not address.host:
            return _listen_everywhere(address.port)
        if address.host == "::":
            return _listen(socket.AF_INET6, "::", address.port, only_v6=False)
        family, host = _resolve(address)
        return _listen(family, host, address.port, only_v6=True)
    except (OSError, UnicodeError) as error:
        raise CkptExporterError(f"cannot listen on {address}: {_reason(error)}") from error


def bound_address(listener: socket.socket) -> ListenAddress:
    """Return where a socket listens, with the port that was chosen for port 0; a path has port 0."""
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return ListenAddress(os.fsdecode(name), 0)
    return ListenAddress(name[0], name[1])


def is_loopback(host: str) -> bool:
    """Tell whether a bound host is an address that only this machine reaches."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_foreign_name(host_header: str, own_names: Collection[str]) -> bool:
    """Tell whether a Host header has a name that a stranger can own: with a dot, no address, not ours.

    A page in a browser here may point its site's name at a loopback address (DNS rebinding) and read what is
    served there; the name that it asks for gives it away.
    """
    if host_header.startswith("["):
        return False
    name = host_header.partition(":")[0].strip().rstrip(".").lower()
    if "." not in name or name.endswith(".localhost") or name in own_names:
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return True
    return False


def _listen_everywhere(port: int) -> socket.socket:
    try:
        return _listen(socket.AF_INET6, "::", port, only_v6=False)
    except OSError as error:
        # Kernels without IPv6, or with it disabled.
        if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            raise
    return _listen(socket.AF_INET, "0.0.0.0", port, only_v6=False)  # noqa: S104 (what ":PORT" asks for)


def _listen(family: int, host: str, port: int, *, only_v6: bool) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A restart must not wait for old connections in TIME_WAIT. SO_REUSEPORT would hide a second exporter.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only_v6)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
        listener.settimeout(0)
    except BaseException:
        listener.close()
        raise
    return listener


def _resolve(address: ListenAddress) -> tuple[int, str]:
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    # A name such as localhost may mean both protocols; scrape configurations usually mean the older one.
    family, _, _, _, where = min(found, key=lambda info: info[0] != socket.AF_INET)
    return family, str(where[0])


def _reason(error: OSError | UnicodeError) -> str:
    if isinstance(error, socket.gaierror | UnicodeError):
        return "no such host name or address (choose --web.listen-address)"
    return _HINTS.get(error.errno or 0, f"{error.strerror or error} (choose --web.listen-address)")
