"""The story of the dashboard *Job*: four nodes that save together, one of which writes slowly."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

import yaml

from ckpt_exporter.model import Mount
from grafana.story import ScriptedNode, ScriptedSave, scrapes

BEGAN: Final = 1_764_115_200  # a Wednesday, 00:00 UTC
HOUR: Final = 3600
ENDS: Final = BEGAN + 6 * HOUR
RUN_ID: Final = "9001"
SCRAPE_SECONDS: Final = 30
# Of each node's part of a save.
SECONDS: Final = {"gpu-11:10047": 61.0, "gpu-12:10047": 63.5, "gpu-13:10047": 118.0, "gpu-14:10047": 62.0}
MOUNT: Final = Mount("/mnt/checkpoints", "server:/checkpoints", "nfs4", "nfs", shared=True)
# Rules read each other: so many passes until all have what they read.
PASSES: Final = 5
GROUPS: Final = ("ckpt-last-save", "ckpt-run-counters", "ckpt-run-last-save")
RULES: Final = Path(__file__).resolve().parents[2] / "deploy" / "prometheus" / "rules.yml"


def save(start: float, seconds: float, step: int) -> ScriptedSave:
    """Script a node's part of a save; all nodes stand still until the slowest is done."""
    slowest = max(SECONDS.values())
    return ScriptedSave(
        start,
        start + seconds,
        step,
        41_000_000_000,
        {
            "before_write": 2.0,
            "writing": 0.9 * seconds,
            "write_gap": 0.1 * seconds,
            "after_write": slowest - seconds + 1.0,
        },
    )


def story() -> tuple[ScriptedNode, ...]:
    """Tell six hours, with a save each half hour."""
    starts = range(BEGAN + 900, ENDS - 200, 1800)
    return tuple(
        ScriptedNode(
            name,
            BEGAN,
            {"llama-405b": tuple(save(start, seconds, 500 * (i + 1)) for i, start in enumerate(starts))},
            "llama-405b",
            MOUNT,
            run_id=RUN_ID,
        )
        for name, seconds in SECONDS.items()
    )


def samples(data: Path, run: Callable[[Sequence[str]], None]) -> None:
    """Write what the nodes say into a data directory of Prometheus."""
    times = range(BEGAN, ENDS + SCRAPE_SECONDS, SCRAPE_SECONDS)
    with tempfile.NamedTemporaryFile("w", suffix=".om", encoding="utf-8") as text:
        text.writelines(chain.from_iterable(scrapes(node, times) for node in story()))
        text.write("# EOF\n")
        text.flush()
        run(["promtool", "tsdb", "create-blocks-from", "openmetrics", text.name, str(data)])


def record(data: Path, url: str, run: Callable[[Sequence[str]], None]) -> None:
    """Let the shipped rules record that time once more; a Prometheus serves ``data`` at ``url``."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    with tempfile.NamedTemporaryFile("w", suffix=".yml", encoding="utf-8") as text:
        yaml.safe_dump({"groups": [group for group in groups if group["name"] in GROUPS]}, text)
        text.flush()
        command = ["promtool", "tsdb", "create-blocks-from", "rules", f"--url={url}", f"--output-dir={data}"]
        run([*command, f"--start={BEGAN}", f"--end={ENDS + 60}", "--eval-interval=60s", text.name])
