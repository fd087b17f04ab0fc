"""The state of every source in words, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ckpt_exporter.web.pages.gpus import SIMULATED, gpus_text
from ckpt_exporter.web.pages.markup import Html, badge, escaped, facts_table, foreign, grid_table
from ckpt_exporter.web.pages.units import SHOWN_OPEN_SAVES, count_text, duration_text, time_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ckpt_exporter.model import DirectorySnapshot, Snapshot, WatchStatus

_PROBLEM_LEVELS: Final = ("bad", "warn")
_DOES: Final = {
    "watch": "Sees files being created, written, renamed and deleted.",
    "storage": "Knows mounts, devices and free space.",
}
_REASONS: Final = {
    "files_removed": "its files were removed before the commit",
    "no_close": "its files were never closed",
    "no_commit": "it was never committed, and its writers are gone",
    "disk_full": "the disk was full",
    "truncated": "it is much smaller than the saves before it",
}


@dataclass(frozen=True, slots=True)
class Health:
    """The state of one source; ``level`` is a badge's, ``advice`` what it means and what to do."""

    level: str
    about: Html
    state: str
    advice: str = ""

    @property
    def is_problem(self) -> bool:
        """Tell whether someone should look at it."""
        return self.level in _PROBLEM_LEVELS


def reason_text(reason: str) -> str:
    """Return why a save is not complete, in words."""
    return _REASONS.get(reason, reason.replace("_", " "))


def sources_of(snapshot: Snapshot) -> list[Health]:
    """Return the state of every source, in a fixed order."""
    watches = {watch.directory: watch for watch in snapshot.watches}
    found = [_watch(entry, watches.get(entry.name)) for entry in snapshot.directories]
    found += _limits(snapshot)
    found.append(_gpu_backend(snapshot))
    found += _gpus(snapshot)
    found += _threads(snapshot)
    found += [_config(snapshot), _recording(snapshot)]
    return found


def problems_of(snapshot: Snapshot) -> list[Health]:
    """Return what someone should look at: sources, and the saves themselves."""
    saves = [health for entry in snapshot.directories for health in _saves(entry, snapshot)]
    return [*saves, *(health for health in sources_of(snapshot) if health.is_problem)]


def problems_section(problems: Sequence[Health]) -> str:
    """Return what needs attention, first on the page; one line when nothing does."""
    if not problems:
        return (
            '<section id="attention" class="fine" aria-labelledby="attention-title"><div class="title">'
            f'<h2 id="attention-title">{badge("good", "Nothing needs attention")}</h2></div></section>\n'
        )
    count = len(problems)
    title = "1 thing needs attention" if count == 1 else f"{count_text(count)} things need attention"
    items = "".join(
        f"<li>{badge(problem.level, problem.state)} <strong>{problem.about}</strong>"
        f"<p>{escaped(problem.advice)}</p></li>"
        for problem in problems
    )
    return (
        '<section id="attention" class="problems" aria-labelledby="attention-title">'
        f'<h2 id="attention-title">{title}</h2><ul>{items}</ul></section>\n'
    )


def sources_section(snapshot: Snapshot) -> str:
    """Return the table of all sources."""
    columns = ("Source", "State", "What it means, and what to do")
    rows = [
        (health.about, badge(health.level, health.state), health.advice) for health in sources_of(snapshot)
    ]
    table = grid_table("State of every source", columns, rows)
    return (
        '<section id="sources" aria-labelledby="sources-title"><h2 id="sources-title">Sources</h2>'
        f'{table}<details id="sources-more"><summary>Counters of the watching</summary>'
        f"{facts_table('Watching since start', _counters(snapshot))}</details></section>\n"
    )


def _counters(snapshot: Snapshot) -> list[tuple[str, str]]:
    counters = snapshot.counters
    rescans = ", ".join(
        f"{reason.replace('_', ' ')} {count_text(count)}"
        for reason, count in counters.rescans.items()
        if count
    )
    return [
        ("File events taken in", count_text(sum(counters.events.values()))),
        ("Looks at progress dropped", count_text(counters.dropped)),
        ("Queue overflows", count_text(counters.overflows)),
        ("Rescans", rescans or "none"),
    ]


