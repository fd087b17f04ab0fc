"""Loads from hand-made facts: what was read, by whom, until when, and what is no load."""

from __future__ import annotations

import pytest

from ckpt_exporter.ledger import Ledger
from ckpt_exporter.model import DetectSettings, Fact, Load, ReadEvent, Reading, Save
from ckpt_exporter.recording import parse_recording
from tests.unit.reading_facts import DIRECTORY, FILE, MB, SECOND, closed, loads_of, opened, read


def test_a_file_read_from_start_to_end() -> None:
    """A load lasts from the first open to the close after the last byte, quiet time left out."""
    (load,) = loads_of(
        *opened(10.0, cached=25 * MB),
        read(10.0, 1000),
        read(11.0, 1000 + 50 * MB),
        closed(12.0),
        read(12.1, 1000 + 100 * MB, held=False),
    )
    assert (load.start, load.end, load.duration_seconds) == (10.0, 12.0, 2.0)
    assert (load.bytes, load.files, load.readers, load.pids) == (100 * MB, 1, 1, (7,))
    assert (load.layout, load.step, load.path) == ("hf_trainer", 500, "/data/ckpt/checkpoint-500")
    assert load.bandwidth == 50 * MB
    assert load.cached_ratio == 0.25
    assert load.notes == ()


def test_what_was_read_before_the_first_look_counts() -> None:
    """A file is taken for wholly read when what was seen, at its rate, leaves nothing out."""
    (load,) = loads_of(
        *opened(10.0),
        read(10.1, 5 * MB),  # by then 5 MB, at the rate of the second that follows
        read(11.1, 55 * MB),
        closed(12.0),
        read(12.0, 100 * MB, held=False),
    )
    assert load.bytes == 100 * MB


def test_a_part_of_a_file_is_a_part() -> None:
    """Reading 30 MB of 100 MB and keeping the file open is a load of 30 MB that ends with the last byte."""
    (load,) = loads_of(*opened(10.0), read(10.0, 0), read(11.0, 30 * MB), read(12.0, 30 * MB), until=200.0)
    assert (load.bytes, load.end) == (30 * MB, 11.0)


def test_bytes_that_were_mostly_worked_out_are_said_to_be() -> None:
    """A reader found after 0.5 of 1 s, with 20 MB seen, read 40 MB: no look showed half, a note says."""
    (load,) = loads_of(
        *opened(10.0), read(10.5, 20 * MB), read(11.0, 40 * MB), read(12.0, 40 * MB), until=200.0
    )
    assert (load.bytes, load.notes) == (40 * MB, ("partly_seen",))


def test_readers_of_the_same_file_count_its_bytes_once() -> None:
    """Eight ranks that read all of one file are eight readers of its size."""
    facts = [*opened(10.0)]
    facts += [read(10.0, 0, pid) for pid in range(1, 9)]
    facts += [read(11.0, 100 * MB, pid) for pid in range(1, 9)]
    facts += [closed(11.0), *(read(11.1, 100 * MB, pid, held=False) for pid in range(1, 9))]
    (load,) = loads_of(*facts)
    assert (load.bytes, load.readers, load.pids) == (100 * MB, 8, tuple(range(1, 9)))


def test_parts_of_one_file_by_several_readers_are_an_estimate() -> None:
    """Two readers of 30 MB each may have read the same: the sum is given, and a note says so."""
    facts = [*opened(10.0), read(10.0, 0, 1), read(10.0, 0, 2), read(11.0, 30 * MB, 1)]
    facts += [read(11.0, 30 * MB, 2), closed(11.0), read(11.1, 30 * MB, 1, held=False)]
    (load,) = loads_of(*facts, read(11.1, 30 * MB, 2, held=False))
    assert (load.bytes, load.notes) == (60 * MB, ("ranges_estimated",))


