"""The report from a real Prometheus whose samples are known one by one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from ckpt_exporter.analysis.prometheus import read_prometheus
from ckpt_exporter.analysis.report import Scope, report_data
from ckpt_exporter.analysis.sources import read_measurements
from ckpt_exporter.errors import CkptExporterError
from tests.history_samples import MIDNIGHT
from tests.integration.prometheus import Prometheus, backfill, serving

NOON = MIDNIGHT + 12 * 3600
SCRAPE_SECONDS = 15
# End of each complete save after noon, its duration, step and bubble; the third ends 5 s after the second,
# so that no scrape sees the second as the last.
SAVES = ((100.0, 20.0, 1, 18.0), (1000.0, 30.0, 2, 27.0), (1005.0, 5.0, 3, 4.0), (2000.5, 40.0, 4, 36.0))
JUDGED_AFTER = 12.0
GPUS = 2
RESTART_AT = 1500
MOUNT = 'dir="llama",path="/d",mountpoint="/d",device="x",fstype="xfs",transport="nvme-tcp"'


def _lines() -> Iterator[str]:
    """Yield what an exporter with two GPUs shows for an hour: it is restarted once, and one save fails."""
    series: dict[str, list[str]] = {}

    def add(name: str, labels: str, value: float, t: float) -> None:
        series.setdefault(name, []).append(f'{name}{{instance="n1:10047",{labels}}} {value!r} {t!r}')

    for offset in range(0, 3600, SCRAPE_SECONDS):
        t = NOON + float(offset)
        since = RESTART_AT if offset >= RESTART_AT else 0
        ended = [save for save in SAVES if save[0] <= offset]
        counted = [save for save in ended if save[0] > since]
        judged = [save for save in counted if save[0] + JUDGED_AFTER <= offset]
        add("ckpt_saves_total", 'dir="llama",result="complete"', len(counted), t)
        add("ckpt_saves_total", 'dir="llama",result="incomplete"', int(300 <= offset < RESTART_AT), t)
        add("ckpt_directory_info", MOUNT, 1, t)
        add("ckpt_run_info", 'dir="llama",run="pretrain",scheduler="slurm",run_id="4711"', 1, t)
        if ended:
            end, duration, step, bubble = ended[-1]
            gauges = {
                "end_timestamp_seconds": NOON + end, "start_timestamp_seconds": NOON + end - duration,
                "duration_seconds": duration, "bytes": 8e9, "files": 4, "step": step,
                "average_bandwidth_bytes_per_second": 8e9 / duration,
                "sustained_bandwidth_bytes_per_second": 10e9 / duration,
            }  # fmt: skip
            if end + JUDGED_AFTER <= offset:
                gauges["bubble_seconds"] = bubble
            for name, value in gauges.items():
                add(f"ckpt_last_save_{name}", 'dir="llama"', value, t)
        total = sum(save[3] for save in judged)
        for gpu in range(GPUS):
            label = f'gpu="{gpu}",uuid="GPU-{gpu}"'
            add("ckpt_gpu_bubble_seconds_total", f'dir="llama",{label}', total, t)
            add("ckpt_gpu_observed_seconds_total", label, float(offset - since), t)
        add("ckpt_bubble_seconds_total", 'dir="llama",phase="writing"', total * 0.75, t)
        add("ckpt_bubble_seconds_total", 'dir="llama",phase="after_write"', total * 0.25, t)
    for name, lines in series.items():
        yield f"# TYPE {name} unknown"
        yield from lines
    yield "# EOF"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    place = tmp_path_factory.mktemp("prometheus")
    (place / "samples.om").write_text("\n".join(_lines()) + "\n")
    backfill(place / "samples.om", place / "data")
    with serving(place / "data") as running:
        yield running


def test_saves(server: Prometheus) -> None:
    """Each save that a scrape saw as the last one is a record, with its bubble, phases, run and mount."""
    found = read_prometheus(server.url, since=NOON, until=NOON + 3600.0)

    assert [(save.step, save.end_unix - NOON, save.duration_seconds) for save in found.saves] == [
        (1, 100.0, 20.0), (3, 1005.0, 5.0), (4, 2000.5, 40.0),
    ]  # fmt: skip
    first, merged, last = found.saves
    assert (first.node, first.run, first.run_id, first.scheduler) == ("n1:10047", "pretrain", "4711", "slurm")
    assert (first.mountpoint, first.fstype, first.transport) == ("/d", "xfs", "nvme-tcp")
    assert (first.bytes, first.files, first.average_bandwidth) == (8_000_000_000, 4, 4e8)
    assert first.active_seconds == pytest.approx(16.0)  # 8 GB at a sustained 0.5 GB/s
    assert first.peak_bandwidth is None
    assert (first.bubble_seconds, first.bubble_gpu_seconds) == (18.0, {0: 18.0, 1: 18.0})
    assert first.bubble_phases == {"before_write": 0.0, "writing": 13.5, "write_gap": 0.0, "after_write": 4.5}
    # The counters hold what the save between two scrapes cost, too: 27 + 4.
    assert merged.bubble_gpu_seconds == {0: 31.0, 1: 31.0}
    assert last.bubble_gpu_seconds == {0: 36.0, 1: 36.0}  # after a restart, from 0


def test_limits_are_said(server: Prometheus) -> None:
    """What cannot be had from Prometheus is said: a save between scrapes, and those that failed."""
    notes = read_prometheus(server.url, since=NOON, until=NOON + 3600.0).notes

    assert "1 complete saves ended between two scrapes and cannot be told apart" in notes
    assert "1 incomplete saves were counted; no more is known of them" in notes
    assert any("no shards" in note for note in notes)


def test_gpu_time(server: Prometheus) -> None:
    """Observed time is the growth of the counters over a restart: all but the scrape it fell into."""
    found = read_prometheus(server.url, since=NOON, until=NOON + 3600.0)

    # From 0 to 1485 s, and after the restart at 1500 s from 0 to 2085 s (the last scrape is at 3585 s).
    assert [(h.gpu, h.hour_unix, h.observed_seconds) for h in found.gpu_time] == [
        (0, NOON, 1485.0 + 2085.0), (1, NOON, 1485.0 + 2085.0),
    ]  # fmt: skip


def test_report(server: Prometheus) -> None:
    """The report's share is what the counters say: 85 s of bubble in 3,570 observed seconds a GPU."""
    measured = read_measurements(prometheus=server.url, since=NOON, until=NOON + 3600.0)
    data = report_data(measured, Scope(since_given=True, until_given=True))

    assert data["bubble"]["gpu_seconds"] == pytest.approx(2 * 85.0)
    assert data["bubble"]["share"] == pytest.approx(85.0 / 3570.0)
    assert data["duration_seconds"]["worst"] == 40.0
    assert data["source"] == server.url


