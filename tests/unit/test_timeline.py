"""What is kept of the latest saves, and what bytes and GPUs did around them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ckpt_exporter.detect.strip import MAX_PIECES, Strip
from ckpt_exporter.ledger import Ledger
from ckpt_exporter.model import (
    DetectSettings,
    DirectorySettings,
    DirectorySnapshot,
    Fact,
    FileEvent,
    GpuInfo,
    GpuSample,
    GpuSet,
    Progress,
    TimelineWindow,
    Writers,
)

ROOT = "/data/ckpt"
MB = 1_000_000
# GPM counters at work, and of a GPU that waits in a collective: 0.3 x 0.011 / 0.55 of its work is left.
WORK = {"sm": 0.8, "tensor": 0.5, "dram": 0.55}
SPIN = {"sm": 0.15, "tensor": 0.0, "dram": 0.011}
SPIN_ACTIVITY = 0.006


class History:
    """Two GPUs of one run and saves of 100 MB/s, told to a ledger as they would happen."""

    def __init__(self, *, gpus: int = 2) -> None:
        self.ledger = Ledger([DirectorySettings("d", ROOT)], DetectSettings(quiet_seconds=5.0))
        self.gpus = gpus
        self.saves: list[tuple[float, float, int]] = []
        self.now = 0.0
        if gpus:
            self.ledger.feed(GpuSet(0.0, tuple(GpuInfo(gpu, f"GPU-{gpu}") for gpu in range(gpus))))
        run = Writers(0.0, "d", (7,), run="llama", gpus=tuple(range(gpus)))
        self.ledger.feed(run)

    def save(self, start: float, end: float, step: int = 1) -> None:
        """Plan a save; GPU 0 waits for it, the others train on."""
        self.saves.append((start, end, step))

    def until(self, t: float) -> DirectorySnapshot:
        """Let everything planned happen until a moment, and look."""
        while self.now < t:
            self.now += 0.5
            for fact in self._facts(self.now):
                self.ledger.feed(fact)
            self.ledger.tick(self.now)
        return self.look()

    def look(self) -> DirectorySnapshot:
        (entry,) = self.ledger.snapshot(self.now, timelines=True).directories
        return entry

    def _facts(self, t: float) -> Iterator[Fact]:
        for start, end, step in self.saves:
            path = f"{ROOT}/step-{step}.pt"
            if t == start:
                yield FileEvent(t, "create", path, pid=7)
            elif start < t < end:
                yield Progress(t, path, size := int((t - start) * 100 * MB), position=size, writers=1)
            elif t == end:
                yield FileEvent(t, "close_write", path, pid=7, size=int((end - start) * 100 * MB))
        waiting = any(start < t <= end for start, end, _ in self.saves)
        for gpu in range(self.gpus):
            yield GpuSample(t, gpu, f"GPU-{gpu}", processes=1, **(SPIN if waiting and gpu == 0 else WORK))


def between(
    window: TimelineWindow, values: tuple[float | None, ...], start: float, end: float
) -> set[object]:
    """Return the values of the bins that lie between two moments, to four digits."""
    first = round((start - window.start) / window.bin_seconds)
    last = round((end - window.start) / window.bin_seconds)
    return {None if value is None else round(value, 4) for value in values[first:last]}


# --- the latest saves -----------------------------------------------------------------------------------


def test_finished_saves_are_kept_newest_first_with_what_they_cost() -> None:
    """Of two saves the later stands first, each with its bubble and the run that wrote it."""
    history = History()
    history.save(100.0, 110.0, step=1)
    history.save(200.0, 204.0, step=2)
    recent = history.until(290.0).recent
    assert [(entry.save.step, entry.run) for entry in recent] == [(2, "llama"), (1, "llama")]
    # Half of the run's GPUs lost all but 0.006 of their work: 0.5 x 0.994 x 4 and 10 seconds.
    assert [entry.bubble.seconds for entry in recent if entry.bubble] == [
        pytest.approx(1.988, abs=0.15),
        pytest.approx(4.97, abs=0.15),
    ]


def test_a_bubble_that_is_not_known_yet_is_none() -> None:
    """Right after a save ended, it is there without its bubble."""
    history = History()
    history.save(100.0, 110.0)
    entry = history.until(115.5)
    assert [recent.bubble for recent in entry.recent] == [None]


def test_only_the_latest_saves_are_kept() -> None:
    """Of 25 saves the last 20 stay, without the stretches and processes that only bubbles need."""
    history = History(gpus=0)
    for i in range(25):
        history.save(10.0 + 10 * i, 11.0 + 10 * i, step=i)
    recent = history.until(280.0).recent
    assert [entry.save.step for entry in recent] == list(range(24, 4, -1))
    assert {(entry.save.flow, entry.save.pids) for entry in recent} == {((), ())}


# --- the timeline ---------------------------------------------------------------------------------------


def test_a_window_shows_activity_and_write_rate_from_before_a_save_to_after_it() -> None:
    """40 s before and after: full activity, half of it lost while 100 MB/s were written, full again."""
    history = History()
    history.save(100.0, 110.0)
    (window,) = history.until(200.0).timeline
    assert (window.start, window.end, window.bin_seconds) == (60.0, 150.0, 0.5)
    assert between(window, window.write_rates, 60, 100) == {0.0}
    assert between(window, window.write_rates, 100, 110) == {100.0 * MB}
    assert between(window, window.write_rates, 110, 150) == {0.0}
    assert between(window, window.activities, 60, 100) == {1.0}
    assert between(window, window.activities, 100, 110) == {(1 + SPIN_ACTIVITY) / 2}
    assert between(window, window.activities, 110, 150) == {1.0}
    assert (window.gpus, window.gpus_known) == (2, True)


def test_an_open_save_is_shown_until_now() -> None:
    """While a save runs its window reaches to now; the readings of the last moment are left open."""
    history = History()
    history.save(100.0, 200.0)
    history.until(120.0)
    entry = history.until(130.0)  # a second look takes in only what is new
    (window,) = entry.timeline
    assert (window.start, window.end) == (60.0, 130.0)
    assert between(window, window.write_rates, 100, 129.5) == {100.0 * MB}
    assert between(window, window.activities, 60, 100) == {1.0}
    assert between(window, window.activities, 100.5, 128.5) == {(1 + SPIN_ACTIVITY) / 2}
    assert between(window, window.activities, 129, 130) == {None}


def test_near_saves_share_a_window_and_only_the_last_three_are_drawn() -> None:
    """Saves 20 s apart are one window; one long before gets its own until three newer ones came."""
    history = History()
    history.save(50.0, 52.0, step=1)
    history.save(400.0, 402.0, step=2)
    history.save(420.0, 422.0, step=3)
    windows = history.until(500.0).timeline
    assert [(window.start, window.end) for window in windows] == [(10.0, 92.0), (360.0, 462.0)]
    history.save(600.0, 602.0, step=4)
    windows = history.until(700.0).timeline
    assert [(window.start, window.end) for window in windows] == [(360.0, 462.0), (560.0, 642.0)]
    assert between(windows[0], windows[0].activities, 360, 400) == {1.0}


def test_a_long_save_is_shown_in_few_bins_and_stays_right() -> None:
    """A save of 20 minutes keeps its rate and activity in at most 240 bins."""
    history = History()
    history.save(100.0, 1300.0)
    (window,) = history.until(1400.0).timeline
    assert len(window.write_rates) <= 240
    assert sum(window.write_rates) * window.bin_seconds == pytest.approx(1200 * 100 * MB, rel=1e-3)
    assert between(window, window.activities, 130, 1270) == {(1 + SPIN_ACTIVITY) / 2}


def test_without_gpus_the_activity_is_unknown() -> None:
    """No reading is None, not 0."""
    history = History(gpus=0)
    history.save(100.0, 110.0)
    (window,) = history.until(150.0).timeline
    assert set(window.activities) == {None}
    assert window.gpus == 0


def test_a_scrape_pays_for_no_timeline() -> None:
    """A snapshot has windows only when it was asked for them."""
    history = History()
    history.save(100.0, 110.0)
    history.until(150.0)
    (entry,) = history.ledger.snapshot(150.0).directories
    assert entry.timeline == ()


# --- the strip ------------------------------------------------------------------------------------------


def test_amounts_are_spread_over_the_bins_that_they_came_in() -> None:
    """10 in two seconds are 2.5, 5 and 2.5 in the bins that they cover half, all and half."""
    strip = Strip()
    strip.add(0.5, 2.5, 10.0)
    assert strip.binned(0.0, 1.0, 4) == ([2.5, 5.0, 2.5, 0.0], [0.5, 1.0, 0.5, 0.0])


def test_an_amount_that_came_at_once_is_in_one_bin() -> None:
    """What took no time is neither lost nor divided by nothing."""
    strip = Strip()
    strip.add(1.5, 1.5, 7.0)
    assert strip.binned(0.0, 1.0, 3) == ([0.0, 7.0, 0.0], [0.0, 0.0, 0.0])


def test_files_that_grow_together_take_the_room_of_one() -> None:
    """A thousand files seen a quarter of a second apart are as many pieces as one file is."""
    strip = Strip()
    for t in range(40):
        for _ in range(1000):
            strip.add(t * 0.25, t * 0.25 + 0.25, 1.0)
    assert len(strip) <= 40
    assert sum(strip.binned(0.0, 1.0, 10)[0]) == pytest.approx(40_000)


def test_memory_is_bounded_and_the_newest_stays_fine() -> None:
    """Of a day of writing without a pause few pieces stay, and the last minute in its full detail."""
    strip = Strip()
    for i in range(86_400):
        strip.add(i, i + 1.0, 3.0 if i >= 86_340 else 1.0)
    assert len(strip) <= MAX_PIECES
    assert strip.binned(86_330.0, 10.0, 7) == ([10.0] + [30.0] * 6, [10.0] * 7)
    assert sum(strip.binned(0.0, 86_400.0, 1)[0]) == 86_400 + 120


def test_pauses_are_never_smeared_over() -> None:
    """Bursts with pauses between them are forgotten when there are too many, not joined."""
    strip = Strip()
    for i in range(10 * MAX_PIECES):
        strip.add(10.0 * i, 10.0 * i + 1.0, 1.0)
    assert len(strip) <= MAX_PIECES
    last = 10.0 * (10 * MAX_PIECES - 1)
    assert strip.binned(last - 10.0, 1.0, 11)[0] == [1.0, *[0.0] * 9, 1.0]
