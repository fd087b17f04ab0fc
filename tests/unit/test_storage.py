"""Where bytes go: the mount table, the transports of a fake sysfs, and a source that no dead mount blocks."""

from __future__ import annotations

import os
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from ckpt_exporter.model import DirectorySettings, Mount, Space, StorageStatus
from ckpt_exporter.sources.mounts import follow_links
from ckpt_exporter.sources.storage import (
    StorageSource,
    find_mount,
    fixed_part,
    identify,
    is_shared,
    parse_mountinfo,
    read_space,
)
from ckpt_exporter.sources.transport import read_dirty_bytes, sum_written

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GIB = 1024**3
ROOT_LINE = "20 1 8:2 / / rw,relatime shared:1 - ext4 /dev/sda2 rw\n"


class Host:
    """A fake /proc and /sys below one directory, filled by the tests' own calls."""

    def __init__(self, base: Path) -> None:
        self.proc = base / "proc"
        self.sys = base / "sys"
        (self.proc / "self").mkdir(parents=True)
        (self.sys / "class" / "block").mkdir(parents=True)
        (self.sys / "dev" / "block").mkdir(parents=True)
        self.table = ""

    def mount(self, line: str) -> None:
        """Add a line to the mount table."""
        self.table += line if line.endswith("\n") else line + "\n"
        (self.proc / "self" / "mountinfo").write_text(self.table)

    def write(self, path: str, text: str) -> None:
        """Add a file below sys."""
        file = self.sys / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    def link(self, path: str, target: str) -> None:
        """Add a link below sys, to a place below sys."""
        name = self.sys / path
        name.parent.mkdir(parents=True, exist_ok=True)
        name.symlink_to(self.sys / target)

    def block(self, place: str, number: str, *, partition: bool = False) -> None:
        """Add a block device at devices/``place`` with its links in class/block and dev/block."""
        name = place.rsplit("/", 1)[1]
        self.write(f"devices/{place}/dev", number)
        if partition:
            self.write(f"devices/{place}/partition", "1")
        self.link(f"class/block/{name}", f"devices/{place}")
        self.link(f"dev/block/{number}", f"devices/{place}")

    def stack(self, name: str, number: str, members: list[str], mapped: str | None = None) -> None:
        """Add a virtual device over members, with a mapped name for dm."""
        self.block(f"virtual/block/{name}", number)
        if mapped is not None:
            self.write(f"devices/virtual/block/{name}/dm/name", mapped)
        for member in members:
            self.link(f"devices/virtual/block/{name}/slaves/{member}", f"class/block/{member}")

    def nvme(self, controller: str, transport: str, namespace: str, number: str) -> None:
        """Add an NVMe controller with one namespace."""
        where = "virtual/nvme-fabrics/ctl" if transport != "pcie" else "pci0000:00/0000:00:04.0/nvme"
        self.write(f"devices/{where}/{controller}/transport", transport)
        self.link(f"class/nvme/{controller}", f"devices/{where}/{controller}")
        self.block(f"{where}/{controller}/{namespace}", number)

    def identify(self, path: str) -> Mount:
        """Identify a path on this host."""
        return identify(path, proc=str(self.proc), sys=str(self.sys))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Give a host whose root is a partition that sysfs does not know."""
    host = Host(tmp_path)
    host.mount(ROOT_LINE)
    return host


# --- the mount table ------------------------------------------------------------------------------------


def test_parse_undoes_octal_escapes_and_skips_optional_fields() -> None:
    """A mount point with a space, a tab and a two-byte letter is read as the name that users know."""
    text = r"41 20 8:17 /sub\040dir /mnt/my\040ck\011pt\303\251 rw,noatime master:3 shared:7"
    text += " - xfs /dev/sdb1 rw,a=b"
    (entry,) = parse_mountinfo(text + "\n")
    assert entry.mountpoint == "/mnt/my ck\tpté"
    assert entry.root == "/sub dir"
    assert (entry.mount_id, entry.parent_id, entry.device) == (41, 20, "8:17")
    assert (entry.fstype, entry.source) == ("xfs", "/dev/sdb1")
    assert entry.super_options == ("rw", "a=b")


def test_parse_reads_a_line_without_optional_fields_and_leaves_out_damaged_ones() -> None:
    """Zero optional fields are fine, a line cut short or of nonsense is not an entry."""
    text = "41 20 0:50 / /a rw - tmpfs tmpfs rw\nnonsense\n42 20 8:1 / /b rw - \nx y 8:1 / /c rw - a b c\n"
    assert [entry.mountpoint for entry in parse_mountinfo(text)] == ["/a"]


@pytest.mark.parametrize(
    ("path", "mountpoint"),
    [
        ("/data/ckpt/step-1", "/data/ckpt"),
        ("/data/ckpt", "/data/ckpt"),
        ("/data/ckpt2/x", "/data"),
        ("/data/", "/data"),
        ("/database", "/"),
        ("/data/ckpt/../other", "/data"),
    ],
)
def test_find_mount_takes_the_longest_point_on_component_boundaries(path: str, mountpoint: str) -> None:
    """/data/ckpt2 is not below /data/ckpt, and dots are resolved as text."""
    table = (
        ROOT_LINE + "21 20 8:17 / /data rw - xfs /dev/sdb1 rw\n22 21 0:40 / /data/ckpt rw - nfs4 s:/e rw\n"
    )
    entry = find_mount(path, parse_mountinfo(table))
    assert entry is not None
    assert entry.mountpoint == mountpoint


def test_find_mount_takes_the_later_of_two_mounts_on_one_point() -> None:
    """A mount over a mount hides it, whether its parent is the hidden mount or the one below."""
    stacked = ROOT_LINE + "21 20 8:17 / /d rw - xfs /dev/sdb1 rw\n22 21 0:40 / /d rw - nfs4 s:/e rw\n"
    beside = ROOT_LINE + "21 20 8:17 / /d rw - xfs /dev/sdb1 rw\n22 20 0:40 / /d rw - nfs4 s:/e rw\n"
    for table in (stacked, beside):
        entry = find_mount("/d/x", parse_mountinfo(table))
        assert entry is not None
        assert entry.fstype == "nfs4"


def test_find_mount_ignores_a_mount_hidden_below_a_later_one_higher_up() -> None:
    """/a/b was mounted first, then /a: the path /a/b now lies on the mount at /a."""
    table = ROOT_LINE + "21 20 8:17 / /a/b rw - xfs /dev/sdb1 rw\n22 20 0:40 / /a rw - nfs4 s:/e rw\n"
    entry = find_mount("/a/b/c", parse_mountinfo(table))
    assert entry is not None
    assert entry.mountpoint == "/a"


def test_find_mount_works_without_a_root_entry() -> None:
    """In a chroot the root may be no mount at all: only what is mounted below is known."""
    entries = parse_mountinfo("31 20 8:17 / /data rw - xfs /dev/sdb1 rw\n")
    found = find_mount("/data/x", entries)
    assert found is not None
    assert found.mountpoint == "/data"
    assert find_mount("/other", entries) is None


@pytest.mark.parametrize(
    ("fstype", "shared"),
    [
        ("nfs", True), ("nfs4", True), ("cifs", True), ("smb3", True), ("ceph", True), ("lustre", True),
        ("gpfs", True), ("beegfs", True), ("9p", True), ("virtiofs", True), ("fuse", True),
        ("fuse.sshfs", True), ("fuse.glusterfs", True), ("ocfs2", True), ("gfs2", True), ("wekafs", True),
        ("fuseblk", False), ("ext4", False), ("xfs", False), ("btrfs", False), ("tmpfs", False),
        ("overlay", False), ("zfs", False), ("fusectl", False),
    ],
)  # fmt: skip
def test_shared_file_systems(fstype: str, shared: bool) -> None:
    """Network, cluster and FUSE file systems are shared by hosts, local ones and fuseblk are not."""
    assert is_shared(fstype) is shared


def test_follow_links_resolves_local_links_and_stops_at_a_shared_mount(tmp_path: Path) -> None:
    """A link on a local disk is followed, one on a network mount is left to that mount's own worker."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "inner").symlink_to(tmp_path / "real")
    table = ROOT_LINE + f"21 20 0:40 / {tmp_path}/net rw - nfs4 server:/export rw\n"
    entries = parse_mountinfo(table)
    assert follow_links(f"{tmp_path}/link/new", entries) == f"{tmp_path}/real/new"
    assert follow_links(f"{tmp_path}/net/inner/x", entries) == f"{tmp_path}/net/inner/x"


