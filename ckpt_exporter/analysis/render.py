"""A document as a terminal table, JSON, Markdown or one HTML file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING

from ckpt_exporter.analysis.render_html import html_document
from ckpt_exporter.analysis.render_markdown import markdown_document
from ckpt_exporter.analysis.render_text import text_document

if TYPE_CHECKING:
    from ckpt_exporter.analysis.document import Document, Format


def render(document: Document, format: Format, *, width: int = 80) -> str:  # noqa: A002 (the flag's name)
    """Write a document in one of the formats; ``width`` is that of the terminal, in cells."""
    if format == "json":
        return json.dumps(_jsonable(document.data), indent=2, allow_nan=False) + "\n"
    if format == "markdown":
        return markdown_document(document)
    if format == "html":
        return html_document(document)
    return text_document(document, width=width)


def write(text: str, stream: IO[str]) -> None:
    """Write text to a stream; what its encoding cannot say is written as an escape."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))


def _jsonable(value: object) -> object:
    """Return what JSON can say: an infinite or undefined number is unknown, and so null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    return value