def test_files_of_one_checkpoint_are_one_load() -> None:
    """Files of a checkpoint read one after the other are one load, and another checkpoint's is its own."""
    other = "/data/ckpt/checkpoint-400/model.safetensors"
    (first, second) = loads_of(
        *opened(10.0, 100 * MB), read(10.0, 0), read(11.0, 100 * MB), closed(11.0),
        read(11.1, 100 * MB, held=False),
        *opened(12.0, 0, path=SECOND), read(12.0, 100 * MB, path=SECOND),
        read(14.0, 200 * MB, path=SECOND), closed(14.0, SECOND),
        read(14.1, 200 * MB, path=SECOND, held=False),
        *opened(30.0, path=other), read(30.0, 0, path=other), read(31.0, 100 * MB, path=other),
        closed(31.0, other), read(31.1, 100 * MB, path=other, held=False),
    )  # fmt: skip
    assert (first.bytes, first.files, first.duration_seconds, first.cached_ratio) == (200 * MB, 2, 4.0, 0.5)
    assert (second.step, second.bytes, second.cached_ratio) == (400, 100 * MB, None)


def test_a_mapped_file_ends_with_its_last_touch() -> None:
    """A model served from its mapping was loaded when the process's pages stopped growing."""
    more = {"rchar": 500, "mapped": True}
    (load,) = loads_of(
        *opened(10.0),
        read(10.0, mapped_bytes=10 * MB, resident_bytes=40 * MB, **more),
        read(11.0, resident_bytes=90 * MB, **more),
        read(12.0, resident_bytes=130 * MB, **more),
        read(13.0, resident_bytes=130 * MB, **more),
    )
    assert (load.bytes, load.start, load.end) == (100 * MB, 10.0, 12.0)


def test_of_a_mapped_file_only_what_was_touched_counts() -> None:
    """40 MB of pages after the 10 MB at the first look are 50 MB, whatever the size of the file."""
    more = {"rchar": 500, "mapped": True}
    (load,) = loads_of(
        *opened(10.0),
        read(10.0, mapped_bytes=10 * MB, resident_bytes=40 * MB, **more),
        read(11.0, resident_bytes=80 * MB, **more),
        read(12.0, resident_bytes=80 * MB, **more),
    )
    assert load.bytes == 50 * MB


def test_past_the_page_cache_nothing_is_cached() -> None:
    """A reader with O_DIRECT has a cached share of 0 although the whole file is cached."""
    (load,) = loads_of(
        *opened(10.0, cached=100 * MB),
        read(10.0, 0, direct=True),
        read(11.0, 100 * MB, read_bytes=100 * MB, direct=True),
        closed(11.0),
        read(11.1, 100 * MB, read_bytes=100 * MB, direct=True, held=False),
    )
    assert load.cached_ratio == 0.0


@pytest.mark.parametrize(("fetched", "ratio"), [(30 * MB, 0.7), (104 * MB, 0.0), (0, None)])
def test_without_a_look_at_the_page_cache_the_io_tells(fetched: int, ratio: float | None) -> None:
    """Of 100 MB read 30 MB came from the storage; what was fetched ahead is no less than nothing cached."""
    (load,) = loads_of(
        *opened(10.0, cached=None),
        read(10.0, 0),
        read(11.0, 100 * MB, read_bytes=fetched),
        closed(11.0),
        read(11.1, 100 * MB, read_bytes=fetched, held=False),
    )
    assert load.cached_ratio == (None if ratio is None else pytest.approx(ratio))


def late_look(seconds: float, cached: int, *facts: ReadEvent | Reading) -> float | None:
    """Return the cached share where the look at the page cache came so long after the open."""
    look = ReadEvent(10.0 + seconds, FILE, "look", size=100 * MB, cached_bytes=cached, visible=True)
    (load,) = loads_of(ReadEvent(10.0, FILE, "open", size=100 * MB), look, *facts)
    return load.cached_ratio


def test_what_the_reader_brought_in_before_the_look_was_not_cached() -> None:
    """30 MB were cached; by the look 0.2 s later 50 MB/s from the storage have made 40 MB of them."""
    ratio = late_look(
        0.2, 40 * MB,
        read(10.2, 14 * MB, read_bytes=10 * MB), read(11.0, 71 * MB, read_bytes=50 * MB),
        read(11.4, 100 * MB, read_bytes=70 * MB), closed(11.4),
        read(11.5, 100 * MB, read_bytes=70 * MB, held=False),
    )  # fmt: skip
    assert ratio == pytest.approx(0.3)


