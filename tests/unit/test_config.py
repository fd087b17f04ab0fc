"""The configuration file: what is accepted, what every mistake is told, and the sample."""

# ruff: noqa: E501 (a table of mistakes reads best with one line each)

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ckpt_exporter.config.load import Watch, config_from_flags, load_config, parse_watch, web_from_flags
from ckpt_exporter.config.sample import reference_table, sample_text
from ckpt_exporter.config.schema import (
    Config,
    GpuSettings,
    HistorySettings,
    WebSettings,
    keys,
)
from ckpt_exporter.config.values import InvalidValueError, split_listen_address
from ckpt_exporter.errors import ConfigError, UsageError
from ckpt_exporter.model import DetectSettings, DirectorySettings

LAYOUTS = ("deepspeed", "torch_save")
SLOW_MACHINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
NOBODY = 65534
ONE = "directories: [{name: llama, path: /data/ckpt}]\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in an empty directory, so that the file is called ``c.yml`` in messages."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(content: str | bytes, **flags: object) -> Config:
    """Write the content to ``c.yml`` and load it."""
    Path("c.yml").write_bytes(content.encode() if isinstance(content, str) else content)
    return load_config("c.yml", LAYOUTS, **flags)  # type: ignore[arg-type]


def problems(content: str | bytes, **flags: object) -> list[str]:
    """Load content that must be refused and return what is wrong with it."""
    with pytest.raises(ConfigError) as caught:
        load(content, **flags)
    assert str(caught.value) == "\n".join(caught.value.problems)
    return list(caught.value.problems)


# --- what is accepted -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("here")
class TestGoodFiles:
    def test_every_key(self) -> None:
        """Every key of the file arrives in its setting, in the unit of the setting."""
        config = load("""
directories:
  - name: llama
    path: /data/ckpt
    layout: deepspeed
    ignore: ["*.log", "tmp*"]
  - {name: other, path: "/scratch/*/ckpt"}
detect: {quiet_seconds: 2.5, min_bytes: 500kB, stall_seconds: 30, incomplete_seconds: 3600}
gpu: {backend: none, sample_hz: 5}
history: {path: /var/h.db, retention: 12h}
web: {listen_address: "[::1]:9100", telemetry_path: /a/b, config_file: /etc/web.yml}
""")

        assert config == Config(
            directories=(
                DirectorySettings("llama", "/data/ckpt", "deepspeed", ("*.log", "tmp*")),
                DirectorySettings("other", "/scratch/*/ckpt", "auto", ()),
            ),
            detect=DetectSettings(2.5, 500_000, 30.0, 3600.0),
            gpu=GpuSettings("none", 5.0),
            history=HistorySettings("/var/h.db", 43_200),
            web=WebSettings("[::1]:9100", "/a/b", "/etc/web.yml"),
        )

    def test_defaults(self) -> None:
        """A file with directories alone gives the documented defaults."""
        config = load(ONE)

        assert config == Config((DirectorySettings("llama", "/data/ckpt"),))
        assert config.detect == DetectSettings(10.0, 1_048_576, 60.0, 600.0)
        assert config.gpu == GpuSettings("auto", 2.0)
        assert config.history == HistorySettings("/var/lib/ckpt-exporter/history.db", 7_776_000)
        assert config.web == WebSettings(":10047", "/metrics", None)

    def test_section_without_keys(self) -> None:
        """A section whose keys are all commented out keeps its defaults."""
        assert load(ONE + "detect:\n#  quiet_seconds: 5\ngpu:\n") == load(ONE)

    def test_paths_lose_noise(self) -> None:
        """Doubled and trailing slashes and single dots do not make another path."""
        assert load("directories: [{name: a, path: //data/./ckpt/}]").directories[0].path == "/data/ckpt"

    def test_history_size(self) -> None:
        """The history may hold 256 MiB unless the file says otherwise."""
        assert load(ONE).history.max_bytes == 268_435_456
        assert load(ONE + "history: {max_bytes: 1GB}").history.max_bytes == 1_000_000_000

    def test_history_can_be_off(self) -> None:
        """A null history path keeps no history."""
        assert load(ONE + "history: {path: null}").history.path is None

    def test_anchors_and_merges(self) -> None:
        """YAML anchors and merge keys work, and a merged key may be overridden without being a repetition."""
        config = load("""
directories:
  - &first {name: a, path: /a, layout: deepspeed}
  - {<<: *first, name: b, path: /b}
""")

        assert config.directories[1] == DirectorySettings("b", "/b", "deepspeed")

    def test_date_as_name(self) -> None:
        """A name that looks like a date is text."""
        assert load("directories: [{name: 2026-11-30, path: /a}]").directories[0].name == "2026-11-30"

    def test_byte_order_mark(self) -> None:
        """A UTF-8 byte order mark is no problem."""
        assert load(b"\xef\xbb\xbf" + ONE.encode()) == load(ONE)

    def test_undecodable_path(self) -> None:
        """A path with a byte that is not UTF-8 can be written with its escape."""
        assert os.fsencode(load('directories: [{name: a, path: "/\\udcff"}]').directories[0].path) == b"/\xff"

    def test_nested_directories(self) -> None:
        """A directory below another one is allowed; only the same path twice is a mistake."""
        assert len(load("directories: [{name: a, path: /a}, {name: b, path: /a/b}]").directories) == 2

    def test_longest_name(self) -> None:
        """A name may have 128 characters of any script."""
        assert load(f"directories: [{{name: {'模' * 128}, path: /a}}]").directories[0].name == "模" * 128

    @pytest.mark.parametrize(
        ("text", "size_bytes"),
        [
            ("0", 0),
            ("7", 7),
            ("0B", 0),
            ("512B", 512),
            ("1kB", 1000),
            ("1KB", 1000),
            ("500kB", 500_000),
            ("2MB", 2_000_000),
            ("1GB", 1_000_000_000),
            ("1TB", 1_000_000_000_000),
            ("1KiB", 1024),
            ("1MiB", 1_048_576),
            ("1.5GiB", 1_610_612_736),
            ("1 GiB", 1_073_741_824),
            ("1TiB", 1_099_511_627_776),
            ("'1048576'", 1_048_576),
            ("1_000", 1000),
        ],
    )
    def test_sizes(self, text: str, size_bytes: int) -> None:
        """Sizes are whole bytes or carry a decimal or binary unit."""
        assert load(f"{ONE}detect: {{min_bytes: {text}}}").detect.min_bytes == size_bytes

    @pytest.mark.parametrize(
        ("text", "seconds"),
        [("90d", 7_776_000), ("12h", 43_200), ("30m", 1800), ("45s", 45), ("60", 60), ("1d", 86_400)],
    )
    def test_retentions(self, text: str, seconds: int) -> None:
        """Retention is whole seconds or carries a unit."""
        assert load(f"{ONE}history: {{retention: {text}}}").history.retention_seconds == seconds


