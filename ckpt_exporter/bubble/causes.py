"""What outside a save stopped a GPU's work, and how sure that is: signs put together, an estimate.

A rank that waits in a collective has a kernel running that does no work; one that waits for data has none.
That much the GPU itself tells. What makes it sure comes from elsewhere: the run's processes reading or
waiting for I/O, another GPU of the run that does not wait, traffic between GPUs that has ceased or goes on
alone. Signs that contradict make it less sure, or ``other``; with no sign but the GPU's, no cause is sure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ckpt_exporter.bubble.episodes import Episode
from ckpt_exporter.bubble.hosts import HostShare
from ckpt_exporter.bubble.settings import BubbleSettings
from ckpt_exporter.model import Confidence, StallCause

# A sign must hold for so much of a stretch; its ramps, averaged by the driver, show nothing.
MOST: Final = 0.6
# Logs and code that is loaded read less than this, in bytes per second.
MUCH_IO: Final = 4 * 1024 * 1024
# Workers hand tensors on through pipes; reading files out of the page cache is more than that.
MUCH_CALLED: Final = 16 * 1024 * 1024
# On average one thread in uninterruptible sleep at every other look, or a quarter of a thread's time counted.
MANY_WAITING: Final = 0.5
MUCH_IO_WAIT: Final = 0.25
BUSY_CORES: Final = 0.5
ASLEEP_CORES: Final = 0.1
PRESSED: Final = 0.2
# Traffic that fell below this share of the usual has ceased; above that it goes on.
CEASED: Final = 0.25
GOES_ON: Final = 0.75
_LOWER: Final[dict[Confidence, Confidence]] = {"high": "medium", "medium": "low", "low": "low"}


@dataclass(frozen=True, slots=True)
class Witness:
    """What others than the GPU say of a stretch. None is unknown.

    ``straggler``: for most of it another GPU of the run did not wait in a collective. ``loading`` is the
    share of it in which a checkpoint was being loaded; ``loading_known``: by this GPU's own run.
    """

    host: HostShare | None = None
    straggler: bool | None = None
    loading: float = 0.0
    loading_known: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """A cause, how sure it is, and the signs that were seen, one word each."""

    cause: StallCause
    confidence: Confidence
    evidence: tuple[str, ...] = ()

    def less_sure(self, *, so: bool = True) -> Verdict:
        """Return the verdict with its confidence one step lower."""
        return Verdict(self.cause, _LOWER[self.confidence], self.evidence) if so else self


def find_cause(episode: Episode, witness: Witness, settings: BubbleSettings) -> Verdict:
    """Judge what stopped the work."""
    signs = frozenset(_signs(episode, witness))
    verdict = _judge(episode, witness, signs, too_long=episode.length > settings.long_stall_seconds)
    return Verdict(verdict.cause, verdict.confidence, tuple(sorted(signs)))


def _judge(episode: Episode, witness: Witness, signs: frozenset[str], *, too_long: bool) -> Verdict:
    if witness.loading > 0.5:
        sure = witness.loading_known and witness.loading >= 0.8
        return Verdict("checkpoint_load", "high" if sure else "medium")
    if "no_process" in signs:
        return Verdict("other", "high")  # a run that ended, crashed or began
    if too_long:
        # Minutes are more than a late batch or a slow peer, unless something was read all the while.
        read = _data_loading(witness, signs) if "no_kernels" in signs else None
        return read.less_sure() if read and read.confidence == "high" else Verdict("other", "low")
    if episode.busy_seconds > episode.length / 2:
        return _communication(signs)
    return _data_loading(witness, signs) if "no_kernels" in signs else Verdict("other", "low")


def _communication(signs: frozenset[str]) -> Verdict:
    """Judge a GPU whose kernels did no work.

    A peer that does not wait, or traffic that ceased (all wait for one) or goes on without any work (it is
    slow itself), make sure that it is a collective. A run that waits for I/O or writes may wait for that.
    """
    seconded = bool(signs & {"straggler", "traffic_ceased", "traffic_goes_on"})
    both = "spins" in signs and seconded
    confidence: Confidence = "high" if both else "medium" if "spins" in signs or seconded else "low"
    verdict = Verdict("communication", confidence)
    return verdict.less_sure(
        so="straggler" not in signs and bool(signs & {"waits_for_io", "ranks_wait", "writes"})
    )


def _data_loading(witness: Witness, signs: frozenset[str]) -> Verdict:
    """Judge a GPU without kernels by what the run's processes did meanwhile."""
    if "writes" in signs:
        return Verdict("other", "medium")  # something is being written that is no save we see
    if "asleep" in signs:
        return Verdict("other", "low")  # nobody prepares data: a barrier, a lock, a pause
    if signs & {"reads", "waits_for_io"}:
        confidence: Confidence = "high"
    elif signs & {"reads_cached", "workers_busy", "ranks_wait"} or ("io_pressure" in signs and _own(witness)):
        confidence = "medium"
    else:
        confidence = "low"
    doubtful = "memory_pressure" in signs or witness.loading > 0
    return Verdict("data_loading", confidence).less_sure(so=doubtful)


