// What Grafana does to a dashboard before it asks Prometheus: variables, steps, times. Used by the page and by the
// runner, so that what is drawn and what is timed are the same queries.

const UNITS = { ms: 1, s: 1000, m: 60e3, h: 3600e3, d: 86400e3, w: 7 * 86400e3, M: 30 * 86400e3, y: 365 * 86400e3 };

/** Milliseconds of a duration as `5m` or `1h30m`; NaN if it is none. */
export function milliseconds(text) {
  const parts = [...String(text).matchAll(/(\d+(?:\.\d+)?)(ms|[smhdwMy])/g)];
  if (!parts.length || parts.map((p) => p[0]).join('') !== String(text)) return NaN;
  return parts.reduce((sum, [, n, unit]) => sum + Number(n) * UNITS[unit], 0);
}

/** A time as dashboards write it: `now`, `now-6h`, `now-1d/d` (rounding is left away), or milliseconds. */
export function timeOf(text, now) {
  if (/^\d+$/.test(String(text))) return Number(text);
  const match = /^now(?:([-+])([^/]+))?(?:\/\w)?$/.exec(String(text));
  if (!match) throw new Error(`no time: ${text}`);
  return match[1] ? now + (match[1] === '-' ? -1 : 1) * milliseconds(match[2]) : now;
}

/** A duration as PromQL takes it. */
export function duration(ms) {
  return ms % 1000 ? `${Math.round(ms)}ms` : `${ms / 1000}s`;
}

// Grafana's steps: the first bound above the exact interval gives the step.
const STEPS = [
  [15, 10], [35, 20], [75, 50], [150, 100], [350, 200], [750, 500], [1500, 1000], [3500, 2000], [7500, 5000],
  [12500, 10000], [17500, 15000], [25000, 20000], [45000, 30000], [90000, 60000], [210000, 120000],
  [450000, 300000], [750000, 600000], [1050000, 900000], [1500000, 1200000], [2700000, 1800000],
  [5400000, 3600000], [9000000, 7200000], [16200000, 10800000], [32400000, 21600000], [86400000, 43200000],
  [604800000, 86400000], [1814400000, 604800000],
];

/** What is between two points of a panel so many pixels wide. */
export function stepOf(range, points, least) {
  const exact = range / Math.max(1, points);
  const step = STEPS.find(([bound]) => exact < bound)?.[1] ?? 2592000000;
  return Math.max(step, least);
}

/** What is between two looks for annotations. */
export const annotationStep = (from, to) => Math.max(15000, Math.ceil((to - from) / 1000 / 15000) * 15000);

/** Scrape interval of production; the datasource's setting. */
export const SCRAPE = 15000;

const REGEX = /[\\^$*+?.()|[\]{}]/g;
// Within a quoted string of PromQL a backslash is written twice.
const escapeRegex = (value) => value.replace(REGEX, '\\$&').replace(/\\/g, '\\\\').replace(/"/g, '\\"');
const escapeString = (value) => value.replace(/\\/g, '\\\\').replace(/"/g, '\\"');

function formatted(variable, format) {
  const values = variable.values;
  switch (format) {
    case undefined:
    case 'text':
    case 'raw':
      return values.join(',');
    case 'regex':
      return values.length === 1 ? values[0].replace(REGEX, '\\$&') : `(${values.map((v) => v.replace(REGEX, '\\$&')).join('|')})`;
    case 'pipe':
      return values.join('|');
    case 'csv':
      return values.join(',');
    case 'percentencode':
      return encodeURIComponent(values.join(','));
    case 'queryparam':
      return values.map((v) => `var-${variable.name}=${encodeURIComponent(v)}`).join('&');
    case 'glob':
      return values.length === 1 ? values[0] : `{${values.join(',')}}`;
    default:
      throw new Error(`format of a variable that the preview does not know: ${format}`);
  }
}

function inPromql(variable) {
  if (variable.all && variable.allValue) return variable.allValue;
  const { values } = variable;
  if (!variable.multi && !variable.includeAll) return escapeString(values.join(','));
  if (values.length === 1) return escapeRegex(values[0]);
  return `(${values.map(escapeRegex).join('|')})`;
}

const NAMES = /\$\{([\w.]+)(?:\[[^\]]*\])?(?::([^}]+))?\}|\$(\w+)|\[\[(\w+)\]\]/g;

