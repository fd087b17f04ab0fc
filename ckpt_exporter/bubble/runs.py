"""Whose GPUs: from the processes that write a save to the GPUs that their run holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ckpt_exporter.model import Save, Writers

MAX_RUNS: Final = 8


@dataclass(frozen=True, slots=True)
class Run:
    """One run seen writing below a directory; ``gpus`` are uuids, None unknown."""

    writers: Writers
    gpus: frozenset[str] | None

    def wrote(self, save: Save) -> bool:
        """Tell whether this run is known to have written a save."""
        if set(self.writers.pids) & set(save.pids):
            return True
        return any(_within(path, save.path) or _within(save.path, path) for path in self.writers.paths)

    def same(self, other: Run) -> bool:
        """Tell whether two facts are of one run."""
        a, b = self.writers, other.writers
        if a.run_id is not None or b.run_id is not None:
            return a.run_id == b.run_id
        return bool(set(a.pids) & set(b.pids)) or (a.run is not None and a.run == b.run)


def _within(path: str, base: str) -> bool:
    return path == base or path.startswith(base.rstrip("/") + "/")


class Runs:
    """The runs seen lately, by directory."""

    def __init__(self) -> None:
        self._runs: dict[str, list[Run]] = {}

    def note(self, writers: Writers, gpus: frozenset[str] | None) -> None:
        """Take in who writes below a directory; what was known of a run's GPUs stays known."""
        run = Run(writers, gpus)
        others = []
        for known in self._runs.get(writers.directory, []):
            if not known.same(run):
                others.append(known)
            elif run.gpus is None:
                run = Run(writers, known.gpus)
        self._runs[writers.directory] = [*others, run][-MAX_RUNS:]

    def latest(self, directory: str) -> frozenset[str] | None:
        """Return the GPUs of the run that wrote last below a directory; None unknown."""
        runs = self._runs.get(directory)
        return runs[-1].gpus if runs else None

    def of_save(self, save: Save) -> frozenset[str] | None:
        """Return the GPUs of the run that wrote a save; None if they are not known."""
        runs = self._runs.get(save.directory, [])
        # A run that was told without a directory is known by its processes.
        writers = [run for run in [*runs, *self._runs.get("", [])] if run.wrote(save)]
        if not writers:
            # Other runs that are known by their processes did not write this one.
            writers = runs[-1:] if not save.pids or len(runs) == 1 else []
        known = [run.gpus for run in writers if run.gpus is not None]
        return frozenset().union(*known) if known else None

    def held(self) -> frozenset[str]:
        """Return the GPUs of all living runs."""
        return self._union(lambda _: True)

    def held_by_others(self, directory: str) -> frozenset[str]:
        """Return the GPUs of living runs that are not seen writing below a directory."""
        here = self._runs.get(directory, [])
        return self._union(lambda run: not any(run.same(own) for own in here))

    def peers(self, uuid: str) -> frozenset[str]:
        """Return the GPUs of the living runs that hold a GPU, itself too."""
        return self._union(lambda run: run.gpus is not None and uuid in run.gpus)

    def _union(self, wanted: Callable[[Run], bool]) -> frozenset[str]:
        found = [
            run.gpus
            for runs in self._runs.values()
            for run in runs
            if run.writers.alive and run.gpus is not None and wanted(run)
        ]
        return frozenset().union(*found)
