"""The report's numbers, each derived by hand, and what people read of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ckpt_exporter.analysis.document import Chart, Paragraph, Table
from ckpt_exporter.analysis.render import render
from ckpt_exporter.analysis.report import Scope, report_data
from ckpt_exporter.analysis.report_document import report
from ckpt_exporter.analysis.stragglers import owner
from ckpt_exporter.history.records import GpuTimeRecord, Measurements, SaveRecord, ShardRecord
from tests.history_samples import HOUR, MIDNIGHT, PLAIN, numbered, published_case

ALL = Scope(since_given=True, until_given=True)


def measured(saves: Sequence[SaveRecord], *hours: GpuTimeRecord, seconds: float = 36_000.0) -> Measurements:
    """Return measurements of a window that begins at midnight."""
    return Measurements("by hand", MIDNIGHT, MIDNIGHT + seconds, tuple(saves), hours)


def data_of(saves: Sequence[SaveRecord], *hours: GpuTimeRecord, seconds: float = 36_000.0) -> dict[str, Any]:
    return report_data(measured(saves, *hours, seconds=seconds), ALL)


def timed(number: int, seconds: float, **values: Any) -> SaveRecord:
    """Return the save of one step that took so long."""
    end = MIDNIGHT + 1000.0 * (number + 1)
    return numbered(number, start_unix=end - seconds, end_unix=end, duration_seconds=seconds, **values)


def bubbled(number: int, seconds: float = 100.0, **phases: float) -> SaveRecord:
    """Return a save whose bubble has these phases on two GPUs."""
    lost = sum(phases.values())
    return timed(
        number, seconds, bubble_seconds=lost, bubble_gpu_seconds={0: lost, 1: lost},
        bubble_phases={"before_write": 0.0, "writing": 0.0, "write_gap": 0.0, "after_write": 0.0, **phases},
        quality="high",
    )  # fmt: skip


class TestPublishedCase:
    """20 saves of 65.6 GB, 178 s each, in 36,000 s on 8 GPUs."""

    def test_cost(self) -> None:
        """The saves take 3,560 s, 9.89 % of the time, and 28,480 of 288,000 GPU-seconds."""
        data = report_data(published_case(), Scope())

        assert data["saves"]["results"] == {"complete": 20, "incomplete": 0, "aborted": 0}
        assert data["save_time"]["seconds"] == pytest.approx(3560)
        assert data["save_time"]["of_seconds"] == 36_000
        assert data["save_time"]["share"] == pytest.approx(0.098889, abs=1e-6)
        assert data["bubble"]["gpu_seconds"] == pytest.approx(28_480)
        assert data["bubble"]["gpu_hours"] == pytest.approx(7.9111, abs=1e-4)
        assert data["bubble"]["observed_gpu_seconds"] == 288_000
        assert data["bubble"]["share"] == pytest.approx(0.098889, abs=1e-6)

    def test_bandwidths(self) -> None:
        """65.6 GB in 178 s are 0.37 GB/s on average, not the 3.26 GB/s that count other bytes."""
        bandwidth = report_data(published_case(), Scope())["bandwidth"]

        assert bandwidth["average"]["median"] == pytest.approx(0.36854e9, rel=1e-4)
        assert bandwidth["sustained"]["median"] == pytest.approx(0.38251e9, rel=1e-4)
        assert bandwidth["peak"]["worst"] == 0.5e9

    def test_faster_storage(self) -> None:
        """Of 178 s bytes flow for 171.5 s, so at most 96.3 % can be won back: 27,440 GPU-seconds."""
        faster = report_data(published_case(), Scope())["faster_storage"]

        assert faster["basis"] == "bubble"
        assert faster["at_most_seconds"] == pytest.approx(3430)
        assert faster["at_most_gpu_seconds"] == pytest.approx(27_440)
        assert faster["share"] == pytest.approx(171.5 / 178)

    def test_what_people_read(self) -> None:
        """The first lines say what was lost, in GPU-hours and as a share with its denominator."""
        text = render(report(published_case(), Scope()), "table")

        assert (
            "The GPUs lost 7.91 GPU-hours to saves: 9.89 % of the observed GPU time (80.0\nGPU-hours)."
            in text
        )
        assert "at most 7.62 GPU-hours, 96 % of the bubble" in text


class TestTime:
    def test_wall_clock_is_the_denominator(self) -> None:
        """Ten cycles of 120 s training and 30 s saving are a share of 0.20 (of elapsed time)."""
        saves = [
            numbered(i, start_unix=MIDNIGHT + 150 * i + 120, end_unix=MIDNIGHT + 150 * (i + 1),
                     duration_seconds=30.0, bubble_seconds=30.0, bubble_gpu_seconds={0: 30.0})
            for i in range(10)
        ]  # fmt: skip
        data = data_of(saves, GpuTimeRecord("n1", 0, "GPU-0", MIDNIGHT, 1500.0), seconds=1500.0)

        assert data["save_time"]["share"] == pytest.approx(0.20)
        assert data["bubble"]["share"] == pytest.approx(0.20)

    def test_spread(self) -> None:
        """Median, 95th percentile and worst of 1 to 20 s; of bandwidths the slow end is the bad one."""
        saves = [timed(i, float(i), average_bandwidth=1e9 / i) for i in range(1, 21)]
        data = data_of(saves)

        assert data["duration_seconds"]["median"] == 10.5
        assert data["duration_seconds"]["p95"] == pytest.approx(19.05)  # 0.95 * 19 = 18.05 steps above 1
        assert data["duration_seconds"]["worst"] == 20.0
        assert data["bandwidth"]["average"]["worst"] == 1e9 / 20
        # 0.05 * 19 = 0.95 of the way from 1/20 to 1/19
        assert data["bandwidth"]["average"]["p5"] == pytest.approx(1e9 * (1 / 20 + 0.95 * (1 / 19 - 1 / 20)))

    def test_overlapping_saves_count_once(self) -> None:
        """Two saves that overlap by 40 s were open for 160 s; what lies outside the window is left out."""
        first = timed(0, 100.0)
        second = replace(timed(1, 100.0), start_unix=first.end_unix - 40, end_unix=first.end_unix + 60)
        data = data_of([first, second], seconds=1060.0)
        assert data["save_time"]["seconds"] == pytest.approx(160)
        cut = data_of([first, second], seconds=1010.0)

        assert cut["save_time"]["seconds"] == pytest.approx(110)

    def test_no_window_and_no_gpu_time(self) -> None:
        """Three saves of 10 s that begin 100 s apart are 10 %: as many saves as intervals count."""
        saves = [
            numbered(
                i, start_unix=MIDNIGHT + 100.0 * i, end_unix=MIDNIGHT + 100.0 * i + 10, duration_seconds=10.0
            )
            for i in range(3)
        ]
        save_time = report_data(measured(saves, seconds=210.0), Scope())["save_time"]

        assert save_time == {
            "seconds": 20.0,
            "of_seconds": 200.0,
            "share": 0.1,
            "basis": "first_to_last_start",
        }

    def test_unknown_durations(self) -> None:
        """A save of unknown duration counts as a save and in no duration."""
        unknown = replace(timed(1, 1.0), duration_seconds=None, active_seconds=None, average_bandwidth=None)
        data = data_of([timed(0, 50.0), unknown])

        assert data["saves"]["count"] == 2
        assert (data["duration_seconds"]["known"], data["duration_seconds"]["total"]) == (1, 50.0)
        assert data["save_time"]["seconds"] == 50.0


class TestSeveralNodes:
    """Three nodes write one step in 6, 7 and 20 s."""

    SAVES = tuple(
        replace(
            timed(0, seconds), node=f"n{i}",
            start_unix=MIDNIGHT + 0.5 * i, end_unix=MIDNIGHT + 0.5 * i + seconds,
            bytes=10_000_000_000, files=8, average_bandwidth=10e9 / seconds, bubble_seconds=20.0,
            bubble_gpu_seconds={0: 20.0, 1: 20.0},
            bubble_phases={"writing": seconds, "after_write": 20.0 - seconds},
        )
        for i, seconds in enumerate((6.0, 7.0, 20.0))
    )  # fmt: skip

    def test_one_save(self) -> None:
        """They are one save of 20 s: not three, not 11 s (the mean) and not 33 s (the sum)."""
        data = data_of(self.SAVES)

        assert data["saves"]["count"] == 1
        assert data["saves"]["nodes"] == ["n0", "n1", "n2"]
        assert data["duration_seconds"]["worst"] == 20.0
        assert data["bytes"]["total"] == 30_000_000_000
        assert data["bytes"]["files"] == 24
        assert data["bandwidth"]["average"]["median"] == 0.5e9  # 10 GB in 20 s, the slowest node

    def test_which_parts_belong_together(self) -> None:
        """Pods of one job have ids of their own and are one save; two Slurm jobs at once are two."""
        pods = [replace(save, scheduler="kubernetes", run_id=save.node) for save in self.SAVES]
        slurm = [replace(save, scheduler="slurm", run_id="1") for save in self.SAVES]
        unknown_on_one = [*slurm[:2], self.SAVES[2]]
        other = [
            replace(save, node=f"m{i}", scheduler="slurm", run_id="2") for i, save in enumerate(self.SAVES)
        ]

        assert data_of(pods)["saves"]["count"] == 1
        assert data_of(unknown_on_one)["saves"]["count"] == 1
        assert data_of([*slurm, *other])["saves"]["count"] == 2

    def test_gpus_of_all_nodes(self) -> None:
        """GPU-seconds add up over nodes, phases are the mean over all GPUs, shares use every node's time."""
        hours = [
            GpuTimeRecord(f"n{i}", gpu, f"{i}-{gpu}", MIDNIGHT, 1000.0) for i in range(3) for gpu in range(2)
        ]
        data = data_of(self.SAVES, *hours)

        assert data["bubble"]["gpu_seconds"] == 120.0  # 3 nodes, 2 GPUs, 20 s
        assert data["bubble"]["share"] == pytest.approx(0.02)
        assert data["phases"]["writing"]["seconds"] == pytest.approx(11.0)  # (6 + 7 + 20) / 3
        assert data["phases"]["writing"]["gpu_seconds"] == pytest.approx(66.0)
        assert [(g["node"], g["gpu"], g["share"]) for g in data["gpus"]][-1] == ("n2", 1, pytest.approx(0.02))

    def test_the_node_that_all_wait_for(self) -> None:
        """The save waits for n2 alone, from 7.5 s (the end of n1) to 21 s."""
        data = data_of(self.SAVES)

        assert data["stragglers"]["nodes_examined"] == 1
        assert data["stragglers"]["nodes"] == [{"who": "n2", "saves": 1, "waited_seconds": 13.5}]
        assert data["slowest"][0]["reason"].startswith("waited 13.5 s for n2 alone")


