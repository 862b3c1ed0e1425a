// A past for a Prometheus that has just started: pages of nodes, written from recordings, and the series of recording
// rules, by asking for each rule's expression over that past.
import { readFileSync } from 'node:fs';
import YAML from 'yaml';
import { milliseconds } from '../src/model.js';
import { labelsOf } from './recording.mjs';
import { Writer } from './write.mjs';

/** Groups of rules in these files, in the order in which they can be evaluated one after the other. */
export function groupsOf(files) {
  return files.flatMap((file) => (YAML.parse(readFileSync(file, 'utf8'))?.groups ?? []).map((group) => ({ ...group, file })));
}

const NAME = /[a-zA-Z_:][\w:]*/g;

/** Words of an expression that may be names of metrics. */
export const namesIn = (expr) => new Set(expr.match(NAME) ?? []);

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
      await writer.add(series.name, [...labelsOf(rename(series.labels)), ...Object.entries(labels)], points);
    }
    if (!only || only.has('up')) await writer.add('up', Object.entries(labels), times.map(([time]) => [time, 1]));
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

/**
 * Writes what recording rules would have recorded, group by group: from `far` on every five minutes, from `near` on every
 * `step`, but no group more often than it is evaluated. In the `gap` no Prometheus ran.
 */
export async function writeRules(prometheus, groups, { far, near, to, step, gap: [quiet, loud] = [] }) {
  const writer = new Writer(prometheus.url);
  for (const group of groups) {
    const every = Math.max(15000, group.interval ? milliseconds(group.interval) : 0);
    for (const rule of group.rules) {
      if (!rule.record) continue;
      for (const [from, until, by] of [[far, near - 1, 300000], [near, to, Math.max(every, step)]]) {
        const start = Math.ceil(from / by) * by;
        if (start > until) continue;
        for (const [labels, points] of await evaluated(prometheus, rule, start, until, by)) {
          await writer.add(rule.record, labels, points.filter(([time]) => !(time >= quiet && time < loud)));
        }
        // The next rule may ask for this one.
        await writer.flush();
      }
    }
  }
  return writer.sent;
}
