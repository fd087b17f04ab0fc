"""Draw the dashboards' pictures: a scripted fleet, a real Prometheus, Grafana's components, Chromium.

Needs prometheus, promtool, node, npm and chromium, and ``npm install`` in this folder first: see the README.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ckpt_exporter.model import Mount
from grafana.render import job
from grafana.story import ScriptedNode, async_save, scrapes, sync_save

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

HERE: Final = Path(__file__).resolve().parent
IMAGES: Final = HERE.parents[1] / "docs" / "images"
HOUR: Final = 3600
BLOCK: Final = 2 * HOUR
BEGAN: Final = 1_763_251_200  # a Sunday, 00:00 UTC
DAY: Final = 24 * HOUR
ENDS: Final = BEGAN + 14 * DAY + 12 * HOUR
SWAPPED: Final = BEGAN + 10 * DAY + 12 * HOUR
LOST: Final = ENDS - 2 * HOUR
PROMETHEUS_PORT: Final = 19391
PREVIEW_PORT: Final = 19392
PROMETHEUS: Final = f"http://127.0.0.1:{PROMETHEUS_PORT}"
VITE: Final = ("node", "node_modules/vite/bin/vite.js")
WIDTH: Final = 1500
# Title and variables above the grid, and one row of the grid.
HEADER_PIXELS: Final = 88
ROW_PIXELS: Final = 38


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture: its name, the dashboard, its range and what is chosen."""

    name: str
    board: str
    since: int
    until: int
    chosen: Mapping[str, str]


PICTURES: Final = (
    Picture("dashboard-fleet", "ckpt-fleet", ENDS - 7 * DAY, ENDS, {}),
    Picture(
        "dashboard-directory",
        "ckpt-directory",
        SWAPPED - 3 * HOUR + 600,
        SWAPPED + 3 * HOUR - 1200,
        {"dir": "llama"},
    ),
    Picture("dashboard-node", "ckpt-node", SWAPPED - 3120, SWAPPED + 480, {"instance": "gpu-01:10047"}),
)


JOB_PICTURE: Final = Picture(
    "dashboard-job", "ckpt-job", job.BEGAN + job.HOUR, job.ENDS, {"run_id": job.RUN_ID}
)


def story() -> tuple[ScriptedNode, ...]:
    """Tell two weeks: llama's saves take 178 s until its storage is swapped for one that takes 94 s."""
    starts = range(BEGAN + 1500, ENDS - 200, 1800)
    llama = tuple(
        sync_save(start, 178.0 if start < SWAPPED else 94.0, 500 * (index + 1), 65_600_000_000)
        for index, start in enumerate(starts)
    )
    llama = tuple(
        replace(save, result="incomplete") if LOST <= save.start < LOST + 1800 else save for save in llama
    )
    vision = tuple(
        async_save(start, 41.3, 200 * (index + 1), 12_400_000_000)
        for index, start in enumerate(range(BEGAN + 400, ENDS - 100, 900))
    )
    return (
        ScriptedNode("gpu-01:10047", BEGAN, {"llama": llama, "vision": ()}, "llama-70b",
                     Mount("/mnt/checkpoints", "nvme2n1", "xfs", "nvme-tcp")),
        ScriptedNode("gpu-02:10047", BEGAN, {"llama": (), "vision": vision}, "vision-l",
                     Mount("/mnt/checkpoints", "nvme2n1", "xfs", "nvme-tcp")),
    )  # fmt: skip


def moments(start: int) -> list[int]:
    """Return when one block is scraped: each 15 s where a picture looks close, else seldom."""
    close = SWAPPED - 4 * HOUR <= start < SWAPPED + 3 * HOUR
    at_the_end = start >= ENDS - BLOCK
    return list(range(start, start + BLOCK, 15 if close else 120 if at_the_end else 900))


def alerts(times: Sequence[int]) -> Iterator[str]:
    """Say which alerts fire."""
    for at in times:
        if at >= LOST + 1800:
            labels = 'alertname="CkptSaveIncomplete",severity="warning",instance="gpu-01:10047",dir="llama"'
            yield f'ALERTS{{alertstate="firing",{labels}}} 1 {at}\n'