def _own(witness: Witness) -> bool:
    return witness.host is not None and witness.host.own_pressure


def _signs(episode: Episode, witness: Witness) -> Iterator[str]:
    most = MOST * episode.length
    if episode.absent_seconds > 0:
        yield "no_process"
    if episode.spin_seconds >= most:
        yield "spins"
    elif episode.busy_seconds > episode.length / 2:
        yield "busy"
    if episode.idle_seconds > episode.length / 2:
        yield "no_kernels"
    if witness.straggler and episode.busy_seconds > episode.length / 2:
        yield "straggler"
    if witness.loading > 0:
        yield "load"
    yield from _traffic_signs(episode.moved_share, witness.host.network if witness.host else None)
    if witness.host is not None:
        yield from _io_signs(witness.host)
        yield from _processor_signs(witness.host)


def _traffic_signs(moved: float | None, network: float | None) -> Iterator[str]:
    """Tell what traffic shows. Other things than collectives use a network: that it goes on says nothing."""
    known = [share for share in (moved, network) if share is not None]
    if known and max(known) < CEASED:
        yield "traffic_ceased"
    if moved is not None and moved >= GOES_ON:
        yield "traffic_goes_on"


def _io_signs(host: HostShare) -> Iterator[str]:
    read, written = host.read or 0.0, host.written or 0.0
    if written >= MUCH_IO and written > read:
        yield "writes"
    elif read >= MUCH_IO:
        yield "reads"
    elif (host.called or 0.0) >= MUCH_CALLED:
        yield "reads_cached"
    if (host.worker_waiting or 0.0) >= MANY_WAITING or (host.io_wait or 0.0) >= MUCH_IO_WAIT:
        yield "waits_for_io"
    elif (host.waiting or 0.0) >= MANY_WAITING:
        yield "ranks_wait"  # for I/O, or in the GPU's own driver
    if (host.io_pressure or 0.0) >= PRESSED:
        yield "io_pressure"
    if (host.memory_pressure or 0.0) >= PRESSED:
        yield "memory_pressure"


def _processor_signs(host: HostShare) -> Iterator[str]:
    # On a crowded host those that want a processor get little of one.
    if (host.worker_cores or 0.0) >= BUSY_CORES or (host.runnable or 0.0) >= BUSY_CORES:
        yield "workers_busy"
    elif host.cores is not None and host.cores >= BUSY_CORES:
        yield "processes_busy"
    if (host.cpu_pressure or 0.0) >= PRESSED:
        yield "cpu_pressure"
    if host.whole and host.cores is not None and host.cores < ASLEEP_CORES and _still(host):
        yield "asleep"


def _still(host: HostShare) -> bool:
    """Tell whether nothing was read or waited for, and nobody wanted a processor."""
    moved = max(host.read or 0.0, (host.called or 0.0) * MUCH_IO / MUCH_CALLED)
    stopped = max(host.waiting or 0.0, host.runnable or 0.0) < MANY_WAITING
    return moved < MUCH_IO and stopped and (host.io_wait or 0.0) < MUCH_IO_WAIT
