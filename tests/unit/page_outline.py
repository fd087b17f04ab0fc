"""The status page as a parser sees it."""

from __future__ import annotations

from html.parser import HTMLParser

from ckpt_exporter.model import DirectorySnapshot, Snapshot
from ckpt_exporter.web.pages.status import StatusPage

VOID = {"meta", "link"}


class Outline(HTMLParser):
    """Collects tags, table rows and text, and fails on tags that do not match."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("script", "style"):
            return
        self.text.append(data)
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


def outline(snapshot: Snapshot) -> Outline:
    """Render a snapshot and parse the page."""
    parsed = Outline()
    parsed.feed(StatusPage(lambda: snapshot, started=400.0, version="0.1.0")())
    assert parsed.open == []
    return parsed


def only(*directories: DirectorySnapshot) -> Snapshot:
    """Make a snapshot of these directories, nothing else known."""
    return Snapshot(t=1000.0, unix_minus_t=1764470000.0, directories=directories)
