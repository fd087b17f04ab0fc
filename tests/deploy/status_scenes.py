"""Snapshots for looking at the status page: one for each state that a person may find it in."""

from __future__ import annotations

from dataclasses import replace
from math import sin

from ckpt_exporter.model import (
    Bubble,
    DirectorySnapshot,
    RecentSave,
    Save,
    Snapshot,
    TimelineWindow,
    WatchStatus,
    Writers,
)
from tests.unit.export_sample import (
    GPUS,
    LAST_BUBBLE,
    LAST_SAVE,
    empty_directory,
    open_save,
    sample_snapshot,
)

HOSTILE = "</script><img src=x onerror=alert(1)>\u202etxt.\udcff\n\x1b[31m"
# A path of four thousand characters, a tower of accents, and letters that are written from right to left.
HOSTILE_PATH = (
    f"/data/{HOSTILE}/" + "long-" * 800 + "\u0301" * 50 + "/\u0645\u0631\u062d\u0628\u0627/7-'\"&lt;"
)
NOW = 1000.0


def empty() -> Snapshot:
    """Nothing configured has been seen yet, and there is no GPU."""
    return Snapshot(
        t=NOW,
        unix_minus_t=1764470000.0,
        directories=(empty_directory("llama", "/data/llama"),),
        watches=(WatchStatus("llama", "inotify", up=True, watched_directories=1),),
        sources_healthy={"watch": True, "storage": True},
    )


def history() -> Snapshot:
    """Eight GPUs, two hours of saves, one of them incomplete; the last three far apart."""
    sample = sample_snapshot()
    recent = tuple(
        _finished(step, end=900.0 - 1800.0 * i, result="incomplete" if i == 2 else "complete")
        for i, step in enumerate(range(1200, 200, -100))
    )
    windows = tuple(_window(entry.save) for entry in reversed(recent[:3]))
    directory = replace(
        sample.directories[0],
        saves={"complete": 9, "incomplete": 1, "aborted": 0},
        open_saves=(),
        last_save=recent[0].save,
        last_bubble=recent[0].bubble,
        recent=recent,
        timeline=windows,
    )
    gpus = tuple(
        replace(GPUS[0], info=replace(GPUS[0].info, gpu=i, uuid=f"GPU-{i}"), activity=0.9 + 0.01 * i)
        for i in range(8)
    )
    healthy = replace(empty(), gpu_backend=sample.gpu_backend, gpus=gpus)
    return replace(healthy, directories=(directory,), storage=sample.storage[:1])


def saving() -> Snapshot:
    """Show the same, with a save under way and its end expected."""
    before = history()
    save = replace(
        open_save(1300, NOW - 70.0, 30_000_000_000, stalled=False), path="/data/llama/checkpoint-1300"
    )
    directory = replace(
        before.directories[0], open_saves=(save,), run=Writers(0.0, "llama", (7,), run="llama-7b")
    )
    return replace(before, directories=(directory,))


def broken() -> Snapshot:
    """Most of what can break is broken."""
    return sample_snapshot()


def hostile() -> Snapshot:
    """Every name that comes from outside is as hostile as the kernel allows."""
    before = saving()
    (directory,) = before.directories
    save = replace(directory.open_saves[0], path=HOSTILE_PATH, layout="generic")
    last = replace(LAST_SAVE, path=HOSTILE_PATH)
    run = Writers(0.0, "llama", (7,), run=HOSTILE, scheduler="slurm", run_id=HOSTILE)
    directory = replace(
        directory, name=HOSTILE + "n" * 80, path=HOSTILE_PATH, open_saves=(save,), last_save=last, run=run
    )
    return replace(before, directories=(directory, empty_directory("other")), watches=(), storage=())