def test_a_late_look_at_what_was_read_by_then_tells_nothing() -> None:
    """By the look 80 of 100 MB had been read, from wherever: only the process's own I/O could tell."""
    ratio = late_look(
        0.2, 100 * MB, read(10.2, 80 * MB), closed(10.25), read(10.3, 100 * MB, held=False)
    )  # fmt: skip
    assert ratio is None


def test_a_file_closed_before_the_look_tells_nothing_unless_it_is_mapped() -> None:
    """Who closed a file may have read all of it; who mapped it before closing has it still to read."""
    more = {"rchar": 500, "mapped": True}
    mapped = [
        closed(10.001),
        read(10.05, mapped_bytes=0, resident_bytes=0, **more),
        read(11.0, resident_bytes=100 * MB, **more),
        read(12.0, resident_bytes=100 * MB, mapped_bytes=100 * MB, **more),
    ]
    assert late_look(0.02, 100 * MB, *mapped) == 1.0
    (whole,) = loads_of(
        ReadEvent(10.0, FILE, "open", size=100 * MB), read(10.005, 0), closed(10.01),
        ReadEvent(10.02, FILE, "look", size=100 * MB, cached_bytes=100 * MB, visible=True),
        read(10.03, 100 * MB, held=False),
    )  # fmt: skip
    assert (whole.bytes, whole.cached_ratio) == (100 * MB, None)


def test_libraries_that_came_in_meanwhile_are_not_the_file() -> None:
    """Resident pages grew by 80 MB, of which 30 MB were the mapped file's, as its page tables show."""
    more = {"rchar": 500, "mapped": True}
    (load,) = loads_of(
        *opened(10.0),
        read(10.0, mapped_bytes=10 * MB, resident_bytes=20 * MB, **more),
        read(11.0, resident_bytes=100 * MB, **more),
        read(12.0, resident_bytes=100 * MB, mapped_bytes=40 * MB, **more),
    )
    assert load.bytes == 40 * MB


def test_pages_that_the_kernel_took_back_were_read() -> None:
    """Memory was short: 60 of 100 MB are resident at the end, all of them were touched."""
    more = {"rchar": 500, "mapped": True}
    (load,) = loads_of(
        *opened(10.0),
        read(10.0, mapped_bytes=0, resident_bytes=0, **more),
        read(11.0, resident_bytes=100 * MB, **more),
        read(12.0, resident_bytes=60 * MB, **more),
        read(13.0, resident_bytes=60 * MB, mapped_bytes=60 * MB, **more),
    )
    assert load.bytes == 100 * MB


def test_a_mapping_that_still_grew_is_not_over() -> None:
    """Forty seconds without a look are no forty seconds of silence: the load goes on with the next."""
    more = {"rchar": 500, "mapped": True}
    (load,) = loads_of(
        *opened(10.0),
        read(10.0, mapped_bytes=0, resident_bytes=0, **more),
        read(11.0, resident_bytes=20 * MB, **more),
        read(51.0, resident_bytes=100 * MB, **more),
    )
    assert (load.bytes, load.end) == (100 * MB, 51.0)


def test_reads_that_no_call_shows_count_by_what_was_fetched() -> None:
    """An asynchronous reader, whose calls are not counted, is measured by its bytes from the storage."""
    (load,) = loads_of(
        *opened(10.0), read(10.0, 5), read(11.0, 5, read_bytes=40 * MB), read(12.0, 5, read_bytes=40 * MB)
    )
    assert load.bytes == 40 * MB


@pytest.mark.parametrize("command", ["cp", "rsync", "tar", "rclone", "aws", "gsutil", "scp", "dd", "md5sum"])
def test_copies_uploads_and_checksums_are_no_loads(command: str) -> None:
    """A program known to copy, upload or check loads nothing."""
    assert not loads_of(
        *opened(10.0),
        read(10.0, 0, command=command),
        read(11.0, 100 * MB, command=command),
        closed(11.0),
        read(11.1, 100 * MB, command=command, held=False),
    )


