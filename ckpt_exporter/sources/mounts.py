"""The mount table as text, and which file systems other hosts can write too.

Nothing here touches the file system that a path lies on: a dead network mount blocks every call on its
paths, and the mount table alone already tells where a path leads.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# File systems of which other hosts can write the same files.
SHARED_FSTYPES = frozenset(
    {
        "9p",
        "acfs",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "gfs",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "lustre_lite",
        "mmfs",
        "ncpfs",
        "nfs",
        "nfs3",
        "nfs4",
        "ocfs2",
        "orangefs",
        "panfs",
        "pvfs2",
        "smb2",
        "smb3",
        "smbfs",
        "virtiofs",
        "wekafs",
    }
)
# File systems that live in this host's memory.
MEMORY_FSTYPES = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"})

_SYMLINK_LIMIT = 40  # as many as the kernel follows before it says ELOOP


@dataclass(frozen=True, slots=True)
class MountEntry:
    """One line of the mount table; ``device`` is the file system's ``major:minor``, ``root`` what is mounted.

    ``options`` are per mount, ``super_options`` per file system; both keep the order of the table.
    """

    mount_id: int
    parent_id: int
    device: str
    root: str
    mountpoint: str
    options: tuple[str, ...]
    fstype: str
    source: str
    super_options: tuple[str, ...]


def is_shared(fstype: str) -> bool:
    """Tell whether other hosts can write the same file system.

    Every FUSE file system counts as shared but ``fuseblk`` (a local block device): its name does not tell
    what is behind it, and taking a remote one for local would credit this host with other hosts' writes.
    """
    return fstype in SHARED_FSTYPES or fstype == "fuse" or fstype.startswith("fuse.")


def unescape(text: str) -> str:
    r"""Undo the mount table's octal escapes (``\040`` is a space)."""
    if "\\" not in text:
        return text
    # The kernel escapes bytes; going through bytes keeps multi-byte names in one piece.
    raw = re.sub(rb"\\([0-7]{3})", lambda hit: bytes([int(hit[1], 8) & 0xFF]), os.fsencode(text))
    return os.fsdecode(raw)


def _parse_line(line: str) -> MountEntry | None:
    before, separator, after = line.partition(" - ")
    left, right = before.split(" "), after.split(" ")
    if not separator or len(left) < 6 or len(right) < 2:
        return None
    try:
        mount_id, parent_id = int(left[0]), int(left[1])
    except ValueError:
        return None
    return MountEntry(
        mount_id=mount_id,
        parent_id=parent_id,
        device=left[2],
        root=unescape(left[3]),
        mountpoint=unescape(left[4]),
        options=tuple(left[5].split(",")),
        fstype=unescape(right[0]),
        source=unescape(right[1]),
        super_options=tuple(right[2].split(",")) if len(right) > 2 else (),
    )


def parse_mountinfo(text: str) -> tuple[MountEntry, ...]:
    r"""Parse the text of ``/proc/PID/mountinfo``, in its order, without lines that make no sense.

    Format: proc_pid_mountinfo(5), with any number of optional fields before the lone ``-`` and with octal
    escapes (``\040`` for a space) undone.
    """
    return tuple(entry for line in text.split("\n") if (entry := _parse_line(line)) is not None)


def read_mountinfo(proc: str = "/proc") -> tuple[MountEntry, ...]:
    """Read the mount table of this process; empty if it can't be read."""
    try:
        with open(f"{proc}/self/mountinfo", "rb") as file:
            return parse_mountinfo(os.fsdecode(file.read()))
    except OSError:
        return ()


def _covers(mountpoint: str, path: str) -> bool:
    return mountpoint in {"/", path} or path.startswith(mountpoint.rstrip("/") + "/")


def find_mount(path: str, entries: Sequence[MountEntry]) -> MountEntry | None:
    """Find the mount that an absolute path without symbolic links lies on, by text alone.

    Walks from mount to mount as the kernel's path lookup does, so that a mount hidden below a later one is
    not taken although its mount point is longer, and of two on one point the later one is. None if no
    mount covers the path.
    """
    path = os.path.normpath(path)
    covering = [entry for entry in entries if _covers(entry.mountpoint, path)]
    known = {entry.mount_id for entry in entries}
    # In a chroot the parents of the outermost mounts are not listed; a root mount may name itself.
    step = [e for e in covering if e.parent_id not in known or e.parent_id == e.mount_id]
    current: MountEntry | None = None
    for _ in range(len(covering) + 1):
        if not step:
            break
        nearest = min(len(entry.mountpoint) for entry in step)
        current = [entry for entry in step if len(entry.mountpoint) == nearest][-1]
        step = [e for e in covering if e.parent_id == current.mount_id and e.mount_id != current.mount_id]
    return current


def follow_links(path: str, entries: Sequence[MountEntry]) -> str:
    """Resolve a path's symbolic links as far as that needs no call on a shared file system.

    A mount point is never a link, so the call that could block on a dead mount's root is not made. What
    can't be read is kept as it stands, also a path that does not exist (yet).
    """
    pending = [part for part in os.path.normpath(path).split("/") if part][::-1]
    done = ""
    budget = _SYMLINK_LIMIT
    while pending:
        part = pending.pop()
        if part == "..":
            done = os.path.dirname(done).rstrip("/")
            continue
        target = _read_link(f"{done}/{part}", entries) if budget else None
        if target is None:
            done = f"{done}/{part}"
            continue
        budget -= 1
        done = "" if target.startswith("/") else done
        pending.extend([piece for piece in target.split("/") if piece not in ("", ".")][::-1])
    return done or "/"


def _read_link(path: str, entries: Sequence[MountEntry]) -> str | None:
    entry = find_mount(path, entries)
    if entry is None or entry.mountpoint == path or is_shared(entry.fstype) or entry.fstype == "autofs":
        return None
    try:
        return os.readlink(path)
    except OSError:
        return None
