"""How far a file server's clock is from ours: bounds that each change seen between two looks narrows."""

from __future__ import annotations

from math import inf

# Two clocks that are kept by nobody drift apart by up to so many seconds a second.
DRIFT = 1e-4
# File times tick in steps of up to 10 ms, and are written a moment before they can be read.
TICK_SECONDS = 0.05


class ServerClock:
    """The file server's clock (Unix seconds) minus our monotonic one, as bounds.

    What changed between two looks did so between our times of them, and at the server's time in its
    ``stat``. Bounds that contradict each other mean that a clock was set: the newer ones count.
    """

    def __init__(self) -> None:
        self._low = -inf
        self._high = inf
        self._seen_at = -inf

    def observe(self, server_unix: float, after: float, before: float) -> None:
        """Take in a change that the server dates ``server_unix``, made between two of our times."""
        low, high = server_unix - before - TICK_SECONDS, server_unix - after + TICK_SECONDS
        drift = DRIFT * max(0.0, before - self._seen_at) if self._low > -inf else 0.0
        low_then, high_then = self._low - drift, self._high + drift
        self._seen_at = before
        if low > high_then or high < low_then:
            self._low, self._high = low, high
        else:
            self._low, self._high = max(low, low_then), min(high, high_then)

    def offset(self, unix_minus_t: float) -> float | None:
        """Return the server's clock minus our monotonic one, in seconds; None while nothing is known.

        Where both may show the same time of day they are taken to: most clocks are kept by a network's time.
        """
        if self._low == -inf:
            return None
        if self._low <= unix_minus_t <= self._high:
            return unix_minus_t
        return (self._low + self._high) / 2
