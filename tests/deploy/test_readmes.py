"""The instructions: links lead somewhere, and what they show is what the program and Prometheus take."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from ckpt_exporter.config.load import load_config
from ckpt_exporter.metrics.catalogue import METRICS
from tests.integration.daemon import REPOSITORY

PAGES = sorted(
    path
    for path in (REPOSITORY / "deploy").rglob("*.md")
    if path.relative_to(REPOSITORY / "deploy").parts[0] in ("README.md", "kubernetes", "helm")
)


def blocks(page: Path) -> list[str]:
    """Return the indented blocks of a page, without their indentation."""
    found: list[list[str]] = [[]]
    for line in page.read_text().splitlines():
        if line.startswith("    ") or (not line and found[-1]):
            found[-1].append(line)
        elif found[-1]:
            found.append([])
    texts = []
    for lines in found:
        indent = min((len(line) - len(line.lstrip()) for line in lines if line), default=0)
        texts.append("\n".join(line[indent:] for line in lines).strip())
    return [text for text in texts if text]


def block(page: Path, begin: str) -> str:
    """Return the first block that begins so."""
    return next(text for text in blocks(page) if text.startswith(begin))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links(page: Path) -> None:
    """Every relative link leads to a file or to a heading of the page."""
    text = page.read_text()
    headings = {
        re.sub(r"[^a-z0-9 -]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.+)$", text, re.M)
    }
    for link in re.findall(r"\]\(([^)]+)\)", text):
        if link.startswith("#"):
            assert link[1:] in headings
        else:
            target = (page.parent / link.partition("#")[0]).resolve()
            top = REPOSITORY.joinpath(*target.relative_to(REPOSITORY).parts[:2])
            if not top.exists():
                pytest.skip(f"{top.relative_to(REPOSITORY)} is not there yet")
            assert target.exists(), link


@pytest.mark.parametrize("begin", ["directories:", "include:"])
def test_configurations(begin: str, tmp_path: Path) -> None:
    """The configurations shown are accepted as they stand."""
    file = tmp_path / "config.yml"
    file.write_text(block(REPOSITORY / "deploy/README.md", begin))
    load_config(str(file), ())


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is missing")
@pytest.mark.parametrize("page", ["deploy/README.md", "deploy/kubernetes/README.md"])
def test_scrape_configurations(page: str, tmp_path: Path) -> None:
    """Prometheus accepts the scrape configurations shown."""
    document = yaml.safe_load(block(REPOSITORY / page, "scrape_configs:"))
    document.pop("rule_files", None)
    for job in document["scrape_configs"]:
        job.pop("kubernetes_sd_configs", None)  # Debian's promtool is built without it
    file = tmp_path / "prometheus.yml"
    file.write_text(yaml.safe_dump(document))
    done = subprocess.run(
        ["promtool", "check", "config", "--syntax-only", file],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_metrics_exist() -> None:
    """Every metric that the instructions name exists."""
    known = {entry.name for entry in METRICS}
    for page in PAGES:
        named = set(re.findall(r"`?\b(ckpt_(?!exporter|name)[a-z_]+[a-z])\b", page.read_text()))
        assert named <= known, page


def test_commands_exist() -> None:
    """Every make target that the instructions name exists."""
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.M))
    for page in [*PAGES, REPOSITORY / "SECURITY.md"]:
        assert set(re.findall(r"`make ([a-z-]+)`", page.read_text())) <= targets
