"""Which measurements are meant by ``FILE?dir=llama&since=7d``: where they are, and which saves and loads."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from ckpt_exporter.analysis.bench_result import bench_measurements, is_bench_result, read_bench_result
from ckpt_exporter.analysis.windows import clipped, of_stopped_gpus, part_window
from ckpt_exporter.errors import CkptExporterError, UsageError
from ckpt_exporter.logs import one_line

if TYPE_CHECKING:
    from ckpt_exporter.history.records import LoadRecord, Measurements, SaveRecord

KEYS: Final = ("dir", "since", "until", "run", "mountpoint", "transport", "node", "layout")
_AGO: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhd])")
_UNIT_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_YEAR_3000_UNIX: Final = 32_503_680_000.0


@dataclass(frozen=True, slots=True)
class Source:
    """Files or a Prometheus server, and which records of it; None selects all. Times are Unix seconds."""

    text: str
    files: tuple[str, ...] = ()
    prometheus: str | None = None
    since_unix: float | None = None
    until_unix: float | None = None
    directory: str | None = None
    run: str | None = None
    mountpoint: str | None = None
    transport: str | None = None
    node: str | None = None
    layout: str | None = None


def moment(text: str, now_unix: float) -> float:
    """Read ``7d`` (ago), Unix seconds, or ISO 8601 (UTC unless it says otherwise). Raises UsageError."""
    if ago := _AGO.fullmatch(text):
        return now_unix - float(ago[1]) * _UNIT_SECONDS[ago[2]]
    try:
        unix = float(text)
        if 0 <= unix < _YEAR_3000_UNIX:
            return unix
    except ValueError:
        pass
    try:
        # Python before 3.11 knows no Z.
        read = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)
    except ValueError:
        raise UsageError(
            f"'{one_line(text)}' is no moment: write 7d (ago), 2026-11-30T12:00:00Z or Unix seconds"
        ) from None
    return (read if read.tzinfo is not None else read.replace(tzinfo=timezone.utc)).timestamp()


def parse_source(text: str, now_unix: float) -> Source:
    """Read ``FILE[,FILE...][?key=value&...]`` or a server's URL with the same keys. Raises UsageError.

    A file whose own name holds ``?`` or ``,`` is taken as it is where it exists.
    """
    if os.path.exists(text):
        return Source(text, files=(text,))
    place, _, query = text.partition("?")
    if not place:
        raise UsageError(f"'{one_line(text)}' names no file: write FILE, or FILE?dir=NAME&since=7d")
    chosen = _chosen(query)
    if place.startswith(("http://", "https://")):
        source = Source(text, prometheus=place)
    else:
        source = Source(
            text, files=(place,) if os.path.exists(place) else tuple(filter(None, place.split(",")))
        )
    since, until = (moment(chosen[k], now_unix) if k in chosen else None for k in ("since", "until"))
    if since is not None and until is not None and since >= until:
        raise UsageError(f"'{one_line(text)}': since is not before until")
    return replace(
        source, since_unix=since, until_unix=until, directory=chosen.get("dir"), run=chosen.get("run"),
        mountpoint=chosen.get("mountpoint"), transport=chosen.get("transport"), node=chosen.get("node"),
        layout=chosen.get("layout"),
    )  # fmt: skip


def _chosen(query: str) -> dict[str, str]:
    chosen = {}
    for part in filter(None, query.split("&")):
        key, equals, value = part.partition("=")
        if key not in KEYS or not equals or not value:
            raise UsageError(
                f"'{one_line(part)}' selects nothing: write KEY=VALUE with one of {', '.join(KEYS)}"
            )
        chosen[key] = unquote(value)
    return chosen


def read_source(source: Source) -> Measurements:
    """Read the measurements that are meant. Raises UsageError and CkptExporterError."""
    for file in source.files:
        if not os.path.exists(file):
            raise CkptExporterError(
                f"no such file: {one_line(file)}; write a history file (run --history.path=FILE) "
                "or a result of bench --output=FILE"
            )
    benches = [file for file in source.files if is_bench_result(file)]
    if benches and len(benches) != len(source.files):
        raise UsageError(f"'{one_line(source.text)}' mixes history files and bench results: name one kind")
    measured = _read_benches(benches) if benches else _read_histories(source)
    return _selected(measured, source)


def _read_benches(files: list[str]) -> Measurements:
    found = [bench_measurements(read_bench_result(file)) for file in files]
    saves = sorted((save for one in found for save in one.saves), key=lambda s: s.end_unix)
    loads = sorted((load for one in found for load in one.loads), key=lambda load: load.end_unix)
    return replace(
        found[0],
        source=", ".join(one.source for one in found),
        since_unix=min(one.since_unix for one in found),
        until_unix=max(one.until_unix for one in found),
        saves=tuple(saves),
        loads=tuple(loads),
    )


def _read_histories(source: Source) -> Measurements:
    from ckpt_exporter.analysis.sources import (  # noqa: PLC0415 (loads SQLite, which given numbers do not need)
        read_measurements,
    )

    return read_measurements(
        history=list(source.files),
        prometheus=source.prometheus,
        since=source.since_unix,
        until=source.until_unix,
        directory=source.directory,
        run=source.run,
    )


def _selected(measured: Measurements, source: Source) -> Measurements:
    """Keep the saves and loads that are meant, whatever of that the reader did already."""
    saves = tuple(
        save for save in measured.saves
        if _is_meant(save, source) and source.run in (None, save.run, save.run_id)
    )  # fmt: skip
    # A run's loads were chosen by the reader, who knows of ids as well.
    loads = tuple(load for load in measured.loads if _is_meant(load, source))
    if not saves and not loads:
        _refuse_what_none_has(measured, source)
    gpu_time = tuple(g for g in measured.gpu_time if source.node in (None, g.node))
    measured = replace(measured, gpu_time=gpu_time, loads=loads)
    if saves and {source.mountpoint, source.transport, source.layout} != {None}:
        same_nodes = [s for s in measured.saves if source.node in (None, s.node)]
        if len(saves) < len(same_nodes):
            measured = _of_part(measured, saves, source)
    if {source.directory, source.run, source.mountpoint, source.transport, source.layout} != {None}:
        measured = replace(measured, gpu_time=of_stopped_gpus(measured.gpu_time, saves))
    return replace(measured, saves=saves)


def _is_meant(record: SaveRecord | LoadRecord, source: Source) -> bool:
    since, until = source.since_unix, source.until_unix
    return (
        (since is None or record.end_unix >= since)
        and (until is None or record.end_unix <= until)
        and source.directory in (None, record.directory)
        and source.mountpoint in (None, record.mountpoint)
        and source.transport in (None, record.transport)
        and source.node in (None, record.node)
        and source.layout in (None, record.layout)
    )


def _refuse_what_none_has(measured: Measurements, source: Source) -> None:
    """Refuse a mistyped mount or node: without saves a gate would only lack data, which stops no pipeline."""
    records = (*measured.saves, *measured.loads)
    for key in ("mountpoint", "transport", "node", "layout"):
        asked = getattr(source, key)
        known = sorted({str(getattr(record, key)) for record in records} - {"None"})
        if asked is not None and asked not in known:
            kind = "save" if measured.saves else "load"
            there = ", ".join(map(one_line, known)) or "none"
            raise CkptExporterError(
                f"{one_line(source.text)}: no {kind} has {key}={one_line(asked)}; there are {there}"
            )


def _of_part(measured: Measurements, saves: tuple[SaveRecord, ...], source: Source) -> Measurements:
    """Leave out the time in which other saves than these were made, where no bound was given."""
    begin, end = part_window(saves, measured.since_unix, measured.until_unix)
    begin = begin if source.since_unix is None else measured.since_unix
    end = end if source.until_unix is None else measured.until_unix
    hours = (clipped(hour, begin, end) for hour in measured.gpu_time)
    return replace(
        measured, since_unix=begin, until_unix=end, gpu_time=tuple(hour for hour in hours if hour is not None)
    )
