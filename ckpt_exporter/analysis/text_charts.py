"""Charts in characters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ckpt_exporter.analysis.axes import number_ticks, tick_text, time_tick_text
from ckpt_exporter.analysis.numbers import significant
from ckpt_exporter.analysis.text import cells, clean, pad, wrap

if TYPE_CHECKING:
    from ckpt_exporter.analysis.document import Chart, Series

# Plain ASCII: it shows in every terminal and encoding.
_MARKS: Final = "*o+x#@"
_FILLS: Final = "#=:.%~"
_TOGETHER: Final = "\0"  # stands for a space at which no line breaks
_PLOT_ROWS: Final = 10
# More bars than fit on a screen are no picture; the tables and the other formats have them all.
_MAX_BARS: Final = 24


def text_chart(chart: Chart, width: int) -> str:
    """Draw a chart in at most ``width`` cells."""
    if not any(y is not None for series in chart.series for _, y in series.points):
        return ""
    head = wrap(f"{clean(chart.title)} ({clean(chart.y_label)})", width)
    body = {"line": _plot, "shares": _shares}.get(chart.kind, _bars)(chart, width)
    return "\n".join([*head, *body])


def _legend(chart: Chart, marks: str) -> list[str]:
    if len(chart.series) < 2:
        return []
    shown = [f"{marks[i % len(marks)]} {clean(series.name)}" for i, series in enumerate(chart.series)]
    return ["  " + "   ".join(shown)]


def _shares(chart: Chart, width: int) -> list[str]:
    """Lay the parts end to end; a part too small for a mark is in the legend alone."""
    values = [max(0.0, series.points[0][1] or 0.0) for series in chart.series]
    whole, bar, reached = sum(values) or 1.0, "", 0.0
    for i, value in enumerate(values):
        reached += value
        bar += _FILLS[i % len(_FILLS)] * (round(reached / whole * (width - 2)) - len(bar))
    names = [
        f"{_FILLS[i % len(_FILLS)]} {clean(series.name)} {significant(values[i])}"
        for i, series in enumerate(chart.series)
        if values[i] > 0
    ]
    # Marks and names stay together where the line breaks.
    legend = wrap("  ".join(name.replace(" ", _TOGETHER) for name in names), width - 2)
    return [f"|{bar}|", *(f"  {line.replace(_TOGETHER, ' ')}" for line in legend)]


def _value(series: Series, x: int) -> float | None:
    return next((y for at, y in series.points if at == x), None)


def _bars(chart: Chart, width: int) -> list[str]:
    labels = [clean(label) for label in chart.labels][-_MAX_BARS:]
    offset = len(chart.labels) - len(labels)
    room = max(map(cells, labels), default=0)
    stacked = chart.kind == "stacked"
    values = {
        (i, x): max(0.0, _value(series, x) or 0.0)
        for i, series in enumerate(chart.series)
        for x in range(offset, offset + len(labels))
    }
    totals = {
        x: sum(v for (_, at), v in values.items() if at == x) for x in range(offset, offset + len(labels))
    }
    largest = max(totals.values() if stacked else values.values(), default=0.0) or 1.0
    scale = max(10, width - room - 14) / largest
    lines = [f"  (the last {_MAX_BARS} of {len(chart.labels)})"] if offset else []
    for x, label in enumerate(labels, offset):
        if stacked:
            lines.append(f"{pad(label, room, 'left')} |{_stacked_bar(chart, x, scale)}")
            continue
        for i, series in enumerate(chart.series):
            y = _value(series, x)
            bar = _FILLS[i % len(_FILLS)] * round(values[i, x] * scale)
            lines.append(f"{pad(label if i == 0 else '', room, 'left')} |{bar} {significant(y)}")
    return lines + _legend(chart, _FILLS)


def _stacked_bar(chart: Chart, x: int, scale: float) -> str:
    bar, reached = "", 0.0
    for i, series in enumerate(chart.series):
        reached += max(0.0, _value(series, x) or 0.0)
        bar += _FILLS[i % len(_FILLS)] * (round(reached * scale) - len(bar))
    return f"{bar} {significant(reached)}"


def _plot(chart: Chart, width: int) -> list[str]:
    points = [(x, y) for series in chart.series for x, y in series.points if y is not None]
    ticks = number_ticks(min(0.0, *(y for _, y in points)), max(y for _, y in points))
    low_x, high_x = min(x for x, _ in points), max(x for x, _ in points)
    names = [tick_text(tick, ticks) for tick in ticks]
    room = max(map(len, names))
    columns = max(20, width - room - 4)
    grid = [[" "] * columns for _ in range(_PLOT_ROWS + 1)]
    for i, series in enumerate(chart.series):
        for x, y in series.points:
            if y is not None:
                across = (x - low_x) / (high_x - low_x) if high_x > low_x else 0.5
                up = (y - ticks[0]) / (ticks[-1] - ticks[0])
                grid[_PLOT_ROWS - round(up * _PLOT_ROWS)][round(across * (columns - 1))] = _MARKS[
                    i % len(_MARKS)
                ]
    at = {
        _PLOT_ROWS - round((t - ticks[0]) / (ticks[-1] - ticks[0]) * _PLOT_ROWS): n
        for t, n in zip(ticks, names, strict=True)
    }
    lines = [f"{at.get(row, '').rjust(room)} |{''.join(line).rstrip()}" for row, line in enumerate(grid)]
    ends = (low_x, high_x)
    left, right = (time_tick_text(x, (0.0, 60.0)) if chart.x_is_time else significant(x) for x in ends)
    axis = f"{left}{clean(chart.x_label).center(max(1, columns - len(left) - len(right)))}{right}"
    return [*lines, f"{' ' * room} +{'-' * columns}", f"{' ' * (room + 2)}{axis}", *_legend(chart, _MARKS)]
