"""Take a writer's own times and sizes of its saves and print them, one JSON line a save.

The times come from the calls the framework itself makes, never from the file system: an audit hook sees every
write-open and rename that goes through Python just before it happens, and the writer marks the calls that
native code opens files in. Times are monotonic, one clock for all processes of the machine.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MISSING_FRAMEWORK = 77  # the exit status that test harnesses read as "skip"
_WRITING = os.O_WRONLY | os.O_RDWR


@dataclass(frozen=True, slots=True)
class SaveTimes:
    """Monotonic seconds of one save: its first write-open, its commit, and the framework's call around both.

    ``opened`` is None where no write-open of this process was seen, ``committed`` where no commit was marked:
    then the call's own boundaries are the best this process knows.
    """

    called: float
    returned: float
    opened: float | None = None
    committed: float | None = None

    @property
    def start(self) -> float:
        """Return the first write-open, or the moment the save was called."""
        return self.called if self.opened is None else self.opened

    @property
    def end(self) -> float:
        """Return the commit, or the moment the call returned."""
        return self.returned if self.committed is None else self.committed


class SaveClock:
    """Time the saves that this process makes below ``root``.

    ``commit_name`` is the file name whose appearance by a rename commits a save, None if the layout has none.
    """

    def __init__(self, root: str, commit_name: str | None = None) -> None:
        self._root = os.path.realpath(root) + os.sep
        self.commit_name = commit_name
        self._called = 0.0
        self._opened: float | None = None
        self._committed: float | None = None
        sys.addaudithook(self._audit)

    def _audit(self, event: str, args: tuple[object, ...]) -> None:
        if event == "open":
            path, _, flags = args
            if isinstance(flags, int) and flags & _WRITING and self._is_below(path):
                self.mark_open()
        elif event == "os.rename":
            target = args[1]
            if self._is_below(target) and os.path.basename(os.fsdecode(target)) == self.commit_name:  # type: ignore[arg-type]
                self.mark_commit()

    def _is_below(self, path: object) -> bool:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return False
        return os.path.abspath(os.fsdecode(path)).startswith(self._root)

    def mark_open(self) -> None:
        """Note that a file of the current save is about to be opened; only the first one counts."""
        if self._opened is None:
            self._opened = time.monotonic()

    def mark_commit(self) -> None:
        """Note that the current save has just become usable; the last mark counts."""
        self._committed = time.monotonic()

    def begin(self) -> None:
        """Start a save: forget the marks of the one before."""
        self._opened = self._committed = None
        self._called = time.monotonic()

    def end(self) -> SaveTimes:
        """End the save and return its times."""
        return SaveTimes(self._called, time.monotonic(), self._opened, self._committed)

    @contextmanager
    def save(self, step: int | None, path: str, *, timed: bool = True) -> Iterator[None]:
        """Time the save made inside the block and print its truth."""
        self.begin()
        yield
        print_truth(step, path, self.end(), timed=timed)


def print_truth(step: int | None, path: str, times: SaveTimes, *, timed: bool = True) -> None:
    """Print one save's truth as a JSON line; sizes are read from the finished checkpoint.

    Without ``timed`` there is no duration: the checkpoint appears by a rename and only its writer knows more.
    """
    size_bytes, files = tree_size(path)
    to_unix = time.time() - time.monotonic()
    truth = {
        "step": step,
        "path": path,
        "start_unix": times.start + to_unix,
        "end_unix": times.end + to_unix,
        "duration_seconds": times.end - times.start if timed else None,
        "start_from": "call" if times.opened is None else "open",
        "end_from": "call" if times.committed is None else "commit",
        "call_seconds": times.returned - times.called,
        "bytes": size_bytes,
        "files": files,
    }
    print(json.dumps(truth), flush=True)


def tree_size(path: str) -> tuple[int, int]:
    """Return bytes and number of the regular files at or below ``path``; links are not counted."""
    names = [path]
    if os.path.isdir(path):
        names = [os.path.join(top, name) for top, _, files in os.walk(path) for name in files]
    sizes = [info.st_size for info in map(os.lstat, names) if stat.S_ISREG(info.st_mode)]
    return sum(sizes), len(sizes)


@contextmanager
def required_frameworks() -> Iterator[None]:
    """Turn a failing import inside the block into the exit status for "skip", with its reason on stderr."""
    try:
        yield
    except (ImportError, OSError) as error:  # OSError: a wheel whose shared library does not load here
        print(f"cannot import the framework: {error}", file=sys.stderr)
        sys.exit(MISSING_FRAMEWORK)
