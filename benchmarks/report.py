"""Figures with their spread, and the report that they make."""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

import psutil


@dataclass(frozen=True, slots=True)
class Row:
    """One measured figure; ``met`` is None where there is no target, or says why it can't be told."""

    what: str
    figure: str
    target: str = "-"
    met: bool | str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one benchmark found: ``against`` says with what the exporter is compared, ``how`` what was run."""

    against: str
    how: str
    rows: tuple[Row, ...]


def spread(values: Sequence[float], form: str = ".3f", unit: str = "") -> str:
    """Return median, extremes and number of measurements."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:{form}}{unit} ({low:{form}}..{high:{form}}, n={len(values)})"


def at_least(what: str, values: Sequence[float], target: float) -> Row:
    """Judge a median that must reach ``target``."""
    return Row(what, spread(values), f">= {target:g}", statistics.median(values) >= target)


def at_most(what: str, values: Sequence[float], target: float, form: str = ".3f", unit: str = "") -> Row:
    """Judge a median that must not exceed ``target``."""
    return Row(what, spread(values, form, unit), f"<= {target:g}{unit}", statistics.median(values) <= target)


def confidence(values: Sequence[float]) -> tuple[float, float]:
    """Return bounds that hold the median with 95 %, whatever the distribution (order statistics)."""
    ordered, n = sorted(values), len(values)
    # The number of values below the median is binomial (n, 1/2); its normal approximation.
    out = max(0, math.floor((n - 1.96 * math.sqrt(n)) / 2))
    return ordered[out], ordered[n - 1 - out]


def interval(values: Sequence[float]) -> str:
    """Return the median and its 95 % interval."""
    low, high = confidence(values)
    return f"{statistics.median(values):.3f} [{low:.3f}, {high:.3f}] (n={len(values)})"


def interval_at_least(what: str, values: Sequence[float], target: float | None) -> Row:
    """Judge a median that must reach ``target``, if its interval tells."""
    if target is None:
        return Row(what, interval(values))
    low, high = confidence(values)
    met: bool | str = "can't be told: the interval is too wide" if low < target <= high else low >= target
    return Row(what, interval(values), f">= {target:g}", met)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def file_system(path: str) -> str:
    """Name the type of the file system that holds ``path``."""
    path = os.path.realpath(path)
    mounts = [(m.mountpoint, m.fstype) for m in psutil.disk_partitions(all=True)]
    below = [(point, kind) for point, kind in mounts if (path + "/").startswith(point.rstrip("/") + "/")]
    return max(below, key=lambda mount: len(mount[0]), default=("", "unknown"))[1]


def machine(disk: str, memory: str) -> str:
    """Describe what the figures were taken on."""
    load = os.getloadavg()[0]
    return (
        f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC, {os.cpu_count()} cores ({platform.machine()}), "
        f"{psutil.virtual_memory().total / 2**30:.0f} GiB memory, Linux {platform.release()}, "
        f"Python {platform.python_version()}, disk {file_system(disk)}, memory file system "
        f"{file_system(memory)}, load average at the start {load:.2f}"
    )


def section(name: str, outcome: Outcome, seconds: float, *, quick: bool) -> str:
    """Return one benchmark as Markdown."""
    verdict: dict[bool | str | None, str] = {True: "yes", False: "**no**", None: "-"}
    command = f"python -m benchmarks {name}{' --quick' if quick else ''}"
    lines = [
        f"## {name}",
        "",
        f"Compared with: {outcome.against}",
        "",
        f"{outcome.how} Command: `{command}` ({seconds:.0f} s).",
        "",
        "| figure | measured: median (min..max, n) | target | met |",
        "|---|---|---|---|",
        *(
            f"| {row.what} | {row.figure} | {row.target} | {verdict.get(row.met, row.met)} |"
            for row in outcome.rows
        ),
        "",
    ]
    return "\n".join(lines)
