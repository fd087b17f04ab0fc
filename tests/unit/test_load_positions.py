"""Bytes of loads by the reader's position: what it proves, and where a seek or another process moved it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckpt_exporter.model import ReadEvent
from tests.unit.reading_facts import FILE, MB, SECOND, closed, loads_of, opened, read


def paced(rchar: int, begin: float, *positions: int, pid: int = 7, **more) -> list:
    """Look every tenth of a second at a process whose calls all move its position, from the first one on."""
    first = positions[0]
    return [
        read(begin + 0.1 * i, rchar + (at - first) * MB, pid, position=at * MB, **more)
        for i, at in enumerate(positions)
    ]


def test_what_a_late_found_reader_stands_past_was_read() -> None:
    """A block of 10 MB was read before the first look, which no rate tells of: the position does."""
    (load,) = loads_of(
        *opened(10.0), *paced(11 * MB, 10.02, 10, 10, 20, 30), closed(10.4), read(10.41, 101 * MB, held=False)
    )
    assert (load.bytes, load.notes) == (100 * MB, ())


def test_a_part_read_from_the_start_is_exact() -> None:
    """A reader that stops at 30 MB has read 30 MB, however late it was found."""
    (load,) = loads_of(
        *opened(10.0), *paced(11 * MB, 10.02, 10, 20, 30), closed(10.3), read(10.31, 31 * MB, held=False)
    )
    assert (load.bytes, load.notes) == (30 * MB, ())


def test_the_next_file_begins_where_the_last_one_ended() -> None:
    """Of 30 MB called between two looks 20 were the rest of one file, 10 the beginning of the next."""
    second = {"path": SECOND}
    (load,) = loads_of(
        *opened(10.0), *paced(1 * MB, 10.02, 0, 40, 80), closed(10.3), *opened(10.3, path=SECOND),
        read(10.31, 111 * MB, held=False), *paced(111 * MB, 10.31, 10, 10, 20, 30, **second),
        closed(10.7, SECOND), read(10.71, 131 * MB, held=False, **second),
    )  # fmt: skip
    assert (load.bytes, load.files, load.notes) == (130 * MB, 2, ())


def test_a_block_between_position_and_counters_is_not_lost() -> None:
    """Counters are read after the position: a call that ends between the two moves it by the next look."""
    looks = [(10.0, 0, 0), (10.1, 1, 1), (10.2, 3, 2), (10.3, 4, 4)]
    facts = [read(t, rchar * MB, position=at * MB) for t, rchar, at in looks]
    (load,) = loads_of(*opened(10.0), *facts, closed(10.4), read(10.41, 5 * MB, held=False))
    assert (load.bytes, load.notes) == (5 * MB, ())


@pytest.mark.parametrize(
    ("rchar", "reason"), [(20 * MB, "it has not called for so much"), (500 * MB, "its rate is 10 MB/s")]
)
def test_where_a_seek_has_put_the_reader_is_no_bytes(rchar: int, reason: str) -> None:
    """A rank that begins at 60 MB and reads 3 MB has read 3 MB and what its rate adds, and a note says so."""
    (load,) = loads_of(*opened(10.0), *paced(rchar, 10.02, 60, 61, 62, 63, 63), until=200.0)
    assert load.bytes == pytest.approx(3.2 * MB, rel=0.01), reason
    assert load.notes == ("partly_seen",)


def test_a_reader_that_looked_at_the_end_first_begins_at_the_start() -> None:
    """Met at the end, where an archive has its directory, it has read what it calls from then on."""
    (load,) = loads_of(
        *opened(10.0), *paced(300 * MB, 10.0, 100), read(10.1, 310 * MB, position=10 * MB),
        read(10.2, 320 * MB, position=20 * MB), read(10.3, 320 * MB, position=20 * MB),
    )  # fmt: skip
    assert load.bytes == 20 * MB


def test_what_is_skipped_is_not_read() -> None:
    """Every other megabyte read: the position moves 40 MB, the calls 20 MB."""
    facts = [read(10.0 + 0.1 * i, 10 * i * MB, position=20 * i * MB) for i in (0, 1, 2)]
    (load,) = loads_of(*opened(10.0), *facts, read(10.3, 20 * MB, position=40 * MB))
    assert load.bytes == 20 * MB


def test_who_only_shares_the_descriptor_reads_nothing() -> None:
    """A parent whose child reads through its descriptor is no reader, even when it takes in its counters."""
    facts = [fact for at in (0, 20, 40) for fact in _family(10.0 + at / 100, 0, at)]
    (load,) = loads_of(*opened(10.0), *facts, read(11.0, 40 * MB, 1, position=40 * MB))
    assert (load.bytes, load.readers, load.pids, load.notes) == (40 * MB, 1, (2,), ())


def _family(t: float, parent: int, child: int) -> list:
    return [
        read(t, parent, 1, position=child * MB),
        read(t, child * MB, 2, position=child * MB),
    ]


def test_two_that_read_through_one_descriptor_are_counted_by_their_calls() -> None:
    """The position moves by what both have read, 20 MB each."""
    facts = [
        read(10.0 + 0.1 * i, 10 * i * MB, pid, position=20 * i * MB) for i in (0, 1, 2, 2) for pid in (1, 2)
    ]
    (load,) = loads_of(*opened(10.0), *facts)
    assert (load.bytes, load.readers, load.notes) == (40 * MB, 2, ("ranges_estimated",))


def test_what_is_read_again_counts_once() -> None:
    """A file read to 40 MB, opened again and read to 50 MB, has given 50 MB."""
    again = [read(10.5 + 0.1 * i, (40 + 10 * i) * MB, position=10 * i * MB) for i in (1, 2, 3, 4, 5, 5)]
    (load,) = loads_of(
        *opened(10.0), *paced(0, 10.0, 0, 20, 40), closed(10.4), read(10.41, 40 * MB, held=False),
        ReadEvent(10.5, FILE, "open", size=100 * MB), *again,
    )  # fmt: skip
    assert (load.bytes, load.notes) == (50 * MB, ())


def test_ranks_that_read_from_the_start_read_the_same() -> None:
    """One rank reads 30 MB and another 40 MB of a file from its start: 40 MB, and no estimate."""
    (load,) = loads_of(
        *opened(10.0), *paced(0, 10.0, 0, 15, 30, 30, pid=1), *paced(0, 10.0, 0, 20, 40, 40, pid=2)
    )
    assert (load.bytes, load.readers, load.notes) == (40 * MB, 2, ())


def test_calls_that_name_their_offset_are_counted_and_what_was_before_is_said() -> None:
    """The position stays at 0: 20 MB of calls were seen, and as much came before as their rate says."""
    facts = [read(10.1 + 0.1 * i, (60 + 10 * i) * MB, position=0) for i in (0, 1, 2, 2)]
    (load,) = loads_of(*opened(10.0), *facts)
    assert (load.bytes, load.notes) == (30 * MB, ("partly_seen",))


def test_what_came_before_is_no_more_than_the_process_has_called() -> None:
    """By the first look a new process has called for 1 MB in all, whatever its rate was later."""
    facts = [read(10.1 + 0.1 * i, (1 + 10 * i) * MB, position=0) for i in (0, 1, 2, 2)]
    (load,) = loads_of(*opened(10.0), *facts)
    assert (load.bytes, load.notes) == (21 * MB, ("partly_seen",))


def test_a_part_that_ends_with_its_process_is_worked_out_and_said() -> None:
    """The process ends 0.1 s after it was seen at 20 MB, and nobody knows how far it came."""
    ended = replace(read(10.3, 0, held=False), rchar=None, wchar=None, read_bytes=None)
    (load,) = loads_of(*opened(10.0), *paced(0, 10.0, 0, 10, 20), closed(10.3), ended)
    assert (load.bytes, load.notes) == (30 * MB, ("partly_seen",))
