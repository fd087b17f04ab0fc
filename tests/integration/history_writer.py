"""Write saves into a history and be killed at any moment, over and over; report what was said to be kept.

``python -m tests.integration.history_writer PATH KILLS SEED`` prints one JSON object: the steps that writers
reported after their commit, and how many writers did not get their file open.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import time
from dataclasses import replace

from ckpt_exporter.history.database import HistoryDatabase
from ckpt_exporter.history.failures import HistoryError
from ckpt_exporter.history.place import WriterLock
from tests.history_samples import FULL, MIDNIGHT


def write(path: str, first: int, report: int) -> None:
    """Write saves without end; after each commit say its step."""
    try:
        WriterLock(path)
        database = HistoryDatabase(path)
    except HistoryError as error:
        os.write(report, f"refused {error}\n".encode())
        os._exit(1)
    os.write(report, b"open\n")
    step = first
    while True:
        with database.transaction():
            database.add_save(replace(FULL, step=step, end_unix=MIDNIGHT + step))
        os.write(report, f"{step}\n".encode())
        step += 1


def one_life(path: str, first: int, seconds: float, *, opened: bool) -> list[str]:
    """Let one writer live for so long, counted from its opening the file if asked; return what it said."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        write(path, first, writing)
    os.close(writing)
    said = os.read(reading, 65536) if opened else b""
    ends = time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0:
        if select.select([reading], [], [], left)[0]:
            chunk = os.read(reading, 65536)
            if not chunk:
                break
            said += chunk
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    while chunk := os.read(reading, 65536):
        said += chunk
    os.close(reading)
    # What stands before the last newline was said in full.
    return said.decode().split("\n")[:-1]


def main(path: str, kills: int, seed: int) -> None:
    """Kill so many writers: each third within 40 ms of its start, the others within 40 ms of opening."""
    moments = random.Random(seed)
    reported: list[int] = []
    refused: list[str] = []
    opened = 0
    for life in range(kills):
        for line in one_life(path, life * 100_000, moments.uniform(0.0, 0.04), opened=life % 3 > 0):
            if line.startswith("refused"):
                refused.append(line)
            elif line == "open":
                opened += 1
            else:
                reported.append(int(line))
    print(json.dumps({"reported": reported, "refused": refused, "opened": opened}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
