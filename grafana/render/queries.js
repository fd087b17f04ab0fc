// Ask Prometheus what a panel asks, and hand the answers over as Grafana's data frames.
import { FieldType } from '@grafana/data';

const SCRAPE_SECONDS = 15;
const STEPS = [15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200];

export function stepFor(range, width) {
  const wanted = Math.max(SCRAPE_SECONDS, (range.to - range.from) / width);
  return STEPS.find((step) => step >= wanted) ?? STEPS.at(-1);
}

export function fill(text, variables, range, step) {
  const seconds = Math.round(range.to - range.from);
  const rate = Math.max(step + SCRAPE_SECONDS, 4 * SCRAPE_SECONDS);
  const all = { ...variables, __range: `${seconds}s`, __rate_interval: `${rate}s` };
  return text.replace(/\$(\w+)|\$\{(\w+)\}/g, (match, bare, braced) => all[bare ?? braced] ?? match);
}

async function ask(path, parameters) {
  const answer = await fetch(`prom/api/v1/${path}?${new URLSearchParams(parameters)}`);
  const body = await answer.json();
  if (body.status !== 'success') {
    throw new Error(`${body.error}: ${parameters.query}`);
  }
  return body.data.result;
}

const legendOf = (format, labels) =>
  format ? format.replace(/{{\s*(\w+)\s*}}/g, (_, name) => labels[name] ?? '') : JSON.stringify(labels);

function seriesFrame(series, target, step) {
  const { __name__: _, ...labels } = series.metric;
  const points = series.values ?? [series.value];
  return {
    refId: target.refId,
    length: points.length,
    fields: [
      { name: 'Time', type: FieldType.time, config: { interval: step * 1000 }, values: points.map(([t]) => t * 1000) },
      {
        name: 'Value',
        type: FieldType.number,
        labels,
        config: { displayNameFromDS: legendOf(target.legendFormat, labels) },
        values: points.map(([, value]) => Number(value)),
      },
    ],
  };
}

function tableFrame(result, target, several) {
  const names = [...new Set(result.flatMap((series) => Object.keys(series.metric)))].sort();
  const column = (name) => result.map((series) => series.metric[name] ?? '');
  return {
    refId: target.refId,
    length: result.length,
    fields: [
      { name: 'Time', type: FieldType.time, config: {}, values: result.map(({ value }) => value[0] * 1000) },
      ...names.map((name) => ({ name, type: FieldType.string, config: {}, values: column(name) })),
      {
        name: several ? `Value #${target.refId}` : 'Value',
        type: FieldType.number,
        config: {},
        values: result.map(({ value }) => Number(value[1])),
      },
    ],
  };
}

export async function framesOf(panel, variables, range, width) {
  const step = stepFor(range, width);
  const frames = await Promise.all(
    panel.targets.map(async (target) => {
      const query = fill(target.expr, variables, range, step);
      if (target.instant) {
        const result = await ask('query', { query, time: range.to });
        return target.format === 'table'
          ? result.length ? [tableFrame(result, target, panel.targets.length > 1)] : []
          : result.map((series) => seriesFrame(series, target, step));
      }
      const start = Math.floor(range.from / step) * step;
      const result = await ask('query_range', { query, start, end: range.to, step });
      return result.map((series) => seriesFrame(series, target, step));
    })
  );
  return frames.flat();
}

export async function marksOf(annotations, variables, range) {
  const marks = await Promise.all(
    annotations.filter(({ enable }) => enable).map(async (annotation) => {
      const step = 15;
      const query = fill(annotation.expr, variables, range, step);
      const start = Math.floor(range.from / 60) * 60;
      const result = await ask('query_range', { query, start, end: range.to, step: stepFor(range, 800) });
      const times = new Set(result.flatMap((series) => series.values.map(([, value]) => Number(value))));
      return [...times]
        .filter((time) => time >= range.from * 1000 && time <= range.to * 1000)
        .map((time) => ({ time, color: annotation.iconColor, panels: annotation.filter.ids }));
    })
  );
  return marks.flat();
}
