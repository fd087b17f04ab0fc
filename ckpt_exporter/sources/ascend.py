"""Which of an Ascend chip's counters are to be believed, whoever tells them.

Two zeros that the vendor's interface calls meaningless are no readings:

- while a profiler runs, AI Core and vector units read 0: not believed beside memory traffic (or, where that
  is not told, an overall utilisation) that only work explains;
- in a virtual machine with a passed-through chip the memory's bandwidth reads 0 for ever: not believed until
  it was something else once.
"""

from __future__ import annotations

from typing import Final, NamedTuple

# Memory traffic that copying a checkpoint out (some percent of the bandwidth) does not reach.
WORKING_TRAFFIC: Final = 0.10
WORKING_OVERALL: Final = 0.50


class AscendShares(NamedTuple):
    """Shares 0..1 as told, then as believed; ``util`` is of the whole chip."""

    util: float | None
    cube: float | None
    vector: float | None
    traffic: float | None


class AscendDoubt:
    """Remembers of one chip whether its bandwidth was ever seen."""

    __slots__ = ("_bandwidth_seen",)

    def __init__(self) -> None:
        self._bandwidth_seen = False

    def believe(self, told: AscendShares) -> AscendShares:
        """Return what of one reading is to be believed."""
        self._bandwidth_seen = self._bandwidth_seen or bool(told.traffic)
        traffic = told.traffic if self._bandwidth_seen else None
        util, cube, vector = told.util, told.cube, told.vector
        works = traffic >= WORKING_TRAFFIC if traffic is not None else (util or 0.0) >= WORKING_OVERALL
        if works and not cube and not vector:
            cube = vector = None
        if util is None:
            util = max((rate for rate in (cube, vector) if rate is not None), default=None)
        return AscendShares(util, cube, vector, traffic)
