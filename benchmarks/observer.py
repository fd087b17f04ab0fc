"""What a user would write instead: a watchdog observer with the default mask that counts events."""

from __future__ import annotations

import signal
import sys

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer


class Counting(FileSystemEventHandler):
    def __init__(self) -> None:
        self.events = 0

    def on_any_event(self, event: FileSystemEvent) -> None:  # noqa: ARG002
        self.events += 1


def main(directory: str) -> None:
    counting, watching = Counting(), Observer()
    watching.schedule(counting, directory, recursive=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    watching.start()
    print("ready", flush=True)
    signal.sigwait({signal.SIGTERM})
    watching.stop()
    watching.join()


if __name__ == "__main__":
    main(sys.argv[1])
