"""The history in formats that notebooks and spreadsheets read: CSV and JSON lines."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict
from typing import IO, TYPE_CHECKING, Any, Final, Literal

from ckpt_exporter.history.rows import (
    GPU_COLUMNS,
    LOAD_COLUMNS,
    SAVE_COLUMNS,
    STALL_COLUMNS,
    gpu_row,
    load_row,
    save_row,
    stall_row,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ckpt_exporter.history.records import Measurements

RecordsFormat = Literal["csv", "gpu-csv", "load-csv", "stall-csv", "jsonl"]
RECORDS_FORMATS: Final[tuple[RecordsFormat, ...]] = ("csv", "gpu-csv", "load-csv", "stall-csv", "jsonl")


def export(measured: Measurements, form: RecordsFormat, stream: IO[str]) -> None:
    """Write records: one kind as CSV, or every kind as JSON lines with their ``kind``.

    Columns are those of the tables; unknown values are empty in CSV and null in JSON.
    """
    if form == "csv":
        _csv(SAVE_COLUMNS, map(save_row, measured.saves), stream)
    elif form == "gpu-csv":
        _csv(GPU_COLUMNS, map(gpu_row, measured.gpu_time), stream)
    elif form == "load-csv":
        _csv(LOAD_COLUMNS, map(load_row, measured.loads), stream)
    elif form == "stall-csv":
        _csv(STALL_COLUMNS, map(stall_row, measured.stalls), stream)
    else:
        _json_lines(measured, stream)


def _json_lines(measured: Measurements, stream: IO[str]) -> None:
    kinds = (
        ("save", measured.saves), ("gpu_time", measured.gpu_time), ("load", measured.loads),
        ("stall", measured.stalls),
    )  # fmt: skip
    for kind, records in kinds:
        for record in records:
            line = {"kind": kind, **asdict(record)}
            stream.write(json.dumps(line, ensure_ascii=True, allow_nan=False) + "\n")


def _csv(columns: Sequence[str], rows: Iterable[Sequence[Any]], stream: IO[str]) -> None:
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
