"""Acceptance gates: each threshold passes, fails and lacks data as it should."""

from __future__ import annotations

import json
import sys
import types
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from ckpt_exporter.analysis.acceptance import judge
from ckpt_exporter.analysis.arms import moment, parse_source, read_source
from ckpt_exporter.analysis.bench_result import (
    BenchResult,
    Repetition,
    WriterResult,
    bench_json,
    read_bench_result,
)
from ckpt_exporter.analysis.compare import compare
from ckpt_exporter.analysis.exporter import read_exporter
from ckpt_exporter.analysis.gates import Evidence, exit_status
from ckpt_exporter.cli import main
from ckpt_exporter.config.gates import Gates, LoadGate, NodeGate, StorageGate, default_gates_text, load_gates
from ckpt_exporter.errors import CkptExporterError, ConfigError, UsageError
from ckpt_exporter.history.records import LoadRecord, Measurements
from tests.history_samples import LOAD
from tests.unit.measured import arm, measurements, save_record

if TYPE_CHECKING:
    from pathlib import Path

HEALTHY = """\
# TYPE ckpt_exporter_build_info gauge
ckpt_exporter_build_info{version="1",revision="",python="3.11"} 1
ckpt_directory_info{dir="llama",path="/c",mountpoint="/new",device="n",fstype="x",transport="nvme-rdma"} 1
ckpt_filesystem_avail_bytes{dir="llama"} 1e13
ckpt_watch_up{dir="llama",backend="inotify"} 1
ckpt_watch_limit_reached{dir="llama"} 0
ckpt_watch_truncated{dir="llama"} 0
ckpt_collector_success{collector="watch"} 1
ckpt_config_last_reload_successful 1
ckpt_events_dropped_total 0
ckpt_gpu_up{gpu="0",uuid="GPU-0"} 1
ckpt_gpu_activity_source_info{gpu="0",uuid="GPU-0",source="power",quality="high"} 1
"""


def new_arm(middle: float = 40, count: int = 20, **changes: Any) -> Measurements:
    """Return the candidate's saves: on another mount."""
    place = {"mountpoint": "/new", "device": "nvme1n1", "transport": "nvme-rdma", "path": "/new/ckpt/x"}
    return arm(middle, count, seed=2, **{**place, **changes})


def bench(*speeds: float, cache: str = "cold", factor: float = 1.0, **options: Any) -> BenchResult:
    """Return bursts of 8 GB at these bandwidths; the detector saw ``factor`` times the seconds."""
    repetitions = tuple(
        Repetition(
            cache,  # type: ignore[arg-type]
            save_record(n, 8e9 / speed * factor, bytes=8_000_000_000),
            WriterResult(8e9 / speed, 8_000_000_000),
        )
        for n, speed in enumerate(speeds)
    )
    chosen = {"fsync": True, "direct": False, **options}
    return BenchResult("n1", "/new", 0.0, 1.0, {}, chosen, {"mountpoint": "/new"}, repetitions)


def verdicts(gate: str, evidence: Evidence, gates: Gates | None = None) -> dict[str, str]:
    """Return check -> verdict of one gate, and the gate's own under its name."""
    (result,) = judge(gates or Gates(), evidence, [gate])
    return {gate: result.verdict, **{check.name: check.verdict for check in result.checks}}


def scrape(tmp_path: Path, text: str = HEALTHY) -> Any:
    """Return a scrape as an exporter would answer it."""
    file = tmp_path / "metrics.txt"
    file.write_text(text)
    return read_exporter(str(file))


