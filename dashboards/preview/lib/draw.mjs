// Draws a dashboard in Chromium and says what is wrong with it.
import { join } from 'node:path';
import { chromium } from 'playwright-core';
import { annotationStep, panelsOf } from '../src/model.js';
import { DOWN } from './situations.mjs';

const FLAGS = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'];

export class Drawer {
  static async start(address, shots) {
    const drawer = new Drawer();
    const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', headless: true, args: FLAGS });
    return Object.assign(drawer, { address, shots, browser });
  }

  async draw(situation, dashboard, now, extra = {}) {
    const started = Date.now();
    const page = await this.browser.newPage({ viewport: { width: 1600, height: 1000 } });
    const said = [];
    page.on('pageerror', (error) => said.push(String(error)));
    page.on('request', (request) => {
      const { origin, protocol } = new URL(request.url());
      if (protocol.startsWith('http') && origin !== this.address) said.push(`asks another origin: ${origin}`);
    });
    try {
      const parameters = new URLSearchParams({ dashboard: `/dashboards/${dashboard.uid}.json`, prometheus: `/prometheus/${situation}`, now, ...extra });
      await page.goto(`${this.address}/?${parameters}`);
      await page.waitForFunction('window.drawn', undefined, { timeout: 300000, polling: 250 });
      const drawn = await page.evaluate(() => {
        for (const element of document.querySelectorAll('[data-panel]')) {
          const panel = window.drawn.panels[element.dataset.panel];
          panel.failed = element.querySelector('[data-error]')?.textContent ?? null;
          panel.nodata = element.querySelector('[data-nodata]')?.textContent ?? null;
          panel.text = element.innerText.slice(0, 3000);
          const canvases = [...element.querySelectorAll('canvas')];
          panel.canvases = canvases.length;
          panel.pixels = 0;
          for (const canvas of canvases) {
            if (!canvas.width || !canvas.height) continue;
            const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
            for (let i = 3; i < data.length; i += 4) if (data[i] > 0) panel.pixels++;
          }
        }
        return window.drawn;
      });
      await page.setViewportSize({ width: 1600, height: Math.min(12000, await page.evaluate(() => Math.ceil(document.getElementById('root').getBoundingClientRect().height))) });
      await page.screenshot({ path: join(this.shots, `${situation}-${dashboard.uid}.png`) });
      return { ...drawn, said, seconds: (Date.now() - started) / 1000 };
    } catch (error) {
      return { error: `${error}\n${said.join('\n')}`, said, seconds: (Date.now() - started) / 1000 };
    } finally {
      await page.close();
    }
  }

  end() {
    return this.browser.close();
  }
}

// How Grafana writes a unit behind a number.
const WRITTEN = {
  percentunit: /%/, percent: /%/, celsius: /°C/, watt: /W/, bytes: /B\b/, decbytes: /B\b/, hertz: /Hz/, rothz: /Hz/,
  joule: /J/, Bps: /B\/s/, binBps: /B\/s/, s: /\b(ns|µs|ms|s|min|mins|hour|hours|day|days|week|weeks|month|months|year|years)\b/,
};

/** Annotations of events that did not happen, and events without an annotation. `events`: times by annotation's name. */
function annotationFaults(dashboard, { annotations, from, to }, events) {
  const step = annotationStep(from, to);
  const near = (one, other) => Math.abs(one - other) <= step + 3 * 60e3;
  const at = (time) => new Date(time).toISOString();
  return dashboard.annotations.list.flatMap(({ name }) => {
    const drawn = annotations.filter((one) => one.name === name).flatMap((one) => Object.keys(one.drawn ?? {}).map(Number));
    // What is younger than a step may not have been asked for.
    const happened = events[name] ?? [];
    const due = happened.filter((time) => time > from && time < to - step);
    return [
      ...due.filter((time) => !drawn.some((one) => near(one, time))).map((time) => `annotation "${name}" is not drawn at ${at(time)}`),
      ...drawn.filter((one) => !happened.some((time) => near(one, time))).map((one) => `annotation "${name}" is drawn at ${at(one)}, when there was none`),
    ];
  });
}

