"""What a projection starts from: given numbers, measured ones, and what cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from ckpt_exporter.analysis.bench_result import BENCH_RUN
from ckpt_exporter.analysis.job_saves import job_saves
from ckpt_exporter.analysis.numbers import seconds_text, size_text
from ckpt_exporter.analysis.statistics import mean, median
from ckpt_exporter.errors import UsageError

if TYPE_CHECKING:
    from ckpt_exporter.analysis.job_saves import JobSave
    from ckpt_exporter.history.records import Measurements

EXAMPLE: Final = (
    "ckpt-exporter project --run-seconds=36000 --saves=20 --save-seconds=178 --to-save-seconds=94"
)

GIVEN: Final = "given numbers"
# Bytes that flow for less than this share of a save do not explain how long it takes.
_MOSTLY: Final = 0.5
_CACHED: Final = (
    "Bytes flowed during less than half of a save: into the page cache, it seems. The bandwidth taken for "
    "today is that of the whole save, and its write-bound part is not known."
)


@dataclass(frozen=True, slots=True)
class ProjectInputs:
    """Everything that can be said of a run and of what is to change; None is not said.

    Seconds, bytes, bytes per second. ``bubble_seconds`` is the training time that one save costs (not said:
    all of it), ``writing_bubble_seconds`` the part of it in which bytes flowed. ``flow_seconds`` is the time
    in which bytes were seen to flow where that is too little to be the write-bound part: into the page cache.
    ``roundings`` holds, by field, by how much a number may be off as it was typed.
    """

    source: str = GIVEN
    run_seconds: float | None = None
    saves: float | None = None
    save_seconds: float | None = None
    bubble_seconds: float | None = None
    writing_bubble_seconds: float | None = None
    write_seconds: float | None = None
    flow_seconds: float | None = None
    bytes: float | None = None
    written_bytes: float | None = None
    bandwidth: float | None = None
    interval_seconds: float | None = None
    interval_steps: float | None = None
    steps: float | None = None
    gpus: float | None = None
    nodes: float | None = None
    cluster_gpus: float | None = None
    mtbf_seconds: float | None = None
    restart_seconds: float | None = None
    to_save_seconds: float | None = None
    to_bandwidth: float | None = None
    to_bytes: float | None = None
    to_interval_seconds: float | None = None
    to_interval_steps: float | None = None
    to_gpus: float | None = None
    to_nodes: float | None = None
    blocking_seconds: float | None = None
    drag_ratio: float | None = None
    roundings: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def flag(name: str) -> str:
    """Return the flag that sets a field."""
    return "--" + name.replace("mtbf_seconds", "mtbf").replace("_", "-")


def completed(inputs: ProjectInputs) -> ProjectInputs:
    """Fill in what follows from what was given. Raises UsageError for what cannot be."""
    _require_some_save(inputs)
    filled = _with_counts(_with_save_seconds(inputs))
    _check(filled)
    return filled


def _require_some_save(given: ProjectInputs) -> None:
    if given.save_seconds is None and (_bytes(given) is None or given.bandwidth is None):
        raise UsageError(
            "project needs to know how long a save takes: write --save-seconds=178, "
            f"or --bytes and --bandwidth, or --history=FILE; for example {EXAMPLE}"
        )
    paired = (("to_bandwidth", "bandwidth"), ("to_nodes", "nodes"), ("to_gpus", "gpus"),
              ("drag_ratio", "blocking_seconds"))  # fmt: skip
    for name, needed in paired:
        if getattr(given, name) is not None and getattr(given, needed) is None:
            raise UsageError(f"{flag(name)} says nothing without {flag(needed)}: write both")
    if given.to_bandwidth is not None and given.to_nodes is not None:
        raise UsageError("--to-bandwidth and --to-nodes both change the bandwidth: write one of them")
    if given.to_bytes is not None and _bytes(given) is None:
        raise UsageError("--to-bytes says nothing without --bytes: write both")
    if given.to_interval_seconds is not None and given.to_interval_steps is not None:
        raise UsageError("--to-interval-seconds and --to-interval-steps say the same thing: write one")


def _bytes(given: ProjectInputs) -> float | None:
    return given.written_bytes if given.written_bytes is not None else given.bytes


def _with_save_seconds(given: ProjectInputs) -> ProjectInputs:
    total = _bytes(given)
    if given.save_seconds is not None or total is None or given.bandwidth is None:
        return given
    seconds = total / given.bandwidth
    note = (
        f"No --save-seconds was given: {size_text(total)} over the bandwidth is taken, "
        f"{seconds_text(seconds)}, with nothing but writing in it."
    )
    return replace(given, save_seconds=seconds, write_seconds=seconds, notes=(*given.notes, note))


def _with_counts(given: ProjectInputs) -> ProjectInputs:
    saves, run, interval = given.saves, given.run_seconds, given.interval_seconds
    if saves is None and given.steps is not None and given.interval_steps is not None:
        saves = given.steps / given.interval_steps
    if saves is None and run is not None and interval is not None:
        saves = run / interval
    if run is None and saves is not None and interval is not None:
        run = saves * interval
    notes = given.notes
    if run is None and saves is None and interval is not None:
        run, saves = 86_400.0, 86_400.0 / interval
        notes = (*notes, "No --run-seconds was given: times are those of one day.")
    if interval is None and run is not None and saves:
        interval = run / saves
    steps, every = given.steps, given.interval_steps
    if every is None and steps is not None and saves:
        every = steps / saves
    if steps is None and every is not None and saves is not None:
        steps = every * saves
    return replace(
        given, saves=saves, run_seconds=run, interval_seconds=interval, steps=steps, interval_steps=every,
        notes=notes,
    )  # fmt: skip


def _check(given: ProjectInputs) -> None:
    save = given.save_seconds or 0.0
    lost = save if given.bubble_seconds is None else given.bubble_seconds
    if given.write_seconds is not None and given.write_seconds > save * 1.000001:
        raise UsageError(
            f"--write-seconds={given.write_seconds:g} is longer than the save itself ({save:g} s): "
            "write the part of --save-seconds in which bytes flow"
        )
    if given.blocking_seconds is not None and given.blocking_seconds > save:
        raise UsageError(
            f"--blocking-seconds={given.blocking_seconds:g} is longer than the save ({save:g} s): "
            "write the part of it in which training stands still"
        )
    if given.run_seconds is None or given.saves is None:
        return
    total = given.saves * lost
    if total >= given.run_seconds:
        raise UsageError(
            f"{given.saves:g} saves that cost {lost:g} s each make {total:,.0f} s, and the run has only "
            f"--run-seconds={given.run_seconds:g}: nothing is left for training; write the wall-clock time "
            "of the whole run, saves included"
        )
    if given.steps is not None and given.interval_steps is not None:
        counted = given.steps / given.interval_steps
        if not 0.5 <= counted / given.saves <= 2:
            raise UsageError(
                f"{given.steps:g} steps with a save every {given.interval_steps:g} make {counted:g} saves, "
                f"not {given.saves:g}: leave one of --steps, --interval-steps and --saves out"
            )
    if given.to_interval_seconds is not None and given.to_interval_seconds <= lost:
        raise UsageError(
            f"--to-interval-seconds={given.to_interval_seconds:g} leaves no time to train between saves that "
            f"cost {lost:g} s: write the time from the start of one save to that of the next"
        )
    if given.to_interval_steps is not None and given.interval_steps is None:
        raise UsageError("--to-interval-steps says nothing without --interval-steps or --steps: write one")


# --- from measurements ----------------------------------------------------------------------------------


def measured_inputs(measurements: Measurements) -> ProjectInputs:
    """Return what complete saves with a known duration amount to. Raises UsageError where there are none."""
    saves = [s for s in job_saves(measurements.saves) if s.complete and s.duration_seconds is not None]
    if not saves:
        raise UsageError(
            f"{measurements.source} holds no complete save with a known duration in the window: "
            "choose a wider --since and --until, or give the numbers as flags"
        )
    durations = [s.duration_seconds for s in saves if s.duration_seconds is not None]
    bubbles = [s for s in saves if s.bubble_seconds is not None]
    active = [s.active_seconds for s in saves if s.active_seconds is not None]
    flow = min(mean(active), mean(durations)) if active else None
    writing = _mean_known([s.writing_bubble_seconds for s in bubbles])
    # What an asynchronous save slows is lost, too, and for as long as it writes.
    drag = mean([_known(s.drag_seconds) for s in bubbles]) if bubbles else 0.0
    # A burst that fits into the page cache flows at the speed of memory and then waits to be synced.
    cached = flow is not None and flow < _MOSTLY * mean(durations)
    flowing = mean(durations) if cached else flow
    interval = _interval_seconds(saves)
    observed = _observed_seconds(measurements)
    every = _interval_steps(saves)
    return ProjectInputs(
        source=measurements.source,
        run_seconds=observed or (interval * len(saves) if interval is not None else None),
        saves=float(len(saves)),
        save_seconds=mean(durations),
        bubble_seconds=mean([_known(s.bubble_seconds) for s in bubbles]) + drag if bubbles else None,
        writing_bubble_seconds=writing + drag if writing is not None else None,
        write_seconds=flow if flow is not None and not cached else None,
        flow_seconds=flow if cached else None,
        bytes=mean([float(s.bytes) for s in saves]),
        written_bytes=_mean_known([s.written_bytes for s in saves]),
        bandwidth=mean([float(s.bytes) for s in saves]) / flowing if flowing else None,
        interval_steps=every,
        gpus=_gpus(measurements, saves),
        notes=(
            *_notes(saves, bubbles, observed),
            *([_CACHED] if cached else []),
            *(
                [f"{seconds_text(drag)} of what a save costs is drag: training slowed, not stopped."]
                if drag
                else []
            ),
        ),
    )


def _known(value: float | None) -> float:
    return 0.0 if value is None else value


def _mean_known(values: list[float | None] | list[int | None]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return mean(known) if known else None


def _interval_seconds(saves: list[JobSave]) -> float | None:
    """Return the usual time between starts: the median, since a run may have been interrupted.

    None for the bursts of a bench, between which nothing is trained.
    """
    if any(record.run == BENCH_RUN for save in saves for record in save.records):
        return None
    starts = sorted(save.start_unix for save in saves)
    gaps = [b - a for a, b in pairwise(starts)]
    return median(gaps) if gaps else None


def _interval_steps(saves: list[JobSave]) -> float | None:
    steps = sorted({save.step for save in saves if save.step is not None})
    gaps = [float(b - a) for a, b in pairwise(steps)]
    return median(gaps) if gaps else None


def _observed_seconds(measurements: Measurements) -> float | None:
    """Return how long the job's GPUs were observed, on average over GPUs."""
    per_gpu: dict[tuple[str, str, int], float] = {}
    for record in measurements.gpu_time:
        key = (record.node, record.uuid, record.gpu)
        per_gpu[key] = per_gpu.get(key, 0.0) + record.observed_seconds
    return mean(list(per_gpu.values())) if per_gpu and any(per_gpu.values()) else None


def _gpus(measurements: Measurements, saves: list[JobSave]) -> float | None:
    seen = {(record.node, record.uuid, record.gpu) for record in measurements.gpu_time}
    counts = [save.gpus for save in saves if save.gpus is not None]
    return float(len(seen) or max(counts, default=0)) or None


def _notes(saves: list[JobSave], bubbles: list[JobSave], observed: float | None) -> tuple[str, ...]:
    notes = []
    directories = sorted({record.directory for save in saves for record in save.records})
    if len(directories) > 1:
        notes.append(
            f"Saves of several directories are mixed ({', '.join(directories)}): choose one with --dir."
        )
    if not bubbles:
        notes.append(
            "No save has a bubble figure: every second of a save is counted as lost. Saves that go on beside "
            "training cost less; measure with GPUs, or give --bubble-seconds."
        )
    elif len(bubbles) < len(saves):
        notes.append(
            f"{len(bubbles)} of {len(saves)} saves have a bubble figure; "
            "the others are taken to cost the same."
        )
    if observed is None and _interval_seconds(saves) is not None:
        notes.append(
            "No GPU was observed: the run's time is the usual time between saves times their number."
        )
    return tuple(notes)
