"""Write every dashboard as JSON next to this module."""

from __future__ import annotations

from pathlib import Path

from grafana.boards import BOARDS, as_json

for uid, build in BOARDS.items():
    path = Path(__file__).with_name("dashboards") / f"{uid}.json"
    path.write_text(as_json(build()), encoding="utf-8")
