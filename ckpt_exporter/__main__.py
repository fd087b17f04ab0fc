"""The program: ``python -m ckpt_exporter`` is the same as ``ckpt-exporter``."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import FrameType

_DAEMONS: Final = ("run", "demo")


def main() -> int:
    """Run one command and return its exit status; a daemon can be stopped cleanly from here on."""
    if sys.argv[1:2] and sys.argv[1] in _DAEMONS:
        _heed_early_signals()
    from ckpt_exporter.cli import main as run  # noqa: PLC0415 (takes a while; signals do not wait for it)

    return run()


def _heed_early_signals() -> None:
    """End at once, and well, on SIGTERM and SIGINT, as nothing has begun yet; let SIGHUP and SIGUSR1 wait.

    The daemon's own handlers replace these before it starts anything. Raising would not do: an exception in
    the wrong place, such as a callback of the import machinery, is swallowed, and the stop with it.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP, signal.SIGUSR1})


def _end(_number: int, _frame: FrameType | None) -> None:
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
