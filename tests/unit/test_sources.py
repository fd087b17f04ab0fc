"""Where measurements come from: history files, their windows and selections, and what cannot be read."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ckpt_exporter.analysis.sources import read_measurements
from ckpt_exporter.cli import main
from ckpt_exporter.errors import CkptExporterError
from ckpt_exporter.history.database import HistoryDatabase
from ckpt_exporter.history.records import GpuTimeRecord, LoadRecord, SaveRecord, StallRecord
from tests.history_samples import (
    HOUR,
    HOURS,
    LOAD,
    MIDNIGHT,
    PLAIN,
    STALL,
    numbered,
    published_case,
)


def history(
    path: Path, *saves: SaveRecord, hours: tuple[GpuTimeRecord, ...] = (), loads: tuple[LoadRecord, ...] = (),
    stalls: tuple[StallRecord, ...] = (),
) -> str:  # fmt: skip
    """Write a history file; return its path."""
    database = HistoryDatabase(str(path))
    with database.transaction():
        for save in saves:
            database.add_save(save)
        for load in loads:
            database.add_load(load)
        for stall in stalls:
            database.add_stall(stall)
        database.add_gpu_time(hours)
    database.close()
    return str(path)


def message(**arguments: object) -> str:
    with pytest.raises(CkptExporterError) as caught:
        read_measurements(**arguments)  # type: ignore[arg-type]
    return str(caught.value)


class TestWindow:
    def test_of_the_records(self, tmp_path: Path) -> None:
        """Without a window it is as long as the records: from the GPUs' first hour to the last save."""
        early = GpuTimeRecord("n1", 0, "GPU-a", MIDNIGHT - HOUR, 600.0)
        found = read_measurements(history=[history(tmp_path / "h", numbered(90), hours=(early, *HOURS))])

        # In its first hour the GPU was observed for the last 600 s; save 90 ends at minute 91.
        assert (found.since_unix, found.until_unix) == (MIDNIGHT - 600, MIDNIGHT + 91 * 60)

    def test_given(self, tmp_path: Path) -> None:
        """Of an hour that the window cuts not more GPU time is taken than fits, stalls in proportion."""
        file = history(tmp_path / "h", numbered(10), numbered(70), hours=HOURS)
        found = read_measurements(history=[file], since=MIDNIGHT + 300.0, until=MIDNIGHT + 2100.0)

        assert [save.step for save in found.saves] == [10]
        assert (found.since_unix, found.until_unix) == (MIDNIGHT + 300, MIDNIGHT + 2100)
        assert [(hour.gpu, hour.observed_seconds) for hour in found.gpu_time] == [(0, 1800.0), (1, 1800.0)]
        assert found.gpu_time[0].stall_seconds == {"data_loading": 6.25}  # 12.5 s in 3600 s

    def test_of_a_run(self, tmp_path: Path) -> None:
        """The window of one run is that of its saves, by its name or its scheduler's id."""
        ours = replace(numbered(30), run="pretrain", run_id="4711")
        file = history(tmp_path / "h", numbered(10), ours, numbered(50), hours=HOURS)
        for run in ("pretrain", "4711"):
            found = read_measurements(history=[file], run=run)

            assert [save.step for save in found.saves] == [30]
            assert (found.since_unix, found.until_unix) == (MIDNIGHT + 1800, MIDNIGHT + 1860)
            assert [hour.observed_seconds for hour in found.gpu_time] == [60.0, 60.0]

    def test_of_a_run_between_others(self, tmp_path: Path) -> None:
        """A run's window begins before its first save, as a directory's does, but not with another run's."""
        ours = [replace(numbered(n), run="pretrain") for n in (30, 35, 40)]
        file = history(tmp_path / "h", numbered(2), *ours, numbered(58), hours=HOURS)
        found = read_measurements(history=[file], run="pretrain")

        # Of five minutes from save to save four are training: so many before the first one, too.
        assert (found.since_unix, found.until_unix) == (MIDNIGHT + 26 * 60, MIDNIGHT + 41 * 60)
        assert [hour.observed_seconds for hour in found.gpu_time] == [900.0, 900.0]
        alone = history(tmp_path / "alone", *ours, hours=HOURS)
        whole = read_measurements(history=[alone])
        of_run = read_measurements(history=[alone], run="pretrain")
        assert (of_run.since_unix, of_run.until_unix) == (whole.since_unix, whole.until_unix)

    def test_of_one_hour(self, tmp_path: Path) -> None:
        """A daemon that watched for minutes has a window of minutes, not from the beginning of the hour."""
        only = GpuTimeRecord("n1", 0, "GPU-a", MIDNIGHT, 300.0)
        found = read_measurements(
            history=[history(tmp_path / "h", numbered(20), numbered(22), hours=(only,))]
        )

        # The last save ends at minute 23, and the GPU was observed for 5 minutes.
        assert (found.since_unix, found.until_unix) == (MIDNIGHT + 18 * 60, MIDNIGHT + 23 * 60)
        assert [hour.observed_seconds for hour in found.gpu_time] == [300.0]

    def test_of_one_directory_among_others(self, tmp_path: Path) -> None:
        """Training beside another directory's saves is not in the window of one directory."""
        others = [replace(numbered(minute), directory="vision") for minute in (2, 4)]
        file = history(tmp_path / "h", *others, *map(numbered, (30, 35, 40)), hours=HOURS)
        found = read_measurements(history=[file], directory="llama")

        # 4 minutes of training lie between two saves, and as many before the first.
        assert (found.since_unix, found.until_unix) == (MIDNIGHT + 26 * 60, MIDNIGHT + 41 * 60)
        assert [hour.observed_seconds for hour in found.gpu_time] == [900.0, 900.0]
        assert read_measurements(history=[file], directory="llama", since=MIDNIGHT).since_unix == MIDNIGHT


