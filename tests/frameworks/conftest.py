"""The fixture that measures a training framework's saves with the real exporter."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from framework_harness import Exporter, Measurement, run_writer
from framework_truth import save_differences, total_differences

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WRITER_TIMEOUT_SECONDS = 240.0

Measure = Callable[..., Measurement]


def skip_without(*modules: str) -> None:
    """Skip the test, naming what is missing, unless every module is installed."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(
            f"not installed: {', '.join(missing)} (make test-frameworks installs the training frameworks)"
        )


@pytest.fixture
def measure(tmp_path: Path) -> Iterator[Measure]:
    """Give a function that runs one writer while an exporter watches its directory.

    Called as ``measure(writer, *arguments, needs=modules, environment=variables)``.
    """
    watched = tmp_path / "checkpoints"
    exporters: list[Exporter] = []

    def run(
        writer: str, *arguments: str, needs: tuple[str, ...], environment: dict[str, str] | None = None
    ) -> Measurement:
        skip_without(*needs)
        watched.mkdir()
        exporter = Exporter(os.fspath(watched), os.fspath(tmp_path))
        exporters.append(exporter)
        exporter.wait_ready()
        truths = run_writer(
            writer, [os.fspath(watched), *arguments], environment or {}, WRITER_TIMEOUT_SECONDS
        )
        scrape = exporter.settled_scrape(len(truths))
        exporter.stop()
        assert exporter.exit_status() == 0, exporter.log()
        return Measurement(truths, exporter.replay(), scrape)

    yield run
    for exporter in exporters:
        exporter.stop()
    shutil.rmtree(watched, ignore_errors=True)  # gigabytes that pytest would keep for three more runs


@pytest.fixture
def measure_rightly(measure: Measure) -> Measure:
    """Give ``measure`` with every number checked: each save's on the recording, the totals on the scrape."""

    def run(*arguments: str, saves: int, **options: object) -> Measurement:
        measurement = measure(*arguments, **options)
        assert len(measurement.truths) == saves, "the writer did not save as often as its scenario says"
        wrong = save_differences(measurement.truths, measurement.saves)
        wrong += total_differences(measurement.truths, measurement.scrape)
        assert not wrong, "\n".join(wrong)
        return measurement

    return run
