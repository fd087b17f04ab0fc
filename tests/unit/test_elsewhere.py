"""Saves of other hosts: noticed by looks at a file server, charged here, counted there."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from ckpt_exporter.analysis.job_saves import job_saves
from ckpt_exporter.analysis.report import report_data
from ckpt_exporter.history.gathering import save_record, with_bubble
from ckpt_exporter.history.rows import SAVE_COLUMNS, save_of, save_row
from ckpt_exporter.model import DetectSettings, DirectorySettings, FileEvent, Progress, WatchChange
from ckpt_exporter.recording import Recorder
from ckpt_exporter.replay import as_json, replay
from tests.gpu_profiles import Noise, Profile, Stop, job
from tests.shared_server import ROOT, UNIX, Node, Server, checkpoint
from tests.unit.measured import measurements
from tests.unit.measured import save_record as written_record

TWO = (0, 1)


def gpus(*stops: tuple[float, float], seconds: float = 420.0, known: bool = False) -> Profile:
    """Two GPUs that wait in a collective now and then; ``known``: their run has written here before."""
    return Profile(
        "two", seconds, gpus=2, noise=Noise(), writers=(job(TWO),) if known else (),
        stops=tuple(Stop(TWO, start, end, "spin") for start, end in stops),
    )  # fmt: skip


def local_file(name: str, begin: float, end: float, size: int) -> list[FileEvent | Progress]:
    """Tell what the watch tells of one file that this host writes."""
    path = f"{ROOT}/{name}"
    events: list[FileEvent | Progress] = [FileEvent(begin, "create", path, size=0, inode="0:43:7")]
    events += [Progress(begin + 1.0, path, size // 2, position=size // 2, writers=1)]
    return [*events, FileEvent(end, "close_write", path, size=size, inode="0:43:7", modified=end)]


@pytest.mark.parametrize("skew", [-300.0, 0.0, 1.5, 300.0])
def test_a_dip_during_another_hosts_save_is_that_saves_bubble(skew: float) -> None:
    """2 GPUs without work for 40 s while rank 0 saves elsewhere: bubbles of 40 s, whatever the clocks."""
    server = Server(skew=skew)
    node = Node(server, checkpoint(server, "checkpoint-700", 151.0, 188.0), gpus((150.0, 190.0))).run(400.0)
    assert node.gpu_seconds == pytest.approx([40.0, 40.0], rel=0.03)
    assert node.stalled("checkpoint_save") == pytest.approx(80.0, rel=0.03)
    assert node.stalled("communication") == 0
    entry = node.ledger.snapshot(400.0).directories[0]
    assert entry.remote_saves == {"complete": 1, "incomplete": 0, "aborted": 0}
    assert (entry.saves["complete"], entry.save_bytes, entry.save_files, entry.written_bytes) == (0, 0, 0, 0)
    assert entry.duration.counts == (0,) * len(entry.duration.counts)
    save = node.remote[0]
    assert (save.step, save.layout, save.result) == (700, "hf_trainer", "complete")
    # The first change bounds the clocks by the distance of two looks, a save's changes by less than a second.
    assert entry.server_clock_offset_seconds == pytest.approx(skew, abs=1.0)
    assert save.start == pytest.approx(151.0, abs=5.1)
    assert save.end == pytest.approx(188.0, abs=1.0)


def test_clocks_that_agree_give_exact_times() -> None:
    """With a file server that keeps this node's time, start and end are those of the files."""
    server = Server()
    node = Node(server, checkpoint(server, "checkpoint-7", 151.0, 188.0)).run(300.0)
    assert (node.remote[0].start, node.remote[0].end) == pytest.approx((151.0, 187.98), abs=0.02)
    assert node.ledger.snapshot(300.0).directories[0].server_clock_offset_seconds == 0


def test_looks_that_come_late_still_charge_the_dip() -> None:
    """With looks half a minute apart, a dip of 12 s between two waits for the next, and is the save's."""
    server = Server(skew=-40.0)
    actions = checkpoint(server, "checkpoint-1", 152.0, 163.0)
    node = Node(server, actions, gpus((151.0, 163.5)), interval=30.0).run(400.0)
    assert node.gpu_seconds == pytest.approx([12.5, 12.5], rel=0.03)
    assert node.stalled("communication") == 0


