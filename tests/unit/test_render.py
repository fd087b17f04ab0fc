"""Documents in every format: readable, complete, and safe whatever a file is called."""

from __future__ import annotations

import io
import json
import math
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from ckpt_exporter.analysis.axes import number_ticks, tick_text
from ckpt_exporter.analysis.document import Chart, Column, Document, Heading, Paragraph, Series, Table
from ckpt_exporter.analysis.numbers import (
    bandwidth_text,
    duration_text,
    factor_text,
    percent_text,
    plain,
    seconds_text,
    significant,
    size_text,
)
from ckpt_exporter.analysis.render import render, write
from ckpt_exporter.analysis.text import cells

NASTY = 'a"b<script>alert(1)</script>|`x`\x1b[31m\n# h [l](javascript:1) \u202e &amp; \udcff'
LINE = Chart(
    "Trend", "line", "seconds",
    (Series("duration", ((0.0, 10.0), (60.0, None), (120.0, 20.0), (180.0, 40.0))),), x_label="time",
)  # fmt: skip
BARS = Chart(
    "Arms", "bars", "seconds",
    (Series("baseline", ((0, 178.0), (1, 180.0))), Series("candidate", ((0, 94.0),))), labels=("p50", "p95"),
)  # fmt: skip
STACKED = Chart(
    "Phases", "stacked", "seconds",
    (Series("writing", ((0, 30.0),)), Series("after", ((0, 10.0),))), labels=("s1",)
)  # fmt: skip
TABLE = Table("Saves", (Column("step", "left"), Column("seconds")), (("500", "178.0"), ("1000", "-")))


def document(*blocks: object, data: dict[str, object] | None = None, title: str = "Title") -> Document:
    """Make a document of these blocks."""
    return Document(title, tuple(blocks), data or {})  # type: ignore[arg-type]


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def page(text: str) -> _Page:
    """Parse HTML."""
    parsed = _Page()
    parsed.feed(text)
    return parsed


class TestText:
    def test_blocks_in_order(self) -> None:
        """A terminal shows title, heading, paragraph, warning and aligned table, in that order."""
        text = render(
            document(Heading("Answer"), Paragraph("Twenty saves."), Paragraph("Beware.", "warning"), TABLE),
            "table",
        )

        assert text == (
            "Title\n=====\n\nAnswer\n------\n\nTwenty saves.\n\n! Beware.\n\n"
            "Saves\nstep  seconds\n----  -------\n500     178.0\n1000        -\n"
        )

    @pytest.mark.parametrize("width", [40, 80, 132])
    def test_no_line_is_too_long(self, width: int) -> None:
        """However wide a table or long a paragraph, no line is wider than the terminal."""
        columns = tuple(Column(f"heading of {i}", "left" if i == 0 else "right") for i in range(9))
        wide = Table("Wide " * 30, columns, (("checkpoint " * 9, *("123,456 GB/s",) * 8),) * 2)
        text = render(
            document(wide, Paragraph("存储 bandwidth " * 40), LINE, BARS, STACKED), "table", width=width
        )

        assert max(map(cells, text.splitlines())) <= width

    def test_a_table_too_wide_is_continued(self) -> None:
        """Columns that do not fit stand below, again with the first column, and no cell is lost."""
        columns = tuple(Column(f"c{i}") for i in range(12))
        text = render(
            document(Table("", columns, (tuple(f"cell-{i:04}" for i in range(12)),))), "table", width=40
        )

        assert text.count("cell-0000") > 1
        assert all(f"cell-{i:04}" in text for i in range(12))

    def test_wide_characters_align(self) -> None:
        """Chinese characters take two cells, and the columns after them still stand in line."""
        table = Table("", (Column("name", "left"), Column("n")), (("存储", "1"), ("abcd", "2")))
        lines = render(document(table), "table").splitlines()[-2:]

        assert [cells(line) for line in lines] == [len("abcd  2")] * 2

    def test_bars_are_in_proportion(self) -> None:
        """A bar of twice the value has twice the marks, and says its value."""
        chart = Chart("T", "bars", "s", (Series("a", ((0, 100.0), (1, 50.0))),), labels=("x", "y"))
        lines = [line for line in render(document(chart), "table").splitlines() if "|" in line]

        assert lines[0].count("#") == pytest.approx(2 * lines[1].count("#"), abs=1)
        assert lines[1].count("#") > 20
        assert [line.split()[-1] for line in lines] == ["100", "50.0"]

    def test_a_stream_that_cannot_say_it(self) -> None:
        """A character outside the terminal's encoding is escaped and ends nothing."""
        raw = io.BytesIO()
        stream = io.TextIOWrapper(raw, encoding="gbk", newline="\n")
        write("存储 \N{SNOWMAN}\n", stream)
        stream.flush()

        assert raw.getvalue().decode("gbk") == "存储 \\u2603\n"


