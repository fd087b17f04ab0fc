"""Dimensions of PromQL expressions, told from the suffixes of metric names: bytes, seconds, watts, none."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import promql_parser

_SUFFIX = re.compile(r"(_total|_sum|_count|_bucket)$")
_KEEPING = ("increase", "last_over_time", "max_over_time", "min_over_time", "clamp_min", "sort_desc")
_COMPARISONS = ("==", "!=", ">", "<", ">=", "<=")


@dataclass(frozen=True, slots=True)
class Dimension:
    """Powers of the units; hours are seconds divided by 3600."""

    seconds: int = 0
    bytes: int = 0
    watts: int = 0
    hours: int = 0

    def times(self, other: Dimension, sign: int = 1) -> Dimension:
        """Multiply, or divide with ``sign`` -1."""
        return Dimension(
            self.seconds + sign * other.seconds,
            self.bytes + sign * other.bytes,
            self.watts + sign * other.watts,
            self.hours + sign * other.hours,
        )


NUMBER = Dimension()
SECONDS = Dimension(seconds=1)
# Grafana's units for each dimension.
UNITS: dict[Dimension, tuple[str, ...]] = {
    NUMBER: ("short", "none", "locale", "percentunit"),
    SECONDS: ("s", "clocks"),
    Dimension(bytes=1): ("decbytes",),
    Dimension(bytes=1, seconds=-1): ("Bps",),
    Dimension(watts=1): ("watt",),
    Dimension(seconds=-1): ("cps",),
    Dimension(hours=1): ("short",),
}


def of_metric(name: str) -> Dimension:
    """Tell the dimension of a metric from its name."""
    if ":" in name:
        name = name.split(":")[1]  # a recorded series: level:metric:operations
    if name.endswith("_count"):
        return NUMBER
    base = _SUFFIX.sub("", name)
    for suffix, dimension in (
        ("_bytes_per_second", Dimension(bytes=1, seconds=-1)),
        ("_bytes", Dimension(bytes=1)),
        ("_seconds", SECONDS),
        ("_watts", Dimension(watts=1)),
    ):
        if base.endswith(suffix):
            return dimension
    return NUMBER


def of_expression(node: Any) -> Dimension:
    """Tell the dimension of a parsed expression; raises AssertionError where unlike things are added."""
    kind = type(node).__name__
    if kind == "VectorSelector":
        return of_metric(node.name)
    if kind == "MatrixSelector":
        return of_metric(node.vector_selector.name)
    if kind in ("AggregateExpr", "ParenExpr", "UnaryExpr", "SubqueryExpr"):
        counts = kind == "AggregateExpr" and str(node.op) == "count"
        return NUMBER if counts else of_expression(node.expr)
    if kind == "Call":
        return _of_call(node)
    if kind == "BinaryExpr":
        return _of_operation(node)
    assert kind == "NumberLiteral", kind
    return NUMBER


def _of_call(node: Any) -> Dimension:
    name = node.func.name
    if name == "time":
        return SECONDS
    if name == "vector":
        return NUMBER
    if name == "rate":
        return of_expression(node.args[0]).times(SECONDS, -1)
    if name == "histogram_quantile":
        return of_expression(node.args[1])
    assert name in _KEEPING, name
    return of_expression(node.args[0])


def _of_operation(node: Any) -> Dimension:
    operator, left = str(node.op), of_expression(node.lhs)
    if operator in ("and", "unless"):
        return left
    if operator in _COMPARISONS:
        return NUMBER if node.modifier is not None and node.modifier.return_bool else left
    right = of_expression(node.rhs)
    if operator == "*":
        return left.times(right)
    if operator == "/":
        if type(node.rhs).__name__ == "NumberLiteral" and node.rhs.val == 3600:
            return left.times(Dimension(seconds=1, hours=-1), -1)
        return left.times(right, -1)
    assert operator in ("+", "-", "or"), operator
    assert left == right, f"{operator} of {left} and {right}"
    return left


def nodes(node: Any, inside: tuple[str, ...] = ()) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Yield every node of a parsed expression with the names of the functions around it."""
    yield node, inside
    kind = type(node).__name__
    if kind == "MatrixSelector":
        yield from nodes(node.vector_selector, inside)
    elif kind == "Call":
        for argument in node.args:
            yield from nodes(argument, (*inside, node.func.name))
    elif kind == "BinaryExpr":
        yield from nodes(node.lhs, inside)
        yield from nodes(node.rhs, inside)
    elif kind in ("AggregateExpr", "ParenExpr"):
        yield from nodes(node.expr, inside)


@functools.cache
def parsed(expr: str) -> Any:
    """Parse an expression; raises ValueError."""
    return promql_parser.parse(expr)
