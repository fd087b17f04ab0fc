"""What it costs to follow a load: the exporter's processor time, and what its listening costs the readers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from benchmarks.processes import MEMORY, WATCHER_CORE, Running, exporter, observer, scratch, until
from benchmarks.report import Outcome, Row, at_most, spread
from ckpt_exporter.sources.inotify_calls import IDLE_MASK, READING_MASK, InotifyCalls

READERS = 8
SLEEPERS = 2000
OPENS = 20_000
SHORT_SECONDS = (0.01, 0.03, 0.1, 0.3)
SHORT_BYTES = 8 << 20
IDLE_SECONDS = 15.0
QUIET_SECONDS = 12.0  # by then a load is counted
# Reads all of a file again and again at a pace, or once as fast as it can; the others wait for their turn.
_READER = """
import sys, time
path, seconds = sys.argv[1], float(sys.argv[2])
block = bytearray(1 << 20)
print("ready", flush=True)
sys.stdin.readline()
begun = time.monotonic()
with open(path, "rb", buffering=0) as file:
    size, read = file.seek(0, 2), 0
    file.seek(0)
    while amount := file.readinto(block):
        read += amount
        time.sleep(max(0.0, begun + seconds * read / size - time.monotonic()))
print(time.monotonic() - begun, flush=True)
sys.stdin.readline()
"""
# Each holds a few descriptors, as any process does.
_SLEEPERS = """
import os
for _ in range({count}):
    if os.fork() == 0:
        held = [os.open("/dev/null", os.O_RDONLY) for _ in range(8)]
        os._exit(len(os.read(0, 1)))  # which comes when nobody holds the other end any more
