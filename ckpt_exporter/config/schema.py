"""The one table of configuration keys; validation, flags, sample file and reference come from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ckpt_exporter.config.values import (
    Read,
    number_up_to,
    one_of,
    optional,
    read_duration,
    read_file_path,
    read_http_url,
    read_listen_addresses,
    read_name,
    read_pattern,
    read_size,
    read_switch,
    read_telemetry_path,
    read_when,
    whole_number,
)
from ckpt_exporter.model import DetectSettings, DirectorySettings

if TYPE_CHECKING:
    from collections.abc import Collection

GPU_BACKENDS: Final = ("auto", "nvml", "dcmi", "amdsmi", "prometheus", "none", "simulated")
_MAX_LOOK_SECONDS: Final = 60
_MAX_CALLS: Final = 10_000
_YEAR_SECONDS: Final = 365 * 86400  # longer waits are a mistake in the unit
_MAX_REQUESTS: Final = 1000
_MAX_SAMPLE_HZ: Final = 100  # drivers refresh their counters less often than that


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """Where GPU samples come from, and how many a second; ``url`` is for the backend ``prometheus``."""

    backend: str = "auto"
    sample_hz: float = 2.0
    url: str = "http://127.0.0.1:9400/metrics"


@dataclass(frozen=True, slots=True)
class HistorySettings:
    """Where finished saves are kept, for how many seconds and in how many bytes; path None keeps none."""

    path: str | None = "/var/lib/ckpt-exporter/history.db"
    retention_seconds: int = 90 * 86400
    max_bytes: int = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class WebSettings:
    """Where to listen, the file with certificates and users, and how many requests may be in work at once.

    ``listen_address`` is a tuple where several are given; ``systemd_socket`` takes the service manager's
    sockets in its place.
    """

    listen_address: str | tuple[str, ...] = ":10047"
    telemetry_path: str = "/metrics"
    config_file: str | None = None
    systemd_socket: bool = False
    max_requests: int = 40


@dataclass(frozen=True, slots=True)
class IncludeSettings:
    """Where fragments come and go, and for how many seconds a directory outlives its fragment."""

    directory: str | None = None
    keep_seconds: float = 120.0


@dataclass(frozen=True, slots=True)
class Config:
    """All settings, checked. ``refused`` says what is wrong with each fragment that is not in force."""

    directories: tuple[DirectorySettings, ...]
    detect: DetectSettings = field(default_factory=DetectSettings)
    gpu: GpuSettings = field(default_factory=GpuSettings)
    history: HistorySettings = field(default_factory=HistorySettings)
    web: WebSettings = field(default_factory=WebSettings)
    include: IncludeSettings = field(default_factory=IncludeSettings)
    refused: tuple[str, ...] = ()


class Required:
    """Stands where a key has no default."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the file.

    ``section`` is the block it stands in (``directories`` holds a list of blocks), ``type`` a word for the
    reference, ``example`` YAML text, ``many`` a list of values, ``field`` the attribute of the settings when
    it is not called like the key, ``flag`` the command line option that overrides it.
    """

    section: str
    name: str
    type: str
    default: object
    read: Read
    help: str
    example: str
    many: bool = False
    field: str = ""
    flag: str | None = None
    repeatable: bool = False  # the flag may be given several times

    @property
    def path(self) -> str:
        """Return the key as messages and overrides call it, ``detect.quiet_seconds``."""
        return f"{self.section}.{self.name}"

    @property
    def is_path(self) -> bool:
        """Tell whether a relative value of the flag stands for a file."""
        return self.type.startswith("path")

    @property
    def attribute(self) -> str:
        """Return the name of the attribute in the settings."""
        return self.field or self.name


SECTIONS: Final = {
    "directories": "Directories in which checkpoints appear.",
    "detect": "When a burst of writes is a save, and when it has ended.",
    "gpu": "Where GPU samples come from.",
    "history": "Finished saves, kept over restarts.",
    "web": "Where the metrics are served.",
    "include": "Directories that come and go with jobs, without a reload.",
}

_DETECT: Final = DetectSettings()
_GPU: Final = GpuSettings()
_HISTORY: Final = HistorySettings()
_WEB: Final = WebSettings()
_INCLUDE: Final = IncludeSettings()


def keys(layouts: Collection[str]) -> tuple[Key, ...]:
    """Return every key of the file in its order; ``layouts`` are the layout names besides ``auto``."""
    return (
        _directory_keys(layouts)
        + _detect_keys()
        + _gpu_keys()
        + _history_keys()
        + _web_keys()
        + _include_keys()
    )


def _directory_keys(layouts: Collection[str]) -> tuple[Key, ...]:
    section = "directories"
    return (
        Key(
            section, "name", "text", Required, read_name,
            "Value of the `dir` label, unique, at most 128 characters.", "llama",
        ),
        Key(
            section, "path", "path", Required, read_file_path,
            "Absolute path. It may not exist yet and may be a symbolic link; `*` and `**` match names.",
            "/data/ckpt",
        ),
        Key(
            section, "layout", "word", "auto", one_of(tuple(dict.fromkeys(("auto", *layouts)))),
            "How the training framework names and commits checkpoints: `auto`, or the name of one layout.",
            "auto",
        ),
        Key(
            section, "ignore", "list of patterns", (), read_pattern,
            "File names that never belong to a checkpoint, added to the built-in list.", '["*.log"]',
            many=True,
        ),
        Key(
            section, "elsewhere", "word", "auto", read_when,
            "Whether other hosts' saves are looked for: `auto` (where other hosts can write), `on` or `off`.",
            "auto",
        ),
    )  # fmt: skip


def _detect_keys() -> tuple[Key, ...]:
    section, seconds = "detect", number_up_to(_YEAR_SECONDS)
    return (
        Key(
            section, "quiet_seconds", "seconds", _DETECT.quiet_seconds, seconds,
            "No open writer and no new bytes for so long ends a save without a commit marker.", "10",
        ),
        Key(
            section, "min_bytes", "size", _DETECT.min_bytes, read_size,
            "A smaller burst is not a save, unless its layout's name and commit marker match.", "1MiB",
        ),
        Key(
            section, "stall_seconds", "seconds", _DETECT.stall_seconds, seconds,
            "An open save with no new byte for so long is stalled.", "60",
        ),
        Key(
            section, "incomplete_seconds", "seconds", _DETECT.incomplete_seconds, seconds,
            "A save without its commit for so long, no writer left, is incomplete.", "600",
        ),
        Key(
            section, "elsewhere_interval_seconds", "seconds", _DETECT.elsewhere_interval_seconds,
            number_up_to(_MAX_LOOK_SECONDS), "How often other hosts' saves are looked for, at most 60.", "5",
        ),
        Key(
            section, "elsewhere_max_calls_per_second", "number", _DETECT.elsewhere_max_calls_per_second,
            number_up_to(_MAX_CALLS),
            "Metadata calls a second that this may cost the file server, for each directory.", "20",
        ),
    )  # fmt: skip


def _gpu_keys() -> tuple[Key, ...]:
    section = "gpu"
    return (
        Key(
            section, "backend", "word", _GPU.backend, one_of(GPU_BACKENDS),
            "Source of the samples: `auto`, `nvml` (NVIDIA), `dcmi` (Ascend), `amdsmi` (AMD), `prometheus` "
            "(another exporter on this node), `none` or `simulated`.", "auto", flag="--gpu.backend",
        ),
        Key(
            section, "sample_hz", "number", _GPU.sample_hz, number_up_to(_MAX_SAMPLE_HZ),
            "Samples a second of each GPU, at most 100.", "2",
        ),
        Key(
            section, "url", "URL", _GPU.url, read_http_url,
            "Metrics of the exporter that the backend `prometheus` reads.", "http://127.0.0.1:9400/metrics",
        ),
    )  # fmt: skip


def _history_keys() -> tuple[Key, ...]:
    section = "history"
    return (
        Key(
            section, "path", "path or null", _HISTORY.path, optional(read_file_path),
            "The history file; without one no history is kept.", "/var/lib/ckpt-exporter/history.db",
            flag="--history.path",
        ),
        Key(
            section, "retention", "duration", _HISTORY.retention_seconds, read_duration,
            "Older saves, loads, stalls are deleted: whole seconds, or a number with `d`, `h`, `m` or `s`.",
            "90d",
            field="retention_seconds",
        ),
        Key(
            section, "max_bytes", "size", _HISTORY.max_bytes, read_size,
            "When the file holds more, the oldest of them are deleted; the newest save always stays.",
            "256MiB",
        ),
    )  # fmt: skip


def _web_keys() -> tuple[Key, ...]:
    section = "web"
    return (
        Key(
            section, "listen_address", "address", _WEB.listen_address, read_listen_addresses,
            "Address and port; without an address all of them, IPv4 and IPv6. May be a list of several.",
            '":10047"', flag="--web.listen-address", repeatable=True,
        ),
        Key(
            section, "telemetry_path", "URL path", _WEB.telemetry_path, read_telemetry_path,
            "Where the metrics are.", "/metrics", flag="--web.telemetry-path",
        ),
        Key(
            section, "config_file", "path or null", _WEB.config_file, optional(read_file_path),
            "File with certificates and users, in the format of Prometheus exporters.",
            "/etc/ckpt-exporter/web.yml", flag="--web.config.file",
        ),
        Key(
            section, "systemd_socket", "switch", _WEB.systemd_socket, read_switch,
            "Listen on the sockets that systemd hands over, in place of `listen_address`.", "false",
            flag="--web.systemd-socket",
        ),
        Key(
            section, "max_requests", "number", _WEB.max_requests, whole_number(1, _MAX_REQUESTS),
            "Requests in work at once, at most 1000; more are answered 503.", "40", flag="--web.max-requests",
        ),
    )  # fmt: skip


def _include_keys() -> tuple[Key, ...]:
    section = "include"
    return (
        Key(
            section, "directory", "path or null", _INCLUDE.directory, optional(read_file_path),
            "Directory of fragments: `*.yml` files with a list of `directories` each, looked at every"
            " 2 seconds. A bad one is refused alone; whoever may write here decides what is watched.",
            "/run/ckpt-exporter.d", flag="--config.directory",
        ),
        Key(
            section, "keep_seconds", "seconds", _INCLUDE.keep_seconds, number_up_to(_YEAR_SECONDS),
            "A directory whose fragment is gone is watched for so long: its last save ends, and is scraped.",
            "120",
        ),
    )  # fmt: skip
