"""What the report says of GPUs one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ckpt_exporter.analysis.document import Chart, Column, Heading, Series, Table
from ckpt_exporter.analysis.numbers import duration_text, percent_text, seconds_text
from ckpt_exporter.analysis.statistics import mean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckpt_exporter.analysis.document import Align, Block

Data = dict[str, Any]
_LEFT: Final[Align] = "left"
_MANY_GPUS: Final = 32


def gpus_blocks(data: Data) -> Iterator[Block]:
    """Yield a table of GPUs, and a picture of what each (or each node's) lost."""
    gpus = data["gpus"]
    if data["bubble"]["gpu_seconds"] is None or not gpus:
        return
    yield Heading("GPUs")
    shown = (
        sorted(gpus, key=lambda gpu: -gpu["bubble_seconds"])[:_MANY_GPUS] if len(gpus) > _MANY_GPUS else gpus
    )
    several = len({gpu["node"] for gpu in gpus}) > 1
    rows = [
        (_name(gpu, several=several), seconds_text(gpu["bubble_seconds"]), seconds_text(gpu["drag_seconds"]),
         duration_text(gpu["observed_seconds"]), percent_text(gpu["share"]))
        for gpu in shown
    ]  # fmt: skip
    title = f"The {_MANY_GPUS} GPUs of {len(gpus)} that lost most" if len(shown) < len(gpus) else ""
    heads = (Column("GPU", _LEFT), Column("bubble"), Column("drag"), Column("observed"), Column("share"))
    yield Table(title, heads, tuple(rows))
    if len(gpus) > 1:
        yield _by_node(gpus) if several else _by_gpu(shown)


def _by_gpu(gpus: list[Data]) -> Chart:
    points = tuple((float(i), gpu["bubble_seconds"]) for i, gpu in enumerate(gpus))
    labels = tuple(str(gpu["gpu"]) for gpu in gpus)
    return Chart("Bubble by GPU", "bars", "seconds", (Series("bubble", points),), labels=labels)


def _by_node(gpus: list[Data]) -> Chart:
    by_node: dict[str, list[float]] = {}
    for gpu in gpus:
        by_node.setdefault(gpu["node"], []).append(gpu["bubble_seconds"])
    points = tuple((float(i), mean(seconds)) for i, seconds in enumerate(by_node.values()))
    title = "Bubble by node, mean over its GPUs"
    return Chart(title, "bars", "seconds", (Series("bubble", points),), labels=tuple(by_node))


def _name(gpu: Data, *, several: bool) -> str:
    return f"{gpu['node']} {gpu['gpu']}" if several else str(gpu["gpu"])
