"""Charts as inline SVG that follows the page's colours, light or dark."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ckpt_exporter.analysis.axes import number_ticks, tick_text, time_tick_text, time_ticks
from ckpt_exporter.analysis.numbers import significant, time_text
from ckpt_exporter.analysis.text import cells, clean

if TYPE_CHECKING:
    from ckpt_exporter.analysis.document import Chart

COLOURS: Final = 6  # classes s0 ... s5 of the style sheet
_WIDTH: Final = 760
_HEIGHT: Final = 300
_TOP: Final = 14
_RIGHT: Final = 18
_BOTTOM: Final = 48
_BAR: Final = 44.0  # height of a bar of shares
_CHARACTER: Final = 6.6  # pixels that a digit takes at the style sheet's 12 px


def svg_chart(chart: Chart) -> str:
    """Draw a chart; empty where it has no point."""
    values = [y for series in chart.series for _, y in series.points if y is not None]
    if not values:
        return ""
    if chart.kind == "shares":
        return _shares(chart)
    frame = _frame(chart, values)
    marks = {"bars": _bars, "stacked": _stacked, "line": _lines}[chart.kind](chart, frame)
    parts = [
        _opened(chart, _HEIGHT),
        *_y_axis(frame),
        *marks,
        *_x_axis(chart, frame),
        "</svg>",
    ]
    return "\n".join(parts)


def _opened(chart: Chart, height: float) -> str:
    label = html.escape(f"{clean(chart.title)}: {clean(chart.y_label)}", quote=True)
    return f'<svg class="chart" viewBox="0 0 {_WIDTH} {height:g}" role="img" aria-label="{label}">'


def _shares(chart: Chart) -> str:
    """Draw one bar from side to side, each part as wide as its share and named where there is room."""
    shown = [(i, series.points[0][1] or 0.0) for i, series in enumerate(chart.series)]
    whole = sum(max(0.0, value) for _, value in shown) or 1.0
    parts, left = [_opened(chart, _BAR + 4)], 0.0
    for index, value in shown:
        width = _WIDTH * max(0.0, value) / whole
        text = f"{significant(value)} {'%' if chart.y_label == 'percent' else clean(chart.y_label)}"
        if width > 0:
            title = f"{clean(chart.series[index].name)}: {text}"
            parts.append(_rectangle(left, width - 1, (2.0, _BAR + 2.0), index, title))
        if width > (len(text) + 2) * _CHARACTER:
            parts.append(_text(left + width / 2, _BAR / 2 + 6, text, "middle", extra=' class="inside"'))
        left += width
    return "\n".join([*parts, "</svg>"])


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where values lie in the picture (pixels)."""

    left: float
    ticks: tuple[float, ...]
    x_low: float
    x_high: float

    @property
    def bottom(self) -> float:
        return float(_HEIGHT - _BOTTOM)

    @property
    def width(self) -> float:
        return _WIDTH - _RIGHT - self.left

    def x(self, value: float) -> float:
        span = self.x_high - self.x_low
        return self.left + self.width * ((value - self.x_low) / span if span > 0 else 0.5)

    def y(self, value: float) -> float:
        low, high = self.ticks[0], self.ticks[-1]
        return self.bottom - (self.bottom - _TOP) * (value - low) / (high - low)


def _frame(chart: Chart, values: list[float]) -> _Frame:
    high = max(values)
    if chart.kind == "stacked":
        high = max(sum(max(0.0, y) for y in column.values()) for column in _by_x(chart).values())
    # Bars and lines alike begin at zero, so that heights can be compared.
    ticks = number_ticks(min(0.0, *values), high)
    left = 34 + max(len(tick_text(tick, ticks)) for tick in ticks) * _CHARACTER
    if chart.kind == "line":
        xs = [x for series in chart.series for x, _ in series.points]
        return _Frame(left, ticks, min(xs), max(xs))
    return _Frame(left, ticks, -0.5, max(1, len(chart.labels)) - 0.5)


def _by_x(chart: Chart) -> dict[int, dict[int, float]]:
    """Return x -> series -> y of a chart of bars."""
    columns: dict[int, dict[int, float]] = {}
    for index, series in enumerate(chart.series):
        for x, y in series.points:
            column = columns.setdefault(int(x), {})
            if y is not None:
                column[index] = y
    return columns


