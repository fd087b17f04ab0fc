"""Pure parts of the accelerators' sources: the choice of a backend, text of expositions, doubtful zeros."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from ckpt_exporter.bubble.activity import Power, scales
from ckpt_exporter.bubble.track import Track
from ckpt_exporter.config.schema import GPU_BACKENDS
from ckpt_exporter.config.values import InvalidValueError, read_http_url
from ckpt_exporter.model import GpuSample
from ckpt_exporter.sources.ascend import AscendDoubt, AscendShares
from ckpt_exporter.sources.backends import BACKENDS, present_backend
from ckpt_exporter.sources.exposition import Sample, samples
from ckpt_exporter.sources.exposition_tables import TABLES, plain_name
from ckpt_exporter.sources.sampler_reader import percent


def test_every_backend_can_be_configured() -> None:
    """The map of readers and the configuration's words agree."""
    assert {*BACKENDS, "auto", "none", "simulated"} == set(GPU_BACKENDS)


@pytest.mark.parametrize(
    ("present", "backend"),
    [
        ((), None),
        (("/dev/kfd",), "amdsmi"),
        (("/dev/davinci[0-9]*",), "dcmi"),
        (("/dev/nvidiactl", "/dev/kfd"), "nvml"),
        (("/proc/driver/nvidia/version",), "nvml"),
    ],
)
def test_auto_takes_what_is_there(present: tuple[str, ...], backend: str | None) -> None:
    """A device file or a loaded driver names the backend; another exporter is never guessed."""

    def matching(pattern: str) -> Iterable[str]:
        return (sign for sign in present if sign == pattern)

    assert present_backend(matching) == backend


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:9400/metrics", "http://[::1]:5000/metrics", "http://node-3/a/b", "http://h:8082"],
)
def test_urls_of_exporters(url: str) -> None:
    """Plain HTTP, a host, perhaps a port and a path."""
    assert read_http_url(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1/metrics",
        "file:///etc/passwd",
        "http://user:secret@host/metrics",
        "http:///metrics",
        "http://host:99999/metrics",
        "http://host/metrics?x=1",
        "http://ho st/metrics",
        "http://[::1/metrics",
        "127.0.0.1:9400",
        9400,
        None,
    ],
)
def test_what_is_no_url_of_an_exporter(url: object) -> None:
    """Another scheme, credentials, a query or no host at all."""
    with pytest.raises(InvalidValueError):
        read_http_url(url)


def test_lines_of_an_exposition() -> None:
    """Labels with escapes and commas, times in milliseconds, no labels; what is no sample is passed over."""
    lines = (
        '# HELP npu_x what{id="0"} 1',
        r'npu_x{id="0",name="a\"b,}\\ c",last="",} 1.5e2 1700000000500',
        "npu_y 7",
        "npu_z{} NaN",
        'npu_broken{id="0" 7',
        "npu_word seven",
        "",
    )
    found = list(samples(lines))
    assert found[:2] == [
        Sample("npu_x", {"id": "0", "name": 'a"b,}\\ c', "last": ""}, 150.0, 1700000000.5),
        Sample("npu_y", {}, 7.0, None),
    ]
    assert [sample.name for sample in found] == ["npu_x", "npu_y", "npu_z"]


@pytest.mark.parametrize("written", ["gpu_gfx_activity", "amd_gpu_gfx_activity", "GPU_GFX_ACTIVITY"])
def test_amds_exporter_writes_names_in_three_ways(written: str) -> None:
    """With a configured prefix, or in capitals: the same metric."""
    table = next(table for table in TABLES if table.exporter == "device-metrics-exporter")
    assert written.startswith(table.prefixes)
    assert plain_name(table, written) == "gpu_gfx_activity"


@pytest.mark.parametrize(
    ("value", "share"),
    [(0, 0.0), (41, 0.41), (100, 1.0), (101, None), (239, None), (-1, None), ("N/A", None), (True, None)],
)
def test_percents(value: Any, share: float | None) -> None:
    """A number from 0 to 100 is a share; a sentinel, a word or a failure is none."""
    assert percent(value) == share


NOTHING = AscendShares(None, None, None, None)


@pytest.mark.parametrize(
    ("told", "believed"),
    [
        # A chip at work and a chip at rest are believed.
        (AscendShares(0.9, 0.8, 0.4, 0.5), AscendShares(0.9, 0.8, 0.4, 0.5)),
        (AscendShares(0.0, 0.0, 0.0, 0.01), AscendShares(0.0, 0.0, 0.0, 0.01)),
        # Copying a checkpoint out moves a few percent, and is no work.
        (AscendShares(0.4, 0.0, 0.0, 0.04), AscendShares(0.4, 0.0, 0.0, 0.04)),
        # A profiler: both units 0 beside traffic of work.
        (AscendShares(0.9, 0.0, 0.0, 0.5), AscendShares(0.9, None, None, 0.5)),
        (AscendShares(None, 0.0, None, 0.5), AscendShares(None, None, None, 0.5)),
        # Without overall utilisation the busier of the units stands for it.
        (AscendShares(None, 0.2, 0.6, 0.3), AscendShares(0.6, 0.2, 0.6, 0.3)),
        (NOTHING, NOTHING),
    ],
)
def test_zeros_of_ascend(told: AscendShares, believed: AscendShares) -> None:
    """What the vendor's interface calls meaningless is unknown; all else is taken as told."""
    assert AscendDoubt().believe(told) == believed


def test_bandwidth_in_a_virtual_machine() -> None:
    """Never seen, it is unknown, and an overall utilisation tells a profiler from rest instead."""
    doubt = AscendDoubt()
    assert doubt.believe(AscendShares(0.9, 0.7, 0.4, 0.0)) == AscendShares(0.9, 0.7, 0.4, None)
    assert doubt.believe(AscendShares(0.9, 0.0, 0.0, 0.0)) == AscendShares(0.9, None, None, None)
    assert doubt.believe(AscendShares(0.1, 0.0, 0.0, 0.0)) == AscendShares(0.1, 0.0, 0.0, None)
    doubt.believe(AscendShares(0.9, 0.7, 0.4, 0.3))
    assert doubt.believe(AscendShares(0.0, 0.0, 0.0, 0.0)).traffic == 0.0


@pytest.mark.parametrize(
    ("spacing", "waiting_known", "quality"),
    [(0.5, True, "high"), (2.0, True, "high"), (2.5, True, "low"), (0.5, False, "low")],
)
def test_quality_of_coarse_and_of_unproven_readings(
    spacing: float, waiting_known: bool, quality: str
) -> None:
    """High needs readings at most 2 s apart, of hardware that was seen waiting."""
    track = Track(1000)
    for i in range(100):
        track.append(GpuSample(i * spacing, 0, power_w=500.0, sm=0.8, tensor=0.5, dram=0.5), gap=False)
    power = Power(limit_w=700.0, waiting_known=waiting_known)
    offered = list(scales(track.rows(0.0, 1e9), power))
    assert [(scale.source, scale.quality) for scale in offered] == [("gpm", quality), ("power", quality)]
