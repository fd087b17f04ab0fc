"""Over what a directory's bytes travel to their medium, from the mount table and sysfs."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ckpt_exporter.model import Mount
from ckpt_exporter.sources.mounts import (
    MEMORY_FSTYPES,
    MountEntry,
    find_mount,
    follow_links,
    is_shared,
    read_mountinfo,
    unescape,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_FSTYPE_TRANSPORT = {
    "9p": "9p",
    "beegfs": "beegfs",
    "ceph": "ceph",
    "cifs": "cifs",
    "fuse": "fuse",
    "gpfs": "gpfs",
    "lustre": "lustre",
    "lustre_lite": "lustre",
    "mmfs": "gpfs",
    "nfs": "nfs",
    "nfs3": "nfs",
    "nfs4": "nfs",
    "smb2": "cifs",
    "smb3": "cifs",
    "smbfs": "cifs",
    "virtiofs": "virtiofs",
    "zfs": "zfs",
    **dict.fromkeys(MEMORY_FSTYPES, "memory"),
}
_NVME_TRANSPORTS = frozenset({"pcie", "tcp", "rdma", "fc", "loop"})
# Kernel names that tell the transport by themselves.
_NAMED = (("loop", "loop"), ("mmcblk", "mmc"), ("zram", "memory"), ("ram", "memory"), ("rbd", "ceph"))
# What a device's place in sysfs tells, first hit wins: a disk in a USB box also has an ATA bridge in it.
_SYSFS_PLACES = (
    (re.compile(r"/usb\d+/"), "usb"),
    (re.compile(r"/virtio\d+/"), "virtio"),
    (re.compile(r"/ata\d+/"), "sata"),
    (re.compile(r"/session\d+/"), "iscsi"),
    (re.compile(r"/rport-[\d:-]+/"), "fc"),
    (re.compile(r"/(end_device|sas_device|expander)-[\d:]+/"), "sas"),
)
# Drivers of SCSI hosts whose disks hang directly below the host (RAID controllers show no SAS ports).
_SCSI_DRIVERS = {
    "aacraid": "sas",
    "ahci": "sata",
    "hpsa": "sas",
    "megaraid_sas": "sas",
    "mpt2sas": "sas",
    "mpt3sas": "sas",
    "mpi3mr": "sas",
    "smartpqi": "sas",
    "uas": "usb",
    "usb-storage": "usb",
    "virtio_scsi": "virtio",
    "iscsi_tcp": "iscsi",
}
_STACK_DEPTH = 16  # dm on md on dm ...: deeper stacks are a loop in a broken sysfs


@dataclass(frozen=True, slots=True)
class Backing:
    """A mount with what counts its bytes: block devices by kernel name, and the kernel's write-back device.

    ``devices`` is empty where no block device is known; ``writeback`` is the ``major:minor`` under which the
    kernel accounts dirty pages, or None.
    """

    mount: Mount
    devices: tuple[str, ...] = ()
    writeback: str | None = None


def identify(path: str, *, proc: str = "/proc", sys: str = "/sys") -> Mount:
    """Tell on which mount, device and transport a path's bytes end, without a call on a shared mount.

    The path need not exist: the mount table is compared by text. What can't be known is ``unknown``.
    """
    entries = read_mountinfo(proc)
    return trace_backing(follow_links(path, entries), entries, sys=sys).mount


def trace_backing(path: str, entries: Sequence[MountEntry], *, sys: str = "/sys") -> Backing:
    """Follow a path without symbolic links down to its block devices."""
    entry = find_mount(path, entries)
    if entry is None:
        return Backing(Mount(mountpoint="/", device="unknown", fstype="unknown", transport="unknown"))
    if entry.fstype == "overlay":
        return _overlay(entry, entries, sys)
    if (known := _by_fstype(entry.fstype)) is not None:
        return Backing(_mount(entry, entry.source, known), writeback=entry.device)
    names = _block_names(entry, sys)
    if not names:
        return Backing(_mount(entry, _without_dev(entry.source), "unknown"))
    transport = _join(_block_transport(name, sys) for name in names)
    return Backing(
        _mount(entry, _display_name(names[0], sys), transport),
        devices=names,
        # A file system with an anonymous number and a block device below (btrfs) accounts its dirty pages
        # under a name that the mount table does not tell.
        writeback=None if entry.device.startswith("0:") else _device_number(_disk(names[0], sys), sys),
    )


def _mount(entry: MountEntry, device: str, transport: str) -> Mount:
    return Mount(
        mountpoint=entry.mountpoint,
        device=device,
        fstype=entry.fstype,
        transport=transport,
        shared=is_shared(entry.fstype),
    )


def _by_fstype(fstype: str) -> str | None:
    return "fuse" if fstype.startswith("fuse.") else _FSTYPE_TRANSPORT.get(fstype)


def _overlay(entry: MountEntry, entries: Sequence[MountEntry], sys: str) -> Backing:
    """Take the writable layer's device: that is where an overlay's new bytes go."""
    plain = Backing(_mount(entry, entry.source, "overlay"))
    options = dict(option.partition("=")[::2] for option in entry.super_options)
    # Two layers of escapes: the mount table's, and below it overlay's own for separators.
    upper = re.sub(r"\\([,:\\])", r"\1", unescape(options.get("upperdir", "")))
    below = find_mount(upper, entries) if upper.startswith("/") else None
    # Inside a container the upper directory is a path of the host: it then leads back to an overlay.
    if below is None or below.fstype == "overlay":
        return plain
    backing = trace_backing(upper, entries, sys=sys)
    return replace(backing, mount=_mount(entry, backing.mount.device, backing.mount.transport))


def _join(transports: Iterable[str]) -> str:
    found = set(transports)
    if len(found) == 1:
        return found.pop()
    return "mixed" if found else "unknown"


# --- block devices in sysfs -----------------------------------------------------------------------------


def _block_names(entry: MountEntry, sys: str) -> tuple[str, ...]:
    """Name the block devices below a mount as the kernel does; a btrfs may have several."""
    name = _name_of_number(entry.device, sys) or _name_of_source(entry.source, sys)
    if name is None:
        return ()
    if entry.fstype != "btrfs":
        return (name,)
    for pool in _listdir(f"{sys}/fs/btrfs"):
        members = _listdir(f"{sys}/fs/btrfs/{pool}/devices")
        if name in members:
            return (name, *sorted(set(members) - {name}))
    return (name,)


def _name_of_number(number: str, sys: str) -> str | None:
    if number.startswith("0:"):
        return None
    place = f"{sys}/dev/block/{number}"
    return os.path.basename(os.path.realpath(place)) if os.path.isdir(place) else None


def _name_of_source(source: str, sys: str) -> str | None:
    """Find the kernel's name of ``/dev/NAME`` or ``/dev/mapper/NAME`` without opening the device."""
    if not source.startswith("/dev/"):
        return None
    name = os.path.basename(source)
    if source.startswith("/dev/mapper/"):
        return _find_mapped(name, sys)
    if os.path.isdir(f"{sys}/class/block/{name}"):
        return name
    return _find_mapped(name, sys)


