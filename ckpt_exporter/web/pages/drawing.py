"""The timeline of a directory as inline SVG: GPU activity and write rate on one time axis.

Curves are drawn in bins and stretched to the width of the page; lines and letters are not stretched. Every
kind of thing has its own shape, so that colour is never needed.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

from ckpt_exporter.web.pages.markup import Html, escaped
from ckpt_exporter.web.pages.units import SHOWN_OPEN_SAVES, bandwidth_text, clock_text, ratio_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ckpt_exporter.model import DirectorySnapshot, RecentSave, Snapshot, TimelineWindow

# Heights in CSS pixels: step numbers, activity, the bubbles' bars, write rate, times of day.
_ACTIVITY_TOP: Final = 18
_ACTIVITY_HEIGHT: Final = 84
_BUBBLES_TOP: Final = _ACTIVITY_TOP + _ACTIVITY_HEIGHT + 4
_RATE_TOP: Final = _BUBBLES_TOP + 14
_RATE_HEIGHT: Final = 64
_BOTTOM: Final = _RATE_TOP + _RATE_HEIGHT
_HEIGHT: Final = _BOTTOM + 18
# Step numbers nearer than this share of the width would run together: on any screen, and on a phone.
_LABEL_SHARE: Final = 0.06
_SPARSE_LABEL_SHARE: Final = 0.18
_MANY_WINDOWS: Final = 3


def timeline_figure(index: int, entry: DirectorySnapshot, snapshot: Snapshot, *, simulated: bool) -> Html:
    """Return the windows around the latest saves with a legend; nothing before the first save."""
    windows = entry.timeline[-_MANY_WINDOWS:]
    if not windows:
        return Html("")
    activity = any(value is not None for window in windows for value in window.activities)
    drawings = "".join(
        _window(f"timeline-{index}-{i}", window, entry, snapshot) for i, window in enumerate(windows)
    )
    caption = _caption(windows[-1], simulated=simulated) if activity else "Write rate (GPU activity unknown)"
    legend = _legend(activity=activity, elsewhere=bool(entry.recent_remote))
    return Html(
        f'<figure class="timeline"><figcaption>{escaped(caption)}, around the latest saves</figcaption>'
        f'<div class="windows">{drawings}</div>{legend}</figure>'
    )


def _caption(window: TimelineWindow, *, simulated: bool) -> str:
    whose = "the run's " if window.gpus_known else ""
    gpus = "GPU" if window.gpus == 1 else "GPUs"
    kind = " simulated" if simulated else ""
    mean = "" if window.gpus == 1 else "mean of "
    return f"Activity ({mean}{whose}{window.gpus}{kind} {gpus}) and write rate"


def _legend(*, activity: bool, elsewhere: bool) -> str:
    entries = [
        ("rate", '<rect class="rate" x="1" y="3" width="24" height="9"/>', "write rate"),
        ("save", '<rect class="save" x="1" y="1" width="24" height="12"/>', "save, with its step"),
    ]
    if elsewhere:
        band = '<rect class="save elsewhere" x="1" y="1" width="24" height="12"/>'
        entries.append(("elsewhere", band, "save made elsewhere"))
    if activity:
        line = '<path class="activity" d="M1 4H9V11H17V4H25"/>'
        entries.insert(0, ("activity", line, "GPU activity"))
        entries.append(("bubble", '<rect class="bubble" x="1" y="4" width="24" height="5"/>', "bubble"))
    items = "".join(
        f'<li><svg width="26" height="14" aria-hidden="true">{shape}</svg>{name}</li>'
        for _, shape, name in entries
    )
    return f'<ul class="legend">{items}</ul>'


def _window(name: str, window: TimelineWindow, entry: DirectorySnapshot, snapshot: Snapshot) -> str:
    saves = [recent for recent in entry.all_recent if _meets(window, recent.save.start, recent.save.end)]
    top = max(window.write_rates, default=0.0)
    parts = [
        *_bands(window, entry, saves),
        *_frame(),
        _plot(_ACTIVITY_TOP, _ACTIVITY_HEIGHT, window, _activity_paths(window.activities)),
        _plot(_RATE_TOP, _RATE_HEIGHT, window, _rate_path(window.write_rates, top)),
        *_bubbles(window, saves),
        *_scales(top),
        *_axis(window, snapshot),
    ]
    title, description = _words(window, saves, snapshot)
    return (
        f'<svg id="{name}" role="img" aria-labelledby="{name}-title {name}-words" '
        f'height="{_HEIGHT}"><title id="{name}-title">{escaped(title)}</title>'
        f'<desc id="{name}-words">{escaped(description)}</desc>{"".join(parts)}</svg>'
    )


def _meets(window: TimelineWindow, start: float, end: float) -> bool:
    return start < window.end and end >= window.start


def _share(window: TimelineWindow, t: float) -> float:
    return min(1.0, max(0.0, (t - window.start) / (window.end - window.start)))


def _percent(share: float) -> str:
    return f"{share * 100:.2f}".rstrip("0").rstrip(".") + "%"


def _words(window: TimelineWindow, saves: Sequence[RecentSave], snapshot: Snapshot) -> tuple[str, str]:
    """Return the drawing's title and what it shows, in words."""
    first, last = (clock_text(t + snapshot.unix_minus_t) for t in (window.start, window.end))
    known = [value for value in window.activities if value is not None]
    elsewhere = sum(recent.save.elsewhere for recent in saves)
    made = f", {elsewhere} made elsewhere" if elsewhere else ""
    words = f"{len(saves)} finished {'save' if len(saves) == 1 else 'saves'}{made}. "
    if known:
        words += f"GPU activity between {ratio_text(min(known))} and {ratio_text(max(known))}. "
    else:
        words += "GPU activity unknown. "
    return f"{first} to {last} UTC", f"{words}Write rate up to {bandwidth_text(max(window.write_rates))}."


