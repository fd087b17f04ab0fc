"""Long runs by hand: ``python -m tests.fuzz request|stream|web_file --seconds 600``.

With atheris installed (``pip install atheris``) inputs follow coverage; else seeds are mutated at random.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

Target = Callable[[bytes], None]

MAX_GROWTH_BYTES = 64 * 1024 * 1024
WARM_UP_SECONDS = 5.0
WORDS = (b"\r\n", b"\0", b":", b" ", b"{", b"[", b"*", b"\xff", b"'", b"\n\n", b"- ")


def memory_bytes() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def mutated(seeds: tuple[bytes, ...], chance: random.Random) -> bytes:
    """Change a seed here and there."""
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.randrange(1, 8)):
        at, length = chance.randrange(len(data) + 1), chance.randrange(1, 20)
        kind = chance.randrange(4)
        if kind == 0:
            data[at : at + length] = chance.randbytes(length)
        elif kind == 1:
            del data[at : at + length]
        elif kind == 2:
            data[at:at] = data[at : at + length] * chance.choice((1, 2, 500))
        else:
            data[at:at] = chance.choice(
                (b"\r\n", b"\0", b":", b" ", b"{", b"[", b"*", b"\xff", b"'", b"\n\n", b"- ")
            )
    return bytes(data)


def guided(name: str, seconds: float) -> None:
    """Let atheris choose; it ends the process. Only what reads the input is instrumented."""
    import atheris  # type: ignore[import-not-found, unused-ignore]

    with atheris.instrument_imports(
        include=["ckpt_exporter.web", "ckpt_exporter.config", "yaml", "http.server"]
    ):
        targets = import_module("tests.fuzz.targets")
    corpus = Path(f"/tmp/ckpt-fuzz-{name}")
    corpus.mkdir(exist_ok=True)
    for number, seed in enumerate(targets.SEEDS[name]):
        (corpus / str(number)).write_bytes(seed)
    options = [f"-max_total_time={int(seconds)}", "-max_len=20000", "-rss_limit_mb=1024"]
    options += [f"-artifact_prefix={corpus}-", str(corpus)]
    atheris.Setup([sys.argv[0], *options], getattr(targets, name))
    atheris.Fuzz()


def at_random(target: Target, seeds: tuple[bytes, ...], seconds: float) -> None:
    """Mutate seeds until the time is up; memory must not grow."""
    chance, started, count, base = random.Random(), time.monotonic(), 0, 0
    while (elapsed := time.monotonic() - started) < seconds:
        target(mutated(seeds, chance))
        count += 1
        if not base and elapsed > WARM_UP_SECONDS:
            base = memory_bytes()
    growth = memory_bytes() - base if base else 0
    print(f"{count} inputs in {seconds:.0f} s, memory grew by {growth / 1e6:.1f} MB after the first 5 s")
    assert growth < MAX_GROWTH_BYTES


def main() -> None:
    """Run one target."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=("request", "stream", "web_file"))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--random", action="store_true", help="without atheris")
    options = parser.parse_args()
    if not options.random and options.target != "stream":
        try:
            guided(options.target, options.seconds)
        except ImportError:
            print("atheris is not installed: mutations at random")
    targets = import_module("tests.fuzz.targets")
    if options.target == "stream":
        stream = targets.Stream()
        at_random(stream, targets.SEEDS["request"], options.seconds)
        stream.close()
    else:
        at_random(getattr(targets, options.target), targets.SEEDS[options.target], options.seconds)


if __name__ == "__main__":
    main()
