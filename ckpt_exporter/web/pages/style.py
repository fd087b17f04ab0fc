"""The style sheet of the pages; colours keep a contrast of 4.5 in light and dark."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --page: #f4f5f8; --card: #ffffff; --ink: #1b2330; --soft: #545e70;
  --line: #d9dee6; --link: #0b57b0; --good: #17652f; --good-bg: #e1f3e6; --busy: #0b57b0;
  --busy-bg: #e2edfa; --warn: #7a4b00; --warn-bg: #fdf0d5; --bad: #a51d1d; --bad-bg: #fbe5e5;
  --plain: #545e70; --plain-bg: #eceff3; --activity: #17652f; --rate: #0b57b0; --save: #6b4fa0;
  --bubble: #b3401a; }
@media (prefers-color-scheme: dark) { :root { --page: #11151c; --card: #1a202a; --ink: #e6e9ef;
  --soft: #a5afbe; --line: #333c4a; --link: #86b8ff; --good: #7fdc9b; --good-bg: #17382a; --busy: #8fbcff;
  --busy-bg: #1a3152; --warn: #f3c46b; --warn-bg: #40300f; --bad: #ff9d9d; --bad-bg: #4a1f24;
  --plain: #a5afbe; --plain-bg: #2a3240; --activity: #7fdc9b; --rate: #8fbcff; --save: #b9a2ec;
  --bubble: #ff9a6b; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 78rem; padding: 1.25rem 1rem 3rem; background: var(--page);
  color: var(--ink);
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
a { color: var(--link); }
a, summary { border-radius: 4px; }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
h1 { font-size: 1.45rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 0; overflow-wrap: anywhere; min-width: 0; }
h3 { font-size: 1rem; margin: 0; }
p { margin: 0; }
.shapes { position: absolute; width: 0; height: 0; }
symbol path { fill: none; stroke: currentColor; stroke-width: 2; stroke-linecap: round;
  stroke-linejoin: round; }
symbol path.solid { fill: currentColor; }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%);
  white-space: nowrap; }
.skip { position: absolute; left: .5rem; top: -4rem; padding: .5rem 1rem; background: var(--card); }
.skip:focus { top: .5rem; }
.lost { position: sticky; top: 0; z-index: 1; margin-bottom: 1rem; padding: .6rem 1rem;
  background: var(--warn-bg); color: var(--warn); border: 1px solid; border-radius: 8px; font-weight: 600; }
.lost[hidden] { display: none; }
header { display: flex; flex-wrap: wrap; gap: .25rem 1.5rem; align-items: baseline; margin-bottom: 1rem; }
header p, footer { color: var(--soft); }
nav { margin-left: auto; display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 1rem 1.25rem; margin-bottom: 1.25rem; min-width: 0; }
section.problems { border-left: .35rem solid var(--bad); }
section.fine { padding-block: .6rem; border-left: .35rem solid var(--good); }
section.simulation { padding-block: .6rem; border-left: .35rem dashed var(--warn); }
.problems ul { margin: .5rem 0 0; padding: 0; list-style: none; }
.problems li { padding: .4rem 0; border-top: 1px solid var(--line); overflow-wrap: anywhere; }
.problems li p { margin-top: .15rem; }
.title { display: flex; flex-wrap: wrap; gap: .35rem .75rem; align-items: center; }
.path { flex-basis: 100%; color: var(--soft); overflow-wrap: anywhere;
  font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: .87em; }
.note { color: var(--soft); }
.elsewhere > .note { margin-top: .4rem; }
div.elsewhere { margin: .85rem 0 0; padding-left: .9rem; border-left: .35rem dashed var(--plain); }
section > .note, section > details, .elsewhere > details, figure, .save-open { margin: .85rem 0 0; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr));
  gap: .75rem 1.25rem; margin: .85rem 0 0; }
.figures > div { display: flex; flex-direction: column; min-width: 0; overflow-wrap: anywhere; }
.figures dt { color: var(--soft); font-size: .85rem; }
.figures dd { margin: 0; }
.figures dd.value { font-size: 1.25rem; font-weight: 600; line-height: 1.25;
  font-variant-numeric: tabular-nums; }
.figures dd.more { color: var(--soft); font-size: .85rem; }
.save-open { border: 1px solid var(--line); border-left: .35rem solid var(--busy); border-radius: 6px;
  padding: .6rem .9rem; overflow-wrap: anywhere; }
.save-open.stalled { border-left: .35rem dashed var(--bad); }
.save-open h3 { display: flex; flex-wrap: wrap; gap: .35rem .75rem; align-items: center; }
progress { display: block; width: 100%; height: .8rem; margin: .5rem 0; accent-color: var(--busy); }
figcaption, caption { text-align: left; font-weight: 600; color: var(--soft); font-size: .85rem;
  padding: .25rem 0; }
.windows { display: grid; gap: .5rem 1.5rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 18rem), 1fr)); }
.windows > svg { display: block; width: calc(100% - 3.9rem); margin-left: 3.9rem; overflow: visible; }
.windows text, .legend { font-size: 12px; font-variant-numeric: tabular-nums; }
svg text { fill: var(--soft); }
svg .step { text-anchor: middle; fill: var(--ink); }
svg .last { text-anchor: end; }
svg .scale { text-anchor: end; }
svg .axis { stroke: var(--line); }
svg .save { fill: var(--save); fill-opacity: .14; stroke: var(--save); stroke-dasharray: 3 3; }
svg .elsewhere { fill-opacity: .05; stroke-dasharray: 8 4; }
svg .failed { stroke: var(--bad); fill: var(--bad); stroke-dasharray: 1 3; }
svg .activity { fill: none; stroke: var(--activity); stroke-width: 1.75; vector-effect: non-scaling-stroke; }
svg .activity-area { fill: var(--activity); fill-opacity: .1; }
svg .rate { fill: var(--rate); }
svg .bubble { fill: var(--bubble); }
.legend { display: flex; flex-wrap: wrap; gap: .15rem 1.25rem; margin: .25rem 0 0; padding: 0;
  list-style: none; color: var(--soft); }
.legend li { display: flex; gap: .4rem; align-items: center; }
details > summary { cursor: pointer; color: var(--link); font-weight: 600; width: fit-content; }
.columns { columns: 3 17rem; column-gap: 2.5rem; margin-top: .5rem; }
.columns table { break-inside: avoid; margin-bottom: .75rem; }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }
section > table:not(:first-child), details > table { margin-top: .85rem; }
th, td { text-align: left; padding: .32rem .75rem .32rem 0; border-top: 1px solid var(--line);
  vertical-align: top; overflow-wrap: anywhere; }
th { font-weight: 500; }
.facts { table-layout: fixed; }
.facts .badge { white-space: normal; }
.facts th { color: var(--soft); width: 48%; }
.grid thead th { color: var(--soft); font-size: .87rem; }
.grid th, .grid td { white-space: nowrap; overflow-wrap: normal; }
.grid .long, .grid bdi { white-space: normal; overflow-wrap: anywhere; }
.grid .long, .grid .words { min-width: 8.5rem; }
.grid .words { display: inline-block; white-space: normal; }
.badge { display: inline-flex; gap: .3rem; align-items: center; padding: 0 .55rem; border-radius: 1rem;
  font-size: .85em; font-weight: 600; white-space: nowrap; }
.badge svg { width: .75em; height: .75em; flex: none; }
.good { color: var(--good); background: var(--good-bg); }
.busy { color: var(--busy); background: var(--busy-bg); }
.warn { color: var(--warn); background: var(--warn-bg); }
.bad { color: var(--bad); background: var(--bad-bg); }
.plain { color: var(--plain); background: var(--plain-bg); }
footer { overflow-wrap: anywhere; }
footer p + p { margin-top: .35rem; }
@media (max-width: 62rem) {
  body { padding: .75rem .5rem 2rem; }
  section { padding: .8rem .8rem; }
  nav { margin-left: 0; }
  .figures { grid-template-columns: repeat(auto-fill, minmax(8rem, 1fr)); }
  .grid, .grid caption, .grid tbody, .grid th, .grid td { display: block; width: auto; }
  .grid thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  .grid tbody tr { display: grid; gap: .3rem .75rem;
    grid-template-columns: repeat(auto-fill, minmax(7.6rem, 1fr));
    border-top: 1px solid var(--line); padding: .5rem 0; }
  .grid th, .grid td, .grid .long { border: 0; padding: 0; min-width: 0; white-space: normal;
    overflow-wrap: anywhere; }
  .grid tbody th { font-weight: 600; }
  .grid tbody th, .grid td:nth-child(3):last-child { grid-column: 1 / -1; }
  .grid td:empty { display: none; }
  .grid td::before { content: attr(data-label); display: block; color: var(--soft); font-size: .85rem; }
  .grid tbody th::before { content: attr(data-label) " "; color: var(--soft); font-weight: 500; }
}
@media (max-width: 40rem) { svg .dense { display: none; } }
@media (prefers-reduced-motion: reduce) { * { transition: none; } }
@media (forced-colors: active) { .badge, .save-open { border: 1px solid; }
  svg .activity { stroke: CanvasText; } svg .rate, svg .bubble { fill: CanvasText; } }
@media print { body { max-width: none; } section { break-inside: avoid; } nav, .lost { display: none; } }
""".strip()
