// Walks the dashboards' links as a person would: from the first workload on the dashboard of jobs to its node, its GPU and its
// owners, with the values of the rows. Every row leads on, and the dashboards beside the way show what was clicked on.
import { instant, panelsOf, queriesOf, resolve, run, timeOf } from '../src/model.js';

const JOB = 'gpu-node-job';
// Tables from top to bottom, and the column that is clicked on to come to the next one.
const STEPS = [['Workloads', 'workload'], ['Nodes', 'instance'], ['GPUs', 'gpu'], ['Owners', undefined]];
const WIDTH = 1600;

/** Links of a panel: the column that has it, undefined of the whole panel, and where it leads. */
function linksOf({ links = [], fieldConfig: { defaults = {}, overrides = [] } = {} }) {
  const own = [...links, ...(defaults.links ?? [])].map(({ url }) => ({ url }));
  const ofColumns = overrides.flatMap(({ matcher, properties }) =>
    properties.filter(({ id }) => id === 'links').flatMap(({ value }) => value.map(({ url }) => ({ column: matcher.options, url }))));
  return [...own, ...ofColumns].filter(({ url }) => url?.startsWith('/d/'));
}

const sizeOf = (rows) => rows.reduce((sum, row) => sum + Object.keys(row).length, 0);

export class Walk {
  /** `all`: the dashboards. `problems` gets a line for each link that leads to nothing, or to something else. */
  constructor(situation, all, prometheus, now) {
    Object.assign(this, { situation, prometheus, now, problems: [], asked: 0, rows: [] });
    this.dashboards = new Map(all.map((dashboard) => [dashboard.uid, dashboard]));
  }

  /** The dashboard with its variables as an address chooses them. */
  async open(uid, choice) {
    const dashboard = this.dashboards.get(uid);
    const [from, to] = [timeOf(dashboard.time?.from ?? 'now-6h', this.now), timeOf(dashboard.time?.to ?? 'now', this.now)];
    return { dashboard, from, to, variables: await resolve(dashboard, this.prometheus.url, choice, from, to) };
  }

  /** Labels of what a panel shows, a list for each query; of lines those that are there now. */
  async ask({ from, to, variables }, panel) {
    return Promise.all(queriesOf(panel, variables, from, to, WIDTH).map(async (query) => {
      this.asked += 1;
      const { result } = query.instant ? await run(this.prometheus.url, query) : await instant(this.prometheus.url, query.expr, to);
      return result.map(({ metric }) => metric);
    }));
  }

  /** Where a link of this row leads, and what is chosen there. */
  follow(url, row, variables) {
    const filled = url
      .replace(/\$\{__data\.fields\.(\w+):percentencode\}/g, (_, label) => encodeURIComponent(row[label] ?? ''))
      .replace(/\$\{(\w+):queryparam\}/g, (_, name) => (variables[name].all ? ['$__all'] : variables[name].values).map((value) => `var-${name}=${encodeURIComponent(value)}`).join('&'));
    const { pathname, searchParams } = new URL(filled, 'http://grafana');
    const choice = {};
    for (const [key, value] of searchParams) if (key.startsWith('var-')) (choice[key.slice(4)] ??= []).push(value);
    return { uid: pathname.slice('/d/'.length), choice };
  }

  /** Whether a dashboard shows something, and nothing of another node or GPU than what is chosen. */
  async look(uid, choice, where) {
    const opened = await this.open(uid, choice);
    let shown = 0;
    for (const panel of panelsOf(opened.dashboard)) {
      for (const row of (await this.ask(opened, panel)).flat()) {
        shown += 1;
        const other = ['instance', 'gpu'].find((name) => choice[name] && !choice[name].includes('$__all') && name in row && !choice[name].includes(row[name]));
        if (!other) continue;
        this.problems.push(`${where}: ${uid}, "${panel.title}" shows ${other} ${row[other]}`);
        return;
      }
    }
    if (!shown) this.problems.push(`${where}: ${uid} shows nothing for ${JSON.stringify(choice)}`);
  }

  /** Walks all the way down; gives what is wrong. */
  async down() {
    let choice = {};
    for (const [title, next] of STEPS) {
      const opened = await this.open(JOB, choice);
      const panel = panelsOf(opened.dashboard).find((one) => one.title === title);
      // Of the table's queries that with the most labels has its rows. A rate has also what has just ended.
      const answers = await this.ask(opened, panel);
      const rows = answers.reduce((best, some) => (sizeOf(some) > sizeOf(best) ? some : best), [])
        .filter((row) => answers.every((some) => some.some((other) => other[next] === row[next])));
      const where = `${JOB} (${this.situation}): "${title}" for ${JSON.stringify(choice)}`;
      this.rows.push(`${rows.length} ${title.toLowerCase()}`);
      if (!rows.length) return this.problems.push(`${where}: no row`);
      let way;
      for (const [number, row] of rows.entries()) {
        for (const { column, url } of linksOf(panel)) {
          if (column && !row[column]) continue;
          const led = this.follow(url, row, opened.variables);
          if (led.uid === JOB) {
            const below = await this.open(JOB, led.choice);
            const owners = panelsOf(below.dashboard).find((one) => one.title === 'Owners');
            if (!(await this.ask(below, owners)).flat().length) this.problems.push(`${where}: nothing below ${JSON.stringify(led.choice)}`);
            if (number === 0 && column === next) way = led.choice;
          } else if (number === 0) {
            // Every row leads down; what is beside the way is looked at for the first.
            await this.look(led.uid, led.choice, where);
          }
        }
      }
      if (next && !way) return this.problems.push(`${where}: no way on`);
      choice = way;
    }
  }
}
