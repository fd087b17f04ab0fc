"""What has ended goes to those who come later: to the history, if one is kept, and to the log."""

from __future__ import annotations

import logging

from ckpt_exporter.history.recorder import HistoryRecorder
from ckpt_exporter.journal import log_bubble, log_cold_start, log_load, log_save, log_stall
from ckpt_exporter.model import Bubble, Load, Save, Stall


class Chronicle:
    """Keep in ``history`` and tell in the log what a ledger says has ended.

    ``measures_gpus`` tells whether there are GPU readings. ``history`` is set once the ledger is there that
    it is of.
    """

    def __init__(self, *, measures_gpus: bool) -> None:
        self.history: HistoryRecorder | None = None
        # Without a GPU part there is nothing to say, save after save.
        self._bubble_level = logging.INFO if measures_gpus else logging.DEBUG

    def add_save(self, save: Save) -> None:
        """Take in a finished save, of this host or another."""
        if self.history is not None:
            self.history.add_save(save)
        log_save(save)

    def add_load(self, load: Load) -> None:
        """Take in a finished load."""
        if self.history is not None:
            self.history.add_load(load)
        log_load(load)

    def add_cold_start(self, load: Load) -> None:
        """Take in when GPUs first worked after a load."""
        if self.history is not None:
            self.history.add_cold_start(load)
        log_cold_start(load)

    def add_cost(self, cost: Bubble | Stall) -> None:
        """Take in what a save has cost on its GPUs, or a stall."""
        if isinstance(cost, Bubble):
            self._add_bubble(cost)
        else:
            self._add_stall(cost)

    def _add_bubble(self, bubble: Bubble) -> None:
        if self.history is not None:
            self.history.add_bubble(bubble)
        log_bubble(bubble, self._bubble_level)

    def _add_stall(self, stall: Stall) -> None:
        if self.history is not None:
            self.history.add_stall(stall)
        log_stall(stall)
