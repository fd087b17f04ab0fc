"""Files that the program writes or reads where somebody else may write, too."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from ckpt_exporter.config.load import load_fragment
from ckpt_exporter.detect.layouts import LAYOUT_NAMES
from ckpt_exporter.errors import ConfigError
from ckpt_exporter.history.database import HistoryDatabase
from ckpt_exporter.history.failures import HistoryError
from ckpt_exporter.history.place import WriterLock
from ckpt_exporter.history.reading import read_history
from tests.integration.daemon import run_to_end, watching, write_config

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _hard(link: Path, target: Path) -> None:
    os.link(target, link)


def _soft(link: Path, target: Path) -> None:
    link.symlink_to(target)


@pytest.mark.parametrize("lay", [_hard, _soft])
def test_a_link_at_the_lock_of_the_history(tmp_path: Path, lay: Callable[[Path, Path], None]) -> None:
    """What a link at the lock's name leads to is not written to; the history is refused."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    lay(tmp_path / "history.db.lock", victim)
    with pytest.raises(HistoryError) as caught:
        WriterLock(str(tmp_path / "history.db"))
    assert caught.value.reason == "unavailable"
    assert victim.read_text() == "precious"


def test_a_pipe_at_the_path_of_the_history(tmp_path: Path) -> None:
    """A pipe where the history should be is refused at once, not waited for."""
    for name in ("history.db", "other.db.lock"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(HistoryError, match="is no regular file"):
        HistoryDatabase(str(tmp_path / "history.db"))
    with pytest.raises(HistoryError, match="is no file of its own"):
        WriterLock(str(tmp_path / "other.db"))


def test_a_view_in_place_of_the_saves(tmp_path: Path) -> None:
    """A history whose table is a view, which could compute for ever, is refused unread."""
    path = tmp_path / "history.db"
    HistoryDatabase(str(path), wal=False).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(saves)")]
        connection.execute("ALTER TABLE saves RENAME TO real")
        endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"
        listed = ", ".join(f"({endless}) AS {name}" for name in columns)
        connection.execute(f"CREATE VIEW saves AS SELECT {listed}")
    for use in (lambda: read_history(str(path)), lambda: HistoryDatabase(str(path), wal=False)):
        with pytest.raises(HistoryError):
            use()


def test_a_recording_through_a_link(tmp_path: Path) -> None:
    """A link at the recording's path is not followed: what it leads to stays as it is."""
    victim, link = tmp_path / "victim", tmp_path / "recording.jsonl"
    victim.write_text("precious")
    link.symlink_to(victim)
    (tmp_path / "a").mkdir()
    config = write_config(tmp_path / "c.yml", {"a": tmp_path / "a"})
    ended = run_to_end(
        "run", f"--config.file={config}", f"--record.path={link}", "--web.listen-address=127.0.0.1:0"
    )
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert "cannot record to" in ended.stderr
    assert victim.read_text() == "precious"


def test_modes_of_written_files(tmp_path: Path) -> None:
    """Recording and history, which hold paths and names of runs, are closed to other users."""
    recording, history = tmp_path / "recording.jsonl", tmp_path / "kept" / "history.db"
    history.parent.mkdir()
    before = os.umask(0o022)
    try:
        arguments = [f"--record.path={recording}", f"--history.path={history}"]
        with watching(tmp_path, "a", arguments=arguments) as daemon:
            daemon.recheck(0.5)
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in history.parent.iterdir()}
    finally:
        os.umask(before)
    modes[recording.name] = stat.S_IMODE(recording.stat().st_mode)
    assert {"history.db", "history.db.lock", "recording.jsonl"} <= set(modes)
    assert not {name: oct(mode) for name, mode in modes.items() if mode & 0o027}


def test_a_fragment_that_is_a_pipe(tmp_path: Path) -> None:
    """A fragment that turns into a pipe is a bad fragment; nothing waits for somebody to write to it."""
    os.mkfifo(tmp_path / "x.yml")
    with pytest.raises(ConfigError):
        load_fragment(str(tmp_path / "x.yml"), LAYOUT_NAMES)
