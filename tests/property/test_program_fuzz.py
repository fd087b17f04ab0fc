# ruff: noqa: E501 (lists of words)
"""Hostile configurations, recordings, names, NVML answers, histories; ``python -m tests.fuzz`` runs long."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckpt_exporter.history.rows import GPU_COLUMNS, LOAD_COLUMNS, SAVE_COLUMNS, STALL_COLUMNS
from tests.fuzz.program import (
    TARGETS,
    config_file,
    history,
    history_seed,
    names,
    nvml,
    nvml_values,
    recording,
    report_on,
    seeds_of,
    spoil,
)

if TYPE_CHECKING:
    from pathlib import Path

WORDS = st.sampled_from(
    ["directories", "name", "path", "layout", "ignore", "detect", "quiet_seconds", "history", "retention", "web",
     "include", "directory", "keep_seconds", "auto", "/data", "1MiB", "90d", "1e999", "0x", "null", "true", ": ",
     "\n", "\n  ", "\n- ", "- ", "{", "}", "[", "]", "&a", "*a", "<<", "!!binary", "'", '"', "#", "|", "? ", ","]
)  # fmt: skip
JUNK = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
        st.sampled_from([10**30, -1, "/data/a", "/data/checkpoint-1/a.pt", "8:1:7", "create", "GPU-a", float("nan")]),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)  # fmt: skip
LINES = [json.loads(line) for line in seeds_of("recording")[0].splitlines()]
SAID = [json.loads(line) for line in seeds_of("nvml")[0].splitlines()]


@st.composite
def spoiled(draw: st.DrawFn, lines: list[dict[str, object]]) -> bytes:
    """Draw lines of which some values are replaced by something else."""
    chosen = [dict(line) for line in lines]
    for _ in range(draw(st.integers(1, 4))):
        line = draw(st.sampled_from(chosen))
        line[draw(st.sampled_from(sorted(line)))] = draw(JUNK)
    return "\n".join(map(json.dumps, chosen)).encode() + b"\n"


quick = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@quick
@given(st.lists(WORDS, max_size=40).map(lambda words: "".join(words).encode()) | st.binary(max_size=100))
def test_any_configuration_file(data: bytes) -> None:
    """Any configuration file or fragment is read or refused in lines; nothing else is raised."""
    config_file(data)


@quick
@given(spoiled(LINES) | st.binary(max_size=100))
def test_any_recording(data: bytes) -> None:
    """A recording with values of any kind is replayed without them, or refused in one line."""
    recording(data)


@quick
@given(st.lists(st.binary(max_size=60) | st.just(b"checkpoint-1/x.pt"), max_size=5).map(b"\0".join))
def test_any_file_name(data: bytes) -> None:
    """Files of any name leave metrics that parse, a page without foreign tags and lines of log."""
    names(data)


@quick
@given(spoiled(SAID) | st.binary(max_size=100))
def test_any_message_of_the_gpu_sampler(data: bytes) -> None:
    """Whatever the sampler process says, the daemon goes on and its metrics parse."""
    nvml(data)


@quick
@given(st.binary(max_size=400))
def test_any_answer_of_the_driver(data: bytes) -> None:
    """Whatever the driver answers is a number, absent or a GPU that can't be read."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is missing: the simulated NVML library can't be compiled")
    nvml_values(data)


@quick
@given(st.lists(st.tuples(st.integers(0, 2**31), st.binary(min_size=1, max_size=9)), max_size=6))
def test_any_history_file(patches: list[tuple[int, bytes]]) -> None:
    """A history with any bytes changed gives a report or one line that says why not."""
    data = bytearray(history_seed())
    for at, patch in patches:
        start = at % len(data)
        data[start : start + len(patch)] = patch
    history(bytes(data))


@pytest.mark.parametrize(
    "value", ["<script>alert(1)</script>\x1b[31m", b"\xff\xfe", 9e999, 2**62, 1e-320, -1.0]
)
def test_a_history_of_wrong_kinds(tmp_path: Path, value: object) -> None:
    """A column that holds another kind of value than it should does not break the report."""
    tables = {
        "saves": SAVE_COLUMNS, "gpu_time": GPU_COLUMNS, "loads": LOAD_COLUMNS, "stalls": STALL_COLUMNS,
    }  # fmt: skip
    for table, columns in tables.items():
        for column in columns:
            path = tmp_path / "history.db"
            path.write_bytes(history_seed())
            spoil(path, table, column, value)
            report_on(path, ("html",) if isinstance(value, str) else ("json",))


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_seeds_of_the_long_runs(target: str) -> None:
    """The seeds of the long runs are understood by their targets."""
    if target == "nvml_values" and shutil.which("gcc") is None:
        pytest.skip("gcc is missing: the simulated NVML library can't be compiled")
    for seed in seeds_of(target):
        TARGETS[target](seed)
