// Draws the history of all GPUs with uPlot: a chart per metric with a line per GPU.
'use strict';

(() => {
  const GIB = 2 ** 30;
  const CHARTS = [
    { metric: 'gpu_utilization_ratio', title: 'Utilization', unit: '%', scale: 100, range: [0, 100] },
    { metric: 'gpu_memory_used_bytes', title: 'Memory used', unit: 'GiB', scale: 1 / GIB },
    { metric: 'gpu_power_watts', title: 'Power', unit: 'W', scale: 1 },
    { metric: 'gpu_temperature_celsius', title: 'Temperature', unit: '°C', scale: 1 },
  ];
  const COLOURS = 8;
  const place = document.getElementById('charts');
  const hidden = new Set();
  let drawn = [], shown = '', next = 0;

  const make = (name, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(name), properties);
    element.append(...children);
    return element;
  };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const time = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 19);
  const digits = (value) => (value >= 100 ? value.toFixed(0) : value.toPrecision(3).replace(/\.?0+$/, ''));

  /** Returns the data of a chart: the shared times, and the curves of the GPUs in the order of their indexes. */
  function dataOf({ metric, scale }, history) {
    const curves = history.curves.filter((curve) => curve.metric === metric);
    curves.sort((a, b) => a.gpu - b.gpu);
    const length = Math.max(0, ...curves.map(({ points }) => points.length));
    const times = Array.from({ length }, (_, at) => history.end_unix_seconds - (length - 1 - at) * history.step_seconds);
    // A curve that began later is padded at its start.
    const values = curves.map(({ points }) => [...Array(length - points.length).fill(null), ...points.map((point) => (point === null ? null : point * scale))]);
    return { gpus: curves.map(({ gpu }) => gpu), data: [times, ...values] };
  }

  /** Returns the text for the line above a chart: the values at the cursor. */
  function readout(chart, { unit }, gpus) {
    const { idx } = chart.cursor;
    if (idx === null || idx === undefined) return '';
    const values = gpus.map((gpu, at) => ({ gpu, value: chart.data[at + 1][idx] })).filter(({ gpu, value }) => !hidden.has(gpu) && value !== null);
    if (!values.length) return `${time(chart.data[0][idx])} no values`;
    const focused = values.find(({ gpu }) => chart.series[gpus.indexOf(gpu) + 1]._focus);
    const [low, high] = [Math.min(...values.map(({ value }) => value)), Math.max(...values.map(({ value }) => value))];
    const text = focused && values.length > 1 ? `GPU ${focused.gpu}: ${digits(focused.value)}` : values.length > 1 ? `${digits(low)} to ${digits(high)}` : `GPU ${values[0].gpu}: ${digits(values[0].value)}`;
    return `${time(chart.data[0][idx])} ${text} ${unit}`;
  }

  function draw(kind, history) {
    const { gpus, data } = dataOf(kind, history);
    if (data[0].length < 2) return null;
    const output = make('output');
    const box = make('div', { tabIndex: 0 });
    const figure = make('figure', {}, make('figcaption', {}, make('b', { textContent: `${kind.title}, ${kind.unit}` }), ' ', output), box);
    const [text, line] = [colour('--soft'), colour('--line')];
    const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1, size: 4 }, font: '12px system-ui, sans-serif' };
    const chart = new uPlot({
      width: 300, height: 160, legend: { show: false }, padding: [8, 18, 0, 0],
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), 'UTC'),
      cursor: { sync: { key: 'history' }, focus: { prox: 16 }, drag: { x: false, y: false }, points: { size: 6 } },
      focus: { alpha: 0.25 },
      scales: { y: { range: kind.range ?? ((_, low, high) => [0, (high || 1) * 1.05]) } },
      axes: [{ ...axis, space: 70, size: 30, values: (_, splits, _axis, _space, step) => splits.map((split) => time(split).slice(0, step < 60 ? 8 : 5)) }, { ...axis, size: 46, space: 30 }],
      series: [{}, ...gpus.map((gpu) => ({
        label: `GPU ${gpu}`, show: !hidden.has(gpu), stroke: colour(`--curve-${gpu % COLOURS}`), width: 1.5,
        dash: gpu % (2 * COLOURS) < COLOURS ? undefined : [5, 3], points: { show: false },
      }))],
      hooks: { setCursor: [(self) => { output.textContent = readout(self, kind, gpus); }], setSeries: [(self) => { output.textContent = readout(self, kind, gpus); }] },
    }, data, box);
    chart.root.setAttribute('aria-hidden', 'true');
    box.setAttribute('role', 'img');
    box.setAttribute('aria-label', `${kind.title} of each GPU over time. Left and right arrows read the values.`);
    box.addEventListener('keydown', (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by) return;
      event.preventDefault();
      const last = chart.data[0].length - 1;
      const at = Math.min(last, Math.max(0, (chart.cursor.idx ?? last + 1) + by));
      const left = chart.valToPos(chart.data[0][at], 'x');
      chart.setCursor({ left, top: chart.over.clientHeight / 2 });
      box.setAttribute('aria-label', output.textContent);
    });
    new ResizeObserver(() => chart.setSize({ width: Math.max(120, box.clientWidth), height: 160 })).observe(box);
    return { kind, gpus, chart, figure };
  }

  /** Renders the GPUs as buttons that show and hide their lines. */
  function legend(gpus) {
    const list = make('div', { className: 'legend' });
    list.setAttribute('role', 'group');
    list.setAttribute('aria-label', 'Lines that are shown');
    for (const gpu of gpus) {
      const button = make('button', { type: 'button', className: `curve curve-${gpu % COLOURS}`, textContent: `GPU ${gpu}` });
      button.setAttribute('aria-pressed', String(!hidden.has(gpu)));
      button.addEventListener('click', () => {
        hidden[hidden.has(gpu) ? 'delete' : 'add'](gpu);
        button.setAttribute('aria-pressed', String(!hidden.has(gpu)));
        for (const { chart, gpus: own } of drawn) if (own.includes(gpu)) chart.setSeries(own.indexOf(gpu) + 1, { show: !hidden.has(gpu) });
      });
      list.append(button);
    }
    return list;
  }

  function show(history) {
    const fits = CHARTS.map((kind) => dataOf(kind, history));
    const shape = JSON.stringify(fits.map(({ gpus, data }) => (data[0].length < 2 ? null : gpus)));
    if (shape === shown) {
      for (const { kind, chart } of drawn) chart.setData(dataOf(kind, history).data);
      return;
    }
    shown = shape;
    for (const { chart } of drawn) chart.destroy();
    drawn = CHARTS.map((kind) => draw(kind, history)).filter((one) => one !== null);
    const gpus = [...new Set(drawn.flatMap(({ gpus: own }) => own))].sort((a, b) => a - b);
    const title = make('h2', { id: 'history', textContent: 'History' });
    place.replaceChildren(title, ...(gpus.length > 1 ? [legend(gpus)] : []), make('div', { className: 'charts' }, ...drawn.map(({ figure }) => figure)));
    place.hidden = drawn.length === 0;
  }

  async function load() {
    if (Date.now() < next) return;
    next = Date.now() + 10000;
    try {
      const answer = await fetch('page/history');
      if (!answer.ok) return;
      const history = await answer.json();
      if (history.step_seconds > 0) show(history);
    } catch {
      // live.js reports the lost connection.
    }
  }

  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { shown = ''; next = 0; load(); });
  document.addEventListener('updated', load);
  load();
})();
