"""What the status page says of saves: the latest ones, the open ones, and what is expected of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckpt_exporter.model import Bubble, DirectorySnapshot, OpenSave, RecentSave, Save, Snapshot
from tests.unit.export_sample import (
    LAST_BUBBLE,
    LAST_SAVE,
    MOVED_SAVE,
    empty_directory,
    open_save,
    sample_snapshot,
)
from tests.unit.page_outline import Outline, only, outline

HEADINGS = ["Step", "Started, UTC", "Duration", "Size", "Average", "Sustained", "Peak", "Bubble", "Result"]


def shown(entry: DirectorySnapshot, **more: object) -> Outline:
    """Render the sample's page with one directory."""
    return outline(replace(sample_snapshot(), directories=(entry,), **more))


def llama(*recent: RecentSave, **more: object) -> DirectorySnapshot:
    """Make the sample's first directory, with these finished saves and no open one."""
    more.setdefault("open_saves", ())
    return replace(sample_snapshot().directories[0], recent=recent, **more)


def row_of(parsed: Outline, step: str) -> list[str]:
    """Return the one row of a step in the table of saves."""
    (row,) = (row for row in parsed.rows if len(row) == len(HEADINGS) and row[0] == step)
    return row


# --- finished saves -------------------------------------------------------------------------------------


def test_a_finished_save_stands_with_all_its_figures() -> None:
    """Step, start, duration, bytes, three bandwidths, bubble and result stand in one row."""
    parsed = shown(llama(RecentSave(LAST_SAVE, LAST_BUBBLE, "llama-7b")))
    assert HEADINGS in parsed.rows
    # 1000 is 02:50:00, so 722 is 278 s before it.
    figures = ["2 min 58 s", "65.0 GB", "0.365 GB/s", "0.406 GB/s", "2.00 GB/s", "15.0 s", "complete"]
    assert row_of(parsed, "200") == ["200", "2025-11-30 02:45:22", *figures]


@pytest.mark.parametrize(
    ("bubble", "text"),
    [
        (None, "unknown"),
        (
            Bubble("llama", LAST_SAVE.path, 900.0, skipped="no_baseline"),
            "unknown (no steady training before the save)",
        ),
        (Bubble("llama", LAST_SAVE.path, 900.0, skipped="sampler_gap"), "unknown (readings are missing)"),
        (replace(LAST_BUBBLE, quality="low"), "15.0 s (low quality)"),
        (replace(LAST_BUBBLE, seconds=0.0), "0 ms"),
    ],
)
def test_what_is_known_of_a_bubble_is_said(bubble: Bubble | None, text: str) -> None:
    """A bubble of low quality says so, one that is not known says why; neither is shown as 0."""
    old = replace(LAST_SAVE, end=879.0)  # 121 s ago: its figure would have come
    assert row_of(shown(llama(RecentSave(old, bubble))), "200")[7] == text


def test_a_bubble_that_may_still_come_is_not_called_unknown() -> None:
    """A save that ended a minute ago may get its figure yet."""
    fresh = replace(LAST_SAVE, end=940.0)
    text = " ".join(shown(llama(last_save=fresh, last_bubble=None)).text)
    assert "Its bubble not known yet comes when its dip is over" in text
    assert row_of(shown(llama(RecentSave(fresh))), "200")[7] == "not known yet"
    assert row_of(shown(llama(RecentSave(fresh)), gpu_backend=None), "200")[7] == "unknown"


@pytest.mark.parametrize(
    ("result", "reason", "text"),
    [
        ("incomplete", "no_commit", "incomplete it was never committed, and its writers are gone"),
        ("incomplete", "disk_full", "incomplete the disk was full"),
        ("aborted", "files_removed", "aborted its files were removed before the commit"),
        ("incomplete", "of_the_future", "incomplete of the future"),
    ],
)
def test_a_save_that_failed_says_why_and_needs_attention(result: str, reason: str, text: str) -> None:
    """The reason stands in words in its row, and on top as long as no later save is complete."""
    failed = RecentSave(replace(LAST_SAVE, result=result, reason=reason))
    parsed = shown(llama(failed))
    assert row_of(parsed, "200")[8] == text
    assert "A training that resumes needs an earlier checkpoint." in " ".join(parsed.text)
    later = RecentSave(replace(LAST_SAVE, step=300, end=950.0))
    words = " ".join(shown(llama(later, failed)).text)
    assert "A training that resumes" not in words


