"""Acceptance gates: each threshold against its evidence, each verdict with its reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from ckpt_exporter.analysis.bench_result import BenchResult
    from ckpt_exporter.analysis.compare import Comparison
    from ckpt_exporter.analysis.exporter import Scrape

GateVerdict = Literal["pass", "fail", "not enough data"]

TITLES: Final = {
    "G1": "path and identity",
    "G2": "the storage alone",
    "G3": "one training node",
    "G4": "production",
    "G5": "loads from storage",
}


@dataclass(frozen=True, slots=True)
class Check:
    """One threshold: what is asked, what was found, and the verdict."""

    name: str
    threshold: str
    evidence: str
    verdict: GateVerdict


@dataclass(frozen=True, slots=True)
class GateResult:
    """One gate with its checks."""

    gate: str
    checks: tuple[Check, ...]

    @property
    def verdict(self) -> GateVerdict:
        """``fail`` if any check fails, ``pass`` if all pass; a gate without checks is not judged."""
        verdicts = {check.verdict for check in self.checks}
        if "fail" in verdicts:
            return "fail"
        return "pass" if verdicts == {"pass"} else "not enough data"


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that gates may look at."""

    comparison: Comparison
    benches: tuple[BenchResult, ...] = ()
    exporters: tuple[Scrape, ...] = ()


def verdict_of(holds: bool | None) -> GateVerdict:  # noqa: FBT001 (three-valued: None is unknown)
    """Return the verdict of a condition that may be unknown."""
    if holds is None:
        return "not enough data"
    return "pass" if holds else "fail"


def below(low: float | None, high: float | None, limit: float) -> bool | None:
    """Tell whether an interval lies below a limit: all of it does, or none; between is unknown."""
    if low is None or high is None:
        return None
    if high <= limit:
        return True
    return False if low > limit else None


def above(low: float | None, high: float | None, limit: float) -> bool | None:
    """Tell whether an interval lies above a limit: all of it does, or none; between is unknown."""
    if low is None or high is None:
        return None
    if low >= limit:
        return True
    return False if high < limit else None


def exit_status(results: Iterable[GateResult], *, strict: bool) -> int:
    """Return 1 if a gate fails, or, where strict, if one could not be judged."""
    verdicts = {result.verdict for result in results}
    return int("fail" in verdicts or (strict and "not enough data" in verdicts))
