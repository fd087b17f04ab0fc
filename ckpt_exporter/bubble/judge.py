"""What one save cost one GPU: baseline, dips, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from ckpt_exporter.bubble.activity import Power
from ckpt_exporter.bubble.attribution import SaveSpan, owned, unpaid
from ckpt_exporter.bubble.baseline import Baseline, find_baseline, stale
from ckpt_exporter.bubble.dips import Activity, Dip, by_phase
from ckpt_exporter.bubble.gpus import Gpu
from ckpt_exporter.bubble.settings import BubbleSettings
from ckpt_exporter.bubble.spans import Span, clip, subtract, total
from ckpt_exporter.bubble.track import GAP, Rows
from ckpt_exporter.model import BubblePhase, Save

MIN_DRAG_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Case:
    """One save to judge: ``span`` names it, ``saves`` are all that may share its GPUs, itself too."""

    save: Save
    span: SaveSpan
    saves: Sequence[SaveSpan]
    now: float


@dataclass(frozen=True, slots=True)
class Measured:
    """One GPU's readings around a save; ``holes`` are stretches without readings where they matter."""

    gpu: Gpu
    activity: Activity
    dips: tuple[Dip, ...]
    holes: tuple[Span, ...]

    @property
    def baseline(self) -> Baseline:
        """The steady state that the dips are measured against."""
        return self.activity.baseline

    @property
    def whole(self) -> bool:
        """Tell whether nothing that matters is missing."""
        return not self.holes


@dataclass(frozen=True, slots=True)
class Cost:
    """What one save cost one GPU, in seconds of its full work; ``edges`` are the dip's, as far as it pays."""

    seconds: float
    drag_seconds: float
    phases: dict[BubblePhase, float]
    edges: tuple[Span, ...]
    paid: tuple[Span, ...]
    notes: tuple[str, ...]


def measure(gpu: Gpu, case: Case, settings: BubbleSettings) -> Measured | None:
    """Measure a GPU around a save; None if it has no steady state to compare with."""
    start, end = case.span.start, case.span.end
    last = min(case.now, end + settings.lookahead_seconds + settings.reach_after_seconds)
    rows = gpu.track.rows(start - settings.before_seconds, last)
    power = gpu.power((start - settings.reach_before_seconds, end + settings.reach_after_seconds))
    found = _compare(_Readings(gpu, case, rows, settings), power, start)
    if found is None:
        return None
    activity, dips = found
    if dips:
        # The dip itself shows best what this GPU draws without work, and only before it all was steady.
        power = gpu.power((dips[0].first, dips[-1].last))
        again = _compare(_Readings(gpu, case, rows, settings), power, min(start, dips[0].start))
        activity, dips = again if again is not None and again[1] else (activity, dips)
    slowed, _ = activity.slowed(start, end, _not_drag(activity, gpu, ()))
    if slowed < start:
        again = _compare(
            _Readings(gpu, case, rows, settings), power, min([slowed, *(dip.start for dip in dips)])
        )
        activity, dips = again or (activity, dips)
    gpu.remember_floor(power.floor_w if dips else None)
    return Measured(gpu, activity, tuple(dips), tuple(_holes(gpu, case, rows, dips, settings)))


@dataclass(frozen=True, slots=True)
class _Readings:
    gpu: Gpu
    case: Case
    rows: Rows
    settings: BubbleSettings


def _compare(readings: _Readings, power: Power, start: float) -> tuple[Activity, list[Dip]] | None:
    baseline = _baseline(readings, power, start)
    if baseline is None:
        return None
    activity = Activity(baseline.scale.curve(readings.rows), baseline)
    return activity, reaching(activity, readings.case, readings.settings)


def _baseline(readings: _Readings, power: Power, start: float) -> Baseline | None:
    """Find the steady state outside other saves; where saves never end, outside what they cost."""
    gpu, case, rows, settings = readings.gpu, readings.case, readings.rows, readings.settings
    margin = settings.mask_seconds
    others = [(s.start - margin, s.end + margin) for s in case.saves if s.key != case.span.key]
    paid = [(a - margin, b + margin) for a, b in gpu.charges.spans]
    return (
        find_baseline(rows, power, [*others, *paid], start, settings)
        or find_baseline(rows, power, paid, start, settings)
        or stale(gpu.baseline, start, settings)
    )


def reaching(activity: Activity, case: Case, settings: BubbleSettings) -> list[Dip]:
    """Return the dips that a save can have caused."""
    start, end = case.span.start, case.span.end
    last = activity.raw.times[-1] if len(activity.raw) else end
    dips = activity.dips(start - settings.lookback_seconds, last)
    first, after = start - settings.reach_before_seconds, end + settings.reach_after_seconds
    return [dip for dip in dips if dip.end >= first and dip.start <= after]