def test_follow_links_gives_up_on_a_loop_of_links(tmp_path: Path) -> None:
    """Two links that point at each other end the walk instead of going on for ever."""
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert follow_links(f"{tmp_path}/a/x", parse_mountinfo(ROOT_LINE)).endswith("/x")


# --- transports -----------------------------------------------------------------------------------------


def test_nvme_partition_on_pcie(host: Host) -> None:
    """A partition's transport is its disk's controller's, its name its own."""
    host.nvme("nvme0", "pcie", "nvme0n1", "259:0")
    host.block("pci0000:00/0000:00:04.0/nvme/nvme0/nvme0n1/nvme0n1p1", "259:1", partition=True)
    host.mount("21 20 259:1 / /data rw - ext4 /dev/nvme0n1p1 rw")
    assert host.identify("/data/ckpt") == Mount("/data", "nvme0n1p1", "ext4", "nvme-pcie", shared=False)


@pytest.mark.parametrize("transport", ["tcp", "rdma", "fc"])
def test_nvme_over_fabrics(host: Host, transport: str) -> None:
    """A namespace below a fabrics controller has the controller's transport."""
    host.nvme("nvme3", transport, "nvme3n1", "259:4")
    host.mount("21 20 259:4 / /data rw - xfs /dev/nvme3n1 rw")
    assert host.identify("/data").transport == f"nvme-{transport}"


