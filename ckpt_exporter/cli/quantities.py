"""Numbers with units on the command line: bytes, bandwidths, durations, counts."""

from __future__ import annotations

import argparse
import re
from decimal import Decimal
from typing import Final

from ckpt_exporter.logs import one_line

_UNITS: Final = {
    "": 1.0, "B": 1.0,
    "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15,
    "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40, "PiB": 2.0**50,
}  # fmt: skip
_SECONDS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_NUMBER: Final = re.compile(r"([0-9][0-9,_]*(?:\.[0-9]+)?|\.[0-9]+)(?:e([0-9]{1,2}))? ?([A-Za-z]*)(/s)?")
_LARGEST: Final = 1e21


class Typed(float):
    """A number that knows by how much it may be off as it was typed: half a unit of its last digit."""

    rounding: float = 0.0


def _typed(text: str, units: dict[str, float], *, per_second: bool, advice: str) -> Typed:
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match[3] not in units or (match[4] and not per_second):
        raise argparse.ArgumentTypeError(f"must be {advice} (got '{one_line(text)}')")
    digits = match[1].replace(",", "").replace("_", "")
    scale = units[match[3]] * 10.0 ** int(match[2] or 0)
    # Decimal, so that 65.6GB are 65,600,000,000 bytes and not a millionth of one less.
    value = Typed(Decimal(digits) * Decimal(scale))
    if not 0 < value <= _LARGEST:
        raise argparse.ArgumentTypeError(f"must be above 0: {advice} (got '{one_line(text)}')")
    decimals = len(digits.partition(".")[2])
    value.rounding = 0.5 * 10.0**-decimals * scale
    return value


def size(text: str) -> Typed:
    """Read bytes such as 65.6GB (1000^3) or 61GiB (1024^3)."""
    return _typed(text, _UNITS, per_second=False, advice="a size such as 65.6GB, 61GiB or 65600000000")


def bandwidth(text: str) -> Typed:
    """Read bytes per second such as 3.26GB/s."""
    return _typed(
        text, _UNITS, per_second=True, advice="a bandwidth such as 3.26GB/s, 800MiB/s or 3260000000"
    )


def duration(text: str) -> Typed:
    """Read seconds, or a number with s, min, h or d."""
    return _typed(text, _SECONDS, per_second=False, advice="seconds, or such as 90s, 30min, 12h, 1.5d")


def count(text: str) -> Typed:
    """Read a number above 0."""
    return _typed(text, {"": 1.0}, per_second=False, advice="a number above 0")


def ratio(text: str) -> float:
    """Read a share from 0 to 1, or a percentage."""
    stripped = text.strip()
    try:
        value = float(stripped[:-1]) / 100 if stripped.endswith("%") else float(stripped)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must be a share such as 0.15 or 15% (got '{one_line(text)}')")
    return value
