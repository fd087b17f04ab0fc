"""The style sheet of the pages; colours keep a contrast of 4.5 in light and dark."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --page: #f5f6f8; --card: #ffffff; --ink: #1b2330; --soft: #566072;
  --line: #dde1e8; --link: #0b57b0; --good: #1a6b34; --good-bg: #e1f3e6; --busy: #0b57b0; --busy-bg: #e2edfa;
  --bad: #a51d1d; --bad-bg: #fbe5e5; --plain: #566072; --plain-bg: #eceff3; }
@media (prefers-color-scheme: dark) { :root { --page: #12161d; --card: #1b212b; --ink: #e6e9ef;
  --soft: #a2acbb; --line: #313a48; --link: #82b6ff; --good: #7fdc9b; --good-bg: #17382a;
  --busy: #8fbcff; --busy-bg: #1a3152;
  --bad: #ff9d9d; --bad-bg: #4a1f24; --plain: #a2acbb; --plain-bg: #2a3240; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem 1rem 3rem; background: var(--page);
  color: var(--ink);
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
a { color: var(--link); }
h1 { font-size: 1.5rem; margin: 0; }
h2 { font-size: 1.15rem; margin: 0; overflow-wrap: anywhere; }
header { display: flex; flex-wrap: wrap; gap: .25rem 2rem; align-items: baseline; margin-bottom: 1.25rem; }
header p { margin: 0; color: var(--soft); }
nav { margin-left: auto; display: flex; gap: 1.25rem; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 1rem 1.25rem;
  margin-bottom: 1.25rem; }
.title { display: flex; flex-wrap: wrap; gap: .35rem .75rem; align-items: center; }
.path { flex-basis: 100%; margin: 0; color: var(--soft); overflow-wrap: anywhere;
  font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: .87em; }
.note { flex-basis: 100%; margin: .35rem 0 0; color: var(--soft); }
.columns { columns: 3 17rem; column-gap: 2.5rem; margin-top: .5rem; }
.columns table { break-inside: avoid; margin-bottom: .75rem; }
.wide { overflow-x: auto; margin-top: .75rem; }
section > .wide:first-child { margin-top: 0; }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; color: var(--soft); font-size: .8rem;
  text-transform: uppercase; letter-spacing: .04em; }
th, td { text-align: left; padding: .3rem .75rem .3rem 0; border-top: 1px solid var(--line);
  vertical-align: top; }
th { font-weight: 500; }
.facts th { color: var(--soft); width: 48%; }
td, th { overflow-wrap: anywhere; }
.grid td { white-space: nowrap; }
.grid th[scope=row] { min-width: 6rem; }
.grid td.name { white-space: normal; min-width: 14rem; }
.grid thead th { color: var(--soft); white-space: nowrap; }
.badge { display: inline-block; padding: 0 .5rem; border-radius: 1rem; font-size: .85em; font-weight: 600;
  white-space: nowrap; }
.good { color: var(--good); background: var(--good-bg); }
.busy { color: var(--busy); background: var(--busy-bg); }
.bad { color: var(--bad); background: var(--bad-bg); }
.plain { color: var(--plain); background: var(--plain-bg); }
.notice { border-left: .3rem solid var(--bad); }
.notice p { margin: .1rem 0; }
""".strip()
