"""The history in formats that notebooks and spreadsheets read: CSV and JSON lines."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict
from typing import IO, TYPE_CHECKING, Any, Final, Literal

from ckpt_exporter.history.rows import GPU_COLUMNS, SAVE_COLUMNS, gpu_row, save_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ckpt_exporter.history.records import GpuTimeRecord, SaveRecord

RecordsFormat = Literal["csv", "gpu-csv", "jsonl"]
RECORDS_FORMATS: Final[tuple[RecordsFormat, ...]] = ("csv", "gpu-csv", "jsonl")


def export(
    saves: Iterable[SaveRecord], gpu_time: Iterable[GpuTimeRecord], form: RecordsFormat, stream: IO[str]
) -> None:
    """Write records: saves as CSV, GPU hours as CSV, or both as JSON lines with their ``kind``.

    Columns are those of the tables; unknown values are empty in CSV and null in JSON.
    """
    if form == "csv":
        _csv(SAVE_COLUMNS, map(save_row, saves), stream)
    elif form == "gpu-csv":
        _csv(GPU_COLUMNS, map(gpu_row, gpu_time), stream)
    else:
        for kind, records in (("save", saves), ("gpu_time", gpu_time)):
            for record in records:
                line = {"kind": kind, **asdict(record)}
                stream.write(json.dumps(line, ensure_ascii=True, allow_nan=False) + "\n")


def _csv(columns: Sequence[str], rows: Iterable[Sequence[Any]], stream: IO[str]) -> None:
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
