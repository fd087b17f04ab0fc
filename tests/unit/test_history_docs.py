"""docs/history.md and docs/report.md say what the code does."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from ckpt_exporter.analysis.report import Scope, report_data
from ckpt_exporter.history.failures import REASONS
from ckpt_exporter.history.recorder import GPU_TIME_SECONDS, MAX_WAITING, RETRY_SECONDS
from ckpt_exporter.history.rows import GPU_COLUMNS, LOAD_COLUMNS, SAVE_COLUMNS, STALL_COLUMNS
from ckpt_exporter.history.schema import APPLICATION_ID, SCHEMA_VERSION
from tests.history_samples import LOAD, STALL, published_case

DOCS = Path(__file__).parents[2] / "docs"


def words(name: str) -> set[str]:
    """Return what stands in code style in a page."""
    return set(re.findall(r"`([^`]+)`", (DOCS / name).read_text(encoding="utf-8")))


def test_every_column_is_explained() -> None:
    """The page names every column of every table, every failure, the version and the mark of the file."""
    text = (DOCS / "history.md").read_text(encoding="utf-8")

    assert {*SAVE_COLUMNS, *GPU_COLUMNS, *LOAD_COLUMNS, *STALL_COLUMNS, *REASONS} <= words("history.md")
    assert f"0x{APPLICATION_ID:X}" in text
    assert f"the version of the schema ({SCHEMA_VERSION})" in text
    assert f"({MAX_WAITING:,} records)" in text
    assert (RETRY_SECONDS, GPU_TIME_SECONDS) == (60.0, 300.0)  # "every minute", "every five minutes"


def test_every_key_of_the_report_is_explained() -> None:
    """The page names every key of the JSON, and the inner ones of each."""
    data = report_data(replace(published_case(), loads=(LOAD,), stalls=(STALL,)), Scope())
    known = words("report.md")

    assert set(data) <= known
    for key in ("duration_seconds", "save_time", "bubble", "faster_storage", "bytes", "stragglers", "loads"):
        inner = {name for name in data[key] if not name.endswith("_examined")}
        assert inner <= known, key
    assert {*data["loads"]["cached"], *data["stall_episodes"]["data_loading"]} <= known