print("ready", flush=True)
os.read(0, 1)
"""


def measure(quick: bool) -> Outcome:
    rounds = 2 if quick else 3
    seconds = 5.0 if quick else 10.0
    size = (256 << 20) if quick else (1 << 30)
    sleepers = 200 if quick else SLEEPERS
    short = 5 if quick else 10
    with scratch(MEMORY if _fits(size) else None) as directory:
        checkpoint = os.path.join(directory, "checkpoint-7")
        os.mkdir(checkpoint)
        path = os.path.join(checkpoint, "model.safetensors")
        _write(path, size)
        rows = [
            *_paced(directory, path, seconds, rounds, sleepers),
            *_warm(directory, path, rounds),
            *_opening(rounds),
        ]
    for count in (0, sleepers):
        rows += _short(short, count)
    return Outcome(
        "a plain watchdog observer of the same tree, which sees opens and closes but not who reads what",
        f"{READERS} processes read the same {size >> 20} MiB from memory: paced over {seconds:.0f} s, and "
        f"as fast as they can. Processor time of the whole exporter over that of the "
        f"clock, with nobody reading for {IDLE_SECONDS:.0f} s and during the load. Beside it "
        f"{sleepers} sleeping processes of eight descriptors each, which have to be passed over. Short "
        f"loads: {SHORT_BYTES >> 20} MiB from memory, each by a process and from a checkpoint of its own, "
        f"a second after the one before. Opens: {OPENS:,} opens and closes of an existing file, by the mask "
        "of an idle directory, by that while something is read there, and unwatched, in turn.",
        tuple(rows),
    )


def _fits(size: int) -> bool:
    found = os.statvfs(MEMORY)
    return found.f_bavail * found.f_frsize > 2 * size


def _write(path: str, size: int) -> None:
    block = os.urandom(1 << 20)
    with open(path, "wb", buffering=0) as file:
        for _ in range(size >> 20):
            file.write(block)


def _paced(directory: str, path: str, seconds: float, rounds: int, sleepers: int) -> Iterator[Row]:
    for count in (0, sleepers):
        with ExitStack() as stack:
            stack.enter_context(_sleeping(count))
            daemon = stack.enter_context(exporter(f"--watch=bench={directory}", core=WATCHER_CORE))
            plain = stack.enter_context(observer(directory, core=WATCHER_CORE))
            time.sleep(5.0)  # what it does at the start is no part of it
            idle = [_idle_share(daemon, IDLE_SECONDS / rounds) for _ in range(rounds)]
            loads = _loads(daemon)
            shares, took = _shares((daemon, plain), path, seconds)
            duration, told = _duration(daemon, loads), _last(daemon, "bytes")
        beside = f"{count} other processes"
        yield at_most(f"nobody reads, {beside}: exporter's share of one core", idle, 1.0, ".2f", " %")
        what = f"load of {took:.1f} s by {READERS} readers, {beside}"
        yield at_most(f"{what}: exporter's share of one core", [shares[0] * 100], 5.0, ".1f", " %")
        yield Row(f"{what}: observer's share of one core", f"{shares[1] * 100:.2f} %")
        yield Row(f"{what}: error of the duration", f"{duration - took:+.3f} s")
        yield Row(f"{what}: error of the bytes", f"{(told / os.path.getsize(path) - 1) * 100:+.2f} %")


def _idle_share(daemon: Running, seconds: float) -> float:
    before, begun = daemon.cpu_seconds, time.monotonic()
    time.sleep(seconds)
    return (daemon.cpu_seconds - before) / (time.monotonic() - begun) * 100


def _short(times: int, sleepers: int) -> Iterator[Row]:
    with scratch(MEMORY) as directory, _sleeping(sleepers):
        for step in range(times * len(SHORT_SECONDS)):
            path = _path(directory, step)
            os.mkdir(os.path.dirname(path))
            _write(path, SHORT_BYTES)
        took: dict[float, list[float]] = {}
        with exporter(f"--watch=bench={directory}", core=WATCHER_CORE) as daemon:
            for number, seconds in enumerate(SHORT_SECONDS):
                steps = range(number * times, (number + 1) * times)
                took[seconds] = [_load(_path(directory, step), seconds) for step in steps]
            time.sleep(QUIET_SECONDS)
            told = _told(daemon)
    for number, seconds in enumerate(SHORT_SECONDS):
        found = [told[step] for step in range(number * times, (number + 1) * times) if step in told]
        exact = sum(line["bytes"] == str(SHORT_BYTES) for line in found)
        guessed = sum("notes" in line for line in found)
        yield Row(
            f"loads of {seconds * 1000:.0f} ms, {sleepers} other processes: seen",
            f"{len(found)} of {times}, {exact} with all bytes, {guessed} of them with a note; they took "
            f"{spread([t * 1000 for t in took[seconds]], '.0f', ' ms')}",
        )


def _path(directory: str, step: int) -> str:
    return os.path.join(directory, f"checkpoint-{step}", "model.safetensors")


def _load(path: str, seconds: float) -> float:
    took = _read(path, seconds, readers=1)
    time.sleep(1.0)
    return took


def _told(daemon: Running) -> dict[int, dict[str, str]]:
    """Return the loads that the exporter logged, by their step."""
    with open(daemon.log, encoding="utf-8") as stream:
        lines = [dict(re.findall(r"(\w+)=(\S+)", line)) for line in stream if '"load ended"' in line]
    return {int(line["step"]): line for line in lines}


def _warm(directory: str, path: str, rounds: int) -> Iterator[Row]:
    with exporter(f"--watch=bench={directory}", core=WATCHER_CORE) as daemon:
        alone, watched = [], []
        for _ in range(rounds):
            loads, before = _loads(daemon), daemon.cpu_seconds
            watched.append(_read(path, 0.0))
            _duration(daemon, loads)
            alone.append(daemon.cpu_seconds - before)
    unwatched = [_read(path, 0.0) for _ in range(rounds)]
    what = f"{READERS} readers of {os.path.getsize(path) >> 20} MiB as fast as they can"
    yield Row(
        f"{what}: exporter's processor time, with the ten seconds of waiting", spread(alone, ".3f", " s")
    )
    yield Row(f"{what}: time, watched", spread(watched, ".3f", " s"))
    yield Row(f"{what}: time, unwatched", spread(unwatched, ".3f", " s"))


def _opening(rounds: int) -> Iterator[Row]:
    rates: dict[str, list[float]] = {"unwatched": [], "idle directory": [], "while something is read": []}
    with tempfile.TemporaryDirectory(prefix="ckpt-bench-", dir=MEMORY) as directory:
        path = os.path.join(directory, "model.pt")
        with open(path, "wb") as file:
            file.write(b"x")
        for _ in range(rounds):
            for name, mask in zip(rates, (0, IDLE_MASK, READING_MASK), strict=True):
                with _watch(directory, mask):
                    rates[name].append(_opens_per_second(path))
    for name, found in rates.items():
        yield Row(f"opens and closes a second, {name}", spread(found, ",.0f"))


def _opens_per_second(path: str) -> float:
    begun = time.process_time()
    for _ in range(OPENS):
        os.close(os.open(path, os.O_RDONLY))
    return OPENS / (time.process_time() - begun)


@contextmanager
def _watch(directory: str, mask: int) -> Iterator[None]:
    calls = InotifyCalls()
    fd = calls.init()
    try:
        if mask:
            calls.add_watch(fd, os.fsencode(directory), mask)
        yield
    finally:
        os.close(fd)


def _shares(watchers: Sequence[Running], path: str, seconds: float) -> tuple[list[float], float]:
    before = [watcher.cpu_seconds for watcher in watchers]
    took = _read(path, seconds)
    return [(w.cpu_seconds - b) / took for w, b in zip(watchers, before, strict=True)], took


def _read(path: str, seconds: float, readers: int = READERS) -> float:
    """Let all readers read at once; return how long the slowest took."""
    command = [sys.executable, "-c", _READER, path, str(seconds)]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(readers)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    took = max(float(process.stdout.readline()) for process in processes if process.stdout)
    for process in processes:
        process.communicate()
    return took


@contextmanager
def _sleeping(count: int) -> Iterator[None]:
    """Keep so many processes for the length of the block; they end with the other end of their input."""
    command = [sys.executable, "-S", "-c", _SLEEPERS.format(count=count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield


def _loads(daemon: Running) -> float:
    return daemon.metrics()['ckpt_loads_total{dir="bench"}']


def _duration(daemon: Running, before: float) -> float:
    until(lambda: _loads(daemon) > before, 40, "the load to be counted", every=0.5)
    return _last(daemon, "duration_seconds")


def _last(daemon: Running, what: str) -> float:
    return daemon.metrics()[f'ckpt_last_load_{what}{{dir="bench"}}']
