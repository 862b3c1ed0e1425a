// The processes: exporters on simulated nodes, Prometheus, and the server that plays recordings and serves the page.
import { execFileSync, spawn } from 'node:child_process';
import { createReadStream, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, symlinkSync, writeFileSync, openSync } from 'node:fs';
import { createServer, request } from 'node:http';
import { extname, join, normalize } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

const children = new Set();

function start(program, args, { env, log }) {
  const out = openSync(log, 'w');
  const child = spawn(program, args, { env: { ...process.env, ...env }, stdio: ['ignore', out, out] });
  child.log = log;
  children.add(child);
  child.on('exit', () => children.delete(child));
  return child;
}

/** A process and all below it, as names that no later process has. */
function family(pid) {
  try {
    const begun = readFileSync(`/proc/${pid}/stat`, 'utf8').replace(/.*\) /s, '').split(' ')[19];
    const below = readdirSync(`/proc/${pid}/task`).flatMap((task) => readFileSync(`/proc/${pid}/task/${task}/children`, 'utf8').split(' ').filter(Boolean));
    return [`${pid} ${begun}`, ...below.flatMap(family)];
  } catch {
    return []; // It has ended.
  }
}

/** Ends a process that this program started, and waits for its end. An exporter leaves children in a driver call; they end here. */
export async function end(child) {
  if (!children.has(child)) return;
  const gone = new Promise((resolve) => child.on('exit', resolve));
  const below = family(child.pid).slice(1);
  child.kill('SIGTERM');
  const late = setTimeout(() => child.kill('SIGKILL'), 20000);
  await gone;
  clearTimeout(late);
  for (const [name, pid] of below.map((name) => [name, Number.parseInt(name, 10)])) {
    try {
      if (family(pid).includes(name)) process.kill(pid, 'SIGKILL');
    } catch {
      // It has just ended.
    }
  }
}

/** Ends all of them. */
export const endAll = () => Promise.all([...children].map(end));

/** Waits until the address answers 200. */
export async function answers(url, child, patience = 60000) {
  const deadline = Date.now() + patience;
  for (;;) {
    // An older process may answer in its place.
    await sleep(200);
    if (child.exitCode !== null) throw new Error(`${child.spawnfile} ended with ${child.exitCode}:\n${readFileSync(child.log, 'utf8').slice(-2000)}`);
    try {
      if ((await fetch(url)).ok) return;
    } catch {
      // Not yet.
    }
    if (Date.now() > deadline) throw new Error(`${url} does not answer; see ${child.log}`);
  }
}

/**
 * An exporter on a simulated node, as `tests/tools/run.sh` starts one, with these groups of metrics beside the default set, and
 * with these settings before all others. Resolves once all collectors have answered, or, not `ready`, once it serves.
 */
export async function node({ scenario, folder, port, built, groups = [], settings: wanted = {}, ready = true }) {
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(join(folder, 'lib'), { recursive: true });
  // Tests build it in deps alone.
  const age = (file) => (existsSync(file) ? statSync(file).mtimeMs : 0);
  const [library] = [join(built, 'libsimgpu.so'), join(built, 'deps/libsimgpu.so')].sort((a, b) => age(b) - age(a));
  for (const name of ['libnvidia-ml.so.1', 'libcuda.so.1', 'libcuda.so']) symlinkSync(library, join(folder, 'lib', name));
  const root = join(folder, 'root');
  execFileSync(join(built, 'simhost'), [root, readFileSync('/proc/uptime', 'utf8').split(' ')[0]]);
  for (const dir of ['dev', 'sys/module/nvidia', 'proc/sys/kernel/random']) mkdirSync(join(root, dir), { recursive: true });
  // Not copyFileSync: files of /proc have a size of 0, and some systems copy as many bytes.
  for (const file of ['proc/stat', 'proc/sys/kernel/random/boot_id']) writeFileSync(join(root, file), readFileSync(`/${file}`));
  writeFileSync(join(root, 'dev/kmsg'), '');
  writeFileSync(join(root, 'sys/module/nvidia/version'), '580.159.04\n');
  writeFileSync(join(root, 'sys/module/nvidia/initstate'), 'live\n');
  // Played back four days earlier, it is to come tomorrow.
  const windows = join(root, 'etc/gpu-node-exporter/windows.d');
  mkdirSync(windows, { recursive: true });
  const begins = new Date(Date.now() + 5 * 86400e3).toISOString().replace(/\.\d+/, '');
  writeFileSync(join(windows, 'firmware.toml'), `start = ${begins}\nfor = "4h"\nreason = "new firmware of the switches"\n`);
  const layout = scenario.replace(/\.toml$/, '.layout.yaml');
  const settings = {
    HOST__ROOT: root,
    CPU__ENABLED: 'true',
    PROCESSES__PER_PROCESS: 'true',
    MIG__LAYOUT_FILE: existsSync(layout) ? layout : '',
    METRICS__GROUPS: groups.join(','),
    // Sooner than anybody wants it on real GPUs, so that there is something to see.
    CANARY__INTERVAL: '1m',
    CANARY__IDLE_FOR: '5s',
    CANARY__MAX_DUTY_RATIO: '0.01',
    // The simulated kernels run on a CPU that has other work.
    CANARY__PROGRESS_TIMEOUT: '10m',
    CANARY__CUDA_LIBRARY: join(folder, 'lib/libcuda.so.1'),
    CANARY__LOCK_FILE: join(folder, 'canary.lock'),
    // A socket's path may be 107 bytes long and no more.
    CONTROL__SOCKET: `/tmp/preview-${process.pid}-${port}.sock`,
    HEALTH__SOCKET: '',
    ...wanted,
  };
  const env = { GPU_SIM_KMSG: join(root, 'dev/kmsg'), GPU_SIM_SCENARIO: scenario, GPU_SIM_STATE: join(folder, 'state') };
  for (const [key, value] of Object.entries(settings)) env[`GPU_NODE_EXPORTER__${key}`] = value;
  const args = ['serve', '--listen', `127.0.0.1:${port}`, '--nvml-library', join(folder, 'lib/libnvidia-ml.so.1'), '--state-dir', join(folder, 'kept')];
  // The same once more, after its end: with what it has kept, and on the node of another scenario if one is named.
  const again = async (other) => {
    if (other) Object.assign(env, { GPU_SIM_SCENARIO: other, GPU_SIM_STATE: join(folder, 'other-state') });
    const child = start(join(built, 'gpu-node-exporter'), args, { env, log: join(folder, 'log') });
    await answers(`http://127.0.0.1:${port}/${ready ? 'readyz' : 'livez'}`, child);
    return Object.assign(child, { again, env });
  };
  return again();
}