def test_who_writes_what_it_reads_loads_nothing() -> None:
    """An unknown program that writes as it reads copies."""
    assert not loads_of(
        *opened(10.0),
        read(10.0, 0),
        read(11.0, 50 * MB, wchar=50 * MB),
        closed(12.0),
        read(12.1, 100 * MB, wchar=100 * MB, held=False),
    )


def test_a_save_right_after_the_load_makes_no_copy() -> None:
    """A run that writes 100 MB after it has read 100 MB has loaded."""
    (load,) = loads_of(
        *opened(10.0), read(10.0, 0), read(11.0, 100 * MB), read(12.0, 100 * MB, wchar=100 * MB),
        closed(12.5), read(12.6, 100 * MB, wchar=100 * MB, held=False),
    )  # fmt: skip
    assert (load.bytes, load.end) == (100 * MB, 11.0)


def test_a_loader_beside_a_copy_is_alone_in_the_load() -> None:
    """While a backup reads the same file, the load is the loader's, with its times."""
    (load,) = loads_of(
        *opened(10.0), read(10.0, 0, 1, command="tar"), read(10.0, 0, 2),
        read(11.0, 100 * MB, 2), read(11.0, 10 * MB, 1, command="tar"),
        closed(11.0), read(11.1, 100 * MB, 2, held=False), read(20.0, 100 * MB, 1, command="tar"),
        closed(20.0), read(20.1, 100 * MB, 1, command="tar", held=False),
    )  # fmt: skip
    assert (load.pids, load.readers, load.end) == ((2,), 1, 11.0)


def test_a_file_that_only_a_copy_read_is_not_in_the_load() -> None:
    """While a run loads the model, a backup of the optimizer beside it adds nothing."""
    tar = {"command": "tar", "path": SECOND}
    (load,) = loads_of(
        *opened(10.0), *opened(10.0, path=SECOND), read(10.0, 0, 1), read(10.0, 0, 2, **tar),
        read(11.0, 100 * MB, 1), read(11.0, 100 * MB, 2, **tar), closed(11.0), closed(11.5, SECOND),
        read(11.6, 100 * MB, 1, held=False), read(11.6, 100 * MB, 2, held=False, **tar),
    )  # fmt: skip
    assert (load.bytes, load.files, load.pids, load.end) == (100 * MB, 1, (1,), 11.0)


def test_who_opens_and_reads_nothing_loads_nothing() -> None:
    """A process that holds a checkpoint open without reading it is no load."""
    assert not loads_of(*opened(10.0), read(10.0, 0), read(11.0, 0), closed(12.0), read(12.1, 0, held=False))


def test_a_close_too_soon_for_any_reader_is_no_load() -> None:
    """100 MB in a millisecond were not read: somebody looked at the header."""
    unseen = [ReadEvent(10.0, FILE, "open", size=100 * MB), closed(10.001)]
    assert not loads_of(*unseen)


def test_where_readers_cannot_be_seen_the_events_tell() -> None:
    """Without the right to look at other processes a load has the sizes of its files, and says so."""
    look = ReadEvent(10.0, FILE, "look", size=100 * MB, cached_bytes=0, visible=False)
    (load,) = loads_of(ReadEvent(10.0, FILE, "open", size=100 * MB), look, closed(12.0))
    assert (load.bytes, load.duration_seconds, load.readers) == (100 * MB, 2.0, None)
    assert (load.cached_ratio, load.notes) == (0.0, ("readers_unseen",))


def test_where_readers_can_be_seen_one_that_was_not_is_no_load() -> None:
    """Who was too quick to be seen may as well have copied: nothing is made up."""
    assert not loads_of(*opened(10.0), closed(10.5))


def test_a_pause_within_a_file_does_not_end_the_load() -> None:
    """Thirty seconds of unpacking between two reads of one open file are part of one load."""
    (load,) = loads_of(
        *opened(10.0), read(10.0, 0), read(11.0, 40 * MB), read(12.0, 40 * MB), read(41.0, 100 * MB),
        closed(41.0), read(41.1, 100 * MB, held=False),
    )  # fmt: skip
    assert load.duration_seconds == 31.0


