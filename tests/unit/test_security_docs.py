"""What docs/security.md claims is held by tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_named_test_exists() -> None:
    """Each test that the document names is defined somewhere below tests/, and each row names one."""
    text = (ROOT / "docs/security.md").read_text()
    defined = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    rows = [line for line in text.splitlines() if line.startswith("| ") and "| test |" not in line]

    assert len(rows) > 30
    assert [row for row in rows if not re.search(r"`test_\w+`", row.rsplit("|", 2)[1])] == []
    assert set(re.findall(r"`(test_\w+)`", text)) - defined == set()


def test_every_security_test_is_named() -> None:
    """Each test of the security files stands in the document: an answer nobody can find is none."""
    text = (ROOT / "docs/security.md").read_text()
    for path in (ROOT / "tests/integration").glob("test_security_*.py"):
        for name in re.findall(r"def (test_\w+)", path.read_text()):
            assert f"`{name}`" in text, name