class TestReasons:
    @pytest.mark.parametrize(
        ("phases", "code", "text"),
        [
            ({"before_write": 80.0, "writing": 20.0}, "before_write", "waited before the first byte (80 %)"),
            ({"writing": 80.0, "after_write": 20.0}, "writing", "storage: writing took 80 %"),
            ({"write_gap": 60.0, "writing": 40.0}, "write_gap", "pauses between writes (60 %)"),
            (
                {"after_write": 70.0, "writing": 30.0},
                "after_write",
                "after the last byte: fsync, barrier (70 %)",
            ),
        ],
    )
    def test_by_phase(self, phases: dict[str, float], code: str, text: str) -> None:
        """The phase in which most of the bubble lies is the reason, with its share."""
        slowest = data_of([bubbled(0, **phases)])["slowest"][0]

        assert (slowest["reason_codes"], slowest["reason"]) == ([code], text)

    def test_without_gpus(self) -> None:
        """Without a bubble the reason is whether bytes flowed: 80 of 100 s, or 20 of 100 s."""
        fast, slow = timed(0, 100.0, active_seconds=80.0), timed(1, 101.0, active_seconds=20.2)
        slowest = data_of([fast, slow])["slowest"]

        assert slowest[1]["reason"] == "storage: writing took 80 %"
        assert slowest[0]["reason"] == "no bytes flowed for 80 % of it"

    def test_a_larger_save(self) -> None:
        """A save of twice the usual size says so first."""
        saves = [timed(i, 100.0) for i in range(4)] + [
            timed(4, 200.0, bytes=2 * PLAIN.bytes, active_seconds=160.0)
        ]
        slowest = data_of(saves)["slowest"][0]

        assert slowest["times_median"] == 2.0
        assert slowest["reason"] == "2.0 times the usual bytes; storage: writing took 80 %"

    def test_order_and_number(self) -> None:
        """The five slowest are listed, slowest first; people are not shown those as quick as the median."""
        data = data_of([timed(i, 100.0 + i) for i in range(9)])
        assert [save["step"] for save in data["slowest"]] == [8, 7, 6, 5, 4]
        text = render(report(measured([timed(i, 100.0 + i) for i in range(9)]), ALL), "table")

        assert "No save took more than 5 % longer than the median." in text


