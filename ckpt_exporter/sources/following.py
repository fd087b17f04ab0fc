"""The watch over the configuration's fragments: a look every two seconds, in a thread of its own."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

INTERVAL_SECONDS = 2.0

_log = logging.getLogger(__name__)


class Following:
    """Calls ``notify`` when ``due`` says so. A hung file system under ``due`` holds up this thread alone."""

    def __init__(
        self,
        due: Callable[[], bool],
        notify: Callable[[], None],
        *,
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        self._due = due
        self._notify = notify
        self._interval_seconds = interval_seconds
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="configuration", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """End, without waiting for a look that hangs."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_seconds):
            try:
                if self._due():
                    self._notify()
            except Exception:  # noqa: BLE001 (a thread's boundary: the next look may go well)
                _log.warning("cannot look at the configuration's fragments", exc_info=True)
