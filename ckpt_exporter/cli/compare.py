"""``compare``: baseline against candidate storage, saves and loads, with acceptance gates."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

from ckpt_exporter.cli.output import add_format, print_document
from ckpt_exporter.cli.parser import EXIT_OK, Command, Parser, file_name

if TYPE_CHECKING:
    import argparse

_GATES: Final = ("G1", "G2", "G3", "G4", "G5")

EPILOG: Final = """\
An arm is FILE[,FILE...][?KEY=VALUE&...]: history files (run --history.path), or
results of bench, and which of their records are meant. KEY is one of dir,
since, until, run, mountpoint, transport, node, layout; since and until take 7d
(ago), 2026-11-30 or 2026-11-30T12:00:00Z. Quote it: shells read & and ?.
A Prometheus server's URL takes the same keys. Loads count where hardly anything
came from the page cache.

Gates, each pass, fail or not enough data:
  G1  the right path: mount, transport, space, healthy sources (--exporter)
  G2  the storage alone reaches the bandwidth the job needs (--bench)
  G3  one training node: saves of the real job
  G4  production: many saves, over days, on all nodes
  G5  loads from storage; arms may be results of bench --load
--print-gates shows the thresholds, each explained; copy and change them.
Exit status: 1 if a gate fails (with --strict also if one lacks data), else 0.

examples:
  # Two histories
  ckpt-exporter compare old.db new.db
  # One history: before and after the move, and only the new mount
  ckpt-exporter compare 'h.db?until=2026-11-20' \\
      'h.db?since=2026-11-20&mountpoint=/new'
  # Two nodes an arm, thresholds of our own, as a page
  ckpt-exporter compare a1.db,a2.db b1.db,b2.db --gates=gates.yml --format=html
  # In a pipeline: the storage alone, from two results of bench
  ckpt-exporter compare old.json new.json --bench=new.json --gate=G2 --strict
"""


def _compare(arguments: argparse.Namespace) -> int:
    from ckpt_exporter.config.gates import default_gates_text, load_gates  # noqa: PLC0415 (not for --help)

    if arguments.print_gates:
        sys.stdout.write(default_gates_text())
        return EXIT_OK
    from ckpt_exporter.analysis.acceptance import judge  # noqa: PLC0415
    from ckpt_exporter.analysis.arms import parse_source, read_source  # noqa: PLC0415
    from ckpt_exporter.analysis.bench_result import read_bench_result  # noqa: PLC0415
    from ckpt_exporter.analysis.compare import compare  # noqa: PLC0415
    from ckpt_exporter.analysis.compare_document import compare_document  # noqa: PLC0415
    from ckpt_exporter.analysis.exporter import read_exporter  # noqa: PLC0415
    from ckpt_exporter.analysis.gates import Evidence, exit_status  # noqa: PLC0415
    from ckpt_exporter.errors import UsageError  # noqa: PLC0415

    if arguments.candidate is None:
        raise UsageError("compare needs two arms: write compare BASELINE CANDIDATE")
    thresholds = load_gates(arguments.gates)
    now = time.time()
    arms = [read_source(parse_source(text, now)) for text in (arguments.baseline, arguments.candidate)]
    evidence = Evidence(
        compare(*arms),
        tuple(read_bench_result(file) for file in arguments.bench),
        tuple(read_exporter(place) for place in arguments.exporter),
    )
    chosen = () if arguments.no_gates else tuple(arguments.gate or _GATES)
    results = judge(thresholds, evidence, chosen)
    print_document(compare_document(evidence.comparison, results), arguments.output_format)
    return exit_status(results, strict=arguments.strict)


def _add_compare(parser: Parser) -> None:
    parser.add_argument("baseline", nargs="?", metavar="BASELINE", help="saves and loads as they are")
    parser.add_argument("candidate", nargs="?", metavar="CANDIDATE", help="saves and loads as they would be")
    gates = parser.add_argument_group("gates")
    gates.add_argument(
        "--gates", metavar="FILE", type=file_name, help="thresholds (default: the shipped ones)"
    )
    gates.add_argument(
        "--gate", action="append", choices=_GATES, help="judge only this gate; may be repeated (default: all)"
    )
    gates.add_argument("--no-gates", action="store_true", help="compare, and judge no gate")
    gates.add_argument("--strict", action="store_true", help="exit 1 also when a gate lacks data")
    gates.add_argument(
        "--print-gates", action="store_true", help="print the shipped thresholds and do nothing else"
    )
    gates.add_argument(
        "--bench", action="append", default=[], metavar="FILE", type=file_name,
        help="a result of bench --output=FILE on the candidate, for G2; may be repeated",
    )  # fmt: skip
    gates.add_argument(
        "--exporter", action="append", default=[], metavar="URL",
        help="metrics of a node (http://node1:10047/metrics, or a file), for G1; may be repeated",
    )  # fmt: skip
    add_format(parser)


COMPARE: Final = Command(
    "Compare baseline and candidate storage, and judge the acceptance gates.", _add_compare, _compare, EPILOG
)