class TestPath:
    def gates(self, **changes: Any) -> Gates:
        """Return thresholds that name the mount."""
        return replace(
            Gates(), path=replace(Gates().path, mountpoint="/new", transport="nvme-rdma", **changes)
        )

    def test_all_is_well(self, tmp_path: Path) -> None:
        """The right mount, room, a healthy watch and healthy GPUs pass."""
        evidence = Evidence(compare(arm(178), new_arm()), exporters=(scrape(tmp_path),))

        assert set(verdicts("G1", evidence, self.gates()).values()) == {"pass"}

    @pytest.mark.parametrize(
        ("before", "after", "check"),
        [
            ('transport="nvme-rdma"', 'transport="nvme-tcp"', "transport"),
            ("avail_bytes{dir=\"llama\"} 1e13", "avail_bytes{dir=\"llama\"} 1.9e11", "free space"),
            ('backend="inotify"} 1', 'backend="inotify"} 0', "watch healthy"),
            ('limit_reached{dir="llama"} 0', 'limit_reached{dir="llama"} 1', "watch healthy"),
            ('truncated{dir="llama"} 0', 'truncated{dir="llama"} 1', "watch healthy"),
            ('collector="watch"} 1', 'collector="watch"} 0', "watch healthy"),
            ('watch_up{dir="llama"', 'watch_up{dir="other"', "watch healthy"),
            ("dropped_total 0", "dropped_total 3", "watch healthy"),
            ('gpu_up{gpu="0",uuid="GPU-0"} 1', 'gpu_up{gpu="0",uuid="GPU-0"} 0', "GPU sources healthy"),
            ('quality="high"', 'quality="low"', "GPU sources healthy"),
        ],
    )  # fmt: skip
    def test_each_fault_fails(self, before: str, after: str, check: str, tmp_path: Path) -> None:
        """Each thing that is wrong on the exporter fails its check, and so the gate."""
        assert before in HEALTHY
        broken = scrape(tmp_path, HEALTHY.replace(before, after))
        found = verdicts("G1", Evidence(compare(arm(178), new_arm()), exporters=(broken,)), self.gates())

        assert found[check] == "fail"
        assert found["G1"] == "fail"

    def test_the_old_mount(self, tmp_path: Path) -> None:
        """Saves that went to the old mount fail, although the exporter watches the new one."""
        evidence = Evidence(compare(arm(178), arm(40)), exporters=(scrape(tmp_path),))

        assert verdicts("G1", evidence, self.gates())["mountpoint"] == "fail"

    def test_two_mounts(self) -> None:
        """Saves of one node on two mounts are a mixture."""
        mixed = measurements([save_record(1, 9.0), save_record(2, 9.0, mountpoint="/new")])

        assert (
            verdicts("G1", Evidence(compare(arm(178), mixed)))["saves of the candidate on one mount"]
            == "fail"
        )

    def test_no_exporter(self) -> None:
        """Without an exporter health is not known, and not passed."""
        found = verdicts("G1", Evidence(compare(arm(178), new_arm())))

        assert found["watch healthy"] == found["G1"] == "not enough data"

    def test_no_ckpt_exporter(self, tmp_path: Path) -> None:
        """Another exporter's metrics, or a page, are an error that says what to write."""
        with pytest.raises(CkptExporterError, match="is no ckpt-exporter"):
            scrape(tmp_path, "up 1\n")
        with pytest.raises(CkptExporterError, match=r"cannot read|text format"):
            read_exporter(str(tmp_path / "nothing"))


