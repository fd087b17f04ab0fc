"""When and how far the bubble detector looks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BubbleSettings:
    """Windows and thresholds, in seconds unless the name says otherwise.

    ``lookback_seconds``: how long before the first byte a dip may begin (staging, serialising).
    ``reach_before_seconds`` and ``reach_after_seconds``: a dip that touches neither belongs to no save.
    ``lookahead_seconds``: how long after the commit a dip may last and still be the save's.
    ``recent_seconds``: how long a GPU without process knowledge stays part of a run after its last work.
    """

    sample_seconds: float = 0.5
    baseline_seconds: float = 60.0
    guard_seconds: float = 2.0
    lookback_seconds: float = 120.0
    reach_before_seconds: float = 10.0
    reach_after_seconds: float = 5.0
    lookahead_seconds: float = 60.0
    mask_seconds: float = 3.0
    min_samples: int = 20
    max_spread: float = 0.35
    stale_seconds: float = 900.0
    ring_seconds: float = 900.0
    ring_rows: int = 9000
    stall_seconds: float = 3.0
    long_stall_seconds: float = 180.0
    restart_seconds: float = 900.0
    recent_seconds: float = 300.0

    @property
    def before_seconds(self) -> float:
        """How far before a save's first byte its judgement needs samples."""
        return self.lookback_seconds + self.baseline_seconds + self.guard_seconds