def sharded(number: int, last: str, seconds_behind: float) -> SaveRecord:
    """Return a save of four ranks, one of which ends behind the others, and a small file after all."""
    save = timed(number, 100.0)
    ends = {f"__{rank}_0.distcp": save.end_unix - 40.0 - rank for rank in range(4)}
    ends[last] = save.end_unix - 40.0 + seconds_behind
    shards = [ShardRecord(name, 1_000_000_000, save.start_unix, end) for name, end in ends.items()]
    return replace(save, shards=(*shards, ShardRecord(".metadata", 5000, None, save.end_unix)))


class TestStragglers:
    def test_a_rank_behind_in_most_saves(self) -> None:
        """Rank 3 ends 30 s after all others in two of three saves; half a second is how ranks end anyway."""
        saves = [
            sharded(0, "__3_0.distcp", 30.0),
            sharded(1, "__3_0.distcp", 30.0),
            sharded(2, "__1_0.distcp", 0.5),
        ]
        found = data_of(saves)["stragglers"]

        assert found["shards_examined"] == 3
        assert found["shards"] == [{"who": "rank 3", "saves": 2, "waited_seconds": 60.0}]

    @pytest.mark.parametrize(
        ("name", "who"),
        [
            ("__7_0.distcp", "rank 7"),
            ("global_step40/bf16_zero_pp_rank_12_mp_rank_00_optim_states.pt", "rank 12"),
            ("mp_rank_03_model_states.pt", "rank 3"),
            ("rank_0005.pt", "rank 5"),
            ("default/ocdbt.process_2/d/abc", "rank 2"),
            ("model-00002-of-00004.safetensors", "model-00002-of-00004.safetensors"),
            ("frank_7.bin", "frank_7.bin"),
            ("epoch=0-step=40.ckpt", "epoch=0-step=N.ckpt"),
            ("weights-400.bin", "weights-400.bin"),
        ],
    )
    def test_names(self, name: str, who: str) -> None:
        """A rank is read from the names of the known layouts; a step in a name does not make two shards."""
        assert owner(name, replace(PLAIN, step=40)) == who