class TestStorage:
    def found(self, *benches: BenchResult, asked: object = 1_000_000_000) -> dict[str, str]:
        """Judge G2 with a bandwidth asked for."""
        gates = replace(Gates(), storage=StorageGate(sustained_bandwidth=asked))  # type: ignore[arg-type]
        return verdicts("G2", Evidence(compare(arm(178), new_arm()), benches), gates)

    def test_fast_enough(self) -> None:
        """Three bursts above the bandwidth in each state of the cache pass."""
        found = self.found(bench(1.2e9, 1.1e9, 1.3e9), bench(1.2e9, 1.1e9, 1.3e9, cache="full"))

        assert set(found.values()) == {"pass"}

    def test_only_the_cache_is_fast(self) -> None:
        """Fast with a cold cache and slow with a full one fails."""
        found = self.found(bench(1.2e9, 1.1e9, 1.3e9), bench(0.5e9, 0.6e9, 0.5e9, cache="full"))

        assert (found["bandwidth, cold cache"], found["bandwidth, full cache"]) == ("pass", "fail")
        assert found["G2"] == "fail"

    def test_one_slow_burst(self) -> None:
        """A fast median does not hide a burst 15 % below what is asked."""
        assert self.found(bench(1.2e9, 1.3e9, 0.85e9))["bandwidth, cold cache"] == "fail"
        assert self.found(bench(1.2e9, 1.3e9, 0.95e9))["bandwidth, cold cache"] == "pass"

    def test_two_bursts_are_too_few(self) -> None:
        """Two bursts do not pass; without a cache state measured nothing does."""
        found = self.found(bench(1.2e9, 1.3e9))

        assert found["bandwidth, cold cache"] == found["bandwidth, full cache"] == "not enough data"

    def test_disagreement(self) -> None:
        """A detector 8 % off the writers fails, and so does a burst that it did not see."""
        unseen = bench(1.2e9)
        unseen = replace(unseen, repetitions=(replace(unseen.repetitions[0], save=None),))

        assert self.found(bench(1.2e9, factor=1.08))["exporter and writers agree"] == "fail"
        assert self.found(bench(1.2e9, factor=1.03))["exporter and writers agree"] == "pass"
        assert self.found(unseen)["exporter and writers agree"] == "fail"

    def test_memory_was_measured(self) -> None:
        """Bursts neither synced nor direct fail: they measured the page cache."""
        assert self.found(bench(9e9, fsync=False))["bursts synced or direct"] == "fail"
        assert self.found(bench(9e9, fsync=False, direct=True))["bursts synced or direct"] == "pass"

    def test_what_the_job_needs(self) -> None:
        """By auto it is bytes / (5 % of the interval): 65.6 GB / (0.05 x 1,800 s) = 0.729 GB/s."""
        assert self.found(bench(0.74e9, 0.74e9, 0.74e9), asked="auto")["bandwidth, cold cache"] == "pass"
        assert self.found(bench(0.71e9, 0.71e9, 0.71e9), asked="auto")["bandwidth, cold cache"] == "fail"


class TestNode:
    def test_good_saves(self) -> None:
        """Twenty faster saves that cost 2 % pass."""
        assert set(verdicts("G3", Evidence(compare(arm(178), new_arm(40)))).values()) == {"pass"}

    def test_slower_than_the_baseline(self) -> None:
        """Saves that are slower for sure fail; saves that may be either are not decided."""
        slower = verdicts("G3", Evidence(compare(arm(40), new_arm(60))))
        alike = verdicts("G3", Evidence(compare(arm(40), new_arm(40))))

        assert slower["duration against the baseline"] == "fail"
        assert alike["duration against the baseline"] == "not enough data"

    def test_bubble_share(self) -> None:
        """Saves of 178 s each half hour cost 9.9 % and fail at 5 %."""
        assert verdicts("G3", Evidence(compare(arm(300), new_arm(178))))["bubble share"] == "fail"

    def test_durations_are_no_bubbles(self) -> None:
        """Without GPUs long saves are no proof of a large bubble: they may be asynchronous."""
        no_gpus = {"bubble_seconds": None, "bubble_gpu_seconds": {}}
        found = verdicts("G3", Evidence(compare(arm(300, **no_gpus), new_arm(178, **no_gpus))))

        assert found["share of the run spent saving (no GPU figures)"] == "not enough data"

    def test_incomplete(self) -> None:
        """One save that was not completed fails a trial."""
        saves = new_arm().saves
        spoiled = measurements([*saves[:-1], replace(saves[-1], result="incomplete")])

        assert verdicts("G3", Evidence(compare(arm(178), spoiled)))["saves not completed"] == "fail"

    def test_four_saves(self) -> None:
        """Four saves are not enough data, whatever they say."""
        assert verdicts("G3", Evidence(compare(arm(178), new_arm(40, 4))))["G3"] == "not enough data"

    def test_slowest_node_decides(self) -> None:
        """Of two nodes the slower one is judged: 40 s pass, 300 s do not."""
        saves = [save_record(n, d, node) for n in range(20) for node, d in (("a", 40.0), ("b", 300.0))]
        found = verdicts("G3", Evidence(compare(arm(178), measurements(saves))))

        assert found["complete saves on b"] == "pass"
        assert found["duration against the baseline"] == "fail"

    def test_longest(self) -> None:
        """One save above a limit in seconds fails."""
        gates = replace(Gates(), node=NodeGate(duration_seconds=45))
        saves = [*new_arm(40).saves[:-1], save_record(30, 46.0)]

        assert (
            verdicts("G3", Evidence(compare(arm(178), measurements(saves))), gates)["longest save"] == "fail"
        )


