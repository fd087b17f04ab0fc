"""The committed dashboards as their queries, with Grafana's variables filled in."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "grafana"
UIDS = ("ckpt-fleet", "ckpt-directory", "ckpt-job", "ckpt-node")

Board = dict[str, Any]
Panel = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Question:
    """One query of one panel."""

    board: str
    panel: str
    ref: str
    expr: str
    instant: bool

    def __str__(self) -> str:
        return f"{self.board} / {self.panel} / {self.ref}"


# What the levels of recorded series keep, beside cluster, job and instance.
LEVELS = {
    "instance_run": {"run_id"},
    "instance_dir_run": {"dir", "run_id"},
    "instance_gpu_run": {"gpu", "uuid", "run_id"},
    "instance_gpu_run_cause": {"gpu", "uuid", "run_id", "cause"},
}


def recorded_names() -> frozenset[str]:
    """Return the names of all recorded series."""
    return frozenset(
        re.findall(r"- record: (\S+)", (FOLDER.parent / "deploy/prometheus/rules.yml").read_text())
    )


@functools.cache
def load(uid: str) -> Board:
    """Read a committed dashboard."""
    board: Board = json.loads((FOLDER / "dashboards" / f"{uid}.json").read_text(encoding="utf-8"))
    return board


def panels_of(board: Board) -> Iterator[Panel]:
    """Yield every panel that shows something, those of folded rows too."""
    for panel in board["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


def questions_of(board: Board) -> Iterator[Question]:
    """Yield every query of every panel."""
    for panel in panels_of(board):
        for target in panel["targets"]:
            yield Question(
                board["uid"], panel["title"], target["refId"], target["expr"], bool(target["instant"])
            )


def question(uid: str, title: str, ref: str = "A") -> Question:
    """Find one query by its panel's title."""
    return next(q for q in questions_of(load(uid)) if q.panel == title and q.ref == ref)


def filled(expr: str, values: Mapping[str, str]) -> str:
    """Put values for Grafana's variables into a query, as Grafana would; all of them must be given."""
    return re.sub(r"\$(\w+)", lambda match: values[match[1]], expr)


def defaults(**changes: str) -> dict[str, str]:
    """Return what the variables are when nothing has been chosen, over an hour scraped each minute."""
    everything = {"cluster": ".*", "job": ".+", "instance": ".+", "dir": ".+", "run_id": "8812"}
    return {**everything, "window": "30m", "__range": "3600s", "__rate_interval": "240s", **changes}
