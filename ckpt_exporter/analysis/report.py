"""What the saves of a window cost: every number of the report, before it is written out for people."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ckpt_exporter.analysis.gpu_shares import gpu_shares_data
from ckpt_exporter.analysis.job_saves import job_saves
from ckpt_exporter.analysis.loads import loads_data
from ckpt_exporter.analysis.reasons import phases_of, reasons
from ckpt_exporter.analysis.spread import spread
from ckpt_exporter.analysis.stalls import episodes_data
from ckpt_exporter.analysis.statistics import median
from ckpt_exporter.analysis.stragglers import stragglers, waits_for_nodes, waits_for_shards
from ckpt_exporter.analysis.trend import trend
from ckpt_exporter.history.rows import CAUSES, PHASES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckpt_exporter.analysis.job_saves import JobSave
    from ckpt_exporter.analysis.stragglers import Straggler
    from ckpt_exporter.history.records import GpuTimeRecord, Measurements, SaveRecord

SLOWEST: Final = 5
_UNFINISHED: Final = 20

Data = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Scope:
    """What was asked for: one directory, one run (None: all), and whether the window was given."""

    directory: str | None = None
    run: str | None = None
    since_given: bool = False
    until_given: bool = False


def report_data(measured: Measurements, scope: Scope = Scope()) -> Data:
    """Return every number of the report; durations in seconds, sizes in bytes, unknown values None.

    Saves of several nodes of one job are one save: it takes as long as its slowest node, is as fast as that,
    and has the bytes of all. Durations, sizes and bandwidths are those of complete saves; what GPUs lost is
    counted whatever the result, as in the metrics.
    """
    jobs = job_saves(measured.saves)
    complete = [save for save in jobs if save.complete]
    bubble = _bubble(measured, jobs, scope)
    return {
        "source": measured.source,
        "window": _window(measured, scope),
        "filter": {"directory": scope.directory, "run": scope.run},
        "saves": _counts(measured, jobs),
        "duration_seconds": spread([s.duration_seconds for s in complete]),
        "bytes": _bytes(complete),
        "bandwidth": {
            kind: spread([getattr(s, f"{kind}_bandwidth") for s in complete], low_is_bad=True)
            for kind in ("average", "sustained", "peak")
        },
        "save_time": _save_time(measured, jobs, scope),
        "bubble": bubble,
        "phases": _phases(jobs),
        "gpus": _gpus(measured, bubble),
        "stalls": _stalls(measured),
        "stall_episodes": episodes_data(measured.stalls),
        "gpu_time": _gpu_time(measured, jobs, bubble, scope),
        "loads": loads_data(measured.loads),
        "faster_storage": _faster_storage(jobs),
        "trend": trend(measured, jobs),
        "slowest": _slowest(complete),
        "unfinished": _unfinished(jobs),
        "stragglers": _stragglers(complete),
        "notes": list(measured.notes),
    }


def _window(measured: Measurements, scope: Scope) -> Data:
    return {
        "since_unix": measured.since_unix, "until_unix": measured.until_unix,
        "seconds": measured.until_unix - measured.since_unix,
        "since_given": scope.since_given, "until_given": scope.until_given,
    }  # fmt: skip


def _counts(measured: Measurements, jobs: Sequence[JobSave]) -> Data:
    results = Counter(_result(save) for save in jobs)
    return {
        "count": len(jobs),
        "results": {name: results.get(name, 0) for name in ("complete", "incomplete", "aborted")},
        "directories": sorted({save.directory for save in measured.saves}),
        "nodes": sorted({save.node for save in measured.saves}),
        "runs": sorted({save.run for save in measured.saves if save.run}),
        "storage": sorted({_storage(save) for save in measured.saves} - {""}),
    }  # fmt: skip


def _storage(save: SaveRecord) -> str:
    kind = ", ".join(filter(None, (save.fstype, save.transport)))
    return f"{save.mountpoint} ({kind})" if save.mountpoint else kind


def _result(save: JobSave) -> str:
    results = {record.result for record in save.written}
    return next((name for name in ("incomplete", "aborted") if name in results), "complete")


def _bytes(complete: Sequence[JobSave]) -> Data:
    written = [save.written_bytes for save in complete if save.written_bytes is not None]
    sizes = [float(save.bytes) for save in complete if not save.seen_only]
    return {
        "median": median(sizes) if sizes else None, "largest": max(sizes, default=None),
        "total": sum(save.bytes for save in complete), "files": sum(save.files for save in complete),
        "written_total": sum(written) if written else None,
    }  # fmt: skip


# --- time -----------------------------------------------------------------------------------------------


def _save_time(measured: Measurements, jobs: Sequence[JobSave], scope: Scope) -> Data:
    """Return for how much of the elapsed time saves were open; overlapping ones count once.

    Where neither the window was given nor GPUs say when training went on, the records begin and end with a
    save: then the last save is left out, so that as many saves as intervals count.
    """
    known = sorted((s.start_unix, s.end_unix) for s in jobs if s.duration_seconds is not None)
    begin, end = measured.since_unix, measured.until_unix
    bounded = bool(measured.gpu_time) or (scope.since_given and scope.until_given)
    if not bounded and not scope.until_given and known:
        end = known[-1][0]
    seconds = _covered(known, begin, end)
    length = end - begin
    basis = "window" if bounded or scope.until_given else "first_to_last_start"
    return {
        "seconds": seconds, "of_seconds": length if length > 0 else None,
        "share": seconds / length if length > 0 else None, "basis": basis,
    }  # fmt: skip


def _covered(spans: Sequence[tuple[float, float]], begin: float, end: float) -> float:
    covered, reached = 0.0, begin
    for start, stop in spans:
        start, stop = max(start, reached), min(stop, end)  # noqa: PLW2901 (clipped)
        if stop > start:
            covered += stop - start
            reached = stop
    return covered


# --- GPUs -----------------------------------------------------------------------------------------------


def _bubble(measured: Measurements, jobs: Sequence[JobSave], scope: Scope) -> Data:
    """Return the bubble of the saves, and its share of the observed GPU time."""
    records = [record for save in jobs for record in save.records]
    per_gpu = _per_gpu(measured)
    gpu_seconds = sum(sum(record.bubble_gpu_seconds.values()) for record in records)
    drag = sum(sum(record.drag_gpu_seconds.values()) for record in records)
    with_figure = [save for save in jobs if save.bubble_seconds is not None]
    without = [save for save in jobs if save.bubble_seconds is None]
    chosen = scope.directory is not None or scope.run is not None
    observed = sum(hour.observed_seconds for hour in _hours(measured, jobs, scope))
    known = bool(with_figure) and bool(per_gpu)
    return {
        "saves_with_figure": len(with_figure),
        "saves_with_part_of_a_figure": sum(
            any(r.bubble_seconds is None for r in save.records) for save in with_figure
        ),
        "skipped": dict(sorted(Counter(filter(None, map(_skipped, without))).items())),
        "seconds": spread([save.bubble_seconds for save in jobs]),
        "gpu_seconds": gpu_seconds if known else None,
        "gpu_hours": gpu_seconds / 3600 if known else None,
        "drag_gpu_seconds": drag if known else None,
        "observed_gpu_seconds": observed or None,
        "share": gpu_seconds / observed if known and observed > 0 else None,
        "denominator": "observed GPU time of the GPUs that these saves stopped"
        if chosen
        else "observed GPU time",
        "gpus": len(per_gpu),
        "low_quality": sum(record.quality == "low" for record in records),
        "utilisation_alone": sum(r.quality == "low" and r.source == "utilization" for r in records),
    }


def _hours(measured: Measurements, jobs: Sequence[JobSave], scope: Scope) -> list[GpuTimeRecord]:
    """Return the GPU time that is the measure: of a part of the saves that of the GPUs that it stopped."""
    if scope.directory is None and scope.run is None:
        return list(measured.gpu_time)
    stopped = {(r.node, gpu) for save in jobs for r in save.records for gpu in r.bubble_gpu_seconds}
    return [hour for hour in measured.gpu_time if (hour.node, hour.gpu) in stopped]


def _gpu_time(measured: Measurements, jobs: Sequence[JobSave], bubble: Data, scope: Scope) -> Data | None:
    """Return where the observed GPU time went; without a save, saves cost nothing."""
    cost = bubble["gpu_seconds"] if jobs else 0.0
    return gpu_shares_data(_hours(measured, jobs, scope), measured.stalls, cost)


def _skipped(save: JobSave) -> str | None:
    return next((record.bubble_skipped for record in save.records if record.bubble_skipped), None)


def _per_gpu(measured: Measurements) -> dict[tuple[str, int], Data]:
    gpus: dict[tuple[str, int], Data] = {}
    for record in measured.saves:
        for gpu, seconds in record.bubble_gpu_seconds.items():
            entry = gpus.setdefault((record.node, gpu), {"bubble": 0.0, "drag": 0.0, "saves": 0})
            entry["bubble"] += seconds
            entry["drag"] += record.drag_gpu_seconds.get(gpu, 0.0)
            entry["saves"] += 1
    return gpus


def _gpus(measured: Measurements, bubble: Data) -> list[Data]:
    observed: Counter[tuple[str, int]] = Counter()
    uuids: dict[tuple[str, int], str] = {}
    for hour in measured.gpu_time:
        observed[hour.node, hour.gpu] += hour.observed_seconds  # type: ignore[assignment]
        uuids[hour.node, hour.gpu] = hour.uuid
    stopped = _per_gpu(measured) if bubble["gpu_seconds"] is not None else {}
    rows = []
    for key in sorted({*stopped, *uuids}):
        cost = stopped.get(key, {"bubble": 0.0, "drag": 0.0, "saves": 0})
        seconds = float(observed[key]) or None
        rows.append({
            "node": key[0], "gpu": key[1], "uuid": uuids.get(key), "saves": cost["saves"],
            "bubble_seconds": cost["bubble"], "drag_seconds": cost["drag"], "observed_seconds": seconds,
            "share": cost["bubble"] / seconds if seconds else None,
        })  # fmt: skip
    return rows


def _stalls(measured: Measurements) -> Data | None:
    if not measured.gpu_time:
        return None
    return {cause: sum(h.stall_seconds.get(cause, 0.0) for h in measured.gpu_time) for cause in CAUSES}


def _phases(jobs: Sequence[JobSave]) -> Data | None:
    """Return the bubble by phase: seconds (mean over GPUs), GPU-seconds, share."""
    seconds, gpu_seconds = dict.fromkeys(PHASES, 0.0), dict.fromkeys(PHASES, 0.0)
    known, gpus_known = False, True
    for save in jobs:
        for phase, value in phases_of(save).items():
            known = True
            gpus_known = gpus_known and save.gpus is not None
            seconds[phase] += value
            gpu_seconds[phase] += value * (save.gpus or 0)
    total = sum(seconds.values())
    if not known:
        return None
    return {
        phase: {
            "seconds": seconds[phase], "gpu_seconds": gpu_seconds[phase] if gpus_known else None,
            "share": seconds[phase] / total if total > 0 else None,
        }
        for phase in PHASES
    }  # fmt: skip


def _faster_storage(jobs: Sequence[JobSave]) -> Data:
    """Return what storage of any speed could win back at most: the time in which bytes flowed."""
    phases = _phases(jobs)
    if phases is not None:
        writing = phases["writing"]
        gpu_seconds = writing["gpu_seconds"]
        return {
            "basis": "bubble", "at_most_seconds": writing["seconds"], "share": writing["share"],
            "at_most_gpu_seconds": gpu_seconds,
            "at_most_gpu_hours": None if gpu_seconds is None else gpu_seconds / 3600,
        }  # fmt: skip
    known = [
        (s.active_seconds, s.duration_seconds)
        for s in jobs
        if s.active_seconds is not None and s.duration_seconds is not None
    ]
    active, total = sum(a for a, _ in known), sum(d for _, d in known)
    return {
        "basis": "save_time", "at_most_seconds": active if known else None,
        "share": active / total if total > 0 else None,
        "at_most_gpu_seconds": None, "at_most_gpu_hours": None,
    }  # fmt: skip


# --- single saves ---------------------------------------------------------------------------------------


def _slowest(complete: Sequence[JobSave]) -> list[Data]:
    timed = [save for save in complete if save.duration_seconds is not None]
    timed.sort(key=lambda save: (-(save.duration_seconds or 0.0), save.end_unix))
    usual = median([s.duration_seconds or 0.0 for s in timed]) if timed else 0.0
    usual_bytes = median([float(s.bytes) for s in timed]) if timed else 0.0
    waits = [wait for waits, _ in (waits_for_shards(timed), waits_for_nodes(timed)) for wait in waits]
    slowest = []
    for save in timed[:SLOWEST]:
        wait = max((w for w in waits if w.save is save), key=lambda w: w.seconds, default=None)
        why = reasons(save, usual_bytes, wait)
        slowest.append({
            **_named(save), "duration_seconds": save.duration_seconds, "bytes": save.bytes,
            "times_median": (save.duration_seconds or 0.0) / usual if usual > 0 else None,
            "bubble_seconds": save.bubble_seconds, "phases": phases_of(save) or None,
            "reason": "; ".join(reason.text for reason in why), "reason_codes": [r.code for r in why],
        })  # fmt: skip
    return slowest


def _unfinished(jobs: Sequence[JobSave]) -> list[Data]:
    found = [save for save in jobs if not save.complete]
    return [
        {
            **_named(save), "result": _result(save),
            "reason": next((r.reason for r in save.written if r.result != "complete" and r.reason), None),
        }
        for save in found[-_UNFINISHED:]
    ]  # fmt: skip


def _named(save: JobSave) -> Data:
    record = save.records[0]
    return {
        "directory": record.directory, "step": save.step, "path": record.path, "nodes": list(save.nodes),
        "start_unix": save.start_unix, "end_unix": save.end_unix,
    }  # fmt: skip


def _stragglers(complete: Sequence[JobSave]) -> Data:
    shard_waits, shards_examined = waits_for_shards(complete)
    node_waits, nodes_examined = waits_for_nodes(complete)
    return {
        "shards_examined": shards_examined,
        "shards": [_straggler(s) for s in stragglers(shard_waits, shards_examined)],
        "nodes_examined": nodes_examined,
        "nodes": [_straggler(s) for s in stragglers(node_waits, nodes_examined)],
    }


def _straggler(straggler: Straggler) -> Data:
    return {"who": straggler.who, "saves": straggler.saves, "waited_seconds": straggler.waited_seconds}