def test_a_dip_without_any_save_keeps_its_cause() -> None:
    """A collective that waits while nobody saves is communication, told once no look can speak against it."""
    server = Server()
    node = Node(server, checkpoint(server, "checkpoint-1", 300.0, 310.0), gpus((150.0, 170.0))).run(400.0)
    assert node.gpu_seconds == pytest.approx([0.0, 0.0], abs=0.1)
    assert node.stalled("communication") == pytest.approx(40.0, rel=0.03)


def test_a_save_of_two_hosts_is_one_save_and_its_dip_is_paid_once() -> None:
    """Shards of this host end at 160, of another at 186: one save here, charged to the end of the dip."""
    server = Server(skew=300.0)
    actions = checkpoint(server, "checkpoint-9", 151.0, 186.0)
    mine = local_file("checkpoint-9/model-mine.safetensors", 151.5, 160.0, 1 << 30)
    actions += [(150.9 + 0.6, lambda: server.write(f"{ROOT}/checkpoint-9/model-mine.safetensors", 1 << 30))]
    node = Node(server, actions, gpus((150.0, 187.0)), local=list(mine)).run(400.0)
    entry = node.ledger.snapshot(400.0).directories[0]
    assert (entry.saves["complete"], entry.save_bytes, entry.save_files) == (1, 1 << 30, 1)
    assert entry.remote_saves == {"complete": 0, "incomplete": 0, "aborted": 0}
    assert [bubble.save_end for bubble in node.bubbles] == [160.0]
    assert node.gpu_seconds == pytest.approx([37.0, 37.0], rel=0.03)
    # The other host's bytes flow to 186: nothing of the dip but its last second comes after the last byte.
    assert entry.bubble_phase_seconds["after_write"] < 6.5
    assert sum(entry.bubble_phase_seconds.values()) == pytest.approx(37.0, rel=0.03)
    assert entry.bubble is not None
    assert sum(entry.bubble.counts) == 1


def test_what_this_host_writes_is_no_other_hosts_save() -> None:
    """A save by this host alone is met by the looks too; nothing of another host is waited for after it."""
    server = Server()
    name = "checkpoint-3/pytorch_model.bin"
    actions = [
        (150.0, lambda: server.mkdir(f"{ROOT}/checkpoint-3")),
        (150.1, lambda: server.write(f"{ROOT}/{name}", 1 << 29)),
        (158.0, lambda: server.write(f"{ROOT}/{name}", 1 << 30)),
    ]
    node = Node(server, actions, gpus((150.0, 158.0)), local=list(local_file(name, 150.1, 158.0, 1 << 30)))
    node.run(300.0)
    entry = node.ledger.snapshot(300.0).directories[0]
    assert entry.saves["complete"] == 1
    assert entry.remote_saves == {"complete": 0, "incomplete": 0, "aborted": 0}
    assert node.gpu_seconds == pytest.approx([8.0, 8.0], rel=0.03)
    # A second look after its end, not the half minute of quiet that another host's files would be given.
    assert node.told_at[0] < 158.0 + 25.0


def test_two_saves_of_other_hosts_at_once_share_the_dip() -> None:
    """Saves of 150..180 and 165..200, GPUs without work for 50 s: the two bubbles make 50 s, not 65."""
    server = Server()
    actions = checkpoint(server, "checkpoint-1", 150.0, 180.0) + checkpoint(
        server, "checkpoint-2", 165.0, 200.0
    )
    node = Node(server, actions, gpus((150.0, 200.0))).run(400.0)
    assert node.ledger.snapshot(400.0).directories[0].remote_saves == {
        "complete": 2, "incomplete": 0, "aborted": 0,
    }  # fmt: skip
    assert len(node.bubbles) == 2
    assert node.gpu_seconds == pytest.approx([50.0, 50.0], rel=0.03)


@pytest.mark.parametrize("seconds", [3.0, 37.0])
def test_a_staged_checkpoint_is_one_save_under_its_final_name(seconds: float) -> None:
    """tmp-checkpoint-5 renamed to checkpoint-5, between two looks or over many, is one complete save."""
    server = Server(skew=-300.0)
    node = Node(server, checkpoint(server, "checkpoint-5", 151.0, 151.0 + seconds, staged=True)).run(300.0)
    assert [(save.path, save.result, save.step) for save in node.remote] == [
        (f"{ROOT}/checkpoint-5", "complete", 5)
    ]
    assert node.remote[0].end == pytest.approx(151.0 + seconds, abs=5.1)


