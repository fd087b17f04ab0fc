"""The command line: what is accepted, what is told, and the exit status."""

# ruff: noqa: E501 (a table of mistakes reads best with one line each)

from __future__ import annotations

import logging
import os
import platform
import subprocess
import sys
import types
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from ckpt_exporter import __version__
from ckpt_exporter.cli import COMMANDS, build_parser, main, parse_arguments
from ckpt_exporter.config.schema import Config, GpuSettings, HistorySettings, IncludeSettings, WebSettings
from ckpt_exporter.errors import CkptExporterError, ConfigError, UsageError
from ckpt_exporter.model import DirectorySettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GOOD = "directories:\n  - {name: llama, path: /data/ckpt, layout: deepspeed}\n"


@dataclass
class Rooms:
    """The rooms behind the subcommands, as the command line sees them."""

    calls: list[tuple[object, ...]] = field(default_factory=list)
    status: int = 0
    error: BaseException | None = None

    def answer(self, *arguments: object, **_named: object) -> int:
        """Note one call and end as the test wants."""
        self.calls.append(arguments)
        if self.error is not None:
            raise self.error
        return self.status


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Rooms]:
    """Stand in an empty directory with rooms that only note how they were called."""
    made = Rooms()
    for module, name, value in (
        ("ckpt_exporter.daemon", "run_exporter", made.answer),
        ("ckpt_exporter.demo", "run_demo", made.answer),
        ("ckpt_exporter.replay", "run_replay", made.answer),
        ("ckpt_exporter.detect.layouts", "LAYOUT_NAMES", ("deepspeed", "torch_save")),
    ):
        stand_in = types.ModuleType(module)
        setattr(stand_in, name, value)
        monkeypatch.setitem(sys.modules, module, stand_in)
    monkeypatch.chdir(tmp_path)
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield made
    root.setLevel(level)
    root.handlers[:] = handlers