class TestProduction:
    def long(self, count: int = 200, **changes: Any) -> Measurements:
        """Return four days of saves."""
        return new_arm(40, count, **changes)

    def test_days_of_good_saves(self) -> None:
        """Four days of fast saves pass."""
        assert set(verdicts("G4", Evidence(compare(arm(178), self.long()))).values()) == {"pass"}

    def test_too_short(self) -> None:
        """A day of saves is not enough, and does not fail."""
        found = verdicts("G4", Evidence(compare(arm(178), self.long(48))))

        assert found["first to last save"] == found["G4"] == "not enough data"

    def test_fewer_nodes(self) -> None:
        """All nodes of the baseline must have saved on the candidate."""
        two = measurements([save_record(n, 178.0, node) for n in range(20) for node in ("a", "b")])

        assert verdicts("G4", Evidence(compare(two, self.long())))["nodes"] == "not enough data"

    def test_tail(self) -> None:
        """One save in ten twice as long breaks the bound on the tail."""
        saves = [save_record(n, 80.0 if n % 10 == 0 else 40.0) for n in range(200)]

        found = verdicts("G4", Evidence(compare(arm(178), measurements(saves, 100))))
        assert found["tail: 95th percentile over median"] == "fail"

    def test_drift(self) -> None:
        """Saves that take a third longer in the later half fail."""
        saves = [save_record(n, 40.0 if n < 100 else 54.0) for n in range(200)]

        found = verdicts("G4", Evidence(compare(arm(178), measurements(saves, 100))))
        assert found["later half over earlier half"] == "fail"

    def test_incomplete_share(self) -> None:
        """Three incomplete saves in 200 are more than 1 %; two are not."""
        for bad, verdict in ((2, "pass"), (3, "fail")):
            saves = [save_record(n, 40.0, result="incomplete" if n < bad else "complete") for n in range(200)]
            found = verdicts("G4", Evidence(compare(arm(178), measurements(saves, 100))))
            assert found["saves not completed"] == verdict


def loads_of(*seconds: float, mount: str = "/new", **changes: Any) -> tuple[LoadRecord, ...]:
    """Return loads of 65.6 GB from storage, an hour apart."""
    values = {"bytes": 65_600_000_000, "cached_ratio": 0.0, "mountpoint": mount} | changes
    return tuple(
        replace(LOAD, start_unix=3600.0 * n, end_unix=3600.0 * n + s, duration_seconds=s, **values)
        for n, s in enumerate(seconds)
    )


def load_evidence(
    candidate: tuple[LoadRecord, ...], baseline: tuple[LoadRecord, ...] | None = None
) -> Evidence:
    """Return loads of a candidate against the published ones from NFS: 65.6 GB in 131.2 s, 0.5 GB/s."""
    slow = loads_of(*[131.2] * 6, mount="/old") if baseline is None else baseline
    arms = (Measurements("by hand", 0.0, 86_400.0, (), loads=loads) for loads in (slow, candidate))
    return Evidence(compare(*arms))


# x6.2, x6.8, ... x9.3 of 131.2 s.
PUBLISHED = (21.16, 19.29, 17.73, 16.4, 15.26, 14.11)
SPEEDUP = "load duration against the baseline"


