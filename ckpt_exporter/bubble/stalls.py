"""Stretches of lost activity that no save explains: what caused them, and how sure that is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from ckpt_exporter.bubble.attribution import SaveSpan
from ckpt_exporter.bubble.causes import Witness, find_cause
from ckpt_exporter.bubble.episodes import Episode
from ckpt_exporter.bubble.gpus import Gpu
from ckpt_exporter.bubble.hosts import HostShare, host_share
from ckpt_exporter.bubble.runs import Runs
from ckpt_exporter.bubble.settings import BubbleSettings
from ckpt_exporter.bubble.spans import clip, total
from ckpt_exporter.model import HostEvidence, Stall

# Looks at hosts: one a second and run, slower in a long stretch.
MAX_LOOKS = 1024


class Stalls:
    """Gather the low stretches of GPUs and what others than the GPU say of them; give each its cause.

    ``gpus`` by UUID and ``runs`` are shared with the detector of bubbles; ``touching`` returns the saves that
    may have cost a GPU anything.
    """

    def __init__(
        self,
        settings: BubbleSettings,
        gpus: Mapping[str, Gpu],
        runs: Runs,
        touching: Callable[[str], list[SaveSpan]],
    ) -> None:
        self._settings = settings
        self._gpus = gpus
        self._runs = runs
        self._touching = touching
        self._episodes: list[tuple[str, Episode]] = []
        # Loads by directory and start: until when they are known to last, and the GPUs of the run there.
        self._loads: dict[tuple[str, float], tuple[float, frozenset[str] | None]] = {}
        self._looks: deque[tuple[HostEvidence, frozenset[str]]] = deque(maxlen=MAX_LOOKS)

    def note_episode(self, uuid: str, ended: Episode) -> None:
        """Take in a stretch of low activity that is over."""
        self._episodes.append((uuid, ended))

    def note_host(self, fact: HostEvidence, uuids: frozenset[str]) -> None:
        """Take in a look at the host of a run's GPUs."""
        self._looks.append((fact, uuids))

    def note_load(self, directory: str, start: float, end: float) -> None:
        """Note that a checkpoint was being loaded from ``start`` to ``end``, as far as is known by now."""
        self._loads[directory, start] = (end, self._runs.latest(directory))

    def judge(self, now: float, awaited: Callable[[float], bool]) -> list[Stall]:
        """Give out the stalls that no save can claim any more.

        ``awaited`` tells whether a save that began before a moment may still become known.
        """
        settle = self._settings.reach_before_seconds + 2 * self._settings.sample_seconds
        ripe = [
            (uuid, ended)
            for uuid, ended in self._episodes
            if now >= ended.end + settle and not awaited(ended.end + settle)
        ]
        self._episodes = [entry for entry in self._episodes if entry not in ripe]
        found = [self._stall(self._gpus[uuid], ended) for uuid, ended in ripe if uuid in self._gpus]
        return [stall for stall in found if stall is not None]

    def forget(self, keep_from: float) -> None:
        """Forget loads that were over before a moment."""
        self._loads = {load: known for load, known in self._loads.items() if known[0] >= keep_from}

    def _stall(self, gpu: Gpu, ended: Episode) -> Stall | None:
        rest = self._unclaimed(gpu, ended)
        if rest is None or not rest.counts(self._settings):
            return None
        verdict = find_cause(rest, self._witness(gpu.info.uuid, rest), self._settings)
        gpu.add_stall(verdict.cause, rest.seconds, sure=verdict.confidence == "high")
        gpu.charges.add([(rest.start, rest.end)])
        return Stall(
            gpu.info.gpu, rest.start, rest.end, verdict.cause, rest.seconds,
            verdict.confidence, verdict.evidence,
        )  # fmt: skip

    def _witness(self, uuid: str, ended: Episode) -> Witness:
        """Gather what others than the GPU say of a stretch."""
        loads = [
            (total(clip([(start, end)], ended.start, ended.end)) / ended.length, gpus is not None)
            for (_, start), (end, gpus) in self._loads.items()
            if gpus is None or uuid in gpus
        ]
        loading, known = max(loads, default=(0.0, False))
        return Witness(self._host_share(uuid, ended), self._straggles(uuid, ended), loading, known)

    def _host_share(self, uuid: str, ended: Episode) -> HostShare | None:
        """Return what the host showed: of looks at its own run, or of those that know no run."""
        own = [fact for fact, gpus in self._looks if uuid in gpus]
        rest = [fact for fact, _ in self._looks if not fact.gpus]
        return host_share(own, ended.start, ended.end) or host_share(rest, ended.start, ended.end)

    def _straggles(self, uuid: str, ended: Episode) -> bool | None:
        """Tell whether another GPU of the same run did not wait; None where the run's GPUs are not known."""
        peers = set(self._runs.peers(uuid)).union(*(gpus for _, gpus in self._looks if uuid in gpus)) - {uuid}
        told = [self._gpus[peer].waited(ended.start, ended.end) for peer in peers if peer in self._gpus]
        known = [waited for waited in told if waited is not None]
        return not all(known) if known else None

    def _unclaimed(self, gpu: Gpu, ended: Episode) -> Episode | None:
        """Return what of a stretch no save can have caused: all, nothing, or what came long after one."""
        if total(clip(gpu.charges.spans, ended.start, ended.end)) > ended.length / 2:
            return None
        before, after = self._settings.reach_before_seconds, self._settings.reach_after_seconds
        claims = [
            save.end
            for save in self._touching(gpu.info.uuid)
            if save.start - before <= ended.end and ended.start <= save.end + after
        ]
        if not claims:
            return ended
        last = max(claims)
        return ended.since(last) if ended.end - last > self._settings.lookahead_seconds else None
