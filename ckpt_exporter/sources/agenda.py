"""What a watching thread waits on, and what it does when."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable

NEVER = float("inf")

# A duty takes the present time and returns when it wants to be called again.
Job = Callable[[float], float]


class Agenda:
    """The duties of one thread, in the order in which they were planned.

    Waking up costs more than most duties: with a ``regular`` one, those that are due within
    ``gather_seconds`` are done, too.
    """

    def __init__(self, gather_seconds: float) -> None:
        self._gather_seconds = gather_seconds
        self._due: dict[Job, float] = {}
        self._regular: frozenset[Job] = frozenset()

    def plan(self, due: dict[Job, float], regular: frozenset[Job]) -> None:
        """Begin with these duties and the times at which they are due."""
        self._due, self._regular = due, regular

    def put(self, job: Job, t: float) -> None:
        """Make a duty due at a moment, whatever was planned for it."""
        self._due[job] = t

    def soon(self, job: Job, t: float) -> None:
        """Make a duty due at a moment, unless it is due before."""
        self._due[job] = min(self._due[job], t)

    def next_due(self) -> float:
        """Return when the next duty is due."""
        return min(self._due.values())

    def run(self, now: float) -> None:
        """Do what is due."""
        regular = any(self._due[job] <= now for job in self._regular)
        gathered = now + self._gather_seconds
        for job, due in self._due.items():
            if due <= now or (regular and due <= gathered and job in self._regular):
                self._due[job] = job(now)


class Waiting:
    """Descriptors to wait on: an inotify instance, the list of mounts, a call from another thread."""

    def __init__(self, mountinfo: str) -> None:
        self._mountinfo = mountinfo
        self._poll = select.poll()
        self._wake = -1
        self._mounts = -1

    def open(self) -> None:
        """Get the descriptors; without the list of mounts, changes of it are not waited for."""
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._wake, select.POLLIN)
        with contextlib.suppress(OSError):
            self._mounts = os.open(self._mountinfo, os.O_RDONLY | os.O_CLOEXEC)
            self._poll.register(self._mounts, select.POLLPRI | select.POLLERR)

    def close(self) -> None:
        """Give the descriptors back."""
        mounts, wake, self._mounts, self._wake = self._mounts, self._wake, -1, -1
        for fd in (mounts, wake):
            if fd >= 0:
                self._poll.unregister(fd)
                os.close(fd)

    def add(self, fd: int) -> None:
        """Wait for what can be read from a descriptor, too."""
        self._poll.register(fd, select.POLLIN)

    def remove(self, fd: int) -> None:
        """No longer wait for a descriptor."""
        self._poll.unregister(fd)

    def wake(self) -> None:
        """End the present wait, or the next one; callable from any thread."""
        wake = self._wake
        if wake >= 0:
            with contextlib.suppress(OSError):
                os.eventfd_write(wake, 1)

    def wait(self, seconds: float) -> tuple[set[int], bool]:
        """Wait; return the descriptors with something to read, and whether the mounts have changed."""
        ready = {fd for fd, _ in self._poll.poll(max(0.0, seconds) * 1000.0)}
        if self._wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)
        return ready, self._mounts in ready