def watch_badge(watch: WatchStatus | None) -> Html:
    """Return the state of a directory's watch."""
    if watch is None or not watch.up:
        return badge("bad", "not watched")
    return badge("good", "watched" if watch.backend == "inotify" else f"watched by {watch.backend}")


def _about(kind: str, name: str) -> Html:
    return Html(f"{escaped(kind)} {foreign(name)}")


def _watch(entry: DirectorySnapshot, watch: WatchStatus | None) -> Health:
    about = _about("Watch of", entry.name)
    if watch is None or not watch.up:
        return Health(
            "bad", about, "not watched",
            "The directory is missing, can't be read, or its mount does not answer. Create it or mend its "
            "path, permissions or mount: it is taken up by itself. The exporter's log says which it is.",
        )  # fmt: skip
    if watch.backend != "inotify":
        return Health(
            "warn", about, "polled",
            "inotify can't be used here, so changes show a little later and very short saves may be missed. "
            "On a local disk raise the sysctl fs.inotify.max_user_instances or fs.inotify.max_user_watches.",
        )  # fmt: skip
    if watch.truncated:
        return Health(
            "bad", about, "too many directories",
            f"Beyond {count_text(watch.watched_directories)} directories the tree is not followed: saves "
            "there are not seen. Watch what lies below by paths or patterns of its own, or clear it out.",
        )  # fmt: skip
    if watch.limit_reached:
        return Health(
            "warn", about, "watch limit reached",
            f"inotify covers {_percent(watch.coverage)} of its directories, the rest is polled. Raise the "
            "sysctl fs.inotify.max_user_watches.",
        )  # fmt: skip
    count = watch.watched_directories
    return Health("good", about, "up", f"{count_text(count)} {_plural(count, 'directory', 'directories')}.")


def _percent(share: float) -> str:
    return f"{min(99.9, share * 100):.1f} %"


def _plural(count: int, one: str, many: str) -> str:
    return one if count == 1 else many


def _limits(snapshot: Snapshot) -> Iterator[Health]:
    counters, about = snapshot.counters, Html("File events")
    overflows = counters.overflows
    if counters.dropped:
        yield Health(
            "warn", about, f"{count_text(counters.dropped)} dropped",
            "Looks at how far files are came faster than they could be taken in. Saves and their sizes are "
            "right, rates over time are coarser. Give the exporter more CPU, or watch fewer files.",
        )  # fmt: skip
    if overflows:
        yield Health(
            "warn", about, f"{count_text(overflows)} {_plural(overflows, 'overflow', 'overflows')}",
            "The kernel's queue was full; the tree was compared with the disk, so no save is lost, but times "
            "may be coarser. Raise the sysctl fs.inotify.max_queued_events.",
        )  # fmt: skip
    if not counters.dropped and not overflows:
        total = sum(counters.events.values())
        yield Health("good", about, "none lost", f"{count_text(total)} taken in.")


def _gpu_backend(snapshot: Snapshot) -> Health:
    backend, about = snapshot.gpu_backend, Html("GPUs")
    if backend is None:
        return Health(
            "plain", about, "not measured",
            "Saves are measured, bubbles are not. If there are GPUs here, see that the NVIDIA driver is "
            "visible to the exporter, or set gpu.backend.",
        )  # fmt: skip
    if not backend.up:
        return Health(
            "bad", about, f"{backend.backend} down",
            "No readings arrive, so bubbles are not measured. See whether nvidia-smi works here; the log has "
            "the driver's answer. The exporter tries again by itself.",
        )  # fmt: skip
    if not backend.mapping_known:
        return Health(
            "warn", about, "runs unknown",
            "Which run a GPU belongs to is unknown: its processes can't be seen. So every GPU with processes "
            "pays for a save. In a container set hostPID; elsewhere run with the right to see other users' "
            "processes.",
        )  # fmt: skip
    if backend.backend == SIMULATED:
        return Health("plain", about, SIMULATED, "A simulation: no figure comes from a real device.")
    return Health("good", about, f"{backend.backend} up", f"{gpus_text(len(snapshot.gpus))}.")


