"""Loads of two arms: the ratio that is in them, and which loads say anything of storage."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from ckpt_exporter.analysis.arms import parse_source, read_source
from ckpt_exporter.analysis.compare import compare
from ckpt_exporter.analysis.compare_document import compare_document
from ckpt_exporter.analysis.compare_loads import LoadComparison, compare_loads
from ckpt_exporter.analysis.render import render
from ckpt_exporter.cli import main
from ckpt_exporter.errors import CkptExporterError
from ckpt_exporter.history.database import HistoryDatabase
from ckpt_exporter.history.records import LoadRecord, Measurements
from tests.history_samples import LOAD, MIDNIGHT
from tests.unit.measured import arm

GB = 1_000_000_000
# The published loads: 6.2 to 9.3 times as fast from the other storage.
RATIO = 7.5


def load(number: int, seconds: float, cached_ratio: float | None = 0.0, **changes: object) -> LoadRecord:
    """Return the load of 130 GB that began so many hours after midnight."""
    start = MIDNIGHT + 3600.0 * number
    place = changes.get("mountpoint", "/old")
    values: dict[str, object] = {
        "start_unix": start, "end_unix": start + seconds, "duration_seconds": seconds, "bytes": 130 * GB,
        "cached_ratio": cached_ratio, "step": number, "path": f"{place}/step-{number}", "mountpoint": "/old",
        "device": "server:/old",
    } | changes  # fmt: skip
    return replace(LOAD, **values)  # type: ignore[arg-type]


def loads(middle: float, count: int = 12, seed: int = 1, **changes: object) -> tuple[LoadRecord, ...]:
    """Return loads whose durations scatter by 3 %."""
    rng = random.Random(seed)
    return tuple(load(n, middle * rng.lognormvariate(0, 0.03), **changes) for n in range(count))


def measured(records: tuple[LoadRecord, ...]) -> Measurements:
    return Measurements("by hand", MIDNIGHT, MIDNIGHT + 86_400.0, (), loads=records)


NFS = loads(300.0)
FABRIC = loads(300.0 / RATIO, seed=2, mountpoint="/new", device="nvme1n1")


def compared(baseline: tuple[LoadRecord, ...], candidate: tuple[LoadRecord, ...]) -> LoadComparison:
    found = compare_loads(baseline, candidate)
    assert found is not None
    return found


def text_of(baseline: tuple[LoadRecord, ...], candidate: tuple[LoadRecord, ...]) -> str:
    document = compare_document(compare(measured(baseline), measured(candidate)))
    return " ".join(render(document, "markdown").split())


def test_a_known_ratio() -> None:
    """Loads that are 7.5 times as fast are found to be, within an interval that holds it and excludes 1."""
    found = compared(NFS, FABRIC)

    for quantity in (found.duration, found.bandwidth):
        assert quantity.gain is not None
        assert quantity.gain.low is not None
        assert quantity.gain.high is not None
        assert quantity.gain.low <= RATIO <= quantity.gain.high
        assert quantity.gain.high / quantity.gain.low < 1.2
        assert quantity.verdict == "better"
    assert found.warnings == ()
    assert compared(FABRIC, NFS).duration.verdict == "worse"
    assert compared(NFS, loads(300.0, seed=3)).duration.verdict == "no difference shown"


def test_too_few() -> None:
    """Four loads an arm show nothing, however far they are apart; five do."""
    four, five = compared(NFS[:4], FABRIC), compared(NFS[:5], FABRIC[:5])

    assert (four.duration.verdict, four.bandwidth.verdict) == ("not enough data", "not enough data")
    assert four.warnings == ("The baseline has 4 loads from storage; below 5 there is no verdict on loads.",)
    assert five.duration.verdict == "better"


def test_what_came_from_the_cache_is_left_out() -> None:
    """Loads from the page cache, and those of which nobody knows, change no number and are named."""
    quick = (load(20, 4.0, cached_ratio=1.0), load(21, 50.0, cached_ratio=0.1), load(22, 60.0, None))
    found = compared((*NFS, *quick), FABRIC)

    assert found.duration == compared(NFS, FABRIC).duration
    assert (found.baseline.cached, found.baseline.unknown) == (2, 1)
    (warning,) = found.warnings
    assert warning.startswith("Left out of 15 loads of the baseline: 3, since that does not tell how fast")
    assert "2 came to 10 % or more from the page cache and of 1 it is not known" in warning
    warm = compared(quick, quick)
    assert warm.duration.baseline is None
    assert "There is not enough data to compare loads from storage." in text_of(quick, quick)


@pytest.mark.parametrize(
    ("candidate", "said"),
    [
        (loads(40.0, bytes=13 * GB, mountpoint="/new"), "Loads differ in size (130 GB against 13.0 GB)"),
        (loads(40.0, readers=1, mountpoint="/new"), "Loads differ in readers of a file (8 against 1)"),
        (loads(40.0, seed=4), "from the same mount: this compares times or runs, not storages."),
        (NFS, "12 loads in both arms"),
    ],
)
def test_what_limits_it(candidate: tuple[LoadRecord, ...], said: str) -> None:
    """Other sizes, readers, the same mount and the same loads are said."""
    assert any(said in warning for warning in compared(NFS, candidate).warnings)


def test_of_other_sizes_the_bandwidth_is_the_answer() -> None:
    """A tenth of the bytes in a tenth of the time is no faster storage, and the answer does not say so."""
    said = text_of(NFS, loads(30.0, bytes=13 * GB, mountpoint="/new"))

    assert "No difference of loads from storage is shown: 0.43" in said
    assert "compare bandwidths, not durations" in said


def test_every_format() -> None:
    """The answer, both tables and the picture are there; arms that only load say nothing of saves."""
    comparison = compare(measured(NFS), measured(FABRIC))
    document = compare_document(comparison)
    text = render(document, "table")
    data = json.loads(render(document, "json"))["loads"]

    assert max(map(len, text.splitlines())) <= 80
    assert "Loads from storage are faster: " in text
    assert "save" not in text.partition("Intervals are")[0]
    assert data["quantities"]["load_duration_seconds"]["gain"]["estimate"] == pytest.approx(RATIO, rel=0.05)
    assert (data["candidate"]["from_storage"], data["candidate"]["cached"]) == (12, 0)
    assert "Duration of each load from storage" in render(document, "html")
    assert "| bandwidth from storage |" in render(document, "markdown")


def test_beside_saves() -> None:
    """Arms with saves and loads have both answers; without loads there is nothing about them."""
    both = compare(replace(arm(178.0), loads=NFS), replace(arm(94.0, seed=2), loads=FABRIC))
    text = render(compare_document(both), "table")
    neither = compare_document(compare(arm(178.0), arm(94.0, seed=2)))

    assert "Saves are faster: " in text
    assert "Loads from storage are faster: " in text
    assert neither.data["loads"] is None
    assert "Loads" not in render(neither, "table")


def test_two_mounts_of_one_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Loads are chosen by their mount, and a mount that no load has is refused."""
    file = tmp_path / "history.db"
    database = HistoryDatabase(str(file))
    with database.transaction():
        for record in (*NFS, *FABRIC):
            database.add_load(record)
    database.close()
    status = main(
        ["compare", f"{file}?mountpoint=/old", f"{file}?mountpoint=/new", "--no-gates", "--format=json"]
    )
    found = json.loads(capsys.readouterr().out)["loads"]

    assert status == 0
    assert (found["baseline"]["loads"], found["candidate"]["loads"]) == (12, 12)
    assert found["quantities"]["load_duration_seconds"]["verdict"] == "better"
    with pytest.raises(CkptExporterError, match=r"no load has mountpoint=/nwe; there are /new, /old"):
        read_source(parse_source(f"{file}?mountpoint=/nwe", MIDNIGHT))
