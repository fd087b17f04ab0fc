"""Where a bench writes: a directory of its own, with room for it, that is gone afterwards."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ckpt_exporter.analysis.numbers import size_text
from ckpt_exporter.errors import CkptExporterError, UsageError
from ckpt_exporter.logs import one_line
from ckpt_exporter.sources.storage import read_space

PREFIX: Final = "ckpt-exporter-bench-"
# Room that is left free beside the burst: a file system that is full to the brim is slow for everyone.
_SPARE: Final = 1.05

Progress = Callable[[str, int, int], None]  # what is done, bytes seen so far, bytes of the burst


class StoppedError(CkptExporterError):
    """The bench was asked to stop; everything it wrote is gone."""


def check_stopping(stopping: Callable[[], bool]) -> None:
    """Raise StoppedError where the bench was asked to stop."""
    if stopping():
        raise StoppedError("stopped: everything that was written is removed")


def check_space(directory: str, burst_bytes: int, fill_bytes: int = 0) -> None:
    """Raise UsageError where a burst, and what fills the page cache before it, have no room."""
    space = read_space(directory)
    if space is None:
        raise UsageError(
            f"{one_line(directory)} is no directory on a file system with room: name one on the storage"
        )
    needed = int((burst_bytes + fill_bytes) * _SPARE)
    if needed > space[0]:
        filler = f" and {size_text(fill_bytes)} to fill the page cache" if fill_bytes else ""
        hint = ", or a smaller --fill" if fill_bytes else ""
        raise UsageError(
            f"a burst of {size_text(burst_bytes)}{filler} needs {size_text(needed)}, and "
            f"{one_line(directory)} has {size_text(space[0])} free: write a smaller --scale or --bytes{hint}"
        )


@contextmanager
def workplace(directory: str) -> Iterator[str]:
    """Make a new subdirectory, and remove it and all in it whatever happens.

    Raises UsageError where it cannot be made, CkptExporterError where it cannot be removed.
    """
    try:
        root = tempfile.mkdtemp(prefix=PREFIX, dir=directory)
    except OSError as error:
        raise UsageError(f"cannot write to {one_line(directory)}: {error.strerror}") from error
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if os.path.lexists(root):
        raise CkptExporterError(f"{one_line(root)} could not be removed: remove it by hand")


def leftovers(directory: str) -> list[str]:
    """Return what benches that were killed left behind."""
    with contextlib.suppress(OSError):
        return sorted(name for name in os.listdir(directory) if name.startswith(PREFIX))
    return []
