"""The shipped recording rules with their waiting times, and nothing else, shortened for a test of minutes."""

from __future__ import annotations

import re
from pathlib import Path

# How long a run is remembered, how often that is looked at, and how late saves are counted.
WAITING = re.compile(r"(offset )(5m)|(\[)(5m|10m)(:30s\])")
SHORTER = {"5m": "30s", "10m": "60s"}


def shorten(rules: Path, target: Path) -> int:
    """Write a copy of the rules whose waiting times are a tenth; return how many were changed."""
    text, changed = WAITING.subn(_tenth, rules.read_text(encoding="utf-8"))
    target.write_text(text, encoding="utf-8")
    return changed


def _tenth(match: re.Match[str]) -> str:
    if match[1]:
        return match[1] + SHORTER[match[2]]
    return f"[{SHORTER[match[4]]}:3s]"
