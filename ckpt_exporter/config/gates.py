"""The acceptance gates: their thresholds, the shipped defaults, and reading a file of them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, Final

from ckpt_exporter.config.document import read_document
from ckpt_exporter.config.values import (
    InvalidValueError,
    one_of,
    optional,
    read_duration,
    read_size,
    read_text,
)
from ckpt_exporter.errors import ConfigError
from ckpt_exporter.logs import one_line

_CACHES: Final = ("as-is", "cold", "full")


@dataclass(frozen=True, slots=True)
class PathGate:
    """G1: the right path, and sources that can be trusted. None switches a check off."""

    mountpoint: str | None = None
    transport: str | None = None
    fstype: str | None = None
    one_mount: bool | None = True
    free_checkpoints: int | None = 3
    watch_healthy: bool | None = True
    gpu_quality: str | None = "high"


@dataclass(frozen=True, slots=True)
class StorageGate:
    """G2: the storage alone. ``sustained_bandwidth`` is bytes per second or ``auto``."""

    sustained_bandwidth: int | str | None = "auto"
    repetitions: int | None = 3
    caches: tuple[str, ...] | None = ("cold", "full")
    slowest_ratio: float | None = 0.9
    disagreement: float | None = 0.05
    synced: bool | None = True


@dataclass(frozen=True, slots=True)
class NodeGate:
    """G3: one training node."""

    saves: int | None = 5
    duration_seconds: int | None = None
    duration_ratio: float | None = 1.0
    bubble_share: float | None = 0.05
    incomplete: int | None = 0


@dataclass(frozen=True, slots=True)
class ProductionGate:
    """G4: production. ``nodes`` is a number or ``baseline``."""

    saves: int | None = 20
    days: float | None = 3.0
    nodes: int | str | None = "baseline"
    duration_ratio: float | None = 1.05
    p95_over_median: float | None = 1.5
    drift_ratio: float | None = 1.1
    incomplete_share: float | None = 0.01
    bubble_share: float | None = 0.05


@dataclass(frozen=True, slots=True)
class LoadGate:
    """G5: loads from storage. ``bandwidth`` is bytes per second, ``speedup`` candidate over baseline."""

    loads: int | None = 5
    duration_seconds: int | None = None
    bandwidth: int | None = None
    speedup: float | None = 1.0


@dataclass(frozen=True, slots=True)
class Gates:
    """All thresholds."""

    path: PathGate = PathGate()
    storage: StorageGate = StorageGate()
    node: NodeGate = NodeGate()
    production: ProductionGate = ProductionGate()
    loads: LoadGate = LoadGate()


Read = Callable[[object], Any]


def _switch(value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidValueError("must be true or false")
    return value


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidValueError("must be a whole number, 0 or more")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
        raise InvalidValueError("must be a number, 0 or more")
    return float(value)


def _share(value: object) -> float:
    number = _number(value)
    if number > 1:
        raise InvalidValueError("must be a share from 0 to 1, such as 0.05 for 5 %")
    return number


def _ratio(value: object) -> float:
    number = _number(value)
    if number == 0:
        raise InvalidValueError("must be above 0")
    return number


def _bandwidth(value: object) -> int:
    try:
        return read_size(value.removesuffix("/s") if isinstance(value, str) else value)
    except InvalidValueError:
        raise InvalidValueError("must be a bandwidth such as 800MB/s or 1.5GB/s") from None


def _or_word(word: str, read: Read) -> Read:
    def read_either(value: object) -> Any:
        if value == word:
            return word
        try:
            return read(value)
        except InvalidValueError as error:
            raise InvalidValueError(f"{error}, or {word}") from None

    return read_either


def _caches(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise InvalidValueError(f"must be a list of {', '.join(_CACHES)}")
    return tuple(str(one_of(_CACHES)(item)) for item in value)


_READERS: Final[Mapping[str, Mapping[str, Read]]] = {
    "G1": {
        "mountpoint": read_text, "transport": read_text, "fstype": read_text, "one_mount": _switch,
        "free_checkpoints": _count, "watch_healthy": _switch, "gpu_quality": one_of(("high", "low")),
    },
    "G2": {
        "sustained_bandwidth": _or_word("auto", _bandwidth), "repetitions": _count, "caches": _caches,
        "slowest_ratio": _share, "disagreement": _share, "synced": _switch,
    },
    "G3": {
        "saves": _count, "duration_seconds": read_duration, "duration_ratio": _ratio, "bubble_share": _share,
        "incomplete": _count,
    },
    "G4": {
        "saves": _count, "days": _number, "nodes": _or_word("baseline", _count), "duration_ratio": _ratio,
        "p95_over_median": _ratio, "drift_ratio": _ratio, "incomplete_share": _share, "bubble_share": _share,
    },
    "G5": {"loads": _count, "duration_seconds": read_duration, "bandwidth": _bandwidth, "speedup": _ratio},
}  # fmt: skip


def default_gates_text() -> str:
    """Return the shipped file, each threshold explained."""
    return resources.files("ckpt_exporter.config").joinpath("gates.yml").read_text(encoding="utf-8")


def load_gates(path: str | None) -> Gates:
    """Return the thresholds of a file over the defaults. Raises ConfigError with every problem."""
    if path is None:
        return Gates()
    document = read_document(path)
    file = one_line(path)
    problems = [f"{file}: {'.'.join(map(str, key))}: stands more than once" for key in document.repeated]
    read = _read_all(document.value, problems, file)
    if problems:
        raise ConfigError(problems)
    gates = Gates()
    return Gates(
        replace(gates.path, **read["G1"]),
        replace(gates.storage, **read["G2"]),
        replace(gates.node, **read["G3"]),
        replace(gates.production, **read["G4"]),
        replace(gates.loads, **read["G5"]),
    )


def _read_all(value: object, problems: list[str], file: str) -> dict[str, dict[str, Any]]:
    read: dict[str, dict[str, Any]] = {name: {} for name in _READERS}
    if not isinstance(value, Mapping):
        problems.append(f"{file}: must hold the gates {', '.join(_READERS)} with their thresholds")
        return read
    for gate, thresholds in value.items():
        readers = _READERS.get(gate) if isinstance(gate, str) else None
        if readers is None:
            problems.append(f"{file}: {one_line(str(gate))}: unknown gate; known: {', '.join(_READERS)}")
        elif thresholds is not None and not isinstance(thresholds, Mapping):
            problems.append(f"{file}: {gate}: must hold thresholds (got {_shown(thresholds)})")
        else:
            for key, threshold in (thresholds or {}).items():
                try:
                    read[gate][str(key)] = _threshold(key, threshold, readers)
                except InvalidValueError as error:
                    problems.append(f"{file}: {gate}.{one_line(str(key))}: {error}")
    return read


def _threshold(key: object, value: object, readers: Mapping[str, Read]) -> object:
    if not isinstance(key, str) or key not in readers:
        near = difflib.get_close_matches(str(key), readers, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(readers)}"
        raise InvalidValueError(f"unknown threshold; {hint}")
    try:
        return optional(readers[key])(value)
    except InvalidValueError as error:
        raise InvalidValueError(f"{error} (got {_shown(value)})") from error


def _shown(value: object) -> str:
    text = one_line(repr(value))
    return text if len(text) <= 60 else text[:57] + "..."