def elsewhere() -> Snapshot:
    """Show a node that only waits: another host writes to the shared directory."""
    before = history()
    (directory,) = before.directories
    remote = tuple(_as_seen(recent) for recent in directory.recent)
    directory = replace(
        empty_directory("llama", "/shared/llama"),
        recent_remote=remote,
        last_remote_save=remote[0].save,
        remote_saves={"complete": 9, "incomplete": 1, "aborted": 0},
        timeline=tuple(replace(w, write_rates=(0.0,) * len(w.write_rates)) for w in directory.timeline),
    )
    return replace(before, directories=(directory,), storage=())


def both() -> Snapshot:
    """Show a node that writes as well, in turn with another host."""
    before = history()
    (directory,) = before.directories
    recent, remote = directory.recent[::2], tuple(_as_seen(known) for known in directory.recent[1::2])
    directory = replace(
        directory, recent=recent, recent_remote=remote, last_remote_save=remote[0].save,
        remote_saves={"complete": 5, "incomplete": 0, "aborted": 0},
    )  # fmt: skip
    other = replace(elsewhere().directories[0], name="vision", path="/shared/vision", timeline=())
    return replace(before, directories=(directory, other))


def _as_seen(recent: RecentSave) -> RecentSave:
    """Return what another host's save looks like from here."""
    save = replace(
        recent.save, bytes=0, files=0, duration_seconds=None, active_seconds=None, average_bandwidth=None,
        sustained_bandwidth=None, peak_bandwidth=None, notes=("elsewhere",), elsewhere=True,
    )  # fmt: skip
    bubble = None if recent.bubble is None else replace(recent.bubble, elsewhere=True)
    return replace(recent, save=save, bubble=bubble, run=None)


SCENES = {
    "empty": empty, "history": history, "saving": saving, "broken": broken, "hostile": hostile,
    "elsewhere": elsewhere, "both": both,
}  # fmt: skip


def _finished(step: int, *, end: float, result: str) -> RecentSave:
    seconds = 150.0 + step % 700 / 10
    save: Save = replace(
        LAST_SAVE,
        step=step,
        path=f"/data/llama/checkpoint-{step}",
        start=end - seconds,
        end=end,
        duration_seconds=seconds,
        average_bandwidth=65e9 / seconds,
        result=result,
        reason="no_commit" if result == "incomplete" else None,
    )
    bubble: Bubble = replace(
        LAST_BUBBLE,
        save_path=save.path,
        save_end=end,
        start=save.start,
        end=end + 4.0,
        seconds=seconds * 0.97,
    )
    return RecentSave(save, bubble, "llama-7b")


def _window(save: Save) -> TimelineWindow:
    """Draw what such a save looks like: GPUs stop, bytes flow with a pause, GPUs go on."""
    start, width = save.start - 40.0, 4.0
    count = int((save.end + 40.0 - start) / width)
    times = [start + (i + 0.5) * width for i in range(count)]
    stopped = [save.start <= t < save.end + 4.0 for t in times]
    pause = save.start + 70.0, save.start + 85.0
    return TimelineWindow(
        start=start,
        bin_seconds=width,
        write_rates=tuple(
            4e8 * (1 + 0.1 * sin(t)) if save.start <= t < save.end and not pause[0] <= t < pause[1] else 0.0
            for t in times
        ),
        activities=tuple(
            0.03 if s else min(1.0, 0.97 + 0.03 * sin(3 * t)) for t, s in zip(times, stopped, strict=True)
        ),
        gpus=8,
        gpus_known=True,
    )


def with_next_save(snapshot: Snapshot, step: int) -> Snapshot:
    """Let one more save of the first directory have ended, five seconds later."""
    directory: DirectorySnapshot = snapshot.directories[0]
    entry = _finished(step, end=NOW + 4.0, result="complete")
    saves = dict(directory.saves, complete=directory.saves["complete"] + 1)
    directory = replace(
        directory, recent=(entry, *directory.recent), last_save=entry.save, saves=saves, open_saves=()
    )
    return replace(snapshot, t=NOW + 5.0, directories=(directory, *snapshot.directories[1:]))
