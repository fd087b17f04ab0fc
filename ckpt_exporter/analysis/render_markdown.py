"""A document as Markdown (the dialect with pipe tables)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ckpt_exporter.analysis.document import Chart, Heading, Paragraph, Table
from ckpt_exporter.analysis.text import clean
from ckpt_exporter.analysis.text_charts import text_chart

if TYPE_CHECKING:
    from ckpt_exporter.analysis.document import Block, Document

_CHART_WIDTH: Final = 76
_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>#|~$])")
# What is special at the beginning of a line only: list marks, quotes, numbered lists, headings underlined.
_AT_START: Final = re.compile(r"^(\s*)([-+=>]|\d+[.)](?=\s|$))")


def markdown_document(document: Document) -> str:
    """Write a document in Markdown; charts stand as characters in code blocks."""
    parts = [f"# {escape(document.title)}", *(text for block in document.blocks if (text := _block(block)))]
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Return a text that Markdown shows as it stands."""
    safe = _SPECIAL.sub(r"\\\1", clean(text).replace("&", "&amp;"))
    return _AT_START.sub(_escape_start, safe)


def _escape_start(match: re.Match[str]) -> str:
    mark = match.group(2)
    return f"{match.group(1)}{mark[:-1]}\\{mark[-1]}"


def _block(block: Block) -> str:
    if isinstance(block, Heading):
        return f"## {escape(block.text)}"
    if isinstance(block, Paragraph):
        return f"> **Note:** {escape(block.text)}" if block.kind == "warning" else escape(block.text)
    if isinstance(block, Table):
        return _table(block)
    assert isinstance(block, Chart)  # noqa: S101 (the union has no more members)
    drawn = text_chart(block, _CHART_WIDTH)
    return f"```text\n{drawn.replace('```', '` ` `')}\n```" if drawn else ""


def _table(table: Table) -> str:
    if not table.columns:
        return ""
    title = [f"**{escape(table.title)}**", ""] if table.title else []
    rule = ["---:" if column.align == "right" else "---" for column in table.columns]
    rows = [[escape(column.heading) for column in table.columns], rule]
    rows += [[escape(cell) if cell != "-" else "-" for cell in row] for row in table.rows]
    return "\n".join([*title, *(f"| {' | '.join(row)} |" for row in rows)])
