// A past for alerts: ALERTS and ALERTS_FOR_STATE, as Prometheus would have written them while a rule's expression was true.
import { milliseconds } from '../src/model.js';
import { Writer } from './write.mjs';

/** Each alert's expression is asked for between two times; a series that has it for the rule's waiting time fires. */
export async function writeAlerts(prometheus, groups, { from, to, step }) {
  const writer = new Writer(prometheus.url);
  for (const { alert, expr, labels: own = {}, for: wait = '0s' } of groups.flatMap(({ rules }) => rules)) {
    if (!alert) continue;
    const body = new URLSearchParams({ query: expr, start: Math.ceil(from / step) * step / 1000, end: to / 1000, step: step / 1000 });
    const answer = await (await fetch(`${prometheus.url}/api/v1/query_range`, { method: 'POST', body })).json();
    if (answer.status !== 'success') throw new Error(`${alert}: ${answer.error}`);
    for (const { metric, values } of answer.data.result) {
      const { __name__, ...rest } = metric;
      // Labels that are templates are of no use to dashboards.
      const labels = { ...rest, ...Object.fromEntries(Object.entries(own).filter(([, text]) => !text.includes('{{'))), alertname: alert };
      const points = values.map(([time]) => Math.round(time * 1000));
      let since = points[0];
      const states = { pending: [], firing: [] };
      const sinces = [];
      points.forEach((time, i) => {
        if (i && time - points[i - 1] > step) since = time;
        states[time - since >= milliseconds(wait) ? 'firing' : 'pending'].push([time, 1]);
        sinces.push([time, since / 1000]);
      });
      for (const [alertstate, times] of Object.entries(states)) await writer.add('ALERTS', Object.entries({ ...labels, alertstate }), times);
      await writer.add('ALERTS_FOR_STATE', Object.entries(labels), sinces);
    }
  }
  await writer.flush();
  return writer.sent;
}