class TestLoads:
    def test_the_published_case(self) -> None:
        """Loads 6.2 to 9.3 times as fast pass, and just as fast ones, too: not slower will do."""
        told = {c.name: c for c in judge(Gates(), load_evidence(loads_of(*PUBLISHED)), ["G5"])[0].checks}
        same = verdicts("G5", load_evidence(loads_of(*[131.2] * 6)))

        # Medians: 131.2 / ((17.73 + 16.4) / 2) = 7.69.
        assert (told[SPEEDUP].threshold, told[SPEEDUP].verdict) == ("at least x1.00 as fast", "pass")
        assert told[SPEEDUP].evidence == "x7.69 (x6.20 to x9.30)"
        assert told["loads from storage"].evidence == "6"
        assert set(same.values()) == {"pass"}

    def test_not_twice_as_fast(self) -> None:
        """Where twice as fast is asked for, x1.64 for sure fails, and x1.9 to x2.2 is not decided."""
        slower = load_evidence(loads_of(*[80.0] * 6))
        either = load_evidence(loads_of(60.0, 61.0, 62.0, 66.0, 68.0, 69.0))
        twice = replace(Gates(), loads=LoadGate(speedup=2.0))

        assert verdicts("G5", slower, twice)[SPEEDUP] == verdicts("G5", slower, twice)["G5"] == "fail"
        assert verdicts("G5", either, twice)[SPEEDUP] == "not enough data"
        assert verdicts("G5", either, twice)["G5"] == "not enough data"
        assert verdicts("G5", slower)["G5"] == "pass"

    def test_the_page_cache_is_no_storage(self) -> None:
        """Loads from memory, ten times as fast as any storage here, neither pass nor help to pass."""
        memory = loads_of(*[1.3] * 20, cached_ratio=1.0)
        unknown = loads_of(*[1.3] * 3, cached_ratio=None)
        only_memory = verdicts("G5", load_evidence(memory))
        mixed = judge(Gates(), load_evidence((*loads_of(*[140.0] * 6), *memory, *unknown)), ["G5"])[0]
        told = {check.name: check for check in mixed.checks}

        assert only_memory == dict.fromkeys(("G5", "loads from storage", SPEEDUP), "not enough data")
        assert told["loads from storage"].evidence == "6 (20 from the page cache, 3 unknown, left out)"
        assert told[SPEEDUP].evidence.startswith("x0.937")
        assert told[SPEEDUP].verdict == "fail"

    def test_too_few(self) -> None:
        """Four loads of either arm, or none at all, are not enough data, and say so."""
        four = load_evidence(loads_of(*PUBLISHED[:4]))
        bare = load_evidence(loads_of(*PUBLISHED), loads_of(*[131.2] * 4, mount="/old"))
        told = {c.name: c.evidence for c in judge(Gates(), bare, ["G5"])[0].checks}

        assert set(verdicts("G5", four).values()) == {"not enough data"}
        assert verdicts("G5", bare)["loads from storage"] == "pass"
        assert verdicts("G5", bare)["G5"] == "not enough data"
        assert told[SPEEDUP] == "x7.69 (baseline: 4 loads from storage)"
        assert set(verdicts("G5", Evidence(compare(arm(178), new_arm()))).values()) == {"not enough data"}

    def test_of_other_sizes(self) -> None:
        """A tenth of the bytes in an eighth of the time is slower, not eight times as fast."""
        small = load_evidence(loads_of(*[16.4] * 6, bytes=6_560_000_000))

        assert verdicts("G5", small)["load bandwidth against the baseline"] == "fail"

    def test_limits_of_ones_own(self) -> None:
        """65.6 GB in 14.11 to 21.16 s are 3.10 to 4.65 GB/s: 3 GB/s pass, 5 fail, 3.5 are not decided."""
        for asked, verdict in ((3e9, "pass"), (5e9, "fail"), (3.5e9, "not enough data")):
            gates = replace(Gates(), loads=LoadGate(bandwidth=int(asked)))
            assert (
                verdicts("G5", load_evidence(loads_of(*PUBLISHED)), gates)["bandwidth from storage"]
                == verdict
            )
        for seconds, verdict in ((22, "pass"), (21, "fail")):
            gates = replace(Gates(), loads=LoadGate(duration_seconds=seconds))
            found = verdicts("G5", load_evidence(loads_of(*PUBLISHED)), gates)
            assert found["longest load from storage"] == verdict