def _gpus(snapshot: Snapshot) -> Iterator[Health]:
    backend = snapshot.gpu_backend
    if backend is None or not backend.up:
        return
    for status in snapshot.gpus:
        if not status.up:
            yield Health(
                "bad", Html(f"GPU {status.info.gpu}"), "down",
                "It can't be read, so it is left out of bubbles. See nvidia-smi and the kernel's log (Xid).",
            )  # fmt: skip
    low = [str(status.info.gpu) for status in snapshot.gpus if status.quality == "low"]
    if low:
        yield Health(
            "warn", Html(f"GPU {', '.join(low)}"), "low quality",
            "The readings can hardly tell work from waiting for other ranks: bubbles may be much too small. "
            "GPM counters or power tell it: see whether the driver gives them (a MIG instance does not).",
        )  # fmt: skip


def _threads(snapshot: Snapshot) -> Iterator[Health]:
    for name, healthy in snapshot.sources_healthy.items():
        about = Html(f"Source {escaped(name)}")
        if healthy:
            yield Health("good", about, "up", _DOES.get(name, ""))
        else:
            yield Health(
                "bad", about, "stopped",
                f"The source {name} has stopped; what it reports is old. If it stays so, a mount may hang: "
                "see the log, then restart the exporter.",
            )  # fmt: skip


def _config(snapshot: Snapshot) -> Health:
    config, about = snapshot.config, Html("Configuration")
    loaded = f"In force since {time_text(config.success_unix)}." if config.success_unix > 0 else ""
    if config.successful:
        return Health("good", about, "loaded", loaded)
    return Health(
        "bad", about, "reload failed",
        "The last reload of the configuration failed; the one before it is in force. Let ckpt-exporter check "
        f"--config.file=FILE name the problems, mend the file and send SIGHUP again. {loaded}".rstrip(),
    )  # fmt: skip


def _recording(snapshot: Snapshot) -> Health:
    about = Html("Recording")
    if snapshot.recording is None:
        return Health("plain", about, "off", "Start with --record.path=FILE to keep what the sources see.")
    if snapshot.recording.failed is None:
        return Health("good", about, "running")
    return Health(
        "bad", about, "stopped",
        f"It ended early: {snapshot.recording.failed}. What was written until then can be replayed. Make "
        "room or choose another disk, then restart.",
    )  # fmt: skip


def _saves(entry: DirectorySnapshot, snapshot: Snapshot) -> Iterator[Health]:
    for save in entry.open_saves[:SHOWN_OPEN_SAVES]:
        if save.stalled:
            quiet = duration_text(max(0.0, snapshot.t - save.last_byte))
            yield Health(
                "bad", _about("Open save in", entry.name), "stalled",
                f"{_step(save.step)}: no new byte for {quiet}. Look whether its writers wait for the storage "
                "or for each other.",
            )  # fmt: skip
    newest = entry.recent[0].save if entry.recent else None
    if newest is not None and newest.result != "complete":
        reason = f": {reason_text(newest.reason)}" if newest.reason else ""
        yield Health(
            "bad", _about("Last save in", entry.name), newest.result,
            f"{_step(newest.step)}{reason}. A training that resumes needs an earlier checkpoint.",
        )  # fmt: skip
    full = [s for s in snapshot.storage if s.directory == entry.name and s.available_bytes == 0]
    if full:
        yield Health(
            "bad", _about("File system of", entry.name), "full",
            "The next save has no room. Delete old checkpoints or enlarge the file system.",
        )  # fmt: skip


def _step(step: int | None) -> str:
    return "Step unknown" if step is None else f"Step {step}"
