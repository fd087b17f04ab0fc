"""``project``: what a change of storage, interval, size or scale would be worth."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ckpt_exporter.cli.output import add_format, add_source, print_document, source_of
from ckpt_exporter.cli.parser import EXIT_OK, Command, Parser
from ckpt_exporter.cli.quantities import Typed, bandwidth, count, duration, ratio, size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

# flag, field, how to read it, its name in the help, the help
_Option = tuple[str, str, "Callable[[str], float]", str, str]

_TODAY: Final[tuple[_Option, ...]] = (
    ("--run-seconds", "run_seconds", duration, "TIME", "wall-clock time of the run, with saves (36000, 10h)"),
    ("--saves", "saves", count, "N", "saves in that time"),
    ("--save-seconds", "save_seconds", duration, "TIME", "duration of one save"),
    ("--bubble-seconds", "bubble_seconds", duration, "TIME",
     "training time that one save costs (default: all of it)"),
    ("--write-seconds", "write_seconds", duration, "TIME", "part of a save in which bytes flow"),
    ("--bytes", "bytes", size, "SIZE", "size of the checkpoint (65.6GB): logical bytes"),
    ("--written-bytes", "written_bytes", size, "SIZE", "bytes really written by a save, where that is more"),
    ("--bandwidth", "bandwidth", bandwidth, "RATE", "sustained bandwidth of the storage (3.26GB/s)"),
    ("--interval-seconds", "interval_seconds", duration, "TIME", "from the start of a save to the next"),
    ("--interval-steps", "interval_steps", count, "N", "steps between two saves"),
    ("--steps", "steps", count, "N", "steps of the run"),
    ("--gpus", "gpus", count, "N", "GPUs of the run"),
    ("--nodes", "nodes", count, "N", "nodes that write, each to storage of its own (see --to-nodes)"),
    ("--cluster-gpus", "cluster_gpus", count, "N", "GPUs of the cluster in which the gain is counted"),
    ("--mtbf", "mtbf_seconds", duration, "TIME", "time between two failures of the run (24h)"),
    ("--restart-seconds", "restart_seconds", duration, "TIME", "from a failure until training goes on"),
)  # fmt: skip
_THEN: Final[tuple[_Option, ...]] = (
    ("--to-save-seconds", "to_save_seconds", duration, "TIME", "duration of one save then"),
    ("--to-bandwidth", "to_bandwidth", bandwidth, "RATE", "bandwidth of the other storage"),
    ("--to-bytes", "to_bytes", size, "SIZE", "another size of the checkpoint"),
    ("--to-interval-seconds", "to_interval_seconds", duration, "TIME", "another time between saves"),
    ("--to-interval-steps", "to_interval_steps", count, "N", "another number of steps between saves"),
    ("--to-gpus", "to_gpus", count, "N", "another number of GPUs, the same work and checkpoint"),
    ("--to-nodes", "to_nodes", count, "N", "another number of writing nodes: the bandwidth grows with them"),
    ("--blocking-seconds", "blocking_seconds", duration, "TIME",
     "asynchronous saves: for how long training stands still"),
    ("--drag-ratio", "drag_ratio", ratio, "SHARE", "... and how much the rest slows it (0.15, 15%%)"),
)  # fmt: skip

EPILOG: Final = """\
Numbers come from flags, from measurements, or from both: a flag wins. Only what
can be known is answered; the last table says which flag gives which further
answer. docs/model.md has the formulas and their limits.

examples:
  # 20 saves of 178 s in ten hours: what would saves of 94 s be worth?
  ckpt-exporter project --run-seconds=36000 --saves=20 --save-seconds=178 \\
      --to-save-seconds=94 --gpus=8 --cluster-gpus=1000
  # How often should we save, with one failure a day?
  ckpt-exporter project --save-seconds=178 --interval-seconds=30min --mtbf=24h \\
      --restart-seconds=5min
  # What would twice the bandwidth bring to what was measured last week?
  ckpt-exporter project --history=/var/lib/ckpt-exporter/history.db --since=7d \\
      --to-bandwidth=6.4GB/s
  # As a page for a manager
  ckpt-exporter project --history=history.db --format=html > projection.html
"""


def _project(arguments: argparse.Namespace) -> int:
    from ckpt_exporter.analysis.arms import read_source  # noqa: PLC0415 (not needed for --help)
    from ckpt_exporter.analysis.project import project  # noqa: PLC0415
    from ckpt_exporter.analysis.project_inputs import ProjectInputs, measured_inputs  # noqa: PLC0415

    source = source_of(arguments, time.time())
    inputs = ProjectInputs() if source is None else measured_inputs(read_source(source))
    print_document(project(replace(inputs, **_given(arguments))), arguments.output_format)
    return EXIT_OK


def _given(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields that flags set, and by how much each may be off as it was typed."""
    fields = [option[1] for option in (*_TODAY, *_THEN)]
    given = {name: getattr(arguments, name) for name in fields if getattr(arguments, name) is not None}
    roundings = {name: value.rounding for name, value in given.items() if isinstance(value, Typed)}
    return {**{name: float(value) for name, value in given.items()}, "roundings": roundings}


def _add_project(parser: Parser) -> None:
    for title, options in (("today", _TODAY), ("then", _THEN)):
        group = parser.add_argument_group(title)
        for flag, field, read, metavar, text in options:
            group.add_argument(flag, dest=field, type=read, metavar=metavar, help=text)
    add_source(parser)
    add_format(parser)


PROJECT: Final = Command(
    "Work out what other storage, another interval, size or scale would be worth.",
    _add_project,
    _project,
    EPILOG,
)
