"""Saves from a Prometheus server: each is read from the gauges of the last save, between two scrapes.

A node that only waits for saves of another host tells when they ended, and its bubble is charged to them.
What can be had is what the exporters exported and Prometheus kept. A save shows if at least one scrape fell
between its end and the end of the next one in its directory; incomplete and aborted saves are counters only.
"""

from __future__ import annotations

import base64
import json
import math
import time
import urllib.error
import urllib.parse
import urllib.request
from bisect import bisect_right
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from ckpt_exporter.analysis.prometheus_elsewhere import made_elsewhere, told_by_writers, with_figure
from ckpt_exporter.errors import CkptExporterError, UsageError
from ckpt_exporter.history.gpu_time import HOUR_SECONDS
from ckpt_exporter.history.reading import Kept
from ckpt_exporter.history.records import GpuTimeRecord, SaveRecord
from ckpt_exporter.history.rows import CAUSES, PHASES
from ckpt_exporter.logs import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ckpt_exporter.model import BubblePhase, StallCause

# Raw samples are asked for in pieces: a server refuses more than 50 million at once.
_PIECE_SECONDS: Final = 86_400.0
_TIMEOUT_SECONDS: Final = 30.0
_MAX_ANSWER_BYTES: Final = 512 * 1024 * 1024
DEFAULT_WINDOW_SECONDS: Final = 7 * 86_400.0

_Labels = dict[str, str]
_Samples = list[tuple[float, float]]
# Series of one metric: (instance, directory or "", further label values) to samples in time order.
_Series = dict[tuple[str, ...], _Samples]