/** A Prometheus that takes a history first; `scrape` makes it look at targets and evaluate rules. */
export class Prometheus {
  constructor(folder, port) {
    Object.assign(this, { folder, port, url: `http://127.0.0.1:${port}` });
  }

  async start(program) {
    rmSync(this.folder, { recursive: true, force: true });
    mkdirSync(this.folder, { recursive: true });
    this.config = join(this.folder, 'prometheus.yml');
    writeFileSync(this.config, '{}\n');
    const args = [
      `--config.file=${this.config}`, `--storage.tsdb.path=${join(this.folder, 'data')}`, `--web.listen-address=127.0.0.1:${this.port}`,
      '--web.enable-remote-write-receiver', '--web.enable-lifecycle', '--query.timeout=60s', '--log.level=warn',
      // All of a history stays in the head, where samples of any time within half of this are taken.
      '--storage.tsdb.min-block-duration=90d', '--storage.tsdb.max-block-duration=90d', '--storage.tsdb.retention.time=90d',
    ];
    this.child = start(program, args, { env: { GOGC: '60' }, log: join(this.folder, 'log') });
    await answers(`${this.url}/-/ready`, this.child);
  }

  async scrape(targets, interval, rules) {
    const scrapeConfigs = targets.map(({ job, address, path = '/metrics', labels }) =>
      ({ targets: [address], labels: { ...labels, __metrics_path__: path, job } }));
    const config = {
      global: { scrape_interval: interval, scrape_timeout: interval === '5s' ? '5s' : '10s', evaluation_interval: '15s' },
      rule_files: rules,
      // The labels of the targets name the job.
      scrape_configs: [{ job_name: 'preview', static_configs: scrapeConfigs }],
    };
    await this.configure(config);
  }

  /** No more scrapes and rules: what is asked from now on has the program for itself. */
  pause() {
    return this.configure({});
  }

  async configure(config) {
    // JSON is YAML.
    writeFileSync(this.config, JSON.stringify(config));
    const answer = await fetch(`${this.url}/-/reload`, { method: 'POST' });
    if (!answer.ok) throw new Error(`Prometheus refuses its configuration: ${await answer.text()}`);
  }

  /** CPU time that it has had, in milliseconds. */
  cpu() {
    const tasks = `/proc/${this.child.pid}/task`;
    return readdirSync(tasks).reduce((sum, task) => {
      try {
        return sum + Number(readFileSync(join(tasks, task, 'schedstat'), 'utf8').split(' ')[0]) / 1e6;
      } catch {
        return sum; // It has just ended.
      }
    }, 0);
  }

  async json(path) {
    const body = await (await fetch(`${this.url}/api/v1/${path}`)).json();
    if (body.status !== 'success') throw new Error(`${path}: ${body.error}`);
    return body.data;
  }

  end() {
    return end(this.child);
  }
}

const TYPES = { '.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css', '.json': 'application/json', '.svg': 'image/svg+xml', '.woff2': 'font/woff2' };

/** Serves the page, the dashboards, recordings as metrics pages, and each Prometheus under its name. */
export function serve({ port, page, dashboards, pages, prometheus }) {
  const server = createServer((asked, answer) => {
    const { pathname } = new URL(asked.url, 'http://x');
    const [, first, second] = pathname.split('/');
    if (first === 'node') {
      const text = pages(decodeURIComponent(pathname.slice('/node/'.length)));
      answer.writeHead(text === undefined ? 404 : 200, { 'Content-Type': 'text/plain; version=0.0.4' });
      answer.end(text ?? '');
    } else if (first === 'prometheus' && prometheus[second]) {
      const { port: to } = prometheus[second];
      const path = asked.url.slice(`/prometheus/${second}`.length);
      const { connection, ...headers } = asked.headers;
      const passed = request({ port: to, host: '127.0.0.1', path, method: asked.method, headers: { ...headers, host: `127.0.0.1:${to}` } }, (got) => {
        answer.writeHead(got.statusCode, got.headers);
        got.pipe(answer);
      });
      passed.on('error', () => answer.writeHead(502).end());
      asked.pipe(passed);
    } else {
      const root = first === 'dashboards' ? dashboards : page;
      const name = normalize(first === 'dashboards' ? pathname.slice('/dashboards'.length) : pathname === '/' ? '/index.html' : pathname);
      const file = join(root, name);
      if (!existsSync(file)) return answer.writeHead(404).end();
      answer.writeHead(200, { 'Content-Type': TYPES[extname(file)] ?? 'application/octet-stream' });
      createReadStream(file).pipe(answer);
    }
  });
  return new Promise((resolve, reject) => {
    server.on('error', reject);
    server.listen(port, '127.0.0.1', () => resolve(server));
  });
}
