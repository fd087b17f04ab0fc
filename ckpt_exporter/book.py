"""What is counted of one directory: its detectors, counters and last save, load and bubble."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

from ckpt_exporter.bubble.detector import BubbleDetector
from ckpt_exporter.detect.loads import LoadDetector
from ckpt_exporter.detect.progress import joined_late
from ckpt_exporter.detect.saves import SaveDetector
from ckpt_exporter.model import (
    Bubble,
    BubblePhase,
    DetectSettings,
    DirectorySettings,
    DirectorySnapshot,
    Histogram,
    Load,
    RemoteFile,
    RemoteLook,
    Save,
    SkipReason,
    Writers,
)
from ckpt_exporter.remote import RESULTS, RemoteSaves
from ckpt_exporter.timeline import RecentSaves, Timeline

# Wide enough that neither a two-second LoRA save nor a three-hour one ends in the first or last bucket.
DURATION_BUCKETS_SECONDS = tuple(
    map(float, (1, 2, 5, 10, 20, 30, 45, 60, 90, 120, 180, 300, 600, 1200, 1800, 3600, 10800))
)
# A warm load of a small model takes less than a second.
LOAD_BUCKETS_SECONDS = (0.1, 0.2, 0.5, *DURATION_BUCKETS_SECONDS)
PHASES: tuple[BubblePhase, ...] = ("before_write", "writing", "write_gap", "after_write")
SKIP_REASONS: tuple[SkipReason, ...] = ("no_gpu", "no_baseline", "sampler_gap", "low_quality")


class Durations:
    """A histogram being filled; ``bounds`` are the upper bounds of its buckets, in seconds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.exemplars: list[tuple[float, float, int] | None] = [None] * (len(bounds) + 1)

    def observe(self, value: float, unix: float, step: int | None) -> None:
        """Add one duration, with the step and Unix time that stand for its bucket."""
        bucket = bisect_left(self.bounds, value)
        self.counts[bucket] += 1
        self.sum += value
        if step is not None:
            self.exemplars[bucket] = (value, unix, step)

    def frozen(self) -> Histogram:
        """Return a copy."""
        return Histogram(self.bounds, tuple(self.counts), self.sum, tuple(self.exemplars))