def test_a_save_that_was_moved_in_has_no_start() -> None:
    """When its bytes were written is unknown, so its start is not the moment of the move."""
    row = row_of(shown(llama(RecentSave(MOVED_SAVE))), "unknown")
    assert row[:3] == ["unknown", "unknown", "unknown"]


ELSEWHERE = ["Step", "Started, UTC", "Ended, UTC", "Bubble here", "Result"]
REMOTE_SAVE = replace(
    LAST_SAVE, path="/data/llama/checkpoint-300", step=300, start=800.0, end=879.0, bytes=0, files=0,
    duration_seconds=None, active_seconds=None, average_bandwidth=None, sustained_bandwidth=None,
    peak_bandwidth=None, elsewhere=True,
)  # fmt: skip


def waiting(*remote: RecentSave, **more: object) -> DirectorySnapshot:
    """Make a directory that only other hosts write."""
    counts = {"complete": len(remote), "incomplete": 0, "aborted": 0}
    last = remote[0].save
    return replace(
        empty_directory("llama"), recent_remote=remote, last_remote_save=last, remote_saves=counts, **more
    )


def test_a_save_made_elsewhere_is_marked_as_that() -> None:
    """It stands in a table of its own with its bubble on this node's GPUs, and with no size or bandwidth."""
    bubble = replace(LAST_BUBBLE, save_path=REMOTE_SAVE.path, save_end=879.0, elsewhere=True)
    parsed = shown(waiting(RecentSave(REMOTE_SAVE, bubble)))
    text = " ".join(parsed.text)

    assert HEADINGS not in parsed.rows
    (row,) = (row for row in parsed.rows if len(row) == len(ELSEWHERE) and row[0] == "300")
    # 1000 is 02:50:00: 200 and 121 s before it.
    assert row == ["300", "2025-11-30 02:46:40", "2025-11-30 02:47:59", "15.0 s", "complete"]
    assert "Latest saves made elsewhere" in text
    assert "Their bubble is what the GPUs of this node lost to them." in text
    assert "No save of this host has ended since the exporter started." in text
    assert "Last save elsewhere 2 min 1 s ago step 300, bubble here 15.0 s" in text
    assert ["Made elsewhere, complete", "1"] in parsed.rows
    assert ["Saves complete", "0"] in parsed.rows


def test_own_saves_and_those_made_elsewhere_stay_apart() -> None:
    """Each is in its own table alone; what is not known of a bubble elsewhere is said as of any other."""
    skipped = Bubble("llama", REMOTE_SAVE.path, 879.0, skipped="no_baseline", elsewhere=True)
    remote = (RecentSave(REMOTE_SAVE, skipped), *(RecentSave(replace(REMOTE_SAVE, step=n)) for n in range(7)))
    both = waiting(*remote, recent=(RecentSave(LAST_SAVE, LAST_BUBBLE),), last_save=LAST_SAVE)
    parsed = shown(both)

    assert row_of(parsed, "200")[7] == "15.0 s"
    elsewhere = {row[0]: row[3] for row in parsed.rows if len(row) == len(ELSEWHERE) and row != ELSEWHERE}
    assert set(elsewhere) == {"300", *map(str, range(7))}
    assert elsewhere["300"] == "unknown (no steady training before the save)"
    assert "2 earlier saves made elsewhere" in parsed.text
    assert "made elsewhere" not in " ".join(shown(llama(RecentSave(LAST_SAVE))).text)


def test_older_saves_are_a_click_away() -> None:
    """Six saves are shown, the others stand in a table of their own that can be opened."""
    saves = [RecentSave(replace(LAST_SAVE, step=step, end=900.0 - step)) for step in range(20)]
    parsed = shown(llama(*saves))
    assert "14 earlier saves" in parsed.text
    assert parsed.rows.count(HEADINGS) == 2
    assert {row_of(parsed, str(step))[0] for step in range(20)} == {str(step) for step in range(20)}
    assert "14 earlier saves" not in shown(llama(*saves[:6])).text