class TestWhatIsMissing:
    def test_saves_without_a_figure(self) -> None:
        """Saves without a bubble are said, with the reason, and add nothing to the loss."""
        saves = [bubbled(0, writing=50.0), timed(1, 100.0, bubble_skipped="no_baseline"), timed(2, 100.0)]
        document = report(measured(saves, GpuTimeRecord("n1", 0, "a", MIDNIGHT, 1000.0)), ALL)
        warnings = [b.text for b in document.blocks if isinstance(b, Paragraph) and b.kind == "warning"]

        assert document.data["bubble"]["gpu_seconds"] == 100.0  # type: ignore[index]
        said = (
            "2 saves without a bubble figure (no steady training before the save: 1): what the GPUs lost to "
            "them is not in these numbers."
        )

        assert warnings == [said]

    def test_no_gpus(self) -> None:
        """Without GPUs nothing is said of GPU-hours; faster storage is judged by the time bytes flowed."""
        document = report(measured([timed(0, 100.0, active_seconds=80.0)]), ALL)
        data = document.data

        assert data["bubble"]["gpu_seconds"] is None  # type: ignore[index]
        assert data["bubble"]["share"] is None  # type: ignore[index]
        assert data["phases"] is None
        assert data["stalls"] is None
        assert data["faster_storage"]["share"] == pytest.approx(0.8)  # type: ignore[index]
        assert "No bubble was measured" in render(document, "table")

    def test_no_observed_time(self) -> None:
        """A bubble without observed time has no share, rather than one of some other denominator."""
        bubble = data_of([bubbled(0, writing=50.0)])["bubble"]

        assert (bubble["gpu_seconds"], bubble["observed_gpu_seconds"], bubble["share"]) == (100.0, None, None)

    def test_results(self) -> None:
        """Incomplete and aborted saves are counted and listed, cost GPU time, and are in no duration."""
        bad = replace(bubbled(1, writing=10.0), result="incomplete", reason="no_commit")
        gone = replace(timed(2, 100.0), result="aborted", reason="files_removed")
        data = data_of([bubbled(0, writing=50.0), bad, gone])

        assert data["saves"]["results"] == {"complete": 1, "incomplete": 1, "aborted": 1}
        assert data["duration_seconds"]["known"] == 1
        assert data["bubble"]["gpu_seconds"] == 120.0
        assert [(save["step"], save["reason"]) for save in data["unfinished"]] == [
            (1, "no_commit"), (2, "files_removed"),
        ]  # fmt: skip

    def test_part_of_the_saves(self) -> None:
        """Of one directory's saves the measure is the GPUs that they stopped, not every GPU of the node."""
        hours = [GpuTimeRecord("n1", gpu, f"{gpu}", MIDNIGHT, 1000.0) for gpu in range(8)]
        bubble = report_data(measured([bubbled(0, writing=50.0)], *hours), Scope(directory="llama"))["bubble"]

        assert bubble["observed_gpu_seconds"] == 2000.0
        assert bubble["share"] == pytest.approx(0.05)
        assert bubble["denominator"] == "observed GPU time of the GPUs that these saves stopped"

    def test_low_quality(self) -> None:
        """Bubbles told from utilisation alone are marked as too small."""
        alone = replace(bubbled(0, writing=5.0), quality="low", source="utilization")
        text = render(report(measured([alone]), ALL), "table")

        assert "1 bubble told from utilisation alone" in text

    def test_low_quality_for_other_causes(self) -> None:
        """A doubtful bubble from counters is not said to be told from utilisation."""
        doubtful = replace(bubbled(0, writing=5.0), quality="low", source="gpm", notes=("stale_baseline",))
        text = render(report(measured([doubtful]), ALL), "table")

        assert "1 bubble of low quality" in text
        assert "utilisation alone" not in text


