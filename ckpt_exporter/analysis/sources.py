"""Where measurements come from: history files of one or several nodes, or a Prometheus server."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ckpt_exporter.analysis.windows import clipped, part_window
from ckpt_exporter.errors import CkptExporterError
from ckpt_exporter.history.gpu_time import HOUR_SECONDS
from ckpt_exporter.history.reading import Kept, read_history
from ckpt_exporter.history.records import GpuTimeRecord, LoadRecord, Measurements, SaveRecord, StallRecord
from ckpt_exporter.logs import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_Ended = TypeVar("_Ended", LoadRecord, StallRecord)


def read_measurements(
    *,
    history: Sequence[str] = (),
    prometheus: str | None = None,
    since: float | None = None,
    until: float | None = None,
    directory: str | None = None,
    run: str | None = None,
) -> Measurements:
    """Read what was measured in a window (Unix seconds; None is open), of one directory, of one run.

    ``run`` is a run's name or its scheduler's id. A save belongs to the window in which it ended. GPU time is
    kept by the hour: of an hour that the window cuts, not more is taken than fits into the window. Without a
    ``since`` or ``until`` the window is as long as the records are, of one directory or run among others as
    long as its saves and the training before them. Loads are those that ended between the given bounds: a
    run's first load comes before its first save. Stalls of a part of the saves are those of the GPUs that
    these stopped, within the window. A node that only loads has no saves, which is no failure. Raises
    CkptExporterError where a source cannot be read or holds neither saves nor loads that are asked for.
    """
    if prometheus is not None:
        from ckpt_exporter.analysis.prometheus import read_prometheus  # noqa: PLC0415 (files need no HTTP)

        kept, source = read_prometheus(prometheus, since=since, until=until), one_line(prometheus)
    else:
        kept, source = _read_files(history, since, until), ", ".join(map(one_line, history))
    saves = tuple(
        save for save in kept.saves
        if directory in (None, save.directory) and run in (None, save.run, save.run_id)
    )  # fmt: skip
    loads = _loads(kept, saves, directory, run)
    if not saves and not loads:
        raise CkptExporterError(_nothing(source, kept, directory, run))
    begin, end = _window(saves or loads, kept.gpu_time, since, until)
    if saves and len(saves) < len(kept.saves):
        part = part_window(saves, begin, end)
        begin, end = part[0] if since is None else begin, part[1] if until is None else end
    hours = tuple(inside for hour in kept.gpu_time if (inside := clipped(hour, begin, end)) is not None)
    chosen = directory is not None or run is not None
    stalls = _of_stopped(kept.stalls, saves, begin, end) if chosen else kept.stalls
    return Measurements(source, begin, end, saves, hours, kept.notes, loads, stalls)


def _loads(
    kept: Kept, saves: Sequence[SaveRecord], directory: str | None, run: str | None
) -> tuple[LoadRecord, ...]:
    """Return the loads of one directory and one run. A load knows its run's name, and no id."""
    runs = {save.run for save in saves if save.run is not None}
    # Of several runs of one name it cannot be told which of them loaded.
    runs -= {save.run for save in kept.saves if save.run_id != run}
    return tuple(
        load for load in kept.loads
        if directory in (None, load.directory) and (run in (None, load.run) or load.run in runs)
    )  # fmt: skip


def _of_stopped(
    stalls: Iterable[StallRecord], saves: Iterable[SaveRecord], begin: float, end: float
) -> tuple[StallRecord, ...]:
    stopped = {(save.node, gpu) for save in saves for gpu in save.bubble_gpu_seconds}
    return tuple(s for s in stalls if (s.node, s.gpu) in stopped and begin <= s.end_unix <= end)