class TestFiles:
    def test_several_nodes(self, tmp_path: Path) -> None:
        """Files of several nodes are read as one; a save that is in two of them counts once, and is said."""
        first = history(tmp_path / "n1", numbered(1), numbered(3), hours=HOURS)
        second = history(tmp_path / "n2", replace(numbered(2), node="n2"), numbered(3), hours=HOURS[:1])
        found = read_measurements(history=[first, second])

        assert [(save.node, save.step) for save in found.saves] == [("n1", 1), ("n2", 2), ("n1", 3)]
        assert len(found.gpu_time) == 2
        assert found.notes == ("1 saves are in more than one file and count once",)

    def test_node_without_saves(self, tmp_path: Path) -> None:
        """Of several files the one that holds no save is named: its node is missing in every sum."""
        first, second = history(tmp_path / "n1", numbered(1)), history(tmp_path / "n2")

        assert read_measurements(history=[first, second]).notes == (f"{second}: no save in the window",)

    def test_nothing_found(self, tmp_path: Path) -> None:
        """What is asked for and not there is said with what there is."""
        file = history(tmp_path / "h", PLAIN, replace(PLAIN, directory="vision", run="vit"))
        empty = history(tmp_path / "empty")

        assert message(history=[empty]) == f"{empty}: no save has been kept yet"
        assert message(history=[file], directory="lama") == (
            f"{file}: no save of the directory lama; there are llama, vision"
        )
        assert message(history=[file], run="x") == f"{file}: no save of the run x; there are vit"
        assert message(history=[file], directory="llama", run="vit") == (
            f"{file}: no save of both that directory and that run"
        )
        assert message(history=[file], until=MIDNIGHT) == (
            f"{file}: no save ended in that window; they ended from 2025-11-30 00:01:40 UTC"
            " to 2025-11-30 00:01:40 UTC"
        )


