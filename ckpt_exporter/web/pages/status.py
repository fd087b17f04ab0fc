"""The status page: what the exporter knows now, for a person without a dashboard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from ckpt_exporter import __version__
from ckpt_exporter.web.pages.directory import directory_section, now_badge, spoken
from ckpt_exporter.web.pages.gpus import any_simulated, gpus_section
from ckpt_exporter.web.pages.health import problems_of, problems_section, sources_section, watch_badge
from ckpt_exporter.web.pages.markup import SHAPES, Html, escaped, foreign, grid_table
from ckpt_exporter.web.pages.policy import LOOK
from ckpt_exporter.web.pages.saves import ago
from ckpt_exporter.web.pages.script import SCRIPT
from ckpt_exporter.web.pages.style import STYLE
from ckpt_exporter.web.pages.units import (
    bandwidth_text,
    count_text,
    duration_text,
    size_text,
    time_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckpt_exporter.model import DirectorySnapshot, Snapshot, WatchStatus

# Without script the whole page is loaded anew, which takes focus and scroll position away: not too often.
RELOAD_SECONDS: Final = 15
_ICON: Final = "data:image/svg+xml," + quote(
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><path d="M1 4h4v8h6V4h4" fill="none" '
    'stroke="#1a73b8" stroke-width="2"/></svg>'
)


class StatusPage:
    """Renders the page for the snapshot of the moment.

    ``started`` is the start of the program on the snapshot's own clock, in seconds; ``node`` the host's name.
    """

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        *,
        started: float,
        telemetry_path: str = "/metrics",
        version: str = __version__,
        node: str = "",
    ) -> None:
        self._snapshot = snapshot
        self._started = started
        self._telemetry_path = telemetry_path
        self._version = version
        self._node = node

    def __call__(self) -> str:
        """Return the page as one self-contained HTML document."""
        snapshot = self._snapshot()
        problems = problems_of(snapshot)
        sections = [problems_section(problems), _simulation(snapshot), _overview(snapshot)]
        sections += [
            directory_section(index, entry, snapshot) for index, entry in enumerate(snapshot.directories)
        ]
        sections += [gpus_section(snapshot), sources_section(snapshot)]
        busy = ' data-busy="1"' if any(entry.open_saves for entry in snapshot.directories) else ""
        return (
            f'<!DOCTYPE html>\n<html lang="en" data-look="{LOOK}"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            '<meta name="color-scheme" content="light dark">'
            f'<noscript><meta http-equiv="refresh" content="{RELOAD_SECONDS}"></noscript>'
            f'<title>{escaped(self._title(snapshot, len(problems)))}</title><link rel="icon" href="{_ICON}">'
            f"<style>{STYLE}</style></head>\n"
            f'<body><a class="skip" href="#main">Skip to the directories</a>{SHAPES}'
            '<p id="lost" class="lost" role="status" hidden></p>'
            f'<div id="page"{busy}>{self._header(snapshot)}<main id="main" tabindex="-1">'
            f'<p class="unseen" role="status" id="spoken">{escaped(spoken(snapshot.directories))}</p>'
            f"{''.join(sections)}</main>{self._footer()}</div><script>{SCRIPT}</script></body></html>\n"
        )

    def _title(self, snapshot: Snapshot, problems: int) -> str:
        """Return what a browser's tab shows: the state first."""
        saving = any(entry.open_saves for entry in snapshot.directories)
        state = f"({problems}) " if problems else ""
        state += "saving · " if saving else ""
        return f"{state}{self._node} · ckpt-exporter" if self._node else f"{state}ckpt-exporter"

    def _header(self, snapshot: Snapshot) -> str:
        up = duration_text(max(0.0, snapshot.t - self._started))
        now = time_text(snapshot.t + snapshot.unix_minus_t)
        node = f" on {foreign(self._node)}" if self._node else ""
        return (
            f"<header><h1>ckpt-exporter{node}</h1>"
            f"<p>version {escaped(self._version)}, up {up}, as of {now}</p>"
            f'<nav aria-label="Pages"><a href="{escaped(self._telemetry_path)}">Metrics</a>'
            '<a href="/-/healthy">Health</a><a href="/-/ready">Readiness</a></nav></header>\n'
        )

    def _footer(self) -> str:
        return (
            "<footer><p>What each number means: docs/METRICS.md. Every setting: docs/CONFIGURATION.md. Both "
            "come with the exporter's source.</p><p>This page reads memory only: no checkpoint, GPU or mount "
            f"is touched by looking at it. It updates itself; without script every {RELOAD_SECONDS} "
            "seconds.</p></footer>"
        )


def _simulation(snapshot: Snapshot) -> str:
    if not any_simulated(snapshot):
        return ""
    return (
        '<section id="simulation" class="simulation" aria-label="Simulation"><p><strong>Simulation.</strong> '
        "These GPUs are simulated: no figure of GPUs or bubbles comes from a real device.</p></section>\n"
    )


def _overview(snapshot: Snapshot) -> str:
    """Return all directories in a table; a single one needs none."""
    if len(snapshot.directories) < 2:
        return ""
    watches = {watch.directory: watch for watch in snapshot.watches}
    columns = ("Directory", "Watch", "Now", "Last complete save", "Duration", "Size", "Sustained", "Saves")
    rows = [
        _overview_row(index, entry, watches.get(entry.name), snapshot)
        for index, entry in enumerate(snapshot.directories)
    ]
    return (
        '<section id="overview" aria-label="All directories">'
        f"{grid_table('Directories', columns, rows)}</section>\n"
    )


def _overview_row(
    index: int, entry: DirectorySnapshot, watch: WatchStatus | None, snapshot: Snapshot
) -> list[str]:
    save = entry.last_save
    name = Html(f'<a href="#directory-{index}">{foreign(entry.name)}</a>')
    state = [name, watch_badge(watch), now_badge(entry.open_saves)]
    saves = count_text(sum(entry.saves.values()))
    if save is None:
        elsewhere = entry.last_remote_save
        seen = "none seen yet" if elsewhere is None else f"{ago(snapshot, elsewhere.end)}, elsewhere"
        return [*state, seen, "", "", "", saves]
    return [
        *state,
        ago(snapshot, save.end),
        duration_text(save.duration_seconds),
        size_text(save.bytes),
        bandwidth_text(save.sustained_bandwidth),
        saves,
    ]