class TestJson:
    def test_numbers_are_exact(self) -> None:
        """Numbers keep all their digits; what is infinite or undefined is null."""
        data: dict[str, object] = {"ratio": 178 * 20 / 36_000, "bad": [math.inf, math.nan], "map": {1: (2,)}}

        assert json.loads(render(document(data=data), "json")) == {
            "ratio": 178 * 20 / 36_000,
            "bad": [None, None],
            "map": {"1": [2]},
        }


class TestMarkdown:
    def test_table_and_chart(self) -> None:
        """Tables are pipe tables with their alignment, charts code blocks."""
        text = render(document(Heading("Answer"), TABLE, BARS), "markdown")

        assert text.startswith(
            "# Title\n\n## Answer\n\n**Saves**\n\n| step | seconds |\n| --- | ---: |\n| 500 | 178.0 |\n"
        )
        assert text.count("```") == 2

    def test_nothing_is_markup(self) -> None:
        """Names cannot break out of a cell, make a link, a heading or a tag."""
        table = Table(NASTY, (Column(NASTY),), ((NASTY,),))
        text = render(document(table, Paragraph(NASTY), title=NASTY), "markdown")

        assert not re.search(r"(?<!\\)<script", text)
        assert not re.search(r"(?<!\\)\]\(", text)
        assert "\x1b" not in text
        assert all(
            len(re.findall(r"(?<!\\)\|", line)) == 2 for line in text.splitlines() if line.startswith("|")
        )

    @pytest.mark.parametrize(
        ("text", "shown"), [("1. x", "1\\. x"), ("- x", "\\- x"), ("0.37 GB/s", "0.37 GB/s")]
    )
    def test_no_list_begins_by_chance(self, text: str, shown: str) -> None:
        """A paragraph that looks like a list item is none, and decimals stay as they are."""
        assert render(document(Paragraph(text)), "markdown").splitlines()[2] == shown


