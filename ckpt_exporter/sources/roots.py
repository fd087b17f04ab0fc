"""Which directories a configured path (a pattern perhaps) means now, and where more may appear."""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from dataclasses import dataclass, field

_WILD = re.compile(r"[*?\[]")
# A ``**`` over a huge tree must not cost minutes.
_MAX_VISITED = 10_000


def has_wildcard(path: str) -> bool:
    """Tell whether a configured path is a pattern."""
    return _WILD.search(path) is not None


@dataclass(slots=True)
class Expansion:
    """What a path means now: the existing ``roots``, outermost first.

    ``expecting`` holds, for each directory in which the next part of the path may appear, the patterns of
    the names that would matter.
    """

    roots: list[str] = field(default_factory=list)
    expecting: dict[str, set[str]] = field(default_factory=dict)
    truncated: bool = False

    def awaits(self, directory: str, name: str) -> bool:
        """Tell whether ``name`` appearing in ``directory`` may complete a root."""
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.expecting.get(directory, ()))


def expand(path: str, max_roots: int) -> Expansion:
    """Match ``path`` against the disk; never raises, what can't be read has no matches."""
    parts = [part for part in os.path.normpath(os.path.abspath(path)).split("/") if part]
    result = Expansion()
    matched: list[str] = []
    stack: list[tuple[str, int]] = [("/", 0)]
    visited: set[tuple[str, int]] = set()
    while stack:
        directory, index = stack.pop()
        if (directory, index) in visited:
            continue
        visited.add((directory, index))
        if len(visited) > _MAX_VISITED:
            result.truncated = True
            break
        if index == len(parts):
            matched.append(directory)
        else:
            stack.extend(_next(directory, parts, index, result))
    result.roots = _outermost(matched)
    result.truncated = result.truncated or len(result.roots) > max_roots
    del result.roots[max_roots:]
    return result


def _next(directory: str, parts: list[str], index: int, result: Expansion) -> list[tuple[str, int]]:
    part = parts[index]
    if part == "**":
        result.expecting.setdefault(directory, set()).add("*")
        deeper = [(os.path.join(directory, name), index) for name in _folders(directory, follow=False)]
        return [(directory, index + 1), *deeper]
    if has_wildcard(part):
        result.expecting.setdefault(directory, set()).add(part)
        names = [name for name in _folders(directory, follow=True) if _matches(name, part)]
        return [(os.path.join(directory, name), index + 1) for name in names]
    below = os.path.join(directory, part)
    if os.path.isdir(below) and (not any(map(has_wildcard, parts[:index])) or _may_follow(below)):
        return [(below, index + 1)]
    result.expecting.setdefault(directory, set()).add(part)
    return []


def _matches(name: str, pattern: str) -> bool:
    hidden = name.startswith(".") and not pattern.startswith(".")
    return not hidden and fnmatch.fnmatchcase(name, pattern)


def _folders(directory: str, *, follow: bool) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return sorted(
                entry.name
                for entry in entries
                if entry.is_dir(follow_symlinks=follow)
                and (not entry.is_symlink() or _may_follow(entry.path))
            )
    except OSError:
        return []


def _may_follow(path: str) -> bool:
    """Tell whether a match may be followed: a link only if root, this user or its target's owner laid it.

    A pattern matches what people may make; none of them shall lead the watch to another's files.
    """
    try:
        link = os.lstat(path)
        return not stat.S_ISLNK(link.st_mode) or link.st_uid in (0, os.geteuid(), os.stat(path).st_uid)
    except OSError:
        return False


def _outermost(paths: list[str]) -> list[str]:
    kept: list[str] = []
    for path in sorted(set(paths), key=lambda path: path.split("/")):
        if not kept or not (path + "/").startswith(kept[-1].rstrip("/") + "/"):
            kept.append(path)
    return kept
