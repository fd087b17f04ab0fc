"""How often to save: Young's and Daly's formulas, and the exact optimum of the model that both approximate.

The model: failures come at random, one in ``mtbf_seconds`` on average; a failure throws away what was trained
since the last save and costs ``restart_seconds``, which a failure may interrupt too. ``cost_seconds`` is the
training time that one save takes away; an interval is the training time between two saves.
"""

from __future__ import annotations

import math

_LARGEST_EXPONENT = 700.0  # exp() overflows beyond
_BISECTIONS = 200


def young_seconds(cost_seconds: float, mtbf_seconds: float) -> float:
    """Return sqrt(2 c M): J. W. Young, Communications of the ACM 17 (1974) 530."""
    return math.sqrt(2 * cost_seconds * mtbf_seconds)


def daly_seconds(cost_seconds: float, mtbf_seconds: float) -> float:
    """Return the higher-order estimate of J. T. Daly, Future Generation Computer Systems 22 (2006) 303."""
    if cost_seconds >= 2 * mtbf_seconds:
        return mtbf_seconds
    ratio = cost_seconds / (2 * mtbf_seconds)
    return young_seconds(cost_seconds, mtbf_seconds) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost_seconds


def optimum_seconds(cost_seconds: float, mtbf_seconds: float) -> float:
    """Return the interval at which ``slowdown`` is least; the restart's cost does not move it.

    Setting the derivative to zero gives (1 - x) exp(x + c/M) = 1 with x = interval / M, which has one root in
    (0, 1]; below it the left side is above 1.
    """
    offset = cost_seconds / mtbf_seconds
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        above = math.log1p(-middle) + middle + offset > 0 if middle < 1 else False
        low, high = (middle, high) if above else (low, middle)
    return mtbf_seconds * (low + high) / 2


def slowdown(
    interval_seconds: float, cost_seconds: float, mtbf_seconds: float, restart_seconds: float = 0.0
) -> float:
    """Return expected wall-clock time over training time; 1 would be no save and no failure.

    One interval and its save take M exp(R/M) (exp((t + c)/M) - 1) seconds on average (Daly 2006).
    """
    exponent = (interval_seconds + cost_seconds) / mtbf_seconds
    if exponent + restart_seconds / mtbf_seconds > _LARGEST_EXPONENT:
        return math.inf
    expected = mtbf_seconds * math.exp(restart_seconds / mtbf_seconds) * math.expm1(exponent)
    return expected / interval_seconds
