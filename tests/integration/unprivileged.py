"""Run the program without any right, also where only root may read the interpreter and its library.

``python -m tests.integration.unprivileged USER_ID ARGUMENT...``: everything is loaded first, then every right
is given up, then the program begins.
"""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import importlib
import os
import pkgutil
import sys

import ckpt_exporter

_PR_SET_DUMPABLE = 4


def load_everything() -> None:
    """Import whatever the daemon may import later."""
    for module in pkgutil.walk_packages(ckpt_exporter.__path__, "ckpt_exporter."):
        if module.name.startswith("ckpt_exporter.analysis."):
            continue
        with contextlib.suppress(ImportError):  # a vendor's package that is not installed
            importlib.import_module(module.name)
    for codec in ("ascii", "latin-1", "idna", "utf-8-sig"):
        codecs.lookup(codec)


def become(user: int) -> None:
    """Give up every right, as if that user had started this process."""
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    # A change of user hides a process's own files in /proc from it; a start by that user does not.
    if ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0) != 0:
        raise OSError("the process stays hidden from itself")


if __name__ == "__main__":
    load_everything()
    become(int(sys.argv.pop(1)))
    from ckpt_exporter.__main__ import main

    sys.exit(main())
