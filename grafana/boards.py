"""The dashboards by uid, and their text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from grafana.directory import directory_dashboard
from grafana.fleet import fleet_dashboard
from grafana.job import job_dashboard
from grafana.node import node_dashboard

if TYPE_CHECKING:
    from collections.abc import Callable

BOARDS: Final[dict[str, Callable[[], dict[str, Any]]]] = {
    "ckpt-fleet": fleet_dashboard,
    "ckpt-directory": directory_dashboard,
    "ckpt-job": job_dashboard,
    "ckpt-node": node_dashboard,
}


def as_json(dashboard: dict[str, Any]) -> str:
    """Return the text of a dashboard file."""
    return json.dumps(dashboard, indent=2, ensure_ascii=False) + "\n"