class TestFile:
    def test_shipped_file_is_the_default(self) -> None:
        """The shipped file holds every threshold with the value that is in force without a file."""
        shipped = yaml.safe_load(default_gates_text())
        gates = Gates()

        for name, gate in (
            ("G1", gates.path),
            ("G2", gates.storage),
            ("G3", gates.node),
            ("G4", gates.production),
            ("G5", gates.loads),
        ):
            values = {field: getattr(gate, field) for field in gate.__dataclass_fields__}
            values = {
                key: list(value) if isinstance(value, tuple) else value for key, value in values.items()
            }
            assert shipped[name] == values

    def test_shipped_file_loads(self, tmp_path: Path) -> None:
        """The shipped file is read as the defaults."""
        file = tmp_path / "gates.yml"
        file.write_text(default_gates_text())

        assert load_gates(str(file)) == load_gates(None) == Gates()

    def test_each_threshold_is_explained(self) -> None:
        """Every threshold stands below a comment, together with those it belongs to."""
        explained = False
        for line in default_gates_text().splitlines():
            if line.startswith("G"):
                explained = False
            elif line.strip().startswith("#"):
                explained = True
            elif line.strip():
                assert explained, line

    def test_own_thresholds(self, tmp_path: Path) -> None:
        """A file changes what it names, null switches a check off, the rest stays."""
        file = tmp_path / "gates.yml"
        file.write_text(
            "G2: {sustained_bandwidth: 1.5GB/s, caches: [cold]}\n"
            "G3: {duration_seconds: 2m, duration_ratio: null}\n"
        )
        gates = load_gates(str(file))

        assert gates.storage.sustained_bandwidth == 1_500_000_000
        assert gates.storage.caches == ("cold",)
        assert gates.node == NodeGate(duration_seconds=120, duration_ratio=None)
        assert gates.production == Gates().production

    def test_every_problem_at_once(self, tmp_path: Path) -> None:
        """Unknown gates and keys, wrong types and impossible values are told together."""
        file = tmp_path / "gates.yml"
        file.write_text(
            "G1: {transpot: x}\nG2: {caches: [warm], synced: 3}\nG3: 5\nG9: {}\n"
            "G4: {bubble_share: 5, nodes: all}\n"
            "G5: {speedup: 0, bandwidth: auto}\n"
        )
        with pytest.raises(ConfigError) as caught:
            load_gates(str(file))

        told = [problem.removeprefix(f"{file}: ") for problem in caught.value.problems]
        assert told[0] == "G1.transpot: unknown threshold; did you mean transport?"
        assert told[1].startswith("G2.caches: must be one of as-is, cold, full")
        assert told[2] == "G2.synced: must be true or false (got 3)"
        assert told[3] == "G3: must hold thresholds (got 5)"
        assert told[4] == "G9: unknown gate; known: G1, G2, G3, G4, G5"
        assert told[5].startswith("G4.bubble_share: must be a share from 0 to 1")
        assert told[6] == "G4.nodes: must be a whole number, 0 or more, or baseline (got 'all')"
        assert told[7] == "G5.speedup: must be above 0 (got 0)"
        assert told[8] == "G5.bandwidth: must be a bandwidth such as 800MB/s or 1.5GB/s (got 'auto')"


