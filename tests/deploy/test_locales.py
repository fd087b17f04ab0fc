"""Numbers are the same bytes in Chinese, English and German locales, in every format; columns align."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ckpt_exporter.analysis.text import cells
from ckpt_exporter.history.database import HistoryDatabase
from tests.history_samples import LOAD, MIDNIGHT, STALL, published_case

if TYPE_CHECKING:
    from ckpt_exporter.history.records import SaveRecord

LOCALES = ("zh_CN", "en_US", "de_DE")
SOURCES = Path("/usr/share/i18n/locales")
NAME = "检查点目录"

pytestmark = [
    pytest.mark.skipif(
        shutil.which("localedef") is None, reason="localedef is not installed (package locales)"
    ),
    pytest.mark.skipif(not (SOURCES / "zh_CN").exists(), reason="no sources of locales (package locales)"),
    pytest.mark.timeout(600),
]

# A program that takes the user's locale for everything, as one that embeds a C library may.
_ALL = """
import contextlib, hashlib, io, json, locale, sys, time
locale.setlocale(locale.LC_ALL, "")
from ckpt_exporter.cli import main
from tests.unit.export_sample import sample_snapshot
from tests.unit.scraping import OPENMETRICS, scrape
time.tzset()
said = {}
for name, arguments in json.loads(sys.argv[1]).items():
    for form in ("table", "json", "markdown", "html"):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            status = main([*arguments, "--format=" + form])
        assert status == 0, (name, form)
        said[f"{name} {form}"] = out.getvalue()
said["metrics"] = scrape(sample_snapshot())
said["openmetrics"] = scrape(sample_snapshot(), OPENMETRICS)
point, date = locale.localeconv()["decimal_point"], locale.nl_langinfo(locale.D_FMT)
print(json.dumps({"point": point, "date": date, "said": said}))
"""


@pytest.fixture(scope="module")
def locales(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the locales into a directory of their own."""
    place = tmp_path_factory.mktemp("locales")
    compiling = [
        subprocess.Popen(
            ["localedef", "--quiet", "-i", name, "-f", "UTF-8", str(place / f"{name}.UTF-8")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for name in LOCALES
    ]
    for process in compiling:
        process.wait()
    return place


def history(path: Path, saves: tuple[SaveRecord, ...]) -> str:
    """Keep saves of two directories, with loads, stalls and GPU time."""
    database = HistoryDatabase(str(path))
    with database.transaction():
        for number, save in enumerate(saves):
            database.add_save(replace(save, directory=NAME if number % 2 else "llama"))
        for number in range(6):
            start = MIDNIGHT + 3600.0 * number
            load = replace(LOAD, start_unix=start, end_unix=start + 20.5, cached_ratio=0.0, directory=NAME)
            database.add_load(load)
        database.add_stall(STALL)
        database.add_gpu_time(published_case().gpu_time)
    database.close()
    return str(path)


def commands(base: Path) -> dict[str, list[str]]:
    """Return what is run in each locale: one save is slower than the others, by its shard."""
    saves = list(published_case().saves)
    saves[7] = replace(saves[7], duration_seconds=1234.5, start_unix=saves[7].end_unix - 1234.5)
    slow = history(base / "slow.db", tuple(saves))
    fast = history(base / "fast.db", tuple(replace(s, duration_seconds=94.0) for s in saves))
    return {
        "report": ["report", f"--history={slow}"],
        "compare": ["compare", slow, fast, "--no-gates"],
        "project": ["project", f"--history={slow}", "--to-bandwidth=6.4GB/s", "--mtbf=24h"],
    }


def said(locales: Path, name: str, zone: str, asked: dict[str, list[str]]) -> dict[str, object]:
    """Return what all commands print in one locale."""
    environment = {**os.environ, "LC_ALL": name, "LOCPATH": str(locales), "TZ": zone, "COLUMNS": "80"}
    done = subprocess.run(
        [sys.executable, "-c", _ALL, json.dumps(asked)], env=environment, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_the_same_bytes_in_every_locale(locales: Path, tmp_path: Path) -> None:
    """Report, comparison, projection and metrics are the same to the byte, and their columns align."""
    asked = commands(tmp_path)
    german = said(locales, "de_DE.UTF-8", "Europe/Berlin", asked)
    others = {
        name: said(locales, name, zone, asked)
        for name, zone in (
            ("zh_CN.UTF-8", "Asia/Shanghai"),
            ("en_US.UTF-8", "America/New_York"),
            ("C", "UTC"),
        )
    }

    # The locales are in force: a comma, and dates of their own.
    assert german["point"] == ","
    assert len({str(found["date"]) for found in (german, *others.values())}) >= 3
    wanted = german["said"]
    assert isinstance(wanted, dict)
    for name, found in others.items():
        assert _digests(found["said"]) == _digests(wanted), name
    assert "0.369 GB/s" in wanted["report table"]
    for command in asked:
        _check_columns(wanted[f"{command} table"])
        assert '<html lang="en">' in wanted[f"{command} html"]
        assert '<meta charset="utf-8">' in wanted[f"{command} html"]
    assert NAME in wanted["report table"]


def _digests(outputs: object) -> dict[str, str]:
    assert isinstance(outputs, dict)
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in outputs.items()}


def _check_columns(text: str) -> None:
    """Check that no line is wider than 80 cells, and that every table's cells stay between its gaps."""
    lines = text.splitlines()
    assert max(map(cells, lines)) <= 80
    gaps: list[int] = []
    for line in lines:
        if line.startswith("--") and set(line) == {"-", " "}:
            gaps = [at for at, mark in enumerate(line) if mark == " "]
        elif not line.strip():
            gaps = []
        wide = "".join(char + "\0" * (cells(char) - 1) for char in line)
        for at in gaps:
            assert wide[at : at + 1] in ("", " "), line