def _bands(window: TimelineWindow, entry: DirectorySnapshot, saves: Sequence[RecentSave]) -> Iterator[str]:
    """Draw finished and open saves as bands, with their steps where there is room; newest first."""
    spans = [
        # Of a save whose files are all closed, the end may be known already.
        (save.start, window.end if save.open_files else save.last_byte, save.step, "open", "")
        for save in entry.open_saves[:SHOWN_OPEN_SAVES]
    ]
    spans += [
        (r.save.start, r.save.end, r.save.step, r.save.result, " elsewhere" if r.save.elsewhere else "")
        for r in saves
    ]
    labels = _Labels()
    for start, end, step, result, where in spans:
        if not _meets(window, start, end):
            continue
        left, right = _share(window, start), _share(window, end)
        band = f"save{where}" if result in ("complete", "open") else f"save{where} failed"
        yield (
            f'<rect class="{band}" x="{_percent(left)}" y="{_ACTIVITY_TOP}" '
            f'width="{_percent(max(right - left, 0.002))}" height="{_BOTTOM - _ACTIVITY_TOP}"/>'
        )
        middle = min(0.95, max(0.05, (left + right) / 2))
        kind = labels.place(middle) if step is not None else None
        if kind is not None:
            mark = {"complete": "", "open": " …"}.get(result, " ✕")
            yield f'<text class="{kind}" x="{_percent(middle)}" y="13">{step}{mark}</text>'


class _Labels:
    """Where step numbers stand already; on a narrow screen there is room for fewer."""

    def __init__(self) -> None:
        self._all: list[float] = []
        self._sparse: list[float] = []

    def place(self, x: float) -> str | None:
        """Return the class of a label at a share of the width; None if there is no room for it."""
        if any(abs(x - other) < _LABEL_SHARE for other in self._all):
            return None
        self._all.append(x)
        if any(abs(x - other) < _SPARSE_LABEL_SHARE for other in self._sparse):
            return "step dense"
        self._sparse.append(x)
        return "step"


