// Prometheus's remote write, as far as a history needs it: protobuf by hand, and snappy that compresses nothing.

function varint(value) {
  const bytes = [];
  let rest = BigInt(value);
  while (rest > 127n) {
    bytes.push(Number(rest & 127n) | 128);
    rest >>= 7n;
  }
  bytes.push(Number(rest));
  return Buffer.from(bytes);
}

const field = (number, bytes) => Buffer.concat([Buffer.from([(number << 3) | 2]), varint(bytes.length), bytes]);

function label(name, value) {
  return field(1, Buffer.concat([field(1, Buffer.from(name)), field(2, Buffer.from(value))]));
}

// Sample: field 1 a double, field 2 the time in milliseconds. Times of this century take six bytes.
function samples(points) {
  const out = Buffer.allocUnsafe(points.length * 18);
  let at = 0;
  for (const [time, value] of points) {
    out[at] = 0x12;
    out[at + 1] = 16;
    out[at + 2] = 0x09;
    out.writeDoubleLE(value, at + 3);
    out[at + 11] = 0x10;
    varint(time).copy(out, at + 12);
    at += 18;
  }
  return out;
}

function snappy(bytes) {
  const head = Buffer.alloc(5);
  head[0] = 63 << 2;
  head.writeUInt32LE(bytes.length - 1, 1);
  return Buffer.concat([varint(bytes.length), head, bytes]);
}

/** Sends series to a Prometheus in requests of a few MB. */
export class Writer {
  constructor(prometheus) {
    this.prometheus = prometheus;
    this.parts = [];
    this.size = 0;
    this.sent = 0;
  }

  /** `labels` as pairs, `points` as pairs of milliseconds and value, oldest first. */
  async add(name, labels, points) {
    if (!points.length) return;
    const sorted = [['__name__', name], ...labels.filter(([, value]) => value !== '')].sort(([a], [b]) => (a < b ? -1 : 1));
    const series = field(1, Buffer.concat([...sorted.map(([key, value]) => label(key, value)), samples(points)]));
    this.parts.push(series);
    this.size += series.length;
    this.sent += points.length;
    if (this.size > 4e6) await this.flush();
  }

  async flush() {
    if (!this.parts.length) return;
    const body = snappy(Buffer.concat(this.parts));
    this.parts = [];
    this.size = 0;
    const answer = await fetch(`${this.prometheus}/api/v1/write`, {
      method: 'POST',
      headers: {
        'Content-Type': 'application/x-protobuf',
        'Content-Encoding': 'snappy',
        'X-Prometheus-Remote-Write-Version': '0.1.0',
      },
      body,
    });
    if (!answer.ok) throw new Error(`remote write: ${answer.status} ${await answer.text()}`);
  }
}