def told(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Run a command that must fail as a usage error and return its one line."""
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("\n")
    assert err.count("\n") == 1
    return err.rstrip("\n")


class TestRun:
    def test_flags(self, rooms: Rooms, tmp_path: Path) -> None:
        """Every flag of run reaches the exporter, in its setting."""
        argv = (
            "run --watch a b=/b --watch /c --history.path h.db --gpu.backend=none"
            " --web.listen-address 127.0.0.1:0 --web.telemetry-path=/m --web.config.file=/etc/web.yml"
            " --record.path=r.jsonl --log.level=debug --log.format json"
        )

        assert main(argv.split()) == 0
        ((config, config_file, record_path, reload),) = rooms.calls
        assert config == Config(
            directories=(
                DirectorySettings("a", f"{tmp_path}/a"),
                DirectorySettings("b", "/b"),
                DirectorySettings("c", "/c"),
            ),
            gpu=GpuSettings("none"),
            history=HistorySettings(f"{tmp_path}/h.db"),
            web=WebSettings("127.0.0.1:0", "/m", "/etc/web.yml"),
        )
        assert (config_file, record_path) == (None, "r.jsonl")
        assert callable(reload)
        assert reload() == config

    def test_web_flags(self, rooms: Rooms) -> None:
        """Several listen addresses, sockets of systemd and a limit of requests reach the exporter."""
        argv = ["run", "--watch=/a", "--web.listen-address=:1", "--web.listen-address=[::1]:2"]
        assert main([*argv, "--web.systemd-socket", "--web.max-requests=7"]) == 0
        config = rooms.calls[0][0]
        assert isinstance(config, Config)
        assert config.web == WebSettings((":1", "[::1]:2"), systemd_socket=True, max_requests=7)

    def test_defaults(self, rooms: Rooms) -> None:
        """--watch alone gives the default settings and no recording."""
        assert main(["run", "--watch", "/data/ckpt"]) == 0
        assert rooms.calls[0][:3] == (Config((DirectorySettings("ckpt", "/data/ckpt"),)), None, None)

    def test_fragments_alone(self, rooms: Rooms) -> None:
        """A directory of fragments is enough to start with: jobs bring what there is to watch."""
        assert main(["run", "--config.directory=/run/nothing-yet"]) == 0
        config = rooms.calls[0][0]
        assert config == Config((), include=IncludeSettings("/run/nothing-yet"))

    def test_reload_reads_the_file_again(self, rooms: Rooms, tmp_path: Path) -> None:
        """Reloading reads the changed file with the same flags, and tells a bad one without a new start."""
        file = tmp_path / "c.yml"
        file.write_text(GOOD)
        assert main(["run", "--config.file=c.yml", "--watch", "x", "--web.listen-address=:1"]) == 0
        config, config_file, _, reload = rooms.calls[0]
        assert isinstance(config, Config)
        assert [directory.name for directory in config.directories] == ["llama", "x"]
        assert config_file == "c.yml"

        file.write_text(GOOD + "  - {name: new, path: /new}\nweb: {listen_address: ':2'}\n")
        assert callable(reload)
        changed = reload()
        assert [directory.name for directory in changed.directories] == ["llama", "new", "x"]
        assert changed.web.listen_address == ":1"

        file.write_text("directories: 5")
        with pytest.raises(ConfigError):
            reload()

    def test_nothing_to_watch(self, rooms: Rooms, capsys: pytest.CaptureFixture[str]) -> None:
        """Without configuration and --watch the one line says what to write."""
        assert told(capsys, "run") == (
            "ckpt-exporter: nothing to watch: write ckpt-exporter run --watch /path/to/checkpoints, "
            "or ckpt-exporter run --config.file=FILE with a list of directories"
        )
        assert rooms.calls == []

    def test_bad_file(self, rooms: Rooms, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        """A bad configuration file is told line by line and nothing starts."""
        (tmp_path / "c.yml").write_text("directories: []\ngpu: {backend: cuda}\nfoo: 1\n")

        assert main(["run", "--config.file=c.yml"]) == 2
        assert capsys.readouterr().err.splitlines() == [
            "c.yml: gpu.backend: must be one of auto, nvml, dcmi, amdsmi, prometheus, none, simulated (got 'cuda')",
            "c.yml: foo: unknown key (got 1); known keys: directories, detect, gpu, history, web, include",
        ]
        assert rooms.calls == []

    def test_logging_is_set_up(self, rooms: Rooms, capsys: pytest.CaptureFixture[str]) -> None:
        """The exporter starts with logging at the chosen level and format, on standard error."""

        def start(*_: object, **_named: object) -> int:
            logging.getLogger("ckpt_exporter.x").info("hidden")
            logging.getLogger("ckpt_exporter.x").warning("seen")
            return 0

        sys.modules["ckpt_exporter.daemon"].run_exporter = start  # type: ignore[attr-defined]
        assert main(["run", "--watch", "/a", "--log.level=warn", "--log.format=json"]) == 0
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        assert err.endswith(' "level": "warn", "msg": "seen"}\n')


class TestOtherCommands:
    def test_demo(self, rooms: Rooms) -> None:
        """The demo gets its address and how long to run."""
        assert main(["demo"]) == 0
        assert main(["demo", "--web.listen-address=:0", "--duration", "1.5", "--log.level=error"]) == 0
        assert rooms.calls == [(WebSettings(), None), (WebSettings(":0"), 1.5)]

    def test_replay(self, rooms: Rooms) -> None:
        """A replay gets the recording, the configuration file, the format and standard output."""
        assert main(["replay", "r.jsonl"]) == 0
        assert main(["replay", "--config.file=c.yml", "--format=json", "r.jsonl"]) == 0
        assert rooms.calls == [
            ("r.jsonl", None, "table", sys.stdout),
            ("r.jsonl", "c.yml", "json", sys.stdout),
        ]

    def test_check_good(self, rooms: Rooms, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        """A good file is told with the number of its directories and left as it is."""
        for content, expected in (
            (GOOD, "c.yml: ok (1 directory)\n"),
            (GOOD + "  - {name: b, path: /b}\n", "c.yml: ok (2 directories)\n"),
        ):
            (tmp_path / "c.yml").write_text(content)
            assert main(["check", "--config.file", "c.yml"]) == 0
            assert capsys.readouterr() == (expected, "")
            assert (tmp_path / "c.yml").read_text() == content
            assert os.listdir(tmp_path) == ["c.yml"]

    def test_check_bad(self, rooms: Rooms, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        """Every problem of a bad file is told on standard error."""
        (tmp_path / "c.yml").write_text("directories: [{name: a, path: a}, {path: /a, layout: x}]")

        assert main(["check", "--config.file=c.yml"]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.splitlines() == [
            "c.yml: directories[0].path: must be an absolute path (got 'a')",
            "c.yml: directories[1].layout: must be one of auto, deepspeed, torch_save (got 'x')",
            "c.yml: directories[1].name: is missing",
        ]

    def test_home(
        self, rooms: Rooms, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A ``~`` that the shell left alone in ``--config.file=~/c.yml`` is the home directory."""
        monkeypatch.setenv("HOME", "/nowhere")

        assert told(capsys, "check", "--config.file=~/c.yml") == "/nowhere/c.yml: no such file"


class TestMistakes:
    @pytest.mark.parametrize(
        ("argv", "expected"),
        [
            ([], "the following arguments are required: COMMAND (see ckpt-exporter --help)"),
            (["check"], "nothing to check: write --config.file=FILE or --web.config.file=FILE"),
            (["replay"], "the following arguments are required: FILE (see ckpt-exporter replay --help)"),
            (["run", "--watch"], "argument --watch: expected at least one argument (see ckpt-exporter run --help)"),
            (["run", "--wach", "/a"], "unknown option --wach, did you mean --watch? (see ckpt-exporter run --help)"),
            (
                ["run", "--watch=/a", "--web.listen-adress=:1"],
                "unknown option --web.listen-adress, did you mean --web.listen-address? (see ckpt-exporter run --help)",
            ),
            # an abbreviation is not taken for the option, or a new option could change what a unit file means
            (["run", "--wat", "/a"], "unknown option --wat, did you mean --watch? (see ckpt-exporter run --help)"),
            (["demo", "--zzz"], "unknown option --zzz (see ckpt-exporter demo --help)"),
            (
                ["run", "/data"],
                "unexpected argument '/data', did you mean --watch /data? (see ckpt-exporter run --help)",
            ),
            (["replay", "a", "b"], "unexpected argument 'b' (see ckpt-exporter replay --help)"),
            (["run", "a\n\udcff"], "unexpected argument 'a\\n\\xff', did you mean --watch a\\n\\xff? (see ckpt-exporter run --help)"),
            (["demo", "--duration=0"], "argument --duration: must be a number of seconds above 0 (got '0') (see ckpt-exporter demo --help)"),
            (["demo", "--duration=nan"], "argument --duration: must be a number of seconds above 0 (got 'nan') (see ckpt-exporter demo --help)"),
            (["demo", "--duration=x"], "argument --duration: must be a number of seconds above 0 (got 'x') (see ckpt-exporter demo --help)"),
            (["check", "--config.file="], "argument --config.file: must be a file name (got '') (see ckpt-exporter check --help)"),
            (["run", "--watch=/a", "--record.path="], "argument --record.path: must be a file name (got '') (see ckpt-exporter run --help)"),
            (["demo", "--web.listen-address=nowhere"], "--web.listen-address: must be an address such as :10047, 127.0.0.1:10047, [::1]:10047 or host:10047 (got 'nowhere')"),
            (["run", "--watch=/a", "--web.telemetry-path=m"], "--web.telemetry-path: must be a URL path such as /metrics (got 'm')"),
            (["run", "--watch=/a", "--gpu.backend=cuda"], "--gpu.backend: must be one of auto, nvml, dcmi, amdsmi, prometheus, none, simulated (got 'cuda')"),
            (["run", "--watch=/a", "--history.path="], "--history.path: must not be empty (got '')"),
            (["run", "--watch="], "--watch: must not be empty (got '')"),
        ],
    )  # fmt: skip
    def test_one_line(
        self, rooms: Rooms, capsys: pytest.CaptureFixture[str], argv: list[str], expected: str
    ) -> None:
        """A mistake is one line that names the program, what is wrong and where to read more; status 2."""
        assert told(capsys, *argv) == f"ckpt-exporter: {expected}"
        assert rooms.calls == []

    @pytest.mark.parametrize(
        "argv",
        [
            ["frobnicate"],
            ["run", "--watch=/a", "--log.level=loud"],
            ["run", "--watch=/a", "--log.format=xml"],
            ["replay", "--format=html", "r"],
            ["ru"],
        ],
    )
    def test_wrong_choice(self, rooms: Rooms, capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
        """A wrong word is one line with the words to choose from; status 2."""
        line = told(capsys, *argv)
        assert line.startswith("ckpt-exporter: argument ")
        assert "(choose from " in line

    @pytest.mark.parametrize("address", [":10047", "127.0.0.1:0", "[::1]:9100", "host:80"])
    def test_addresses(self, rooms: Rooms, address: str) -> None:
        """Every usual form of a listen address is taken."""
        assert main(["demo", f"--web.listen-address={address}"]) == 0
        assert rooms.calls == [(WebSettings(address), None)]


class TestExitStatus:
    @pytest.mark.parametrize(
        ("error", "status", "line"),
        [
            (CkptExporterError("port 10047 is in use"), 1, "ckpt-exporter: port 10047 is in use\n"),
            (UsageError("cannot record here"), 2, "ckpt-exporter: cannot record here\n"),
            (ConfigError(["c.yml: a: x", "c.yml: b: y"]), 2, "c.yml: a: x\nc.yml: b: y\n"),
            (CkptExporterError("bad name a\nb\x1b\udcff"), 1, "ckpt-exporter: bad name a\\nb\\u001b\\xff\n"),
            (KeyboardInterrupt(), 130, ""),
            (BrokenPipeError(), 1, ""),
        ],
    )
    def test_errors(
        self, rooms: Rooms, capsys: pytest.CaptureFixture[str], error: BaseException, status: int, line: str
    ) -> None:
        """Each kind of error has its status and its lines on standard error, without a traceback."""
        rooms.error = error

        assert main(["run", "--watch=/a"]) == status
        assert capsys.readouterr() == ("", line)

    def test_status_of_the_room(self, rooms: Rooms) -> None:
        """The status of the room is the status of the program."""
        rooms.status = 1

        assert main(["replay", "r"]) == 1

    def test_bug(self, rooms: Rooms) -> None:
        """An error of the program itself is not hidden."""
        rooms.error = RuntimeError("bug")

        with pytest.raises(RuntimeError, match="bug"):
            main(["replay", "r"])


@pytest.mark.parametrize(
    "argv",
    [["project", "--run-seconds=36000", "--saves=20", "--save-seconds=178"], ["compare", "--print-gates"]],
)
def test_full_disk(argv: list[str]) -> None:
    """A result that cannot be written for lack of room is one line and status 1, no traceback."""
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ckpt_exporter", *argv],
            check=False,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )

    assert done.returncode == 1
    assert done.stderr == "ckpt-exporter: cannot write the output: No space left on device\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_80_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The help of every command can be read on the smallest terminal."""
    monkeypatch.setenv("COLUMNS", "80")
    _, commands = build_parser()

    assert [line for line in commands[name].format_help().splitlines() if len(line) > 80] == []


def command(*argv: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Run the program as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "ckpt_exporter", *argv],
        check=False,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        **options,  # type: ignore[call-overload]
    )