def _find_mapped(name: str, sys: str) -> str | None:
    for device in _listdir(f"{sys}/class/block"):
        if device.startswith("dm-") and _read(f"{sys}/class/block/{device}/dm/name") == name:
            return device
    return None


def _display_name(name: str, sys: str) -> str:
    return _read(f"{sys}/class/block/{name}/dm/name") or name


def _without_dev(source: str) -> str:
    return source.removeprefix("/dev/") or "unknown"


def _place(name: str, sys: str) -> str:
    return os.path.realpath(f"{sys}/class/block/{name}")


def _disk(name: str, sys: str) -> str:
    """Name the whole disk of a partition; a whole disk is its own."""
    place = _place(name, sys)
    is_partition = os.path.exists(f"{place}/partition")
    return os.path.basename(os.path.dirname(place)) if is_partition else name


def _device_number(name: str, sys: str) -> str | None:
    return _read(f"{sys}/class/block/{name}/dev")


def _block_transport(name: str, sys: str, depth: int = 0) -> str:
    disk = _disk(name, sys)
    members = _listdir(f"{_place(disk, sys)}/slaves")
    if members and depth < _STACK_DEPTH:
        return _join(_block_transport(member, sys, depth + 1) for member in members)
    if disk.startswith("nvme"):
        return _nvme_transport(disk, sys)
    for prefix, transport in _NAMED:
        if disk.startswith(prefix):
            return transport
    place = _place(disk, sys) + "/"
    for pattern, transport in _SYSFS_PLACES:
        if pattern.search(place):
            return transport
    return _scsi_driver_transport(place)


def _scsi_driver_transport(place: str) -> str:
    host = re.search(r"^(.*/(host\d+))/", place)
    if host is None:
        return "unknown"
    return _SCSI_DRIVERS.get(_read(f"{host[1]}/scsi_host/{host[2]}/proc_name") or "", "unknown")


def _nvme_transport(disk: str, sys: str) -> str:
    """Read an NVMe namespace's transport from its controllers.

    A multipath head hangs below its subsystem, with one link per controller beside it; a path or a device
    without multipath hangs below its only controller.
    """
    parent = os.path.dirname(_place(disk, sys))
    controllers = [f"{parent}/{name}" for name in _listdir(parent) if re.fullmatch(r"nvme\d+", name)]
    if os.path.exists(f"{parent}/transport") or not controllers:
        controllers = [parent]
    found = [_controller_transport(controller) for controller in controllers]
    if set(found) == {"unknown"} and (hit := re.match(r"nvme(\d+)(?:c(\d+))?n\d+", disk)):
        # The number after "c" is the controller's; without it the first one is only usually the controller's.
        return _controller_transport(f"{sys}/class/nvme/nvme{hit[2] or hit[1]}")
    return _join(found)


def _controller_transport(controller: str) -> str:
    transport = _read(f"{controller}/transport")
    if transport in _NVME_TRANSPORTS:
        return f"nvme-{transport}"
    # Kernels before 4.15 have no such file for controllers on the PCI bus.
    below_pci = re.search(r"/pci[\da-f:]+/.*/nvme\d+$", os.path.realpath(controller))
    return "nvme-pcie" if transport is None and below_pci else "unknown"


# --- counters -------------------------------------------------------------------------------------------


def sum_written(devices: Sequence[str], written_bytes: Callable[[str], int | None]) -> int | None:
    """Add up the bytes written to block devices; None without one, or if one has no counter."""
    total = 0
    for device in devices:
        value = written_bytes(device)
        if value is None:
            return None
        total += value
    return total if devices else None


def read_dirty_bytes(writeback: str | None, *, sys: str = "/sys") -> int | None:
    """Read the bytes that wait for, or are in, write-back to a backing device; None where not told.

    The whole device's, whoever dirtied them. Needs debugfs and the right to read it (root).
    """
    text = _read(f"{sys}/kernel/debug/bdi/{writeback}/stats") if writeback else None
    fields = dict(line.partition(":")[::2] for line in (text or "").splitlines())
    try:
        parts = [fields[key].split() for key in ("BdiReclaimable", "BdiWriteback")]
        if any(unit != "kB" for _, unit in parts):
            return None
        return 1024 * sum(int(number) for number, _ in parts)
    except (KeyError, ValueError):
        return None


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read().strip()
    except OSError:
        return None


def _listdir(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []
