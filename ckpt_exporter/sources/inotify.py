"""Watch one configured directory with inotify: the loop that reads events and does what is due."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckpt_exporter.model import WatchStatus
from ckpt_exporter.sources.agenda import NEVER, Agenda, Job, Waiting
from ckpt_exporter.sources.attention import Attention
from ckpt_exporter.sources.canary import Canary
from ckpt_exporter.sources.changes import Changes
from ckpt_exporter.sources.filestat import changed_mounts, mount_lines
from ckpt_exporter.sources.inotify_calls import (
    IN_DELETE_SELF,
    IN_IGNORED,
    IN_MOVE_SELF,
    IN_Q_OVERFLOW,
    IN_UNMOUNT,
    RawEvent,
)
from ckpt_exporter.sources.poll import PollEngine
from ckpt_exporter.sources.progress import ActiveFile, ActiveFiles
from ckpt_exporter.sources.rescan import TreeWatch, known_of
from ckpt_exporter.sources.rootwatch import Root, RootWatch
from ckpt_exporter.sources.scans import Scans
from ckpt_exporter.sources.tree import Node
from ckpt_exporter.sources.upkeep import Upkeep
from ckpt_exporter.sources.watches import OutageError

if TYPE_CHECKING:
    from ckpt_exporter.sources.entry import Entry

_SELF_EVENTS = IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT | IN_IGNORED
_NO_INSTANCE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOSYS, errno.ENOMEM, errno.EPERM})


class NoInotifyError(Exception):
    """No inotify here now; the directory has to be polled."""


class InotifyEngine:
    """Everything about one directory on one inotify instance; all methods but ``status`` on one thread.

    One instance for each directory, not one for all: a look at a hung mount blocks for minutes, and must
    not hold up the events of the other directories.
    """

    backend = "inotify"

    def __init__(self, entry: Entry) -> None:
        self.entry = self._entry = entry
        self._settings = entry.settings
        self._calls = entry.shared.calls
        self.active = ActiveFiles(entry, self._file_closed)
        self.trees = TreeWatch(entry, self.active)
        self.trees.drain = lambda: self.read_events(entry.clock())
        self._changes = Changes(entry, self.trees, self.active)
        self.roots = RootWatch(entry, self.trees, self.active, self._enqueue_scan)
        self._upkeep = Upkeep(entry.settings, entry.shared.directories)
        self._scans = Scans(entry, self._upkeep, self._scan_done, self._outage)
        self._waiting = Waiting(entry.shared.mountinfo)
        self._mounts = mount_lines(entry.shared.mountinfo)
        self._mounts_again = -NEVER
        self._canary = Canary(entry)
        self._attention = Attention(entry, self.trees, self.active, self._scans, self._outage)
        self._agenda = Agenda(entry.settings.gather_seconds)
        self._soon = self._agenda.soon

    # --- life cycle -------------------------------------------------------------------------------------

    def open(self) -> None:
        """Make the inotify instance; raises NoInotifyError where the kernel gives none."""
        self._open_instance()
        self._waiting.open()
        now = self._entry.clock()
        due: dict[Job, float] = {
            self._mounts_changed: NEVER,
            self._check_roots: now,
            self._scans.run: NEVER,
            self._changes.renames.settle_departures: NEVER,
            self.active.probe_due: NEVER,
            self._changes.check_hints: NEVER,
            self.trees.stop_listening: NEVER,
            self._attention.rearm: now + self._settings.rearm_seconds,
            self._attention.scan_bursts: NEVER,
            self._attention.poll_unwatched: NEVER,
            self._attention.retry_watches: now + self._settings.retry_seconds,
            self._reconcile: now + self._settings.reconcile_seconds,
            self._sing: now + self._settings.canary_seconds,
        }
        regular = {self._check_roots, self._attention.retry_watches, self._reconcile, self._sing}
        self._agenda.plan(due, frozenset(regular))

    def _open_instance(self) -> None:
        try:
            self.trees.fd = self._calls.init()
        except OSError as error:
            if error.errno not in _NO_INSTANCE:
                raise
            self._entry.log(
                logging.WARNING,
                "no inotify instance: polling instead; raise fs.inotify.max_user_instances",
                every_seconds=3600,
                sysctl="fs.inotify.max_user_instances",
                error=error.strerror,
            )
            raise NoInotifyError(str(error)) from error
        self._waiting.add(self.trees.fd)
        self._canary.open(self.trees.fd)

    def close(self) -> None:
        """Give back every descriptor and the canary's directory."""
        self._close_instance()
        self._waiting.close()

    def _close_instance(self) -> None:
        self.active.give_back()
        if self.trees.fd >= 0:
            self._waiting.remove(self.trees.fd)
            os.close(self.trees.fd)
            self.trees.fd = -1
        self._canary.close()

    def wake(self) -> None:
        """Make ``step`` return soon; callable from any thread."""
        self._waiting.wake()

    def status(self) -> WatchStatus:
        """Describe the watch; callable from any thread."""
        watched, missing = len(self.trees.tree.by_wd), len(self.trees.unwatched)
        return WatchStatus(
            self._entry.name,
            self.backend,
            up=bool(self._entry.up),
            watched_directories=watched,
            limit_reached=missing > 0,
            coverage=watched / (watched + missing) if watched + missing else 1.0,
            truncated=bool(self.trees.truncated),
        )

    # --- the loop ---------------------------------------------------------------------------------------

    def step(self) -> None:
        """Wait for events or the next duty, and do it."""
        ready, mounts = self._waiting.wait(min(self._agenda.next_due() - self._entry.clock(), 15.0))
        t = self._entry.clock()
        if self.trees.fd in ready:
            self.read_events(t)
        if mounts:
            # At once; but a container that starts mounts dozens, and each would be looked at by every thread.
            self._soon(self._mounts_changed, max(t, self._mounts_again))
        now = self._entry.clock()
        self._agenda.run(now)
        self._soon_for_files(now)

    def read_events(self, t: float) -> None:
        """Read one batch and take it in; the files found open or closed by it are looked at afterwards."""
        events = self._calls.read(self.trees.fd)
        overflow = False
        self._entry.batch_t = t
        for event in events:
            if event.mask & IN_Q_OVERFLOW:
                overflow = True
            else:
                self._take(event, t)
        self._entry.batch_t = None
        if overflow:
            self._overflowed()
        self._after_events(t)
        if len(events) > self._settings.batch_events:
            # A storm: let it pile up, one read of many costs a tenth of many reads of one.
            time.sleep(self._settings.batch_sleep_seconds)

    def _take(self, event: RawEvent, t: float) -> None:
        if event.wd == self._canary.wd:
            if self._canary.heard(event):
                self._agenda.put(self._sing, t + self._settings.canary_seconds)
            return
        self.roots.handle(event)
        node = self.trees.tree.by_wd.get(event.wd)
        if node is None:
            return
        try:
            if event.mask & _SELF_EVENTS:
                self._self_event(node, event.mask)
            elif event.name:
                self._changes.handle(node, event, t)
        except OutageError as error:
            self._outage(node, error)

    def _self_event(self, node: Node, mask: int) -> None:
        if mask & IN_IGNORED:
            self.trees.tree.unbind(node)
        if node.parent is None:
            self.roots.root_event(node, mask)
        elif mask & IN_UNMOUNT:
            self.trees.tree.unbind(node)
            root = self.roots.roots.get(node.root.name)
            if root is not None:
                self._enqueue_scan(self.trees.reconcile(root.node), "mount_changed")

    def _after_events(self, t: float) -> None:
        if self.roots.due_now:
            self._soon(self._check_roots, t)
        for steps in self._changes.renames.unfinished:
            self._scans.add(steps, "")
        self._changes.renames.unfinished.clear()
        if self._scans.waiting:
            self._soon(self._scans.run, t)
        if self._changes.renames.departures:
            self._soon(self._changes.renames.settle_departures, t + self._settings.move_hold_seconds)
        self._soon_for_files(t)

    def _soon_for_files(self, t: float) -> None:
        if self.active.by_path:
            wait_seconds = 0.0 if self.active.urgent else self._settings.fast_probe_seconds
            self._soon(self.active.probe_due, t + wait_seconds)
            self.active.urgent = False
        if self._changes.hints:
            self._soon(self._changes.check_hints, t + self._settings.hint_interval_seconds)
        if self.trees.read:
            self._soon(self.trees.stop_listening, min(self.trees.read.values()))
        if self.trees.burst:
            self._soon(self._attention.scan_bursts, t + self._settings.burst_scan_seconds)
        if self.trees.unarmed:
            self._soon(self._attention.rearm, t + self._settings.rearm_seconds)
        if self.trees.unwatched:
            self._soon(self._attention.poll_unwatched, t + self._settings.unwatched_poll_seconds)

    # --- files ------------------------------------------------------------------------------------------

    def _file_closed(self, file: ActiveFile, st: os.stat_result | None, t: float) -> None:
        self._entry.file("close_write", file.path, t, st, found=file.closing is None)
        node = self.roots.find(os.path.dirname(file.path))
        if node is not None and st is not None:
            self.trees.tree.remember(node, os.path.basename(file.path), known_of(st))
            self.trees.unarmed.setdefault(node, t)

    # --- scans ------------------------------------------------------------------------------------------

    def _enqueue_scan(self, steps: Iterator[None], reason: str) -> None:
        self._scans.add(steps, reason)
        self._changes.starting = self._changes.starting or reason == "start"
        self._soon(self._scans.run, self._entry.clock())

    def _scan_done(self, reason: str) -> None:
        if reason == "start":
            self._changes.starting = self._scans.waits_for("start")
            listed = self._entry.clock() - self._entry.began
            self._changes.listed_seconds = min(self._changes.listed_seconds, listed)
        if reason == "overflow":
            self._changes.renames.forget_gone()
        if reason not in ("", "periodic"):
            self._entry.shared.counts.rescan(reason)
            self._entry.change("rescan", reason)
        self._soon(self._attention.rearm, self._entry.clock())

    def rescan(self, reason: str) -> None:
        """Compare everything with the disk: events may have been lost."""
        for root in self.roots.roots.values():
            if root.identity is not None:
                self._enqueue_scan(self.trees.reconcile(root.node), reason)

    def _reconcile(self, now: float) -> float:
        """Compare everything now and then even without a reason, as often as it is cheap."""
        if self._scans.waiting or self.active.by_path:
            return now + self._settings.reconcile_seconds
        look = self._upkeep.choose(now, remote=self.trees.remote)
        if look is not None:
            for root in self.roots.roots.values():
                if root.identity is not None and root.lost_at is None:
                    steps = self.trees.reconcile(root.node, stats=look == "files", lists=False)
                    self._enqueue_scan(steps, "periodic")
        return self._upkeep.next_due(now)

    def _overflowed(self) -> None:
        with self._entry.shared.counts.lock:
            self._entry.shared.counts.overflows += 1
        self._entry.change("overflow", "overflow")
        self._entry.log(
            logging.WARNING,
            "the kernel dropped events: comparing with the disk; fs.inotify.max_queued_events may be raised",
            every_seconds=60,
            sysctl="fs.inotify.max_queued_events",
        )
        self._changes.renames.settle_departures(self._entry.clock(), everything=True)
        # A close may be among the lost events.
        self.active.doubt()
        self.rescan("overflow")

    # --- roots and mounts -------------------------------------------------------------------------------

    def _check_roots(self, now: float) -> float:
        begin = self._entry.clock()
        self.roots.check(now)
        cost = self._entry.clock() - begin
        return max(self.roots.next_due(now), now + cost * self._settings.poll_cost_factor)

    def _mounts_changed(self, now: float) -> float:
        """Look at every root again, and below those that hold a mount point that came or went."""
        busy = self._entry.shared.busy()
        self._entry.systems.forget()
        before, self._mounts = self._mounts, mount_lines(self._entry.shared.mountinfo)
        changed = changed_mounts(before, self._mounts)
        self._check_roots(self._entry.clock())
        for root in self.roots.roots.values():
            if root.identity is None:
                continue
            prefix = os.path.realpath(root.path).rstrip("/") + "/"
            if any(point.startswith(prefix) for point in changed):
                self._enqueue_scan(self.trees.reconcile(root.node), "mount_changed")
        cost = (self._entry.shared.busy() - busy) * self._entry.shared.directories()
        pause = max(self._settings.mounts_seconds, cost * self._settings.mounts_cost_factor)
        self._mounts_again = now + pause
        return NEVER

    def _outage(self, node: Node | None, error: OutageError) -> None:
        self._entry.log(
            logging.WARNING, "the file system does not answer", every_seconds=60, error=error.strerror
        )
        found: Root | None = self.roots.roots.get(node.root.name) if node is not None else None
        now = self._entry.clock()
        for root in [found] if found is not None else list(self.roots.roots.values()):
            if root.identity is not None:
                self.roots.lose(root, now, "io_error")
        self._soon(self._check_roots, now + 1.0)

    # --- canary -----------------------------------------------------------------------------------------

    def _sing(self, now: float) -> float:
        if self._canary.is_overdue(now):
            # Events may wait behind a long scan: only an empty queue without the canary's event counts.
            self.read_events(now)
            if self._canary.is_overdue(now):
                return self._deaf(now)
        self._entry.beat()
        return self._canary.expected_by(now) or self._canary.sing(now)

    def _deaf(self, now: float) -> float:
        failures = self._canary.failures + 1
        self._entry.log(logging.WARNING, "inotify delivers no events: starting it anew", every_seconds=60)
        self.rebuild("canary")
        self._canary.failures = failures
        if failures >= 2:
            raise NoInotifyError("inotify delivers no events")
        return now

    # --- starting over ----------------------------------------------------------------------------------

    def rebuild(self, reason: str) -> None:
        """Start over with a new inotify instance, keeping what is known, and compare with the disk."""
        self._forget_instance()
        self._open_instance()
        self._compare_all(reason)

    def reopen(self) -> None:
        """Go on after ``close``, keeping what is known; raises NoInotifyError."""
        self._forget_instance()
        self._scans.clear()
        self.open()
        self._compare_all("restart")

    def _forget_instance(self) -> None:
        self._close_instance()
        for root in self.roots.roots.values():
            self.trees.forget_watches(root.node)
        self.roots.forget_watches()
        self._changes.renames.settle_departures(self._entry.clock(), everything=True)

    def _compare_all(self, reason: str) -> None:
        self.active.doubt()
        self.rescan(reason)
        self._soon(self.active.probe_due, self._entry.clock())
        self._soon(self._check_roots, self._entry.clock())

    def hand_over(self, polling: PollEngine) -> None:
        """Compare once more, without watches, and let ``polling`` go on from there."""
        self._forget_instance()
        self.trees.unwatched.clear()
        for root in self.roots.roots.values():
            if root.identity is not None:
                with contextlib.suppress(OutageError):
                    for _ in self.trees.reconcile(root.node):
                        self._entry.beat()
        for file in self.active.by_path.values():
            with contextlib.suppress(OSError):
                st = os.lstat(file.path)
                polling.active.add(file.path, file.opened_at, st, evented=False)

    def take_over(self, polling: PollEngine) -> None:
        """Begin with what ``polling`` knew, so that only differences are reported."""
        for path, polled in polling.roots.items():
            if polled.snapshot is not None:
                self.roots.adopt(path, polled.device, polling.known(polled.snapshot))
        for file in polling.active.by_path.values():
            with contextlib.suppress(OSError):
                self.active.add(file.path, file.opened_at, os.lstat(file.path), evented=False)
        self._soon(self.active.probe_due, self._entry.clock())
