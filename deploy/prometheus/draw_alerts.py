"""Draw docs/images/alerts.svg: storage swapped during a training and back, and when the alerts fire.

From the root of the repository, with the development tools installed and Prometheus' programs on the path
(it takes some minutes): ``PYTHONPATH=. python deploy/prometheus/draw_alerts.py``. Nothing in it is drawn by
hand: GPU readings and file events go through the exporter's own code, its metrics into a real Prometheus, and
rules.yml and alerts.yml are evaluated there.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from tests.deploy.alert_history import History, fill
from tests.deploy.storage_swap import ALERTS, DOUBLED, SWAPPED, WANTED, Phase, Scraped, ends_of, scrape_run
from tests.gpu_recordings import UNIX
from tests.integration.prometheus import serving

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "images" / "alerts.svg"
HOUR = 3600.0
WIDTH, HEIGHT = 1200, 700
PIXELS_PER_HOUR = 25.5
# Colours that colour-blind readers tell apart (Okabe and Ito), and different dashes.
BLUE, ORANGE, RED, GREY = "#0072B2", "#E69F00", "#D55E00", "#767676"
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #222 }
.title { font-size: 17px; font-weight: 600 }
.small { font-size: 11.5px; fill: #555 }
.axis { stroke: #bbb; stroke-width: 1 }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round }
"""
Curve = list[tuple[float, float]]


@dataclass(frozen=True)
class Column:
    """One training: where it stands in the picture and what is known of it."""

    name: str
    title: str
    left: float
    phases: tuple[Phase, ...]
    history: History

    @property
    def seconds(self) -> float:
        """Return how long the training runs."""
        return ends_of(self.phases)[-1]

    def x(self, t: float) -> float:
        """Return where a second stands."""
        return self.left + t / HOUR * PIXELS_PER_HOUR

    def curve(self, series: str, and_then: str = "") -> Curve:
        """Return (second, value) of a series, or of what is made of it, while the training runs."""
        found = self.history.curve(f'{series}{{instance="{self.name}"}} {and_then}')
        return [(t, v) for t, v in found if t <= self.seconds]

    def saves(self, series: str) -> Curve:
        """Return (end, value) of each save: what the gauge shows once a save has ended."""
        values = dict(self.curve(series))
        ends = dict.fromkeys(v for _, v in self.curve("ckpt_last_save_end_timestamp_seconds"))
        found = ((end - UNIX, [v for t, v in values.items() if t >= end - UNIX + 300.0][:1]) for end in ends)
        return [(t, value[0]) for t, value in found if value]


@dataclass(frozen=True)
class Row:
    """One quantity on a scale from 0; ``marks`` are the values that its axis names."""

    title: str
    top: float
    height: float
    largest: float
    marks: tuple[float, ...]
    unit: str
    divisor: float = 1.0

    def y(self, value: float) -> float:
        """Return where a value stands."""
        return self.top + self.height * (1.0 - value / self.largest)


SECONDS = Row("GPUs stand still for each save", 110, 140, 260, (0, 100, 200), "{:.0f} s")
SPEED = Row("Bytes flow at", 290, 90, 0.9e9, (0, 0.4e9, 0.8e9), "{:.1f} GB/s", 1e9)
SHARE = Row("Share of GPU time lost to saves", 420, 110, 0.14, (0, 0.05, 0.10), "{:.0%}")
LANES_TOP, LANE_HEIGHT = 575, 30


def line(column: Column, row: Row, curve: Iterable[tuple[float, float]], colour: str, dash: str = "") -> str:
    """Draw a curve; points that change nothing are left out."""
    points = [(round(column.x(t), 1), round(row.y(v), 1)) for t, v in curve]
    kept = [
        point
        for before, point, after in zip([None, *points], points, [*points[1:], None], strict=False)
        if before is None or after is None or not before[1] == point[1] == after[1]
    ]
    path = " ".join(f"{x:g},{y:g}" for x, y in kept)
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<polyline class="line" stroke="{colour}"{dashes} points="{path}"/>'


def dots(column: Column, row: Row, saves: Curve, colour: str) -> Iterator[str]:
    """Draw each save."""
    for t, value in saves:
        yield f'<circle cx="{column.x(t):.1f}" cy="{row.y(value):.1f}" r="3" fill="{colour}"/>'