class TestProgram:
    def test_version(self) -> None:
        """--version prints program, version and Python on standard output."""
        done = command("--version", stdout=subprocess.PIPE)

        expected = f"ckpt-exporter {__version__} (python {platform.python_version()})\n"
        assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")

    @pytest.mark.parametrize("argv", [[], ["run"], ["demo"], ["check"], ["replay"]])
    def test_help(self, capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
        """--help of the program and of every command prints its usage and ends with status 0."""
        assert main([*argv, "--help"]) == 0
        assert capsys.readouterr().out.startswith(" ".join(["usage: ckpt-exporter", *argv, "[-h]"]))

    def test_broken_pipe(self) -> None:
        """A reader that went away ends the program without a word."""
        reader, writer = os.pipe()
        os.close(reader)
        try:
            done = command("--help", stdout=writer, env={**os.environ, "PYTHONUNBUFFERED": ""})
        finally:
            os.close(writer)

        assert (done.returncode, done.stderr) == (1, "")

    def test_closed_standard_output(self) -> None:
        """Standard output that was closed by the caller is no traceback."""
        done = command("--help", preexec_fn=lambda: os.close(1))

        assert done.returncode == 0
        assert done.stderr.startswith("usage: ckpt-exporter ")  # the only stream that is left

    def test_arguments_of_the_process(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Without arguments of its own, main takes those of the process."""
        monkeypatch.setattr(sys, "argv", ["ckpt-exporter", "frobnicate"])

        assert main() == 2
        assert "'frobnicate'" in capsys.readouterr().err

    def test_typed_arguments(self) -> None:
        """Parsed arguments have their types and defaults."""
        parsed = parse_arguments(["replay", "r.jsonl"])

        assert parsed.command == "replay"
        assert parsed.recording == "r.jsonl"
        assert parsed.output_format == "table"
        assert parsed.config_file is None
