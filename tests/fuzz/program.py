# ruff: noqa: E501, ISC004 (seeds and lists of names stand in one piece)
"""More targets: configuration files, recordings, file names, NVML messages, history files.

Like those of ``targets`` each takes any bytes, and fails where a promise is broken.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import logging
import os
import sqlite3
import struct
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from ckpt_exporter.analysis.document import Format
from ckpt_exporter.analysis.render import render
from ckpt_exporter.analysis.report import Scope
from ckpt_exporter.analysis.report_document import report
from ckpt_exporter.analysis.sources import read_measurements
from ckpt_exporter.config.load import load_config, load_fragment
from ckpt_exporter.detect.layouts import LAYOUT_NAMES
from ckpt_exporter.errors import CkptExporterError, ConfigError
from ckpt_exporter.history.database import HistoryDatabase
from ckpt_exporter.ledger import Ledger
from ckpt_exporter.logs import JsonFormatter, LogfmtFormatter
from ckpt_exporter.metrics import build_registry, expose
from ckpt_exporter.model import (
    DetectSettings,
    DirectorySettings,
    FileEvent,
    GpuSample,
    Progress,
    Save,
    Snapshot,
    Writers,
)
from ckpt_exporter.replay import as_json, as_table, replay
from ckpt_exporter.sources.nvml_gpu import ERRORS
from ckpt_exporter.sources.nvml_reader import NvmlReader
from ckpt_exporter.sources.sampler import SampledGpus
from ckpt_exporter.sources.sampler_pace import CallTimes
from ckpt_exporter.sources.sampler_process import ChildProcess
from ckpt_exporter.web.pages.status import StatusPage
from tests.history_samples import FULL, HOURS, LOAD, PLAIN, STALL
from tests.nvml_library import SimulatedNvml
from tests.unit.page_outline import Outline

MAX_PROBLEM_CHARACTERS = 1_000
_INTEGERS = ("util_ret", "instant_ret", "average_ret", "energy_ret", "usage_ret", "gpm_support", "metric_ret",
             "metric_nan", "mig", "smoothing", "smoothing_ret", "arch", "limit_ret", "ret", "handle_ret")  # fmt: skip
_DOUBLES = (
    "util",
    "mem_util",
    "power_w",
    "average_w",
    "limit_w",
    "sm",
    "tensor",
    "dram",
    "pcie_mib",
    "nvlink_mib",
)


@cache
def _file(name: str) -> Path:
    return Path(tempfile.mkdtemp(prefix="ckpt-fuzz-"), name)


def _check_lines(error: CkptExporterError, start: str = "") -> None:
    assert str(error)
    for line in str(error).split("\n"):
        assert line.startswith(start)
        assert line.isprintable(), line
        assert len(line) < MAX_PROBLEM_CHARACTERS


# --- configuration --------------------------------------------------------------------------------------


def config_file(data: bytes) -> None:
    """Any configuration file or fragment is either read or refused with one-line problems that name it."""
    path = _file("config.yml")
    path.write_bytes(data)
    reads: tuple[Callable[[], object], ...] = (
        lambda: load_config(os.fspath(path), LAYOUT_NAMES),
        lambda: load_fragment(os.fspath(path), LAYOUT_NAMES),
    )
    for read in reads:
        try:
            read()
        except ConfigError as error:
            _check_lines(error, start=f"{path}: ")


# --- recordings -----------------------------------------------------------------------------------------


def recording(data: bytes) -> None:
    """Any recording is replayed to a result that can be printed, or refused in one line."""
    path = _file("recording.jsonl")
    path.write_bytes(data)
    try:
        replayed = replay(os.fspath(path), DetectSettings())
    except CkptExporterError as error:
        _check_lines(error)
        return
    json.dumps(as_json(replayed))
    as_table(replayed)
    assert replayed.snapshot is not None
    check_outlets(replayed.snapshot)


# --- names ----------------------------------------------------------------------------------------------


def names(data: bytes) -> None:
    """Files of any name go through detector, exposition, page and log without breaking any of them."""
    root, *parts = data.split(b"\0")
    directory = DirectorySettings(os.fsdecode(root[:60]) or "d", "/data")
    saves: list[Save] = []
    ledger = Ledger((directory,), DetectSettings(quiet_seconds=1.0, min_bytes=1), on_save=saves.append)
    for number, part in enumerate(parts[:50]):
        _write(ledger, 10.0 * number, f"/data/{os.fsdecode(part)}")
    ledger.feed(Writers(1.0, directory.name, (7,), run=os.fsdecode(data[:99]), run_id=os.fsdecode(root)))
    ledger.tick(10_000.0)
    ledger.finish(10_001.0)
    check_outlets(ledger.snapshot(10_002.0, timelines=True))
    for save in saves:
        _check_log(save)


def _write(ledger: Ledger, t: float, path: str) -> None:
    ledger.feed(FileEvent(t, "create", path, size=0, inode="8:1:1"))
    ledger.feed(Progress(t + 1.0, path, 5_000_000, position=4_000_000, inode="8:1:1", writers=1))
    ledger.feed(FileEvent(t + 2.0, "close_write", path, size=5_000_000, inode="8:1:1"))
    ledger.tick(t + 4.0)


def _check_log(save: Save) -> None:
    fields = {"dir": save.directory, "path": save.path}
    record = logging.makeLogRecord(
        {"name": "x", "levelno": logging.INFO, "msg": "save ended", "fields": fields}
    )
    for formatter in (LogfmtFormatter(), JsonFormatter()):
        line = formatter.format(record)
        assert line.isprintable()
        assert len(line) < 60_000
    assert set(json.loads(line)) == {"ts", "level", "msg", "dir", "path"}


def check_outlets(snapshot: Snapshot) -> None:
    """Check that both formats parse and that the page holds one script and no tag of somebody else's."""
    registry = build_registry(lambda: snapshot)
    text = expose(registry, "text/plain").body.decode()
    openmetrics = expose(registry, "application/openmetrics-text;version=1.0.0").body.decode()
    for parsed in (list(parse_text(text)), list(parse_openmetrics(openmetrics))):
        failed = [
            s.labels for f in parsed for s in f.samples if s.name == "ckpt_collector_success" and not s.value
        ]
        assert parsed
        assert not failed, failed
    outline = Outline()
    outline.feed(StatusPage(lambda: snapshot, started=0.0)())
    assert [tag for tag, _ in outline.tags].count("script") == 1
    assert not {"img", "iframe", "object", "embed"} & {tag for tag, _ in outline.tags}
    assert not [name for _, attributes in outline.tags for name in attributes if name.startswith("on")]


