"""HTML from parts: every plain string is escaped, only ``Html`` passes as it is."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from ckpt_exporter.metrics.text import valid_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def escaped(text: str) -> Html:
    r"""Escape a hostile name for any place in a page.

    What has no glyph (control characters, bidirectional overrides) is written as ``\xNN`` or ``\uNNNN``.
    """
    if isinstance(text, Html):
        return text
    return Html(html.escape("".join(_visible(character) for character in valid_text(text))))


def badge(level: str, text: str) -> Html:
    """Return a state as a word in a colour; ``level`` is ``good``, ``busy``, ``bad`` or ``plain``."""
    return Html(f'<span class="badge {level}">{escaped(text)}</span>')


def facts_table(caption: str, rows: Iterable[tuple[str, str]]) -> Html:
    """Return a table of one name and one value per row."""
    body = "".join(f"<tr>{_cells(row)}</tr>" for row in rows)
    return Html(f'<table class="facts"><caption>{escaped(caption)}</caption><tbody>{body}</tbody></table>')


def grid_table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Html:
    """Return a table with column headings; the first cell of a row is its heading."""
    head = "".join(f'<th scope="col">{escaped(column)}</th>' for column in columns)
    body = "".join(f"<tr>{_cells(row)}</tr>" for row in rows)
    return Html(
        # Reachable by keyboard, for on a narrow screen it scrolls sideways.
        f'<div class="wide" role="region" tabindex="0" aria-label="{escaped(caption)}">'
        f'<table class="grid"><caption>{escaped(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cells(row: Sequence[str]) -> str:
    first, *rest = row
    return f'<th scope="row">{escaped(first)}</th>' + "".join(_cell(cell) for cell in rest)


def _cell(text: str) -> str:
    # A path may be long: it alone wraps.
    kind = ' class="name"' if text.startswith("/") else ""
    return f"<td{kind}>{escaped(text)}</td>"


def _visible(character: str) -> str:
    if character.isprintable() or character == "\N{NARROW NO-BREAK SPACE}":
        return character
    return character.encode("unicode_escape").decode("ascii")