def _frame() -> Iterator[str]:
    for y in (_ACTIVITY_TOP, _ACTIVITY_TOP + _ACTIVITY_HEIGHT, _RATE_TOP, _BOTTOM):
        yield f'<line class="axis" x1="0" x2="100%" y1="{y}" y2="{y}"/>'


def _scales(top: float) -> Iterator[str]:
    """Write what the ends of both scales are, in the margin that the style sheet leaves."""
    yield f'<text class="scale" x="-5" y="{_ACTIVITY_TOP + 8}">100 %</text>'
    yield f'<text class="scale" x="-5" y="{_ACTIVITY_TOP + _ACTIVITY_HEIGHT}">0 %</text>'
    if top > 0:
        yield f'<text class="scale" x="-5" y="{_RATE_TOP + 8}">{escaped(bandwidth_text(top))}</text>'
        yield f'<text class="scale" x="-5" y="{_BOTTOM}">0</text>'


def _plot(y: int, height: int, window: TimelineWindow, paths: str) -> str:
    bins = len(window.write_rates)
    return (
        f'<svg y="{y}" width="100%" height="{height}" viewBox="0 0 {bins} 100" '
        f'preserveAspectRatio="none">{paths}</svg>'
    )


def _activity_paths(activities: Sequence[float | None]) -> str:
    """Draw a step line where activity is known, and the area below it."""
    lines, areas = [], []
    for known, stretch in groupby(enumerate(activities), key=lambda pair: pair[1] is not None):
        if known:
            bins = [(i, round(100 * (1.0 - min(1.0, max(0.0, value or 0.0))))) for i, value in stretch]
            line = _steps(bins)
            lines.append(line)
            areas.append(f"{line}V100H{bins[0][0]}Z")
    if not lines:
        return ""
    return f'<path class="activity-area" d="{"".join(areas)}"/><path class="activity" d="{"".join(lines)}"/>'


def _steps(bins: Sequence[tuple[int, int]]) -> str:
    """Write a step line through (bin, level) pairs without gaps; equal neighbours are one step."""
    first, level = bins[0]
    commands = [f"M{first} {level}"]
    for i, y in bins[1:]:
        if y != level:
            commands.append(f"H{i}V{y}")
            level = y
    return "".join(commands) + f"H{bins[-1][0] + 1}"


def _rate_path(rates: Sequence[float], top: float) -> str:
    """Draw one column for each bin in which bytes arrived."""
    if top <= 0:
        return ""
    columns = []
    for i, rate in enumerate(rates):
        # What arrived shows, however little it was.
        height = max(2, round(100 * rate / top)) if rate > 0 else 0
        if height:
            columns.append(f"M{i} 100V{100 - height}h1V100Z")
    return f'<path class="rate" d="{"".join(columns)}"/>'


def _bubbles(window: TimelineWindow, saves: Sequence[RecentSave]) -> Iterator[str]:
    for recent in saves:
        bubble = recent.bubble
        if bubble is None or bubble.start is None or bubble.end is None or not bubble.seconds:
            continue
        if _meets(window, bubble.start, bubble.end):
            left, right = _share(window, bubble.start), _share(window, bubble.end)
            yield (
                f'<rect class="bubble" x="{_percent(left)}" y="{_BUBBLES_TOP}" '
                f'width="{_percent(max(right - left, 0.003))}" height="5"/>'
            )


def _axis(window: TimelineWindow, snapshot: Snapshot) -> Iterator[str]:
    first, last = (clock_text(t + snapshot.unix_minus_t) for t in (window.start, window.end))
    y = _BOTTOM + 13
    yield f'<text class="time" x="0" y="{y}">{first}</text>'
    yield f'<text class="time last" x="100%" y="{y}">{last}</text>'