class TestLoadsAndStalls:
    def test_of_the_window(self, tmp_path: Path) -> None:
        """Loads and stalls belong to the window in which they ended; without one all are there."""
        loads = tuple(replace(LOAD, step=n, end_unix=MIDNIGHT + 600.0 * n) for n in range(4))
        stalls = tuple(replace(STALL, gpu=n, end_unix=MIDNIGHT + 600.0 * n) for n in range(4))
        file = history(tmp_path / "h", numbered(15), loads=loads, stalls=stalls)
        found = read_measurements(history=[file])
        assert (found.loads, found.stalls) == (loads, stalls)
        found = read_measurements(history=[file], since=MIDNIGHT + 600.0, until=MIDNIGHT + 1200.0)

        assert (found.loads, found.stalls) == (loads[1:3], stalls[1:3])

    def test_of_a_directory(self, tmp_path: Path) -> None:
        """Of one directory there are its loads, and the stalls of the GPUs that its saves stopped."""
        save = replace(numbered(30), bubble_gpu_seconds={3: 1.0})  # from minute 30 to 31
        vision = replace(numbered(10), directory="vision", bubble_gpu_seconds={4: 1.0})
        loads = (LOAD, replace(LOAD, directory="vision"))
        inside = replace(STALL, start_unix=MIDNIGHT + 1810.0, end_unix=MIDNIGHT + 1815.0)
        stalls = (inside, replace(inside, gpu=4), replace(inside, node="n2"), STALL)
        file = history(tmp_path / "h", vision, save, loads=loads, stalls=stalls)
        found = read_measurements(history=[file], directory="llama")

        assert (found.loads, found.stalls) == ((LOAD,), (inside,))

    def test_of_a_run(self, tmp_path: Path) -> None:
        """A run's loads are found by its name; by its id where no other run had that name."""
        ours, theirs = (replace(numbered(n), run="pretrain", run_id=str(n)) for n in (30, 40))
        loads = (LOAD, replace(LOAD, run="tune"), replace(LOAD, run=None))
        one = history(tmp_path / "one", ours, loads=loads)
        two = history(tmp_path / "two", ours, theirs, loads=loads)

        assert read_measurements(history=[one], run="pretrain").loads == (LOAD,)
        assert read_measurements(history=[one], run="30").loads == (LOAD,)
        assert read_measurements(history=[two], run="30").loads == ()

    def test_without_saves(self, tmp_path: Path) -> None:
        """A node that only loads has a window as long as its loads, and says which ones there are."""
        loads = (LOAD, replace(LOAD, start_unix=MIDNIGHT + 600.0, end_unix=MIDNIGHT + 660.0))
        file = history(tmp_path / "h", loads=loads)
        found = read_measurements(history=[file])

        assert (found.saves, found.loads) == ((), loads)
        assert (found.since_unix, found.until_unix) == (LOAD.start_unix, MIDNIGHT + 660.0)
        assert read_measurements(history=[file], directory="llama", run="pretrain").loads == loads
        assert message(history=[file], directory="lama") == (
            f"{file}: no save in the window, and no load of the directory lama; loads are of llama"
        )
        assert message(history=[file], since=MIDNIGHT + 700.0) == f"{file}: no save has been kept yet"

    def test_of_several_files(self, tmp_path: Path) -> None:
        """A load or a stall that is in two files counts once, another node's is another."""
        other, elsewhere = replace(LOAD, node="n2"), replace(STALL, node="n2")
        first = history(tmp_path / "1", numbered(1), loads=(LOAD,), stalls=(STALL,))
        second = history(tmp_path / "2", numbered(2), loads=(LOAD, other), stalls=(elsewhere, STALL))
        found = read_measurements(history=[first, second])

        assert (found.loads, found.stalls) == ((LOAD, other), (STALL, elsewhere))


NO_FILE = "no such file; give the daemon's history.path with --history=FILE"
NO_MOMENT = "is no moment: write 7d (ago), 2026-11-30T12:00:00Z or Unix seconds"
TWO_SOURCES = "--history and --prometheus are two sources: write one of them"


