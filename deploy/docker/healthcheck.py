"""Ask the exporter in this container whether it is healthy: exit status 0 or 1, a line on failure.

``HEALTHCHECK_URL`` says where, if it does not listen at the default address or speaks TLS.
"""

from __future__ import annotations

import os
import ssl
import sys
import urllib.request
from urllib.error import URLError

URL = os.environ.get("HEALTHCHECK_URL", "http://127.0.0.1:10047/-/healthy")


def check(url: str) -> str | None:
    """Return what is wrong, None if nothing is."""
    # Its own loopback address: the certificate is for the name under which others know it.
    context = ssl._create_unverified_context()  # noqa: S323, SLF001
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    try:
        with opener.open(url, timeout=4):
            return None
    except (URLError, OSError, ValueError) as error:
        return f"{url}: {error}"


if __name__ == "__main__":
    problem = check(URL)
    if problem is not None:
        sys.exit(problem)