def _read_files(paths: Sequence[str], since: float | None, until: float | None) -> Kept:
    low, high = 0.0 if since is None else since, float("inf") if until is None else until
    found = [read_history(path, since_unix=low, until_unix=high) for path in paths]
    saves = [save for kept in found for save in kept.saves]
    hours = [hour for kept in found for hour in kept.gpu_time]
    notes = tuple(note for kept in found for note in kept.notes)
    # A node without saves is left out of every sum: most likely its file is a copy without its log.
    notes += tuple(
        f"{one_line(path)}: no save in the window" for path, kept in zip(paths, found, strict=True)
        if not kept.saves and saves
    )  # fmt: skip
    unique = {(save.node, save.directory, save.path, save.start_unix, save.end_unix): save for save in saves}
    if len(unique) < len(saves):
        notes += (f"{len(saves) - len(unique)} saves are in more than one file and count once",)
    return Kept(
        saves=tuple(sorted(unique.values(), key=lambda save: save.end_unix)),
        gpu_time=tuple({(hour.node, hour.uuid, hour.hour_unix): hour for hour in hours}.values()),
        first_unix=min((k.first_unix for k in found if k.first_unix is not None), default=None),
        last_unix=max((k.last_unix for k in found if k.last_unix is not None), default=None),
        notes=notes,
        loads=_once(load for kept in found for load in kept.loads),
        stalls=_once(stall for kept in found for stall in kept.stalls),
    )


def _once(records: Iterable[_Ended]) -> tuple[_Ended, ...]:
    """Return records in the order of their ends; one that is in several files counts once."""
    return tuple(sorted(dict.fromkeys(records), key=lambda record: record.end_unix))


def _nothing(source: str, kept: Kept, directory: str | None, run: str | None) -> str:
    if kept.loads and not kept.saves:
        chosen = " and ".join(
            f"the {kind} {one_line(name)}" for kind, name in (("directory", directory), ("run", run)) if name
        )
        loaded = {load.directory if directory is not None else str(load.run) for load in kept.loads}
        return f"{source}: no save in the window, and no load of {chosen}; loads are of {_list(loaded)}"
    if kept.first_unix is None or kept.last_unix is None:
        return f"{source}: no save has been kept yet"
    if kept.saves:
        names = {save.directory for save in kept.saves}
        runs = {name for save in kept.saves for name in (save.run, save.run_id) if name}
        if directory is not None and directory not in names:
            return f"{source}: no save of the directory {one_line(directory)}; there are {_list(names)}"
        if run is not None and run not in runs:
            return f"{source}: no save of the run {one_line(run)}; there are {_list(runs)}"
        return f"{source}: no save of both that directory and that run"
    from ckpt_exporter.analysis.numbers import time_text  # noqa: PLC0415 (only this message needs it)

    first, last = time_text(kept.first_unix), time_text(kept.last_unix)
    return f"{source}: no save ended in that window; they ended from {first} to {last}"


def _list(names: Iterable[str]) -> str:
    listed = sorted(map(one_line, names))
    return ", ".join(listed[:10]) + (" ..." if len(listed) > 10 else "") if listed else "none"


def _window(
    records: Sequence[SaveRecord] | Sequence[LoadRecord],
    hours: Sequence[GpuTimeRecord],
    since: float | None,
    until: float | None,
) -> tuple[float, float]:
    """Return the window; where a bound is not given, that of the records and of the GPU time."""
    observed: dict[int, float] = {}
    for hour in hours:
        seconds = min(float(HOUR_SECONDS), hour.observed_seconds)
        observed[hour.hour_unix] = max(observed.get(hour.hour_unix, 0.0), seconds)
    begin, end = min(record.start_unix for record in records), max(record.end_unix for record in records)
    if observed:
        first, last = min(observed), max(observed)
        if first == last:
            # Where in its only hour the observed time lies is not kept: it is taken to end with a save.
            begin = min(begin, max(float(first), end - observed[first]))
            end = max(end, begin + observed[last])
        else:
            # The first hour was observed to its end and the last from its beginning.
            begin = min(begin, first + HOUR_SECONDS - observed[first])
            end = max(end, last + observed[last])
    return begin if since is None else since, end if until is None else until
