"""The status page: what the exporter knows now, for a person without a dashboard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_exporter import __version__
from ckpt_exporter.web.pages.gpus import bubble_totals_table, gpus_section, last_bubble_table
from ckpt_exporter.web.pages.markup import Html, badge, escaped, facts_table, grid_table
from ckpt_exporter.web.pages.style import STYLE
from ckpt_exporter.web.pages.units import (
    UNKNOWN,
    bandwidth_text,
    count_text,
    duration_text,
    ratio_text,
    size_text,
    time_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckpt_exporter.model import (
        DirectorySnapshot,
        OpenSave,
        Save,
        Snapshot,
        StorageStatus,
        WatchStatus,
        Writers,
    )

_Rows = list[tuple[str, str]]


class StatusPage:
    """Renders the page for the snapshot of the moment.

    ``started`` is the start of the program on the snapshot's own clock, in seconds.
    """

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        *,
        started: float,
        telemetry_path: str = "/metrics",
        version: str = __version__,
    ) -> None:
        self._snapshot = snapshot
        self._started = started
        self._telemetry_path = telemetry_path
        self._version = version

    def __call__(self) -> str:
        """Return the page as one self-contained HTML document."""
        snapshot = self._snapshot()
        sections = [_notices(snapshot), _overview(snapshot)]
        sections += [_directory(index, entry, snapshot) for index, entry in enumerate(snapshot.directories)]
        sections += [gpus_section(snapshot), _watching(snapshot)]
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>ckpt-exporter</title><style>{STYLE}</style></head>\n"
            f"<body>{self._header(snapshot)}<main>{''.join(sections)}</main></body></html>\n"
        )

    def _header(self, snapshot: Snapshot) -> str:
        up = duration_text(max(0.0, snapshot.t - self._started))
        now = time_text(_unix(snapshot, snapshot.t))
        return (
            "<header><h1>ckpt-exporter</h1>"
            f"<p>version {escaped(self._version)}, up {up}, as of {now}</p>"
            f'<nav aria-label="Pages"><a href="{escaped(self._telemetry_path)}">Metrics</a>'
            '<a href="/-/healthy">Health</a><a href="/-/ready">Readiness</a></nav></header>\n'
        )


def _unix(snapshot: Snapshot, t: float) -> float:
    return t + snapshot.unix_minus_t


def _ago(snapshot: Snapshot, t: float) -> str:
    return f"{duration_text(max(0.0, snapshot.t - t))} ago"


def _notices(snapshot: Snapshot) -> str:
    notices = [
        f"The source {name} has stopped; what it reports is old."
        for name, healthy in snapshot.sources_healthy.items()
        if not healthy
    ]
    if not snapshot.config.successful:
        notices.append("The last reload of the configuration failed; the one before it is in force.")
    if not notices:
        return ""
    lines = "".join(f"<p>{escaped(notice)}</p>" for notice in notices)
    return f'<section class="notice" role="alert">{lines}</section>\n'


# --- overview -------------------------------------------------------------------------------------------


def _overview(snapshot: Snapshot) -> str:
    watches = {watch.directory: watch for watch in snapshot.watches}
    columns = ("Directory", "Watch", "Now", "Last complete save", "Duration", "Size", "Sustained", "Saves")
    rows = [_overview_row(entry, watches.get(entry.name), snapshot) for entry in snapshot.directories]
    return f"<section>{grid_table('Directories', columns, rows)}</section>\n"


def _overview_row(entry: DirectorySnapshot, watch: WatchStatus | None, snapshot: Snapshot) -> list[str]:
    save = entry.last_save
    now = _now_badge(entry.open_saves)
    saves = count_text(sum(entry.saves.values()))
    if save is None:
        return [entry.name, _watch_badge(watch), now, "none seen yet", "", "", "", saves]
    return [
        entry.name,
        _watch_badge(watch),
        now,
        _ago(snapshot, save.end),
        duration_text(save.duration_seconds),
        size_text(save.bytes),
        bandwidth_text(save.sustained_bandwidth),
        saves,
    ]


def _watch_badge(watch: WatchStatus | None) -> Html:
    if watch is None or not watch.up:
        return badge("bad", "not watched")
    return badge("good", "watched" if watch.backend == "inotify" else f"watched by {watch.backend}")


def _now_badge(open_saves: tuple[OpenSave, ...]) -> Html:
    if any(save.stalled for save in open_saves):
        return badge("bad", "stalled")
    if open_saves:
        return badge("busy", "saving" if len(open_saves) == 1 else f"{len(open_saves)} saves")
    return badge("plain", "idle")


# --- one directory --------------------------------------------------------------------------------------


def _directory(index: int, entry: DirectorySnapshot, snapshot: Snapshot) -> str:
    watch = next((status for status in snapshot.watches if status.directory == entry.name), None)
    storage = next((status for status in snapshot.storage if status.directory == entry.name), None)
    tables = [
        facts_table("Last complete save", _last_save_rows(entry.last_save, snapshot)),
        last_bubble_table(entry, snapshot),
        facts_table("Totals since start", _total_rows(entry)),
        bubble_totals_table(entry, snapshot),
        facts_table("Storage", _storage_rows(storage)),
        facts_table("Watch and run", _watch_rows(watch) + _run_rows(entry.run)),
    ]
    return (
        f'<section aria-labelledby="directory-{index}"><div class="title">'
        f'<h2 id="directory-{index}">{escaped(entry.name)}</h2>'
        f"{_watch_badge(watch)}{_now_badge(entry.open_saves)}"
        f'<p class="path">{escaped(entry.path)}</p></div>{_open_saves(entry.open_saves, snapshot)}'
        f'<div class="columns">{"".join(tables)}</div></section>\n'
    )


def _open_saves(open_saves: tuple[OpenSave, ...], snapshot: Snapshot) -> str:
    if not open_saves:
        return ""
    columns = ("Step", "State", "Written", "Files", "Age", "Last byte", "Layout", "Path")
    return grid_table("Open saves", columns, [_open_save_row(save, snapshot) for save in open_saves])


def _open_save_row(save: OpenSave, snapshot: Snapshot) -> list[str]:
    return [
        _step_text(save.step),
        badge("bad", "stalled") if save.stalled else badge("busy", "writing"),
        size_text(save.bytes),
        f"{count_text(save.files)} ({count_text(save.open_files)} open)",
        duration_text(max(0.0, snapshot.t - save.start)),
        _ago(snapshot, save.last_byte),
        save.layout,
        save.path,
    ]


def _last_save_rows(save: Save | None, snapshot: Snapshot) -> _Rows:
    if save is None:
        return [("Ended", "none seen yet")]
    return [
        ("Ended", f"{time_text(_unix(snapshot, save.end))} ({_ago(snapshot, save.end)})"),
        ("Result", badge("good" if save.result == "complete" else "bad", save.result)),
        ("Step", _step_text(save.step)),
        ("Duration", duration_text(save.duration_seconds)),
        ("Size", f"{size_text(save.bytes)} in {_plural(save.files, 'file')}"),
        ("Average bandwidth", bandwidth_text(save.average_bandwidth)),
        ("Sustained bandwidth", bandwidth_text(save.sustained_bandwidth)),
        ("Peak bandwidth", bandwidth_text(save.peak_bandwidth)),
        ("Layout", save.layout),
    ]


def _total_rows(entry: DirectorySnapshot) -> _Rows:
    return [
        *((f"Saves {result}", count_text(count)) for result, count in entry.saves.items()),
        ("Saved", f"{size_text(entry.save_bytes)} in {_plural(entry.save_files, 'file')}"),
        ("Seen written", f"{size_text(entry.written_bytes)} in {duration_text(entry.write_active_seconds)}"),
        ("Retained now", _retained_text(entry)),
        ("Deleted", count_text(entry.deleted_checkpoints)),
    ]


def _retained_text(entry: DirectorySnapshot) -> str:
    if entry.retained_checkpoints is None:
        return UNKNOWN
    return f"{size_text(entry.retained_bytes)} in {_plural(entry.retained_checkpoints, 'checkpoint')}"


def _storage_rows(storage: StorageStatus | None) -> _Rows:
    if storage is None:
        return [("Mount", UNKNOWN), ("Free", UNKNOWN)]
    mount = storage.mount
    identity = [("Mount", UNKNOWN)] if mount is None else [
        ("Mount", mount.mountpoint),
        ("Device", mount.device or UNKNOWN),
        ("File system", mount.fstype or UNKNOWN),
        ("Transport", mount.transport or UNKNOWN),
    ]  # fmt: skip
    return [
        *identity,
        ("Free", _free_text(storage)),
        ("Written to device", size_text(storage.device_written_bytes)),
        ("Still in page cache", size_text(storage.dirty_bytes)),
    ]


def _free_text(storage: StorageStatus) -> str:
    if storage.available_bytes is None or not storage.size_bytes:
        return size_text(storage.available_bytes)
    share = ratio_text(storage.available_bytes / storage.size_bytes)
    return f"{size_text(storage.available_bytes)} of {size_text(storage.size_bytes)} ({share})"


def _watch_rows(watch: WatchStatus | None) -> _Rows:
    if watch is None:
        return [("Directories watched", UNKNOWN)]
    rows = [
        ("Backend", watch.backend),
        ("Directories watched", count_text(watch.watched_directories)),
        ("Covered by inotify", ratio_text(watch.coverage)),
    ]
    if watch.limit_reached:
        rows.append(("Limit", badge("bad", "inotify watch limit reached")))
    return rows


def _run_rows(run: Writers | None) -> _Rows:
    if run is None:
        return [("Run", UNKNOWN)]
    job = f"{run.scheduler or UNKNOWN}, {run.run_id}" if run.run_id else run.scheduler or UNKNOWN
    return [("Run", run.run or UNKNOWN), ("Scheduler", job)]


def _step_text(step: int | None) -> str:
    return UNKNOWN if step is None else str(step)


def _plural(count: int, noun: str) -> str:
    return f"{count_text(count)} {noun}" if count == 1 else f"{count_text(count)} {noun}s"


# --- the exporter ---------------------------------------------------------------------------------------


def _watching(snapshot: Snapshot) -> str:
    counters = snapshot.counters
    rescans = ", ".join(
        f"{reason} {count_text(count)}" for reason, count in counters.rescans.items() if count
    )
    config = snapshot.config
    loaded = time_text(config.success_unix) if config.success_unix > 0 else UNKNOWN
    rows = [
        ("File events taken in", count_text(sum(counters.events.values()))),
        ("File events dropped", count_text(counters.dropped)),
        ("Queue overflows", count_text(counters.overflows)),
        ("Rescans", rescans or "none"),
        ("Configuration loaded", loaded),
    ]
    return f'<section><div class="columns">{facts_table("Exporter", rows)}</div></section>\n'