def _text(x: float, y: float, text: str, anchor: str, *, extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>{html.escape(clean(text))}</text>'


def _y_axis(frame: _Frame) -> list[str]:
    lines = []
    for tick in frame.ticks:
        y = frame.y(tick)
        kind = "axis" if tick == 0 else "grid"
        lines.append(
            f'<line class="{kind}" x1="{frame.left:.1f}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        lines.append(_text(frame.left - 8, y + 4, tick_text(tick, frame.ticks), "end"))
    return lines


def _x_axis(chart: Chart, frame: _Frame) -> list[str]:
    lines = [
        _text(8, (_TOP + frame.bottom) / 2, chart.y_label, "middle",
              extra=f' class="name" transform="rotate(-90 8 {(_TOP + frame.bottom) / 2:.1f})" dy="6"'),
        _text(frame.left + frame.width / 2, _HEIGHT - 6, chart.x_label, "middle", extra=' class="name"'),
    ]  # fmt: skip
    places = _labelled(chart, frame)
    for x, text in places:
        lines.append(
            f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" '
            f'y1="{frame.bottom:.1f}" y2="{frame.bottom + 4:.1f}"/>'
        )
        lines.append(_text(min(max(x, frame.left), _WIDTH - 4), frame.bottom + 18, text, _anchor(x, text)))
    return lines


def _anchor(x: float, text: str) -> str:
    return "end" if x + cells(text) * _CHARACTER / 2 > _WIDTH else "middle"


def _labelled(chart: Chart, frame: _Frame) -> list[tuple[float, str]]:
    """Return where the x axis is labelled, and how; no two labels touch."""
    if chart.kind == "line":
        if chart.x_is_time:
            moments = time_ticks(frame.x_low, frame.x_high)
            return [(frame.x(tick), time_tick_text(tick, moments)) for tick in moments]
        whole = all(x == int(x) for series in chart.series for x, _ in series.points)
        ticks = number_ticks(frame.x_low, frame.x_high, 8, whole=whole)
        inside = [tick for tick in ticks if frame.x_low <= tick <= frame.x_high]
        return [(frame.x(tick), tick_text(tick, ticks)) for tick in inside]
    step_px = frame.width / max(1, len(chart.labels))
    room = max(4, int(max(step_px, 90) / _CHARACTER) - 1)
    texts = [_shortened(clean(label), room) for label in chart.labels]
    widest = max((cells(text) for text in texts), default=1) * _CHARACTER + 8
    every = max(1, -int(-widest // step_px))
    return [(frame.x(i), text) for i, text in enumerate(texts) if i % every == 0]


def _shortened(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _rectangle(left: float, width: float, edges: tuple[float, float], index: int, title: str) -> str:
    top, bottom = min(edges), max(edges)
    return (
        f'<rect class="s{index % COLOURS}" x="{left:.1f}" y="{top:.1f}" width="{max(width, 0.5):.1f}" '
        f'height="{bottom - top:.1f}"><title>{html.escape(title)}</title></rect>'
    )


def _named(chart: Chart, x: int, index: int, y: float) -> str:
    label = clean(chart.labels[x]) if 0 <= x < len(chart.labels) else str(x)
    return f"{label}, {clean(chart.series[index].name)}: {significant(y, 4)}"


def _bars(chart: Chart, frame: _Frame) -> list[str]:
    slot = frame.width / max(1, len(chart.labels))
    thick = min(slot * 0.8 / max(1, len(chart.series)), 64.0)
    marks = []
    for x, column in sorted(_by_x(chart).items()):
        begin = frame.x(x) - thick * len(chart.series) / 2
        for index, y in sorted(column.items()):
            title = _named(chart, x, index, y)
            gap = 1.0 if thick > 6 else 0.0
            left = begin + thick * index + gap
            marks.append(_rectangle(left, thick - 2 * gap, (frame.y(y), frame.y(0.0)), index, title))
    return marks


def _stacked(chart: Chart, frame: _Frame) -> list[str]:
    slot = frame.width / max(1, len(chart.labels))
    thick = min(slot * 0.8, 64.0)
    marks = []
    for x, column in sorted(_by_x(chart).items()):
        reached = 0.0
        for index, y in sorted(column.items()):
            if y > 0:
                edges = (frame.y(reached + y), frame.y(reached))
                marks.append(
                    _rectangle(frame.x(x) - thick / 2, thick, edges, index, _named(chart, x, index, y))
                )
                reached += y
    return marks


def _lines(chart: Chart, frame: _Frame) -> list[str]:
    marks = []
    for index, series in enumerate(chart.series):
        colour = f"s{index % COLOURS}"
        marks += [f'<path class="line {colour}" d="{path}"/>' for path in _paths(series.points, frame)]
        shown = [(x, y) for x, y in series.points if y is not None]
        radius = 3.0 if len(shown) <= 60 else 1.5
        for x, y in shown:
            where = time_text(x) if chart.x_is_time else significant(x, 4)
            title = html.escape(f"{clean(series.name)}, {where}: {significant(y, 4)}")
            marks.append(
                f'<circle class="{colour}" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="{radius}">'
                f"<title>{title}</title></circle>"
            )
    return marks


def _paths(points: tuple[tuple[float, float | None], ...], frame: _Frame) -> list[str]:
    """Return one path for each stretch between gaps."""
    paths: list[str] = []
    path = ""
    for x, y in (*points, (0.0, None)):
        if y is not None:
            path += f"{'L' if path else 'M'}{frame.x(x):.1f} {frame.y(y):.1f}"
        elif path:
            paths.append(path)
            path = ""
    return paths