# --- what every mistake is told -------------------------------------------------------------------------

SIZE = "must be a size such as 1MiB, 500kB or 1048576"
DURATION = "must be a duration such as 90d, 12h, 30m, 45s or whole seconds"
ADDRESS = "must be an address such as :10047, 127.0.0.1:10047, [::1]:10047 or host:10047"
SECONDS = "must be above 0 and at most 31536000"


@pytest.mark.usefixtures("here")
class TestBadFiles:
    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            # the file as a whole
            ("", "c.yml: is empty, must have at least a list of directories"),
            ("# only a comment\n", "c.yml: is empty, must have at least a list of directories"),
            ("null\n", "c.yml: is empty, must have at least a list of directories"),
            ("- a\n", "c.yml: must be keys and values at the top level (got ['a'])"),
            ("text\n", "c.yml: must be keys and values at the top level (got 'text')"),
            ("a: [b\n", "c.yml: line 2, column 1: while parsing a flow sequence, expected ',' or ']', but got '<stream end>'"),
            ("detect:\n  a: b: c\n", "c.yml: line 2, column 7: mapping values are not allowed here"),
            ("gpu:\n\tbackend: none\n", "c.yml: line 2, column 1: while scanning for the next token, found character '\\t' that cannot start any token"),
            ("a: *b\n", "c.yml: line 1, column 4: found undefined alias 'b'"),
            (b"a: b\nc: \xff\n", "c.yml: line 2: must be UTF-8 (got byte 0xff)"),
            ("a: b\nc: \x00\n", "c.yml: line 2, column 4: character U+0000 is not allowed"),
            (ONE.encode("utf-16"), "c.yml: line 1: must be UTF-8 (got byte 0xff)"),
            ("[" * 33, "c.yml: line 1, column 33: nested more than 32 deep"),
            ("a: 1\n---\nb: 2\n", "c.yml: line 2, column 1: expected a single document in the stream, but found another document"),
            ("? [a]\n: b\n", "c.yml: line 1, column 3: while constructing a mapping, found unhashable key"),
            ("gpu: !!python/object:os.system x\n", "c.yml: line 1, column 6: could not determine a constructor for the tag 'tag:yaml.org,2002:python/object:os.system'"),
            ("gpu: {sample_hz: !!int x}\n", "c.yml: line 1, column 18: this cannot be read as int"),
            (f"gpu: {{sample_hz: {'9' * 5000}}}\n", "c.yml: line 1, column 18: this cannot be read as int"),
            ("x" * (1024 * 1024 + 1), "c.yml: is larger than 1 MiB, must be a configuration file"),
            # keys
            ("gpu: {}\n", "c.yml: directories: must name at least one directory"),
            ("directories: []\n", "c.yml: directories: must name at least one directory"),
            ("directories:\n", "c.yml: directories: must name at least one directory"),
            (ONE + "detct: {}\n", "c.yml: detct: unknown key (got {}); did you mean 'detect'?"),
            (ONE + "foo: 1\n", "c.yml: foo: unknown key (got 1); known keys: directories, detect, gpu, history, web, include"),
            (ONE + "7: x\n", "c.yml: 7: unknown key (got 'x'); known keys: directories, detect, gpu, history, web, include"),
            (ONE + "null: x\n", "c.yml: nothing: unknown key (got 'x'); known keys: directories, detect, gpu, history, web, include"),
            (ONE + '"a\\nb": x\n', "c.yml: a\\nb: unknown key (got 'x'); known keys: directories, detect, gpu, history, web, include"),
            (ONE + "quiet_seconds: 5\n", "c.yml: quiet_seconds: unknown key (got 5); did you mean 'detect.quiet_seconds'?"),
            (ONE + "detect: {quite_seconds: 5}\n", "c.yml: detect.quite_seconds: unknown key (got 5); did you mean 'quiet_seconds'?"),
            (ONE + "gpu: {retention: 5}\n", "c.yml: gpu.retention: unknown key (got 5); did you mean 'history.retention'?"),
            (ONE + "gpu: {zzz: 5}\n", "c.yml: gpu.zzz: unknown key (got 5); known keys: backend, sample_hz, url"),
            (ONE + "gpu:\n  backend: none\n  backend: nvml\n", "c.yml: gpu.backend: must be given once, stands on lines 3 and 4"),
            (ONE + "gpu: {}\nweb: {}\ngpu: {}\n", "c.yml: gpu: must be given once, stands on lines 2 and 4"),
            ("directories:\n- name: a\n  path: /a\n  path: /a\n  path: /a\n", "c.yml: directories[0].path: must be given once, stands on lines 3, 4 and 5"),
            # shapes
            (ONE + "detect: [1]\n", "c.yml: detect: must be keys and values (got [1])"),
            (ONE + "detect: 5\n", "c.yml: detect: must be keys and values (got 5)"),
            ("directories: {name: a, path: /a}\n", "c.yml: directories: must be a list (got {'name': 'a', 'path': '/a'})"),
            ("directories: [/data]\n", "c.yml: directories[0]: must be keys and values (got '/data')"),
            ("directories: [null]\n", "c.yml: directories[0]: must be keys and values (got nothing)"),
            # directories
            ("directories: [{path: /a}]\n", "c.yml: directories[0].name: is missing"),
            ("directories: [{name: a}]\n", "c.yml: directories[0].path: is missing"),
            ("directories: [{name: , path: /a}]\n", "c.yml: directories[0].name: must be text (got nothing)"),
            ("directories: [{name: 7, path: /a}]\n", "c.yml: directories[0].name: must be text, put it in quotes (got 7)"),
            ("directories: [{name: on, path: /a}]\n", "c.yml: directories[0].name: must be text, put it in quotes (got true)"),
            ("directories: [{name: [x], path: /a}]\n", "c.yml: directories[0].name: must be text (got ['x'])"),
            ("directories: [{name: '', path: /a}]\n", "c.yml: directories[0].name: must not be empty (got '')"),
            ("directories: [{name: ' ', path: /a}]\n", "c.yml: directories[0].name: must not be empty (got ' ')"),
            ('directories: [{name: "a\\nb", path: /a}]\n', "c.yml: directories[0].name: must not contain control characters (got 'a\\nb')"),
            ('directories: [{name: "\\ud800", path: /a}]\n', "c.yml: directories[0].name: must not contain control characters (got '\\ud800')"),
            (f"directories: [{{name: {'n' * 129}, path: /a}}]\n", f"c.yml: directories[0].name: must have at most 128 characters, has 129 (got '{'n' * 27}...{'n' * 28}')"),
            ("directories: [{name: a, path: ckpt}]\n", "c.yml: directories[0].path: must be an absolute path (got 'ckpt')"),
            ("directories: [{name: a, path: ~/ckpt}]\n", "c.yml: directories[0].path: must be an absolute path (got '~/ckpt')"),
            ("directories: [{name: a, path: ''}]\n", "c.yml: directories[0].path: must not be empty (got '')"),
            ("directories: [{name: a, path: /}]\n", "c.yml: directories[0].path: must be below / (got '/')"),
            ("directories: [{name: a, path: /a/../b}]\n", "c.yml: directories[0].path: must not contain '..' (got '/a/../b')"),
            ('directories: [{name: a, path: "/a\\0b"}]\n', "c.yml: directories[0].path: must not contain the NUL character (got '/a\\x00b')"),
            ('directories: [{name: a, path: "/\\ud800"}]\n', "c.yml: directories[0].path: must be a possible file name, has a character without bytes (got '/\\ud800')"),
            ("directories: [{name: a, path: /a, layout: deepsped}]\n", "c.yml: directories[0].layout: must be one of auto, deepspeed, torch_save, did you mean 'deepspeed'? (got 'deepsped')"),
            ("directories: [{name: a, path: /a, layout: 3}]\n", "c.yml: directories[0].layout: must be one of auto, deepspeed, torch_save (got 3)"),
            ("directories: [{name: a, path: /a, ignore: '*.log'}]\n", "c.yml: directories[0].ignore: must be a list of patterns (got '*.log')"),
            ("directories: [{name: a, path: /a, ignore: [x, 7]}]\n", "c.yml: directories[0].ignore[1]: must be text, put it in quotes (got 7)"),
            ("directories: [{name: a, path: /a}, {name: a, path: /b}]\n", "c.yml: directories[1].name: must be unique, directories[0] has it (got 'a')"),
            ("directories: [{name: a, path: /a}, {name: b, path: /a//}]\n", "c.yml: directories[1].path: must be unique, directories[0] has it (got '/a')"),
            # numbers
            (ONE + "detect: {quiet_seconds: 0}\n", f"c.yml: detect.quiet_seconds: {SECONDS} (got 0)"),
            (ONE + "detect: {quiet_seconds: -1}\n", f"c.yml: detect.quiet_seconds: {SECONDS} (got -1)"),
            (ONE + "detect: {quiet_seconds: .nan}\n", f"c.yml: detect.quiet_seconds: {SECONDS} (got nan)"),
            (ONE + "detect: {quiet_seconds: .inf}\n", f"c.yml: detect.quiet_seconds: {SECONDS} (got inf)"),
            (ONE + "detect: {quiet_seconds: true}\n", "c.yml: detect.quiet_seconds: must be a number (got true)"),
            (ONE + "detect: {quiet_seconds: 10s}\n", "c.yml: detect.quiet_seconds: must be a number (got '10s')"),
            (ONE + "detect: {quiet_seconds: }\n", "c.yml: detect.quiet_seconds: must be a number (got nothing)"),
            (ONE + "detect: {stall_seconds: [1]}\n", "c.yml: detect.stall_seconds: must be a number (got [1])"),
            (ONE + "detect: {incomplete_seconds: 31536001}\n", f"c.yml: detect.incomplete_seconds: {SECONDS} (got 31536001)"),
            (ONE + f"gpu: {{sample_hz: 0x{'f' * 5000}}}\n", "c.yml: gpu.sample_hz: must be above 0 and at most 100 (got a very long number)"),
            (ONE + "gpu: {sample_hz: 101}\n", "c.yml: gpu.sample_hz: must be above 0 and at most 100 (got 101)"),
            (ONE + "gpu: {backend: cuda}\n", "c.yml: gpu.backend: must be one of auto, nvml, dcmi, amdsmi, prometheus, none, simulated (got 'cuda')"),
            (ONE + "gpu: {backend: off}\n", "c.yml: gpu.backend: must be one of auto, nvml, dcmi, amdsmi, prometheus, none, simulated (got false)"),
            # sizes and durations
            (ONE + "detect: {min_bytes: -1}\n", "c.yml: detect.min_bytes: must be from 0 to 9223372036854775807 bytes (got -1)"),
            (ONE + "detect: {min_bytes: 9999999TiB}\n", "c.yml: detect.min_bytes: must be from 0 to 9223372036854775807 bytes (got '9999999TiB')"),
            (ONE + "detect: {min_bytes: 1M}\n", f"c.yml: detect.min_bytes: {SIZE} (got '1M')"),
            (ONE + "detect: {min_bytes: 1Mb}\n", f"c.yml: detect.min_bytes: {SIZE} (got '1Mb')"),
            (ONE + "detect: {min_bytes: 1iB}\n", f"c.yml: detect.min_bytes: {SIZE} (got '1iB')"),
            (ONE + "detect: {min_bytes: -1MiB}\n", f"c.yml: detect.min_bytes: {SIZE} (got '-1MiB')"),
            (ONE + "detect: {min_bytes: 1.0}\n", f"c.yml: detect.min_bytes: {SIZE} (got 1.0)"),
            (ONE + "detect: {min_bytes: 1.5B}\n", "c.yml: detect.min_bytes: must come to a whole number of bytes (got '1.5B')"),
            (ONE + "detect: {min_bytes: true}\n", f"c.yml: detect.min_bytes: {SIZE} (got true)"),
            (ONE + "detect: {min_bytes: '\u0661MiB'}\n", f"c.yml: detect.min_bytes: {SIZE} (got '\u0661MiB')"),
            (ONE + "history: {retention: 90}\nhistory: {retention: 5}\n", "c.yml: history: must be given once, stands on lines 2 and 3"),
            (ONE + "history: {retention: 0d}\n", "c.yml: history.retention: must be above 0 and at most 36500d (got '0d')"),
            (ONE + "history: {retention: 36501d}\n", "c.yml: history.retention: must be above 0 and at most 36500d (got '36501d')"),
            (ONE + "history: {retention: 3w}\n", f"c.yml: history.retention: {DURATION} (got '3w')"),
            (ONE + "history: {retention: 1.5}\n", f"c.yml: history.retention: {DURATION} (got 1.5)"),
            (ONE + "history: {retention: false}\n", f"c.yml: history.retention: {DURATION} (got false)"),
            (ONE + "history: {path: h.db}\n", "c.yml: history.path: must be an absolute path (got 'h.db')"),
            # web
            (ONE + "web: {listen_address: 10047}\n", f"c.yml: web.listen_address: {ADDRESS} (got 10047)"),
            (ONE + "web: {listen_address: null}\n", f"c.yml: web.listen_address: {ADDRESS} (got nothing)"),
            (ONE + "web: {listen_address: [':1', '1']}\n", f"c.yml: web.listen_address: {ADDRESS} (got [':1', '1'])"),
            (ONE + "web: {listen_address: [':1', ':1']}\n", "c.yml: web.listen_address: must be an address, or a list of different ones (got [':1', ':1'])"),
            (ONE + "web: {systemd_socket: yes please}\n", "c.yml: web.systemd_socket: must be true or false (got 'yes please')"),
            (ONE + "web: {max_requests: 0}\n", "c.yml: web.max_requests: must be a whole number from 1 to 1000 (got 0)"),
            (ONE + "web: {telemetry_path: metrics}\n", "c.yml: web.telemetry_path: must be a URL path such as /metrics (got 'metrics')"),
            (ONE + "web: {telemetry_path: /}\n", "c.yml: web.telemetry_path: must be a URL path such as /metrics (got '/')"),
            (ONE + "web: {telemetry_path: '/a?b'}\n", "c.yml: web.telemetry_path: must be a URL path such as /metrics (got '/a?b')"),
            (ONE + "web: {telemetry_path: /-/ready}\n", "c.yml: web.telemetry_path: must not be a health path (got '/-/ready')"),
            (ONE + "web: {config_file: web.yml}\n", "c.yml: web.config_file: must be an absolute path (got 'web.yml')"),
        ],
    )  # fmt: skip
    def test_one_mistake(self, content: str | bytes, expected: str) -> None:
        """Each mistake is told in one line with the file, the key, what is wrong and what was found."""
        assert problems(content) == [expected]

    def test_all_mistakes_in_order(self) -> None:
        """All mistakes of a file are told at once, in the order of the file."""
        assert problems("""
web: {listen_address: nowhere}
directories:
  - {name: a, path: a, layot: auto}
  - {path: /b}
gpu: {sample_hz: no, backend: cuda}
""") == [
            f"c.yml: web.listen_address: {ADDRESS} (got 'nowhere')",
            "c.yml: directories[0].path: must be an absolute path (got 'a')",
            "c.yml: directories[0].layot: unknown key (got 'auto'); did you mean 'layout'?",
            "c.yml: directories[1].name: is missing",
            "c.yml: gpu.sample_hz: must be a number (got false)",
            "c.yml: gpu.backend: must be one of auto, nvml, dcmi, amdsmi, prometheus, none, simulated (got 'cuda')",
        ]

    def test_long_values_are_shortened(self) -> None:
        """A value is shown in about 60 characters however long it is."""
        (problem,) = problems(ONE + "gpu: {backend: [" + "abc, " * 2000 + "]}")

        assert problem.startswith(
            "c.yml: gpu.backend: must be one of auto, nvml, dcmi, amdsmi, prometheus, none, simulated (got ['abc', "
        )
        assert len(problem) < 140

    def test_aliases_of_aliases_are_shortened(self) -> None:
        """A value of four levels of ten aliases each is shown without being written out."""
        levels = "".join(f"  - &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]\n" for n in range(1, 5))
        found = problems("directories:\n  - &l0 [x]\n" + levels)

        assert len(found) == 5
        assert all(len(problem) < 140 for problem in found)

    @pytest.mark.parametrize(
        "text", ["&a [*a]", "&a {b: *a" + ", <<: *a" * 500 + "}", "&a {<<: [{b: [*a]}]}"]
    )
    def test_value_that_contains_itself(self, text: str) -> None:
        """What contains itself is a mistake like any other, also where merging it would never end."""
        assert problems(text) == ["c.yml: line 1, column 1: this stands for what it is part of"]

    @pytest.mark.parametrize("level", ["[{}]", "{{<<: [{}]}}", "{{x: {{y: [{}]}}}}"])
    def test_aliases_that_stand_for_billions(self, level: str) -> None:
        """Nine levels of ten aliases each are refused before anything is made of them."""
        levels = (f"l{n}: &l{n} {level.format(', '.join([f'*l{n - 1}'] * 10))}\n" for n in range(1, 10))
        (found,) = problems("l0: &l0 {x: 1}\n" + "".join(levels))
        assert found == "c.yml: line 1, column 1: aliases stand for more than 100000 values"

    def test_missing_file(self) -> None:
        """A file that does not exist is named."""
        with pytest.raises(ConfigError, match=r"^nowhere\.yml: no such file$"):
            load_config("nowhere.yml", LAYOUTS)

    def test_directory_as_file(self, here: Path) -> None:
        """A directory is not a configuration file."""
        (here / "d").mkdir()
        with pytest.raises(ConfigError, match=r"^d: is a directory, must be a file$"):
            load_config("d", LAYOUTS)

    def test_unreadable_file(self, here: Path) -> None:
        """A file that may not be read says for which user it must be readable."""
        (here / "c.yml").write_text(ONE)
        (here / "c.yml").chmod(0)
        before = os.geteuid()
        user = NOBODY if before == 0 else before  # root may read every file
        os.seteuid(user)
        try:
            with pytest.raises(ConfigError) as caught:
                load_config("c.yml", LAYOUTS)
        finally:
            os.seteuid(before)

        assert str(caught.value) == f"c.yml: permission denied, must be readable for user id {user}"

    def test_strange_file_names(self) -> None:
        """A name with a NUL, a newline or below a file is told in one line."""
        for name, expected in (
            ("a\0b", "a\\u0000b: cannot be read: embedded null byte"),
            ("a\nb", "a\\nb: no such file"),
            ("\udcff", "\\xff: no such file"),
            ("/dev/null/x", "/dev/null/x: cannot be read: Not a directory"),
            ("/dev/zero", "/dev/zero: is larger than 1 MiB, must be a configuration file"),
        ):
            with pytest.raises(ConfigError) as caught:
                load_config(name, LAYOUTS)
            assert expected == str(caught.value)


