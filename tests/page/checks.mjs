// What is checked of an open status page. Each check throws with what is wrong.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';

const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

/** Collects errors of the console, of scripts and of the policy, and requests to other origins. */
export function watched(page, address) {
  const problems = [];
  page.on('pageerror', (error) => problems.push(`script: ${error}`));
  // What the check of a lost connection causes itself is no fault.
  page.on('console', (message) => {
    if (['error', 'warning'].includes(message.type()) && !page.losing) problems.push(`console: ${message.text()}`);
  });
  page.on('request', (request) => {
    const { origin, protocol } = new URL(request.url());
    if (protocol.startsWith('http') && origin !== address) problems.push(`asks another origin: ${origin}`);
  });
  page.on('response', (response) => {
    if (response.status() >= 400 && !page.losing) problems.push(`${response.url()}: ${response.status()}`);
  });
  return problems;
}

/** No violation of any rule of axe-core. */
export async function accessible(page) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => window.axe.run());
  const texts = violations.map(({ id, help, nodes }) => `${id} (${help}): ${nodes.slice(0, 3).map(({ html }) => html.slice(0, 160)).join(' | ')}`);
  if (texts.length) throw new Error(`axe: ${texts.join('\n')}`);
}

/** Values change by themselves; what has the focus, and what is open, stays. */
export async function live(page) {
  await page.locator('summary').first().click();
  await page.locator('nav a').first().focus();
  const values = () => page.locator('header .facts').first().textContent();
  const before = await values();
  await page.waitForFunction((text) => document.querySelector('header .facts').textContent !== text, before, { timeout: 20000 });
  if (!(await page.locator('nav a').first().evaluate((element) => element === document.activeElement))) throw new Error('an update takes the focus away');
  if (!(await page.locator('details').first().evaluate((element) => element.open))) throw new Error('an update closes what was opened');
  if ((await page.locator('#live-state').textContent()) !== 'Live') throw new Error('the page does not say that it is live');
  await page.locator('summary').first().click();
  // It can be stopped.
  await page.locator('#pause').click();
  await page.waitForTimeout(300);
  const paused = await values();
  await page.waitForTimeout(3000);
  if ((await values()) !== paused) throw new Error('the page changes while paused');
  await page.locator('#pause').click();
  await page.evaluate(() => { document.activeElement.blur(); window.scrollTo(0, 0); });
}

/** Everything that can be used is reached with the Tab key, in the order of the document, and shows that it has the focus. */
export async function keyboard(page, gpus) {
  await page.locator('#pause').click();
  await page.evaluate(() => document.activeElement.blur());
  const usable = await page.evaluate(() => {
    const elements = [...document.querySelectorAll('a[href], button, summary, [tabindex="0"]')].filter((element) => element.checkVisibility() && !element.closest('details:not([open]) > :not(summary)'));
    elements.forEach((element, at) => element.setAttribute('data-order', at));
    return elements.length;
  });
  // From the top of the document.
  await page.evaluate(() => { getSelection().removeAllRanges(); document.body.tabIndex = -1; document.body.focus(); document.body.removeAttribute('tabindex'); });
  const seen = [];
  for (let presses = 0; presses < usable; presses++) {
    await page.keyboard.press('Tab');
    seen.push(await page.evaluate(() => {
      const element = document.activeElement;
      return { at: Number(element.dataset.order ?? -1), outline: getComputedStyle(element).outlineStyle, name: element.textContent.slice(0, 30) };
    }));
  }
  const wrong = seen.findIndex(({ at }, index) => at !== index);
  if (wrong >= 0) throw new Error(`the Tab key reaches ${JSON.stringify(seen[wrong])} as number ${wrong} of ${usable}`);
  const unmarked = seen.find(({ outline }) => outline === 'none');
  if (unmarked) throw new Error(`the focus does not show: ${unmarked.name}`);
  // The charts' values are read by arrows.
  const chart = page.locator('figure [tabindex="0"]').first();
  if (gpus && (await chart.count())) {
    await chart.focus();
    await page.keyboard.press('ArrowLeft');
    const text = await page.locator('figure output').first().textContent();
    if (!/^\d\d:\d\d:\d\d (.*\d|no values)/.test(text)) throw new Error(`an arrow reads "${text}"`);
  }
  await page.locator('#pause').click();
  await page.evaluate(() => { document.activeElement.blur(); window.scrollTo(0, 0); });
}

/** Nothing is wider than the window, but what scrolls by itself or is cut. */
export async function fits(page) {
  const { width, wide } = await page.evaluate(() => ({
    width: document.scrollingElement.scrollWidth,
    wide: [...document.querySelectorAll('main *')].filter((element) => element.getBoundingClientRect().right > innerWidth + 1 && !element.closest('.table, .metrics dd')).slice(0, 3).map(({ outerHTML }) => outerHTML.slice(0, 120)),
  }));
  if (width > 320 || wide.length) throw new Error(`${width} pixels wide: ${wide.join(' | ')}`);
}

/** Nothing moves for a reader who wants no motion. */
export async function still(page) {
  const moving = await page.evaluate(() => document.getAnimations().length || getComputedStyle(document.documentElement).scrollBehavior !== 'auto');
  if (moving) throw new Error('something moves');
}

/** All of it is there without JavaScript, but charts and what belongs to them. */
export async function plain(page, gpus) {
  const cards = await page.locator('article.gpu').count();
  if (cards !== gpus) throw new Error(`${cards} cards without JavaScript`);
  if (gpus && !(await page.locator('.metrics svg').count())) throw new Error('no curves without JavaScript');
  if (!/<meta http-equiv="refresh"/.test(await page.content())) throw new Error('the page does not load itself again');
  for (const id of ['#charts', '#live']) if (await page.locator(id).isVisible()) throw new Error(`${id} shows without JavaScript`);
}

/** The page says when its node is gone, and is live again by itself when the node is back. */
export async function lost(page, { end, again }) {
  const is = (stale) => page.waitForFunction((wanted) => {
    const says = document.getElementById('live-state').textContent;
    return document.documentElement.hasAttribute('data-stale') === wanted && (says === 'Live') !== wanted;
  }, stale, { timeout: 40000 });
  await is(false);
  page.losing = true;
  await end();
  await is(true);
  await again();
  await is(false);
  page.losing = false;
  const before = await page.locator('header .facts').first().textContent();
  await page.waitForFunction((text) => document.querySelector('header .facts').textContent !== text, before, { timeout: 20000 });
}