def multipath(host: Host, transports: dict[str, str]) -> None:
    """Mount a namespace that several controllers lead to."""
    for controller, transport in transports.items():
        place = f"devices/virtual/nvme-fabrics/ctl/{controller}"
        host.write(f"{place}/transport", transport)
        host.link(f"devices/virtual/nvme-subsystem/nvme-subsys0/{controller}", place)
    host.block("virtual/nvme-subsystem/nvme-subsys0/nvme0n1", "259:0")
    host.mount("21 20 259:0 / /data rw - xfs /dev/nvme0n1 rw")


def test_nvme_multipath_head_takes_the_transport_of_all_its_controllers(host: Host) -> None:
    """The head hangs below the subsystem, whose controllers (numbered apart from it) all speak TCP."""
    # nvme0 as a class device would be another subsystem's local disk: the number must not be trusted.
    host.write("class/nvme/nvme0/transport", "pcie")
    multipath(host, {"nvme1": "tcp", "nvme2": "tcp"})
    assert host.identify("/data") == Mount("/data", "nvme0n1", "xfs", "nvme-tcp", shared=False)


def test_nvme_multipath_over_two_transports_is_mixed(host: Host) -> None:
    """One path over RDMA and one over TCP is neither."""
    multipath(host, {"nvme1": "tcp", "nvme2": "rdma"})
    assert host.identify("/data").transport == "mixed"


def test_nvme_path_device_takes_its_own_controller(host: Host) -> None:
    """nvme0c1n1 is the path over controller 1."""
    host.write("class/nvme/nvme1/transport", "rdma")
    host.write("class/nvme/nvme0/transport", "tcp")
    host.block("virtual/odd/nvme0c1n1", "259:9")
    host.mount("21 20 259:9 / /data rw - xfs /dev/nvme0c1n1 rw")
    assert host.identify("/data").transport == "nvme-rdma"


@pytest.mark.parametrize(
    ("place", "transport"),
    [
        ("pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0/block/sdb", "sata"),
        ("pci0000:00/0000:01:00.0/host0/port-0:0/end_device-0:0/target0:0:0/0:0:0:0/block/sdb", "sas"),
        ("pci0000:00/0000:00:14.0/usb2/2-1/2-1:1.0/host6/target6:0:0/6:0:0:0/block/sdb", "usb"),
        ("pci0000:00/0000:00:05.0/virtio2/block/vdb", "virtio"),
        ("pci0000:00/0000:00:05.0/virtio3/host2/target2:0:0/2:0:0:0/block/sdb", "virtio"),
        ("platform/host3/session1/target3:0:0/3:0:0:0/block/sdb", "iscsi"),
        ("pci0000:00/0000:02:00.0/host1/rport-1:0-2/target1:0:0/1:0:0:0/block/sdb", "fc"),
        ("platform/soc/mmc_host/mmc0/mmc0:0001/block/mmcblk0", "mmc"),
        ("virtual/block/loop7", "loop"),
        ("virtual/block/zram0", "memory"),
        ("virtual/block/nbd0", "unknown"),
    ],
)
def test_disk_transport_from_its_place_in_sysfs(host: Host, place: str, transport: str) -> None:
    """The bus that a disk hangs on decides, whatever its name."""
    host.block(place, "8:16")
    host.mount("21 20 8:16 / /data rw - ext4 /dev/whatever rw")
    mount = host.identify("/data")
    assert (mount.device, mount.transport) == (place.rsplit("/", 1)[1], transport)


@pytest.mark.parametrize(
    ("driver", "transport"), [("megaraid_sas", "sas"), ("ahci", "sata"), ("foo", "unknown")]
)
def test_disk_transport_from_its_host_driver(host: Host, driver: str, transport: str) -> None:
    """A RAID controller shows no port below its host: then its driver's name tells the bus."""
    host.block("pci0000:00/0000:01:00.0/host4/target4:2:0/4:2:0:0/block/sdc", "8:32")
    host.write("devices/pci0000:00/0000:01:00.0/host4/scsi_host/host4/proc_name", driver)
    host.mount("21 20 8:32 / /data rw - ext4 /dev/sdc rw")
    assert host.identify("/data").transport == transport