class TestCommand:
    @pytest.fixture
    def files(self, tmp_path: Path) -> dict[str, str]:
        """Return stored benches: slow, fast, and fast with a full cache, too."""
        made = {}
        for name, result in (
            ("slow", bench(*[0.5e9] * 6)), ("fast", bench(*[1e9] * 6)), ("few", bench(1e9, 1e9)),
            ("full", bench(*[1e9] * 6, cache="full")),
        ):  # fmt: skip
            file = tmp_path / f"{name}.json"
            file.write_text(json.dumps(bench_json(result)))
            made[name] = str(file)
        return made

    def test_exit_status(
        self, files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A failing gate ends in 1, a passing one in 0; lack of data only when strict."""
        gates = tmp_path / "gates.yml"
        benches = [f"--bench={files['fast']}", f"--bench={files['full']}"]
        for asked, status in (("0.9GB/s", 0), ("1.1GB/s", 1)):
            gates.write_text(f"G2: {{sustained_bandwidth: {asked}}}\n")
            argv = ["compare", files["slow"], files["fast"], f"--gates={gates}", "--gate=G2"]
            assert main([*argv, *benches]) == status
            assert main(argv) == 0
            assert main([*argv, "--strict"]) == 1
        assert main(["compare", files["slow"], files["few"], "--no-gates"]) == 0
        assert "not enough data" in capsys.readouterr().out

    def test_json(self, files: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
        """JSON holds exact numbers: twice the bandwidth in half the time."""
        assert main(["compare", files["slow"], files["fast"], "--gate=G3", "--format=json"]) == 0
        data = json.loads(capsys.readouterr().out)

        assert data["quantities"]["duration_seconds"]["gain"]["estimate"] == 2
        assert data["quantities"]["duration_seconds"]["verdict"] == "better"
        assert [gate["gate"] for gate in data["gates"]] == ["G3"]

    def test_print_gates(self, capsys: pytest.CaptureFixture[str]) -> None:
        """The shipped thresholds can be printed, to be changed."""
        assert main(["compare", "--print-gates"]) == 0
        assert capsys.readouterr().out == default_gates_text()

    @pytest.mark.parametrize(
        ("argv", "said"),
        [
            ("", "two arms"), ("{slow}", "two arms"),
            ("{slow} {fast}?when=1d", "selects nothing"), ("{slow} {fast}?since=soon", "no moment"),
            ("{slow} {fast} --gates=nowhere.yml", "no such file"),
            ("{slow} {fast} --gate=G7", "invalid choice"),
            ("{slow} {fast} --bench=nowhere.json", "cannot be read"),
        ],
    )  # fmt: skip
    def test_mistakes(
        self, argv: str, said: str, files: dict[str, str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A mistake is one line that says what to write, and exit status 2."""
        assert main(["compare", *argv.format(**files).split()]) == 2
        err = capsys.readouterr().err
        assert said in err
        assert err.count("\n") == 1

    @pytest.mark.parametrize(
        "argv",
        [
            "compare nowhere.db nowhere.db",
            "project --save-seconds=10 --history=nowhere.db",
            "report --history=nowhere.db",
            "replay nowhere.jsonl",
        ],
    )
    def test_measurements_that_are_not_there(self, argv: str, capsys: pytest.CaptureFixture[str]) -> None:
        """Whatever reads measurements fails alike where there are none: one line, exit status 1."""
        assert main(argv.split()) == 1
        err = capsys.readouterr().err
        assert "o such file" in err
        assert err.count("\n") == 1

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "[]",
            "{}",
            '{"kind": "ckpt-exporter bench"}',
            '{"kind": "ckpt-exporter bench", "version": 1}',
            "{",
        ],
    )
    def test_damaged_results(self, text: str, tmp_path: Path) -> None:
        """Whatever is no result of bench is refused in words."""
        file = tmp_path / "x.json"
        file.write_text(text)
        with pytest.raises(UsageError, match="bench result"):
            read_bench_result(str(file))