# --- NVML -----------------------------------------------------------------------------------------------


class _Ended:
    """A process that is there until it is told to go."""

    pid = 1

    def poll(self) -> int | None:
        return None

    def wait(self, _seconds: float) -> int:
        return 0

    terminate = kill = poll


def _child(data: bytes) -> ChildProcess:
    read, write = os.pipe()
    os.write(write, data[:60_000])
    os.close(write)
    os.set_blocking(read, False)
    child = ChildProcess.__new__(ChildProcess)
    parts = {"_rest": b"", "_process": _Ended(), "_lines": os.fdopen(read, "rb", 0)}
    for name, value in (parts | {"_commands": open(os.devnull, "wb", 0)}).items():  # noqa: SIM115 (closed by end)
        setattr(child, name, value)
    return child


def nvml(data: bytes) -> None:
    """Whatever the sampler says is taken in or ends it; the daemon's state can be shown after it."""
    directory = DirectorySettings("d", "/data")
    ledger = Ledger((directory,), DetectSettings())
    logging.disable()
    source = SampledGpus(ledger.feed, saving=lambda: False, clock=lambda: 100.0)
    try:
        source._child = _child(data)
        source._guarded_step()
    finally:
        logging.disable(logging.NOTSET)
        if source._child is not None:
            source._child.end()
    ledger.tick(1e6)
    ledger.finish(1e6)
    check_outlets(ledger.snapshot(1e6, timelines=True))


@cache
def _library() -> tuple[SimulatedNvml, ctypes.CDLL]:
    """Load the simulated library into this process; the binding finds it by its name."""
    simulated = SimulatedNvml(Path(tempfile.mkdtemp(prefix="ckpt-fuzz-")), gpus=2)
    os.environ["SIMULATED_NVML_STATE"] = os.fspath(simulated.path)
    return simulated, ctypes.CDLL(os.fspath(simulated.library), mode=ctypes.RTLD_GLOBAL)


def nvml_values(data: bytes) -> None:
    """Whatever the driver answers becomes JSON of numbers and absent values, and no other error."""
    simulated, library = _library()
    times = CallTimes()
    reader = NvmlReader(library, times, clock=itertools.count(1.0, 0.3).__next__)
    reader.open()
    try:
        for at in range(0, min(len(data), 2000), 20):
            _change(simulated, data[at : at + 20])
            with contextlib.suppress(*ERRORS):
                reader.enumerate()
                reader.read_pids()
            rows = [reader.read(gpu) for gpu in reader.gpus]
            for row in json.loads(json.dumps(rows, allow_nan=False)):
                sample = GpuSample(row[0], row[1], "u", *row[2:])
                assert sample.util is None or 0 <= sample.util <= 1
    finally:
        simulated.count = 2
        reader.close()


def _change(simulated: SimulatedNvml, data: bytes) -> None:
    gpu, which, code, number, real = struct.unpack("<BBHid", data.ljust(16, b"\0")[:16])
    if which % 3 == 0:
        simulated.set(gpu % 2, **{_INTEGERS[code % len(_INTEGERS)]: number if which % 2 else number % 1000})
    elif which % 3 == 1:
        simulated.set(gpu % 2, **{_DOUBLES[code % len(_DOUBLES)]: real})
    else:
        simulated.count = gpu % 4


# --- history --------------------------------------------------------------------------------------------


