"""Comparisons: the true ratio within its interval, no verdict without data, and warnings that limit it."""

from __future__ import annotations

from typing import Any

import pytest

from ckpt_exporter.analysis.compare import compare
from ckpt_exporter.analysis.compare_document import compare_document
from ckpt_exporter.analysis.job_saves import job_saves
from ckpt_exporter.analysis.render import render
from tests.unit.measured import BYTES, arm, measurements, save_record


class TestJobSaves:
    def test_slowest_node_is_the_save(self) -> None:
        """Three nodes that report 6, 7 and 20 s for a step are one save of 20 s; bytes sum up."""
        (joined,) = job_saves([save_record(1, d, node) for node, d in (("a", 6.0), ("b", 7.0), ("c", 20.0))])

        assert joined.duration_seconds == 20
        assert joined.bytes == 3 * BYTES
        assert joined.average_bandwidth == BYTES / 20
        assert joined.gpus == 24
        assert joined.bubble_seconds == 11
        assert joined.nodes == ("a", "b", "c")

    def test_one_step_saved_twice_is_two_saves(self) -> None:
        """A step saved again after a restart, or by another run, is another save."""
        again = save_record(1, 10.0, "b", start_unix=90_000.0, end_unix=90_010.0)
        other = save_record(1, 10.0, "c", run_id="other")
        saves = job_saves([save_record(1, 10.0, "a", run_id="one"), again, other])

        assert len(saves) == 3

    def test_one_bad_part_spoils_it(self) -> None:
        """A save is complete only if every node's part is."""
        (joined,) = job_saves([save_record(1, 6.0, "a"), save_record(1, 6.0, "b", result="incomplete")])

        assert not joined.complete

    def test_what_no_node_knows_is_unknown(self) -> None:
        """A duration that no node knows is not made up."""
        (joined,) = job_saves(
            [save_record(1, 6.0, duration_seconds=None, bubble_seconds=None, bubble_gpu_seconds={})]
        )

        assert (joined.duration_seconds, joined.bubble_seconds, joined.gpus) == (None, None, None)


class TestCompare:
    def test_true_ratio_is_inside(self) -> None:
        """Saves around 178 and 94 s: the true ratio lies within the interval, and the verdict is better."""
        quantity = compare(arm(178), arm(94, seed=2)).quantity("duration_seconds")

        assert quantity.gain is not None
        assert quantity.gain.low is not None
        assert quantity.gain.high is not None
        assert quantity.gain.low < 178 / 94 < quantity.gain.high
        assert quantity.gain.high - quantity.gain.low < 0.2
        assert quantity.verdict == "better"

    def test_both_directions(self) -> None:
        """Bandwidths are better when higher, durations when shorter; turned around both are worse."""
        verdicts = {
            q.key: q.verdict for q in compare(arm(94), arm(178, seed=2)).quantities if q.gain is not None
        }

        assert verdicts == dict.fromkeys(
            ["duration_seconds", "active_seconds", "bubble_seconds", "average_bandwidth",
             "sustained_bandwidth"],
            "worse",
        )  # fmt: skip

    def test_no_difference(self) -> None:
        """Saves of one kind on both sides show no difference."""
        assert compare(arm(94), arm(94, seed=2)).quantity("duration_seconds").verdict == "no difference shown"

    @pytest.mark.parametrize(("count", "verdict"), [(4, "not enough data"), (5, "better")])
    def test_five_saves_an_arm(self, count: int, verdict: str) -> None:
        """Four saves in one arm give no verdict, five do."""
        found = compare(arm(178), arm(94, count))

        assert found.quantity("duration_seconds").verdict == verdict
        assert found.share.verdict == verdict

    def test_shares(self) -> None:
        """Shares are of each arm's own run; the baseline's run is told with the candidate's saves."""
        slow = measurements([save_record(n, 178.0) for n in range(20)])
        fast = measurements([save_record(n, 94.0) for n in range(20)])
        share = compare(slow, fast).share

        assert share.measured
        assert share.baseline is not None
        assert share.baseline.estimate == pytest.approx(3560 / 36_000)
        assert share.candidate is not None
        assert share.candidate.estimate == pytest.approx(1880 / 36_000)
        assert share.baseline_run_with_candidate_saves is not None
        assert share.baseline_run_with_candidate_saves.estimate == pytest.approx(34_320)

    def test_nothing_at_all(self) -> None:
        """Empty arms are compared without a number and without a crash."""
        found = compare(measurements([]), measurements([]))

        assert {q.verdict for q in found.quantities} == {"not enough data"}
        text = render(compare_document(found), "table")
        assert "not enough data" in text

    def test_the_same_every_time(self) -> None:
        """The same records give the same document."""
        one, other = (render(compare_document(compare(arm(178), arm(94))), "json") for _ in range(2))

        assert one == other