def test_raid_over_two_nvme_tcp_disks(host: Host) -> None:
    """A stack of members of one transport has that transport."""
    host.nvme("nvme1", "tcp", "nvme1n1", "259:1")
    host.nvme("nvme2", "tcp", "nvme2n1", "259:2")
    host.stack("md0", "9:0", ["nvme1n1", "nvme2n1"])
    host.mount("21 20 9:0 / /data rw - xfs /dev/md0 rw")
    assert host.identify("/data") == Mount("/data", "md0", "xfs", "nvme-tcp", shared=False)


def test_raid_over_different_disks_is_mixed(host: Host) -> None:
    """A member on TCP and one on PCIe: no single transport is true."""
    host.nvme("nvme1", "tcp", "nvme1n1", "259:1")
    host.nvme("nvme2", "pcie", "nvme2n1", "259:2")
    host.stack("md0", "9:0", ["nvme1n1", "nvme2n1"])
    host.mount("21 20 9:0 / /data rw - xfs /dev/md0 rw")
    assert host.identify("/data").transport == "mixed"


def test_encrypted_volume_over_raid_has_its_mapped_name(host: Host) -> None:
    """dm-crypt on md on a partition of an NVMe disk: resolved through every layer, shown by its own name."""
    host.nvme("nvme0", "pcie", "nvme0n1", "259:0")
    host.block("pci0000:00/0000:00:04.0/nvme/nvme0/nvme0n1/nvme0n1p3", "259:3", partition=True)
    host.stack("md1", "9:1", ["nvme0n1p3"])
    host.stack("dm-0", "253:0", ["md1"], mapped="vault")
    host.mount("21 20 253:0 / /data rw - xfs /dev/mapper/vault rw")
    assert host.identify("/data") == Mount("/data", "vault", "xfs", "nvme-pcie", shared=False)


@pytest.mark.parametrize("source", ["/dev/nvme0n1", "/dev/mapper/pool"])
def test_btrfs_is_found_by_its_source(host: Host, source: str) -> None:
    """A btrfs has an anonymous device number; the mount source leads to the disk."""
    host.nvme("nvme0", "rdma", "nvme0n1", "259:0")
    host.stack("dm-3", "253:3", ["nvme0n1"], mapped="pool")
    host.mount(f"21 20 0:52 /@sub /data rw - btrfs {source} rw,subvol=/@sub")
    assert host.identify("/data").transport == "nvme-rdma"
    assert host.identify("/data").device == source.rsplit("/", 1)[1]


def test_btrfs_over_several_disks_looks_at_all(host: Host) -> None:
    """The mount names one disk of the pool, sysfs all of them."""
    host.nvme("nvme0", "rdma", "nvme0n1", "259:0")
    host.block("pci0000:00/ata1/host0/target0:0:0/0:0:0:0/block/sdb", "8:16")
    for name in ("nvme0n1", "sdb"):
        host.link(f"fs/btrfs/0b5a-uuid/devices/{name}", f"class/block/{name}")
    host.mount("21 20 0:52 / /data rw - btrfs /dev/nvme0n1 rw")
    assert host.identify("/data").transport == "mixed"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("21 20 0:40 / /d rw - tmpfs tmpfs rw", Mount("/d", "tmpfs", "tmpfs", "memory", shared=False)),
        ("21 20 0:40 / /d rw - nfs4 srv:/exp rw", Mount("/d", "srv:/exp", "nfs4", "nfs", shared=True)),
        ("21 20 0:40 / /d rw - cifs //srv/x rw", Mount("/d", "//srv/x", "cifs", "cifs", shared=True)),
        (
            "21 20 0:40 / /d rw - lustre 10.0.0.1@o2ib:/fs rw",
            Mount("/d", "10.0.0.1@o2ib:/fs", "lustre", "lustre", shared=True),
        ),
        (
            "21 20 0:40 / /d rw - fuse.sshfs me@h:/x rw",
            Mount("/d", "me@h:/x", "fuse.sshfs", "fuse", shared=True),
        ),
        ("21 20 0:40 / /d rw - virtiofs share rw", Mount("/d", "share", "virtiofs", "virtiofs", shared=True)),
        ("21 20 0:40 / /d rw - zfs tank/ck rw", Mount("/d", "tank/ck", "zfs", "zfs", shared=False)),
        ("21 20 0:40 / /d rw - wekafs w/fs rw", Mount("/d", "w/fs", "wekafs", "unknown", shared=True)),
        ("21 20 8:99 / /d rw - ext4 /dev/sdz rw", Mount("/d", "sdz", "ext4", "unknown", shared=False)),
    ],
)
def test_transport_by_file_system(host: Host, line: str, expected: Mount) -> None:
    """Network and memory file systems are named by their type, a disk that sysfs does not know is unknown."""
    host.mount(line)
    assert host.identify("/d/ckpt") == expected


