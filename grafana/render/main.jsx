// Draw one dashboard from its JSON: ?board=UID&from=UNIX&to=UNIX&rows=folded|open&var-NAME=VALUE
import { createRoot } from 'react-dom/client';
import { Component, useEffect, useState } from 'react';
import { createTheme, ThemeContext } from '@grafana/data';
import { GlobalStyles, PanelChrome } from '@grafana/ui';
import { styled } from './config.js';
import { fill, framesOf, marksOf } from './queries.js';
import { PANELS } from './panels.jsx';

const boards = import.meta.glob('../dashboards/*.json', { eager: true, import: 'default' });
const asked = new URLSearchParams(location.search);
const theme = createTheme({ colors: { mode: 'dark' } });
const range = { from: Number(asked.get('from')), to: Number(asked.get('to')) };
const GAP = 8;
const CELL = 30;

function chosen(board) {
  return Object.fromEntries(
    board.templating.list.map((variable) => {
      const all = variable.includeAll ? variable.allValue : undefined;
      const initial = variable.type === 'interval' ? variable.current.value : undefined;
      return [variable.name, asked.get(`var-${variable.name}`) ?? all ?? initial ?? variable.query];
    })
  );
}

class Guard extends Component {
  state = {};
  static getDerivedStateFromError(error) {
    return { error };
  }
  render() {
    return this.state.error ? <pre style={{ color: 'red' }}>{String(this.state.error.stack)}</pre> : this.props.children;
  }
}

function Panel({ panel, variables, marks, left, top, width, height }) {
  const [state, setState] = useState();
  const replace = (text) => fill(text, variables, range, 15);
  useEffect(() => {
    framesOf(panel, variables, range, width)
      .then((frames) => styled(panel, frames, theme, replace))
      .then((frames) => setState({ frames }), (error) => setState({ error }));
  }, []);
  const Content = PANELS[panel.type];
  return (
    <div style={{ position: 'absolute', left, top, width, height }}>
      <PanelChrome title={replace(panel.title)} width={width} height={height} padding={panel.type === 'table' ? 'none' : 'md'}>
        {(innerWidth, innerHeight) => (
          <Guard>
            {state?.error && <pre style={{ color: 'red', whiteSpace: 'pre-wrap' }}>{String(state.error)}</pre>}
            {state?.frames && (
              <Content {...{ panel, range, theme }} marks={marks.filter(({ panels }) => panels.includes(panel.id))} frames={state.frames} width={innerWidth} height={innerHeight} />
            )}
          </Guard>
        )}
      </PanelChrome>
    </div>
  );
}

function unfolded(board) {
  const folded = asked.get('rows') !== 'open';
  let shift = 0;
  return board.panels.flatMap((panel) => {
    if (panel.type !== 'row') {
      return [{ panel, y: panel.gridPos.y }];
    }
    const y = panel.gridPos.y;
    if (folded) {
      const shown = { panel, y: y - shift };
      shift += Math.max(...panel.panels.map(({ gridPos }) => gridPos.y + gridPos.h)) - y - 1;
      return [shown];
    }
    return [{ panel, y }, ...panel.panels.map((inner) => ({ panel: inner, y: inner.gridPos.y }))];
  });
}

function Choice({ name, value }) {
  const box = { border: `1px solid ${theme.colors.border.medium}`, padding: '4px 8px', background: theme.colors.background.primary };
  return (
    <span style={{ marginRight: 8, fontSize: 12 }}>
      <span style={{ ...box, color: theme.colors.text.secondary, borderRight: 0 }}>{name}</span>
      <span style={{ ...box, color: theme.colors.text.link }}>{value}</span>
    </span>
  );
}

function Board({ board }) {
  const variables = chosen(board);
  const [marks, setMarks] = useState();
  useEffect(() => {
    marksOf(board.annotations.list, variables, range).then(setMarks);
  }, []);
  const page = document.documentElement.clientWidth - 2 * GAP;
  const column = (page + GAP) / 24;
  const place = ({ panel, y }) => ({
    left: panel.gridPos.x * column,
    top: y * (CELL + GAP),
    width: panel.gridPos.w * column - GAP,
    height: panel.gridPos.h * (CELL + GAP) - GAP,
  });
  const shown = board.templating.list.filter(({ type }) => type !== 'datasource' && type !== 'textbox');
  const until = new Date(range.to * 1000).toISOString().slice(0, 16).replace('T', ' ');
  const hours = (range.to - range.from) / 3600;
  const span = hours >= 48 ? `${hours / 24} days` : `${hours} h`;
  const all = ['.+', '.*'];
  return (
    <div style={{ margin: GAP, color: theme.colors.text.primary, fontFamily: theme.typography.fontFamily }}>
      <div style={{ display: 'flex', alignItems: 'baseline', height: 28 }}>
        <b style={{ fontSize: 16 }}>{board.title}</b>
        <span style={{ marginLeft: 'auto', fontSize: 12, color: theme.colors.text.secondary }}>
          drawn with Grafana's components, not by Grafana; scripted data; {span} until {until} UTC
        </span>
      </div>
      <div style={{ height: 36 }}>
        {shown.map(({ name, label }) => (
          <Choice key={name} name={label} value={all.includes(variables[name]) ? 'All' : variables[name]} />
        ))}
      </div>
      <div style={{ position: 'relative' }}>
        {marks &&
          unfolded(board).map(({ panel, y }) =>
            panel.type === 'row' ? (
              <div key={panel.id} style={{ position: 'absolute', ...place({ panel, y }), fontSize: 14 }}>
                {asked.get('rows') === 'open' ? '⌄' : '›'} {panel.title}{' '}
                <span style={{ color: theme.colors.text.secondary }}>({panel.panels.length} panels)</span>
              </div>
            ) : (
              <Panel key={panel.id} {...{ panel, variables, marks }} {...place({ panel, y })} />
            )
          )}
      </div>
    </div>
  );
}

createRoot(document.getElementById('root')).render(
  <ThemeContext.Provider value={theme}>
    <GlobalStyles hackNoBackdropBlur={false} isExtensionSidebarOpen={false} />
    <Board board={boards[`../dashboards/${asked.get('board')}.json`]} />
  </ThemeContext.Provider>
);