def test_nothing_seen_yet_is_said() -> None:
    """A directory without a save has a sentence instead of a table, and no timeline."""
    parsed = outline(only(empty_directory("new")))
    assert "No save has ended since the exporter started." in parsed.text
    assert HEADINGS not in parsed.rows
    assert "figure" not in [tag for tag, _ in parsed.tags]


# --- the share ------------------------------------------------------------------------------------------


def test_the_share_since_the_start_stands_first_with_what_it_is_of() -> None:
    """48 of the 1500 GPU-seconds that were observed on both GPUs are 3.2 %."""
    text = " ".join(shown(llama()).text)
    assert "Bubble share since start 3.20 % 48.0 of 1\u202f500 GPU-s on 2 GPUs" in text


def test_a_share_from_poor_readings_says_so() -> None:
    """One GPU of low quality makes the share one of low quality, and the GPU is named on top."""
    gpus = sample_snapshot().gpus
    parsed = shown(llama(), gpus=(replace(gpus[0], quality="low"), gpus[1]))
    assert "48.0 of 1\u202f500 GPU-s on 2 GPUs, low quality" in parsed.text
    (row,) = (row for row in parsed.rows if row[:2] == ["GPU 0", "low quality"])
    assert "bubbles may be much too small" in row[2]


def test_a_share_that_is_not_known_is_absent_and_says_why() -> None:
    """Without a measured save, or without GPUs, there is no figure."""
    text = " ".join(shown(empty_directory("new")).text)
    assert "Bubble share since start unknown no save has been measured on a GPU yet" in text
    text = " ".join(shown(llama(), gpu_backend=None, gpus=()).text)
    assert "Bubble share since start unknown GPUs are not measured here" in text


def test_a_share_of_simulated_gpus_is_called_simulated() -> None:
    """Wherever a figure of simulated GPUs stands, the word does, too."""
    gpus = tuple(replace(gpu, info=replace(gpu.info, driver="simulated")) for gpu in sample_snapshot().gpus)
    parsed = shown(llama(RecentSave(LAST_SAVE, LAST_BUBBLE)), gpus=gpus)
    assert "48.0 of 1\u202f500 GPU-s on 2 simulated GPUs" in parsed.text
    assert "Latest saves (simulated GPUs)" in parsed.text


# --- open saves -----------------------------------------------------------------------------------------


def earlier(step: int, seconds: float, gigabytes: int, *, run: str | None = "llama-7b") -> RecentSave:
    """Make a complete save that ended before the open ones."""
    end = 100.0 + step
    figures = {"duration_seconds": seconds, "bytes": gigabytes * 10**9}
    return RecentSave(replace(LAST_SAVE, step=step, start=end - seconds, end=end, **figures), run=run)


THREE = (earlier(3, 100.0, 14), earlier(2, 140.0, 12), earlier(1, 120.0, 10))
# Begun 60 s ago, 9 GB so far.
WRITING = open_save(300, 940.0, 9_000_000_000, stalled=False)


def progress_of(parsed: Outline) -> list[str | None]:
    return [attributes["value"] for tag, attributes in parsed.tags if tag == "progress"]


def words(*recent: RecentSave, save: OpenSave = WRITING) -> tuple[str, list[str | None]]:
    """Return the page's text and progress bars for an open save after these finished ones."""
    parsed = shown(llama(*recent, open_saves=(save,)))
    return " ".join(" ".join(parsed.text).split()), progress_of(parsed)


def test_an_open_save_shows_when_it_is_expected_to_end() -> None:
    """After saves of 100, 120, 140 s and 10, 12, 14 GB: 60 s to go, at 02:51:00, and 9 of 12 GB are 75 %."""
    text, bars = words(*THREE)
    assert "Saving for 1 min 0 s, expected to end in 1 min 0 s at 02:51:00 UTC, as the last 3 saves" in text
    assert "9.00 GB of 12.0 GB expected (75.0 %)" in text
    assert bars == ["0.750"]