class TestCommand:
    @pytest.fixture
    def file(self, tmp_path: Path) -> str:
        case = published_case()
        return history(tmp_path / "history.db", *case.saves, hours=case.gpu_time)

    def said(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
        status = main(["report", *arguments])
        out, err = capsys.readouterr()
        return status, out, err

    def test_published_case(self, file: str, capsys: pytest.CaptureFixture[str]) -> None:
        """From the file alone the published case comes to 3,560 s, 9.89 % and 7.91 GPU-hours."""
        status, out, err = self.said(capsys, f"--history={file}")

        assert (status, err) == (0, "")
        for part in ("20 saves of llama", "9.89 %", "3,560 s", "36,000 s", "7.91 GPU-hours", "0.369 GB/s"):
            assert part in out
        data = json.loads(self.said(capsys, f"--history={file}", "--format=json")[1])
        assert data["save_time"]["seconds"] == pytest.approx(3560)

    def test_records_and_a_format(self, file: str, capsys: pytest.CaptureFixture[str]) -> None:
        """Records are no report: asking for both is a mistake, and nothing is printed."""
        told = self.said(capsys, f"--history={file}", "--records=csv", "--format=json")

        said = "ckpt-exporter: --records=csv prints records and --format=json a report: write one of them\n"
        assert told == (2, "", said)
        assert self.said(capsys, f"--history={file}", "--records=csv", "--format=table")[0] == 2
        assert self.said(capsys, f"--history={file}", "--records=csv")[1].startswith("node,directory,")

    def test_loads_alone(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A node that serves a model saves nothing: its loads are the report, in every format."""
        loads = history(tmp_path / "loads.db", loads=(LOAD, replace(LOAD, step=200)))
        status, out, err = self.said(capsys, f"--history={loads}")

        assert (status, err) == (0, "")
        assert "No save ended from 2025-11-30 00:00:10 UTC" in out
        assert "2 loads on the nodes, 16.0 GB in 8 files" in out
        for output_format in ("markdown", "html", "json"):
            assert self.said(capsys, f"--history={loads}", f"--format={output_format}")[0] == 0
        assert self.said(capsys, f"--history={loads}", "--records=load-csv")[1].count("llama") >= 2

    def test_a_window(self, file: str, capsys: pytest.CaptureFixture[str]) -> None:
        """A window that is given in words and as a moment selects by the end of a save."""
        arguments = (f"--history={file}", "--format=json", "--since=2025-11-30T01:00:00Z")
        data = json.loads(self.said(capsys, *arguments, f"--until={MIDNIGHT + 7200}")[1])

        assert data["saves"]["count"] == 3  # those that ended at 1:00, 1:30 and 2:00
        assert data["window"] == {
            "since_unix": MIDNIGHT + 3600, "until_unix": MIDNIGHT + 7200, "seconds": 3600.0,
            "since_given": True, "until_given": True,
        }  # fmt: skip

    def test_since_alone(self, file: str, capsys: pytest.CaptureFixture[str]) -> None:
        """A window that has only a beginning ends now."""
        before = time.time()
        window = json.loads(self.said(capsys, f"--history={file}", "--format=json", "--since=2025-11-30")[1])[
            "window"
        ]

        assert before <= window["until_unix"] <= time.time()
        assert window["until_given"]

    def test_locales(
        self, file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Numbers are the same whatever the locale and the time zone."""
        outputs = set()
        for language, zone in (
            ("C", "UTC"),
            ("de_DE.UTF-8", "Asia/Shanghai"),
            ("zh_CN.UTF-8", "America/Lima"),
        ):
            monkeypatch.setenv("LC_ALL", language)
            monkeypatch.setenv("TZ", zone)
            outputs.add(self.said(capsys, f"--history={file}", "--format=markdown")[1])

        assert len(outputs) == 1

    def test_records(self, file: str, capsys: pytest.CaptureFixture[str]) -> None:
        """Records come as CSV of saves, CSV of GPU hours, or JSON lines of both."""
        saves = self.said(capsys, f"--history={file}", "--records=csv")[1].splitlines()
        hours = self.said(capsys, f"--history={file}", "--records=gpu-csv")[1].splitlines()
        lines = [
            json.loads(line)
            for line in self.said(capsys, f"--history={file}", "--records=jsonl")[1].splitlines()
        ]

        assert (len(saves), len(hours)) == (21, 81)
        assert hours[0].startswith("node,uuid,hour_unix,gpu,observed_seconds,stall_checkpoint_save_seconds,")
        assert hours[1] == "n1,GPU-0,1764460800,0,3600.0,0.0,0.0,0.0,0.0,0.0"
        assert [line["kind"] for line in lines].count("save") == 20
        assert lines[0]["bubble_gpu_seconds"]["7"] == 178.0
        assert lines[0]["step"] == 500

    def test_records_of_loads_and_stalls(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Loads and stalls come as CSV each, and as JSON lines with the others."""
        load = replace(LOAD, path="/data/llama/a")
        file = history(tmp_path / "h", numbered(1), loads=(load,), stalls=(replace(STALL, uuid=None),))
        loads, stalls, lines = (
            self.said(capsys, f"--history={file}", f"--records={form}")[1].splitlines()
            for form in ("load-csv", "stall-csv", "jsonl")
        )

        assert loads == [
            (
                "node,directory,path,layout,step,run,readers,start_unix,end_unix,duration_seconds,bytes,files,"
                "cached_ratio,notes,mountpoint,device,fstype,transport,cold_start_seconds"
            ),
            (
                "n1,llama,/data/llama/a,huggingface,100,pretrain,8,1764460810.0,1764460830.5,20.5,8000000000,"
                '4,0.25,"[""mapped""]",/data,nvme0n1p1,ext4,nvme-pcie,27.5'
            ),
        ]
        assert stalls == [
            "node,gpu,uuid,start_unix,end_unix,seconds,cause,confidence",
            "n1,3,,1764460840.0,1764460844.0,3.5,data_loading,",
        ]
        assert [json.loads(line)["kind"] for line in lines] == ["save", "load", "stall"]
        assert json.loads(lines[1])["cached_ratio"] == 0.25
        assert json.loads(lines[2])["uuid"] is None

    def test_path_of_the_configuration(
        self, file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Without --history the file is that of the configuration; one that keeps none says so."""
        config = tmp_path / "c.yml"
        config.write_text(f"directories: [{{name: a, path: /a}}]\nhistory: {{path: {file}}}\n")
        assert "20 saves of llama" in self.said(capsys, f"--config.file={config}")[1]
        config.write_text("directories: [{name: a, path: /a}]\nhistory: {path: null}\n")

        assert self.said(capsys, f"--config.file={config}") == (
            2, "", f"ckpt-exporter: {config}: history.path keeps none; name another with --history=FILE\n",
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("arguments", "status", "said"),
        [
            (["--history=/no/such"], 1, f"/no/such: {NO_FILE}"),
            (["--history=/"], 1, "/: is a directory, must be a history file"),
            (["--history=/etc/passwd"], 1, "/etc/passwd: is damaged or no history (file is not a database)"),
            (["--since=soon"], 2, f"'soon' {NO_MOMENT}"),
            (["--since=3000", "--until=2000"], 2, "--since must be before --until, and before now"),
            (["--prometheus=host"], 2, "--prometheus=host: must be a URL such as http://prometheus:9090"),
            (["--prometheus=http://a", "--history=b"], 2, TWO_SOURCES),
        ],
    )  # fmt: skip
    def test_mistakes(
        self, arguments: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A mistake is one line and the right exit status."""
        assert self.said(capsys, *arguments) == (status, "", f"ckpt-exporter: {said}\n")