def _holes(gpu: Gpu, case: Case, rows: Rows, dips: Sequence[Dip], settings: BubbleSettings) -> list[Span]:
    first = min([case.span.start - settings.reach_before_seconds, *(dip.first for dip in dips)])
    last = max([case.span.end + settings.reach_after_seconds, *(dip.last for dip in dips)])
    times = rows.times
    gaps = rows.column(GAP)
    holes = [(times[i - 1], times[i]) for i in range(1, len(times)) if gaps[i]]
    if not len(times) or min(case.now, last) - times[-1] > gpu.gap_seconds:
        holes.append((times[-1] if len(times) else -inf, inf))
    return clip(holes, first, last)


def cost(measured: Measured, case: Case, settings: BubbleSettings) -> Cost:
    """Work out what a save cost one GPU, without the instants that other saves pay for."""
    activity, charges = measured.activity, measured.gpu.charges
    notes: set[str] = set()
    edges: list[Span] = []
    spans: list[Span] = []
    for dip in measured.dips:
        first, last = _bounds(dip, case, notes, settings)
        own = owned(case.span, (dip.first, dip.last), case.saves, settings)
        spans += unpaid(own, charges, first, last)
        edges += unpaid(own, charges, max(first, dip.start), min(last, dip.end))
    spans = subtract(_apart(spans), measured.holes)
    drag_spans = _drag_spans(measured, case, settings)
    drag = activity.drag(drag_spans, MIN_DRAG_SECONDS)
    seconds = activity.area(spans)
    notes |= _doubts(measured, seconds)
    paid = (*spans, *(drag_spans if drag else ()))
    phases = by_phase(activity, seconds, subtract(edges, measured.holes), case.save)
    return Cost(seconds, drag, phases, tuple(edges), paid, tuple(sorted(notes)))


def _apart(spans: Sequence[Span]) -> list[Span]:
    """Take away what spans have in common: the ramps of two near dips."""
    return [piece for i, span in enumerate(spans) for piece in subtract([span], spans[:i])]


def _bounds(dip: Dip, case: Case, notes: set[str], settings: BubbleSettings) -> Span:
    """Return from when to when a dip can be this save's: where its own edge is unknown, the files' edge."""
    first, last = -inf, inf
    if not dip.begun:
        notes.add("before_write_unknown")
        first = case.span.start
    if not dip.recovered:
        last = case.span.end
        moment = last + settings.sample_seconds
        own = owned(case.span, (dip.first, max(dip.last, moment)), case.saves, settings)
        if any(a < moment <= b for a, b in own):
            notes.add("not_recovered")
    return first, last


def _drag_spans(measured: Measured, case: Case, settings: BubbleSettings) -> list[Span]:
    taken = _not_drag(measured.activity, measured.gpu, measured.holes)
    first, last = measured.activity.slowed(case.span.start, case.span.end, taken)
    own = owned(case.span, (first, last), case.saves, settings)
    return subtract(clip(own, first, last), taken)


def _not_drag(activity: Activity, gpu: Gpu, holes: Sequence[Span]) -> list[Span]:
    return [*((dip.first, dip.last) for dip in activity.dips(-inf, inf)), *holes, *gpu.charges.spans]


def _doubts(measured: Measured, area: float) -> set[str]:
    """Name what makes a figure less sure than 2 % or 0.3 s."""
    baseline, notes = measured.baseline, set()
    if baseline.stale:
        notes.add("stale_baseline")
    doubt = sum(measured.activity.doubt(dip) for dip in measured.dips)
    if doubt > max(0.3, 0.02 * area) + 1e-6:
        notes.add("coarse")
    if baseline.period and any(dip.end - dip.start < baseline.period for dip in measured.dips):
        notes.add("step_bound")
    return notes


def least_of(run: Sequence[Measured], case: Case, settings: BubbleSettings) -> list[Measured]:
    """Let the least active GPU speak for all those that have utilisation alone.

    A rank that waits for another shows full utilisation; the one it waits for does not.
    """
    blind = [m for m in run if m.baseline.scale.source == "utilization"]
    if len(blind) < 2:
        return list(run)
    curves = [m.activity.raw for m in blind if len(m.activity.raw)]
    result = [m for m in run if m not in blind]
    for m in blind:
        times = m.activity.raw.times
        least = type(m.activity.raw)(times, [min(curve.at(t) for curve in curves) for t in times])
        activity = Activity(least, replace(m.baseline, period=None))
        result.append(replace(m, activity=activity, dips=tuple(reaching(activity, case, settings))))
    return result


def may_spin(measured: Measured, case: Case) -> bool:
    """Tell whether utilisation alone may hide that this GPU waited through a save.

    True if no dip shows and utilisation was near full before, or rose while the save was written.
    """
    scale = measured.baseline.scale
    if scale.source != "utilization" or measured.dips or len(scale.terms) > 1:
        return False
    usual = 1.0 / scale.terms[0][2]
    rose = _mean(measured.activity, case) > measured.baseline.mean * 1.02
    return usual >= 0.95 or rose


def _mean(activity: Activity, case: Case) -> float:
    span = (case.span.start, max(case.span.end, case.span.start + 1.0))
    return activity.raw.integral(*span) / total([span])