/**
 * What is wrong with a drawn dashboard. `answered` collects how many series each query had over all situations; `events` are
 * the times at which something happened, by the annotation that shows it; `well`: nothing is wrong with the nodes.
 */
export function faultsOf(situation, dashboard, drawn, dashboards, answered, { events, well }) {
  const where = `${dashboard.uid} (${situation})`;
  if (drawn.error) return [`${where}: ${drawn.error}`];
  const faults = drawn.said.map((text) => `${where}: ${text}`);
  if (events) faults.push(...annotationFaults(dashboard, drawn, events).map((text) => `${where}: ${text}`));
  for (const panel of panelsOf(dashboard)) {
    const shown = drawn.panels[panel.id];
    const fault = (text) => faults.push(`${where}: "${panel.title}": ${text}`);
    if (!shown) {
      fault('was not drawn');
      continue;
    }
    if (panel.type === 'row') continue;
    if (shown.error || shown.failed) {
      fault((shown.error ?? shown.failed).split('\n').slice(0, 3).join(' '));
      continue;
    }
    for (const { refId, count } of shown.counts ?? []) {
      const query = `${dashboard.uid}: "${panel.title}" ${refId}: ${panel.targets.find((target) => (target.refId ?? 'A') === refId)?.expr}`;
      answered.set(query, (answered.get(query) ?? 0) + count);
    }
    if (well) for (const text of (shown.reds ?? []).filter((one) => !DOWN.includes(one))) fault(`is red: ${text}`);
    if (/\bNo data\b/.test(shown.text) && !/no data/i.test(shown.noValue ?? '')) fault('says "No data" and not why');
    for (const name of shown.names ?? []) if (/\{\{|\$\{|\$__/.test(name)) fault(`legend ${name}`);
    if (/\$\{|\$\w+/.test(shown.title ?? '')) fault(`title ${shown.title}`);
    if (panel.type === 'text') {
      if (!shown.text.trim()) fault('is blank');
      continue;
    }
    const painted = ['timeseries', 'state-timeline', 'status-history', 'heatmap', 'barchart', 'histogram'].includes(panel.type);
    if (!shown.nodata && painted && shown.pixels < 200) fault(`has ${shown.pixels} pixels`);
    if (!shown.nodata && !painted && !shown.text.trim()) fault('is blank');
    const unit = WRITTEN[panel.fieldConfig?.defaults?.unit];
    const numbers = (shown.texts ?? []).filter((text) => /^-?\d/.test(text));
    if (unit && numbers.length && panel.type !== 'table' && !numbers.some((text) => unit.test(text))) fault(`no unit in ${numbers.slice(0, 3).join(', ')}`);
    for (const text of new Set((shown.links ?? []).flatMap((link) => linkFaults(link, dashboards)))) fault(text);
  }
  return faults;
}

/** What is wrong with an address: a dashboard or a variable that is not there, or text that was not filled in. */
export function linkFaults(link, dashboards) {
  if (/\$\{|\$__(?!all)|\{\{/.test(link)) return [`link with something not filled in: ${link}`];
  const { pathname, searchParams } = new URL(link, 'http://grafana');
  const uid = /\/d\/([^/]+)/.exec(pathname)?.[1];
  if (!uid) return [];
  const target = dashboards.find((dashboard) => dashboard.uid === uid);
  if (!target) return [`link to a dashboard that is not there: ${uid}`];
  const names = new Set((target.templating?.list ?? []).map(({ name }) => name));
  return [...searchParams.keys()]
    .filter((key) => key.startsWith('var-') && !names.has(key.slice(4)))
    .map((key) => `link with ${key}, which ${uid} has not`);
}

/** Checks links of dashboards that are not drawn: those of the dashboard itself, to dashboards by their address. */
export function checkLinks(dashboards, all) {
  return dashboards.flatMap((dashboard) => (dashboard.links ?? [])
    .filter(({ url }) => url)
    .flatMap(({ url }) => linkFaults(url.replace(/\$\{__url_time_range\}/g, 'from=now-1h&to=now').replace(/\$\{(\w+)(:\w+)?\}/g, (_, name, format) => (format === ':queryparam' ? `var-${name}=x` : 'x')), all).map((text) => `${dashboard.uid}: ${text}`)));
}
