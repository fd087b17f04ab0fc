"""Where files lie: paths below a directory, and directories that have just been made."""

from __future__ import annotations

from collections import OrderedDict

MAX_NEW_DIRECTORIES = 4096
MAX_OPENINGS = 4096


def fixed_prefix(path: str) -> str:
    """Return the part of a configured path before its first wildcard, without a trailing slash."""
    fixed: list[str] = []
    for part in path.split("/"):
        if any(c in part for c in "*?["):
            break
        fixed.append(part)
    return "/".join(fixed).rstrip("/") or "/"


def relative_to(path: str, base: str) -> str | None:
    """Return ``path`` relative to ``base``; None if it does not lie below it."""
    if base == "/":
        return path.lstrip("/") or None
    if path.startswith(base) and path[len(base) : len(base) + 1] == "/":
        return path[len(base) + 1 :] or None
    return None


class Openings:
    """When files were seen that may turn out to be a save's, bounded: that began then."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, float] = OrderedDict()

    def note(self, path: str, t: float) -> None:
        """Note that a file was seen; the last time counts."""
        self._seen[path] = t
        self._seen.move_to_end(path)
        if len(self._seen) > MAX_OPENINGS:
            self._seen.popitem(last=False)

    def take(self, path: str) -> float | None:
        """Return when a file was seen, None if it was not, and forget it."""
        return self._seen.pop(path, None)


class NewDirectories:
    """Directories made lately, bounded: a burst into a new directory belongs together as one."""

    def __init__(self) -> None:
        self._made: OrderedDict[str, float] = OrderedDict()

    def add(self, path: str, t: float) -> None:
        """Note a new directory."""
        self._made[path] = t
        self._made.move_to_end(path)
        if len(self._made) > MAX_NEW_DIRECTORIES:
            self._made.popitem(last=False)

    def discard(self, path: str) -> None:
        """Forget a deleted directory."""
        self._made.pop(path, None)

    def rename(self, path: str, to: str) -> None:
        """Follow a renamed directory."""
        if path in self._made:
            self.add(to, self._made.pop(path))

    def topmost(self, path: str, since: float) -> str | None:
        """Return the outermost directory above ``path`` that was made at or after ``since``."""
        parts = path.split("/")
        for depth in range(1, len(parts)):
            candidate = "/".join(parts[:depth])
            if self._made.get(candidate, float("-inf")) >= since:
                return candidate
        return None
