"""Log lines: one safe line per event, whatever the values hold."""

from __future__ import annotations

import io
import json
import logging
import os
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ckpt_exporter.logs import (
    JsonFormatter,
    LineHandler,
    LogfmtFormatter,
    LogFormat,
    LogLevel,
    RepeatFilter,
    configure_logging,
    log_event,
    one_line,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SLOW_MACHINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
CREATED_UNIX = 1796025600.123  # 2026-11-30T08:00:00.123Z


class FakeClock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now


def record(message: str, level: int = logging.INFO, **fields: object) -> logging.LogRecord:
    """Make a record as ``log_event`` does."""
    made = logging.LogRecord("ckpt_exporter.x", level, "x.py", 1, message, None, None)
    made.created = CREATED_UNIX
    made.fields = fields
    return made


def parse_logfmt(line: str) -> dict[str, str]:
    """Take a logfmt line apart by the format's own rules: bare values, and JSON strings."""
    pairs = re.findall(r'([A-Za-z0-9_.]+)=("(?:[^"\\]|\\.)*"|[^ "]*)(?: |$)', line)
    assert " ".join(f"{key}={value}" for key, value in pairs) == line
    return {key: json.loads(value) if value.startswith('"') else value for key, value in pairs}


class Log:
    """The stream that logging was configured with."""

    def __init__(self) -> None:
        self.stream = io.StringIO()
        self.clock = FakeClock()

    def configure(self, level: LogLevel = "info", form: LogFormat = "logfmt") -> None:
        """Configure logging to this stream and clock."""
        configure_logging(level, form, self.stream, clock=self.clock)

    def lines(self) -> list[str]:
        """Return what was written, line by line."""
        return self.stream.getvalue().splitlines()

    def values(self) -> list[dict[str, str]]:
        """Return what was written, each logfmt line taken apart."""
        return [parse_logfmt(line) for line in self.lines()]


@pytest.fixture
def log() -> Iterator[Log]:
    """Give a log to configure, and put the root logger back afterwards."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield Log()
    root.setLevel(level)
    root.handlers[:] = handlers


LOGGER = logging.getLogger("ckpt_exporter.test")


class TestLogfmt:
    def test_line(self) -> None:
        """A line has time, level, message and the values in the order given."""
        line = LogfmtFormatter().format(record("save finished", dir="llama", step=500, seconds=1.5))

        assert line == (
            'ts=2026-11-30T08:00:00.123Z level=info msg="save finished" dir=llama step=500 seconds=1.5'
        )

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            ("plain", "plain"),
            ("/data/ckpt/step-500", "/data/ckpt/step-500"),
            ("模型", "模型"),
            ("", '""'),
            ("two words", '"two words"'),
            ("a=b", '"a=b"'),
            ('say "hi"', '"say \\"hi\\""'),
            ("back\\slash", '"back\\\\slash"'),
            ("a\nb", '"a\\nb"'),
            ("a\rb\tc", '"a\\rb\\tc"'),
            ("\x1b[31mred", '"\\u001b[31mred"'),
            ("\x7f", '"\\u007f"'),
            ("\x00", '"\\u0000"'),
            ("\x85", '"\\u0085"'),
            ("\u2028", '"\\u2028"'),
            ("\u202e", '"\\u202e"'),
            ("\U000e0001", '"\\udb40\\udc01"'),
            ("\udcff", '"\\\\xff"'),
            ("\ud800", '"\\\\ud800"'),
            (b"a\xff", '"a\\\\xff"'),
            (True, "true"),
            (False, "false"),
            (0, "0"),
            (0.1 + 0.2, "0.3"),
            (float("nan"), "nan"),
            (float("inf"), "inf"),
            (("a", 1, b"\xff"), '"a,1,\\\\xff"'),
            ([], '""'),
        ],
    )
    def test_values(self, value: object, expected: str) -> None:
        """Values that need it are JSON strings; an undecodable byte is shown as its number."""
        line = LogfmtFormatter().format(record("m", v=value))

        assert line == f"ts=2026-11-30T08:00:00.123Z level=info msg=m v={expected}"

    def test_unknown_is_left_out(self) -> None:
        """None means unknown and leaves no key."""
        assert LogfmtFormatter().format(record("m", step=None)).endswith(" msg=m")

    def test_keys_cannot_break_the_line(self) -> None:
        """A field can neither replace the line's own keys nor hold characters that end a key."""
        line = LogfmtFormatter().format(record("m", **{"msg": "x", "a b=\n": 1, "": 2}))  # type: ignore[arg-type]

        assert line.endswith(" msg=m msg_=x a_b__=1 _=2")

    def test_long_value_is_cut(self) -> None:
        """A value longer than the longest path is cut."""
        assert LogfmtFormatter().format(record("m", v="x" * 10_000)).endswith(" v=" + "x" * 4096 + "...")

    @pytest.mark.parametrize(
        ("level", "name"),
        [(10, "debug"), (20, "info"), (25, "info"), (30, "warn"), (40, "error"), (50, "error"), (1, "debug")],
    )
    def test_levels(self, level: int, name: str) -> None:
        """Every level has one of four names."""
        assert f" level={name} " in LogfmtFormatter().format(record("m", level))

    def test_other_packages(self) -> None:
        """A record of another package is formatted with its arguments, or beside them if they do not fit."""
        good = logging.LogRecord("watchdog", logging.INFO, "x.py", 1, "seen %s\n", ("a",), None)
        bad = logging.LogRecord("watchdog", logging.INFO, "x.py", 1, "seen %d", ("a",), None)

        assert LogfmtFormatter().format(good).endswith('msg="seen a\\n"')
        assert LogfmtFormatter().format(bad).endswith("msg=\"seen %d ('a',)\"")


class TestJson:
    def test_line(self) -> None:
        """A line is one JSON object whose numbers and switches stay what they are."""
        line = JsonFormatter().format(record("save finished", dir="llama", step=500, late=True, s=None))

        assert json.loads(line) == {
            "ts": "2026-11-30T08:00:00.123Z",
            "level": "info",
            "msg": "save finished",
            "dir": "llama",
            "step": 500,
            "late": True,
        }

    def test_not_a_number(self) -> None:
        """What JSON has no number for is text, so that every parser reads the line."""
        line = JsonFormatter().format(record("m", a=float("nan"), b=float("-inf")))

        assert json.loads(line, parse_constant=pytest.fail)["a"] == "nan"
        assert json.loads(line)["b"] == "-inf"


NAMES = st.binary(min_size=1, max_size=255)


class TestAnyName:
    @settings(SLOW_MACHINE)
    @given(name=NAMES)
    @example(name=bytes(range(1, 256)))
    @example(name=b'x" level=error msg="forged')
    def test_logfmt(self, name: bytes) -> None:
        """Any file name is one printable line that reads back as the name, bad bytes as their numbers."""
        line = LogfmtFormatter().format(record("save finished", path=os.fsdecode(name), end=1))
        values = parse_logfmt(line)

        assert line.isprintable()
        assert line.encode()
        assert values["path"] == name.decode("utf-8", "backslashreplace")
        assert list(values) == ["ts", "level", "msg", "path", "end"]

    @settings(SLOW_MACHINE)
    @given(name=NAMES)
    @example(name=bytes(range(1, 256)))
    def test_json(self, name: bytes) -> None:
        """Any file name is one line of printable ASCII that reads back as the name."""
        line = JsonFormatter().format(record("save finished", path=os.fsdecode(name)))

        assert line.isascii()
        assert line.isprintable()
        assert json.loads(line)["path"] == name.decode("utf-8", "backslashreplace")

    @settings(SLOW_MACHINE)
    @given(text=st.text(st.characters(codec=None)))
    def test_one_line(self, text: str) -> None:
        """Any text, lone surrogates included, becomes printable and encodable."""
        assert one_line(text).isprintable()
        assert one_line(text).encode() is not None

    @settings(SLOW_MACHINE)
    @given(text=st.text(st.characters(codec=None)))
    @pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
    def test_any_stream(self, encoding: str, text: str) -> None:
        """Any text reaches a stream of any encoding as exactly one line."""
        raw = io.BytesIO()
        handler = LineHandler(io.TextIOWrapper(raw, encoding=encoding, errors="strict", newline=""))
        handler.setFormatter(LogfmtFormatter())
        handler.handle(record(text, v=text))

        written = raw.getvalue()
        assert written.count(b"\n") == 1
        assert written.endswith(b"\n")
        assert b"\r" not in written


def raise_deep() -> None:
    """Raise an exception whose text has two lines."""
    raise ValueError("bad\nthing")


def caught(function: Callable[[], None]) -> Exception:
    """Return what the function raises."""
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError("must raise")


class TestExceptions:
    def test_one_line(self, log: Log) -> None:
        """An exception is told in one line: type, text, and the place it comes from."""
        log.configure()
        log_event(LOGGER, logging.ERROR, "source crashed", source="nvml", error=caught(raise_deep))

        (values,) = log.values()
        assert values["error"] == "ValueError: bad\nthing"
        assert re.fullmatch(r"test_logs\.py:\d+ raise_deep", values["at"])
        assert values["source"] == "nvml"
        assert "traceback" not in values

    def test_traceback_at_debug(self, log: Log) -> None:
        """At level debug the same line holds the whole traceback."""
        log.configure("debug")
        log_event(LOGGER, logging.ERROR, "source crashed", error=caught(raise_deep))

        (values,) = log.values()
        assert values["traceback"].startswith("Traceback (most recent call last):\n")
        assert "in caught" in values["traceback"]

    def test_exception_that_was_not_raised(self, log: Log) -> None:
        """An exception without a traceback has no place."""
        log.configure()
        log_event(LOGGER, logging.ERROR, "m", error=OSError(28, "No space left on device"))

        (values,) = log.values()
        assert values["error"] == "OSError: [Errno 28] No space left on device"
        assert "at" not in values

    def test_exception_that_cannot_say_what_it_is(self, log: Log) -> None:
        """An exception whose text fails does not break the line."""

        class MuteError(Exception):
            def __str__(self) -> str:
                raise RuntimeError

        log.configure()
        log_event(LOGGER, logging.ERROR, "m", error=MuteError())

        assert "MuteError: <exception str() failed>" in log.values()[0]["error"]

    def test_logger_exception(self, log: Log) -> None:
        """Another package's ``logger.exception`` gets the same single line."""
        log.configure()
        try:
            raise_deep()
        except ValueError:
            LOGGER.exception("failed")

        assert [values["error"] for values in log.values()] == ["ValueError: bad\nthing"]


class TestRepeatFilter:
    def test_once_a_minute(self) -> None:
        """A repeated message passes once a minute and then says how many were held back."""
        clock = FakeClock()
        repeat = RepeatFilter(clock)

        assert repeat.filter(record("m", dir="a"))
        clock.now += 59.9
        assert not repeat.filter(record("m", dir="a"))
        assert not repeat.filter(record("m", dir="a"))
        clock.now += 0.1
        third = record("m", dir="a")
        assert repeat.filter(third)
        assert LogfmtFormatter().format(third).endswith(" msg=m dir=a suppressed=2")
        clock.now += 60
        fourth = record("m", dir="a")
        assert repeat.filter(fourth)
        assert "suppressed" not in LogfmtFormatter().format(fourth)

    @pytest.mark.parametrize("field", ["problem", "key"])
    def test_all_that_is_wrong_with_one_file_is_told(self, field: str) -> None:
        """A bad file's second problem, and a second key that needs a restart, are no repetitions."""
        repeat = RepeatFilter(FakeClock())

        assert repeat.filter(record("configuration not reloaded", **{field: "c.yml: gpu: is wrong"}))
        assert repeat.filter(record("configuration not reloaded", **{field: "c.yml: web: is wrong"}))
        assert not repeat.filter(record("configuration not reloaded", **{field: "c.yml: gpu: is wrong"}))

    def test_what_is_the_same(self) -> None:
        """Another message, logger, level, directory, source, collector or GPU is no repetition."""
        repeat = RepeatFilter(FakeClock())
        other = record("m", dir="a")
        other.name = "other"

        assert repeat.filter(record("m", dir="a"))
        assert repeat.filter(record("n", dir="a"))
        assert repeat.filter(other)
        assert repeat.filter(record("m", logging.ERROR, dir="a"))
        assert repeat.filter(record("m", dir="b"))
        assert repeat.filter(record("m"))
        assert repeat.filter(record("m", dir="a", source="nvml"))
        assert repeat.filter(record("m", dir="a", collector="saves"))
        assert repeat.filter(record("m", dir="a", gpu=0))
        assert repeat.filter(record("m", problem="c.yml: a: is missing"))
        assert repeat.filter(record("m", problem="c.yml: b: is missing"))
        assert repeat.filter(record("m", key="web"))
        assert not repeat.filter(record("m", dir="a", path="/x", step=5))

    def test_arguments_do_not_matter(self) -> None:
        """The same format string with other arguments is a repetition."""
        repeat = RepeatFilter(FakeClock())
        passed = [
            repeat.filter(logging.LogRecord("w", logging.INFO, "x", 1, "seen %s", (name,), None))
            for name in "ab"
        ]

        assert passed == [True, False]

    def test_bounded_memory(self) -> None:
        """Only so many messages are remembered; the one logged longest ago is forgotten."""
        repeat = RepeatFilter(FakeClock(), max_messages=2)
        for name in ("a", "b", "c"):
            assert repeat.filter(record(name))

        assert not repeat.filter(record("b"))
        assert not repeat.filter(record("c"))
        assert repeat.filter(record("a"))

    def test_level(self) -> None:
        """Records below the level always pass."""
        repeat = RepeatFilter(FakeClock(), min_level=logging.WARNING)

        assert [repeat.filter(record("m")) for _ in range(3)] == [True, True, True]
        assert [repeat.filter(record("m", logging.WARNING)) for _ in range(3)] == [True, False, False]


class TestConfigure:
    @pytest.mark.parametrize(
        ("level", "expected"),
        [
            ("debug", ["debug", "info", "warn", "error"]),
            ("info", ["info", "warn", "error"]),
            ("warn", ["warn", "error"]),
            ("error", ["error"]),
        ],
    )
    def test_levels(self, log: Log, level: LogLevel, expected: list[str]) -> None:
        """Only what is at or above the level is written."""
        log.configure(level)
        for number in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
            log_event(LOGGER, number, "m")

        assert [values["level"] for values in log.values()] == expected

    def test_json(self, log: Log) -> None:
        """The JSON format is chosen by name."""
        log.configure(form="json")
        log_event(LOGGER, logging.INFO, "100% of %s", dir="a")

        assert json.loads(log.lines()[0])["msg"] == "100% of %s"

    def test_again(self, log: Log) -> None:
        """Configuring again replaces the first choice instead of doubling every line."""
        log.configure()
        log.configure()
        log_event(LOGGER, logging.INFO, "m")

        assert len(log.lines()) == 1

    def test_repeated_complaints(self, log: Log) -> None:
        """Repeated warnings are held back for a minute, repeated information is not."""
        log.configure()
        for level in (logging.INFO, logging.WARNING) * 3:
            log_event(LOGGER, level, "m", dir="a")
        log.clock.now += 60
        log_event(LOGGER, logging.WARNING, "m", dir="a")

        assert [(values["level"], values.get("suppressed")) for values in log.values()] == [
            ("info", None),
            ("warn", None),
            ("info", None),
            ("info", None),
            ("warn", "2"),
        ]

    def test_stream_that_is_gone(self, log: Log, capfd: pytest.CaptureFixture[str]) -> None:
        """A log that cannot be written is lost silently; the program goes on."""
        with open("/dev/full", "w") as full:
            configure_logging("info", "logfmt", full)
            log_event(LOGGER, logging.INFO, "m")
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, full.fileno())  # lets the stream close without failing on what it still holds
            os.close(nowhere)
        log_event(LOGGER, logging.INFO, "m")  # now it is closed

        assert capfd.readouterr() == ("", "")