class Book:
    """The counters of one directory."""

    def __init__(self, directory: DirectorySettings, detect: DetectSettings, bubbles: BubbleDetector) -> None:
        self.directory = directory
        self.detector = SaveDetector(directory, detect)
        self.saves: dict[str, int] = dict.fromkeys(RESULTS, 0)
        self.save_bytes = 0
        self.save_files = 0
        self.durations = Durations(DURATION_BUCKETS_SECONDS)
        self.last_save: Save | None = None
        self.run: Writers | None = None
        self.bubble_phases: dict[BubblePhase, float] = dict.fromkeys(PHASES, 0.0)
        self.bubbles = Durations(DURATION_BUCKETS_SECONDS)
        self.skipped: dict[SkipReason, int] = dict.fromkeys(SKIP_REASONS, 0)
        self.last_bubble: Bubble | None = None
        self.restored = False
        self.recent = RecentSaves()
        self.recent_remote = RecentSaves()
        self.timeline = Timeline(self.detector.meter.strip)
        self.reads = LoadDetector(directory, detect)
        self.loads = 0
        self.load_bytes = 0
        self.load_durations = Durations(LOAD_BUCKETS_SECONDS)
        self.last_load: Load | None = None
        self.remote = RemoteSaves(directory, detect, bubbles)
        # Steps of saves whose bubble has yet to be judged, by path and end.
        self._steps: dict[tuple[str, float], int | None] = {}

    def restore(self, save: Save, bubble: Bubble | None) -> None:
        """Show a save of before the start as the last one until there is a newer one; nothing is counted."""
        if self.last_save is None and self.detector.owns(save.path):
            self.last_save, self.last_bubble, self.restored = save, bubble, True

    def clock_stepped(self, seconds: float) -> None:
        """Keep the Unix time of a restored save where it was: that is all that is known of it."""
        if self.restored and self.last_save is not None:
            last = self.last_save
            self.last_save = replace(last, start=last.start - seconds, end=last.end - seconds)

    def enter(self, save: Save, unix: float) -> None:
        """Add what belongs to one save, all at once."""
        self.recent.enter(save, self.run)
        if save.result == "complete":
            self.save_bytes += save.bytes
            self.save_files += save.files
        if save.late:
            if self.last_save is not None and self.last_save.path == save.path:
                self.last_save = joined_late(self.last_save, save)
            return
        self.saves[save.result] += 1
        self._steps[save.path, save.end] = save.step
        if save.result == "complete":
            # A save may be judged later than one that ended after it.
            if self.last_save is None or self.restored or save.end >= self.last_save.end:
                self.last_save, self.last_bubble, self.restored = save, None, False
            if save.duration_seconds is not None:
                self.durations.observe(save.duration_seconds, unix, save.step)

    def feed_remote(self, fact: RemoteFile | RemoteLook) -> list[Save]:
        """Take in what a look at other hosts' files told; return their saves that ended."""
        saves = self.remote.feed(fact, lambda save: self._is_part(save, fact.t))
        for save in saves:
            self._steps[save.path, save.end] = save.step
            self.recent_remote.enter(save, None)
            self.remote.retain(save, self.detector.inventory, self.detector.base)
        return saves

    def _is_part(self, save: Save, now: float) -> bool:
        """Tell whether another host's save is a part of one that this host writes or has just written."""
        own_saves = (recent.save for recent in self.recent.newest_first())
        return any(own.path == save.path for own in self.detector.open_saves(now)) or any(
            own.path == save.path and save.start <= own.end for own in own_saves
        )

    def enter_load(self, load: Load, unix: float) -> None:
        """Add what belongs to one load, all at once."""
        self.loads += 1
        self.load_bytes += load.bytes
        self.load_durations.observe(load.duration_seconds, unix, load.step)
        if self.last_load is None or load.end >= self.last_load.end:
            self.last_load = load

    def enter_cold_start(self, load: Load) -> None:
        """Add when the GPUs first worked after a load that was entered before."""
        last = self.last_load
        if last is not None and (last.path, last.end) == (load.path, load.end):
            self.last_load = load

    def enter_bubble(self, bubble: Bubble, unix: float) -> None:
        """Add what one save cost on its GPUs, all at once."""
        (self.recent_remote if bubble.elsewhere else self.recent).enter_bubble(bubble)
        step = self._steps.pop((bubble.save_path, bubble.save_end), None)
        if bubble.skipped is not None:
            # Where no GPU is, another host's save is no save without a figure.
            self.skipped[bubble.skipped] += not (bubble.elsewhere and bubble.skipped == "no_gpu")
        elif bubble.seconds is not None:
            for phase, seconds in bubble.phases.items():
                self.bubble_phases[phase] += seconds
            self.bubbles.observe(bubble.seconds, unix, step)
        if self.last_save is not None and bubble.save_path == self.last_save.path:
            self.last_bubble = bubble

    def snapshot(self, now: float, unix_minus_t: float) -> DirectorySnapshot:
        """Copy everything the readers may know."""
        retained = self.detector.retained
        return DirectorySnapshot(
            name=self.directory.name,
            path=self.directory.path,
            saves=dict(self.saves),
            save_bytes=self.save_bytes,
            save_files=self.save_files,
            written_bytes=self.detector.meter.written_bytes,
            write_active_seconds=self.detector.meter.write_active_seconds,
            duration=self.durations.frozen(),
            open_saves=self.detector.open_saves(now),
            last_save=self.last_save,
            retained_checkpoints=retained[0] if retained else None,
            retained_bytes=retained[1] if retained else None,
            deleted_checkpoints=self.detector.inventory.deleted_checkpoints,
            run=self.run,
            bubble_phase_seconds=dict(self.bubble_phases),
            bubble=self.bubbles.frozen(),
            bubbles_skipped=dict(self.skipped),
            last_bubble=self.last_bubble,
            recent=self.recent.newest_first(),
            loads=self.loads,
            load_bytes=self.load_bytes,
            load_duration=self.load_durations.frozen(),
            last_load=self.last_load,
            remote_saves=self.remote.counts,
            last_remote_save=self.remote.last_save,
            recent_remote=self.recent_remote.newest_first(),
            server_clock_offset_seconds=self.remote.offset(unix_minus_t),
        )
