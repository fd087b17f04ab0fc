"""What the web server is compared with: the client library's own server, with as many series as ours."""

from __future__ import annotations

import sys
import threading

from prometheus_client import Gauge, start_http_server


def main() -> None:
    port, *pair = sys.argv[1:]
    gauge = Gauge("sample", "As many series as the exporter shows.", ["number"])
    for number in range(100):
        gauge.labels(str(number)).set(number)
    files = {"certfile": pair[0], "keyfile": pair[1]} if pair else {}
    start_http_server(int(port), addr="127.0.0.1", **files)
    threading.Event().wait()


if __name__ == "__main__":
    main()
