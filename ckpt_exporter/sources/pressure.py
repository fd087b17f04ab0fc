"""Counters of the host as a whole: stalls for want of I/O, memory or a processor, and network traffic."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from ckpt_exporter.sources.procfs import read_bytes, read_cgroups

PRESSURES: Final = ("io", "memory", "cpu")
# Paths of groups that hold more than one run: what stalls there may be anybody's.
_SHARED_GROUPS: Final = frozenset({"/", "/init.scope", "/system.slice", "/user.slice"})
_SOME: Final = re.compile(rb"^some .*total=(\d+)$", re.MULTILINE)
_CGROUP_ROOTS: Final = ("fs/cgroup", "fs/cgroup/unified")
# InfiniBand counts words of four bytes, RoCE included.
_WORD_BYTES: Final = 4
_SMALL: Final = 4096
# What goes over a network in less time than this tells no usual traffic.
USUAL_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Pressure:
    """Seconds so far in which some task stood still for want of a resource; None unknown."""

    of: Literal["run", "host"]
    io: float | None
    memory: float | None
    cpu: float | None


def read_pressure(pid: int | None, proc: str, sys: str) -> Pressure | None:
    """Read the pressure in a process's own group, or else on the whole host; None if the kernel has none."""
    own = _own_group(pid, proc, sys) if pid is not None else None
    of: Literal["run", "host"] = "run" if own is not None else "host"
    paths = [f"{own}/{name}.pressure" if own else f"{proc}/pressure/{name}" for name in PRESSURES]
    io, memory, cpu = (_stalled_seconds(path) for path in paths)
    return None if (io, memory, cpu) == (None, None, None) else Pressure(of, io, memory, cpu)


def _own_group(pid: int, proc: str, sys: str) -> str | None:
    for path in read_cgroups(pid, proc):
        if path in _SHARED_GROUPS or ".." in path:
            continue
        for root in _CGROUP_ROOTS:
            group = f"{sys}/{root}{path}"
            if os.path.exists(f"{group}/io.pressure"):
                return group
    return None


def _stalled_seconds(path: str) -> float | None:
    hit = _SOME.search(read_bytes(path, _SMALL) or b"")
    return int(hit[1]) / 1e6 if hit else None


class Traffic:
    """Bytes in both directions over all real interfaces, InfiniBand and RoCE included.

    Which interfaces are real is found out once: bridges, tunnels and the loopback carry what others carry.
    ``usual`` is the rate (bytes per second) of the time before GPUs stood still, None while it is not known.
    """

    def __init__(self, clock: Callable[[], float], proc: str, sys: str) -> None:
        self._clock, self._proc, self._sys = clock, proc, sys
        self._real: frozenset[str] | None = None
        self.usual: float | None = None
        self._since, self._count = clock(), self.read()

    def still(self) -> None:
        """Note that GPUs stand still from now on."""
        now, count = self._clock(), self.read()
        if count is not None and self._count is not None and now - self._since >= USUAL_SECONDS:
            self.usual = max(0, count - self._count) / (now - self._since)

    def going(self) -> None:
        """Note that all GPUs work from now on."""
        self._since, self._count = self._clock(), self.read()

    def read(self) -> int | None:
        """Return the bytes so far; None where no real interface can be seen."""
        if self._real is None:
            self._real = frozenset(
                name
                for name in _listed(f"{self._sys}/class/net")
                if os.path.exists(f"{self._sys}/class/net/{name}/device")
            )
        counts = [*self._interfaces(), *self._infiniband()]
        return sum(counts) if counts else None

    def _interfaces(self) -> list[int]:
        counts = []
        for line in (read_bytes(f"{self._proc}/net/dev") or b"").splitlines()[2:]:
            name, _, rest = line.partition(b":")
            fields = rest.split()
            if os.fsdecode(name.strip()) in (self._real or ()) and len(fields) > 8:
                counts.append(int(fields[0]) + int(fields[8]))
        return counts

    def _infiniband(self) -> list[int]:
        base = f"{self._sys}/class/infiniband"
        counts = []
        for device in _listed(base):
            for port in _listed(f"{base}/{device}/ports"):
                for way in ("xmit", "rcv"):
                    path = f"{base}/{device}/ports/{port}/counters/port_{way}_data"
                    text = (read_bytes(path, _SMALL) or b"").strip()
                    counts += [int(text) * _WORD_BYTES] if text.isdigit() else []
        return counts


def _listed(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []
