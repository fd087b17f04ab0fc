"""How directories are watched and saves are judged."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DirectorySettings:
    """One configured directory: ``name`` is the ``dir`` label, ``path`` may hold ``*`` and ``**``.

    ``elsewhere`` says whether saves of other hosts are looked for: ``auto`` (where they can write), ``on``
    or ``off``.
    """

    name: str
    path: str
    layout: str = "auto"
    ignore: tuple[str, ...] = ()
    elsewhere: str = "auto"


@dataclass(frozen=True, slots=True)
class DetectSettings:
    """When a burst of writes is a save, and when it has ended (seconds, bytes).

    The last two bound how often directories that other hosts write are looked at.
    """

    quiet_seconds: float = 10.0
    min_bytes: int = 1024 * 1024
    stall_seconds: float = 60.0
    incomplete_seconds: float = 600.0
    elsewhere_interval_seconds: float = 5.0
    elsewhere_max_calls_per_second: float = 20.0
