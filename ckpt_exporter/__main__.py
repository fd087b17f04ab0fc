"""``python -m ckpt_exporter`` is the same as ``ckpt-exporter``."""

from __future__ import annotations

import sys

from ckpt_exporter.cli import main

if __name__ == "__main__":
    sys.exit(main())
