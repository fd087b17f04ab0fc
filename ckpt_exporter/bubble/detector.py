"""From GPU readings and saves to bubbles, stalls and counters."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from ckpt_exporter.bubble.activity import COARSE_SECONDS, Scale
from ckpt_exporter.bubble.attribution import SaveSpan
from ckpt_exporter.bubble.elsewhere import Looks, joined, with_parts
from ckpt_exporter.bubble.gpus import SILENT_SECONDS, Gpu
from ckpt_exporter.bubble.judge import Case
from ckpt_exporter.bubble.runs import Runs
from ckpt_exporter.bubble.settings import BubbleSettings
from ckpt_exporter.bubble.stalls import Stalls
from ckpt_exporter.bubble.track import Rows
from ckpt_exporter.bubble.verdict import RunGpus, judge
from ckpt_exporter.model import (
    Bubble,
    GpuInfo,
    GpuSample,
    GpuSet,
    GpuStatus,
    HostEvidence,
    Save,
    Stall,
    Writers,
)

# GPUs that were seen once (MIG instances come and go) are kept for their counters, but not without end.
MAX_GPUS = 64
TRIM_SECONDS = 30.0
DAY_SECONDS = 86400.0
# Steps leave GPUs without kernels for less than that; a stretch of half an hour needs no more looks.
LOW_SECONDS = 0.75
LONGEST_LOOK_SECONDS = 1800.0


class BubbleDetector:
    """Turn readings of GPUs into the cost of each save, and into stalls.

    Facts come in time order; nothing here reads a clock. Each ended save gives one Bubble, once its dip is
    over; its cost enters the counters at that moment.
    """

    def __init__(self, settings: BubbleSettings = BubbleSettings()) -> None:  # noqa: B008 (frozen)
        self.settings = settings
        self._gpus: dict[str, Gpu] = {}
        self._uuids: dict[int, str] = {}
        self._runs = Runs()
        self._unplaced: list[Writers] = []
        self._saves: dict[int, SaveSpan] = {}
        self._open: dict[tuple[str, str], int] = {}
        self._pending: dict[int, Save] = {}
        # Saves of other hosts: open ones, parts of saves of this one, and how far looks have told.
        self._open_elsewhere: dict[tuple[str, str], int] = {}
        self._parts: set[int] = set()
        self._elsewhere_looks: dict[str, Looks] = {}
        self._stalls = Stalls(settings, self._gpus, self._runs, self._touching)
        self._low: set[str] = set()
        self._next_key = 0
        self._next_trim = -inf

    # --- in ---------------------------------------------------------------------------------------------

    def feed(self, fact: GpuSample | GpuSet | Writers | HostEvidence) -> None:
        """Take in one fact."""
        if isinstance(fact, GpuSample):
            self._on_sample(fact)
        elif isinstance(fact, HostEvidence):
            self._stalls.note_host(fact, frozenset(self._uuids[g] for g in fact.gpus if g in self._uuids))
        elif isinstance(fact, GpuSet):
            self._on_set(fact)
        else:
            self._on_writers(fact)

    def _on_sample(self, sample: GpuSample) -> None:
        uuid = sample.uuid or self._uuids.get(sample.gpu) or f"gpu-{sample.gpu}"
        gpu = self._gpus.get(uuid) or self._add(GpuInfo(sample.gpu, uuid))
        ended = gpu.feed(sample)
        since = gpu.stalls.low_since
        low = since is not None and LOW_SECONDS <= sample.t - since <= LONGEST_LOOK_SECONDS
        if low and gpu.belongs(sample.t):
            self._low.add(uuid)
        else:
            self._low.discard(uuid)
        if ended is not None:
            self._stalls.note_episode(uuid, ended)

    def _add(self, info: GpuInfo) -> Gpu:
        if len(self._gpus) >= MAX_GPUS:
            oldest = min(self._gpus.values(), key=lambda gpu: gpu.last_t)
            del self._gpus[oldest.info.uuid]
            self._low.discard(oldest.info.uuid)
        gpu = self._gpus[info.uuid] = Gpu(info, self.settings)
        self._uuids[info.gpu] = info.uuid
        self._place()
        return gpu

    def _on_set(self, fact: GpuSet) -> None:
        self._uuids = {info.gpu: info.uuid for info in fact.gpus}
        for info in fact.gpus:
            if info.uuid in self._gpus:
                self._gpus[info.uuid].info = info
            else:
                self._add(info)
        self._place()

    def _on_writers(self, writers: Writers) -> None:
        if writers.gpus is not None and any(gpu not in self._uuids for gpu in writers.gpus):
            self._unplaced = [*self._unplaced[-7:], writers]
        self._note(writers)

    def _place(self) -> None:
        """Find the GPUs of runs that were seen before their GPUs were."""
        waiting, self._unplaced = self._unplaced, []
        for writers in waiting:
            self._on_writers(writers)
        self._refresh()

    def _note(self, writers: Writers) -> None:
        gpus = None
        if writers.gpus is not None:
            gpus = frozenset(self._uuids[gpu] for gpu in writers.gpus if gpu in self._uuids)
        self._runs.note(writers, gpus if gpus or not writers.gpus else None)
        self._tell_open(writers.directory)
        self._refresh()

    def _tell_open(self, directory: str) -> None:
        """Let saves that began before their writers were found spare the GPUs of other runs."""
        for (where, _), key in self._open.items():
            if where == directory and self._saves[key].gpus is None:
                self._saves[key] = replace(self._saves[key], gpus=self._runs.latest(directory))

    def save_began(self, directory: str, path: str, start: float) -> None:
        """Note that a save is open since ``start``."""
        if (directory, path) not in self._open:
            self._open[directory, path] = self._enter(directory, path, start, inf)
            self._refresh()

    def save_ended(self, save: Save) -> None:
        """Note that a save ended: complete, incomplete or aborted. Files that came late cost nothing more."""
        key = self._open.pop((save.directory, save.path), None)
        if save.late:
            if key is not None:
                del self._saves[key]
        else:
            key = self._enter(save.directory, save.path, save.start, save.end) if key is None else key
            gpus = self._runs.of_save(save)
            self._saves[key] = replace(self._saves[key], start=save.start, end=save.end, gpus=gpus)
            self._pending[key] = save
        self._refresh()

    def save_dropped(self, directory: str, path: str) -> None:
        """Note that what looked like a save was none."""
        key = self._open.pop((directory, path), None)
        if key is not None:
            del self._saves[key]
            self._refresh()

    # --- other hosts ------------------------------------------------------------------------------------

    def elsewhere_looked(self, directory: str, known_until: float, now: float) -> None:
        """Note that all saves that other hosts began in a directory before a moment are known."""
        self._elsewhere_looks.setdefault(directory, Looks()).note(known_until, now)

    def elsewhere_began(self, directory: str, path: str, start: float) -> None:
        """Note that another host writes a save, or a part of one of this host's."""
        if (directory, path) not in self._open_elsewhere:
            self._open_elsewhere[directory, path] = self._enter(directory, path, start, inf)
            self._refresh()

    def elsewhere_ended(self, save: Save, *, part: bool) -> None:
        """Note that another host's save ended; ``part``: this host writes, or wrote, the same one."""
        key = self._open_elsewhere.pop((save.directory, save.path), None)
        key = self._enter(save.directory, save.path, save.start, save.end) if key is None else key
        gpus = self._runs.of_save(save)
        self._saves[key] = replace(self._saves[key], start=save.start, end=save.end, gpus=gpus)
        if part:
            self._parts.add(key)
        else:
            self._pending[key] = save
        self._refresh()

    def elsewhere_dropped(self, directory: str, path: str) -> None:
        """Note that what looked like another host's save was none, or that it can't be followed any more."""
        key = self._open_elsewhere.pop((directory, path), None)
        if key is not None:
            del self._saves[key]
            self._refresh()

    def _parts_of(self, save: Save) -> list[SaveSpan]:
        """Return what other hosts wrote of a save of this one."""
        parts = [self._saves[key] for key in self._parts] if not save.elsewhere else []
        return [part for part in parts if (part.directory, part.path) == (save.directory, save.path)]

    def _awaits_others(self, save: Save, now: float) -> bool:
        """Tell whether another host may still write a part of a save of this one."""
        looks = self._elsewhere_looks.get(save.directory)
        if save.elsewhere or looks is None:
            return False
        return (save.directory, save.path) in self._open_elsewhere or looks.may_tell(save.end, now)

    def _unseen_elsewhere(self, t: float, now: float) -> bool:
        return any(looks.may_tell(t, now) for looks in self._elsewhere_looks.values())

    # --- loads ------------------------------------------------------------------------------------------

    def load_seen(self, directory: str, start: float, end: float) -> None:
        """Note that a checkpoint was being loaded from ``start`` to ``end``, as far as is known by now."""
        self._stalls.note_load(directory, start, end)

    def _enter(self, directory: str, path: str, start: float, end: float) -> int:
        self._next_key += 1
        gpus = self._runs.latest(directory)
        self._saves[self._next_key] = SaveSpan(self._next_key, start, end, directory, path, gpus)
        return self._next_key

    # --- out --------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Bubble | Stall]:
        """Return the bubbles whose dips are over and the stalls that ended."""
        ready = [key for key in self._pending if self._ready(key, now)]
        out: list[Bubble | Stall] = [self._judge(key, now) for key in ready]
        out += self._stalls.judge(now, lambda t: self._unseen_elsewhere(t, now))
        if now >= self._next_trim:
            self._next_trim = now + TRIM_SECONDS
            self._forget(now)
        return out

    @property
    def judging(self) -> bool:
        """Tell whether a save that ended has yet to be judged."""
        return bool(self._pending)

    @property
    def low(self) -> bool:
        """Tell whether any GPU of a run works little for longer than a step takes."""
        return bool(self._low)

    def unexplained(self, now: float) -> tuple[int, ...]:
        """Return the indices of the GPUs of runs that work little now, and no save can have caused it."""
        # One that is not read any more may do anything.
        self._low = {uuid for uuid in self._low if now - self._gpus[uuid].last_t <= SILENT_SECONDS}
        free = [self._gpus[uuid] for uuid in self._low if not self._claimed(uuid, now)]
        return tuple(sorted(gpu.info.gpu for gpu in free))

    def _claimed(self, uuid: str, now: float) -> bool:
        since = self._gpus[uuid].stalls.low_since or now
        before, after = self.settings.reach_before_seconds, self.settings.reach_after_seconds
        return any(
            save.start - before <= now
            and since <= save.end + after
            and now <= save.end + self.settings.lookahead_seconds
            for save in self._touching(uuid)
        )

    def finish(self, now: float) -> list[Bubble | Stall]:
        """Return what is left at the end: no reading comes after ``now``."""
        out: list[Bubble | Stall] = [self._judge(key, now) for key in list(self._pending)]
        for uuid, gpu in self._gpus.items():
            ended = gpu.stalls.cut()
            if ended is not None:
                self._stalls.note_episode(uuid, ended)
        return [*out, *self._stalls.judge(inf, lambda t: self._unseen_elsewhere(t, inf))]

    def statuses(self, now: float) -> tuple[GpuStatus, ...]:
        """Return every GPU as it is now, by index."""
        gpus = sorted(self._gpus.values(), key=lambda gpu: (gpu.info.gpu, gpu.info.uuid))
        return tuple(gpu.status(now) for gpu in gpus)

    def gpus_of(self, directory: str) -> tuple[int, ...] | None:
        """Return the indices of the GPUs of the run that writes below a directory; None unknown."""
        gpus = self._runs.latest(directory)
        return (
            None if gpus is None else tuple(sorted(self._gpus[u].info.gpu for u in gpus if u in self._gpus))
        )

    def readings(self, directory: str, start: float, end: float) -> tuple[list[tuple[Scale, Rows]], bool]:
        """Return copies of what was read between two moments on the GPUs of a directory's run, with scales.

        The second value tells whether those are known to be its GPUs, or are all that may be.
        """
        known = self._runs.latest(directory)
        others = self._runs.held_by_others(directory) if known is None else frozenset()
        gpus = [
            gpu
            for uuid, gpu in self._gpus.items()
            if (uuid in known if known is not None else uuid not in others)
            and (known is not None or gpu.had_processes(start, end) is not False)
        ]
        found = [(gpu.baseline.scale, gpu.track.rows(start, end)) for gpu in gpus if gpu.baseline]
        return [(scale, rows) for scale, rows in found if len(rows)], known is not None

    # --- saves ------------------------------------------------------------------------------------------

    def _touching(self, uuid: str) -> list[SaveSpan]:
        """Return the saves that may have cost a GPU anything."""
        return [
            save for save in self._saves.values() if save.touches(uuid) and not self._elsewhere(save, uuid)
        ]

    def _elsewhere(self, save: SaveSpan, uuid: str) -> bool:
        return save.gpus is None and uuid in self._runs.held_by_others(save.directory)

    def _refresh(self) -> None:
        """Tell the GPUs what runs and saves mean for them."""
        held, margin = self._runs.held(), self.settings.mask_seconds
        for uuid, gpu in self._gpus.items():
            touching = self._touching(uuid)
            gpu.held = uuid in held
            gpu.saving = any(save.end == inf for save in touching)
            gpu.masks = [(save.start - margin, save.end + margin) for save in touching]

    def _candidates(self, key: int) -> RunGpus:
        """Return whose GPUs a save may have stopped."""
        save = self._pending[key]
        known = self._runs.of_save(save)
        if known is not None:
            return RunGpus([gpu for uuid, gpu in self._gpus.items() if uuid in known], known=True)
        others = self._runs.held_by_others(save.directory)
        gpus = [gpu for uuid, gpu in self._gpus.items() if uuid not in others]
        start = save.start - self.settings.lookback_seconds
        return RunGpus([gpu for gpu in gpus if gpu.had_processes(start, save.end) is not False], known=False)

    def _ready(self, key: int, now: float) -> bool:
        save, settings = self._pending[key], self.settings
        if self._awaits_others(save, now):
            return False
        span = joined(self._saves[key], self._parts_of(save))
        gpus = self._candidates(key).gpus
        settle = settings.reach_after_seconds + max((_settle(gpu) for gpu in gpus), default=0.0)
        if now < span.end + settle:
            return False
        if now >= span.end + settings.lookahead_seconds + settle:
            return True
        return not any(self._still_low(gpu, span, now) for gpu in gpus)

    def _still_low(self, gpu: Gpu, span: SaveSpan, now: float) -> bool:
        """Tell whether a GPU's dip goes on, and is not by now another save's."""
        if now - gpu.last_t > gpu.gap_seconds or gpu.known_processes(now) == 0:
            return False
        later = [s for s in self._touching(gpu.info.uuid) if s.key != span.key and s.end > span.end]
        if any(save.start <= span.end for save in later):
            return False
        return now - gpu.stalls.last_low < _settle(gpu) or gpu.slowed(now)

    def _judge(self, key: int, now: float) -> Bubble:
        run = self._candidates(key)
        save = self._pending.pop(key)
        parts = self._parts_of(save)
        for part in parts:
            del self._saves[part.key]
            self._parts.discard(part.key)
        span = joined(replace(self._saves[key], gpus=self._runs.of_save(save)), parts)
        self._saves[key] = span
        whole = with_parts(save, parts)
        cases = [(gpu, Case(whole, span, self._touching(gpu.info.uuid), now)) for gpu in run.gpus]
        return judge(save, run, cases, self.settings)

    def _forget(self, now: float) -> None:
        """Keep only what a judgement to come may need."""
        settings = self.settings
        # A save that nobody ends would keep readings for ever.
        self._open = {
            save: key for save, key in self._open.items() if self._saves[key].start > now - DAY_SECONDS
        }
        held = {*self._open.values(), *self._open_elsewhere.values(), *self._pending}
        needed = [self._saves[key].start for key in held]
        keep_from = min([now - settings.ring_seconds, *(start - settings.before_seconds for start in needed)])
        for gpu in self._gpus.values():
            gpu.track.trim(keep_from)
            gpu.charges.forget(keep_from)
        self._stalls.forget(keep_from)
        oldest = keep_from - settings.lookahead_seconds
        kept = {*self._open.values(), *self._open_elsewhere.values(), *self._pending}
        self._saves = {
            key: save for key, save in self._saves.items() if key in kept or oldest <= save.end < inf
        }
        self._parts &= self._saves.keys()
        self._refresh()


def _settle(gpu: Gpu) -> float:
    """Return how long activity must be back before a dip counts as over (averaging, a step, spacing)."""
    period = gpu.baseline.period if gpu.baseline else None
    spacing = gpu.spacing_seconds
    return 3.0 + (period or 0.0) + (2 * spacing if spacing > COARSE_SECONDS else 0.0)
