// Recordings of real metrics pages, and playing them at any time: past, for a history; present, as a page to be scraped.
import { setTimeout as sleep } from 'node:timers/promises';

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})? (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;
const number = (text) => (text === 'NaN' ? NaN : text === '+Inf' ? Infinity : text === '-Inf' ? -Infinity : Number(text));

// Times of single events stay: some as old as the node, some of the turn. The other times are of each round, and so move
// on. All are of the node's clock, but those of windows, which operators have written down.
const PLANNED = /^gpu_window_/;
const OLD = /^(process_start_time_seconds|gpu_host_boot_|gpu_driver_load_)/;
const EVENT = /^gpu_(last|xid_last)_event_/;

function kindOf(name, counts) {
  if (counts) return 'counter';
  if (!/_timestamp_seconds$|^process_start_time_seconds$/.test(name)) return 'gauge';
  if (PLANNED.test(name)) return 'planned';
  return OLD.test(name) ? 'old' : EVENT.test(name) ? 'event' : 'time';
}

/** Labels of a line of the page, unescaped. */
export function labelsOf(text) {
  return [...(text ?? '').matchAll(LABEL)].map(([, name, value]) => [name, value.replace(/\\(.)/g, (_, c) => (c === 'n' ? '\n' : c))]);
}

/** Collects a page every so many milliseconds. */
export class Recording {
  constructor(every) {
    this.every = every;
    this.times = [];
    /** Each series: its name, labels as text, kind, and a value for each frame, undefined where absent. */
    this.series = new Map();
    /** HELP and TYPE lines by metric. */
    this.heads = new Map();
  }

  async take(url, count, skip) {
    for (let frame = -skip; frame < count; frame++) {
      const started = Date.now();
      const answer = await fetch(url);
      if (!answer.ok) throw new Error(`${url} answers ${answer.status}`);
      const text = await answer.text();
      if (frame >= 0) this.add(text, started);
      await sleep(Math.max(0, this.every - (Date.now() - started)));
    }
  }

  add(text, time) {
    const frame = this.times.length;
    this.times.push(time);
    const types = new Map();
    for (const line of text.split('\n')) {
      if (line.startsWith('# ')) {
        const [, , name, type] = line.split(' ', 4);
        if (line.startsWith('# TYPE ')) types.set(name, type);
        this.heads.set(name, `${line.startsWith('# TYPE ') ? (this.heads.get(name)?.split('\n')[0] ?? '') : line}\n${line.startsWith('# TYPE ') ? line : ''}`);
        continue;
      }
      const match = LINE.exec(line);
      if (!match) {
        if (line) throw new Error(`no line of an exposition: ${line}`);
        continue;
      }
      const [, name, labels = '', value] = match;
      const key = `${name}{${labels}`;
      let series = this.series.get(key);
      if (!series) {
        const family = types.has(name) ? name : name.replace(/_(bucket|sum|count)$/, '');
        const counts = ['counter', 'histogram'].includes(types.get(family));
        series = { name, labels, kind: kindOf(name, counts), values: [] };
        this.series.set(key, series);
      }
      series.values[frame] = number(value);
    }
  }

  /** A series that the recording lacks; `value(frame, seconds)` gives its values. */
  invent(name, labels, counts, value) {
    const text = Object.entries(labels).map(([k, v]) => `${k}="${v}"`).join(',');
    const values = this.times.map((time, frame) => value(frame, (time - this.times[0]) / 1000));
    this.series.set(`${name}{${text}`, { name, labels: text, kind: kindOf(name, counts), values });
  }

  /** The same recording with other series. */
  with(series) {
    return Object.assign(new Recording(this.every), this, { series });
  }

  get names() {
    return new Set([...this.series.values()].map(({ name }) => name));
  }
}

// How much slower than recorded a recording is played: in the six hours of a graph, a load with a period of two minutes is
// noise. Counters count as fast as recorded.
const SLOWER = 36;

/**
 * Makes the values of a counter between two frames a line from end to end. Many are read less often than they were recorded: slower,
 * each of their steps would be minutes of nothing and then too much. A counter that changes once before `quiet` keeps its step:
 * that is an event.
 */
function straightened(values, lo, hi, quiet) {
  const changed = [];
  for (let frame = lo + 1; frame <= hi; frame++) if (values[frame] !== values[frame - 1]) changed.push(frame);
  if ((changed.length === 1 && changed[0] < quiet) || values.slice(lo, hi + 1).includes(undefined)) return;
  for (let frame = lo + 1; frame < hi; frame++) values[frame] = values[lo] + ((values[hi] - values[lo]) * (frame - lo)) / (hi - lo);
}

/**
 * A recording played on a line of time, slower than recorded. Until `turn` the frames [0, first) go round and round; then the rest is passed
 * through once as recorded, and from there the frames from `second` on go round. Counters go on from round to round by what a round
 * adds, so they never go back. `phase` shifts the rounds, so that many nodes are not alike. From `jump` on the node's clock
 * is so many milliseconds `ahead`.
 */
export class Player {
  constructor(recording, { start, turn = start, first = 0, second = 0, phase = 0, jump = Infinity, ahead = 0 }) {
    const offsets = recording.times.map((time) => time - recording.times[0]);
    Object.assign(this, { recording, start, first, second, jump, ahead, offsets, origin: recording.times[0], last: offsets.length - 1 });
    this.end = offsets[this.last] + recording.every;
    this.phase = (phase * recording.every) % this.end;
    // The turn comes where a round ends.
    this.turn = first ? turn - ((turn - start) % offsets[first]) : start;
    // Between these it is as recorded, before and after slower.
    this.quick = [this.turn, first ? this.turn + this.end - offsets[first] : this.turn];
    /** Of each counter its values before and at the turn and at the end of that, and its values without steps. */
    this.edges = new Map();
    this.lines = new Map();
  }

  /** The time in the recording, at that time. */
  warped(time) {
    const [from, to] = this.quick;
    return time < from ? from - (from - time) / SLOWER : time < to ? time : to + (time - to) / SLOWER;
  }

  /** The newest frame at that time after the recording's beginning. */
  frame(offset) {
    let [low, high] = [0, this.last];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.offsets[middle] <= offset) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** Where it is at that time: a frame after how many rounds of the first and of the second kind, the next, and how far it is there. */
  at(time) {
    const warped = this.warped(time);
    const here = this.place(warped);
    const length = (here.frame === this.last ? this.end : this.offsets[here.frame + 1]) - this.offsets[here.frame];
    const passed = here.offset - this.offsets[here.frame];
    // At the turn something happens at once: up to it counters go on as before. A millisecond more: sums of fractions may end
    // just before it.
    const next = warped < this.turn && here.frame === this.first - 1 ? { frame: 0, a: here.a + 1, b: 0 } : this.place(warped - passed + length + 1);
    return { ...here, next, part: Math.min(1, passed / length) };
  }

  place(time) {
    const { first, second, offsets } = this;
    const round = offsets[first];
    const found = (offset, a, b) => ({ frame: this.frame(offset), offset, a, b });
    if (time < this.turn) {
      const a = Math.floor((time - this.start) / round);
      return found(time - this.start - a * round, a, 0);
    }
    const a = first ? Math.round((this.turn - this.start) / round) - 1 : 0;
    const offset = time - this.turn + (first ? round : this.phase);
    if (offset < this.end) return found(offset, a, 0);
    const length = this.end - offsets[second];
    const b = Math.floor((offset - offsets[second]) / length);
    return found(offset - b * length, a, b);
  }

  line(series) {
    let values = this.lines.get(series);
    if (!values) {
      this.lines.set(series, (values = this.offsets.map((_, frame) => series.values[frame])));
      if (this.first) straightened(values, 0, this.first - 1, 0);
      straightened(values, this.first, this.last, this.second);
    }
    return values;
  }

  /** What a counter has at a frame, with what the rounds before have added. */
  sum(series, { frame, a, b }) {
    const values = this.line(series);
    const value = values[frame];
    if (value === undefined) return undefined;
    let sum = value;
    if (a && values[0] !== undefined && values[this.first - 1] !== undefined) {
      sum += (a * (values[this.first - 1] - values[0]) * this.offsets[this.first]) / this.offsets[this.first - 1];
    }
    const last = values[this.last];
    const from = values[this.second];
    // A round ends where the next frame would be; it adds what its frames add, and a step more.
    if (b && last !== undefined && from !== undefined) {
      const covered = this.offsets[this.last] - this.offsets[this.second];
      sum += b * (last - from) * ((this.end - this.offsets[this.second]) / covered);
    }
    return sum;
  }

  /** What a counter has at a place, which may be between two frames. */
  level(series, place) {
    const [here, next] = [this.sum(series, place), this.sum(series, place.next)];
    return here === undefined || next === undefined ? here : here + place.part * Math.max(0, next - here);
  }

  count(series, place, time) {
    const level = this.level(series, place);
    const [from, to] = this.quick;
    if (time >= from && time < to) return level;
    let edges = this.edges.get(series);
    if (!edges) {
      const before = this.first ? { frame: 0, a: Math.round((this.turn - this.start) / this.offsets[this.first]), b: 0 } : this.place(from);
      this.edges.set(series, (edges = [this.sum(series, before), this.level(series, this.at(from)), this.level(series, this.at(to))]));
    }
    const [before, turned, after] = edges;
    if (time >= to) return (after ?? 0) + SLOWER * (level - (after ?? 0));
    // A counter does not go back at the turn.
    return Math.min(before ?? 0, turned ?? Infinity) + SLOWER * (level - (before ?? 0));
  }

  /** The value of a series at the place that `at` gave; undefined where it is absent. */
  value(series, place, time) {
    const { frame } = place;
    const value = series.values[frame];
    if (value === undefined) return undefined;
    const ahead = time < this.jump ? 0 : this.ahead / 1000;
    switch (series.kind) {
      case 'counter':
        return this.count(series, place, time);
      case 'time':
        return value + (time - this.recording.times[frame]) / 1000 + ahead;
      case 'old':
        return value + (this.start - this.origin) / 1000 + ahead;
      case 'planned':
        return value + (this.start - this.origin) / 1000;
      case 'event':
        return value + (this.turn - this.offsets[this.first] - this.origin) / 1000 + ahead;
      case 'made':
        return series.valueAt(time);
      default:
        return value;
    }
  }

  /** The metrics page at that time. `rename` changes labels, so that each node has its own identities. */
  page(time, rename) {
    // What is before a value is the same on every page.
    this.prefixes ??= this.prepared(rename);
    const place = this.at(time);
    const page = [];
    let last;
    for (const { series, head, before } of this.prefixes) {
      const value = this.value(series, place, time);
      if (value === undefined) continue;
      if (head !== last) page.push(head);
      last = head;
      page.push(before + (Number.isFinite(value) ? value : String(value).replace('Infinity', 'Inf')));
    }
    page.push('');
    return page.join('\n');
  }

  prepared(rename) {
    const { series: all, heads } = this.recording;
    const families = new Map();
    for (const series of all.values()) {
      const family = heads.has(series.name) ? series.name : series.name.replace(/_(bucket|sum|count)$/, '');
      const labels = rename(series.labels);
      const head = heads.get(family) ?? `# TYPE ${series.name} untyped`;
      // Series that came later in the recording stand with their family.
      if (!families.has(head)) families.set(head, []);
      families.get(head).push({ series, head, before: `${series.name}${labels ? `{${labels}}` : ''} ` });
    }
    return [...families.values()].flat();
  }
}
