"""G1: the saves go where they should, and what watches them can be trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_exporter.analysis.gates import Check, verdict_of
from ckpt_exporter.analysis.numbers import UNKNOWN, plain, size_text
from ckpt_exporter.analysis.statistics import median

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckpt_exporter.analysis.exporter import Scrape
    from ckpt_exporter.analysis.gates import Evidence
    from ckpt_exporter.config.gates import PathGate


def path_checks(gate: PathGate, evidence: Evidence) -> Iterator[Check]:
    """Yield the checks that are switched on."""
    for key in ("mountpoint", "transport", "fstype"):
        wanted = getattr(gate, key)
        if wanted is not None:
            yield _identity(key, wanted, evidence)
    if gate.one_mount:
        yield _one_mount(evidence)
    if gate.free_checkpoints is not None:
        yield _space(gate.free_checkpoints, evidence)
    if gate.watch_healthy:
        yield _watch(evidence)
    if gate.gpu_quality is not None:
        yield _gpus(gate.gpu_quality, evidence)


def _directories(evidence: Evidence) -> set[str]:
    return {r.directory for save in evidence.comparison.candidate.all_saves for r in save.records}


def _watched(evidence: Evidence, name: str) -> list[tuple[dict[str, str], float]]:
    """Return a metric's samples of the candidate's directories; of all, where none is shared."""
    directories = _directories(evidence)
    samples = [sample for scrape in evidence.exporters for sample in scrape.of(name)]
    ours = [(labels, value) for labels, value in samples if labels.get("dir") in directories]
    return ours or samples


def _identity(key: str, wanted: str, evidence: Evidence) -> Check:
    """Compare with what saves, exporters and benches say; all of them must agree."""
    records = [r for save in evidence.comparison.candidate.all_saves for r in save.records]
    found = {value for r in records if (value := getattr(r, key)) is not None}
    found |= {labels[key] for labels, _ in _watched(evidence, "ckpt_directory_info") if labels.get(key)}
    found |= {str(b.mount[key]) for b in evidence.benches if b.mount is not None and b.mount.get(key)}
    told = ", ".join(sorted(found)) or UNKNOWN
    return Check(key, wanted, told, verdict_of(found == {wanted} if found else None))


def _one_mount(evidence: Evidence) -> Check:
    mounts = {(r.node, r.mountpoint, r.device) for save in evidence.comparison.candidate.all_saves
              for r in save.records if r.mountpoint is not None}  # fmt: skip
    per_node: dict[str, int] = {}
    for node, _, _ in mounts:
        per_node[node] = per_node.get(node, 0) + 1
    told = ", ".join(sorted({f"{mountpoint} ({device})" for _, mountpoint, device in mounts})) or UNKNOWN
    holds = max(per_node.values()) == 1 if per_node else None
    return Check("saves of the candidate on one mount", "one a node", told, verdict_of(holds))


def _space(checkpoints: int, evidence: Evidence) -> Check:
    available = [value for _, value in _watched(evidence, "ckpt_filesystem_avail_bytes")]
    sizes = [float(save.bytes) for save in evidence.comparison.candidate.saves]
    name, threshold = "free space", f"{plain(checkpoints)} checkpoints"
    if not available or not sizes or median(sizes) <= 0:
        return Check(name, threshold, f"{UNKNOWN} (give --exporter)", "not enough data")
    fits = min(available) / median(sizes)
    return Check(
        name,
        threshold,
        f"{size_text(min(available))}, {plain(int(fits))} checkpoints",
        verdict_of(fits >= checkpoints),
    )


def _watch(evidence: Evidence) -> Check:
    name, threshold = "watch healthy", "up, complete, in force"
    if not evidence.exporters:
        return Check(name, threshold, f"{UNKNOWN} (give --exporter)", "not enough data")
    faults = [fault for scrape in evidence.exporters for fault in _watch_faults(scrape, evidence)]
    return Check(name, threshold, "; ".join(faults) or "yes", verdict_of(not faults))


def _watch_faults(scrape: Scrape, evidence: Evidence) -> Iterator[str]:
    directories = _directories(evidence)

    def concerns(labels: dict[str, str]) -> bool:
        return not directories or labels.get("dir") in directories

    ups = [(labels, value) for labels, value in scrape.of("ckpt_watch_up") if concerns(labels)]
    if not ups:
        yield f"{scrape.source} watches none of the candidate's directories"
    yield from (f"{labels['dir']} is not watched" for labels, value in ups if value != 1)
    limits = scrape.of("ckpt_watch_limit_reached")
    yield from (
        f"{labels['dir']}: watch limit reached" for labels, value in limits if value and concerns(labels)
    )
    yield from (
        f"{labels['dir']}: more directories than are followed"
        for labels, value in scrape.of("ckpt_watch_truncated")
        if value and concerns(labels)
    )
    collectors = scrape.of("ckpt_collector_success")
    yield from (f"collector {labels['collector']} fails" for labels, value in collectors if value != 1)
    dropped = sum(value for _, value in scrape.of("ckpt_events_dropped_total"))
    if dropped:
        yield f"{plain(dropped)} events dropped"
    if any(value != 1 for _, value in scrape.of("ckpt_config_last_reload_successful")):
        yield "the last configuration was refused"


def _gpus(quality: str, evidence: Evidence) -> Check:
    name, threshold = "GPU sources healthy", f"all up, quality {quality}"
    if not evidence.exporters:
        return Check(name, threshold, f"{UNKNOWN} (give --exporter)", "not enough data")
    ups = [(labels, value) for scrape in evidence.exporters for labels, value in scrape.of("ckpt_gpu_up")]
    if not ups:
        return Check(name, threshold, "no GPU is read", "fail")
    faults = [f"GPU {labels['gpu']} cannot be read" for labels, value in ups if value != 1]
    sources = [
        labels for scrape in evidence.exporters for labels, _ in scrape.of("ckpt_gpu_activity_source_info")
    ]
    if quality == "high":
        faults += [
            f"GPU {labels['gpu']}: {labels['source']} only"
            for labels in sources
            if labels["quality"] != "high"
        ]
    if not faults and len(sources) < len(ups):
        return Check(
            name, threshold, f"{len(sources)} of {len(ups)} GPUs have shown activity", "not enough data"
        )
    return Check(name, threshold, "; ".join(faults) or f"{len(ups)} GPUs", verdict_of(not faults))
