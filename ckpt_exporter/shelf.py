"""The books of all directories, and which of them a fact about files belongs in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ckpt_exporter.book import Book
from ckpt_exporter.bubble.detector import BubbleDetector
from ckpt_exporter.model import (
    DetectSettings,
    DirectorySettings,
    FileEvent,
    Progress,
    ReadEvent,
    Reading,
    RemoteFile,
    RemoteLook,
    Save,
    Space,
    WatchChange,
    Writers,
)

FileFact = FileEvent | Progress | Writers | Space | WatchChange | ReadEvent | Reading


class Shelf:
    """One book for each directory, by name. A fact goes to the innermost directory that its path lies below.

    ``bubbles`` is told who writes. ``books`` is replaced, never changed: it may be read while another thread
    takes over new settings.
    """

    def __init__(
        self, directories: Iterable[DirectorySettings], detect: DetectSettings, bubbles: BubbleDetector
    ) -> None:
        self._bubbles = bubbles
        self.books = {each.name: Book(each, detect, bubbles) for each in directories}

    def reconfigure(self, directories: Iterable[DirectorySettings], detect: DetectSettings) -> None:
        """Take over a new configuration; the book of an unchanged path goes on."""
        books: dict[str, Book] = {}
        for directory in directories:
            book = self.books.get(directory.name)
            if book is None or book.directory.path != directory.path:
                book = Book(directory, detect, self._bubbles)
            book.directory = directory
            book.detector.reconfigure(directory, detect)
            book.reads.reconfigure(directory, detect)
            book.remote.reconfigure(directory, detect)
            books[directory.name] = book
        self.books = books

    def owner(self, path: str | None) -> Book | None:
        """Find the directory that a path belongs to; of nested ones the innermost."""
        owners = [book for book in self.books.values() if book.detector.owns(path)]
        return max(owners, key=lambda book: len(book.detector.base), default=None)

    def feed(self, fact: FileFact) -> list[Save]:
        """Take in one fact; return the saves of this host that it ended."""
        if isinstance(fact, Writers):
            return self._feed_writers(fact)
        if isinstance(fact, (Space, WatchChange)):
            book = self.books.get(fact.directory)
            return book.detector.feed(fact) if book is not None else []
        if isinstance(fact, FileEvent) and fact.event == "moved":
            return self._feed_move(fact)
        book = self.owner(fact.path)
        if book is None:
            return []
        if isinstance(fact, (ReadEvent, Reading)):
            book.reads.feed(fact)
            return []
        book.remote.note_local(fact)
        return book.detector.feed(fact)

    def feed_remote(self, fact: RemoteFile | RemoteLook) -> list[Save]:
        """Give what a look told to its directory, unless it lies in another one further in.

        Returns the saves of other hosts that it ended.
        """
        book = self.books.get(fact.directory)
        inner = self.owner(fact.path) if isinstance(fact, RemoteFile) else None
        return book.feed_remote(fact) if book is not None and inner in (None, book) else []

    def _feed_writers(self, writers: Writers) -> list[Save]:
        """Give writers to their directory; where none is named, to those whose saves they write."""
        books = [book for name, book in self.books.items() if name == writers.directory]
        if not writers.directory:
            known = [book for book in self.books.values() if book.detector.knows_any(writers.pids)]
            books = known or list(self.books.values())[: len(self.books) == 1]
        if not books:
            self._bubbles.feed(writers)
        saves: list[Save] = []
        for book in books:
            self._bubbles.feed(replace(writers, directory=book.directory.name))
            if writers.alive:
                book.run = writers
            saves += book.detector.feed(writers)
        return saves

    def _feed_move(self, event: FileEvent) -> list[Save]:
        source, target = self.owner(event.path), self.owner(event.to)
        for known in {id(book): book for book in (source, target) if book is not None}.values():
            known.remote.note_local(event)
        if source is None and target is None:
            return []
        if source is target or source is None or target is None:
            book = source or target
            return book.detector.feed(event) if book is not None else []
        record = source.detector.release(event.path) if event.path and not event.is_dir else None
        if record is not None and event.to is not None:
            return target.detector.adopt(record, event.to, event.t)
        return source.detector.feed(event) + target.detector.feed(event)
