"""What makes two sets of saves hard to compare."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from ckpt_exporter.analysis.numbers import counted, percent_text, plain, size_text
from ckpt_exporter.analysis.statistics import median

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckpt_exporter.analysis.compare import Arm

# Checkpoints of one model differ by little from save to save.
_SIZE_TOLERANCE: Final = 0.05
_FILES_TOLERANCE: Final = 0.20
_MIN_SAVES: Final = 5


def warnings_of(baseline: Arm, candidate: Arm) -> tuple[str, ...]:
    """Return one sentence for everything that limits what the comparison means."""
    found = (
        *_counts(baseline, candidate),
        *_contents(baseline, candidate),
        *_scale(baseline, candidate),
        *_measuring(baseline, candidate),
        *_places(baseline, candidate),
    )
    return tuple(found)


def _counts(baseline: Arm, candidate: Arm) -> Iterator[str]:
    for arm in (baseline, candidate):
        if len(arm.saves) < _MIN_SAVES:
            count = counted(len(arm.saves), "complete save")
            yield f"The {arm.name} has {count}; below {_MIN_SAVES} there is no verdict."
        if arm.incomplete:
            total = plain(len(arm.all_saves))
            yield f"{plain(arm.incomplete)} of {total} saves of the {arm.name} were not completed."
    seen = {(r.node, r.path, r.start_unix) for save in baseline.all_saves for r in save.records}
    both = sum((r.node, r.path, r.start_unix) in seen for save in candidate.all_saves for r in save.records)
    if both:
        yield f"{counted(both, 'save')} in both arms: choose windows or runs that do not overlap."


def _contents(baseline: Arm, candidate: Arm) -> Iterator[str]:
    if not baseline.saves or not candidate.saves:
        return
    sizes = [median([float(save.bytes) for save in arm.saves]) for arm in (baseline, candidate)]
    if min(sizes) <= 0 or max(sizes) / min(sizes) - 1 > _SIZE_TOLERANCE:
        yield (
            f"Checkpoints differ in size ({size_text(sizes[0])} against {size_text(sizes[1])}): "
            "compare bandwidths, not durations."
        )
    files = [median([float(save.files) for save in arm.saves]) for arm in (baseline, candidate)]
    if min(files) > 0 and max(files) / min(files) - 1 > _FILES_TOLERANCE:
        told = f"{plain(files[0])} against {plain(files[1])}"
        yield f"Checkpoints differ in files ({told}): another way of saving."
    layouts = [sorted({save.layout for save in arm.saves} - {""}) for arm in (baseline, candidate)]
    if layouts[0] and layouts[1] and layouts[0] != layouts[1]:  # a Prometheus server knows none
        told = f"{', '.join(layouts[0])} against {', '.join(layouts[1])}"
        yield f"Layouts differ ({told}): the framework changed, too."


def _scale(baseline: Arm, candidate: Arm) -> Iterator[str]:
    if len(baseline.nodes) != len(candidate.nodes):
        told = f"{len(baseline.nodes)} against {len(candidate.nodes)}"
        yield f"Nodes differ ({told}): another share of the storage each."
    if baseline.gpus is not None and candidate.gpus is not None and baseline.gpus != candidate.gpus:
        told = f"{baseline.gpus} against {candidate.gpus}"
        yield f"GPUs differ ({told}): bubble shares are not those of one job."
    paces = [_seconds_per_step(arm) for arm in (baseline, candidate)]
    if paces[0] and paces[1] and max(paces) / min(paces) - 1 > _SIZE_TOLERANCE:
        change = percent_text(paces[1] / paces[0] - 1, 0)
        yield f"Training between saves changed its pace by {change} a step: something besides saving changed."


def _seconds_per_step(arm: Arm) -> float:
    """Return the training time of a step outside saves, 0 where it cannot be told."""
    paces = []
    for before, after in pairwise(arm.saves):
        if before.step is not None and after.step is not None and after.step > before.step:
            paces.append((after.start_unix - before.end_unix) / (after.step - before.step))
    return max(0.0, median(paces)) if len(paces) >= _MIN_SAVES - 1 else 0.0


def _measuring(baseline: Arm, candidate: Arm) -> Iterator[str]:
    sources = [sorted({r.source for save in arm.saves for r in save.records if r.source is not None})
               for arm in (baseline, candidate)]  # fmt: skip
    if sources[0] and sources[1] and sources[0] != sources[1]:
        told = f"{', '.join(sources[0])} against {', '.join(sources[1])}"
        yield f"GPU activity was measured differently ({told}): bubbles are not quite comparable."
    for arm, other in ((baseline, candidate), (candidate, baseline)):
        known = sum(save.bubble_seconds is not None for save in arm.saves)
        if known == 0 and any(save.bubble_seconds is not None for save in other.saves):
            yield f"The {arm.name} has no bubble figures: shares are of save durations."
        low = [r for save in arm.saves for r in save.records if r.quality == "low"]
        if low:
            alone = " (from utilisation alone)" if any(r.source == "utilization" for r in low) else ""
            yield f"Some bubbles of the {arm.name} are of low quality{alone}."


def _places(baseline: Arm, candidate: Arm) -> Iterator[str]:
    places = [{(r.node, r.mountpoint, r.device) for save in arm.saves for r in save.records if r.mountpoint}
              for arm in (baseline, candidate)]  # fmt: skip
    if places[0] and places[0] == places[1]:
        yield "Both arms are on the same mount: this compares times or runs, not storages."
    for arm in (baseline, candidate):
        directories = sorted({r.directory for save in arm.saves for r in save.records})
        if len(directories) > 1:
            yield f"The {arm.name} mixes directories ({', '.join(directories)}): select one with dir=."
    for arm, found in zip((baseline, candidate), places, strict=True):
        mounts = sorted({str(mountpoint) for _, mountpoint, _ in found})
        if len(mounts) > 1:
            yield f"The {arm.name} mixes mounts ({', '.join(mounts)}): select one with mountpoint=."
