"""A result for people and programs: blocks of text, tables and charts, and the exact numbers behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Union

Align = Literal["left", "right"]
Format = Literal["table", "json", "markdown", "html"]
FORMATS: tuple[Format, ...] = ("table", "json", "markdown", "html")


@dataclass(frozen=True, slots=True)
class Heading:
    """The title of a part."""

    text: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A few sentences. ``kind`` ``warning`` marks what limits the result."""

    text: str
    kind: Literal["plain", "warning"] = "plain"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its heading and on which side its cells stand."""

    heading: str
    align: Align = "right"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells that are formatted already; ``-`` stands for unknown."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Series:
    """One named row of points (x, y) of a chart; a y of None is a gap."""

    name: str
    points: tuple[tuple[float, float | None], ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture of numbers.

    ``bars``: x counts 0, 1, ... into ``labels``; ``stacked`` piles the series up; ``shares`` lays the first
    point of each series end to end in one bar, as parts of a whole; ``line``: x is a number, or Unix seconds
    where ``x_is_time``. ``y_label`` and ``x_label`` name quantity and unit.
    """

    title: str
    kind: Literal["bars", "stacked", "shares", "line"]
    y_label: str
    series: tuple[Series, ...]
    x_label: str = ""
    labels: tuple[str, ...] = ()
    x_is_time: bool = False


Block = Union[Heading, Paragraph, Table, Chart]  # noqa: UP007 (a runtime alias on 3.10)


@dataclass(frozen=True, slots=True)
class Document:
    """A whole result: what people read in ``blocks``, what programs read in ``data`` (JSON, SI units)."""

    title: str
    blocks: tuple[Block, ...]
    data: Mapping[str, object]