def test_files_seen_to_rest_only_under_the_final_name_belong_to_the_one_save() -> None:
    """A rename just after the last bytes, with one look between both, leaves one save."""
    server = Server()  # looks come at 0.37 s after each other second, also at 132.37: between both
    actions = checkpoint(server, "checkpoint-5", 128.0, 132.375, staged=True)
    node = Node(server, actions, interval=2.0).run(300.0)

    assert [(save.path, save.result, save.step) for save in node.remote] == [
        (f"{ROOT}/checkpoint-5", "complete", 5)
    ]
    assert node.remote[0].end == pytest.approx(132.375, abs=0.01)


def test_files_overwritten_under_the_same_name_are_a_save_each() -> None:
    """last.ckpt renamed into place three times, always of the same size, is three saves."""
    server = Server()
    actions = []
    for begin in (50.0, 150.0, 250.0):
        actions += [
            (begin, lambda: server.write(f"{ROOT}/last.ckpt.tmp", 1 << 30)),
            (begin + 4.0, lambda: server.rename(f"{ROOT}/last.ckpt.tmp", f"{ROOT}/last.ckpt")),
        ]
    node = Node(server, actions).run(400.0)
    assert [save.result for save in node.remote] == ["complete"] * 3
    assert [save.end for save in node.remote] == pytest.approx([54.0, 154.0, 254.0], abs=5.1)


def test_a_file_written_over_in_place_is_a_save() -> None:
    """An old last.ckpt that another host opens and writes anew, with no new name anywhere, is noticed."""
    server = Server()
    server.write(f"{ROOT}/last.ckpt", 1 << 30)
    actions = [(150.0 + i, partial(server.write, f"{ROOT}/last.ckpt", i << 26)) for i in range(1, 17)]
    node = Node(server, actions).run(400.0)
    assert [save.result for save in node.remote] == ["complete"]
    assert node.remote[0].end == pytest.approx(166.0, abs=0.1)


def test_what_was_there_at_the_start_is_no_save() -> None:
    """Two hundred checkpoints on disk, none of them touched, are none noticed."""
    server = Server(skew=60.0)
    for i in range(200):
        for _, act in checkpoint(server, f"checkpoint-{i}", 0.0, 1.0):
            act()
    node = Node(server, []).run(120.0)
    assert node.remote == []


def test_a_deletion_by_another_host_is_counted_there() -> None:
    """Retention of another host leaves one checkpoint less on disk, and no deletion of this host."""
    server = Server()
    actions = [
        *checkpoint(server, "checkpoint-1", 50.0, 60.0),
        *checkpoint(server, "checkpoint-2", 70.0, 80.0),
    ]
    node = Node(server, actions)
    # The watch's own scans find one gone without an event, and the other with one.
    for t, number, local in ((150.0, 1, False), (160.0, 2, True)):
        path = f"{ROOT}/checkpoint-{number}"
        node.local.append(FileEvent(t, "deleted", path, is_dir=True, found=not local, local=local))
    scanned = WatchChange(1.0, "d", "rescan", "start")
    node.local.append(scanned)
    seen = []
    for until in (140.0, 155.0, 200.0):
        node.run(until) if until == 140.0 else node._feed(until)
        entry = node.ledger.snapshot(until).directories[0]
        seen.append((entry.retained_checkpoints, entry.deleted_checkpoints))
    assert seen == [(2, 0), (1, 0), (0, 1)]


def test_a_server_that_stops_to_answer_leaves_no_save_open_for_ever() -> None:
    """A save seen begun, then no answer: the stall of 20 s an hour later is told, and is not that save's."""
    server = Server()
    actions = checkpoint(server, "checkpoint-1", 100.0, 190.0)
    actions += [(120.0, lambda: setattr(server, "hangs", True))]
    node = Node(server, actions, gpus((700.0, 720.0), seconds=900.0)).run(880.0)
    assert node.gpu_seconds == pytest.approx([0.0, 0.0], abs=0.1)
    assert node.stalled("communication") == pytest.approx(40.0, rel=0.03)


