"""Fragments: small files with directories, which come and go beside the configuration file."""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ckpt_exporter.config.load import got, load_fragment
from ckpt_exporter.errors import ConfigError
from ckpt_exporter.logs import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from ckpt_exporter.config.schema import Config
    from ckpt_exporter.model import DirectorySettings

SUFFIXES: Final = (".yml", ".yaml")
# A thousand jobs on one node are a broken epilog, and each watched directory costs series.
FRAGMENT_LIMIT: Final = 1000

# Of each fragment: name, inode, size, time of the last change of content and of the inode.
Fingerprint = tuple[tuple[str, int, int, int, int], ...]


def fingerprint(directory: str) -> Fingerprint:
    """Return what differs after any change of the fragments below a directory, in the order of their names.

    Empty where the directory does not exist; raises OSError where it cannot be read. Only regular files
    (and links to them) count, hidden ones do not: a writer can prepare a fragment as ``.name`` and rename it.
    """
    try:
        names = [name for name in os.listdir(directory) if name.endswith(SUFFIXES) and name[0] != "."]
    except FileNotFoundError:
        return ()
    found: list[tuple[str, int, int, int, int]] = []
    for name in sorted(names)[: FRAGMENT_LIMIT + 1]:  # one more tells that there are too many
        try:
            status = os.stat(os.path.join(directory, name))
        except OSError:  # gone since, or a link to nowhere
            continue
        if stat.S_ISREG(status.st_mode):
            found.append((name, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Leaving:
    """A directory without a fragment, watched until ``ends`` (monotonic seconds)."""

    directory: DirectorySettings
    ends: float


class Fragments:
    """A configuration together with its fragments.

    ``read_main`` reads the configuration without fragments; ``clock`` is monotonic seconds. ``due`` may be
    called from another thread than the rest.
    """

    def __init__(
        self,
        read_main: Callable[[], Config],
        layouts: Collection[str],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read_main = read_main
        self._layouts = layouts
        self._clock = clock
        self._main: Config | None = None
        self._seen: Fingerprint | None = None  # None: could not be read
        self._good: Mapping[str, tuple[DirectorySettings, ...]] = {}
        self._in_force: Mapping[str, tuple[DirectorySettings, ...]] = {}
        self._leaving: tuple[_Leaving, ...] = ()

    def read(self) -> Config:
        """Read everything; raises CkptExporterError, and changes nothing, when the main file is bad."""
        self._main = self._read_main()
        return self.reread()

    def reread(self) -> Config:
        """Read the fragments alone, beside the main configuration as it was read last."""
        main = self._main if self._main is not None else self._read_main()
        self._main = main
        refused: list[str] = []
        contents = {} if main.include.directory is None else self._contents(main.include.directory, refused)
        accepted, directories = self._accept(main.directories, contents, refused)
        self._leaving = self._left(directories, accepted, main.include.keep_seconds)
        self._good, self._in_force = contents, accepted
        kept = tuple(leaving.directory for leaving in self._leaving)
        return replace(main, directories=directories + kept, refused=tuple(refused))

    def due(self) -> bool:
        """Tell whether the fragments have changed since they were read, or a directory's time is up."""
        main = self._main
        if main is None or (main.include.directory is None and not self._leaving):
            return False
        if any(leaving.ends <= self._clock() for leaving in self._leaving):
            return True
        return main.include.directory is not None and _look(main.include.directory) != self._seen

    def _contents(self, where: str, refused: list[str]) -> dict[str, tuple[DirectorySettings, ...]]:
        """Read every fragment; a bad one keeps what it said before, like a bad configuration file."""
        try:
            # Before the files: what changes while they are read is seen as a change later.
            self._seen = fingerprint(where)
        except OSError as error:
            self._seen = None
            refused.append(f"{one_line(where)}: cannot be read: {error.strerror}")
            return dict(self._good)
        if len(self._seen) > FRAGMENT_LIMIT:
            refused.append(
                f"{one_line(where)}: has more than {FRAGMENT_LIMIT} fragments, the rest is not read"
            )
        contents: dict[str, tuple[DirectorySettings, ...]] = {}
        for name, *_ in self._seen[:FRAGMENT_LIMIT]:
            try:
                contents[name] = load_fragment(os.path.join(where, name), self._layouts)
            except ConfigError as error:
                refused.extend(error.problems)
                if name in self._good:
                    contents[name] = self._good[name]
        return contents

    def _accept(
        self,
        main: tuple[DirectorySettings, ...],
        contents: Mapping[str, tuple[DirectorySettings, ...]],
        refused: list[str],
    ) -> tuple[dict[str, tuple[DirectorySettings, ...]], tuple[DirectorySettings, ...]]:
        """Add up what does not contradict; several fragments may say exactly the same.

        Of two that contradict each other, the one that is in force already stays.
        """
        holders = dict.fromkeys(main, "the configuration")
        accepted: dict[str, tuple[DirectorySettings, ...]] = {}
        for name in sorted(contents, key=lambda name: (name not in self._in_force, name)):
            clash = _clash(contents[name], holders)
            if clash is None:
                accepted[name] = contents[name]
                holders.update((directory, name) for directory in contents[name] if directory not in holders)
            elif self._main is not None:
                refused.append(f"{self._main.include.directory}/{name}: {clash}")
        return accepted, tuple(holders)

    def _left(
        self,
        directories: Collection[DirectorySettings],
        accepted: Mapping[str, tuple[DirectorySettings, ...]],
        keep_seconds: float,
    ) -> tuple[_Leaving, ...]:
        """Return the directories whose fragments are gone and whose time is not up, if nobody took over."""
        now = self._clock()
        before = _all_of(self._in_force) - _all_of(accepted)
        left = {leaving.directory: leaving for leaving in self._leaving}
        left |= {directory: _Leaving(directory, now + keep_seconds) for directory in before}
        taken = {directory.name for directory in directories} | {directory.path for directory in directories}
        return tuple(
            leaving
            for directory, leaving in left.items()
            if leaving.ends > now and directory.name not in taken and directory.path not in taken
        )


def _look(directory: str) -> Fingerprint | None:
    try:
        return fingerprint(directory)
    except OSError:
        return None


def _all_of(fragments: Mapping[str, Iterable[DirectorySettings]]) -> set[DirectorySettings]:
    return {directory for directories in fragments.values() for directory in directories}


def _clash(
    directories: tuple[DirectorySettings, ...], holders: Mapping[DirectorySettings, str]
) -> str | None:
    """Say which directory of a fragment contradicts one that is taken; None when none does."""
    for index, directory in enumerate(directories):
        if directory in holders:
            continue
        for other, holder in holders.items():
            for key, mine, theirs in (
                ("name", directory.name, other.name),
                ("path", directory.path, other.path),
            ):
                if mine == theirs:
                    return f"directories[{index}].{key}: must be unique, {holder} has it (got {got(mine)})"
    return None