# --- saves made elsewhere -------------------------------------------------------------------------------

# Rank 0 on w writes at 300 s (step 1) and 900 s (step 2), 60 s each; r, with two GPUs on the same shared
# directory, only waits, and sees each end a second later. r itself writes at 1,500 s (step 3), which w sees.
# What each lost is known 30 s after: w's GPU 50 s a save, r's two 40 s each. q waits with one GPU for
# saves that no scraped node writes, and lost nothing to its first and 20 s to its second.
SHARED: dict[str, dict[str, Any]] = {
    "w": {"own": ((300.0, 1), (900.0, 2)), "seen": (1501.0,), "gpus": 1,
          "cost": {300.0: 50.0, 900.0: 50.0, 1501.0: 50.0}},
    "r": {"own": ((1500.0, 3),), "seen": (301.0, 901.0), "gpus": 2,
          "cost": {301.0: 40.0, 901.0: 40.0, 1500.0: 40.0}},
    "q": {"own": (), "seen": (400.0, 1000.0), "gpus": 1, "cost": {400.0: 0.0, 1000.0: 20.0}},
}  # fmt: skip


def _shared_lines() -> Iterator[str]:
    """Yield what three exporters on shared directories show for an hour."""
    series: dict[str, list[str]] = {}

    def add(name: str, labels: str, value: float, t: float) -> None:
        series.setdefault(name, []).append(f"{name}{{{labels}}} {value!r} {t!r}")

    for node, told in SHARED.items():
        name = "other" if node == "q" else "llama"
        place = f'instance="{node}",dir="{name}"'
        for offset in range(0, 3600, SCRAPE_SECONDS):
            t = NOON + float(offset)
            own = [save for save in told["own"] if save[0] <= offset]
            seen = [end for end in told["seen"] if end <= offset]
            judged = [cost for end, cost in told["cost"].items() if end + 30.0 <= offset]
            add("ckpt_saves_total", f'{place},result="complete"', len(own), t)
            add("ckpt_remote_saves_total", f'{place},result="complete"', len(seen), t)
            add("ckpt_directory_info", f'{place},path="/{name}",device="filer:/{name}"', 1, t)
            if own:
                end, step = own[-1]
                add("ckpt_run_info", f'{place},run="pretrain",scheduler="slurm",run_id="4711"', 1, t)
                gauges = {"end_timestamp_seconds": NOON + end, "start_timestamp_seconds": NOON + end - 60.0,
                          "duration_seconds": 60.0, "bytes": 6e9, "files": 4, "step": step}  # fmt: skip
                if end + 30.0 <= offset:
                    gauges["bubble_seconds"] = told["cost"][end]
                for gauge, value in gauges.items():
                    add(f"ckpt_last_save_{gauge}", place, value, t)
            if seen:
                add("ckpt_last_remote_save_end_timestamp_seconds", place, NOON + seen[-1], t)
            add("ckpt_bubble_seconds_count", place, len(judged), t)
            add("ckpt_bubble_seconds_total", f'{place},phase="writing"', sum(judged), t)
            for gpu in range(told["gpus"]):
                label = f'gpu="{gpu}",uuid="GPU-{node}-{gpu}"'
                add("ckpt_gpu_bubble_seconds_total", f"{place},{label}", sum(judged), t)
                add("ckpt_gpu_observed_seconds_total", f'instance="{node}",{label}', float(offset), t)
    for name, lines in series.items():
        yield f"# TYPE {name} unknown"
        yield from lines
    yield "# EOF"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    place = tmp_path_factory.mktemp("shared")
    (place / "samples.om").write_text("\n".join(_shared_lines()) + "\n")
    backfill(place / "samples.om", place / "data")
    with serving(place / "data") as running:
        yield running


