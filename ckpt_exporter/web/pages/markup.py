"""HTML from parts: every plain string is escaped, only ``Html`` passes as it is."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Final

from ckpt_exporter.metrics.text import valid_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# A longer name is cut in its middle: both ends tell one checkpoint from another.
MAX_NAME_CHARACTERS: Final = 240

# Figures stay on one line; what is longer is words, that may break.
MAX_FIGURE_CHARACTERS: Final = 19
_LONG: Final = ' class="long"'
_SPECIAL: Final = re.compile("[^ -~]|[&<>\"']")

# One shape for each level, so that a state shows without its colour.
_SHAPES: Final = {
    "good": '<path d="M1.5 6.5 4.5 9.5 10.5 2.5"/>',
    "busy": '<path class="solid" d="M3 1.5 10 6 3 10.5Z"/>',
    "warn": '<path d="M6 1 11.2 10.5H.8ZM6 4.5V7M6 8.3V9"/>',
    "bad": '<path d="M2 2 10 10M10 2 2 10"/>',
    "plain": '<path d="M2 6H10"/>',
}
SHAPES: Final = (
    '<svg class="shapes" aria-hidden="true">'
    + "".join(
        f'<symbol id="shape-{level}" viewBox="0 0 12 12">{path}</symbol>' for level, path in _SHAPES.items()
    )
    + "</svg>"
)


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def escaped(text: str) -> Html:
    r"""Escape a hostile name for any place in a page.

    What has no glyph (control characters, bidirectional overrides) is written as ``\xNN`` or ``\uNNNN``.
    """
    if isinstance(text, Html):
        return text
    if not _SPECIAL.search(text):
        return Html(text)
    return Html(html.escape("".join(_visible(character) for character in valid_text(text))))


def foreign(text: str) -> Html:
    """Return a name from outside: its writing direction stays its own, and a very long one is cut."""
    if len(text) > MAX_NAME_CHARACTERS:
        half = MAX_NAME_CHARACTERS // 2
        text = f"{text[:half]} … {text[-half:]}"
    return Html(f"<bdi>{escaped(text)}</bdi>")


def badge(level: str, text: str) -> Html:
    """Return a state as a shape and a word in a colour.

    ``level`` is ``good``, ``busy``, ``warn``, ``bad`` or ``plain``.
    """
    shape = f'<svg aria-hidden="true"><use href="#shape-{level}"/></svg>'
    return Html(f'<span class="badge {level}">{shape}{escaped(text)}</span>')


def paragraph(text: str, kind: str = "note") -> Html:
    """Return one paragraph of a class."""
    return Html(f'<p class="{kind}">{escaped(text)}</p>')


def facts_table(caption: str, rows: Iterable[tuple[str, str]]) -> Html:
    """Return a table of one name and one value per row."""
    body = "".join(
        f'<tr><th scope="row">{escaped(first)}</th><td>{escaped(second)}</td></tr>' for first, second in rows
    )
    return Html(f'<table class="facts"><caption>{escaped(caption)}</caption><tbody>{body}</tbody></table>')


def grid_table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Html:
    """Return a table with column headings; the first cell of a row is its heading.

    On a narrow screen each row becomes a list of its own; the roles keep it a table for a screen reader.
    """
    head = "".join(f'<th scope="col" role="columnheader">{escaped(column)}</th>' for column in columns)
    labels = [escaped(column) for column in columns]
    body = "".join(f'<tr role="row">{_cells(labels, row)}</tr>' for row in rows)
    return Html(
        f'<table class="grid" role="table"><caption>{escaped(caption)}</caption>'
        f'<thead role="rowgroup"><tr role="row">{head}</tr></thead>'
        f'<tbody role="rowgroup">{body}</tbody></table>'
    )


def _cells(labels: Sequence[Html], row: Sequence[str]) -> str:
    first, *rest = row
    cells = [
        f'<td role="cell"{_LONG if _is_long(cell) else ""} data-label="{label}">{escaped(cell)}</td>'
        for label, cell in zip(labels[1:], rest, strict=True)
    ]
    return f'<th scope="row" role="rowheader" data-label="{labels[0]}">{escaped(first)}</th>{"".join(cells)}'


def _is_long(cell: str) -> bool:
    return len(cell) > MAX_FIGURE_CHARACTERS and not isinstance(cell, Html)


def _visible(character: str) -> str:
    if character.isprintable() or character == "\N{NARROW NO-BREAK SPACE}":
        return character
    return character.encode("unicode_escape").decode("ascii")
