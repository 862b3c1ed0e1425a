// What dashboards and rules cost a Prometheus.
import { setTimeout as sleep } from 'node:timers/promises';
import { queriesOf, panelsOf, resolve, run, timeOf } from '../src/model.js';

async function metrics(prometheus) {
  const text = await (await fetch(`${prometheus.url}/metrics`)).text();
  return text.split('\n').filter((line) => line && !line.startsWith('#')).map((line) => /^(\w+)(?:\{(.*)\})? (\S+)$/.exec(line)).filter(Boolean);
}

// The first scrapes of a fleet make all of its series; what is measured begins when all have been scraped twice more.
async function settled(prometheus, targets) {
  const deadline = Date.now() + 240000;
  for (;;) {
    const { result } = await prometheus.json(`query?query=${encodeURIComponent('count(up == 1)')}`);
    if (Number(result[0]?.value[1] ?? 0) === targets) break;
    if (Date.now() > deadline) throw new Error(`only ${result[0]?.value[1] ?? 0} of ${targets} targets can be scraped in time: is the machine busy?`);
    await sleep(5000);
  }
  await sleep(45000);
}

/** The time of one evaluation of all groups, the longest of three looks 15 s apart for each. */
export async function measureRules(prometheus, targets) {
  await settled(prometheus, targets);
  const longest = new Map();
  for (let look = 0; look < 3; look++) {
    for (const [, name, labels, value] of await metrics(prometheus)) {
      if (name === 'prometheus_rule_group_last_duration_seconds') longest.set(labels, Math.max(longest.get(labels) ?? 0, Number(value)));
    }
    if (look < 2) await sleep(15000);
  }
  const all = await metrics(prometheus);
  const one = (wanted) => Number(all.find(([, name]) => name === wanted)?.[3] ?? NaN);
  const failed = [];
  const { groups } = await prometheus.json('rules');
  for (const group of groups) for (const rule of group.rules) if (rule.lastError) failed.push(`rule ${rule.name}: ${rule.lastError}`);
  const often = groups.filter(({ interval }) => interval <= 15).map(({ file, name }) => `"${file};${name}"`);
  return {
    // What is due at every evaluation; `seconds` is all of them, also those due once in five minutes.
    due: [...longest].filter(([labels]) => often.some((key) => labels.includes(key))).reduce((sum, [, value]) => sum + value, 0),
    seconds: [...longest.values()].reduce((sum, value) => sum + value, 0),
    groups: longest.size,
    byGroup: Object.fromEntries([...longest].map(([labels, value]) => [/rule_group="[^"]*\/([^"]*)"/.exec(labels)?.[1] ?? labels, value]).sort((a, b) => b[1] - a[1])),
    series: one('prometheus_tsdb_head_series'),
    megabytes: Math.round(one('process_resident_memory_bytes') / 1e6),
    firing: groups.flatMap((group) => group.rules).filter(({ type, state }) => type === 'alerting' && state === 'firing').map(({ name, alerts }) => `${name} ${alerts.length}`),
    failed,
  };
}

const middle = (values) => values.sort((a, b) => a - b)[values.length >> 1];

/**
 * How long each query of each dashboard takes, by the clock and of CPU: the middle of three, or the first if that takes over a
 * second. Near `limit` (milliseconds) it is the middle of five, so that neither one collection of garbage nor one moment in
 * which other work has the CPUs counts.
 */
export async function measureQueries(prometheus, dashboards, now, limit) {
  const found = [];
  for (const dashboard of dashboards) {
    const [from, to] = [timeOf(dashboard.time?.from ?? 'now-6h', now), timeOf(dashboard.time?.to ?? 'now', now)];
    const variables = await resolve(dashboard, prometheus.url, {}, from, to);
    for (const panel of panelsOf(dashboard)) {
      for (const query of queriesOf(panel, variables, from, to, 1600)) {
        const [times, cpu] = [[], []];
        let series = 0;
        const enough = () => times[0] > 1000 || times.length >= (Math.max(...times) > limit / 2 ? 5 : 3);
        while (!enough()) {
          const [started, had] = [performance.now(), prometheus.cpu()];
          try {
            series = (await run(prometheus.url, query)).result.length;
          } catch {
            // The drawing reports it.
          }
          times.push(performance.now() - started);
          cpu.push(prometheus.cpu() - had);
        }
        found.push({ uid: dashboard.uid, title: panel.title, refId: query.refId, ms: middle(times), cpu: middle(cpu), series, expr: query.expr });
      }
    }
  }
  return found;
}
