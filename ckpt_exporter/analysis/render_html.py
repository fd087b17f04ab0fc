"""A document as one self-contained HTML file: no script, nothing loaded from elsewhere."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Final

from ckpt_exporter.analysis.charts import COLOURS, svg_chart
from ckpt_exporter.analysis.document import Chart, Heading, Paragraph, Table
from ckpt_exporter.analysis.text import clean

if TYPE_CHECKING:
    from ckpt_exporter.analysis.document import Block, Document

# Colours that people with any colour vision tell apart, once for light and once for dark pages.
_STYLE: Final = """
:root { color-scheme: light dark; --page: #ffffff; --text: #1c2430; --soft: #5a6675; --rule: #d9dee5;
  --band: #f4f6f9; --warn: #fff6df; --warn-edge: #c98a00; --good: #147a55; --bad: #b3261e;
  --c0: #1f6fb5; --c1: #d98200; --c2: #1a936a; --c3: #c2452d; --c4: #9b5aa5; --c5: #5b6b7d; }
@media (prefers-color-scheme: dark) { :root {
  --page: #14181f; --text: #e6eaf0; --soft: #9aa6b5; --rule: #333c49;
  --band: #1c222b; --warn: #2e2712; --warn-edge: #d9a300; --good: #5bd6a4; --bad: #ff8a7a;
  --c0: #5aa9ee; --c1: #f2a93b; --c2: #45c496; --c3: #f07a62; --c4: #c793d0; --c5: #9fb0c3; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Noto Sans CJK SC", sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.75rem; line-height: 1.25; margin: 0 0 1.25rem; }
h2 { font-size: 1.2rem; margin: 2.25rem 0 .5rem; padding-bottom: .25rem;
  border-bottom: 1px solid var(--rule); }
p { max-width: 46rem; margin: .6rem 0; overflow-wrap: anywhere; }
p.warning { background: var(--warn); border-left: 4px solid var(--warn-edge); padding: .5rem .8rem; }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; min-width: 50%; }
td.good, td.bad, td.open { font-weight: 600; white-space: nowrap; }
td.good { color: var(--good); } td.bad { color: var(--bad); } td.open { color: var(--soft); }
caption { text-align: left; font-weight: 600; padding: 0 0 .4rem; }
th, td { padding: .35rem .75rem; border-bottom: 1px solid var(--rule); text-align: left;
  vertical-align: top; }
th { color: var(--soft); font-weight: 600; border-bottom: 2px solid var(--rule); vertical-align: bottom; }
th.right, td.right { text-align: right; } td.left { min-width: 7rem; } td.right { white-space: nowrap; }
tbody tr:nth-child(even) { background: var(--band); }
figure { margin: 1.25rem 0; } figcaption { font-weight: 600; margin-bottom: .35rem; }
ul.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; margin: 0 0 .3rem;
  padding: 0; font-size: .88rem; color: var(--soft); }
ul.legend svg { width: .8rem; height: .8rem; margin-right: .4rem; vertical-align: -.05rem; }
svg.chart { width: 100%; height: auto; display: block; }
svg.chart text { font-size: 12px; fill: var(--soft); } svg.chart text.name { fill: var(--text); }
svg.chart text.inside { fill: var(--page); font-weight: 600; }
svg .grid { stroke: var(--rule); } svg .axis { stroke: var(--soft); }
svg path.line { fill: none; stroke-width: 2; }
@media print { :root { --page: #fff; --text: #000; --soft: #333; --rule: #bbb; --band: #f4f4f4; --warn: #fff;
  --c0: #1f6fb5; --c1: #d98200; --c2: #1a936a; --c3: #c2452d; --c4: #9b5aa5; --c5: #5b6b7d; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } main { max-width: none; padding: 0; }
  figure, tr, p.warning { break-inside: avoid; } h2 { break-after: avoid; } .scroll { overflow: visible; } }
""".strip()
_SERIES_STYLE: Final = "\n".join(
    f"svg .s{i} {{ fill: var(--c{i}); }} svg path.line.s{i} {{ fill: none; stroke: var(--c{i}); }}"
    for i in range(COLOURS)
)
_VERDICTS: Final = {
    "pass": "good",
    "better": "good",
    "fail": "bad",
    "worse": "bad",
    "not enough data": "open",
}
# The browser is told, too, that this page runs and loads nothing.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def html_document(document: Document) -> str:
    """Write a document as one HTML file."""
    title = _escaped(document.title)
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title>",
            f"<style>\n{_STYLE}\n{_SERIES_STYLE}\n</style>",
            "</head>",
            "<body>",
            "<main>",
            f"<h1>{title}</h1>",
            *(text for block in document.blocks if (text := _block(block))),
            "</main>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _escaped(text: str) -> str:
    return html.escape(clean(text), quote=True)


def _block(block: Block) -> str:
    if isinstance(block, Heading):
        return f"<h2>{_escaped(block.text)}</h2>"
    if isinstance(block, Paragraph):
        kind = ' class="warning"' if block.kind == "warning" else ""
        return f"<p{kind}>{_escaped(block.text)}</p>"
    if isinstance(block, Table):
        return _table(block)
    assert isinstance(block, Chart)  # noqa: S101 (the union has no more members)
    return _figure(block)


def _table(table: Table) -> str:
    def row(tag: str, texts: tuple[str, ...]) -> str:
        scope = ' scope="col"' if tag == "th" else ""
        parts = [
            f'<{tag}{scope} class="{column.align}{_mark(text)}">{_escaped(text)}</{tag}>'
            for column, text in zip(table.columns, texts, strict=True)
        ]
        return f"<tr>{''.join(parts)}</tr>"

    caption = [f"<caption>{_escaped(table.title)}</caption>"] if table.title else []
    head = row("th", tuple(column.heading for column in table.columns))
    return "\n".join(
        [
            '<div class="scroll"><table>',
            *caption,
            f"<thead>{head}</thead>",
            "<tbody>",
            *(row("td", cells) for cells in table.rows),
            "</tbody></table></div>",
        ]
    )


def _mark(text: str) -> str:
    """Return the class of a cell that holds nothing but a verdict."""
    return f" {_VERDICTS[text]}" if text in _VERDICTS else ""


def _figure(chart: Chart) -> str:
    drawn = svg_chart(chart)
    if not drawn:
        return ""
    legend: list[str] = []
    if len(chart.series) > 1:
        items = "".join(
            '<li><svg viewBox="0 0 10 10" aria-hidden="true">'
            f'<rect class="s{i % COLOURS}" width="10" height="10"/></svg>{_escaped(series.name)}</li>'
            for i, series in enumerate(chart.series)
        )
        legend = [f'<ul class="legend">{items}</ul>']
    return "\n".join(
        ["<figure>", f"<figcaption>{_escaped(chart.title)}</figcaption>", *legend, drawn, "</figure>"]
    )