/** The text with variables in their places; unknown ones stay, as in Grafana. */
export function interpolate(text, variables, builtins = {}, promql = false) {
  return String(text).replace(NAMES, (whole, braced, format, plain, square) => {
    const name = braced ?? plain ?? square;
    if (name in builtins) return builtins[name];
    const variable = variables[name];
    if (!variable) return whole;
    if (variable.all && !promql && format === 'queryparam') return `var-${name}=$__all`;
    if (promql && format === undefined) return inPromql(variable);
    if (variable.all && !promql && (format === undefined || format === 'text')) return 'All';
    if (variable.all && variable.allValue) return variable.allValue;
    return formatted(variable, format);
  });
}

/** What Grafana fills in by itself. */
export function builtins(from, to, step) {
  const range = to - from;
  return {
    __interval: duration(step),
    __interval_ms: String(step),
    __rate_interval: duration(Math.max(step + SCRAPE, 4 * SCRAPE)),
    __range: duration(Math.round(range / 1000) * 1000),
    __range_s: String(Math.round(range / 1000)),
    __range_ms: String(range),
    __from: String(from),
    __to: String(to),
  };
}

async function ask(prometheus, path, parameters) {
  const answer = await fetch(`${prometheus}/api/v1/${path}`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/x-www-form-urlencoded' },
    body: new URLSearchParams(parameters),
  });
  const body = await answer.json();
  if (body.status !== 'success') throw new Error(`${body.errorType}: ${body.error}`);
  return body.data;
}

/** An instant query. */
export const instant = (prometheus, query, time) => ask(prometheus, 'query', { query, time: time / 1000 });

/** A range query, its start on a multiple of the step as Grafana has it. */
export const range = (prometheus, query, from, to, step) =>
  ask(prometheus, 'query_range', {
    query,
    start: (Math.floor(from / step) * step) / 1000,
    end: to / 1000,
    step: step / 1000,
  });

async function labelValues(prometheus, label, selector, from, to) {
  const parameters = new URLSearchParams({ start: from / 1000, end: to / 1000 });
  if (selector) parameters.append('match[]', selector);
  const answer = await fetch(`${prometheus}/api/v1/label/${label}/values?${parameters}`);
  const body = await answer.json();
  if (body.status !== 'success') throw new Error(`${body.errorType}: ${body.error}`);
  return body.data;
}

async function options(variable, prometheus, variables, from, to) {
  const text = typeof variable.query === 'string' ? variable.query : (variable.query?.query ?? '');
  const query = interpolate(text, variables, builtins(from, to, SCRAPE), true);
  let found;
  let match;
  if ((match = /^label_values\(\s*(?:(.*),)?\s*(\w+)\s*\)$/s.exec(query))) {
    found = await labelValues(prometheus, match[2], match[1]?.trim(), from, to);
  } else if ((match = /^query_result\((.*)\)$/s.exec(query))) {
    const { result } = await instant(prometheus, match[1], to);
    found = result.map(({ metric: { __name__ = '', ...labels }, value }) => {
      const inner = Object.entries(labels).map(([k, v]) => `${k}="${v}"`);
      return `${__name__}{${inner.join(',')}} ${value[1]} ${value[0] * 1000}`;
    });
  } else {
    throw new Error(`variable ${variable.name}: query of a kind that the preview does not know: ${query}`);
  }
  if (variable.regex) {
    const [, body, flags] = /^\/(.*)\/(\w*)$/.exec(variable.regex) ?? [null, variable.regex, ''];
    const regex = new RegExp(body, flags.replace('g', ''));
    found = found.flatMap((value) => {
      const hit = regex.exec(value);
      return hit ? [hit.groups?.value ?? hit[1] ?? hit[0]] : [];
    });
  }
  found = [...new Set(found)].filter((value) => value !== '');
  // 1: alphabetical, 3: numerical, 5: alphabetical without case, 7: natural; even numbers are the reverse.
  if (variable.sort) {
    found.sort((a, b) => (variable.sort >= 3 && variable.sort <= 4 ? Number(a) - Number(b) : a.localeCompare(b, 'en', { numeric: variable.sort >= 7 })));
    if (variable.sort % 2 === 0) found.reverse();
  }
  return found;
}

