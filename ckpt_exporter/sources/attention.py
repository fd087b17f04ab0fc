"""Which directories are looked at, and with which mask: idle, busy with a save, or without a watch."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from ckpt_exporter.sources.rescan import TreeWatch
from ckpt_exporter.sources.watches import OutageError

if TYPE_CHECKING:
    from ckpt_exporter.sources.entry import Entry
    from ckpt_exporter.sources.progress import ActiveFiles
    from ckpt_exporter.sources.scans import Scans
    from ckpt_exporter.sources.tree import Node

_NEVER = float("inf")
_ARM_BATCH = 2000


class Attention:
    """The periodic looks at single directories; each returns when it wants to be called again."""

    def __init__(
        self,
        entry: Entry,
        trees: TreeWatch,
        active: ActiveFiles,
        scans: Scans,
        outage: Callable[[Node, OutageError], None],
    ) -> None:
        self._entry = entry
        self._settings = entry.settings
        self._trees = trees
        self._active = active
        self._scans = scans
        self._outage = outage

    def rearm(self, now: float) -> float:
        """Give quiet directories the idle mask back, after a last look at those where something happened.

        Returns when the next one is due.
        """
        if self._scans.under_way:
            # Its own looks would raise OPEN events in armed directories.
            return now + self._settings.rearm_seconds
        due = [node for node, at in self._trees.unarmed.items() if at <= now][:_ARM_BATCH]
        for node in due:
            path = node.path
            if self._active.in_directory.get(path):
                self._trees.unarmed[node] = now + self._settings.rearm_seconds
                continue
            if node in self._trees.burst and self._check(node):
                self._trees.unarmed[node] = now + self._settings.rearm_seconds
                continue
            self._arm(node)
        if len(due) == _ARM_BATCH:
            return self._entry.clock()
        return min(self._trees.unarmed.values(), default=_NEVER)

    def _arm(self, node: Node) -> None:
        self._trees.unarmed.pop(node, None)
        self._trees.burst.discard(node)
        if node.wd >= 0:
            with contextlib.suppress(OutageError):
                self._trees.watch(node, armed=True)

    def _check(self, node: Node) -> bool:
        """Look at one directory; tell whether that found a file that is being written."""
        try:
            self._trees.check(node)
        except OutageError as error:
            self._outage(node, error)
        return bool(self._active.in_directory.get(node.path))

    def scan_bursts(self, now: float) -> float:
        """Look where something happens: overwriting in place raises no event there; return when again."""
        begin = self._entry.clock()
        for node in list(self._trees.burst):
            if len(node.files or ()) <= self._settings.burst_scan_max_files and not self._trees.remote:
                self._check(node)
            self._entry.beat()
        if not self._trees.burst:
            return _NEVER
        cost = self._entry.clock() - begin
        return now + max(self._settings.burst_scan_seconds, cost * self._settings.poll_cost_factor)

    def poll_unwatched(self, now: float) -> float:
        """Look at the directories that the kernel's limit leaves without a watch; return when again."""
        begin = self._entry.clock()
        for node in list(self._trees.unwatched):
            if os.path.isdir(node.path):
                self._check(node)
        if not self._trees.unwatched:
            return _NEVER
        cost = self._entry.clock() - begin
        return now + max(self._settings.unwatched_poll_seconds, cost * self._settings.poll_cost_factor)

    def retry_watches(self, now: float) -> float:
        """Try whether the kernel has watches left by now; return when to try again."""
        for node in list(self._trees.unwatched):
            with contextlib.suppress(OutageError):
                self._trees.watch(node)
            if node in self._trees.unwatched:
                break
        return now + self._settings.retry_seconds