def test_overlay_takes_the_device_of_its_upper_directory(host: Host) -> None:
    """New bytes of an overlay land in its upper directory, here with a comma in its name."""
    host.nvme("nvme0", "pcie", "nvme0n1", "259:0")
    host.mount("21 20 259:0 / /var rw - ext4 /dev/nvme0n1 rw")
    host.mount(
        r"22 20 0:60 / /merged rw - overlay overlay rw,lowerdir=/l,upperdir=/var/a\054b,workdir=/var/w"
    )
    assert host.identify("/merged/x") == Mount("/merged", "nvme0n1", "overlay", "nvme-pcie", shared=False)


def test_overlay_root_of_a_container_stays_an_overlay(tmp_path: Path) -> None:
    """Seen from inside, the upper directory is a path of the host and leads back to the overlay itself."""
    host = Host(tmp_path)
    host.mount("20 1 0:60 / / rw - overlay overlay rw,lowerdir=/l,upperdir=/var/lib/c/upper,workdir=/w")
    assert host.identify("/ckpt") == Mount("/", "overlay", "overlay", "overlay", shared=False)


def test_bind_mount_and_mount_over_it(host: Host) -> None:
    """A bind mount has the device of what it shows, until another file system is mounted over it."""
    host.nvme("nvme0", "tcp", "nvme0n1", "259:0")
    host.mount("21 20 259:0 /jobs/7 /ckpt rw - xfs /dev/nvme0n1 rw")
    assert host.identify("/ckpt/a").transport == "nvme-tcp"
    host.mount("22 21 0:70 / /ckpt rw - tmpfs tmpfs rw")
    assert host.identify("/ckpt/a").transport == "memory"


def test_mount_point_with_a_space(host: Host) -> None:
    """A name that the table escapes is found and given back as it is."""
    host.mount(r"21 20 0:70 / /my\040ckpt rw - tmpfs tmpfs rw")
    assert host.identify("/my ckpt/step 1").mountpoint == "/my ckpt"


def test_no_mount_table_is_unknown(tmp_path: Path) -> None:
    """Without a readable /proc nothing is known, and nothing fails."""
    mount = identify("/x", proc=str(tmp_path / "none"), sys=str(tmp_path / "none"))
    assert (mount.device, mount.fstype, mount.transport) == ("unknown", "unknown", "unknown")


# --- counters -------------------------------------------------------------------------------------------


def test_dirty_bytes_are_reclaimable_plus_writeback(host: Host) -> None:
    """The kernel's kB are 1024 bytes: 300 kB dirty and 20 kB under way are 327,680 bytes."""
    host.write(
        "kernel/debug/bdi/259:0/stats",
        "BdiWriteback:               20 kB\nBdiReclaimable:            300 kB\nBdiDirtyThresh:   4823696 kB",
    )
    assert read_dirty_bytes("259:0", sys=str(host.sys)) == 320 * 1024
    assert read_dirty_bytes("259:1", sys=str(host.sys)) is None
    assert read_dirty_bytes(None, sys=str(host.sys)) is None


def test_dirty_bytes_in_an_unknown_format_are_unknown(host: Host) -> None:
    """A missing field or another unit is not taken for zero."""
    host.write("kernel/debug/bdi/8:0/stats", "BdiReclaimable: 300 kB")
    host.write("kernel/debug/bdi/8:1/stats", "BdiReclaimable: 3 pages\nBdiWriteback: 1 pages")
    assert read_dirty_bytes("8:0", sys=str(host.sys)) is None
    assert read_dirty_bytes("8:1", sys=str(host.sys)) is None


def test_written_bytes_of_a_pool_need_every_member() -> None:
    """Members add up; with one counter missing the sum would be too small, so it is unknown."""
    counters = {"sda": 100, "sdb": 23}
    assert sum_written(["sda", "sdb"], counters.get) == 123
    assert sum_written(["sda", "sdc"], counters.get) is None
    assert sum_written([], counters.get) is None


def statvfs_answer(available: int = 1, blocks: int = 10, unit: int = 4096) -> os.statvfs_result:
    """Build a statvfs answer; the reserve makes free blocks more than available ones."""
    return SimpleNamespace(  # type: ignore[return-value]
        f_frsize=unit, f_bsize=unit, f_bavail=available, f_blocks=blocks, f_bfree=blocks
    )


def test_space_is_what_an_unprivileged_writer_has() -> None:
    """f_bavail and f_blocks times the fragment size; 0 available really is full."""
    assert read_space("/x", lambda path: statvfs_answer(3, 10, 4096)) == (12288, 40960)
    assert read_space("/x", lambda path: statvfs_answer(0, 10, 4096)) == (0, 40960)


def test_file_system_that_counts_no_blocks_has_unknown_space() -> None:
    """A size of zero means that nothing is counted, not that nothing is free."""
    assert read_space("/x", lambda path: statvfs_answer(0, 0)) is None


# --- the source -----------------------------------------------------------------------------------------