def test_little_reading_is_no_load() -> None:
    """Less than min_bytes, such as a configuration file, is no load."""
    small = opened(10.0, size=900_000)
    assert not loads_of(*small, read(10.0, 0, size=900_000), read(11.0, 900_000, size=900_000))


def test_the_ledger_counts_loads_from_a_recording() -> None:
    """Facts about reading survive a recording, and the ledger counts the load beside its saves."""
    lines = [
        '{"t": 9.0, "kind": "start", "unix": 0, "directories": [{"name": "llama", "path": "/data/ckpt"}]}',
        f'{{"t": 10.0, "kind": "read", "event": "open", "path": "{FILE}", "size": 100e6}}',
        f'{{"t": 10.0, "kind": "read", "event": "look", "path": "{FILE}", "size": 100e6, "visible": true}}',
        f'{{"t": 10.0, "kind": "reading", "path": "{FILE}", "pid": 7, "size": 100e6, "rchar": 0}}',
        f'{{"t": 11.0, "kind": "reading", "path": "{FILE}", "pid": 7, "size": 100e6, "rchar": 100e6}}',
        f'{{"t": 11.0, "kind": "read", "event": "close", "path": "{FILE}"}}',
    ]
    found: list[Load] = []
    saves: list[Save] = []
    ledger = Ledger([DIRECTORY], DetectSettings(), on_load=found.append, on_save=saves.append)
    facts: list[Fact] = list(parse_recording(lines, "recording"))[1:]  # type: ignore[arg-type]
    for fact in facts:
        ledger.feed(fact)
    assert ledger.loading
    ledger.tick(30.0)
    (directory,) = ledger.snapshot(30.0).directories
    assert (directory.loads, directory.load_bytes) == (1, 100 * MB)
    assert directory.last_load == found[0]
    assert directory.load_duration is not None
    assert (directory.load_duration.bounds[0], directory.load_duration.sum) == (0.1, 1.0)
    assert not saves
    assert not ledger.loading
    assert found[0].duration_seconds == 1.0


def cold(first_fetched: int) -> float | None:
    """Return the cached share where 5 MB are in the cache 2 ms after the open; 95 MB are fetched later."""
    t = 10.004
    return late_look(
        0.002, 5 * MB,
        read(t, 0, read_bytes=first_fetched), read(t + 1.0, 60 * MB, read_bytes=first_fetched + 65 * MB),
        read(11.6, 100 * MB, read_bytes=first_fetched + 95 * MB), closed(11.6),
        read(11.61, 100 * MB, read_bytes=first_fetched + 95 * MB, held=False),
    )  # fmt: skip


def test_what_was_read_ahead_by_the_look_was_not_cached() -> None:
    """The kernel reads 5 MB ahead at once: by the reader's own I/O they came from the storage."""
    assert cold(5 * MB) == 0.0


def test_what_was_cached_before_a_cold_rest_stays_cached() -> None:
    """The reader had fetched nothing by its first look: the 5 MB in the page cache were there before."""
    assert cold(0) == pytest.approx(0.05)


@pytest.mark.parametrize(("cached", "ratio"), [(100 * MB, 1.0), (3 * MB, 0.0)])
def test_a_program_that_came_from_the_storage_says_nothing_of_its_file(cached: int, ratio: float) -> None:
    """A reader that fetched 300 MB of libraries loads from the cache if it fetches nothing afterwards."""
    fetched = 300 * MB + (0 if ratio else 97 * MB)
    found = late_look(
        0.002, cached,
        read(10.004, 0, read_bytes=300 * MB), read(11.0, 100 * MB, read_bytes=fetched), closed(11.0),
        read(11.1, 100 * MB, read_bytes=fetched, held=False),
    )  # fmt: skip
    assert found == ratio


def test_a_short_cold_load_is_unknown() -> None:
    """All 100 MB are cached by the look, and the process may have fetched them by its first look."""
    whole = read(10.004, 100 * MB, read_bytes=100 * MB, position=100 * MB)
    ended = read(10.02, 100 * MB, read_bytes=100 * MB, held=False)
    assert late_look(0.003, 100 * MB, whole, closed(10.01), ended) is None
