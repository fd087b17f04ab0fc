"""How far bubbles are from the truth: ours, and what one would read off a panel of utilisation."""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

from benchmarks.processes import scratch
from benchmarks.report import Outcome, Row
from ckpt_exporter.model import DetectSettings
from ckpt_exporter.replay import as_json, replay
from tests.gpu_profiles import Level, Profile, Stop, job, save
from tests.gpu_recordings import Line, recorded, write_recording

ALL = tuple(range(8))
MARGIN_SECONDS = 5.0
SCRAPE_SECONDS, BASELINE_SECONDS = 15.0, 60.0


@dataclass(frozen=True, slots=True)
class Case:
    """A profile and the GPU-seconds that its saves cost; None where nothing can tell: none may be given.

    ``where`` is the true dip, with all that the save did.
    """

    what: str
    profile: Profile
    truth: float | None
    where: tuple[float, float]


def measure(quick: bool) -> Outcome:
    seeds = 1 if quick else 3
    rows = [row for case in cases() for row in _row(case, seeds)]
    return Outcome(
        "(1) the node's mean utilisation below its median; (2) utilisation scraped each 15 s, against its "
        "`avg_over_time` of the minute before",
        f"Simulated GPUs ({seeds} seeds, recorded levels and noise), the same recordings for all three; "
        "figures in GPU-seconds, the worst of the seeds. Both panels are told where to look, 5 s around the "
        "save and its true dip, which flatters them; the 15 s scrape is given at 15 offsets, the worst "
        "shown. Target where quality is high: within 2 % or 0.3 s a GPU; where it can't be known, none.",
        tuple(rows),
    )


def cases() -> list[Case]:
    """Tell the profiles whose truth is known, by what they try."""
    both = _waiting(150.3, 190.3)
    dip, area = (150.3, 190.3), 320.0
    spin = _one("spin", both, 151.3, 188.3)
    stop = (150.0, 150.5), (150.5, 210.5)
    asynchronous = (Stop(ALL, *stop[0], "idle"), Stop(ALL, *stop[1], "slow", 0.05))
    two = (save(150.2, 210.2), save(180.2, 240.2, name="step-2"))
    pauses = (save(151.2, 199.2, flow=((151.2, 160.2), (175.2, 180.2), (190.2, 199.2))),)
    two_jobs = (job(ALL[:4], t=151.6), job(ALL[4:], directory="e", pids=(8,), t=1.0))
    half = (Stop(ALL[:4], *dip), Stop((4, 5), 160.3, 170.3))
    capped = Level(0.97, 0.5, 299.0, 0.7, 0.4, 0.5)
    latched = (Stop((7,), 0, 400, "latched"), Stop(ALL[1:7], *dip), Stop((0,), *dip, "idle"))
    step = 3.5 * 43
    warm_up = (Stop(ALL, 0, 20, "off"), Stop(ALL, 20, 60, "idle"), Stop(ALL, 60, 80, "spin"))
    return [
        Case("all ranks idle", _one("idle", (Stop(ALL, *dip, "idle"),), 151.3, 188.3), area, dip),
        Case("rank 0 idle, seven spin", spin, area, dip),
        Case("the same, GPM counters", replace(spin, gpm=True), area, dip),
        Case("the same, instant power, 10 Hz", replace(spin, window_s=0.0, fast_hz=10.0), area, dip),
        Case("a save of 16 s", _one("short", _waiting(150.3, 166.3), 150.8, 165.8), 128.0, (150.3, 166.3)),
        Case("steps of 3.5 s, 25 % idle",
             replace(_one("steps", _waiting(step, step + 40), step + 1, step + 38), step=(3.5, 0.25)),
             area, (step, step + 40)),
        Case("asynchronous: 0.5 s, then 60 s at 5 % drag",
             _one("async", asynchronous, *stop[1]), 4.0, (150.0, 210.5)),
        Case("40 s of staging, 30 s of writing, 5 s of barrier",
             _one("staging", _waiting(150.2, 225.2), 190.2, 220.2), 600.0, (150.2, 225.2)),
        Case("writing with pauses",
             replace(_one("pauses", _waiting(150.2, 200.2), 151.2, 199.2), saves=pauses),
             400.0, (150.2, 200.2)),
        Case("two overlapping saves", replace(_one("two", _waiting(150.2, 240.2), 150.2, 240.2), saves=two),
             720.0, (150.2, 240.2)),
        Case("two jobs, one saves", replace(spin, stops=half, writers=two_jobs), 160.0, dip),
        Case("a crash of 230 s without files",
             Profile("crash", 600, stops=(Stop(ALL, 200, 430, "idle"),), writers=(job(ALL, t=1.0),)),
             0.0, (200, 430)),
        Case("a GPU lost after 20 of 40 s", replace(spin, errors={3: 170.3}), 300.0, dip),
        Case("power-capped at 300 W", replace(spin, limit_w=300.0, train=capped), area, dip),
        # Eight GPUs, one of them nobody's.
        Case("one GPU latched at 100 %, no process known",
             replace(spin, stops=latched, writers=(job(ALL[:7], t=151.6),)), 280.0, dip),
        Case("save during the warm-up",
             _one("warm-up", (*warm_up, Stop(ALL, 86.2, 130.2)), 86.2, 130.2), None, (86.2, 130.2)),
        Case("utilisation alone, rank 0 idle", replace(spin, power=False, memory=False), area, dip),
        Case("utilisation alone, all spin",
             replace(spin, stops=(Stop(ALL, *dip),), power=False, memory=False), None, dip),
    ]  # fmt: skip


