"""How often a quiet tree is compared with the disk, by what that costs."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ckpt_exporter.sources.entry import WatchSettings
from ckpt_exporter.sources.filestat import changed_mounts
from ckpt_exporter.sources.upkeep import Upkeep

SETTINGS = WatchSettings(
    reconcile_seconds=60.0, gather_seconds=0.5, upkeep_share=0.0001, remote_upkeep_share=0.001,
    reconcile_cost_factor=1000.0,
)  # fmt: skip


def looks(
    costs: dict[str, float], until: float, *, directories: int = 1, remote: bool = False, waits: float = 1.0
) -> list[tuple[str, float]]:
    """Return the looks of a time and when they came; each costs as much processor time as told."""
    upkeep = Upkeep(SETTINGS, lambda: directories)
    now, found = 60.0, list[tuple[str, float]]()
    while now <= until:
        look = upkeep.choose(now, remote=remote)
        if look is not None:
            found.append((look, now))
            # Two slices: what a look costs is their sum.
            for _ in range(2):
                upkeep.spent(costs[look] / 2, costs[look] / 2 * waits)
        now = max(now + 0.1, upkeep.next_due(now))
    return found


def test_a_small_tree_is_compared_every_minute() -> None:
    """One directory whose 300 files cost 2 ms: 2 ms / 0.0001 = 20 s, so each minute sees the files."""
    found = looks({"files": 0.002, "folders": 0.0001}, until=600.0)
    assert found == [("files", 60.0 * minute) for minute in range(1, 11)]


def test_all_directories_share_one_budget() -> None:
    """Ten such directories ask each file after 2 ms * 10 / 0.0001 = 200 s, each folder every minute."""
    found = looks({"files": 0.002, "folders": 0.0001}, until=660.0, directories=10)
    assert [t for look, t in found if look == "files"] == [60.0, 300.0, 540.0]
    assert [t for look, t in found if look == "folders"] == [
        120.0,
        180.0,
        240.0,
        360.0,
        420.0,
        480.0,
        600.0,
        660.0,
    ]


@pytest.mark.parametrize("directories", [1, 10])
def test_a_huge_tree_costs_no_more_than_its_share(directories: int) -> None:
    """50,000 folders for 0.4 s and their files for 2 s use at most 0.02 % of a core, in all directories."""
    month = 86_400.0 * 30
    costs = {"files": 2.0, "folders": 0.4}
    found = looks(costs, until=month, directories=directories)
    used = directories * sum(costs[look] for look, _ in found)
    # The first look of each kind comes before anything is known of its cost.
    assert used - directories * 2.4 <= 0.0002 * month
    assert used >= 0.0001 * month


def test_a_change_in_a_huge_tree_is_found_within_the_hour() -> None:
    """Folders that cost 0.3 s are asked every 0.3 s / 0.0001 = 3,000 s."""
    found = looks({"files": 2.0, "folders": 0.3}, until=20_000.0)
    times = [t for _, t in found]
    assert max(later - earlier for earlier, later in pairwise(times)) <= 3_000.0


def test_where_other_hosts_write_folders_come_sooner_and_files_never() -> None:
    """On a shared file system folders for 0.3 s are asked every 0.3 s / 0.001 = 300 s, files not at all."""
    found = looks({"folders": 0.3}, until=1_300.0, remote=True, waits=1.0)
    assert found == [("folders", t) for t in (60.0, 360.0, 660.0, 960.0, 1_260.0)]


def test_a_tree_that_is_mounted_from_elsewhere_has_its_files_compared_again() -> None:
    """A directory that was on a shared file system and is on a disk now has its files looked at."""
    upkeep = Upkeep(SETTINGS, lambda: 1)
    assert upkeep.choose(60.0, remote=True) == "folders"
    assert upkeep.next_due(60.0) == 120.0
    assert upkeep.choose(120.0, remote=False) == "files"


def test_a_slow_server_is_asked_for_a_thousandth_of_the_time() -> None:
    """Folders that need 0.05 s of processor time but 1 s of waiting are asked every 1,000 s."""
    found = looks({"folders": 0.05}, until=2_100.0, remote=True, waits=20.0)
    assert found == [("folders", 60.0), ("folders", 1_060.0), ("folders", 2_060.0)]


HOME = b"36 35 8:1 / /home rw,relatime shared:1 - ext4 /dev/sda1 rw"
READ_ONLY = b"36 35 8:1 / /home ro,relatime shared:1 - ext4 /dev/sda1 ro"
ANEW = b"37 35 8:17 / /home rw,relatime shared:1 - ext4 /dev/sdb1 rw"
CARRIAGE = b"38 35 0:40 / /run/a\rb rw - tmpfs none rw"


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ([HOME], [HOME, CARRIAGE], {"/run/a\rb"}),
        ([HOME, CARRIAGE], [HOME], {"/run/a\rb"}),
        ([HOME], [READ_ONLY], set()),
        ([HOME], [ANEW], {"/home"}),
        ([HOME], [HOME], set()),
    ],
    ids=["mounted", "unmounted", "other options", "another in its place", "nothing"],
)  # fmt: skip
def test_changed_mounts(before: list[bytes], after: list[bytes], changed: set[str]) -> None:
    """A mount point counts as changed when a mount came or went there, not when its options did."""
    assert changed_mounts(frozenset(before), frozenset(after)) == changed
