// A past for a Prometheus that has just started: pages of nodes, written from recordings, and the series of recording
// rules, by asking for each rule's expression over that past.
import { readFileSync } from 'node:fs';
import YAML from 'yaml';
import { milliseconds } from '../src/model.js';
import { labelsOf } from './recording.mjs';
import { Writer } from './write.mjs';

/** Groups of rules in these files. */
export function groupsOf(files) {
  return files.flatMap((file) => (YAML.parse(readFileSync(file, 'utf8'))?.groups ?? []).map((group) => ({ ...group, file })));
}

const NAME = /[a-zA-Z_:][\w:]*/g;

/** Words of an expression that may be names of metrics. */
export const namesIn = (expr) => new Set(expr.match(NAME) ?? []);

// A bucket's bound as Prometheus 3 writes it when it scrapes: 1.0, 5e-05.
function bound([name, value]) {
  if (name !== 'le' || value === '+Inf') return [name, value];
  const text = Number(value) && Math.abs(Number(value)) < 1e-4 ? Number(value).toExponential().replace(/e-(\d)$/, 'e-0$1') : String(Number(value));
  return [name, /[.e]/.test(text) ? text : `${text}.0`];
}

const OF_SCRAPES = { up: () => 1, scrape_duration_seconds: (time) => 0.012 + 0.004 * Math.abs(Math.sin(time / 7e5)) };

/** Writes the nodes' series between two times. `only`: names of metrics, else all. */
export async function writePast(prometheus, nodes, from, to, step, only) {
  const writer = new Writer(prometheus.url);
  for (const { player, labels, rename, since = 0, gap: [quiet, loud] = [] } of nodes) {
    const times = [];
    for (let time = Math.ceil(Math.max(from, since) / step) * step; time < to; time += step) if (!(time >= quiet && time < loud)) times.push([time, player.at(time)]);
    for (const series of player.recording.series.values()) {
      if (only && !only.has(series.name)) continue;
      const points = [];
      for (const [time, place] of times) {
        const value = player.value(series, place, time);
        if (value !== undefined) points.push([time, value]);
      }
      await writer.add(series.name, [...labelsOf(rename(series.labels)).map(bound), ...Object.entries(labels)], points);
    }
    // What Prometheus itself would have recorded of each scrape.
    for (const [name, valueAt] of Object.entries(OF_SCRAPES)) {
      if (!only || only.has(name)) await writer.add(name, Object.entries(labels), times.map(([time]) => [time, valueAt(time)]));
    }
  }
  await writer.flush();
  return writer.sent;
}

const number = (text) => (text === '+Inf' ? Infinity : text === '-Inf' ? -Infinity : Number(text));

// A rule's result over a range, as series to be written.
async function evaluated(prometheus, rule, from, to, step) {
  const body = new URLSearchParams({ query: rule.expr, start: from / 1000, end: to / 1000, step: step / 1000 });
  const answer = await (await fetch(`${prometheus.url}/api/v1/query_range`, { method: 'POST', body })).json();
  if (answer.status !== 'success') throw new Error(`${rule.record}: ${answer.error}`);
  return answer.data.result.map(({ metric, values }) => {
    const { __name__, ...labels } = { ...metric, ...rule.labels };
    return [Object.entries(labels), values.map(([time, value]) => [Math.round(time * 1000), number(value)])];
  });
}

const DAY = 86400e3;

/** How much of its load a fleet has at that time: less at night, and at weekends. */
function tideOf(time) {
  const date = new Date(time);
  const hour = date.getUTCHours() + date.getUTCMinutes() / 60;
  const day = 0.45 + 0.55 * Math.max(0, Math.sin(((hour - 7) / 15) * Math.PI)) ** 0.7;
  return [0, 6].includes(date.getUTCDay()) ? 0.7 * day : day;
}

// Recorded series of the fleet's load, which has a tide that two recorded minutes lack. CPUs have theirs an hour earlier.
const TIDAL = { 'model:gpu_utilization:avg5m': 0, 'job:gpu_host_cpu_busy:ratio_rate5m': 3600e3 };

/** The points, and before them what they were over and over again; of single nodes a week, else a month. */
function lengthened(all, labels, by) {
  // What looks back has not all of its past at first.
  const points = all.length * by > 2 * 3600e3 ? all.slice(Math.ceil(2400e3 / by)) : all;
  const [first, last] = [points[0]?.[0], points.at(-1)?.[0]];
  if (points.length < 2) return all;
  const span = last - first + by;
  const from = last - (labels.some(([name]) => name === 'instance') ? 7 : 30) * DAY;
  const before = [];
  for (let n = Math.ceil((first - from) / span); n > 0; n--) {
    for (const [time, value] of points) if (time - n * span >= from) before.push([time - n * span, value]);
  }
  return before.concat(points);
}

/** Recording rules with their groups' intervals, each after those that it asks for. */
function inOrder(groups) {
  const all = groups.flatMap(({ rules, interval }) => rules.filter(({ record }) => record)
    .map((rule) => ({ rule, every: Math.max(15000, interval ? milliseconds(interval) : 0) })));
  const sorted = new Set();
  const visited = new Set();
  const visit = (one) => {
    if (visited.has(one)) return;
    visited.add(one);
    const names = namesIn(one.rule.expr);
    all.filter(({ rule }) => names.has(rule.record)).forEach(visit);
    sorted.add(one);
  };
  all.forEach(visit);
  return sorted;
}

/**
 * Writes what recording rules would have recorded, each after those that it asks for: from `far` on every five minutes, from `near` on every
 * `step`, but no group more often than it is evaluated. In the `gap` no Prometheus ran. The series `long` have a month
 * before that, made of what they were since `far`.
 */
export async function writeRules(prometheus, groups, { far, near, to, step, long, gap: [quiet, loud] = [] }) {
  const writer = new Writer(prometheus.url);
  for (const { rule, every } of inOrder(groups)) {
    const known = new Set();
    for (const [from, until, by] of [[far, near - 1, 300000], [near, to, Math.max(every, step)]]) {
      // The newest point is at the end, or what follows would find none in the last five minutes.
      const start = until - Math.floor((until - from) / by) * by;
      if (start > until) continue;
      for (const [labels, points] of await evaluated(prometheus, rule, start, until, by)) {
        const key = JSON.stringify(labels);
        const all = long?.has(rule.record) && !known.has(key) ? lengthened(points, labels, by) : points;
        known.add(key);
        const ahead = TIDAL[rule.record];
        const tidal = long && ahead !== undefined ? all.map(([time, value]) => [time, value * tideOf(time + ahead)]) : all;
        await writer.add(rule.record, labels, tidal.filter(([time]) => !(time >= quiet && time < loud)));
      }
      // The next rule may ask for this one.
      await writer.flush();
    }
  }
  return writer.sent;
}