class TestWarnings:
    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"bytes": BYTES * 2}, "differ in size"),
            ({"files": 64}, "differ in files"),
            ({"layout": "deepspeed"}, "Layouts differ"),
            ({"bubble_gpu_seconds": dict.fromkeys(range(16), 94.0)}, "GPUs differ"),
            ({"source": "utilization"}, "measured differently"),
            ({"quality": "low"}, "low quality"),
            ({"bubble_seconds": None, "bubble_gpu_seconds": {}}, "no bubble figures"),
            ({"mountpoint": "/old"}, "same mount"),
        ],
    )
    def test_what_makes_arms_incomparable(self, changes: dict[str, Any], said: str) -> None:
        """Other sizes, files, layouts, GPUs or ways of measuring are said."""
        found = compare(arm(178), arm(94, **{"mountpoint": "/new", "path": "/new/x", **changes}))

        assert any(said in warning for warning in found.warnings)

    def test_layouts_that_are_not_known(self) -> None:
        """Saves told by a Prometheus server have no layout, which is no other framework."""
        found = compare(arm(178, layout=""), arm(94, mountpoint="/new", layout="dcp"))

        assert not [warning for warning in found.warnings if "Layouts" in warning]

    def test_like_arms_have_none(self) -> None:
        """Arms that differ in storage alone raise no warning."""
        # 1,622 s of training before each save on both sides
        slow = [save_record(n, 178.0) for n in range(20)]
        fast = [
            save_record(
                n, 94.0, mountpoint="/new", start_unix=1e6 + n * 1716.0, end_unix=1e6 + n * 1716.0 + 94
            )
            for n in range(20)
        ]

        assert compare(measurements(slow), measurements(fast)).warnings == ()

    def test_counts_and_overlap(self) -> None:
        """Few saves, incomplete ones, another number of nodes, and saves in both arms are said."""
        slow = [save_record(n, 178.0) for n in range(4)]
        both = [*slow, save_record(9, 90.0, result="incomplete"), save_record(8, 90.0, "n2")]
        said = " ".join(compare(measurements(slow), measurements(both)).warnings)

        assert "baseline has 4 complete saves" in said
        assert "1 of 6 saves of the candidate were not completed" in said
        assert "4 saves in both arms" in said
        assert "Nodes differ (1 against 2)" in said

    def test_mixed_directories(self) -> None:
        """An arm of two directories is said to be a mixture."""
        mixed = [*arm(94).saves, save_record(30, 94.0, directory="vit")]
        said = " ".join(compare(arm(178), measurements(mixed)).warnings)

        assert "candidate mixes directories (llama, vit)" in said

    def test_another_pace(self) -> None:
        """Training that got slower between saves is said: not only the storage changed."""
        slower = [save_record(n, 94.0, start_unix=n * 2400.0, end_unix=n * 2400.0 + 94) for n in range(20)]
        said = " ".join(compare(arm(94), measurements(slower)).warnings)

        assert "changed its pace" in said


@pytest.mark.parametrize("format_", ["table", "markdown", "html", "json"])
def test_every_format(format_: Any) -> None:
    """A comparison shows in every format, the table in 80 columns."""
    text = render(compare_document(compare(arm(178), arm(94))), format_)

    assert "better" in text
    assert format_ != "table" or max(map(len, text.splitlines())) <= 80