# --- any structure at all -------------------------------------------------------------------------------

KNOWN_KEYS = sorted({key.name for key in keys(())} | {key.section for key in keys(())})
KNOWN_VALUES = ["auto", "/data/ckpt", "1MiB", "90d", "12h", ":10047", "*.log", "none", "llama", "..", "/"]
ANY_TEXT = st.text(st.characters(codec=None), max_size=12)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | ANY_TEXT
    | st.sampled_from(KNOWN_VALUES)
    | st.dates()
    | st.binary(max_size=8)
)
KEYS = st.sampled_from(KNOWN_KEYS) | ANY_TEXT | st.integers() | st.none() | st.booleans()
STRUCTURES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=25,
)
LIKELY = st.fixed_dictionaries(
    {"directories": st.lists(st.dictionaries(st.sampled_from(["name", "path", "layout", "ignore"]), SCALARS, max_size=4), max_size=3)},
    optional={name: st.dictionaries(st.sampled_from(KNOWN_KEYS), SCALARS, max_size=4) for name in ("detect", "gpu", "history", "web")},
)  # fmt: skip


@pytest.fixture(scope="module")
def any_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Name one file for all examples of a property."""
    return tmp_path_factory.mktemp("any") / "c.yml"


def load_any(file: Path, content: bytes) -> None:
    """Load any content and check that a refusal is printable lines about this file."""
    file.write_bytes(content)
    try:
        config = load_config(str(file), LAYOUTS)
    except ConfigError as error:
        found = error.problems
    else:
        assert config.directories
        return
    assert found
    for problem in found:
        assert problem.startswith(f"{file}: ")
        assert problem.isprintable()
        assert len(problem) < 600


class TestAnyInput:
    @settings(SLOW_MACHINE)
    @given(structure=STRUCTURES | LIKELY)
    def test_any_structure(self, any_file: Path, structure: object) -> None:
        """Whatever YAML holds, it is loaded or told as printable one-line problems; nothing else is raised."""
        load_any(any_file, yaml.safe_dump(structure).encode())

    @settings(SLOW_MACHINE)
    @given(content=st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
    @example(b"a: 0o9\nb: 1:99999999999999999999.5")
    @example(b"a: !!timestamp x\n")
    @example(b"a: !!bool x\n")
    @example(b"a: !!binary \xc3\xa9\n")
    @example(b"a: !!float ''\n")
    @example(b"<<: 3\n")
    @example(b"&a <<: *a\n")
    @example(b"a: " + b"1:" * 500 + b"1.5\n")
    def test_any_bytes(self, any_file: Path, content: bytes) -> None:
        """Whatever bytes the file has, nothing but a configuration error is raised."""
        load_any(any_file, content)


# --- the command line -----------------------------------------------------------------------------------


class TestWatch:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            ("/data/ckpt", Watch(None, "/data/ckpt")),
            ("/data/ckpt/", Watch(None, "/data/ckpt")),
            ("llama=/data/ckpt", Watch("llama", "/data/ckpt")),
            ("ckpt", Watch(None, "/home/u/ckpt")),
            ("./ckpt", Watch(None, "/home/u/ckpt")),
            ("../ckpt", Watch(None, "/home/ckpt")),
            ("llama=ckpt", Watch("llama", "/home/u/ckpt")),
            ("/data/lr=3/ckpt", Watch(None, "/data/lr=3/ckpt")),
            ("./lr=3", Watch(None, "/home/u/lr=3")),
            ("a=/data/lr=3", Watch("a", "/data/lr=3")),
            ("/data/*/ckpt", Watch(None, "/data/*/ckpt")),
        ],
    )
    def test_parse(self, value: str, expected: Watch) -> None:
        """The name ends at the first ``=`` that has no ``/`` before it; relative paths start at the cwd."""
        assert parse_watch([value], "/home/u") == (expected,)

    def test_home(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A ``~`` that the shell left alone is the home directory."""
        monkeypatch.setenv("HOME", "/home/u")

        assert parse_watch(["a=~/ckpt", "~/x"], "/") == (Watch("a", "/home/u/ckpt"), Watch(None, "/home/u/x"))

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            ("", "--watch: must not be empty (got '')"),
            ("=/a", "--watch: must not be empty (got '=/a')"),
            ("a=", "--watch: must not be empty (got 'a=')"),
            ("/", "--watch: must be below / (got '/')"),
            ("a\nb=/a", "--watch: must not contain control characters (got 'a\\nb=/a')"),
        ],
    )
    def test_mistakes(self, value: str, expected: str) -> None:
        """A mistake in a --watch value is a usage error of one line."""
        with pytest.raises(UsageError) as caught:
            parse_watch([value], "/home/u")

        assert expected == str(caught.value)

    def test_current_directory_is_gone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without a current directory relative paths are a usage error; absolute ones still work."""
        (tmp_path / "d").mkdir()
        monkeypatch.chdir(tmp_path / "d")
        (tmp_path / "d").rmdir()

        assert parse_watch(["/a"]) == (Watch(None, "/a"),)
        with pytest.raises(UsageError, match=r"^ckpt: the current directory is gone, give an absolute path$"):
            parse_watch(["ckpt"])


class TestConfigFromFlags:
    def names(self, *watch: str) -> list[tuple[str, str]]:
        """Return name and path of every directory that these --watch values give."""
        config = config_from_flags(LAYOUTS, watch=watch, cwd="/home/u")
        return [(directory.name, directory.path) for directory in config.directories]

    def test_names_are_made_unique(self) -> None:
        """Names come from the last path component, numbered where taken, also by an explicit name."""
        assert self.names("/a/ckpt", "/b/ckpt", "/c/ckpt", "ckpt-2=/d") == [
            ("ckpt", "/a/ckpt"),
            ("ckpt-3", "/b/ckpt"),
            ("ckpt-4", "/c/ckpt"),
            ("ckpt-2", "/d"),
        ]

    def test_any_file_name_makes_a_label(self) -> None:
        """A name of undecodable bytes, control characters or full length makes a valid unique label."""
        assert self.names("/\udcff", "/a\nb") == [("\\xff", "/\udcff"), ("a\\nb", "/a\nb")]
        long_names = self.names("/a/" + "x" * 255, "/b/" + "x" * 255)
        assert [len(name) for name, _ in long_names] == [120, 122]

    def test_same_path_twice(self) -> None:
        """The same path is watched once; its explicit name wins."""
        assert self.names("/a", "x=/a/", "/a") == [("x", "/a")]

    def test_same_name_twice(self) -> None:
        """One explicit name for two paths is a usage error."""
        with pytest.raises(UsageError, match=r"^--watch: name must be unique, /a has it too \(got 'x'\)$"):
            self.names("x=/a", "x=/b")

    def test_overrides(self) -> None:
        """Flags set their keys, relative paths start at the cwd, and a flag that was not given changes nothing."""
        config = config_from_flags(
            LAYOUTS,
            watch=["/a"],
            overrides={
                "web.listen_address": "127.0.0.1:0",
                "web.telemetry_path": None,
                "web.config_file": "web.yml",
                "history.path": "../h.db",
                "gpu.backend": "none",
            },
            cwd="/home/u",
        )

        assert config == Config(
            (DirectorySettings("a", "/a"),),
            gpu=GpuSettings(backend="none"),
            history=HistorySettings(path="/home/h.db"),
            web=WebSettings("127.0.0.1:0", "/metrics", "/home/u/web.yml"),
        )

    def test_bad_override(self) -> None:
        """A bad flag value is a usage error that names the flag."""
        with pytest.raises(UsageError) as caught:
            config_from_flags(LAYOUTS, watch=["/a"], overrides={"gpu.backend": "cuda"})

        assert (
            str(caught.value)
            == "--gpu.backend: must be one of auto, nvml, dcmi, amdsmi, prometheus, none, simulated (got 'cuda')"
        )

    def test_web_alone(self) -> None:
        """The web settings can be made of flags alone."""
        assert web_from_flags({"web.listen_address": ":0"}) == WebSettings(":0")


@pytest.mark.usefixtures("here")
class TestFileAndFlags:
    def test_flags_win(self) -> None:
        """A flag overrides the file's key and leaves the others of its section."""
        config = load(
            ONE + "web: {listen_address: ':1', telemetry_path: /x}", overrides={"web.listen_address": ":2"}
        )

        assert config.web == WebSettings(":2", "/x")

    def test_watch_adds(self) -> None:
        """--watch adds to the file's directories and avoids their names."""
        assert load(ONE, watch=["/x/llama"]).directories == (
            DirectorySettings("llama", "/data/ckpt"),
            DirectorySettings("llama-2", "/x/llama"),
        )

    def test_watch_replaces_missing_directories(self) -> None:
        """A file without directories is fine when --watch names some."""
        for content in ("gpu: {}", "directories: []", "directories:"):
            assert load(content, watch=["/x"]).directories == (DirectorySettings("x", "/x"),)

    def test_watch_of_a_configured_path(self) -> None:
        """A path that the file has keeps its settings and takes the name of the flag."""
        content = "directories: [{name: a, path: /a, layout: deepspeed}]"

        assert load(content, watch=["/a"]).directories == (DirectorySettings("a", "/a", "deepspeed"),)
        assert load(content, watch=["b=/a"]).directories == (DirectorySettings("b", "/a", "deepspeed"),)

    def test_watch_takes_a_configured_name(self) -> None:
        """A name that the file gives to another path is told."""
        assert problems(ONE, watch=["llama=/x"]) == [
            "c.yml: directories: name must be unique, /data/ckpt has it too (--watch /x) (got 'llama')"
        ]

    def test_empty_file_stays_an_error(self) -> None:
        """An empty file is a mistake even with --watch: somebody meant to configure something."""
        assert problems("", watch=["/x"]) == ["c.yml: is empty, must have at least a list of directories"]


