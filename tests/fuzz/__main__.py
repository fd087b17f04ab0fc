"""Long runs by hand: ``python -m tests.fuzz TARGET --seconds 600``; ``--help`` lists the targets.

With atheris installed (``pip install atheris``) inputs follow coverage; else seeds are mutated at random.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

from tests.fuzz.program import TARGETS, seeds_of
from tests.fuzz.targets import SEEDS, Stream, Target, request, web_file

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


def guided(name: str, target: Target, seeds: tuple[bytes, ...], seconds: float) -> None:
    """Let atheris choose; it ends the process."""
    import atheris  # type: ignore[import-not-found, unused-ignore]

    corpus = Path("/tmp/ckpt-fuzz-corpus", name)
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds):
        (corpus / str(number)).write_bytes(seed)
    atheris.instrument_all()
    options = [
        sys.argv[0],
        f"-max_total_time={int(seconds)}",
        "-max_len=20000",
        "-rss_limit_mb=1024",
        str(corpus),
    ]
    atheris.Setup(options, target)
    atheris.Fuzz()


def at_random(target: Target, seeds: tuple[bytes, ...], seconds: float) -> None:
    """Mutate seeds until the time is up; memory must not grow."""
    chance, started, count, base = random.Random(), time.monotonic(), 0, 0
    while (elapsed := time.monotonic() - started) < seconds:
        data = mutated(seeds, chance)
        try:
            target(data)
        except BaseException:
            print(f"input {count}: {data!r}"[:20_000])
            raise
        count += 1
        if not base and elapsed > WARM_UP_SECONDS:
            base = memory_bytes()
    growth = memory_bytes() - base if base else 0
    print(f"{count} inputs in {seconds:.0f} s, memory grew by {growth / 1e6:.1f} MB after the first 5 s")
    assert growth < MAX_GROWTH_BYTES


def main() -> None:
    """Run one target."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=("request", "stream", "web_file", *TARGETS))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--random", action="store_true", help="without atheris")
    options = parser.parse_args()
    stream = Stream() if options.target == "stream" else None
    target: Target = stream or {"request": request, "web_file": web_file, **TARGETS}[options.target]
    seeds = (
        seeds_of(options.target)
        if options.target in TARGETS
        else SEEDS["request" if stream else options.target]
    )
    if not options.random and stream is None:
        try:
            guided(options.target, target, seeds, options.seconds)
        except ImportError:
            print("atheris is not installed: mutations at random")
    at_random(target, seeds, options.seconds)
    if stream is not None:
        stream.close()


if __name__ == "__main__":
    main()