def test_a_node_that_only_waits(shared: Prometheus) -> None:
    """Its bubble is charged to the save that another node tells the step of, and to no earlier one."""
    found = read_prometheus(shared.url, since=NOON, until=NOON + 3600.0).saves
    told = {(s.node, s.step, s.elsewhere): s for s in found if s.directory == "llama"}

    assert set(told) == {
        ("w", 1, False), ("w", 2, False), ("w", 3, True), ("r", 1, True), ("r", 2, True), ("r", 3, False),
    }  # fmt: skip
    for (node, _, elsewhere), save in told.items():
        lost = 50.0 if node == "w" else 40.0
        assert save.bubble_gpu_seconds == dict.fromkeys(range(SHARED[node]["gpus"]), lost)
        assert (save.bubble_seconds, save.bubble_phases["writing"]) == (lost, lost)
        assert (save.bytes, save.duration_seconds) == ((0, None) if elsewhere else (6_000_000_000, 60.0))
        assert (save.run_id, save.start_unix) == ("4711", save.end_unix - 60.0)


def test_saves_that_no_scraped_node_wrote(shared: Prometheus) -> None:
    """They keep their own end, cost what they cost, 0 included, and have neither step nor size."""
    found = read_prometheus(shared.url, since=NOON, until=NOON + 3600.0)
    told = [(s.end_unix - NOON, s.bubble_seconds, s.step, s.elsewhere) for s in found.saves if s.node == "q"]

    assert told == [(400.0, 0.0, None, True), (1000.0, 20.0, None, True)]
    assert not any("cannot be told apart" in note for note in found.notes)


@pytest.mark.parametrize(
    ("directory", "saves", "lost", "observed_gpus"),
    [("llama", 3, 3 * (50.0 + 2 * 40.0), 3), ("other", 2, 20.0, 1), (None, 5, 410.0, 4)],
)
def test_report_of_a_job_of_which_one_node_writes(
    directory: str | None, saves: int, lost: float, observed_gpus: int, shared: Prometheus
) -> None:
    """Each save counts once, and all GPUs of both nodes pay for it; each of them is observed for 3,585 s."""
    measured = read_measurements(prometheus=shared.url, since=NOON, until=NOON + 3600.0, directory=directory)
    data = report_data(measured, Scope(directory=directory, since_given=True, until_given=True))
    written = 0 if directory == "other" else 3 * 6_000_000_000

    assert (data["saves"]["count"], data["bytes"]["total"]) == (saves, written)
    assert data["bubble"]["gpu_seconds"] == pytest.approx(lost)
    assert data["bubble"]["share"] == pytest.approx(lost / (observed_gpus * 3585.0))
    assert data["bubble"]["saves_with_figure"] == saves
    assert data["bubble"]["saves_with_part_of_a_figure"] == 0


def test_report_of_the_run(shared: Prometheus) -> None:
    """A run has the nodes that only wait for it; of what is no part of it nothing."""
    measured = read_measurements(prometheus=shared.url, since=NOON, until=NOON + 3600.0, run="4711")

    assert report_data(measured, Scope(run="4711"))["bubble"]["gpu_seconds"] == pytest.approx(390.0)


def test_a_window_without_saves(server: Prometheus) -> None:
    """A window without a save is one line, exit status 1 by its type."""
    with pytest.raises(CkptExporterError, match="no save has been kept yet"):
        read_measurements(prometheus=server.url, since=NOON - 7200.0, until=NOON - 3600.0)


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, b"<html>", "the answer is not that of a Prometheus server"),
        (404, b"nothing here", "answers 404 Not Found; is this a Prometheus server?"),
        (422, b'{"status":"error","error":"too many samples"}', "answers 422: too many samples"),
    ],
)
def test_other_servers(status: int, body: bytes, said: str) -> None:
    """A server that is no Prometheus, or refuses, is one line with its address and no password."""
    asked: list[str | None] = []

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.headers["Authorization"])
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            pass

    other = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=other.serve_forever)
    thread.start()
    try:
        with pytest.raises(CkptExporterError) as caught:
            read_prometheus(f"http://me:secret@127.0.0.1:{other.server_port}/", since=NOON, until=NOON + 60.0)
    finally:
        other.shutdown()
        thread.join()
        other.server_close()

    assert asked == ["Basic bWU6c2VjcmV0"]  # me:secret
    assert str(caught.value) == f"http://127.0.0.1:{other.server_port}/: {said}"