class Bench:
    """A source on a fake clock and fake host, with what it published and emitted."""

    def __init__(
        self, host: Host, directories: dict[str, str], statvfs: Callable[[str], os.statvfs_result]
    ) -> None:
        self.now = 1000.0
        self.saving: set[str] = set()
        self.published: list[StorageStatus] = []
        self.emitted: list[Space] = []
        self.written: dict[str, int] = {}
        self.source = StorageSource(
            [DirectorySettings(name, path) for name, path in directories.items()],
            publish=self.published.append,
            emit=self.emitted.append,  # type: ignore[arg-type]
            clock=lambda: self.now,
            saving=lambda name: name in self.saving,
            proc=str(host.proc),
            sys=str(host.sys),
            statvfs=statvfs,
            written_bytes=lambda: self.written,
        )

    def tick(self, expected: int) -> None:
        """Run one round and wait for that many more published answers."""
        goal = len(self.published) + expected
        self.source.tick()
        wait_for(lambda: len(self.published) >= goal and not self.busy())

    def busy(self) -> bool:
        """Tell if a worker is still at work on a mount that answers."""
        return any(w.busy and not w.is_stuck(self.now) for w in self.source._workers.values())

    def latest(self, name: str) -> StorageStatus:
        """Return a directory's newest status."""
        return [status for status in self.published if status.directory == name][-1]


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, at most 10 s."""
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in 10 s"
        time.sleep(0.002)


def storage_threads() -> int:
    """Count the worker threads."""
    return sum(thread.name.startswith("storage ") for thread in threading.enumerate())


def test_source_publishes_mount_space_and_device_counter(host: Host) -> None:
    """One round gives a directory's mount, free and total bytes and its device's written bytes."""
    host.nvme("nvme0", "tcp", "nvme0n1", "259:0")
    host.mount("21 20 259:0 / /data rw - xfs /dev/nvme0n1 rw")
    host.write("kernel/debug/bdi/259:0/stats", "BdiWriteback: 0 kB\nBdiReclaimable: 8 kB")
    bench = Bench(host, {"llama": "/data/ckpt"}, lambda path: statvfs_answer(5, 10, 4096))
    bench.written = {"nvme0n1": 777, "sda": 1}
    bench.tick(1)
    assert bench.published == [
        StorageStatus(
            directory="llama",
            mount=Mount("/data", "nvme0n1", "xfs", "nvme-tcp", shared=False),
            available_bytes=20480,
            size_bytes=40960,
            device_written_bytes=777,
            dirty_bytes=8192,
        )
    ]
    assert bench.emitted == [Space(1000.0, "llama", available=20480, size=40960)]
    bench.source.stop()


def test_source_asks_every_15_seconds_and_every_second_while_saving(host: Host) -> None:
    """Free space matters while a save is open; between saves one question in 15 s is enough."""
    bench = Bench(host, {"a": "/ckpt"}, lambda path: statvfs_answer())
    bench.tick(1)
    for now, expected in ((1001, 0), (1014.9, 0), (1015, 1), (1016, 0)):
        bench.now = now
        bench.tick(expected)
    assert len(bench.published) == 2
    bench.saving.add("a")
    for now in (1017, 1018, 1019):
        bench.now = now
        bench.tick(1)
    assert len(bench.published) == 5
    bench.source.stop()


def test_directory_that_does_not_exist_has_a_mount_but_no_space(host: Host, tmp_path: Path) -> None:
    """The mount is known from the text of the path; free space is not guessed from the mount point."""
    host.mount(f"21 20 0:44 / {tmp_path} rw - tmpfs tmpfs rw")
    bench = Bench(host, {"a": f"{tmp_path}/not/yet"}, os.statvfs)
    bench.tick(1)
    assert bench.published == [
        StorageStatus("a", Mount(str(tmp_path), "tmpfs", "tmpfs", "memory", shared=False))
    ]
    assert bench.emitted == []
    bench.source.stop()


def test_wildcard_path_is_asked_at_its_fixed_part(host: Host) -> None:
    """/data/*/ckpt is on the file system of /data."""
    asked: list[str] = []

    def statvfs(path: str) -> os.statvfs_result:
        asked.append(path)
        return statvfs_answer()

    bench = Bench(host, {"a": "/data/*/ckpt"}, statvfs)
    bench.tick(1)
    assert asked == ["/data"]
    bench.source.stop()


