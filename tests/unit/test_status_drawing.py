"""The timeline on the status page: what is drawn where, and what it says in words."""

from __future__ import annotations

from dataclasses import replace

from ckpt_exporter.model import DirectorySnapshot, RecentSave, TimelineWindow
from tests.unit.export_sample import LAST_BUBBLE, LAST_SAVE, empty_directory, open_save, sample_snapshot
from tests.unit.page_outline import Outline, outline

# Ten bins of 10 s from 800 on; 1000 is 02:50:00.
WINDOW = TimelineWindow(
    start=800.0,
    bin_seconds=10.0,
    write_rates=(0.0, 0.0, 1e9, 2e9, 0.5e9, 1.0, 0.0, 0.0, 0.0, 0.0),
    activities=(1.0, 0.98, 0.25, 0.0, 0.0, 0.5, None, 1.0, 1.0, None),
    gpus=8,
    gpus_known=True,
)
SAVE = replace(LAST_SAVE, start=820.0, end=860.0)
BUBBLE = replace(LAST_BUBBLE, start=820.0, end=850.0)


def drawn(window: TimelineWindow = WINDOW, **more: object) -> Outline:
    """Render one directory with one window."""
    more.setdefault("recent", (RecentSave(SAVE, BUBBLE),))
    entry: DirectorySnapshot = replace(empty_directory("d"), timeline=(window,), **more)
    return outline(replace(sample_snapshot(), directories=(entry,)))


def attributes(parsed: Outline, kind: str) -> list[dict[str, str | None]]:
    """Return the attributes of all drawn things of a class, but the legend's."""
    return [found for _, found in parsed.tags if found.get("class") == kind and found.get("x") != "1"]


def test_activity_is_a_step_line_that_breaks_where_nothing_was_read() -> None:
    """Levels are percent below the top, equal neighbours one step, an unread bin a gap."""
    line, *_ = (found["d"] for found in attributes(drawn(), "activity") if found["d"] != "M1 4H9V11H17V4H25")
    assert line == "M0 0H1V2H2V75H3V100H5V50H6M7 0H9"
    area = attributes(drawn(), "activity-area")[0]["d"]
    assert area == "M0 0H1V2H2V75H3V100H5V50H6V100H0ZM7 0H9V100H7Z"


def test_write_rates_are_columns_and_the_least_of_them_shows() -> None:
    """Of at most 2 GB/s, 1 GB/s is half as high, a quarter 0.5 GB/s, and one byte is still to be seen."""
    (path,) = (found["d"] for found in attributes(drawn(), "rate") if "d" in found)
    assert path == "M2 100V50h1V100ZM3 100V0h1V100ZM4 100V75h1V100ZM5 100V98h1V100Z"
    assert "2.00 GB/s" in drawn().text


def test_saves_and_bubbles_stand_where_they_were() -> None:
    """From 820 to 860 of 800 to 900 is 20 % to 60 %; the bubble's bar ends at 50 %."""
    (band,) = attributes(drawn(), "save")
    assert (band["x"], band["width"]) == ("20%", "40%")
    (bubble,) = attributes(drawn(), "bubble")
    assert (bubble["x"], bubble["width"]) == ("20%", "30%")
    (step,) = attributes(drawn(), "step")
    assert step["x"] == "40%"
    assert "200" in drawn().text


def test_a_failed_save_is_drawn_otherwise() -> None:
    """A save that is not complete has another band and a cross beside its step."""
    failed = RecentSave(replace(SAVE, result="incomplete", reason="no_commit"))
    parsed = drawn(recent=(failed,))
    assert len(attributes(parsed, "save failed")) == 1
    assert attributes(parsed, "save") == []
    assert "200 ✕" in parsed.text


def test_an_open_save_reaches_to_the_end() -> None:
    """A save that is being written has its band up to now, and three dots."""
    parsed = drawn(recent=(), open_saves=(open_save(300, 870.0, 10**9, stalled=False),))
    (band,) = attributes(parsed, "save")
    assert (band["x"], band["width"]) == ("70%", "30%")
    assert "300 …" in parsed.text


def test_the_drawing_is_told_in_words() -> None:
    """Time, saves, the range of activity and the highest rate stand as text for those who can't see it."""
    parsed = drawn()
    assert "02:46:40 to 02:48:20 UTC" in parsed.text
    assert "1 finished save. GPU activity between 0.0 % and 100 %. Write rate up to 2.00 GB/s." in parsed.text
    (drawing,) = (found for tag, found in parsed.tags if found.get("id") == "timeline-0-0")
    assert drawing["role"] == "img"
    ids = {found.get("id") for _, found in parsed.tags}
    assert set((drawing["aria-labelledby"] or "").split()) <= ids
    caption = "Activity (mean of the run's 8 GPUs) and write rate, around the latest saves"
    assert caption in parsed.text


def test_simulated_gpus_are_named_in_the_caption() -> None:
    """A curve of simulated GPUs says so; GPUs of unknown runs are not called the run's."""
    entry = replace(empty_directory("d"), timeline=(replace(WINDOW, gpus=1, gpus_known=False),))
    backend = replace(sample_snapshot().gpu_backend, backend="simulated")
    parsed = outline(replace(sample_snapshot(), directories=(entry,), gpu_backend=backend))
    assert "Activity (1 simulated GPU) and write rate, around the latest saves" in parsed.text


def test_without_activity_only_the_write_rate_is_drawn() -> None:
    """Unknown activity is no line at 0, and the words say unknown."""
    parsed = drawn(replace(WINDOW, activities=(None,) * 10))
    assert "Write rate (GPU activity unknown), around the latest saves" in parsed.text
    assert "1 finished save. GPU activity unknown. Write rate up to 2.00 GB/s." in parsed.text
    assert attributes(parsed, "activity-area") == []


def test_step_numbers_do_not_run_together() -> None:
    """Of saves that all but touch one is labelled; where a phone has no room, only wide screens do."""
    saves = [replace(SAVE, step=step, start=800.0 + step, end=801.0 + step) for step in (50, 48, 40, 20)]
    parsed = drawn(recent=tuple(RecentSave(save) for save in saves))
    assert len(attributes(parsed, "save")) == 4
    assert [found["x"] for found in attributes(parsed, "step")] == ["50.5%", "20.5%"]
    assert [found["x"] for found in attributes(parsed, "step dense")] == ["40.5%"]