class TestTrend:
    def test_halves(self) -> None:
        """Eight saves of 100 s, then eight of 150 s: the second half takes 50 % longer."""
        trend = data_of([timed(i, 100.0 if i < 8 else 150.0) for i in range(16)])["trend"]

        assert (trend["first_half_median_seconds"], trend["second_half_median_seconds"]) == (100.0, 150.0)
        assert trend["change_ratio"] == pytest.approx(0.5)

    def test_by_day(self) -> None:
        """In a window of a week periods are days in UTC, each with its saves and its share."""
        day = 86_400
        saves = [
            replace(
                bubbled(i, writing=36.0),
                start_unix=MIDNIGHT + day * (i // 2),
                end_unix=MIDNIGHT + day * (i // 2) + 50,
            )
            for i in range(4)
        ]
        hours = [GpuTimeRecord("n1", gpu, f"{gpu}", MIDNIGHT + HOUR, 3600.0) for gpu in range(2)]
        trend = data_of(saves, *hours, seconds=7.0 * day)["trend"]

        assert trend["by"] == "day"
        found = [(p["start_unix"] - MIDNIGHT, p["saves"], p["bubble_gpu_seconds"]) for p in trend["periods"]]
        assert found == [(0, 2, 144.0), (day, 2, 144.0)]
        assert trend["periods"][0]["bubble_share"] == pytest.approx(0.02)  # 144 of 7,200
        assert trend["periods"][1]["bubble_share"] is None

    def test_weeks_begin_on_monday(self) -> None:
        """In a window of a year periods are weeks; 2025-11-30 is a Sunday, its week began on the 24th."""
        trend = data_of([timed(0, 100.0)], seconds=365.0 * 86_400)["trend"]

        assert trend["by"] == "week"
        assert trend["periods"][0]["start_unix"] == MIDNIGHT - 6 * 86_400


class TestDocument:
    def test_every_format(self) -> None:
        """The whole report fits 80 columns, its JSON has the same numbers, and HTML and Markdown are made."""
        saves = [
            replace(save, shards=sharded(1, "__3_0.distcp", 30.0).shards) for save in published_case().saves
        ]
        document = report(replace(published_case(), saves=tuple(saves), notes=("of this",)), Scope())
        text = render(document, "table")

        assert max(map(len, text.splitlines())) <= 80
        assert json.loads(render(document, "json"))["bubble"]["gpu_hours"] == pytest.approx(7.9111, abs=1e-4)
        assert "<svg" in render(document, "html")
        assert "9.89 %" in render(document, "markdown")

    def test_pictures(self) -> None:
        """A report of a run with GPUs has pictures of durations, phases, GPUs and the share over time."""
        blocks = report(published_case(), Scope()).blocks

        assert [block.title for block in blocks if isinstance(block, Chart)] == [
            "Duration of each save", "Bubble by phase of the save", "Observed GPU time", "Bubble by GPU",
            "Bubble share by hour",
        ]  # fmt: skip

    def test_many_gpus(self) -> None:
        """Of more than 32 GPUs those that lost most are shown, and JSON has them all."""
        lost = {gpu: float(gpu) for gpu in range(40)}
        document = report(measured([timed(0, 100.0, bubble_seconds=19.5, bubble_gpu_seconds=lost)]), ALL)
        (table,) = [
            b for b in document.blocks if isinstance(b, Table) and b.title.startswith("The 32 GPUs of 40")
        ]

        assert [row[0] for row in table.rows] == [str(gpu) for gpu in range(39, 7, -1)]
        assert len(document.data["gpus"]) == 40  # type: ignore[arg-type]