class TestHtml:
    def test_self_contained(self) -> None:
        """The page has no script and loads nothing: no source, no link, no import, no handler."""
        text = render(document(Heading("H"), Paragraph("p", "warning"), TABLE, LINE, BARS, STACKED), "html")

        tags = page(text).tags
        assert not {tag for tag, _ in tags} & {
            "script",
            "link",
            "img",
            "iframe",
            "object",
            "embed",
            "a",
            "base",
        }
        names = {name for _, attributes in tags for name in attributes}
        assert not {name for name in names if name.startswith("on") or name in {"src", "href"}}
        assert "url(" not in text
        assert "@import" not in text
        assert "prefers-color-scheme: dark" in text
        assert "@media print" in text

    def test_nothing_is_markup(self) -> None:
        """Whatever stands in a name is shown as text: no tag, no attribute, no control character."""
        clean = render(document(TABLE, BARS, LINE, Paragraph("x"), Heading("y")), "html")
        chart = Chart(
            NASTY, "bars", NASTY, (Series(NASTY, ((0, 1.0),)), Series(NASTY, ((0, 2.0),))), NASTY, (NASTY,)
        )
        line = Chart(NASTY, "line", NASTY, (Series(NASTY, ((0, 1.0), (1, 2.0))),), NASTY)
        table = Table(NASTY, (Column(NASTY), Column(NASTY)), ((NASTY, NASTY),))
        text = render(document(table, chart, line, Paragraph(NASTY), Heading(NASTY), title=NASTY), "html")

        parsed = page(text)
        assert {tag for tag, _ in parsed.tags} == {tag for tag, _ in page(clean).tags}
        assert any("<script>alert(1)</script>" in piece for piece in parsed.text)
        assert "\x1b" not in text
        assert "\u202e" not in text
        text.encode("utf-8")

    def test_charts_are_well_formed(self) -> None:
        """Every picture is XML with a name, and a mark for each known value that says it."""
        text = render(document(LINE, BARS, STACKED), "html")
        pictures = [
            ElementTree.fromstring(found) for found in re.findall(r'<svg class="chart".*?</svg>', text, re.S)
        ]

        assert [picture.get("aria-label") for picture in pictures] == [
            "Trend: seconds", "Arms: seconds", "Phases: seconds",
        ]  # fmt: skip
        assert [len(picture.findall("circle")) for picture in pictures] == [3, 0, 0]
        assert [len(picture.findall("rect")) for picture in pictures] == [0, 3, 2]
        assert [mark.findtext("title") for mark in pictures[1].findall("rect")] == [
            "p50, baseline: 178.0", "p50, candidate: 94.00", "p95, baseline: 180.0",
        ]  # fmt: skip

    def test_bars_are_in_proportion(self) -> None:
        """Heights are proportional to values, from zero."""
        text = render(document(BARS), "html")
        picture = ElementTree.fromstring(re.findall(r'<svg class="chart".*?</svg>', text, re.S)[0])
        heights = [float(mark.get("height", "0")) for mark in picture.findall("rect")]

        assert heights[1] / heights[0] == pytest.approx(94 / 178, rel=0.01)

    def test_a_gap_breaks_the_line(self) -> None:
        """An unknown value is a gap in the line, not a value."""
        text = render(document(LINE), "html")

        assert len(re.findall(r'<path class="line', text)) == 2

    @pytest.mark.parametrize("kind", ["line", "bars", "stacked"])
    def test_no_values_no_picture(self, kind: str) -> None:
        """A chart without a known value is left out everywhere."""
        chart = Chart("Empty", kind, "s", (Series("a", ((0, None),)),), labels=("x",))  # type: ignore[arg-type]

        for format_ in ("table", "markdown", "html"):
            assert "Empty" not in render(document(chart), format_)  # type: ignore[arg-type]

    @pytest.mark.parametrize("value", [0.0, 1e-9, 5e12, -3.0])
    @pytest.mark.parametrize("kind", ["line", "bars"])
    def test_any_single_value(self, kind: str, value: float) -> None:
        """One value alone, however large or small, makes a picture inside its frame."""
        chart = Chart("One", kind, "s", (Series("a", ((0, value),)),), labels=("x",))  # type: ignore[arg-type]
        text = render(document(chart), "html")

        for number in re.findall(r' (?:cy|y|y1)="([-\d.]+)"', text):
            assert 0 <= float(number) <= 300
        assert render(document(chart), "table")


class TestNumbers:
    def test_texts(self) -> None:
        """Numbers are rounded for the eye, in SI units, with thousands separated."""
        assert [plain(3560), plain(9.889, 2), plain(None), plain(-0.001), plain(-0.004, 2)] == [
            "3,560",
            "9.89",
            "-",
            "0",
            "0.00",
        ]
        assert [significant(v) for v in (178, 94, 0.3687, 1234567, 99.96, 0)] == [
            "178",
            "94.0",
            "0.369",
            "1,234,567",
            "100",
            "0",
        ]
        assert [seconds_text(v) for v in (1.6, 178, 3560, None)] == ["1.60 s", "178 s", "3,560 s", "-"]
        assert [duration_text(v) for v in (94, 1800, 36_000, 864_000)] == [
            "94.0 s",
            "30.0 min",
            "10.0 h",
            "10.0 days",
        ]
        assert [size_text(v) for v in (999, 65.6e9, 999.9e6, 590e9)] == [
            "999 B",
            "65.6 GB",
            "1.00 GB",
            "590 GB",
        ]
        assert [bandwidth_text(v) for v in (3.26e9, None)] == ["3.26 GB/s", "-"]
        assert [percent_text(v) for v in (0.09888, None)] == ["9.89 %", "-"]
        assert factor_text(178 / 94) == "x1.89"

    def test_ticks(self) -> None:
        """Ticks are round numbers that span the values and are told apart."""
        assert number_ticks(0, 178) == (0, 50, 100, 150, 200)
        ticks = number_ticks(0, 0.0123)
        assert [tick_text(tick, ticks) for tick in ticks] == [
            "0.0000",
            "0.0025",
            "0.0050",
            "0.0075",
            "0.0100",
            "0.0125",
        ]