@pytest.mark.parametrize(
    "recent",
    [
        (),
        (earlier(1, 120.0, 10, run="another"),),
        (earlier(1, 120.0, 10, run=None),),
        (replace(THREE[0], save=replace(THREE[0].save, layout="torch")),),
        (replace(THREE[0], save=replace(THREE[0].save, result="incomplete")),),
        (replace(THREE[0], save=replace(THREE[0].save, duration_seconds=None)),),
    ],
)
def test_nothing_is_expected_without_an_earlier_save_of_the_run(recent: tuple[RecentSave, ...]) -> None:
    """Saves of other runs and layouts, and those without a duration, tell nothing."""
    text, bars = words(*recent)
    assert "Saving for 1 min 0 s, end unknown" in text
    assert "expected to end" not in text
    assert bars == []


def test_a_save_that_takes_longer_says_by_how_much() -> None:
    """30 s were expected, 60 s have passed."""
    text, _ = words(earlier(1, 30.0, 12))
    assert "Saving for 1 min 0 s, 30.0 s longer than expected, as the save before" in text


def test_a_save_that_grows_beyond_the_expected_has_no_bar() -> None:
    """More bytes than expected: how many are to come is not known any more."""
    text, bars = words(earlier(1, 120.0, 8))
    assert "9.00 GB written, more than the 8.00 GB expected" in text
    assert bars == []


def test_waiting_for_quiet_is_not_called_saving() -> None:
    """Once all files are closed nothing more is expected, and no time that passes is called saving."""
    text, _ = words(*THREE, save=replace(WRITING, open_files=0))
    assert "all files closed" in text
    # From 940 to the last byte at 995.
    assert "Last byte 55.0 s after its start; waiting for its commit, or quiet if it needs none" in text
    assert "expected to end" not in text
    assert "Saving for" not in text


def test_a_stalled_save_needs_attention() -> None:
    """No new byte for 80 s: said on top with what to look at."""
    text, _ = words(*THREE, save=open_save(300, 900.0, 9_000_000_000, stalled=True))
    assert "stalled Open save in llama Step 300: no new byte for 1 min 20 s." in text


def test_a_screen_reader_hears_only_what_happened() -> None:
    """The spoken sentence names saves and their state, and holds no figure that changes all the time."""
    page = shown(llama(*THREE, open_saves=(WRITING,)))
    assert "llama: step 300 is being written." in page.text
    assert "llama: step 3 complete." in shown(llama(*THREE)).text


# --- hostile names --------------------------------------------------------------------------------------


def test_paths_from_outside_stay_text_and_short() -> None:
    """Markup, lone bytes, direction marks and thousands of characters in a path do no harm."""
    path = "/data/<b>\u202egnp.\udcff\x1b[31m" + "x" * 4000 + "/end"
    save = replace(WRITING, path=path)
    parsed = shown(llama(RecentSave(replace(LAST_SAVE, path=path)), open_saves=(save,), last_save=None))
    assert "b" not in [tag for tag, _ in parsed.tags]
    (text,) = (text for text in parsed.text if text.startswith("/data/<b>"))
    assert text.startswith("/data/<b>\\u202egnp.\\xff\\x1b[31mxxx")
    assert text.endswith("xxx/end")
    assert len(text) < 300
    assert ("bdi", {}) in parsed.tags


def test_a_snapshot_of_nothing_is_a_page() -> None:
    """No directory, no source, nothing: still a page that says that nothing needs attention."""
    parsed = outline(Snapshot(t=0.0, unix_minus_t=0.0, directories=()))
    assert "Nothing needs attention" in parsed.text


def test_the_sample_save_is_what_these_tests_take_it_for() -> None:
    """The numbers above are derived from these."""
    save: Save = LAST_SAVE
    assert (save.start, save.end, save.duration_seconds, save.bytes) == (722.0, 900.0, 178.0, 65 * 10**9)


def test_open_saves_beyond_twenty_are_counted_only() -> None:
    """A job that begins a thousand saves at once makes the page say so, not grow with each."""
    many = tuple(
        replace(open_save(1, 900.0, 10, stalled=False), step=number, path=f"/data/{number}")
        for number in range(1_000)
    )
    text = " ".join(shown(llama(open_saves=many)).text)
    assert "980 more open saves" in text
    assert "/data/19" in text
    assert "/data/20" not in text
