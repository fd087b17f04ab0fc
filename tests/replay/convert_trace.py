"""Turn an inotify trace of a real save into a recording.

Usage: python convert_trace.py TRACE.jsonl > RECORDING.jsonl

A trace has one inotify event a line: time, mask, path below the watched root, the size that was seen when the
event was handled, and for runs of MODIFY events their last time. A recording is what the exporter's own
sources would have said. A second watched root is written ``R1:`` in traces.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

ROOT = "/data/ckpt"
SECOND_ROOT = "/data/tmp"
# Long enough for every save without a commit to be given up.
SILENCE_SECONDS = 700.0


def path_of(name: str) -> str:
    """Return the absolute path of a traced name."""
    if name.startswith("R1:"):
        return f"{SECOND_ROOT}/{name[3:]}"
    return f"{ROOT}/{name}"


def convert(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the recording's lines."""
    events = [json.loads(line) for line in lines]
    note, events = events[0], events[1:]
    second = any(event["p"].startswith("R1:") for event in events)
    directories = [{"name": "ckpt", "path": ROOT}] + (
        [{"name": "tmp", "path": SECOND_ROOT}] if second else []
    )
    yield {"t": 0.0, "kind": "start", "unix": 1796015200.0, "directories": directories, "note": note["what"]}
    yield from _events(events)
    yield {"t": events[-1]["t"] + SILENCE_SECONDS, "kind": "stop"}


def _events(events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    partners = {e["ck"]: e for e in events if e["m"].startswith("MOVED_TO")}
    sources = {e["ck"] for e in events if e["m"].startswith("MOVED_FROM")}
    closed: set[str] = set()
    linked, linked_size = "", None
    for event in events:
        mask, name, t = event["m"], event["p"], event["t"]
        is_dir = mask.endswith("ISDIR") or mask == "SCAN_DIR"
        path = path_of(name)
        base: dict[str, Any] = {"t": t, "kind": "file"}
        if is_dir:
            base["dir"] = True
        if event.get("size") is not None and not is_dir:
            base["size"] = event["size"]
        kind = mask.split("|")[0]
        if kind == "CREATE" and ("link" in event or event.get("nlink", 1) > 1):
            yield {**base, "event": "link", "path": path}
        elif kind in ("CREATE", "SCAN_FILE", "SCAN_DIR"):
            # The size at creation says only how late the event was handled.
            base.pop("size", None)
            yield {**base, "event": "create", "path": path, **({"found": True} if "SCAN" in kind else {})}
            closed.discard(name)
            linked, linked_size = name, event.get("size")
        elif kind == "MODIFY" and not name.startswith("#"):
            if name in closed:
                yield {**base, "event": "open", "path": path}
                closed.discard(name)
            yield from _progress(event, path)
        elif kind == "CLOSE_WRITE":
            # A file made without a name is closed under its inode; its name came just before.
            target = path_of(linked) if name.startswith("#") else path
            yield from _progress({**event, "t2": t}, target) if "alloc" in event and event["size"] else ()
            if name.startswith("#"):
                base["size"] = linked_size
            yield {**base, "event": "close_write", "path": target}
            closed.add(name)
        elif kind == "MOVED_TO":
            if event["ck"] not in sources:
                yield {**base, "event": "moved", "to": path}
        elif kind == "MOVED_FROM":
            partner = partners.get(event["ck"])
            if partner is None:
                yield {**base, "event": "moved", "path": path}
            else:
                yield {**base, "event": "moved", "path": path, "to": path_of(partner["p"]), "t": partner["t"]}
                if name in closed:
                    closed.add(partner["p"])
        elif kind == "DELETE":
            yield {**base, "event": "deleted", "path": path}


def _progress(event: dict[str, Any], path: str) -> Iterator[dict[str, Any]]:
    if event.get("size") is None:
        return
    line = {"t": event.get("t2", event["t"]), "kind": "progress", "path": path, "size": event["size"]}
    if "alloc" in event:
        line["allocated"] = event["alloc"]
    yield {**line, "writers": 1}


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as trace:
        for line in sorted(convert(trace), key=lambda line: line["t"]):
            print(json.dumps(line))
