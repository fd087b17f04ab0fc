"""Prove now and then that an inotify instance still delivers events."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

from ckpt_exporter.sources.inotify_calls import IN_CREATE, IN_DELETE, RawEvent

if TYPE_CHECKING:
    from ckpt_exporter.sources.entry import Entry

_NEVER = float("inf")


class Canary:
    """A private directory watched on the same instance: a file made in it has to raise an event.

    That a thread is alive proves nothing: some sandboxes and network mounts accept watches and stay silent.
    """

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._directory = ""
        self._expected_by = _NEVER
        self.wd = -1
        self.failures = 0

    def open(self, fd: int) -> None:
        """Make the directory and watch it; without one there is no canary."""
        self.wd, self._expected_by = -1, _NEVER
        for parent in self._parents():
            try:
                self._directory = tempfile.mkdtemp(prefix="ckpt-exporter-", dir=parent)
                path = os.fsencode(self._directory)
                self.wd = self._entry.shared.calls.add_watch(fd, path, IN_CREATE | IN_DELETE)
            except OSError:
                self.close()
                continue
            return

    def _parents(self) -> list[str | None]:
        given = [self._entry.shared.canary_parent, os.environ.get("RUNTIME_DIRECTORY"), "/run"]
        return [*(parent for parent in given if parent and os.access(parent, os.W_OK)), None]

    def close(self) -> None:
        """Remove the directory."""
        directory, self._directory = self._directory, ""
        if directory:
            try:
                os.rmdir(directory)
            except OSError:
                return

    def sing(self, now: float) -> float:
        """Make and remove a file; return when its event must have come, or when to try again."""
        again = now + self._entry.settings.canary_seconds
        if self.wd < 0:
            return again
        path = os.path.join(self._directory, "canary")
        try:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
            os.unlink(path)
        except OSError:
            return again  # says nothing about inotify
        self._expected_by = now + self._entry.settings.canary_wait_seconds
        return self._expected_by

    def expected_by(self, now: float) -> float | None:
        """Return when the event that is waited for must have come; None if none is, or it is overdue."""
        return self._expected_by if now < self._expected_by < _NEVER else None

    def heard(self, event: RawEvent) -> bool:
        """Take in an event of the directory; tell whether it was the one that was expected."""
        if not event.mask & (IN_CREATE | IN_DELETE) or self._expected_by == _NEVER:
            return False
        self._expected_by, self.failures = _NEVER, 0
        return True

    def is_overdue(self, now: float) -> bool:
        """Tell whether an event should have come by now."""
        return self._expected_by <= now
