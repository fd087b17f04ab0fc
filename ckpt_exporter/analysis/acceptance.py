"""All gates over all evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_exporter.analysis.gate_loads import load_checks
from ckpt_exporter.analysis.gate_path import path_checks
from ckpt_exporter.analysis.gate_saves import node_checks, production_checks
from ckpt_exporter.analysis.gate_storage import storage_checks
from ckpt_exporter.analysis.gates import GateResult

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from ckpt_exporter.analysis.gates import Check, Evidence
    from ckpt_exporter.config.gates import Gates


def judge(gates: Gates, evidence: Evidence, chosen: Collection[str]) -> tuple[GateResult, ...]:
    """Judge the chosen gates (``G1`` ... ``G5``), in that order."""
    checks: dict[str, Callable[[], Iterator[Check]]] = {
        "G1": lambda: path_checks(gates.path, evidence),
        "G2": lambda: storage_checks(gates, evidence),
        "G3": lambda: node_checks(gates.node, evidence),
        "G4": lambda: production_checks(gates.production, evidence),
        "G5": lambda: load_checks(gates.loads, evidence),
    }
    return tuple(GateResult(name, tuple(make())) for name, make in checks.items() if name in chosen)
