// One function for each type of panel that the dashboards use.
import { BarGauge, BigValue, Table, TimeSeries } from '@grafana/ui';
import { dateTime, formattedValueToString, getDisplayProcessor, getFieldDisplayName, reduceField } from '@grafana/data';

const NAMED = { green: '#73BF69', blue: '#5794F2', red: '#F2495C', yellow: '#FADE2A', orange: '#FF9830' };

const valueField = (frame) => frame.fields.find((field) => field.type === 'number');

function displayed(panel, frames, theme) {
  const found = frames.map((frame) => {
    const field = valueField(frame);
    const { lastNotNull } = reduceField({ field, reducers: ['lastNotNull'] });
    return { field, value: { ...field.display(lastNotNull), title: getFieldDisplayName(field, frame, frames) } };
  });
  if (found.length) {
    return found;
  }
  const field = { name: '', type: 'number', values: [], config: panel.fieldConfig.defaults };
  return [{ field, value: getDisplayProcessor({ field, theme })(null) }];
}

export function Stat({ panel, frames, width, height, theme }) {
  const values = displayed(panel, frames, theme);
  const { colorMode, graphMode, justifyMode, textMode } = panel.options;
  return (
    <div style={{ display: 'flex', gap: 8 }}>
      {values.map(({ value }, index) => (
        <BigValue
          key={index}
          value={textMode === 'value' ? { ...value, title: undefined } : value}
          width={(width - 8 * (values.length - 1)) / values.length}
          height={height}
          colorMode={colorMode}
          graphMode={graphMode}
          justifyMode={justifyMode}
          textMode={textMode}
          text={panel.options.text}
          count={values.length}
          theme={theme}
        />
      ))}
    </div>
  );
}

export function Bars({ panel, frames, width, height, theme }) {
  const values = displayed(panel, frames, theme);
  const each = Math.min(40, height / values.length - 8);
  const highest = Math.max(...values.map(({ value }) => value.numeric));
  const titles = values.map(({ value }) => value.title ?? '');
  const longest = titles.reduce((a, b) => (a.length > b.length ? a : b), '');
  const texts = values.map(({ value }) => formattedValueToString(value));
  return values.map(({ field, value }, index) => (
    <div key={index} style={{ marginBottom: 8 }}>
      <BarGauge
        field={{ ...field.config, max: field.config.max ?? highest }}
        value={value}
        display={field.display}
        width={width}
        height={each}
        orientation={panel.options.orientation}
        displayMode={panel.options.displayMode}
        valueDisplayMode={panel.options.valueMode}
        namePlacement={panel.options.namePlacement}
        showUnfilled={panel.options.showUnfilled}
        alignmentFactors={{ title: longest, text: texts.reduce((a, b) => (a.length > b.length ? a : b), '') }}
        theme={theme}
      />
    </div>
  ));
}

function drawMarks(builder, marks) {
  builder.addHook('draw', (plot) => {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.setLineDash([3, 3]);
    for (const { time, color } of marks) {
      const x = plot.valToPos(time, 'x', true);
      ctx.strokeStyle = ctx.fillStyle = NAMED[color] ?? color;
      ctx.globalAlpha = 0.7;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.globalAlpha = 1;
      ctx.beginPath();
      ctx.moveTo(x - 4, bbox.top + bbox.height);
      ctx.lineTo(x + 4, bbox.top + bbox.height);
      ctx.lineTo(x, bbox.top + bbox.height - 6);
      ctx.fill();
    }
    ctx.restore();
  });
}

export function Graph({ panel, frames, marks, width, height, range }) {
  if (!frames.length) {
    return <Empty panel={panel} />;
  }
  const drawn = new WeakSet();
  return (
    <TimeSeries
      frames={frames}
      width={width}
      height={height}
      timeRange={{ from: dateTime(range.from * 1000), to: dateTime(range.to * 1000), raw: { from: '', to: '' } }}
      timeZone="utc"
      legend={panel.options.legend}
    >
      {(builder) => {
        if (!drawn.has(builder)) {
          drawn.add(builder);
          drawMarks(builder, marks);
        }
        return null;
      }}
    </TimeSeries>
  );
}

export function Grid({ panel, frames, width, height }) {
  if (!frames.length || !frames[0].length) {
    return <Empty panel={panel} />;
  }
  return (
    <Table
      data={frames[0]}
      width={width}
      height={height}
      cellHeight={panel.options.cellHeight}
      initialSortBy={panel.options.sortBy}
    />
  );
}

// Grafana's state timeline is not among its published components: this is a plain drawing of the same data.
export function States({ panel, frames, width, range, theme }) {
  const nameWidth = 170;
  const scale = (width - nameWidth - 8) / (range.to - range.from);
  const rows = frames.map((frame) => {
    const field = valueField(frame);
    const times = frame.fields[0].values;
    const step = frame.fields[0].config.interval;
    const bars = [];
    times.forEach((time, index) => {
      const last = bars.at(-1);
      const value = field.values[index];
      if (last && last.value === value && time - last.end <= step) {
        last.end = time + step;
      } else {
        bars.push({ value, start: time, end: time + step, color: field.display(value).color });
      }
    });
    return { name: getFieldDisplayName(field, frame, frames), bars };
  });
  return (
    <div style={{ fontSize: 12, color: theme.colors.text.primary }}>
      {rows.map(({ name, bars }) => (
        <div key={name} style={{ display: 'flex', height: 17, alignItems: 'center' }}>
          <span style={{ width: nameWidth, textAlign: 'right', paddingRight: 8 }}>{name}</span>
          <span style={{ position: 'relative', flex: 1, height: 13, background: theme.colors.background.secondary }}>
            {bars.map(({ start, end, color }) => (
              <i
                key={start}
                style={{
                  position: 'absolute', top: 0, bottom: 0, background: color, opacity: 0.8,
                  left: Math.max(0, (start / 1000 - range.from) * scale),
                  width: (Math.min(end / 1000, range.to) - Math.max(start / 1000, range.from)) * scale,
                }}
              />
            ))}
          </span>
        </div>
      ))}
    </div>
  );
}

function Empty({ panel }) {
  return <div style={{ display: 'grid', placeItems: 'center', height: '100%', opacity: 0.6 }}>{panel.fieldConfig.defaults.noValue}</div>;
}

export const PANELS = { stat: Stat, bargauge: Bars, timeseries: Graph, table: Grid, 'state-timeline': States };
