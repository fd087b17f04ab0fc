"""How far measured saves are from what the writer itself noted."""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from typing import Any

from benchmarks.load import LAYOUTS
from benchmarks.processes import Running, exporter, scratch, until
from benchmarks.report import Outcome, Row

Key = tuple[str, int]


def measure(quick: bool) -> Outcome:
    saves, seed = (50 if quick else 500), random.randrange(1 << 30)
    with scratch() as base:
        for layout in LAYOUTS:
            os.makedirs(os.path.join(base, "saves", layout))
        config, recording = os.path.join(base, "config.yaml"), os.path.join(base, "recording.jsonl")
        _configure(config, os.path.join(base, "saves"))
        with exporter(f"--config.file={config}", f"--record.path={recording}") as process:
            arguments = [os.path.join(base, "saves"), str(saves), str(seed)]
            command = [sys.executable, "-m", "benchmarks.load", "random", *arguments]
            log = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            time.sleep(3)
            until(lambda: not _total(process, "ckpt_saves_in_progress"), 30, "the last save to end", 0.5)
            live = {name: _total(process, name) for name in TOTALS}
        command = [sys.executable, "-m", "ckpt_exporter", "replay", recording, "--format=json"]
        replay = subprocess.run(
            [*command, f"--config.file={config}"], check=True, capture_output=True, text=True
        )
        offset = _unix_minus_t(recording)
    truth = {(line["layout"], line["step"]): line for line in map(json.loads, log.splitlines())}
    found = json.loads(replay.stdout)["saves"]
    return Outcome(
        "the writer's own log: clock just before the first open and right after the last close or rename",
        f"{saves} random saves of 1 to 64 MB back to back (seed {seed}): Trainer-like, DCP-like, staged "
        "directories renamed, single files; random pace; `quiet_seconds: 1`. Recorded live and replayed.",
        (*_compare(truth, found, offset), *_live(found, live)),
    )


TOTALS = (
    'ckpt_saves_total{result="complete"}',
    "ckpt_save_bytes_total",
    "ckpt_save_files_total",
    "ckpt_save_duration_seconds_sum",
)


def _configure(path: str, base: str) -> None:
    lines = [f"  - {{name: {layout}, path: '{os.path.join(base, layout)}'}}" for layout in LAYOUTS]
    with open(path, "w", encoding="utf-8") as stream:
        stream.write("directories:\n" + "\n".join(lines) + "\ndetect:\n  quiet_seconds: 1\n")


def _total(process: Running, series: str) -> float:
    """Add up one series over all directories."""
    name, _, label = series.rstrip("}").partition("{")
    values = process.metrics().items()
    return sum(v for s, v in values if s.partition("{")[0] == name and label in s)


def _unix_minus_t(recording: str) -> float:
    with open(recording, encoding="utf-8") as stream:
        start = json.loads(stream.readline())
    return float(start["unix"] - start["t"])


def _compare(truth: dict[Key, Any], found: list[dict[str, Any]], offset: float) -> list[Row]:
    by_key: dict[Key, list[dict[str, Any]]] = {}
    for save in found:
        by_key.setdefault((save["dir"], save["step"]), []).append(save)
    complete = {k: s[0] for k, s in by_key.items() if k in truth and s[0]["result"] == "complete"}
    missed = len(truth) - len(complete)
    invented = len(found) - sum(key in truth for key in by_key)
    wrong_bytes = [key for key, save in complete.items() if save["bytes"] != truth[key]["bytes"]]
    wrong_files = [key for key, save in complete.items() if save["files"] != truth[key]["files"]]
    rows = [
        Row(f"missed saves of {len(truth)}", f"{missed}{_why(truth, by_key, complete)}", "0", missed == 0),
        Row("invented saves", str(invented), "0", invented == 0),
        Row("saves with wrong bytes", str(len(wrong_bytes)), "0", not wrong_bytes),
        Row("saves with wrong number of files", str(len(wrong_files)), "0", not wrong_files),
    ]
    known = {key: save for key, save in complete.items() if save["duration_seconds"] is not None}
    rows.append(Row("saves of unknown duration", str(len(complete) - len(known))))
    return [*rows, *_errors(truth, known, offset)]


def _why(truth: dict[Key, Any], by_key: dict[Key, list[dict[str, Any]]], complete: dict[Key, Any]) -> str:
    """Say what became of saves that are not complete, by layout and result."""
    fates: Counter[str] = Counter()
    for key in truth.keys() - complete.keys():
        save = by_key.get(key, [{"result": "not seen", "reason": None}])[0]
        fates[f"{key[0]} {save['result']} ({save['reason']})"] += 1
    return "".join(f"; {number} {fate}" for fate, number in fates.most_common(6))


def _errors(truth: dict[Key, Any], known: dict[Key, dict[str, Any]], offset: float) -> list[Row]:
    errors = {k: s["duration_seconds"] - (truth[k]["end"] - truth[k]["start"]) for k, s in known.items()}
    shares = {k: abs(e) / (truth[k]["end"] - truth[k]["start"]) for k, e in errors.items()}
    limit = {k: max(0.05, 0.01 * (truth[k]["end"] - truth[k]["start"])) for k in errors}
    beyond = sum(abs(errors[k]) > limit[k] for k in errors)
    starts = [(save["start"] + offset - truth[k]["start"]) * 1e3 for k, save in known.items()]
    ends = [(save["end"] + offset - truth[k]["end"]) * 1e3 for k, save in known.items()]
    rows = [
        Row("duration error, ms", _signed([e * 1e3 for e in errors.values()])),
        Row("duration error, % of the save", _signed([s * 100 for s in shares.values()])),
        Row("saves off by more than 50 ms or 1 %", str(beyond), "0", beyond == 0),
        Row("start error, ms", _signed(starts)),
        Row("end error, ms", _signed(ends)),
    ]
    for layout in LAYOUTS:
        own = [e * 1e3 for k, e in errors.items() if k[0] == layout]
        if own:
            rows.append(Row(f"duration error of {layout}, ms", _signed(own)))
    return rows


def _signed(errors: list[float]) -> str:
    absolute = sorted(map(abs, errors))
    worst = max(errors, key=abs)
    return (
        f"median {statistics.median(absolute):.1f}, p99 {absolute[int(len(absolute) * 0.99)]:.1f}, "
        f"worst {worst:+.1f} (n={len(errors)})"
    )


def _live(found: list[dict[str, Any]], live: dict[str, float]) -> list[Row]:
    complete = [save for save in found if save["result"] == "complete"]
    sums = (
        len(complete),
        sum(save["bytes"] for save in complete),
        sum(save["files"] for save in complete),
        sum(save["duration_seconds"] or 0.0 for save in complete),
    )
    rows = []
    for name, replayed in zip(TOTALS, sums, strict=True):
        same = abs(live[name] - replayed) < 0.01
        figure = f"{live[name]:.10g} live, {replayed:.10g} replayed"
        rows.append(Row(f"`{name}` live equals replay", figure, "equal", same))
    return rows