def _waiting(start: float, end: float) -> tuple[Stop, ...]:
    return Stop((0,), start, end, "idle"), Stop(ALL[1:], start, end, "spin")


def _one(name: str, stops: tuple[Stop, ...], start: float, end: float) -> Profile:
    """Tell of one save; its run is found 0.3 s after the first byte."""
    saves, writers = (save(start, end),), (job(ALL, t=start + 0.3),)
    return Profile(name, end + 120.0, stops=stops, saves=saves, writers=writers)


@dataclass(frozen=True, slots=True)
class Figures:
    """GPU-seconds by each way; None: no figure given. ``high``: the quality that ours claims."""

    ours: float | None
    high: bool
    mean: float
    scraped: tuple[float, ...]


def _row(case: Case, seeds: int) -> list[Row]:
    found = [_figures(case, seed) for seed in range(1, seeds + 1)]
    gpus = len(ALL)
    if case.truth is None:
        given = [f for f in found if f.ours is not None]
        ours, met = ("none given", True) if not given else (f"{given[0].ours:.1f}", False)
    else:
        truth = case.truth
        worst = max(found, key=lambda f: abs((f.ours or 0.0) - truth) if f.ours is not None else truth)
        high = all(f.high for f in found)
        within = worst.ours is not None and abs(worst.ours - truth) <= max(0.3 * gpus, 0.02 * truth)
        ours = f"{_error(worst.ours, truth)}{'' if high else ' (quality low)'}"
        met = within if high else None
    truth_or_none = case.truth
    means = _worst([f.mean for f in found], truth_or_none)
    scrapes = _worst([s for f in found for s in f.scraped], truth_or_none)
    told = "can't be known" if case.truth is None else f"truth {case.truth:.0f}"
    figure = f"{told}: ours {ours}; mean utilisation {means}; 15 s scrape {scrapes}"
    return [Row(case.what, figure, "2 % or 0.3 s a GPU" if case.truth is not None else "none given", met)]


def _worst(values: Sequence[float], truth: float | None) -> str:
    wanted = truth or 0.0
    value = max(values, key=lambda v: abs(v - wanted))
    return f"{value:.1f}" if truth is None else _error(value, truth)


def _error(value: float | None, truth: float) -> str:
    if value is None:
        return "no figure"
    return f"{value:.1f} ({(value - truth) / truth * 100:+.1f} %)" if truth else f"{value:.1f}"


def _figures(case: Case, seed: int) -> Figures:
    profile = replace(case.profile, seed=seed)
    lines = list(recorded(profile))
    with scratch() as base:
        path = write_recording(Path(os.path.join(base, "recording.jsonl")), lines)
        result = json.loads(json.dumps(as_json(replay(str(path), DetectSettings()))))
    costs = [save for save in result["saves"] if save["bubble_seconds"] is not None]
    ours = sum(line["bubble_seconds"] for line in result["gpu"]) if costs or not result["saves"] else None
    first, last = case.where[0] - MARGIN_SECONDS, case.where[1] + MARGIN_SECONDS
    util = {gpu: _utilisation(lines, gpu) for gpu in ALL}
    whole = _whole(util)
    offsets = range(int(SCRAPE_SECONDS))
    scraped = tuple(sum(_scraped(util[gpu], first, last, offset) for gpu in ALL) for offset in offsets)
    high = all(save["quality"] == "high" for save in costs)
    return Figures(ours, high, _below_median(whole, first, last) * len(ALL), scraped)


@dataclass(frozen=True, slots=True)
class Series:
    """Readings in time order."""

    times: list[float]
    values: list[float]

    def at(self, t: float) -> float | None:
        """Return the last reading up to a moment, None if there is none in a minute."""
        i = bisect_right(self.times, t) - 1
        return self.values[i] if i >= 0 and t - self.times[i] <= BASELINE_SECONDS else None


def _utilisation(lines: Iterable[Line], gpu: int) -> Series:
    kept = [line for line in lines if line["kind"] == "gpu" and line["gpu"] == gpu and "util" in line]
    return Series([line["t"] for line in kept], [line["util"] for line in kept])


def _whole(util: dict[int, Series]) -> Series:
    """Average the GPUs that can be read, tick by tick."""
    by_time: dict[float, list[float]] = {}
    for series in util.values():
        for t, value in zip(series.times, series.values, strict=True):
            by_time.setdefault(t, []).append(value)
    return Series(list(by_time), [fmean(values) for values in by_time.values()])


def _below_median(series: Series, first: float, last: float) -> float:
    """Add up the seconds by which a series lies below its own median."""
    usual = median(series.values)
    pairs = zip(series.times[1:], series.times, series.values[1:], strict=False)
    return sum((t - before) * max(0.0, 1.0 - v / usual) for t, before, v in pairs if first <= t <= last)


def _scraped(series: Series, first: float, last: float, offset: float) -> float:
    """Reckon as PromQL: ``15 * sum_over_time(clamp_min(1 - util / avg_over_time(util[1m]), 0)[...])``."""
    times = [offset + SCRAPE_SECONDS * i for i in range(int(series.times[-1] // SCRAPE_SECONDS) + 1)]
    points = [(t, value) for t in times if (value := series.at(t)) is not None]
    before = [value for t, value in points if first - BASELINE_SECONDS <= t < first]
    usual = fmean(before) if before else 1.0
    if usual <= 0.0:
        return 0.0
    return sum(SCRAPE_SECONDS * max(0.0, 1.0 - value / usual) for t, value in points if first <= t <= last)