def test_dead_mount_stops_only_itself(host: Host) -> None:
    """Twenty rounds against a mount that never answers: one call, one waiting thread, flat descriptors.

    The dead mount's directories are published with unknown space, the other directory stays fresh, and when
    the mount answers at last its space is known again.
    """
    host.mount("21 20 0:40 / /mnt/bad rw - nfs4 server:/export rw")
    release = threading.Event()
    calls: list[str] = []

    def statvfs(path: str) -> os.statvfs_result:
        calls.append(path)
        if path.startswith("/mnt/bad") and not release.wait(60):
            raise TimeoutError
        return statvfs_answer(available=len(calls))

    before = storage_threads()
    bench = Bench(host, {"bad": "/mnt/bad/a", "bad2": "/mnt/bad/b", "good": "/good"}, statvfs)
    bench.saving = {"bad", "bad2", "good"}
    good_rounds = 0

    def one_round() -> None:
        bench.source.tick()
        wait_for(lambda: [s.directory for s in bench.published].count("good") == good_rounds)
        wait_for(lambda: not bench.source._workers["/", 20].busy and "/mnt/bad/a" in calls)

    good_rounds = 1
    one_round()
    descriptors = len(os.listdir("/proc/self/fd"))
    for second in range(1, 21):
        bench.now = 1000.0 + second
        good_rounds += 1
        one_round()
        assert bench.latest("good").available_bytes is not None
    assert calls.count("/mnt/bad/a") == 1
    assert calls.count("/mnt/bad/b") == 0
    assert calls.count("/good") == 21
    assert storage_threads() - before == 2
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    for name in ("bad", "bad2"):
        assert bench.latest(name).available_bytes is None
        assert bench.latest(name).mount == Mount("/mnt/bad", "server:/export", "nfs4", "nfs", shared=True)
    # Unknown from the fifth second on, and never before: rounds 5 to 20.
    assert sum(status.directory == "bad" for status in bench.published) == 16
    release.set()
    wait_for(lambda: bench.latest("bad").available_bytes is not None)
    wait_for(lambda: bench.latest("bad2").available_bytes is not None)
    bench.source.stop()


def test_silent_mount_is_published_as_unknown_before_the_next_question(host: Host) -> None:
    """Five seconds after the call, not 15: the old figure must not stand for long."""
    release = threading.Event()
    bench = Bench(host, {"a": "/ckpt"}, lambda path: statvfs_answer(available=int(release.wait(60))))
    bench.source.tick()
    wait_for(lambda: bench.source._workers["/", 20]._call_started is not None)
    bench.now = 1005.0
    bench.source.tick()
    assert [status.available_bytes for status in bench.published] == [None]
    bench.now = 1006.0
    bench.source.tick()
    assert len(bench.published) == 1
    release.set()
    wait_for(lambda: len(bench.published) == 2)
    bench.source.stop()


def test_mount_that_came_back_under_the_same_name_is_asked_by_a_new_worker(host: Host) -> None:
    """A dead mount that was detached and mounted anew answers, although the old call still waits."""
    host.mount("21 20 0:40 / /mnt/n rw - nfs4 server:/export rw")
    release = threading.Event()
    calls: list[str] = []

    def statvfs(path: str) -> os.statvfs_result:
        calls.append(path)
        if len(calls) == 1:
            release.wait(60)
        return statvfs_answer()

    bench = Bench(host, {"a": "/mnt/n"}, statvfs)
    bench.source.tick()
    wait_for(lambda: len(calls) == 1)
    (host.proc / "self" / "mountinfo").write_text(
        ROOT_LINE + "35 20 0:41 / /mnt/n rw - nfs4 server:/export rw\n"
    )
    bench.now = 1015.0
    bench.source.tick()
    wait_for(lambda: bool(bench.published) and bench.published[-1].available_bytes is not None)
    release.set()
    wait_for(lambda: not any(worker.busy for worker in bench.source._workers.values()))
    bench.source.stop()


def test_slow_mount_is_not_asked_again_before_it_answered(host: Host) -> None:
    """A call that takes four seconds is one call, although a save asks every second; nothing is queued."""
    release = threading.Event()
    calls: list[str] = []

    def statvfs(path: str) -> os.statvfs_result:
        calls.append(path)
        release.wait(60)
        return statvfs_answer()

    bench = Bench(host, {"a": "/ckpt"}, statvfs)
    bench.saving.add("a")
    for second in range(5):
        bench.now = 1000.0 + second
        bench.source.tick()
        wait_for(lambda: len(calls) == 1)
    release.set()
    wait_for(lambda: not bench.busy())
    assert len(calls) == 1
    assert len(bench.published) == 1
    bench.source.stop()


def test_link_turned_to_another_mount_counts_at_the_next_round(host: Host, tmp_path: Path) -> None:
    """A configured link that is pointed at another file system is published with that one at once."""
    for index, name in enumerate(("old", "new")):
        (tmp_path / name).mkdir()
        host.mount(f"{21 + index} 20 0:{40 + index} / {tmp_path}/{name} rw - tmpfs tmpfs rw")
    link = tmp_path / "link"
    link.symlink_to("old")
    bench = Bench(host, {"a": str(link)}, lambda path: statvfs_answer())
    bench.tick(1)
    link.unlink()
    link.symlink_to("new")
    bench.now = 1015.0
    bench.tick(1)
    mounts = [status.mount.mountpoint for status in bench.published if status.mount is not None]
    assert mounts == [f"{tmp_path}/old", f"{tmp_path}/new"]
    bench.source.stop()