class Server:
    """The HTTP API of one Prometheus server."""

    def __init__(self, url: str) -> None:
        """Check the address. Raises UsageError."""
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise UsageError(f"--prometheus={one_line(url)}: must be a URL such as http://prometheus:9090")
        user, _, host = parts.netloc.rpartition("@")
        shown = parts._replace(netloc=host).geturl()
        self.url = shown.rstrip("/")
        self.shown = one_line(shown)
        credentials = base64.b64encode(urllib.parse.unquote(user).encode()).decode()
        self._headers = {"Authorization": f"Basic {credentials}"} if user else {}

    def query(self, expression: str, at_unix: float) -> list[dict[str, Any]]:
        """Return the result of an instant query. Raises CkptExporterError."""
        fields = urllib.parse.urlencode({"query": expression, "time": f"{at_unix:.3f}"})
        request = urllib.request.Request(  # noqa: S310 (checked above)
            f"{self.url}/api/v1/query", data=fields.encode(), headers=self._headers
        )
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310
                body = answer.read(_MAX_ANSWER_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:
                raise CkptExporterError(f"{self.shown}: {_told(error)}") from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise CkptExporterError(f"{self.shown}: cannot be asked: {one_line(str(reason))}") from error
        try:
            result = json.loads(body)["data"]["result"]
        except (ValueError, KeyError, TypeError) as error:
            raise CkptExporterError(f"{self.shown}: the answer is not that of a Prometheus server") from error
        return list(result)


def _told(error: urllib.error.HTTPError) -> str:
    try:
        return f"answers {error.code}: {one_line(str(json.loads(error.read(4096))['error']))}"
    except (ValueError, KeyError, TypeError, OSError):
        return f"answers {error.code} {one_line(str(error.reason))}; is this a Prometheus server?"


def read_prometheus(
    url: str,
    *,
    since: float | None = None,
    until: float | None = None,
    now: Callable[[], float] = time.time,
) -> Kept:
    """Read the saves that ended in a window, by default of the last seven days. Raises CkptExporterError."""
    server = Server(url)
    end = now() if until is None else until
    begin = end - DEFAULT_WINDOW_SECONDS if since is None else since
    reading = _Reading(server, begin, end)
    saves = tuple(sorted(reading.saves(), key=lambda save: save.end_unix))
    ends = [save.end_unix for save in saves]
    return Kept(
        saves, tuple(reading.gpu_time()), min(ends, default=None), max(ends, default=None),
        reading.notes(sum(not save.elsewhere for save in saves), assumed=since is None),
    )  # fmt: skip


class _Reading:
    """One window of one server."""

    def __init__(self, server: Server, begin: float, end: float) -> None:
        self._server = server
        self._begin = begin
        self._end = end

    def _series(self, metric: str, *labels: str) -> _Series:
        """Return the raw samples of a metric by instance and these labels."""
        found: _Series = {}
        until = self._begin
        while until < self._end:
            length = min(_PIECE_SECONDS, self._end - until)
            until += length
            for entry in self._server.query(f"{metric}[{math.ceil(length)}s]", until):
                values: _Labels = entry["metric"]
                key = (values.get("instance", ""), *(values.get(label, "") for label in labels))
                samples = found.setdefault(key, [])
                last = samples[-1][0] if samples else -math.inf
                read = ((float(t), float(v)) for t, v in entry["values"])
                samples += [(t, v) for t, v in read if t > last and math.isfinite(v)]
        return found

    # --- saves ------------------------------------------------------------------------------------------

    def saves(self) -> Iterator[SaveRecord]:
        """Rebuild the complete saves that scrapes have seen as the last one, here or made elsewhere."""
        gauges = {name: self._series(f"ckpt_last_save_{name}", "dir") for name in _GAUGES}
        costs = {
            "phases": self._series("ckpt_bubble_seconds_total", "dir", "phase"),
            "bubble": self._series("ckpt_gpu_bubble_seconds_total", "dir", "gpu"),
            "drag": self._series("ckpt_gpu_drag_seconds_total", "dir", "gpu"),
            "figures": self._series("ckpt_bubble_seconds_count", "dir", "le"),
        }
        facts = self._facts()
        saves: list[SaveRecord] = []
        for key, found in self._by_place(gauges).items():
            for series, add in (
                (costs["phases"], _add_phase),
                (costs["bubble"], _add_bubble),
                (costs["drag"], _add_drag),
                (costs["figures"], _add_figure),
            ):
                for place, counter in series.items():
                    if place[:2] == key:
                        _charge(found, counter, place[2], add)
            saves += (replace(_whole(with_figure(save)), **facts.get(key, {})) for save in found)
        yield from told_by_writers(saves)

    def _by_place(self, gauges: dict[str, _Series]) -> dict[tuple[str, ...], list[SaveRecord]]:
        """Return the saves of each directory on each node, made there or elsewhere, as they ended."""
        found = {
            key: list(self._of_directory(key, ends, gauges))
            for key, ends in gauges["end_timestamp_seconds"].items()
        }
        for key, ends in self._series("ckpt_last_remote_save_end_timestamp_seconds", "dir").items():
            seen = (made_elsewhere(key[0], key[1], end) for _, end in self._last_seen(ends))
            found[key] = sorted([*found.get(key, []), *seen], key=lambda save: save.end_unix)
        return found

    def _last_seen(self, ends: _Samples) -> Iterator[tuple[float, float]]:
        """Yield (scrape, end) of each save that ended in the window, at the last scrape that shows it."""
        for (t, end), following in zip(ends, [*ends[1:], None], strict=True):
            if following is not None and abs(following[1] - end) < _SAME_SECONDS:
                continue  # the last scrape that shows this save knows most of it
            if self._begin <= end <= self._end:
                yield t, end

    def _of_directory(
        self, key: tuple[str, ...], ends: _Samples, gauges: dict[str, _Series]
    ) -> Iterator[SaveRecord]:
        instance, directory = key
        for t, end in self._last_seen(ends):
            known = {name: _at(series.get(key, []), t) for name, series in gauges.items()}
            size, files = known["bytes"], known["files"]
            if size is None:
                continue
            start = known["start_timestamp_seconds"]
            step = known["step"]
            yield SaveRecord(
                node=instance, directory=directory, path=directory, layout="", result="complete",
                start_unix=end if start is None else start, end_unix=end, bytes=int(size),
                files=int(files or 0), step=None if step is None else int(step),
                duration_seconds=known["duration_seconds"],
                active_seconds=_ratio(size, known["sustained_bandwidth_bytes_per_second"]),
                average_bandwidth=known["average_bandwidth_bytes_per_second"],
                sustained_bandwidth=known["sustained_bandwidth_bytes_per_second"],
                peak_bandwidth=known["peak_bandwidth_bytes_per_second"],
                bubble_seconds=known["bubble_seconds"], depth=known["bubble_depth_ratio"],
            )  # fmt: skip

    def _facts(self) -> dict[tuple[str, ...], dict[str, Any]]:
        """Return mount and run of each directory as they were last in the window."""
        facts: dict[tuple[str, ...], dict[str, Any]] = {}
        window = f"[{math.ceil(self._end - self._begin)}s]"
        for metric, names in (
            ("ckpt_directory_info", ("path", "mountpoint", "device", "fstype", "transport")),
            ("ckpt_run_info", ("run", "run_id", "scheduler")),
        ):
            for entry in self._server.query(f"last_over_time({metric}{window})", self._end):
                labels: _Labels = entry["metric"]
                known = {name: labels[name] for name in names if labels.get(name)}
                facts.setdefault((labels.get("instance", ""), labels.get("dir", "")), {}).update(known)
        return facts

    # --- GPUs -------------------------------------------------------------------------------------------

    def gpu_time(self) -> Iterator[GpuTimeRecord]:
        """Return the growth of each GPU's counters by hour."""
        hours: dict[tuple[str, str, str, int], tuple[float, dict[StallCause, float]]] = {}
        for (node, gpu, uuid), samples in self._series(
            "ckpt_gpu_observed_seconds_total", "gpu", "uuid"
        ).items():
            for t, grown in _growth(samples):
                key = (node, gpu, uuid, _hour(t))
                seconds, stalls = hours.get(key, (0.0, {}))
                hours[key] = (seconds + grown, stalls)
        stalled = self._series("ckpt_gpu_stall_seconds_total", "gpu", "uuid", "cause")
        for (node, gpu, uuid, cause), samples in stalled.items():
            for t, grown in _growth(samples):
                _, stalls = hours.setdefault((node, gpu, uuid, _hour(t)), (0.0, {}))
                for known in CAUSES:
                    if known == cause:
                        stalls[known] = stalls.get(known, 0.0) + grown
        for (node, gpu, uuid, hour), (seconds, stalls) in sorted(hours.items()):
            yield GpuTimeRecord(node, int(gpu) if gpu.isdigit() else -1, uuid, hour, seconds, stalls)

    # --- limits -----------------------------------------------------------------------------------------

    def notes(self, shown: int, *, assumed: bool) -> tuple[str, ...]:
        """Say what these measurements lack."""
        counted: dict[str, float] = {}
        for (_, _, result), samples in self._series("ckpt_saves_total", "dir", "result").items():
            counted[result] = counted.get(result, 0.0) + sum(grown for _, grown in _growth(samples))
        notes = [_LIMITS]
        if assumed:
            notes.append("the last seven days; choose others with --since")
        missed = round(counted.get("complete", 0.0)) - shown
        if missed > 0:
            notes.append(f"{missed} complete saves ended between two scrapes and cannot be told apart")
        others = ((result, round(counted.get(result, 0.0))) for result in ("incomplete", "aborted"))
        notes += [
            f"{count} {result} saves were counted; no more is known of them"
            for result, count in others
            if count
        ]
        return tuple(notes)


_LIMITS: Final = (
    "from Prometheus: no files of saves, so no shards that lag, and no layout; a save's figures are those"
    " that the last scrape before the next save saw"
)
# A restart may change the last digits of a moment.
_SAME_SECONDS: Final = 0.01
_GAUGES: Final = (
    "end_timestamp_seconds", "start_timestamp_seconds", "duration_seconds", "bytes", "files", "step",
    "average_bandwidth_bytes_per_second", "sustained_bandwidth_bytes_per_second",
    "peak_bandwidth_bytes_per_second", "bubble_seconds", "bubble_depth_ratio",
)  # fmt: skip


def _at(samples: _Samples, t: float) -> float | None:
    """Return the value that was scraped at a moment; None where the series was absent then."""
    index = bisect_right(samples, (t, math.inf)) - 1
    # Series of one scrape have one timestamp.
    return samples[index][1] if index >= 0 and samples[index][0] == t else None


def _growth(samples: _Samples) -> Iterator[tuple[float, float]]:
    """Yield (moment, growth since the scrape before); a counter that restarts grows from 0."""
    for (_, before), (t, value) in pairwise(samples):
        grown = value - before if value >= before else value
        if grown > 0:
            yield t, grown


def _charge(
    saves: list[SaveRecord],
    counter: _Samples,
    label: str,
    add: Callable[[SaveRecord, str, float], SaveRecord],
) -> None:
    """Give each growth of a counter to the save that had ended last by then: it grows when that is judged."""
    ends = [save.end_unix for save in saves]
    for t, grown in _growth(counter):
        index = bisect_right(ends, t) - 1
        if index >= 0:
            saves[index] = add(saves[index], label, grown)


def _whole(save: SaveRecord) -> SaveRecord:
    """Of a save with a bubble, a phase whose counter did not grow cost nothing."""
    if save.bubble_seconds is None:
        return save
    return replace(save, bubble_phases={**dict.fromkeys(PHASES, 0.0), **save.bubble_phases})


def _add_phase(save: SaveRecord, label: str, seconds: float) -> SaveRecord:
    phase: Iterable[BubblePhase] = (known for known in PHASES if known == label)
    added = {known: save.bubble_phases.get(known, 0.0) + seconds for known in phase}
    return replace(save, bubble_phases={**save.bubble_phases, **added})


def _add_figure(save: SaveRecord, _label: str, _count: float) -> SaveRecord:
    """Of a save made elsewhere that has a figure, a phase whose counter did not grow cost nothing."""
    if not save.elsewhere:
        return save
    return replace(save, bubble_phases={**dict.fromkeys(PHASES, 0.0), **save.bubble_phases})


def _add_bubble(save: SaveRecord, label: str, seconds: float) -> SaveRecord:
    gpu = int(label) if label.isdigit() else -1
    known = save.bubble_gpu_seconds
    return replace(save, bubble_gpu_seconds={**known, gpu: known.get(gpu, 0.0) + seconds})


def _add_drag(save: SaveRecord, label: str, seconds: float) -> SaveRecord:
    gpu = int(label) if label.isdigit() else -1
    known = save.drag_gpu_seconds
    return replace(save, drag_gpu_seconds={**known, gpu: known.get(gpu, 0.0) + seconds})


def _ratio(size: float, bandwidth: float | None) -> float | None:
    return size / bandwidth if bandwidth else None


def _hour(t: float) -> int:
    return int(t // HOUR_SECONDS) * HOUR_SECONDS