def test_only_the_gpus_of_the_run_known_here_pay() -> None:
    """A run that wrote here before holds GPU 0: another host's save costs GPU 1 nothing, though it stood."""
    server = Server()
    profile = Profile(
        "one", 420.0, gpus=2, noise=Noise(), writers=(job((0,)),), stops=(Stop(TWO, 150.0, 180.0, "spin"),)
    )
    node = Node(server, checkpoint(server, "checkpoint-2", 150.0, 179.0), profile).run(400.0)
    assert node.gpu_seconds == pytest.approx([30.0, 0.0], rel=0.03)


def test_looks_are_few_when_nothing_happens_and_never_beyond_the_limit() -> None:
    """With 200 checkpoints kept, ten minutes without a save cost about two calls a second at most."""
    server = Server()
    for i in range(200):
        for _, act in checkpoint(server, f"checkpoint-{i}", 0.0, 1.0):
            act()
    node = Node(server, []).run(60.0)
    begun = node.budget.calls
    node.run(660.0)
    assert (node.budget.calls - begun) / 600.0 < 2.0


def test_a_directory_of_many_files_is_looked_at_within_the_limit() -> None:
    """A save of 500 shards is noticed whole with 20 calls a second, and its end is the last shard's."""
    server = Server()
    actions = checkpoint(server, "checkpoint-1", 100.0, 130.0, files=500, size=1 << 22)
    node = Node(server, actions).run(500.0)
    assert [save.result for save in node.remote] == ["complete"]
    assert node.remote[0].end == pytest.approx(129.98, abs=0.1)
    assert node.budget.calls <= 20 * 500


def test_a_recording_of_a_node_that_waits_gives_the_same_again(tmp_path: Path) -> None:
    """What the looks told is in the recording: replayed, the other host's save and its bubble come out."""
    server = Server(skew=-300.0)
    node = Node(server, checkpoint(server, "checkpoint-700", 151.0, 188.0), gpus((150.0, 190.0))).run(400.0)
    with (tmp_path / "recording.jsonl").open("w") as stream:
        recorder = Recorder(stream)
        recorder.start(0.0, UNIX, [DirectorySettings("d", ROOT)])
        for fact in node.facts:
            recorder.write(fact)
        recorder.stop(400.0, timeout_seconds=10)
    replayed = replay(str(tmp_path / "recording.jsonl"), DetectSettings())
    (found,) = as_json(replayed)["elsewhere"]
    assert (found["step"], found["result"], found["bytes"]) == (700, "complete", 0)
    assert found["end"] == pytest.approx(node.remote[0].end, abs=1e-5)
    assert found["bubble_gpu_seconds"] == pytest.approx(80.0, rel=0.03)
    assert replayed.saves == []


def test_the_history_of_all_nodes_has_the_save_once_and_everyones_bubble() -> None:
    """One node wrote 65.6 GB on 8 GPUs in 38 s, two waited 40 s on 2 GPUs each: one save, 464 GPU-seconds."""
    kept = []
    for name in ("w1", "w2"):
        server = Server(skew=7.0)
        node = Node(server, checkpoint(server, "step-500", 1801.0, 1838.0), None)
        node.profile = gpus((1800.0, 1840.0), seconds=2000.0)
        node.run(1980.0)
        record = save_record(node.remote[0], name, 0.0, run=None, mount=None)
        record = with_bubble(record, node.bubbles[0], 0.0)
        kept.append(save_of(dict(zip(SAVE_COLUMNS, save_row(record), strict=True))))
    assert [record.elsewhere for record in kept] == [True, True]
    everyone = [written_record(1, 38.0), *kept]
    for record in kept:
        assert (record.directory, record.step, record.bytes) == ("d", 500, 0)
    everyone[0] = written_record(1, 38.0, directory="d", path=kept[0].path)
    (save,) = job_saves(everyone)
    assert (save.bytes, save.files, save.duration_seconds, save.nodes) == (65_600_000_000, 8, 38.0, ("n1",))
    data = report_data(measurements(everyone))
    assert (data["saves"]["count"], data["saves"]["results"]["complete"]) == (1, 1)
    assert data["bytes"]["total"] == 65_600_000_000
    assert data["bubble"]["gpu_seconds"] == pytest.approx(8 * 38 + 4 * 40, rel=0.02)
