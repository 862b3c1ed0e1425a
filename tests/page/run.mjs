// The status page of simulated nodes in headless Chromium: what is wrong with it, what it costs, and pictures of it.
// run.sh starts it. Arguments: --situations NAME,NAME: these alone; --docs FOLDER: replaces the pictures there.
import { execFileSync } from 'node:child_process';
import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { chromium } from 'playwright-core';
import { end, endAll, node } from './stack.mjs';
import { accessible, fits, keyboard, live, lost, plain, still, watched } from './checks.mjs';

const { REPOSITORY, BUILT } = process.env;
const { values: options } = parseArgs({ options: { situations: { type: 'string' }, docs: { type: 'string' } } });
const own = (name) => join(REPOSITORY, 'tests/page/scenarios', `${name}.toml`);
const other = (name) => join(REPOSITORY, 'tests/scenarios', `${name}.toml`);

// `until`: what must be there before the page is judged, as the text of the page has it. `before`: the scenario of the
// node before a restart of the exporter.
const SITUATIONS = [
  { name: 'no-gpu', scenario: other('no-gpu'), gpus: 0, until: 'The driver lists no GPU' },
  { name: 'one', scenario: other('still-1xh200'), gpus: 1, until: '1 GPU, ok' },
  { name: 'node', scenario: other('node-8xh200'), gpus: 8, until: 'GPU 5 faulty', docs: 'status-page' },
  { name: 'sixteen', scenario: own('sixteen'), gpus: 16, until: '16 GPUs, all ok' },
  { name: 'slices', scenario: own('slices'), gpus: 8, until: '8 GPUs, all ok', docs: 'status-page-mig' },
  {
    name: 'faults',
    scenario: own('faults'),
    gpus: 8,
    until: [
      'fallen off the bus', 'Xid 48', 'the driver asks for a reset of the GPU', 'a memory row waits for a GPU reset',
      'the hardware slows it down for heat', 'wrong result', 'PCIe uses 8 of 16 lanes', 'the NVLink fabric reports',
      'has not returned',
    ],
    docs: 'status-page-faults',
  },
  {
    name: 'more-faults',
    before: other('still-8xh200'),
    scenario: own('more-faults'),
    gpus: 8,
    settings: { CANARY__PROGRESS_TIMEOUT: '30s', SAMPLER__NVLINK_INTERVAL: '2s' },
    until: [
      'the canary hangs in context', 'Xid 95', 'a memory row could not be replaced', 'SRAM errors exceed',
      'an external power brake slows it down', 'the driver slows it down for heat', 'NVLink errors: ',
      'has not joined the NVLink fabric', 'the driver does not list it any more', 'NVSwitch fault 20034',
    ],
  },
  { name: 'driver-released', scenario: other('node-8xh200'), gpus: 8, until: 'driver released at', command: ['driver', 'release'] },
  { name: 'driver-gone', scenario: own('driver-gone'), gpus: 2, until: 'The driver is away' },
  { name: 'driver-stuck', scenario: own('driver-stuck'), gpus: 2, until: 'The driver is stuck' },
  { name: 'mismatch', scenario: other('library-mismatch'), gpus: 0, until: 'differ in version' },
];
// A history that is full in a minute.
const SETTINGS = { PAGE__HISTORY: '60s', METRICS__PUBLISH_INTERVAL: '200ms', SAMPLER__NORMAL_INTERVAL: '200ms', CANARY__IDLE_FOR: '1s' };
const PORT = 19470;

const run = join(REPOSITORY, '.run/page');
const shots = join(run, 'shots');
rmSync(shots, { recursive: true, force: true });
mkdirSync(shots, { recursive: true });
const chosen = options.situations?.split(',') ?? SITUATIONS.map(({ name }) => name);
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  headless: true,
  args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
});
const faults = [];
const report = {};

/** A page in a context of its own, watched for errors; what `use` returns. */
async function visit(name, address, context, use) {
  const opened = await browser.newContext({ viewport: { width: 1400, height: 900 }, colorScheme: 'light', ...context });
  const page = await opened.newPage();
  const problems = watched(page, address);
  try {
    await page.goto(address, { waitUntil: 'load' });
    return await use(page);
  } catch (error) {
    problems.push(String(error.stack ?? error));
  } finally {
    if (problems.length && !page.isClosed()) await page.screenshot({ path: join(shots, `${name}-failed.png`), fullPage: true }).catch(() => {});
    faults.push(...problems.map((text) => `${name}: ${text}`));
    await opened.close();
  }
}

