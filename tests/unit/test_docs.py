"""Documentation that is generated must be what the code says."""

from __future__ import annotations

from pathlib import Path

from ckpt_exporter.config.sample import reference_table, sample_text
from ckpt_exporter.detect.layouts import LAYOUT_NAMES
from ckpt_exporter.metrics.catalogue import METRICS
from ckpt_exporter.sources.backends import BACKENDS
from ckpt_exporter.sources.exposition_tables import TABLES

ROOT = Path(__file__).parents[2]
HEADER = "# Configuration\n\nGenerated from the schema; `ckpt-exporter check` uses the same table.\n\n"


def test_configuration_reference_is_current() -> None:
    """docs/CONFIGURATION.md lists every key as the schema has it."""
    assert (ROOT / "docs/CONFIGURATION.md").read_text() == HEADER + reference_table(LAYOUT_NAMES)


def test_sample_file_is_current() -> None:
    """ckpt-exporter.example.yml is the sample that the schema writes."""
    assert (ROOT / "ckpt-exporter.example.yml").read_text() == sample_text()


def test_readme_names_real_metrics() -> None:
    """Every metric that the README mentions exists."""
    known = {entry.name for entry in METRICS}
    text = (ROOT / "README.md").read_text()
    words = {word.strip("`{}(),.:;") for word in text.replace("{", " ").split()}

    assert {word for word in words if word.startswith("ckpt_") and word != "ckpt_exporter"} <= known


def test_the_page_on_accelerators_names_what_there_is() -> None:
    """docs/accelerators.md has a line for every backend and every exporter, and DCMI's folders."""
    text = (ROOT / "docs/accelerators.md").read_text()
    assert [name for name in (*BACKENDS, "simulated", "none") if f"\n| `{name}` |" not in text] == []
    assert [table.exporter for table in TABLES if f"\n| {table.exporter} | `http://" not in text] == []
    folders = {path.rpartition("/")[0] for path in BACKENDS["dcmi"].libraries if path.startswith("/")}
    assert [folder for folder in folders if folder.rpartition("/")[0] not in text] == []