def text(x: float, y: float, words: str, style: str = "", anchor: str = "start") -> str:
    """Write words at a place."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}" text-anchor="{anchor}">{escape(words)}</text>'


def frame(column: Column) -> Iterator[str]:
    """Draw title, phases and axes of a training."""
    yield text(column.left, 62, column.title, "title")
    begin = 0.0
    for number, (phase, end) in enumerate(zip(column.phases, ends_of(column.phases), strict=True)):
        left, width = column.x(begin), column.x(end) - column.x(begin)
        shade = "#f4f4f4" if number % 2 else "#fbfbfb"
        yield f'<rect x="{left:.1f}" y="72" width="{width:.1f}" height="{HEIGHT - 112}" fill="{shade}"/>'
        yield text(left + width / 2, 88, phase.name, "small", "middle")
        begin = end
    for row in (SECONDS, SPEED, SHARE):
        yield text(column.left + 4, row.top - 2, row.title)
        for mark in row.marks:
            y = row.y(mark)
            yield rule(column, y)
            yield text(
                column.left - 6, y + 4, row.unit.format(mark / 1e9 if row is SPEED else mark), "small", "end"
            )
    for hours in range(0, int(column.seconds / HOUR) + 1, 5):
        yield text(column.x(hours * HOUR), HEIGHT - 24, f"{hours} h", "small", "middle")


def contents(column: Column) -> Iterator[str]:
    """Draw what was measured, what it is held against, and when alerts fired."""
    level = "instance_dir:ckpt_last_save_bubble_seconds:"
    limit = column.curve(f"{level}quartile1d", "* on () group_left () ckpt:threshold:save_regression_ratio")
    yield line(column, SECONDS, limit, RED, "6 4")
    yield line(column, SECONDS, column.curve(f"{level}mean2h"), ORANGE)
    yield from dots(column, SECONDS, column.saves("ckpt_last_save_bubble_seconds"), BLUE)
    speed = "ckpt_last_save_sustained_bandwidth_bytes_per_second"
    yield from dots(column, SPEED, column.saves(speed), BLUE)
    yield line(column, SHARE, column.curve("instance_dir:ckpt_bubble_share:ratio1h"), "#b8d4e6")
    share = "instance_dir:ckpt_bubble_share:ratio1d"
    yield line(column, SHARE, column.curve(share), BLUE)
    limit = column.curve(share, "* 0 + on () group_left () ckpt:threshold:bubble_share_ratio")
    yield line(column, SHARE, limit, RED, "6 4")
    for number, name in enumerate(ALERTS):
        yield from lane(column, number, name)


def rule(column: Column, y: float) -> str:
    """Draw a thin line through a training."""
    right = column.x(column.seconds)
    return f'<line class="axis" x1="{column.left:.1f}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'


def lane(column: Column, number: int, name: str) -> Iterator[str]:
    """Draw from when to when an alert fired, or that it did not."""
    top = LANES_TOP + number * LANE_HEIGHT
    fired = [
        (a, min(b, column.seconds)) for a, b in column.history.firing(name, column.name) if a < column.seconds
    ]
    yield rule(column, top + 20)
    yield text(column.left + 4, top + 12, name if fired else f"{name}: silent", "small")
    for begin, end in fired:
        width = column.x(end) - column.x(begin)
        told = (
            f'data-training="{column.name}" data-alert="{name}" data-from="{begin:.0f}" data-to="{end:.0f}"'
        )
        place = f'x="{column.x(begin):.1f}" y="{top + 17}" width="{width:.1f}" height="7" rx="2"'
        yield f'<rect {place} fill="{RED}" {told}/>'


def legend(y: float) -> Iterator[str]:
    """Say what the marks are."""
    x = 60.0
    for words, colour, dash in (
        ("one save", BLUE, None),
        ("mean of 2 h", ORANGE, ""),
        ("limit: 1.3 times the day's better quarter; 5 % of GPU time", RED, "6 4"),
        ("share over a day", BLUE, ""),
        ("over an hour", "#b8d4e6", ""),
        ("alert fires", RED, "bar"),
    ):
        if dash is None:
            yield f'<circle cx="{x + 9}" cy="{y - 4}" r="3" fill="{colour}"/>'
        else:
            thick = 7 if dash == "bar" else 1.8
            dashes = f' stroke-dasharray="{dash}"' if dash and dash != "bar" else ""
            yield (
                f'<line x1="{x}" x2="{x + 18}" y1="{y - 4}" y2="{y - 4}" stroke="{colour}" '
                f'stroke-width="{thick}"{dashes}/>'
            )
        yield text(x + 24, y, words, "small")
        x += 48 + 6.1 * len(words)


def picture(history: History) -> str:
    """Return the whole drawing."""
    right = 60 + ends_of(SWAPPED)[-1] / HOUR * PIXELS_PER_HOUR + 80
    columns = (
        Column("swapped", "Storage swapped during a training, and back", 60, SWAPPED, history),
        Column("doubled", "A model that doubles", right, DOUBLED, history),
    )
    parts = [f"<style>{STYLE}</style>", f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>']
    parts += [*legend(28)]
    for column in columns:
        parts += [*frame(column), *contents(column)]
    words = "Saves of 178 s on slow storage, of 94 s on fast; alerts fire when the slow storage is back."
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{words}">'
    return "\n".join([head, *parts, "</svg>\n"])


def main() -> None:
    """Simulate both trainings, let Prometheus evaluate them, and write the picture."""
    scraped, seconds = Scraped(), ends_of(SWAPPED)[-1]
    scrape_run(scraped, "swapped", SWAPPED)
    scrape_run(scraped, "doubled", DOUBLED)
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        with (base / "scraped.txt").open("w", encoding="utf-8") as stream:
            stream.writelines(scraped.openmetrics())
        fill(base / "scraped.txt", base / "data", UNIX, seconds, WANTED)
        with serving(base / "data") as server:
            drawn = picture(History(server, UNIX, seconds))
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