def fill(data: Path) -> None:
    """Write the story into a data directory of Prometheus, a block at a time."""
    nodes = story()
    for start in range(BEGAN, ENDS + BLOCK, BLOCK):
        times = [at for at in moments(start) if at <= ENDS]
        with tempfile.NamedTemporaryFile("w", suffix=".om", encoding="utf-8") as text:
            text.writelines(chain(*(scrapes(node, times) for node in nodes), alerts(times)))
            text.write("# EOF\n")
            text.flush()
            run(["promtool", "tsdb", "create-blocks-from", "openmetrics", text.name, str(data)])


def run(command: Sequence[str], **environment: str) -> None:
    """Run a program to its end; show what it said only if it fails."""
    done = subprocess.run(  # noqa: S603 (programs named in this file)
        command, cwd=HERE, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}:\n{done.stdout}\n{done.stderr}")


@contextlib.contextmanager
def serving(command: Sequence[str], url: str, **environment: str) -> Iterator[None]:
    """Keep a server running; it is ready when ``url`` answers."""
    process = subprocess.Popen(  # noqa: S603 (programs named in this file)
        command,
        cwd=HERE,
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(300):
            with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):  # noqa: S310 (loopback)
                break
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait()


def rows_of(board: str) -> int:
    """Return the height of a dashboard with its rows folded, in rows of the grid."""
    panels = json.loads((HERE.parent / "dashboards" / f"{board}.json").read_text(encoding="utf-8"))["panels"]
    shown = [panel for panel in panels if panel["type"] != "row"]
    open_rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in shown)
    return int(open_rows) + len(panels) - len(shown)


def draw(picture: Picture, target: Path) -> None:
    """Let Chromium take one picture."""
    chosen = "".join(f"&var-{name}={value}" for name, value in picture.chosen.items())
    page = f"http://127.0.0.1:{PREVIEW_PORT}/?board={picture.board}&from={picture.since}&to={picture.until}"
    height = HEADER_PIXELS + ROW_PIXELS * rows_of(picture.board)
    with tempfile.TemporaryDirectory() as profile:
        run(
            [
                "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                "--disable-background-networking", "--disable-component-update", "--disable-sync",
                "--hide-scrollbars", f"--user-data-dir={profile}", f"--window-size={WIDTH},{height}",
                "--virtual-time-budget=30000", f"--screenshot={target}", page + chosen,
            ]
        )  # fmt: skip


@contextlib.contextmanager
def served(data: Path) -> Iterator[None]:
    """Let a Prometheus serve a data directory."""
    with tempfile.NamedTemporaryFile("w", suffix=".yml", encoding="utf-8") as config:
        config.write("scrape_configs: []\n")
        config.flush()
        server = ["prometheus", f"--config.file={config.name}", f"--storage.tsdb.path={data}"]
        server += [f"--web.listen-address=127.0.0.1:{PROMETHEUS_PORT}", "--storage.tsdb.retention.time=50y"]
        with serving(server, f"{PROMETHEUS}/-/ready"):
            yield


def draw_all(pictures: Sequence[Picture], data: Path, images: Path) -> None:
    """Draw pictures of what a data directory holds."""
    settings = {"PROMETHEUS": PROMETHEUS, "PORT": str(PREVIEW_PORT)}
    with served(data), serving([*VITE, "preview"], f"http://127.0.0.1:{PREVIEW_PORT}", **settings):
        for picture in pictures:
            draw(picture, images / f"{picture.name}.png")


def main() -> None:
    """Draw every picture into ``docs/images`` or the folder that is named; ``ONLY=job`` that one alone."""
    images = Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES
    images.mkdir(parents=True, exist_ok=True)
    run([*VITE, "build"], PROMETHEUS=PROMETHEUS)
    with tempfile.TemporaryDirectory() as place:
        data, of_job = Path(os.environ.get("DATA", f"{place}/data")), Path(place, "job")
        job.samples(of_job, run)
        for _ in range(job.PASSES):
            with served(of_job):
                job.record(of_job, PROMETHEUS, run)
        draw_all([JOB_PICTURE], of_job, images)
        if os.environ.get("ONLY") != "job":
            if not data.exists():
                fill(data)
            draw_all(PICTURES, data, images)


main()