/**
 * The variables of a dashboard, filled as Grafana does when it is opened: from the address, else as the dashboard was saved,
 * else the first value. `wanted` maps names to a list of values.
 */
export async function resolve(dashboard, prometheus, wanted, from, to) {
  const variables = {};
  for (const variable of dashboard.templating?.list ?? []) {
    const { name, type, multi = false, includeAll = false, allValue } = variable;
    const entry = { name, type, multi, includeAll, allValue: allValue || undefined, all: false, values: [], options: [] };
    const saved = [variable.current?.value].flat().filter((v) => v !== undefined && v !== null && v !== '');
    switch (type) {
      case 'datasource':
        entry.values = ['preview'];
        break;
      case 'query':
        entry.options = await options(variable, prometheus, variables, from, to);
        break;
      case 'custom':
      case 'interval':
        entry.options = String(variable.query).split(/(?<!\\),/).map((o) => o.trim().split(/\s+:\s+/).pop());
        break;
      case 'constant':
      case 'textbox':
        entry.values = [String(variable.query ?? '')];
        break;
      default:
        throw new Error(`variable ${name}: type that the preview does not know: ${type}`);
    }
    const asked = wanted[name] ?? saved;
    if (type === 'textbox' && wanted[name]) entry.values = wanted[name];
    if (type === 'query' || type === 'custom' || type === 'interval') {
      const known = asked.filter((value) => entry.options.includes(value));
      if (includeAll && (asked.includes('$__all') || asked.includes('All') || (!known.length && !saved.length))) {
        entry.all = true;
        entry.values = entry.options;
      } else {
        // A value that is no option stays if it was asked for: a link may name what is no longer there.
        entry.values = known.length ? known : (wanted[name] ?? entry.options.slice(0, 1));
      }
      // Without any option Grafana has an empty value, also for All.
      if (!entry.values.length) entry.values = [''];
    }
    variables[name] = entry;
  }
  return variables;
}

/** All panels of a dashboard, those within closed rows as well, as if the rows were opened. */
export function panelsOf(dashboard) {
  const panels = [];
  let shift = 0;
  for (const panel of dashboard.panels ?? []) {
    const at = { ...panel, gridPos: { ...panel.gridPos, y: panel.gridPos.y + shift } };
    panels.push(at);
    if (panel.type === 'row' && panel.collapsed && panel.panels?.length) {
      const top = panel.gridPos.y + 1;
      const first = Math.min(...panel.panels.map((p) => p.gridPos.y));
      const bottom = Math.max(...panel.panels.map((p) => p.gridPos.y - first + p.gridPos.h));
      for (const inner of panel.panels) {
        panels.push({ ...inner, gridPos: { ...inner.gridPos, y: inner.gridPos.y - first + top + shift } });
      }
      shift += bottom;
    }
  }
  return panels;
}

export const GRID = { columns: 24, row: 30, gap: 8 };

/** The queries of a panel on a dashboard so many pixels wide. */
export function queriesOf(panel, variables, from, to, width) {
  let start = from;
  if (panel.timeFrom) start = timeOf(`now-${panel.timeFrom.replace(/^now-/, '')}`, to);
  const points = panel.maxDataPoints ?? Math.floor((panel.gridPos.w / GRID.columns) * width);
  const least = panel.interval ? milliseconds(interpolate(panel.interval, variables).replace(/^[<>]/, '')) : SCRAPE;
  const step = stepOf(to - start, points, least);
  const filled = builtins(start, to, step);
  return (panel.targets ?? [])
    .filter((target) => !target.hide)
    .map((target) => ({
      refId: target.refId ?? 'A',
      expr: interpolate(target.expr ?? '', variables, filled, true),
      // Grafana asks for both only when the box "both" is ticked; dashboards of this project use one.
      instant: Boolean(target.instant),
      format: target.format ?? 'time_series',
      legend: interpolate(target.legendFormat ?? '', variables, filled),
      from: start,
      to,
      step,
    }));
}

/** Asks one query. */
export const run = (prometheus, query) =>
  query.instant
    ? instant(prometheus, query.expr, query.to)
    : range(prometheus, query.expr, query.from, query.to, query.step);
