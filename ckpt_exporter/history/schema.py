"""The tables of the history file, and how an older file becomes a current one."""

from __future__ import annotations

from typing import Final

# "ckpt" in ASCII: tells a history from any other SQLite file.
APPLICATION_ID: Final = 0x636B7074

_FIRST: Final = (
    """
    CREATE TABLE saves (
        id INTEGER PRIMARY KEY,
        node TEXT NOT NULL,
        directory TEXT NOT NULL,
        path TEXT NOT NULL,
        layout TEXT NOT NULL,
        step INTEGER,
        result TEXT NOT NULL,
        reason TEXT,
        start_unix REAL NOT NULL,
        end_unix REAL NOT NULL,
        duration_seconds REAL,
        active_seconds REAL,
        bytes INTEGER NOT NULL,
        written_bytes INTEGER,
        files INTEGER NOT NULL,
        average_bandwidth REAL,
        sustained_bandwidth REAL,
        peak_bandwidth REAL,
        run TEXT,
        run_id TEXT,
        scheduler TEXT,
        mountpoint TEXT,
        device TEXT,
        fstype TEXT,
        transport TEXT,
        bubble_seconds REAL,
        bubble_before_write_seconds REAL,
        bubble_writing_seconds REAL,
        bubble_write_gap_seconds REAL,
        bubble_after_write_seconds REAL,
        bubble_gpu_seconds TEXT NOT NULL,
        drag_gpu_seconds TEXT NOT NULL,
        bubble_skipped TEXT,
        dip_start_unix REAL,
        dip_end_unix REAL,
        depth REAL,
        source TEXT,
        quality TEXT,
        notes TEXT NOT NULL,
        shards TEXT NOT NULL
    )
    """,
    "CREATE INDEX saves_by_end ON saves (end_unix)",
    """
    CREATE TABLE gpu_time (
        node TEXT NOT NULL,
        uuid TEXT NOT NULL,
        hour_unix INTEGER NOT NULL,
        gpu INTEGER NOT NULL,
        observed_seconds REAL NOT NULL,
        stall_checkpoint_save_seconds REAL NOT NULL,
        stall_checkpoint_load_seconds REAL NOT NULL,
        stall_data_loading_seconds REAL NOT NULL,
        stall_communication_seconds REAL NOT NULL,
        stall_other_seconds REAL NOT NULL,
        PRIMARY KEY (node, uuid, hour_unix)
    ) WITHOUT ROWID
    """,
)

_SECOND: Final = (
    """
    CREATE TABLE loads (
        id INTEGER PRIMARY KEY,
        node TEXT NOT NULL,
        directory TEXT NOT NULL,
        path TEXT NOT NULL,
        layout TEXT NOT NULL,
        step INTEGER,
        run TEXT,
        readers INTEGER,
        start_unix REAL NOT NULL,
        end_unix REAL NOT NULL,
        duration_seconds REAL NOT NULL,
        bytes INTEGER NOT NULL,
        files INTEGER NOT NULL,
        cached_ratio REAL,
        notes TEXT NOT NULL
    )
    """,
    "CREATE INDEX loads_by_end ON loads (end_unix)",
    """
    CREATE TABLE stalls (
        id INTEGER PRIMARY KEY,
        node TEXT NOT NULL,
        gpu INTEGER NOT NULL,
        uuid TEXT,
        start_unix REAL NOT NULL,
        end_unix REAL NOT NULL,
        seconds REAL NOT NULL,
        cause TEXT NOT NULL
    )
    """,
    "CREATE INDEX stalls_by_end ON stalls (end_unix)",
)

# How sure a stall's cause is; where a load came from, and when GPUs worked after it. A column that a version
# adds is NULL in the rows of before.
_THIRD: Final = (
    "ALTER TABLE stalls ADD COLUMN confidence TEXT",
    "ALTER TABLE loads ADD COLUMN mountpoint TEXT",
    "ALTER TABLE loads ADD COLUMN device TEXT",
    "ALTER TABLE loads ADD COLUMN fstype TEXT",
    "ALTER TABLE loads ADD COLUMN transport TEXT",
    "ALTER TABLE loads ADD COLUMN cold_start_seconds REAL",
)

# Entry N turns a file of version N into one of version N + 1. Entries are never changed, only added.
MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (_FIRST, _SECOND, _THIRD)
SCHEMA_VERSION: Final = len(MIGRATIONS)
# The version that has a column first, where that is later than its table.
ADDED_COLUMNS: Final[dict[tuple[str, str], int]] = {
    ("stalls", "confidence"): 3,
    ("loads", "mountpoint"): 3,
    ("loads", "device"): 3,
    ("loads", "fstype"): 3,
    ("loads", "transport"): 3,
    ("loads", "cold_start_seconds"): 3,
}