async function look({ name, gpus, until, docs }, address) {
  const shot = (page, kind) => page.screenshot({ path: join(shots, `${name}-${kind}.png`), fullPage: true });
  await visit(name, address, {}, async (page) => {
    for (const text of [until].flat()) {
      const shows = (wanted) => document.body.textContent.includes(wanted);
      await page.waitForFunction(shows, text, { timeout: 180000, polling: 500 }).catch(() => { throw new Error(`the page never has "${text}"`); });
    }
    const cards = await page.locator('article.gpu').count();
    if (cards !== gpus) throw new Error(`${cards} cards instead of ${gpus}`);
    // With charts, where anything is measured.
    if (gpus && !name.startsWith('driver')) await page.waitForSelector('#charts:not([hidden]) canvas', { timeout: 60000 });
    await live(page);
    await accessible(page);
    await keyboard(page, gpus);
    await shot(page, 'light');
  });
  // As a reader without a cache gets it.
  report[name] = await visit(`${name} first`, address, {}, async (page) => page.evaluate(async () => {
    const painted = () => performance.getEntriesByName('first-contentful-paint')[0];
    while (!painted()) await new Promise((resolve) => { setTimeout(resolve, 100); });
    await new Promise((resolve) => { setTimeout(resolve, 500); });
    const entries = [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')];
    const wire = Object.fromEntries(entries.filter(({ encodedBodySize }) => encodedBodySize).map((entry) => [new URL(entry.name).pathname, entry.transferSize]));
    return { paint: Math.round(painted().startTime), wire, sum: Object.values(wire).reduce((a, b) => a + b, 0) };
  }));
  if (report[name]?.sum > 60000) faults.push(`${name}: ${report[name].sum} bytes on the wire`);
  await visit(`${name} dark`, address, { colorScheme: 'dark' }, async (page) => {
    await page.waitForTimeout(500);
    await accessible(page);
    await shot(page, 'dark');
  });
  await visit(`${name} 320`, address, { viewport: { width: 320, height: 640 }, reducedMotion: 'reduce' }, async (page) => {
    await page.waitForTimeout(500);
    await fits(page);
    await still(page);
    await accessible(page);
    await shot(page, '320');
  });
  await visit(`${name} without JavaScript`, address, { javaScriptEnabled: false }, async (page) => {
    await plain(page, gpus);
    await shot(page, 'plain');
  });
  if (docs && options.docs) {
    // A picture of a filled history.
    await new Promise((resolve) => { setTimeout(resolve, 60000); });
    for (const colorScheme of name === 'node' ? ['light', 'dark'] : ['light']) {
      await visit(name, address, { colorScheme }, async (page) => {
        await page.waitForTimeout(1500);
        const suffix = colorScheme === 'dark' ? '-dark' : '';
        await page.screenshot({ path: join(REPOSITORY, options.docs, `${docs}${suffix}.png`), fullPage: true });
      });
    }
  }
}

try {
  for (const situation of SITUATIONS.filter(({ name }) => chosen.includes(name))) {
    const started = Date.now();
    const folder = join(run, situation.name);
    const { before, scenario, command } = situation;
    const settings = { ...SETTINGS, ...situation.settings };
    let child = await node({ scenario: before ?? scenario, folder, port: PORT, built: BUILT, settings, ready: Boolean(before ?? command) });
    if (before) {
      await end(child);
      child = await child.again(scenario);
    }
    if (command) execFileSync(join(BUILT, 'gpu-node-exporter'), command, { env: { ...process.env, ...child.env } });
    const address = `http://127.0.0.1:${PORT}`;
    await look(situation, address);
    // The connection is lost while the page is open, and comes back.
    if (situation.name === 'one') await visit(situation.name, address, {}, (page) => lost(page, { end: () => end(child), again: child.again }));
    await endAll();
    const { paint, sum } = report[situation.name] ?? {};
    console.log(`${situation.name}: ${sum} bytes on the wire, first paint after ${paint} ms (${Math.round((Date.now() - started) / 1000)} s)`);
  }
} finally {
  await endAll();
  await browser.close();
}
writeFileSync(join(run, 'report.json'), `${JSON.stringify(report, null, 2)}\n`);
for (const fault of faults) console.log(`FAULT ${fault}`);
console.log(`page: ${chosen.length} situations, ${faults.length} faults; pictures in .run/page/shots`);
process.exitCode = faults.length ? 1 : 0;
