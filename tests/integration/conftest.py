"""Real processes, mounts, clocks: a test that a busy machine spoiled is asked once more, and that is shown.

``--force-reruns=0`` asks once: with it faults show that come now and then.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
IMAGE_BYTES = 700 * 1024 * 1024


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.flaky(reruns=1))


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"{' '.join(command[:3])} failed here: {done.stderr.strip()[:200]}")


@pytest.fixture
def filesystem(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Give a directory on the file system that the test is parametrized by; ``disk`` is where others are."""
    kind = request.param
    if kind == "disk":
        yield tmp_path
        return
    where = tmp_path / kind
    where.mkdir()
    if kind == "tmpfs":
        _run("mount", "-t", "tmpfs", "-o", "size=512m", "ckpt-test", str(where))
    else:
        if shutil.which(f"mkfs.{kind}") is None:
            pytest.skip(f"mkfs.{kind} is not installed")
        image = tmp_path / "image"
        with open(image, "wb") as file:
            file.truncate(IMAGE_BYTES)
        _run(f"mkfs.{kind}", "-q", str(image))
        _run("mount", "-o", "loop", str(image), str(where))
    try:
        yield where
    finally:
        subprocess.run(["umount", str(where)], check=False, capture_output=True)
        subprocess.run(["umount", "-l", str(where)], check=False, capture_output=True)