@cache
def history_seed() -> bytes:
    """Return a small sound history."""
    path = _file("seed.db")
    with contextlib.closing(HistoryDatabase(os.fspath(path), wal=False)) as database, database.transaction():
        database.add_save(PLAIN)
        database.add_save(FULL)
        database.add_gpu_time(HOURS)
        database.add_load(LOAD)
        database.add_stall(STALL)
    return path.read_bytes()


def history(data: bytes) -> None:
    """Any history file gives a report in every format, or one line that says why not."""
    path = _file("history.db")
    path.write_bytes(data)
    report_on(path)


def report_on(path: Path, formats: Sequence[Format] = ("table", "json", "markdown", "html")) -> None:
    """Read a file and print its report in these formats."""
    try:
        document = report(read_measurements(history=[os.fspath(path)]), Scope())
    except CkptExporterError as error:
        _check_lines(error)
        return
    for output_format in formats:
        text = render(document, output_format)
        assert "\x1b" not in text
        assert output_format != "html" or "<script>alert" not in text
        if output_format == "json":
            json.loads(text, parse_constant=_refuse)


def _refuse(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def spoil(path: Path, table: str, column: str, value: object) -> None:
    """Put a value where another kind is expected, as somebody else's program could."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints = 1")
        first = "uuid = 'GPU-a'" if table == "gpu_time" else "id = 1"
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE {first}", (value,))


_START = (
    b'{"t": 0.0, "kind": "start", "unix": 1796015200.0, "directories": [{"name": "ckpt", "path": "/data"}],'
    b' "gpus": [{"gpu": 0, "uuid": "GPU-a", "name": "H100", "limit_w": 700}]}\n'
)
_FACTS = (
    b'{"t": 1.0, "kind": "file", "event": "create", "path": "/data/checkpoint-1/a.pt", "inode": "8:1:7"}\n'
    b'{"t": 1.5, "kind": "gpu", "gpu": 0, "uuid": "GPU-a", "util": 0.9, "power_w": 500.0, "sm": 0.8}\n'
    b'{"t": 2.0, "kind": "progress", "path": "/data/checkpoint-1/a.pt", "size": 2000000, "allocated": 2000000,'
    b' "position": 2000000, "writers": 1, "inode": "8:1:7"}\n'
    b'{"t": 2.2, "kind": "run", "name": "ckpt", "gpus": [0], "pids": [4711], "run_id": "9", "run": "x"}\n'
    b'{"t": 2.3, "kind": "space", "name": "ckpt", "available": 0, "size": 9}\n'
    b'{"t": 2.4, "kind": "watch", "name": "ckpt", "event": "overflow", "reason": "overflow"}\n'
    b'{"t": 3.0, "kind": "file", "event": "close_write", "path": "/data/checkpoint-1/a.pt", "size": 2000000}\n'
    b'{"t": 3.5, "kind": "file", "event": "moved", "path": "/data/checkpoint-1", "to": "/data/b", "dir": true}\n'
    b'{"t": 60.0, "kind": "stop"}\n'
)
SEEDS: Mapping[str, tuple[bytes, ...]] = {
    "config_file": (
        b"directories:\n- {name: a, path: /data, layout: auto, ignore: ['*.log']}\ndetect: {quiet_seconds: 1,"
        b" min_bytes: 1MiB}\ngpu: {backend: none, sample_hz: 2}\nhistory: {path: null, retention: 90d}\n"
        b"web: {listen_address: ':1'}\ninclude: {directory: /etc/x, keep_seconds: 5}\n",
        b"directories: [{name: &a b, path: /x, ignore: [*a, {? [1]: 2}]}]\n",
    ),
    "recording": (_START + _FACTS,),
    "names": (
        b'd\0checkpoint-1/a.pt\0global_step9/\xff\n"\0</script><img src=x>/step-3/__0_0.distcp\0'
        b"iter_0000001/\xe2\x80\xae\\\0epoch=1-step=99999999999999999999.ckpt\0../x\0//\0checkpoint--1/.metadata",
    ),
    "nvml": (
        b'{"kind":"init"}\n{"kind":"gpus","t":1.0,"gpus":[{"gpu":0,"uuid":"GPU-a","name":"H100","driver":"5",'
        b'"limit_w":700.0,"mig":false,"power_smoothing":null}]}\n{"kind":"pids","known":true,"pids":{"0":[7]}}\n'
        b'{"kind":"tick","rows":[[1.0,0,0.9,0.5,500.0,1.0,0.8,0.4,0.5,null,700.0,1,null]],"calls":[1,2],'
        b'"call_seconds":0.1}\n{"kind":"down","state":"crashed","text":"x"}\n{"kind":"alive"}\n',
    ),
    "nvml_values": (b"".join(struct.pack("<BBHid4x", n % 2, n, n, n * 7, n * 3.3) for n in range(60)),),
}  # fmt: skip
TARGETS: Mapping[str, Callable[[bytes], None]] = {
    "config_file": config_file,
    "recording": recording,
    "names": names,
    "nvml": nvml,
    "nvml_values": nvml_values,
    "history": history,
}


def seeds_of(target: str) -> tuple[bytes, ...]:
    """Return what to begin with; the history is made, as no binary file is kept."""
    return (history_seed(),) if target == "history" else SEEDS[target]