# --- addresses ------------------------------------------------------------------------------------------


class TestListenAddress:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            (":10047", ("", 10047)),
            ("127.0.0.1:0", ("127.0.0.1", 0)),
            ("[::1]:9100", ("::1", 9100)),
            ("[::]:65535", ("::", 65535)),
            ("[fe80::1%eth0]:1", ("fe80::1%eth0", 1)),
            ("host:80", ("host", 80)),
            ("node-7.cluster.example:80", ("node-7.cluster.example", 80)),
        ],
    )
    def test_good(self, text: str, expected: tuple[str, int]) -> None:
        """An address is an empty host, a name, an IPv4 address or a bracketed IPv6 address, and a port."""
        assert split_listen_address(text) == expected

    @pytest.mark.parametrize(
        "text",
        ["", ":", "10047", "host", "host:", "host:http", ":-1", ":+1", ": 1", ":1 ", "::1:9100", "[::1]", "[::1:9100",
         "[127.0.0.1]:1", "256.0.0.1:1", "1.2.3:1", "a b:1", "http://host:1", "host/x:1", "-h:1", ":\u0661", ":100000", "\n:1"],
    )  # fmt: skip
    def test_bad(self, text: str) -> None:
        """Anything else is told with examples of what works."""
        with pytest.raises(InvalidValueError, match=r"^must be an address such as :10047, "):
            split_listen_address(text)

    def test_port_too_high(self) -> None:
        """A port above 65535 is told as such."""
        with pytest.raises(InvalidValueError, match=r"^must have a port from 0 to 65535$"):
            split_listen_address(":65536")