def test_dead_mounts_without_end_leave_a_bounded_number_of_threads(host: Host) -> None:
    """A mount that dies, is detached, comes back and dies again, 70 times: 64 calls wait, no more.

    The directory is published all the same, its space unknown.
    """
    release = threading.Event()
    calls: list[str] = []

    def statvfs(path: str) -> os.statvfs_result:
        calls.append(path)
        release.wait(60)
        return statvfs_answer()

    bench = Bench(host, {"a": "/mnt/n"}, statvfs)
    for life in range(70):
        line = f"{100 + life} 20 0:{100 + life} / /mnt/n rw - nfs4 server:/export rw\n"
        (host.proc / "self" / "mountinfo").write_text(ROOT_LINE + line)
        bench.now = 1000.0 + 15 * life
        bench.source.tick()
        asked = min(64, life + 1)
        wait_for(lambda asked=asked: len(calls) == asked)  # type: ignore[misc]
    assert storage_threads() == 64
    assert [status.available_bytes for status in bench.published] == [None] * 6
    release.set()
    wait_for(lambda: not any(worker.busy for worker in bench.source._workers.values()))
    bench.source.stop()
    wait_for(lambda: storage_threads() == 0)


@pytest.mark.parametrize(
    ("path", "fixed"),
    [("/a/b", "/a/b"), ("/a/*/b", "/a"), ("/a/b*", "/a"), ("/**/x", "/"), ("/a/b/", "/a/b")],
)
def test_fixed_part_of_a_path(path: str, fixed: str) -> None:
    """Everything above the first component with a wildcard."""
    assert fixed_part(path) == fixed


def test_link_on_a_shared_mount_is_followed_by_its_worker(host: Host, tmp_path: Path) -> None:
    """What a link on a network mount points at is found by the worker and used from the next round on."""
    (tmp_path / "net").mkdir()
    (tmp_path / "disk").mkdir()
    (tmp_path / "net" / "ckpt").symlink_to(tmp_path / "disk")
    host.mount(f"21 20 0:40 / {tmp_path}/net rw - nfs4 server:/export rw")
    host.mount(f"22 20 0:41 / {tmp_path}/disk rw - tmpfs tmpfs rw")
    bench = Bench(host, {"a": f"{tmp_path}/net/ckpt"}, lambda path: statvfs_answer())
    bench.tick(1)
    bench.now = 1015.0
    bench.tick(1)
    mounts = [status.mount.transport for status in bench.published if status.mount is not None]
    assert mounts == ["nfs", "memory"]
    bench.source.stop()


def test_thread_starts_reports_health_and_stops_with_a_stuck_worker(host: Host) -> None:
    """Stopping does not wait for a dead mount, and nothing is published afterwards."""
    release = threading.Event()
    entered = threading.Event()

    def statvfs(path: str) -> os.statvfs_result:
        entered.set()
        release.wait(60)
        return statvfs_answer()

    bench = Bench(host, {"a": "/ckpt"}, statvfs)
    assert not bench.source.healthy
    bench.source.start()
    assert entered.wait(10)
    assert bench.source.healthy
    bench.source.stop(timeout=1.0)
    assert not bench.source.healthy
    release.set()
    wait_for(lambda: not any(worker.busy for worker in bench.source._workers.values()))
    assert bench.published == []


def test_failing_round_is_unhealthy_until_the_next_good_one(host: Host) -> None:
    """An unexpected error neither ends the thread nor goes unseen."""
    bench = Bench(host, {"a": "/ckpt"}, lambda path: statvfs_answer())
    rounds: list[int] = []
    broken = threading.Event()
    broken.set()

    def saving(name: str) -> bool:
        rounds.append(1)
        if broken.is_set():
            raise RuntimeError("ledger gone")
        return True

    bench.source._saving = saving
    bench.source.start()
    wait_for(lambda: bool(rounds) and not bench.source.healthy)
    broken.clear()
    wait_for(lambda: bench.source.healthy)
    bench.source.stop()


def test_replaced_directories_are_published_and_unused_workers_end(host: Host) -> None:
    """After a reload the new directories are asked and the old mount's thread goes away."""
    host.mount("21 20 0:40 / /old rw - tmpfs tmpfs rw")
    bench = Bench(host, {"a": "/old/x"}, lambda path: statvfs_answer())
    bench.tick(1)
    bench.source.replace_directories([DirectorySettings("b", "/new")])
    bench.tick(1)
    assert bench.published[-1].directory == "b"
    assert set(bench.source._workers) == {("/", 20)}
    bench.source.stop()
