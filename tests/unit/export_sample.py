"""One snapshot with every kind of value, known and unknown, for the tests of metrics and pages."""

from __future__ import annotations

from dataclasses import replace

from ckpt_exporter.ledger import DURATION_BUCKETS_SECONDS
from ckpt_exporter.model import (
    ConfigStatus,
    DirectorySnapshot,
    Histogram,
    Mount,
    OpenSave,
    Save,
    Snapshot,
    StorageStatus,
    WatchCounters,
    WatchStatus,
    Writers,
)

HOSTILE_NAME = 'we"ird\\ \n<script>alert(1)</script>\udcff'

NO_DURATIONS = Histogram(DURATION_BUCKETS_SECONDS, (0,) * 18, 0.0)


def _durations() -> Histogram:
    # 94 s falls into the bucket (90, 120], the tenth; 178 s into (120, 180], the eleventh.
    counts = [0] * 18
    exemplars: list[tuple[float, float, int] | None] = [None] * 18
    counts[9] = counts[10] = 1
    exemplars[9] = (94.0, 1764470500.5, 100)
    exemplars[10] = (178.0, 1764470900.0, 200)
    return Histogram(DURATION_BUCKETS_SECONDS, tuple(counts), 272.0, tuple(exemplars))


def empty_directory(name: str, path: str = "/data/empty") -> DirectorySnapshot:
    """Make a configured directory in which nothing has been seen yet."""
    return DirectorySnapshot(
        name=name,
        path=path,
        saves={"complete": 0, "incomplete": 0, "aborted": 0},
        save_bytes=0,
        save_files=0,
        written_bytes=0,
        write_active_seconds=0.0,
        duration=NO_DURATIONS,
        open_saves=(),
        last_save=None,
        retained_checkpoints=None,
        retained_bytes=None,
        deleted_checkpoints=0,
    )


LAST_SAVE = Save(
    directory="llama",
    path="/data/llama/checkpoint-200",
    layout="huggingface",
    step=200,
    result="complete",
    reason=None,
    start=722.0,
    end=900.0,
    duration_seconds=178.0,
    bytes=65_000_000_000,
    files=16,
    active_seconds=160.0,
    average_bandwidth=65e9 / 178,
    sustained_bandwidth=406_250_000.0,
    peak_bandwidth=2e9,
)

# Moved in from outside: when its bytes were written is not known.
MOVED_SAVE = replace(
    LAST_SAVE,
    directory=HOSTILE_NAME,
    path=f"/mnt/{HOSTILE_NAME}/final.pt",
    layout="generic",
    step=None,
    start=600.0,
    end=600.0,
    duration_seconds=None,
    bytes=5_000_000,
    files=1,
    active_seconds=None,
    average_bandwidth=None,
    sustained_bandwidth=None,
    peak_bandwidth=None,
)


def open_save(step: int, start: float, size_bytes: int, *, stalled: bool) -> OpenSave:
    """Make an open save of the first directory."""
    return OpenSave(
        directory="llama",
        path=f"/data/llama/tmp-checkpoint-{step}",
        layout="huggingface",
        step=step,
        start=start,
        bytes=size_bytes,
        files=4,
        open_files=1,
        last_byte=995.0 if not stalled else 920.0,
        stalled=stalled,
    )


def _llama() -> DirectorySnapshot:
    return replace(
        empty_directory("llama", "/data/llama"),
        saves={"complete": 2, "incomplete": 1, "aborted": 0},
        save_bytes=130_000_000_000,
        save_files=32,
        written_bytes=140_500_000_000,
        write_active_seconds=250.5,
        duration=_durations(),
        open_saves=(
            open_save(299, 900.0, 1_500_000_000, stalled=True),
            open_save(300, 940.0, 9_000_000_000, stalled=False),
        ),
        last_save=LAST_SAVE,
        retained_checkpoints=2,
        retained_bytes=130_000_000_000,
        deleted_checkpoints=3,
        run=Writers(990.0, "llama", (4711,), run="llama-7b", scheduler="slurm", run_id="8812"),
    )


def _hostile() -> DirectorySnapshot:
    return replace(
        empty_directory(HOSTILE_NAME, f"/mnt/{HOSTILE_NAME}"),
        saves={"complete": 1, "incomplete": 0, "aborted": 0},
        save_bytes=5_000_000,
        save_files=1,
        last_save=MOVED_SAVE,
        retained_checkpoints=1,
        retained_bytes=5_000_000,
    )


def sample_snapshot() -> Snapshot:
    """Three directories: a busy one, one not seen yet, one with a hostile name; it is 02:50:00 UTC."""
    return Snapshot(
        t=1000.0,
        unix_minus_t=1764470000.0,
        directories=(_llama(), empty_directory("vision"), _hostile()),
        storage=(
            StorageStatus(
                "llama",
                Mount("/data", "nvme0n1p1", "ext4", "nvme-tcp"),
                available_bytes=750_000_000_000,
                size_bytes=3_000_000_000_000,
                device_written_bytes=987_654_321_000,
                dirty_bytes=4096,
            ),
            StorageStatus(
                HOSTILE_NAME,
                Mount("/mnt", "filer:/export", "nfs4", "nfs", shared=True),
                available_bytes=0,
                size_bytes=1_000_000_000_000,
            ),
        ),
        watches=(
            WatchStatus("llama", "inotify", up=True, watched_directories=12),
            WatchStatus(
                HOSTILE_NAME, "poll", up=True, watched_directories=3, limit_reached=True, coverage=0.25
            ),
        ),
        counters=WatchCounters(
            overflows=1,
            dropped=2,
            rescans={"overflow": 1, "periodic": 4},
            events={"create": 40, "close_write": 38, "moved": 3},
        ),
        config=ConfigStatus(successful=False, success_unix=1764466800.0),
        sources_healthy={"inotify": True, "storage": False},
    )