# --- sample and reference -------------------------------------------------------------------------------


@pytest.mark.usefixtures("here")
class TestSample:
    def test_loads_as_the_defaults(self) -> None:
        """The sample is valid and sets nothing but its directory to anything but the default."""
        config = load(sample_text())

        assert config == Config((DirectorySettings("llama", "/data/ckpt", "auto", ("*.log",)),))

    def test_shows_every_key(self) -> None:
        """The sample shows every key of the schema, a key without default as a comment."""
        lines = [line.strip().removeprefix("- ").removeprefix("# ") for line in sample_text().splitlines()]

        for key in keys(()):
            assert f"{key.name}: {key.example}" in lines
            assert key.section + ":" in lines

    def test_examples_are_valid(self) -> None:
        """The example of every key passes the key's own check."""
        for key in keys(()):
            value = yaml.safe_load(key.example)
            for item in value if key.many else [value]:
                key.read(item)

    def test_reference_lists_every_key(self) -> None:
        """The reference has one row a key, with its default and flag."""
        rows = reference_table(LAYOUTS).splitlines()

        assert len(rows) == 2 + len(keys(()))
        assert rows[2].startswith("| `directories[].name` | text | required |  | ")
        assert "Layouts: deepspeed, torch_save." in rows[4]
        assert rows[19].startswith(
            '| `web.listen_address` | address | `":10047"` | `--web.listen-address` | '
        )
        assert {row.count(" | ") for row in rows[2:]} == {4}
