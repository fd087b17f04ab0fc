"""Reads accelerators through another exporter on this node; runs in the sampler's own process.

A value counts once: when the exporter gives it a new time, or, where it gives none, when its exposition is
another than before. So readings come as seldom as the exporter makes them, each with the time it was made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from ckpt_exporter.sources.ascend import AscendDoubt, AscendShares
from ckpt_exporter.sources.exposition import Exposition, ExpositionError, Sample, samples
from ckpt_exporter.sources.exposition_tables import TABLES, Table, plain_name
from ckpt_exporter.sources.sampler_pace import CallTimes
from ckpt_exporter.sources.sampler_reader import BackendDownError, Row, Timed, failed_row, strangers

PATIENCE_SECONDS: Final = 10.0  # an exporter that is started anew is back by then
MOST_WATTS: Final = 20_000.0
SHARES: Final = frozenset({"util", "mem_util", "sm", "tensor", "dram"})

Values = dict[str, tuple[float, float | None]]  # reading -> value, its Unix time


class Told:
    """What one exposition says of one device."""

    def __init__(self, labels: dict[str, str]) -> None:
        self.labels = labels
        self.values: Values = {}
        self.ranks: dict[str, int] = {}
        self.pids: set[int] = set()


class ToldGpu:
    """One device as an exporter tells of it: identity, and what was last taken from it."""

    def __init__(self, key: str, seen: float, version: int) -> None:
        self.key = key
        self.uuid = key
        self.index = -1
        self.processes: int | None = None
        self.limit_w: float | None = None
        self.doubt = AscendDoubt()
        self.stamps: dict[str, float] = {}
        self.t = float("-inf")  # of the last reading
        self.seen = seen  # when the exporter last told something new
        self.poll = -1
        # Of what an exporter without times said first it is not known when that was: no reading.
        self.version = version
        self.error: str | None = None
        self.down_state: str | None = None


class ExpositionReader:
    """All devices that an exporter tells of. ``clock`` is monotonic seconds, ``unix`` the time of day."""

    def __init__(
        self,
        exposition: Exposition,
        times: CallTimes,
        *,
        poll_seconds: float,
        stale_seconds: float,
        clock: Callable[[], float],
        unix: Callable[[], float] = time.time,
    ) -> None:
        self._exposition = exposition
        self._times = times
        self._call = Timed(times, clock).call
        self._poll_seconds = poll_seconds
        self._stale_seconds = stale_seconds
        self._clock = clock
        self._unix = unix
        self._table: Table | None = None
        self._told: dict[str, Told] = {}
        self._lines: tuple[str, ...] = ()
        self._version = 0  # of the exposition: how often it was another than before
        self._polls = 0
        self._made = float("-inf")
        self._fetched = self._due = float("-inf")
        self._failing_since: float | None = None
        self._failure = ""
        self.gpus: list[ToldGpu] = []
        self.fast = False
        self.mapping_known = False

    def open(self) -> None:
        """Fetch once; raises BackendDownError where nothing usable is told."""
        self._fetch(self._clock())
        if self._failing_since is not None:
            raise BackendDownError("unreachable", self._failure)

    def close(self) -> None:
        """Do nothing: no connection is kept."""

    # --- which devices there are

    def enumerate(self) -> list[dict[str, Any]]:
        """List the devices that the last exposition told of, by index."""
        known = {gpu.key: gpu for gpu in self.gpus}
        if self._failing_since is None:
            keys = sorted(self._told, key=lambda key: _order(self._table, self._told[key]))
            self.gpus = [known.get(key) or ToldGpu(key, self._clock(), self._version) for key in keys]
        for index, gpu in enumerate(self.gpus):
            gpu.index = index
        return [self._identity(gpu) for gpu in self.gpus]

    def _identity(self, gpu: ToldGpu) -> dict[str, Any]:
        table, told = self._table, self._told.get(gpu.key)
        if table is None or told is None:
            return {"gpu": gpu.index, "uuid": gpu.uuid}
        limit, _ = told.values.get("limit_w", (None, None))
        gpu.limit_w = limit or gpu.limit_w
        return {
            "gpu": gpu.index,
            "uuid": gpu.uuid,
            "name": _first(told.labels, table.name),
            "driver": _first(told.labels, table.driver),
            "limit_w": gpu.limit_w,
            "waiting_known": table.waiting_known,
        }

    # --- readings

    def read(self, gpu: ToldGpu) -> Row | None:
        """Return what is new of one device, None if nothing is; the last value tells why there is nothing."""
        now = self._clock()
        if now >= self._due:
            self._fetch(now)
        if gpu.poll == self._polls:
            return None
        gpu.poll, gpu.down_state = self._polls, None
        if self._failing_since is not None:
            gpu.down_state = "unreachable" if now - self._failing_since >= PATIENCE_SECONDS else None
            return self._failed(gpu, now, self._failure)
        told = self._told.get(gpu.key)
        if told is None:
            return self._failed(gpu, now, "the exporter tells nothing of it any more")
        return self._newest(gpu, told, now)

    def _failed(self, gpu: ToldGpu, now: float, reason: str) -> Row:
        gpu.error = reason
        return failed_row(round(now, 6), gpu.index, reason)

    def _newest(self, gpu: ToldGpu, told: Told, now: float) -> Row | None:
        fresh = self._fresh(gpu, told)
        made = [unix for _, unix in fresh.values() if unix is not None]
        t = round(now - max(0.0, self._unix() - max(made)) if made else self._made, 6)
        if not fresh or t <= gpu.t:
            if now - gpu.seen <= self._stale_seconds:
                return None
            return self._failed(gpu, now, f"the exporter has told nothing new for {self._stale_seconds:g} s")
        gpu.error, gpu.seen, gpu.t = None, now, t
        values = self._believed(gpu, {name: value for name, (value, _) in fresh.items()})
        gpu.limit_w = values.get("limit_w") or gpu.limit_w
        work = (values.get("util"), values.get("mem_util"), values.get("power_w") or None, None)
        counters = (values.get("sm"), values.get("tensor"), values.get("dram"), None)
        return (t, gpu.index, *work, *counters, gpu.limit_w, gpu.processes, None)

    def _believed(self, gpu: ToldGpu, told: dict[str, float]) -> dict[str, float | None]:
        values: dict[str, float | None] = {**told}
        if self._table is not None and self._table.ascend:
            shares = AscendShares(told.get("util"), told.get("tensor"), told.get("sm"), told.get("dram"))
            util, cube, vector, traffic = gpu.doubt.believe(shares)
            values.update(util=util, tensor=cube, sm=vector, dram=traffic, mem_util=traffic)
        return values

    def _fresh(self, gpu: ToldGpu, told: Told) -> Values:
        """Return the values that were not taken before; a limit alone is no reading."""
        changed, gpu.version = gpu.version != self._version, self._version
        fresh: Values = {}
        for name, (value, unix) in told.values.items():
            new = changed if unix is None else unix > gpu.stamps.get(name, float("-inf"))
            if new:
                fresh[name] = (value, unix)
            if unix is not None:
                gpu.stamps[name] = max(unix, gpu.stamps.get(name, unix))
        return fresh if any(name != "limit_w" for name in fresh) else {}

    def read_pids(self) -> dict[int, list[int]]:
        """List the processes of each device, where the exporter tells them."""
        if self._table is None or self._table.processes is None:
            return {}
        listed = {}
        for gpu in self.gpus:
            told = self._told.get(gpu.key)
            gpu.processes = None if told is None else len(told.pids)
            if told is not None:
                listed[gpu.index] = sorted(told.pids)
        total = sum(map(len, listed.values()))
        if total:
            self.mapping_known = strangers(listed) * 2 < total
        return listed

    # --- the exposition

    def _fetch(self, now: float) -> None:
        before, self._fetched = self._fetched, now
        self._polls += 1
        try:
            self._take(self._ask(now), before, now)
            self._failing_since = None
        except ExpositionError as error:
            self._failure = str(error)
            if self._failing_since is None:
                self._failing_since = now

    def _ask(self, now: float) -> str:
        try:
            return str(self._call(self._exposition.fetch))
        finally:
            # With the tick that comes then; but a slow answer is not asked for again for each device.
            took = min(self._poll_seconds, self._clock() - now)
            self._due = max(now + 0.9 * self._poll_seconds, self._clock() + took)
            self._times.tick.clear()  # nor is it a driver's lock that the training waits for, too

    def _take(self, text: str, before: float, now: float) -> None:
        table, lines = _recognise(text)
        if table is None:
            names = ", ".join(known.exporter for known in TABLES)
            raise ExpositionError(f"{self._exposition.url} has no metrics of {names}")
        if lines == self._lines:
            return
        # It was made anew some time since it was last seen; half-way is off by half of that at most.
        seen_before = self._failing_since is None and now - before < 2 * self._poll_seconds
        self._made = (before + now) / 2 if seen_before else now
        self._table, self._lines, self._version = table, lines, self._version + 1
        self._told = _by_device(table, lines)


def _recognise(text: str) -> tuple[Table | None, tuple[str, ...]]:
    """Find whose metrics these are, and their lines."""
    for table in TABLES:
        lines = tuple(line for line in text.splitlines() if line.startswith(table.prefixes))
        if any(_name_in(table, line) in table.readings for line in lines):
            return table, lines
    return None, ()


def _name_in(table: Table, line: str) -> str:
    return plain_name(table, line.partition("{")[0].partition(" ")[0])


def _by_device(table: Table, lines: tuple[str, ...]) -> dict[str, Told]:
    told: dict[str, Told] = {}
    wanted = {*table.readings, table.processes}
    for sample in samples(line for line in lines if _name_in(table, line) in wanted):
        place = _first(sample.labels, table.place)
        if not place or any(sample.labels.get(label, whole) != whole for label, whole in table.parts.items()):
            continue
        key = _first(sample.labels, table.uuid) or f"{table.exporter}-{place}"
        device = told.setdefault(key, Told({}))
        device.labels = {**sample.labels, **device.labels}
        _note(table, device, sample)
    return {key: device for key, device in told.items() if device.values}


def _note(table: Table, device: Told, sample: Sample) -> None:
    name = plain_name(table, sample.name)
    if name == table.processes:
        pid = sample.labels.get(table.pid, "")
        if pid.isdecimal() and pid != "0":
            device.pids.add(int(pid))
        return
    reading, factor = table.readings.get(name, ("", 0.0))
    rank = list(table.readings).index(name) if reading else -1
    value = sample.value * factor
    usable = reading and 0 <= value <= (1.0 if reading in SHARES else MOST_WATTS)
    if usable and rank <= device.ranks.get(reading, rank):
        device.ranks[reading] = rank
        device.values[reading] = (round(value, 4), sample.unix)


def _first(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")


def _order(table: Table | None, told: Told) -> tuple[int, str]:
    index = _first(told.labels, table.place) if table is not None else ""
    return (int(index) if index.isdecimal() else 1 << 30, index)


def open_reader(
    _library: Any, times: CallTimes, clock: Callable[[], float], settings: Mapping[str, Any]
) -> ExpositionReader:
    """Make the reader of the configured URL."""
    return ExpositionReader(
        Exposition(settings["url"]),
        times,
        poll_seconds=settings["poll_seconds"],
        stale_seconds=settings["stale_seconds"],
        clock=clock,
    )
