"""A document on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ckpt_exporter.analysis.document import Chart, Heading, Paragraph, Table
from ckpt_exporter.analysis.text import cells, clean, longest_word, pad, wrap
from ckpt_exporter.analysis.text_charts import text_chart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckpt_exporter.analysis.document import Align, Block, Document

_GAP: Final = "  "


def text_document(document: Document, *, width: int) -> str:
    """Write a document in lines of at most ``width`` cells, as far as its words allow."""
    title = clean(document.title)
    parts = [f"{title}\n{'=' * cells(title)}"]
    parts += [text for block in document.blocks if (text := _block(block, width))]
    return "\n\n".join(parts) + "\n"


def _block(block: Block, width: int) -> str:
    if isinstance(block, Heading):
        text = clean(block.text)
        return f"{text}\n{'-' * cells(text)}"
    if isinstance(block, Paragraph):
        mark = "! " if block.kind == "warning" else ""
        lines = wrap(clean(block.text), width - len(mark))
        return "\n".join(
            mark + line if index == 0 else " " * len(mark) + line for index, line in enumerate(lines)
        )
    if isinstance(block, Table):
        return text_table(block, width)
    assert isinstance(block, Chart)  # noqa: S101 (the union has no more members)
    return text_chart(block, width)


def text_table(table: Table, width: int) -> str:
    """Write a table; one that is too wide wraps its words, then continues below with its first column."""
    headings = [clean(column.heading) for column in table.columns]
    rows = [[clean(cell) for cell in row] for row in table.rows]
    aligns: list[Align] = [column.align for column in table.columns]
    title = wrap(clean(table.title), width) if table.title else []
    parts = [
        _columns([headings[i] for i in group], [[row[i] for i in group] for row in rows],
                 [aligns[i] for i in group], width)
        for group in _groups(headings, rows, aligns, width)
    ]  # fmt: skip
    return "\n".join([*title, "\n\n".join(parts)])


def _narrowest(heading: str, column: Sequence[str], align: Align) -> int:
    """Return the cells a column needs: numbers stay whole, words wrap."""
    need = [cells(cell) if align == "right" else longest_word(cell) for cell in column]
    return max([longest_word(heading), *need], default=1) or 1


def _groups(
    headings: Sequence[str], rows: Sequence[Sequence[str]], aligns: Sequence[Align], width: int
) -> list[list[int]]:
    """Share the columns out among as many tables as the width asks for, the first column in each."""
    need = [_narrowest(heading, [row[i] for row in rows], aligns[i]) for i, heading in enumerate(headings)]
    groups: list[list[int]] = []
    for index in range(1, len(headings)):
        group = groups[-1] if groups else None
        if group is None or sum(need[i] for i in [*group, index]) + len(_GAP) * len(group) > width:
            group = [0]
            groups.append(group)
        group.append(index)
    return groups or [[0]] * bool(headings)


def _columns(
    headings: Sequence[str], rows: Sequence[Sequence[str]], aligns: Sequence[Align], width: int
) -> str:
    columns = [[row[i] for row in rows] for i in range(len(headings))]
    least = [_narrowest(h, c, a) for h, c, a in zip(headings, columns, aligns, strict=True)]
    natural = [max(map(cells, [h, *c])) for h, c in zip(headings, columns, strict=True)]
    widths = _fit(natural, least, width - len(_GAP) * (len(headings) - 1))
    head = _row(headings, widths, aligns)
    rule = _GAP.join("-" * w for w in widths)
    return "\n".join([*head, rule, *(line for row in rows for line in _row(row, widths, aligns))])


def _fit(natural: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Take from the widest column that can still give, until the columns fit or none can."""
    widths = list(natural)
    while sum(widths) > room:
        giving = [i for i, w in enumerate(widths) if w > least[i]]
        if not giving:
            break
        widths[max(giving, key=lambda i: widths[i])] -= 1
    return widths


def _row(row: Sequence[str], widths: Sequence[int], aligns: Sequence[Align]) -> list[str]:
    wrapped = [wrap(cell, w) for cell, w in zip(row, widths, strict=True)]
    height = max(map(len, wrapped), default=0)
    filled = [[*lines, *[""] * (height - len(lines))] for lines in wrapped]
    return [
        _GAP.join(pad(c, w, a) for c, w, a in zip(line, widths, aligns, strict=True)).rstrip()
        for line in zip(*filled, strict=True)
    ]
