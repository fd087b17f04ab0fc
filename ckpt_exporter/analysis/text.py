"""Text as it stands on a terminal: its width in cells, padding and wrapping."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Final

from ckpt_exporter.logs import one_line

if TYPE_CHECKING:
    from ckpt_exporter.analysis.document import Align

_WIDE: Final = frozenset("WF")


def clean(text: str) -> str:
    """Return the text as one line that no terminal takes for a command."""
    return one_line(text)


def cells(text: str) -> int:
    """Count the cells that a text takes: Chinese, Japanese and Korean characters take two."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in _WIDE else 1 for c in text
    )


def pad(text: str, width: int, align: Align) -> str:
    """Fill a text up to ``width`` cells."""
    space = " " * max(0, width - cells(text))
    return space + text if align == "right" else text + space


def wrap(text: str, width: int) -> list[str]:
    """Break a text between words, and inside a word only where it is longer than a line."""
    lines, line = [], ""
    for word in text.split():
        if line and cells(line) + 1 + cells(word) > width:
            lines.append(line)
            line = ""
        line = f"{line} {word}" if line else word
        while cells(line) > width:
            cut = _cut(line, width)
            lines.append(line[:cut])
            line = line[cut:]
    return [*lines, line] if line or not lines else lines


def _cut(text: str, width: int) -> int:
    """Return how many characters fit into ``width`` cells; at least one, so that wrapping ends."""
    taken = 0
    for index, char in enumerate(text):
        taken += cells(char)
        if taken > width:
            return max(1, index)
    return len(text)


def longest_word(text: str) -> int:
    """Return the cells of the longest word."""
    return max((cells(word) for word in text.split()), default=0)
