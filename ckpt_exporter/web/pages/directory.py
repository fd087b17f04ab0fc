"""The part of the status page about one directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_exporter.web.pages.drawing import timeline_figure
from ckpt_exporter.web.pages.expected import Expected, expected_of
from ckpt_exporter.web.pages.gpus import (
    LOW_QUALITY,
    SIMULATED,
    any_simulated,
    bubble_text,
    bubble_totals_table,
    cost_of,
    gpu_seconds_of,
    gpus_text,
    last_bubble_table,
)
from ckpt_exporter.web.pages.health import watch_badge
from ckpt_exporter.web.pages.markup import (
    Html,
    badge,
    escaped,
    facts_table,
    foreign,
)
from ckpt_exporter.web.pages.saves import (
    ago,
    elsewhere_figure,
    elsewhere_totals,
    may_still_come,
    plural,
    recent_saves,
    saves_elsewhere,
    step_words,
)
from ckpt_exporter.web.pages.units import (
    SHOWN_OPEN_SAVES,
    UNKNOWN,
    bandwidth_text,
    clock_text,
    count_text,
    duration_text,
    gpu_seconds_text,
    ratio_text,
    share_text,
    size_text,
    time_text,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckpt_exporter.model import (
        DirectorySnapshot,
        Load,
        OpenSave,
        Save,
        Snapshot,
        StorageStatus,
        WatchStatus,
        Writers,
    )

_Rows = list[tuple[str, str]]


def directory_section(index: int, entry: DirectorySnapshot, snapshot: Snapshot) -> str:
    """Return all that is known of one directory."""
    watch = next((status for status in snapshot.watches if status.directory == entry.name), None)
    simulated = any_simulated(snapshot)
    parts = [
        _figures(entry, snapshot),
        *(_open_save(save, entry, snapshot) for save in entry.open_saves[:SHOWN_OPEN_SAVES]),
        _not_shown(len(entry.open_saves) - SHOWN_OPEN_SAVES),
        timeline_figure(index, entry, snapshot, simulated=simulated),
        recent_saves(index, entry, snapshot),
        saves_elsewhere(index, entry, snapshot),
        _more(index, entry, watch, snapshot),
    ]
    return (
        f'<section id="directory-{index}" aria-labelledby="directory-{index}-title"><div class="title">'
        f'<h2 id="directory-{index}-title">{foreign(entry.name)}</h2>'
        f"{watch_badge(watch)}{now_badge(entry.open_saves)}"
        f'<p class="path">{foreign(entry.path)}</p></div>{"".join(parts)}</section>\n'
    )


def _not_shown(count: int) -> str:
    return f"<p>{escaped(plural(count, 'more open save'))}</p>" if count > 0 else ""


def now_badge(open_saves: tuple[OpenSave, ...]) -> Html:
    """Return what a directory does now."""
    if any(save.stalled for save in open_saves):
        return badge("bad", "stalled")
    if open_saves:
        return badge("busy", "saving" if len(open_saves) == 1 else f"{len(open_saves)} saves")
    return badge("plain", "idle")


# --- figures --------------------------------------------------------------------------------------------


def _figures(entry: DirectorySnapshot, snapshot: Snapshot) -> str:
    figures = [_share_figure(entry, snapshot)]
    save = entry.last_save
    if save is not None:
        figures += [
            ("Last complete save", f"{ago(snapshot, save.end)}", step_words(save.step)),
            ("Its duration", duration_text(save.duration_seconds), _size_of(save)),
            (
                "Sustained bandwidth",
                bandwidth_text(save.sustained_bandwidth),
                f"average {bandwidth_text(save.average_bandwidth)}",
            ),
            _bubble_figure(entry, snapshot),
        ]
    figures += elsewhere_figure(entry, snapshot)
    figures.append(_saves_figure(entry))
    items = "".join(
        f'<div><dt>{escaped(name)}</dt><dd class="value">{escaped(value)}</dd>'
        f'<dd class="more">{escaped(more)}</dd></div>'
        for name, value, more in figures
    )
    return f'<dl class="figures">{items}</dl>'


def _share_figure(entry: DirectorySnapshot, snapshot: Snapshot) -> tuple[str, str, str]:
    name = "Bubble share since start"
    cost = cost_of(entry, snapshot)
    if snapshot.gpu_backend is None:
        return name, UNKNOWN, "GPUs are not measured here"
    if cost is None or cost.share is None:
        return name, UNKNOWN, "no save has been measured on a GPU yet"
    kind = f"{SIMULATED} " if any_simulated(snapshot) else ""
    quality = f", {LOW_QUALITY}" if cost.low_quality else ""
    lost = gpu_seconds_text(cost.lost).removesuffix(" GPU-s")
    return (
        name,
        share_text(cost.share),
        f"{lost} of {gpu_seconds_text(cost.observed)} on {gpus_text(cost.gpus, kind)}{quality}",
    )


def _bubble_figure(entry: DirectorySnapshot, snapshot: Snapshot) -> tuple[str, str, str]:
    name, bubble, save = "Its bubble", entry.last_bubble, entry.last_save
    if bubble is None and save is not None and may_still_come(save, snapshot):
        return name, "not known yet", "comes when its dip is over"
    if bubble is None or bubble.seconds is None:
        return name, UNKNOWN, bubble_text(bubble).removeprefix(UNKNOWN).strip(" ()")
    quality = f", {LOW_QUALITY}" if bubble.quality == "low" else ""
    return name, duration_text(bubble.seconds), f"{gpu_seconds_of(bubble)}{quality}"


def _saves_figure(entry: DirectorySnapshot) -> tuple[str, str, str]:
    others = [f"{count_text(n)} {result}" for result, n in entry.saves.items() if result != "complete"]
    return "Complete saves", count_text(entry.saves.get("complete")), ", ".join(others)


def _size_of(save: Save) -> str:
    return f"{size_text(save.bytes)} in {plural(save.files, 'file')}"


# --- open saves -----------------------------------------------------------------------------------------


def _open_save(save: OpenSave, entry: DirectorySnapshot, snapshot: Snapshot) -> str:
    expected = expected_of(save, entry)
    state = badge("busy", "writing") if save.open_files else badge("busy", "all files closed")
    state = badge("bad", "stalled") if save.stalled else state
    files = f"{plural(save.files, 'file')}, {count_text(save.open_files)} open"
    details = f"{files}; last byte {ago(snapshot, save.last_byte)}; layout {save.layout}"
    body = f"<p>{escaped(_written(save, expected))}</p><p>{escaped(details)}</p>"
    kind = "save-open stalled" if save.stalled else "save-open"
    return (
        f'<div class="{kind}"><h3>{escaped(step_words(save.step).capitalize())}{state}</h3>'
        f"{_progress(save, expected)}<p>{_when(save, expected, snapshot)}</p>{body}"
        f'<p class="path">{foreign(save.path)}</p></div>'
    )


def _progress(save: OpenSave, expected: Expected | None) -> str:
    """Draw a bar only while the end of it is known."""
    if expected is None or not 0 < save.bytes <= expected.size_bytes:
        return ""
    share = save.bytes / expected.size_bytes
    return f'<progress max="1" value="{share:.3f}" aria-label="Bytes written, of those expected"></progress>'


def _written(save: OpenSave, expected: Expected | None) -> str:
    if expected is None:
        return f"{size_text(save.bytes)} written; no earlier save of this run tells how much is to come"
    if save.bytes > expected.size_bytes:
        return f"{size_text(save.bytes)} written, more than the {size_text(expected.size_bytes)} expected"
    share = ratio_text(save.bytes / expected.size_bytes)
    return f"{size_text(save.bytes)} of {size_text(expected.size_bytes)} expected ({share})"


def _when(save: OpenSave, expected: Expected | None, snapshot: Snapshot) -> Html:
    if not save.open_files:
        written = duration_text(max(0.0, save.last_byte - save.start))
        return Html(f"Last byte {written} after its start; waiting for its commit, or quiet if it needs none")
    begun = f"Saving for {duration_text(max(0.0, snapshot.t - save.start))}"
    if expected is None:
        return Html(f"{begun}, end unknown")
    at = f"at {clock_text(expected.end + snapshot.unix_minus_t)} UTC"
    left = expected.end - snapshot.t
    why = f"as the last {plural(expected.saves, 'save')}" if expected.saves > 1 else "as the save before"
    if left >= 0:
        soon = duration_text(left) if left >= 1 else "less than a second"
        return Html(f"{begun}, expected to end in <strong>{soon}</strong> {at}, {why}")
    return Html(f"{begun}, <strong>{duration_text(-left)} longer</strong> than expected, {why}")


# --- more -----------------------------------------------------------------------------------------------


def _more(index: int, entry: DirectorySnapshot, watch: WatchStatus | None, snapshot: Snapshot) -> str:
    storage = next((status for status in snapshot.storage if status.directory == entry.name), None)
    tables = [
        facts_table("Last complete save", _last_save_rows(entry.last_save, snapshot)),
        last_bubble_table(entry, snapshot),
        facts_table("Totals since start", _total_rows(entry, snapshot)),
        bubble_totals_table(entry, snapshot),
        facts_table("Storage", _storage_rows(storage)),
        facts_table("Watch and run", _watch_rows(watch) + _run_rows(entry.run)),
    ]
    return (
        f'<details id="directory-{index}-more"><summary>Storage, run, phases of the bubble, totals</summary>'
        f'<div class="columns">{"".join(tables)}</div></details>'
    )


def _last_save_rows(save: Save | None, snapshot: Snapshot) -> _Rows:
    if save is None:
        return [("Ended", "none seen yet")]
    notes = ", ".join(note.replace("_", " ") for note in save.notes)
    return [
        ("Ended", f"{time_text(save.end + snapshot.unix_minus_t)} ({ago(snapshot, save.end)})"),
        ("Result", badge("good" if save.result == "complete" else "bad", save.result)),
        ("Step", UNKNOWN if save.step is None else str(save.step)),
        ("Duration", duration_text(save.duration_seconds)),
        ("Size", _size_of(save)),
        ("Average bandwidth", bandwidth_text(save.average_bandwidth)),
        ("Sustained bandwidth", bandwidth_text(save.sustained_bandwidth)),
        ("Peak bandwidth", bandwidth_text(save.peak_bandwidth)),
        ("Layout", save.layout),
        *([("Notes", notes)] if notes else []),
        ("Path", foreign(save.path)),
    ]


def _last_load_row(load: Load, snapshot: Snapshot) -> tuple[str, str]:
    cached = "" if load.cached_ratio is None else f", {load.cached_ratio:.0%} of it from the page cache"
    seconds = load.cold_start_seconds
    work = "" if seconds is None else f", first GPU work after {duration_text(seconds)}"
    text = f"{size_text(load.bytes)} in {duration_text(load.duration_seconds)}{cached}{work}"
    return "Last load", f"{text}, {ago(snapshot, load.end)}"


def _total_rows(entry: DirectorySnapshot, snapshot: Snapshot) -> _Rows:
    return [
        *((f"Saves {result}", count_text(count)) for result, count in entry.saves.items()),
        *elsewhere_totals(entry),
        ("Saved", f"{size_text(entry.save_bytes)} in {plural(entry.save_files, 'file')}"),
        ("Seen written", f"{size_text(entry.written_bytes)} in {duration_text(entry.write_active_seconds)}"),
        ("Retained now", _retained_text(entry)),
        ("Deleted", count_text(entry.deleted_checkpoints)),
        *([("Loads", count_text(entry.loads))] if entry.last_load else []),
        *([_last_load_row(entry.last_load, snapshot)] if entry.last_load else []),
    ]


def _retained_text(entry: DirectorySnapshot) -> str:
    if entry.retained_checkpoints is None:
        return UNKNOWN
    return f"{size_text(entry.retained_bytes)} in {plural(entry.retained_checkpoints, 'checkpoint')}"


def _storage_rows(storage: StorageStatus | None) -> _Rows:
    if storage is None:
        return [("Mount", UNKNOWN), ("Free", UNKNOWN)]
    mount = storage.mount
    identity = [("Mount", UNKNOWN)] if mount is None else [
        ("Mount", foreign(mount.mountpoint)),
        ("Device", foreign(mount.device or UNKNOWN)),
        ("File system", foreign(mount.fstype or UNKNOWN)),
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
    if watch.truncated:
        rows.append(("Limit", badge("bad", "too many directories, the others are not followed")))
    if watch.limit_reached:
        rows.append(("Limit", badge("warn", "inotify watch limit reached")))
    return rows


def _run_rows(run: Writers | None) -> _Rows:
    if run is None:
        return [("Run", UNKNOWN)]
    scheduler = run.scheduler or UNKNOWN
    job = foreign(f"{scheduler}, {run.run_id}" if run.run_id else scheduler)
    return [("Run", foreign(run.run or UNKNOWN)), ("Scheduler", job)]


def spoken(entries: Sequence[DirectorySnapshot]) -> str:
    """Return in a sentence what the directories do: it changes only when that does, for screen readers."""
    parts = []
    for entry in entries:
        for save in entry.open_saves[:SHOWN_OPEN_SAVES]:
            doing = "stalled" if save.stalled else "is being written"
            parts.append(f"{entry.name[:40]}: {step_words(save.step)} {doing}.")
        if not entry.open_saves and entry.recent:
            newest = entry.recent[0].save
            parts.append(f"{entry.name[:40]}: {step_words(newest.step)} {newest.result}.")
        if entry.recent_remote:
            newest = entry.recent_remote[0].save
            parts.append(f"{entry.name[:40]}: {step_words(newest.step)} {newest.result}, made elsewhere.")
    return " ".join(parts)
