// From what Prometheus answers to data frames as Grafana's Prometheus data source makes them.
import { FieldType } from '@grafana/data';

const number = (text) => (text === 'NaN' ? NaN : text === '+Inf' ? Infinity : text === '-Inf' ? -Infinity : Number(text));

function nameOf(metric, query) {
  if (query.legend && query.legend !== '__auto') {
    return query.legend.replace(/\{\{\s*(.+?)\s*\}\}/g, (_, label) => metric[label] ?? '');
  }
  const { __name__: name = '', ...labels } = metric;
  const inner = Object.entries(labels).map(([key, value]) => `${key}="${value}"`);
  if (query.legend === '__auto' && inner.length === 0 && name) return name;
  return inner.length || name ? `${name}{${inner.join(', ')}}` : query.expr;
}

function series(result, query) {
  return result.map(({ metric, values, value }) => {
    const points = values ?? [value];
    const { __name__: _, ...labels } = metric;
    return {
      refId: query.refId,
      name: nameOf(metric, query),
      meta: { type: 'timeseries-multi' },
      fields: [
        {
          name: 'Time',
          type: FieldType.time,
          // A gap wider than this is drawn as one.
          config: query.instant ? {} : { interval: query.step },
          values: points.map(([time]) => time * 1000),
        },
        {
          name: 'Value',
          type: FieldType.number,
          labels,
          config: { displayNameFromDS: nameOf(metric, query) },
          values: points.map(([, text]) => number(text)),
        },
      ],
      length: points.length,
    };
  });
}

function table(result, query, alone) {
  const names = [...new Set(result.flatMap(({ metric }) => Object.keys(metric)))].sort();
  const rows = result.flatMap(({ metric, values, value }) => (values ?? [value]).map((point) => ({ metric, point })));
  const field = (name, type, values) => ({ name, type, config: {}, values });
  return [
    {
      refId: query.refId,
      meta: { preferredVisualisationType: 'table' },
      fields: [
        field('Time', FieldType.time, rows.map(({ point }) => point[0] * 1000)),
        ...names.map((name) => ({ ...field(name, FieldType.string, rows.map(({ metric }) => metric[name])), config: { filterable: true } })),
        field(alone ? 'Value' : `Value #${query.refId}`, FieldType.number, rows.map(({ point }) => number(point[1]))),
      ],
      length: rows.length,
    },
  ];
}

// Cumulative buckets become what is in each of them, the lowest first.
function heatmap(result, query) {
  const bound = ({ metric }) => number(metric.le ?? '0');
  const sorted = [...result].sort((a, b) => bound(a) - bound(b));
  const frames = series(sorted, { ...query, legend: query.legend || '{{le}}' });
  for (let i = frames.length - 1; i > 0; i--) {
    const below = new Map(frames[i - 1].fields[0].values.map((time, k) => [time, frames[i - 1].fields[1].values[k]]));
    const [times, values] = [frames[i].fields[0].values, frames[i].fields[1].values];
    frames[i].fields[1].values = values.map((value, k) => value - (below.get(times[k]) ?? 0));
  }
  return frames;
}

/** The frames of a query's answer. `alone`: the panel has no other query. */
export function framesOf(data, query, alone) {
  if (data.resultType === 'scalar') return series([{ metric: {}, value: data.result }], query);
  // Grafana gives a table without rows no frame at all, unless there are others to merge it with.
  if (query.format === 'table') return data.result.length ? table(data.result, query, alone) : [];
  if (query.format === 'heatmap') return heatmap(data.result, query);
  return series(data.result, query);
}
