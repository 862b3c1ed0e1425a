// Draws every dashboard in every situation and checks what is drawn; measures queries and rules on 200 and 2,000 nodes.
//   node run.mjs [--dashboards UID,...] [--situations NAME,...] [--docs DIR] [--reuse] [--again]
import { copyFileSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { writeAlerts } from './lib/alerts.mjs';
import { checkLinks, Drawer, faultsOf } from './lib/draw.mjs';
import { groupsOf, namesIn, writePast, writeRules } from './lib/history.mjs';
import { inventCpu, inventPrices, inventRare, inventSlurmOwner } from './lib/invented.mjs';
import { measureQueries, measureRules } from './lib/measure.mjs';
import { Recording } from './lib/recording.mjs';
import { CHOSEN, eventsOf, MANY, nodesOf, ONLY, RICH, SCENARIOS, SITUATIONS, TIMED, WELL } from './lib/situations.mjs';
import { endAll, node, Prometheus, serve } from './lib/stack.mjs';
import { Walk } from './lib/walk.mjs';
import { panelsOf, timeOf } from './src/model.js';

const { values: options } = parseArgs({
  options: {
    dashboards: { type: 'string' }, situations: { type: 'string' }, docs: { type: 'string' }, reuse: { type: 'boolean' }, again: { type: 'boolean' },
  },
});
const REPOSITORY = process.env.REPOSITORY;
const BUILT = process.env.BUILT ?? join(REPOSITORY, 'target/debug');
const PROMETHEUS = process.env.PROMETHEUS ?? join(REPOSITORY, '.tools/prometheus-3/prometheus');
const RUN = resolve(REPOSITORY, process.env.RUN_DIR ?? '.run/preview');
const PORT = Number(process.env.PREVIEW_PORT ?? 21000);

const EVERY = 5000;
// The load of a simulated GPU has a period of two minutes; one of them is played again and again.
const FRAMES = 26;
// Groups of metrics of the recorded nodes, all but that of states that are not active; these nodes have the default set.
const GROUPS = [
  'canary-detail', 'clocks', 'cpu-events', 'driver-calls', 'ecc-locations', 'events', 'exporter-detail', 'gpm-detail', 'limits', 'link-detail', 'memory-detail',
  'mig-detail', 'modes', 'nvlink-links', 'owner-detail', 'process', 'samples', 'vgpu', 'video',
];
const DEFAULT_SET = ['no-mig', 'no-gpu'];
const SKIP = 5;
const HOUR = 3600e3;
const NEAR = 6 * HOUR;
const DAY = 24 * HOUR;
const FAR = 4 * DAY;
const began = Date.now();

function say(text) {
  process.stdout.write(`${((Date.now() - began) / 1000).toFixed(0).padStart(4)} s  ${text}\n`);
}

const readAll = () => readdirSync(join(REPOSITORY, 'dashboards'))
  .filter((name) => name.endsWith('.json'))
  .map((name) => JSON.parse(readFileSync(join(REPOSITORY, 'dashboards', name), 'utf8')))
  .sort((a, b) => a.uid.localeCompare(b.uid));
const chosenOf = (some, uids) => some.filter(({ uid }) => !uids || uids.split(',').includes(uid));
const all = readAll();
const dashboards = chosenOf(all, options.dashboards);
const situations = Object.keys(SITUATIONS).filter((name) => !options.situations || options.situations.split(',').includes(name));
const rules = ['alerts', 'alerts/optional']
  .map((folder) => join(REPOSITORY, folder))
  .filter(existsSync)
  .flatMap((folder) => readdirSync(folder).filter((name) => name.endsWith('.rules.yml')).map((name) => join(folder, name)))
  .sort();

/** The situation of the picture in docs, by dashboard. */
const PICTURED = {
  'gpu-node-fleet': 'thousands', 'gpu-node-oncall': 'rack', 'gpu-node-capacity': 'rack', 'gpu-node-exporter': 'rack', 'gpu-node-mig': 'all-mig',
  'gpu-node-canary': 'faults', 'gpu-node-gpu': 'faults', 'gpu-node-job': 'faults', 'gpu-node-service': 'faults',
};

// The first page with a fault of the GPU that is lost: the pages before it are repeated until the turn.
function firstFault({ series }) {
  const reasons = [...series.values()].filter(({ name, labels }) => name === 'gpu_unhealthy_reason' && /gpu="1"/.test(labels));
  const frame = Math.min(...reasons.map(({ values }) => values.indexOf(1)).filter((first) => first >= 0));
  if (!(frame >= 2 && frame < Infinity)) throw new Error('the recording of faults has no healthy beginning, or no fault');
  return frame;
}

async function record() {
  const recordings = {};
  await Promise.all(SCENARIOS.map(async (name, i) => {
    const folder = join(RUN, 'nodes', name);
    const scenario = join(REPOSITORY, 'dashboards/preview/scenarios', `${name}.toml`);
    const port = PORT + 1 + i;
    const child = await node({ scenario, folder, port, built: BUILT, groups: DEFAULT_SET.includes(name) ? [] : GROUPS });
    const recording = new Recording(EVERY);
    await recording.take(`http://127.0.0.1:${port}/metrics`, name === 'faults' ? FRAMES + 6 : FRAMES, SKIP);
    if (name === 'faults') recording.turn = firstFault(recording);
    if (name !== 'no-gpu') inventCpu(recording);
    inventRare(recording);
    recordings[name] = recording;
    child.kill('SIGTERM');
  }));
  return recordings;
}

function kept(file) {
  return JSON.parse(readFileSync(file, 'utf8')).map(([name, { series, heads, ...rest }]) => {
    const recording = Object.assign(new Recording(rest.every), rest);
    recording.series = new Map(series.map(([key, s]) => [key, { ...s, values: s.values.map((v) => (v === null ? undefined : typeof v === 'string' ? Number(v) : v)) }]));
    recording.heads = new Map(heads);
    return [name, recording];
  });
}

function keep(file, recordings) {
  const plain = Object.entries(recordings).map(([name, { series, heads, ...rest }]) => [name, { ...rest, series: [...series], heads: [...heads] }]);
  writeFileSync(file, JSON.stringify(plain, (_, value) => (typeof value === 'number' && !Number.isFinite(value) ? String(value) : value)));
}

/** Names in expressions of panels. `ranges`: only where it is asked for over a time, not for now. */
function askedFor(some, ranges = false) {
  const names = new Set();
  for (const dashboard of some) {
    for (const panel of panelsOf(dashboard)) {
      for (const { expr = '', instant } of panel.targets ?? []) {
        if (!ranges || !instant || /\[(\d*[hdw]|\$__range)/.test(expr)) for (const name of namesIn(expr)) names.add(name);
      }
    }
  }
  return names;
}

/** Whether a dashboard can show all nodes at once: its variable has "All". */
const isOfFleet = ({ templating }) => templating.list.every(({ name, includeAll }) => name !== 'instance' || includeAll);

/** Names that these recorded series are made of, through other recorded series too. */
function inputsOf(names, groups) {
  const rules = groups.flatMap(({ rules: some }) => some.filter(({ record: name }) => name));
  const all = new Set(names);
  for (let size = 0; size < all.size;) {
    size = all.size;
    for (const { record: name, expr } of rules) if (all.has(name)) for (const input of namesIn(expr)) all.add(input);
  }
  return all;
}

/** The groups without recording rules of which nothing in `names` is made. */
const neededOf = (groups, names) => groups
  .map((group) => ({ ...group, rules: group.rules.filter(({ record: name }) => name && names.has(name)) }))
  .filter(({ rules: some }) => some.length);

/** The recordings with these series alone; the base name of a histogram selects its series. */
const reduced = (recordings, names) => Object.fromEntries(Object.entries(recordings).map(([name, recording]) =>
  [name, recording.with(new Map([...recording.series].filter(([, series]) => names.has(series.name))))]));

const recordedFrom = (groups) => new Set(groups.flatMap(({ rules: some }) => some.filter(({ record: name }) => name).flatMap(({ expr }) => [...namesIn(expr)])));

/**
 * Names that some dashboards, or the rules behind them, ask for over days: those have a past of a month. Jobs of Kubernetes are
 * left out: each has its own beginning and end.
 */
function longOf(groups) {
  const some = all.filter(({ uid }) => ['gpu-node-capacity', 'gpu-node-job'].includes(uid));
  const names = inputsOf(askedFor(some), groups);
  const long = askedFor(some, true);
  for (const { record: name, expr } of groups.flatMap(({ rules: some }) => some)) {
    if (name && names.has(name) && /\[\d+[hdw]/.test(expr)) for (const input of namesIn(expr)) long.add(input);
  }
  return new Set([...long].filter((name) => !name.includes(':kube_')));
}

// Six hours of everything, a day of what dashboards of a day and more ask for, and four days of what recording rules are made
// of, dense enough for rates over five minutes.
async function writeAll({ from: begun, own, nodes, gap }, groups) {
  const recorded = recordedFrom(groups).add('up');
  const daily = askedFor(all.filter(({ time }) => timeOf(time.from, 0) <= -DAY), true);
  let sent = await writePast(own, nodes, begun - FAR, begun - DAY, 150000, recorded);
  sent += await writePast(own, nodes, begun - DAY, begun - NEAR, 60000, new Set([...recorded, ...daily]));
  sent += await writePast(own, nodes, begun - NEAR, begun, 30000);
  const to = Date.now();
  sent += await writePast(own, nodes, begun, to, 15000);
  return sent + await writeRules(own, groups, { far: begun - FAR, near: begun - NEAR, to, step: 60000, long: longOf(groups), gap })
    + await writePast(own, nodes, to, Date.now(), 15000);
}

// Half an hour of the series that the dashboards query, and recorded series of the same time; six hours of what Fleet draws.
async function writeThousands({ from: begun, own, nodes }, groups) {
  const from = begun - 0.5 * HOUR;
  const drawn = inputsOf(['instance:gpu_unhealthy:gpus', 'gpu_driver_up', 'up'], groups);
  let sent = await writePast(own, nodes, begun - NEAR, from, 300000, drawn);
  sent += await writeRules(own, neededOf(groups, drawn), { far: begun - NEAR, near: from, to: from - 1, step: 300000 });
  sent += await writePast(own, nodes, from, begun, 60000);
  const to = Date.now();
  sent += await writePast(own, nodes, begun, to, 60000);
  return sent + await writeRules(own, groups, { far: from, near: from, to, step: 300000 });
}

// Of the first node, which dashboards of one node show, six hours of all that dashboards ask for over a time. Of all others six
// hours of what the on-call dashboard asks for, an hour and a half of what rules are made of, half an hour of the rest; of few
// nodes, which are drawn for the docs, hours of both.
async function writeFleet({ from: begun, own, nodes }, groups) {
  const recorded = recordedFrom(groups);
  const asked = new Set([...askedFor(all, true), ...recorded, 'up']);
  const ofFleet = new Set([...askedFor(all.filter(isOfFleet), true), ...recorded, 'up']);
  const oncall = askedFor(all.filter(({ uid }) => uid === 'gpu-node-oncall'), true).add('up');
  const few = nodes.length < 100;
  const [long, short] = few ? [NEAR, 3.1 * HOUR] : [1.5 * HOUR, 0.5 * HOUR];
  const [first, others] = [nodes.slice(0, 1), nodes.slice(1)];
  let sent = await writePast(own, first, begun - NEAR, begun, 30000, asked);
  sent += await writePast(own, others, begun - NEAR, begun - long, 60000, oncall);
  sent += await writePast(own, others, begun - long, begun - short, 120000, new Set([...oncall, ...recorded]));
  sent += await writePast(own, others, begun - short, begun, 30000, ofFleet);
  const to = Date.now();
  sent += await writePast(own, nodes, begun, to, 30000, ofFleet);
  sent += await writeRules(own, groups, { far: begun - long, near: begun - long, to, step: 300000, long: few ? longOf(groups) : undefined });
  // Rules may have taken longer than a rate looks back.
  return sent + await writePast(own, nodes, to, Date.now(), 15000, ofFleet);
}

// Cost of rules and queries on many nodes; gives the queries that are too slow, and the time up to which there are data.
// The cost of rules is only printed: tests/alerts/cost.py judges it, on an idle machine.
async function measure(own, report, situation, drawn, targets) {
  const { uids, limit } = TIMED[situation];
  const cost = await measureRules(own, targets);
  report.rules[situation] = cost;
  say(`  rules as last evaluated, while the nodes were made and scraped beside them: ${cost.seconds.toFixed(1)} s in ${cost.groups} groups, ${cost.due.toFixed(2)} s due every 15 s; ${cost.series} series, ${cost.megabytes} MB`);
  const at = Date.now();
  await own.pause();
  const queries = await measureQueries(own, drawn, at, limit);
  report.queries.push(...queries.map((query) => ({ situation, ...query })));
  for (const { uid } of drawn) {
    const [slowest, ...others] = queries.filter((query) => query.uid === uid).sort((a, b) => b.ms - a.ms);
    if (slowest) say(`  ${uid.padEnd(20)} slowest of ${others.length + 1} queries: ${slowest.ms.toFixed(0)} ms, ${slowest.cpu.toFixed(0)} ms of CPU (${slowest.title})`);
  }
  const slow = queries.filter(({ uid, ms }) => uids.includes(uid) && ms > limit);
  const faults = cost.failed.concat(slow.map(({ uid, ms, title, expr }) => `${uid} (${situation}): "${title}": a query takes ${ms.toFixed(0)} ms: ${expr}`));
  return { at, faults };
}

async function main() {
  mkdirSync(RUN, { recursive: true });
  // Fails at once if another run has the port.
  const prometheus = {};
  const played = {};
  const server = await serve({
    port: PORT,
    page: join(process.cwd(), 'dist'),
    dashboards: join(REPOSITORY, 'dashboards'),
    pages: (path) => {
      const [situation, i] = path.split('/');
      const one = played[situation]?.[i];
      return one?.player.page(Date.now(), one.rename);
    },
    prometheus,
  });
  const shots = join(RUN, 'shots');
  rmSync(shots, { recursive: true, force: true });
  mkdirSync(shots, { recursive: true });

  const faults = checkLinks(dashboards, all);

  const recorded = join(RUN, 'recordings.json');
  let recordings;
  if (options.reuse && existsSync(recorded)) {
    recordings = Object.fromEntries(kept(recorded));
    recordings.faults.turn = firstFault(recordings.faults);
    say(`recordings of an earlier run: ${recorded}`);
  } else {
    say(`recording ${SCENARIOS.length} simulated nodes for ${((FRAMES + 6 + SKIP) * EVERY) / 1000} s`);
    recordings = await record();
    keep(recorded, recordings);
  }
  Object.values(recordings).forEach(inventSlurmOwner);
  for (const [name, { series, times }] of Object.entries(recordings)) say(`  ${name}: ${series.size} series, ${times.length} pages`);

  const example = join(REPOSITORY, 'alerts/optional/prices.example.yml');
  const prices = join(RUN, 'prices.rules.yml');
  if (existsSync(example)) writeFileSync(prices, inventPrices(readFileSync(example, 'utf8')));
  const answered = new Map();
  const report = { dashboards: {}, series: {}, queries: [], rules: {} };
  for (const [name, { series }] of Object.entries(recordings)) report.series[name] = series.size;

  // The small ones run at the same time: while one is drawn the others scrape. Those of many nodes come last, one by one.
  const drawnIn = (situation, some = dashboards) => some.filter(({ uid }) => !ONLY[situation] || ONLY[situation].includes(uid));
  const stand = async (situation) => {
    const many = MANY.includes(situation);
    const loaded = RICH.includes(situation) && existsSync(prices) ? [prices, ...rules] : rules;
    const wanted = ONLY[situation] && inputsOf(askedFor(drawnIn(situation)), groupsOf(loaded));
    const groups = wanted ? neededOf(groupsOf(loaded), wanted) : groupsOf(loaded);
    const own = new Prometheus(join(RUN, 'prometheus', situation), PORT + 10 + Object.keys(SITUATIONS).indexOf(situation));
    await own.start(PROMETHEUS);
    const begun = Date.now();
    const turn = begun - 20 * 60e3;
    const nodes = nodesOf(situation, wanted ? reduced(recordings, wanted) : recordings, { start: begun - FAR - HOUR, turn });
    played[situation] = nodes;
    const past = { from: begun, own, nodes, gap: nodes[0].gap };
    const write = wanted ? writeThousands : many ? writeFleet : writeAll;
    let sent = await write(past, groups);
    // Of thousands of nodes too many expressions over too many series.
    if (!ONLY[situation]) sent += await writeAlerts(own, groupsOf(loaded), { from: begun - 1.5 * HOUR, to: Date.now(), step: 60000 });
    const targets = nodes.map(({ labels }, n) => ({ job: labels.job, address: `127.0.0.1:${PORT}`, path: `/node/${situation}/${n}`, labels }));
    await own.scrape(targets, wanted ? '60s' : many ? '15s' : '5s', loaded);
    Object.assign(own, { since: Date.now(), events: eventsOf(situation, turn) });
    prometheus[situation] = own;
    say(`${situation}: ${(sent / 1e6).toFixed(1)} million samples of the past written`);
  };
  const small = situations.filter((situation) => !MANY.includes(situation));
  for (const situation of small) await stand(situation);

  const drawer = await Drawer.start(`http://127.0.0.1:${PORT}`, shots);
  // Draws one dashboard and gives its faults.
  const drawOne = async (situation, dashboard, at) => {
    const { events } = prometheus[situation];
    const shown = await drawer.draw(situation, dashboard, at, CHOSEN[situation]?.[dashboard.uid]);
    const found = faultsOf(situation, dashboard, shown, all, answered, { events, well: WELL.includes(situation) });
    const panels = Object.keys(shown.panels ?? {}).length;
    (report.dashboards[dashboard.uid] ??= {})[situation] = { seconds: shown.seconds, panels, faults: found };
    say(`  ${dashboard.uid.padEnd(20)} ${String(panels).padStart(3)} panels ${shown.seconds.toFixed(1).padStart(5)} s  ${found.length ? `${found.length} FAULTS` : 'ok'}`);
    writeFileSync(join(shots, `${situation}-${dashboard.uid}.json`), JSON.stringify(shown, null, 1));
    return found;
  };
  for (const situation of situations) {
    if (MANY.includes(situation)) await stand(situation);
    const own = prometheus[situation];
    say(situation);
    await sleep(Math.max(0, own.since + 35000 - Date.now()));
    let at = Date.now();
    const drawn = drawnIn(situation);
    if (TIMED[situation]) {
      const measured = await measure(own, report, situation, drawn, played[situation].length);
      faults.push(...measured.faults);
      at = measured.at;
    }
    for (const dashboard of drawn) faults.push(...await drawOne(situation, dashboard, at));
    if (WELL.includes(situation)) {
      const walk = new Walk(situation, all, own, at);
      await walk.down();
      faults.push(...walk.problems);
      say(`  links from workloads down to owners: ${walk.rows.join(', ')}, ${walk.asked} queries, ${walk.problems.length ? `${walk.problems.length} FAULTS` : 'ok'}`);
    }
    if (options.again) continue;
    await own.end();
    delete prometheus[situation];
    delete played[situation];
  }
  if (options.again) {
    for (const fault of faults) console.log(`FAULT ${fault}`);
    say('a line of dashboards, or an empty one for all of them, draws them again as they are then; the end of the input ends');
    for await (const line of createInterface({ input: process.stdin })) {
      for (const situation of situations) {
        say(situation);
        const some = drawnIn(situation, chosenOf(readAll(), line.trim() || options.dashboards));
        for (const dashboard of some) for (const fault of await drawOne(situation, dashboard, Date.now())) console.log(`FAULT ${fault}`);
      }
      say('drawn');
    }
    for (const situation of situations) await prometheus[situation].end();
  }
  await drawer.end();
  server.close();

  for (const [query, count] of answered) {
    if (count) continue;
    if (options.situations) say(`no answer in these situations: ${query}`);
    else faults.push(`${query}: has an answer in no situation`);
  }
  report.faults = faults;
  if (options.docs) {
    const docs = resolve(REPOSITORY, options.docs);
    mkdirSync(docs, { recursive: true });
    for (const { uid } of dashboards) {
      const picture = join(shots, `${PICTURED[uid] ?? 'healthy'}-${uid}.png`);
      if (existsSync(picture)) copyFileSync(picture, join(docs, `${uid}.png`));
    }
  }
  writeFileSync(join(RUN, 'report.json'), JSON.stringify(report, null, 1));
  for (const fault of faults) console.log(`FAULT ${fault}`);
  const panels = dashboards.reduce((sum, dashboard) => sum + panelsOf(dashboard).filter(({ type }) => type !== 'row').length, 0);
  say(`${dashboards.length} dashboards with ${panels} panels, ${situations.length} situations, ${faults.length} faults; pictures in ${shots}`);
  const ill = new Set(faults.map((fault) => fault.split(':')[0])).size;
  const pictures = situations.reduce((sum, situation) => sum + drawnIn(situation).length, 0);
  console.log(`${Math.max(0, pictures - ill)} passed, ${ill} failed`);
  return faults.length ? 1 : 0;
}

process.on('SIGINT', () => endAll().then(() => process.exit(130)));
process.on('SIGTERM', () => endAll().then(() => process.exit(143)));
main().then(
  (code) => endAll().then(() => process.exit(code)),
  (error) => {
    console.error(error);
    endAll().then(() => process.exit(2));
  },
);
