"""Options and fixtures shared by all tests."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--update-golden``."""
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite golden and generated files; read the diff"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Let the hundred programs that the tests start compile each module once, outside of the checkout."""
    if not hasattr(config, "workerinput"):
        place = tempfile.mkdtemp(prefix="ckpt-exporter-compiled-")
        config.add_cleanup(lambda: shutil.rmtree(place, ignore_errors=True))
        os.environ["PYTHONPYCACHEPREFIX"] = place
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with a file of the repository, named from its root."""

    def compare(name: str, text: str) -> None:
        path = Path(request.config.rootpath, name)
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.read_text(encoding="utf-8") == text

    return compare
