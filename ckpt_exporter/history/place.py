"""Where the history file lies: one writer at a time, damaged files moved aside, network file systems."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from typing import TYPE_CHECKING, Final

from ckpt_exporter.history.database import FILE_MODE
from ckpt_exporter.history.failures import HistoryError
from ckpt_exporter.sources.mounts import find_mount, follow_links, is_shared, read_mountinfo

if TYPE_CHECKING:
    from ckpt_exporter.history.failures import Reason

# So many files moved aside are kept of each kind; older ones are deleted.
KEPT_ASIDE: Final = 3
_COMPANIONS: Final = ("-wal", "-shm", "-journal")
# A link laid at the lock's name must not make this process write to what it leads to.
_LOCK_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class WriterLock:
    """Held by the one process that writes a history; the kernel lets go of it when that process ends."""

    def __init__(self, path: str) -> None:
        """Take the lock of the history at ``path``; raises HistoryError if another process has it."""
        # A file of its own: closing any descriptor of the database would release SQLite's locks on it.
        name = f"{path}.lock"
        try:
            self._descriptor = os.open(name, _LOCK_FLAGS, FILE_MODE)
        except OSError as error:
            reason: Reason = "full" if error.errno == errno.ENOSPC else "unavailable"
            what = f"cannot be written: {os.path.dirname(path)}: {error.strerror}"
            raise HistoryError(path, reason, what) from error
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            os.close(self._descriptor)
            raise HistoryError(path, "unavailable", f"cannot be written: {name} is no file of its own")
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._descriptor, 20, 0).decode("ascii", "replace").strip()
            os.close(self._descriptor)
            who = f"process {holder}" if holder.isdigit() else "another ckpt-exporter"
            raise HistoryError(path, "locked", f"is being written by {who}") from error
        with contextlib.suppress(OSError):  # the number is for people only
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let another process write."""
        os.close(self._descriptor)


def move_aside(path: str, reason: Reason, now_unix: float) -> str:
    """Rename a file that cannot be used, with its log, and return its new path.

    Keeps the newest ``KEPT_ASIDE`` of the same reason. Raises HistoryError where the directory is read-only.
    """
    prefix = f"{path}.{reason}-"
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_unix))
    target, number = prefix + stamp, 2
    while os.path.lexists(target):
        target, number = f"{prefix}{stamp}.{number}", number + 1
    try:
        os.rename(path, target)
        for companion in _COMPANIONS:
            with contextlib.suppress(FileNotFoundError):
                os.rename(path + companion, target + companion)
    except OSError as error:
        what = f"cannot be moved aside: {error.strerror}"
        raise HistoryError(path, "unavailable", what) from error
    _delete_oldest(prefix)
    return target


def _delete_oldest(prefix: str) -> None:
    directory, start = os.path.split(prefix)
    with contextlib.suppress(OSError):
        names = [name for name in os.listdir(directory or ".") if name.startswith(start)]
        aside = sorted(name for name in names if not name.endswith(_COMPANIONS))
        for name in aside[:-KEPT_ASIDE]:
            for companion in ("", *_COMPANIONS):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(directory, name + companion))


def lies_on_network(path: str) -> bool:
    """Tell whether a path lies on a file system that other hosts can write: no memory is shared there."""
    try:
        entries = read_mountinfo()
        mount = find_mount(follow_links(os.path.dirname(path) or "/", entries), entries)
    except OSError:
        return False
    return mount is not None and is_shared(mount.fstype)


def why_unusable(path: str) -> str | None:
    """Say why no history can be written at a path; None if it can, as far as permissions tell."""
    directory = os.path.dirname(path)
    if not os.path.isdir(directory):
        return f"{directory} does not exist"
    if not os.access(directory, os.W_OK | os.X_OK):
        return f"{directory} is not writable for user id {os.geteuid()}"
    return None
