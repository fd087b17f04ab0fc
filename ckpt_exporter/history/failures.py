"""What can be wrong with a history file, told from SQLite's messages."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal

from ckpt_exporter.errors import CkptExporterError
from ckpt_exporter.logs import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

# damaged: no longer a sound database; newer: of a later version of this program; foreign: another program's;
# locked: another process holds it; full: no space; unavailable: missing, not permitted, or the disk fails.
Reason = Literal["damaged", "newer", "foreign", "locked", "full", "unavailable"]
REASONS: Final[tuple[Reason, ...]] = ("damaged", "newer", "foreign", "locked", "full", "unavailable")

# The texts of SQLite's result codes have not changed since 2004; Python 3.10 does not tell the codes.
_MESSAGES: Final[tuple[tuple[str, Reason], ...]] = (
    ("malformed", "damaged"),
    ("not a database", "damaged"),
    ("no such table", "damaged"),
    ("no such column", "damaged"),
    ("has no column", "damaged"),
    ("unsupported file format", "damaged"),
    ("already exists", "damaged"),  # an older file with a table that it cannot have
    ("locked", "locked"),
    ("is full", "full"),
    ("readonly", "unavailable"),
    ("unable to open", "unavailable"),
    ("disk i/o error", "unavailable"),
    ("permission denied", "unavailable"),
    ("authorization", "unavailable"),
)
_TEXT_CHARACTERS: Final = 200


class HistoryError(CkptExporterError):
    """A history file cannot be used; ``reason`` says what kind of failure it is."""

    def __init__(self, path: str, reason: Reason, what: str) -> None:
        super().__init__(f"{one_line(path)}: {what}")
        self.path = path
        self.reason = reason
        self.what = what


def reason_of(error: sqlite3.Error) -> Reason | None:
    """Return what kind of failure SQLite reports; None where it is none of the file's."""
    text = str(error).lower()
    return next((reason for message, reason in _MESSAGES if message in text), None)


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Turn what SQLite raises about the file into HistoryError; other errors pass."""
    try:
        yield
    except sqlite3.Error as error:
        reason = reason_of(error)
        if reason is None:
            raise
        raise HistoryError(path, reason, _sentence(reason, error)) from error


def _sentence(reason: Reason, error: sqlite3.Error) -> str:
    told = one_line(str(error)[:_TEXT_CHARACTERS])  # it may quote what the file holds
    if reason == "damaged":
        return f"is damaged or no history ({told})"
    if reason == "locked":
        return "is locked by another process"
    if reason == "full":
        return "cannot be written: the disk is full"
    return f"cannot be used ({told})"