class TestSources:
    def test_selection(self, tmp_path: Path) -> None:
        """Keys select by directory, mount, node and time; files may be several."""
        file = tmp_path / "b.json"
        two = [save_record(n, 10.0, "n1" if n % 2 else "n2", mountpoint=f"/m{n}") for n in range(6)]
        result = replace(bench(), repetitions=tuple(Repetition("cold", s, WriterResult(1, 1)) for s in two))
        file.write_text(json.dumps(bench_json(result)))

        def chosen(query: str) -> list[str | None]:
            return [s.mountpoint for s in read_source(parse_source(f"{file}{query}", 20_000.0)).saves]

        assert chosen("?node=n1") == ["/m1", "/m3", "/m5"]
        assert chosen("?mountpoint=%2Fm2") == ["/m2"]
        assert chosen("?since=5000&until=8000") == ["/m3", "/m4"]
        assert chosen("?dir=other") == []
        assert len(chosen(f",{file}")) == 12

    @pytest.mark.parametrize(
        ("query", "there"), [("mountpoint=/nwe", "/old"), ("node=n9", "n1"), ("transport=nfs", "nvme-tcp")]
    )
    def test_what_no_save_has(self, tmp_path: Path, query: str, there: str) -> None:
        """A mistyped mount is an error, not a gate that lacks data and lets a pipeline go on."""
        file = tmp_path / "b.json"
        file.write_text(json.dumps(bench_json(bench(1e9))))

        with pytest.raises(CkptExporterError, match=f"no save has {query}; there are {there}$"):
            read_source(parse_source(f"{file}?{query}", 0.0))

    def test_histories_and_servers(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """History files and a Prometheus server are read with the selection that was made."""
        asked: list[dict[str, Any]] = []

        def read_measurements(**chosen: Any) -> Measurements:
            asked.append(chosen)
            return arm(94)

        stand_in = types.ModuleType("ckpt_exporter.analysis.sources")
        monkeypatch.setattr(stand_in, "read_measurements", read_measurements, raising=False)
        monkeypatch.setitem(sys.modules, "ckpt_exporter.analysis.sources", stand_in)
        files = [tmp_path / name for name in ("a.db", "b.db")]
        for file in files:
            file.write_bytes(b"SQLite format 3\0")
        read_source(parse_source(f"{files[0]},{files[1]}?dir=llama&since=10000&run=r7", 0.0))
        read_source(parse_source("http://prom:9090?dir=llama&until=2d", 1_000_000.0))

        common = {
            "history": [],
            "prometheus": None,
            "since": None,
            "until": None,
            "directory": "llama",
            "run": None,
        }
        assert asked == [
            {**common, "history": [str(file) for file in files], "since": 10_000.0, "run": "r7"},
            {**common, "prometheus": "http://prom:9090", "until": 1_000_000.0 - 172_800},
        ]

    def test_one_mount_of_a_history(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The saves of one mount, or of half the GPUs, are measured by the training that they belong to."""
        # Half an hour apart, 100 s each: ten on the old mount, then ten on the new one, on four GPUs.
        old = [save_record(n, 100.0) for n in range(10)]
        new = [
            save_record(n, 100.0, mountpoint="/new", bubble_gpu_seconds=dict.fromkeys(range(4), 100.0))
            for n in range(10, 20)
        ]
        both = measurements([*old, *new])
        monkeypatch.setattr("ckpt_exporter.analysis.sources.read_measurements", lambda **_: both)
        file = tmp_path / "h.db"
        file.write_bytes(b"SQLite format 3\0")
        found = read_source(parse_source(f"{file}?mountpoint=/new", 0.0))

        # 1,700 s of training before the first of them, at 18,000 s; the last one ends at 34,300 s.
        assert (found.since_unix, found.until_unix) == (16_300.0, 34_300.0)
        assert {hour.gpu for hour in found.gpu_time} == {0, 1, 2, 3}
        assert sum(hour.observed_seconds for hour in found.gpu_time) == 4 * 18_000.0
        # Cut anywhere else, it would be 1,000 s of 36,000 s.
        assert compare(found, found).share.candidate.estimate == pytest.approx(1000 / 18_000)

    def test_moments(self) -> None:
        """Moments are ago, Unix seconds, or ISO dates in UTC."""
        assert moment("7d", 1_000_000.0) == 1_000_000 - 604_800
        assert moment("1764504000", 0) == 1_764_504_000
        assert moment("2025-11-30T12:00:00Z", 0) == moment("2025-11-30T13:00:00+01:00", 0) == 1_764_504_000
        assert moment("2025-11-30", 0) == 1_764_460_800


def test_strictness() -> None:
    """Exit status 1 stands for a failure, and when strict for lack of data, too."""
    results = judge(Gates(), Evidence(compare(arm(178), new_arm(40, 4))), ["G3"])

    assert exit_status(results, strict=False) == 0
    assert exit_status(results, strict=True) == 1
