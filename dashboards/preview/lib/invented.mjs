// What no simulated node can tell: counters of a CPU's own units (most virtual machines have none), and the pages of
// other exporters that dashboards and optional rules know. All of it is made up, and only to see panels with something in them.

import { labelsOf, Recording } from './recording.mjs';

const EVENTS = { cycles: 3.1e9, instructions: 4.6e9, llc_misses: 2.1e6, branch_misses: 9e6, context_switches: 9e3, cpu_migrations: 40, page_faults: 4e3, major_faults: 0 };

/** Counts of CPU events for the groups of CPUs that the recording's topology has. */
export function inventCpu(recording) {
  const groups = new Set();
  for (const { name, labels } of recording.series.values()) {
    if (name !== 'gpu_host_topology_info') continue;
    groups.add(`${/numa_node="(\d+)"/.exec(labels)?.[1] ?? ''} ${/l3="(\d+)"/.exec(labels)?.[1] ?? ''}`);
  }
  for (const key of [...recording.series.keys()]) if (/^gpu_host_cpu_event/.test(key)) recording.series.delete(key);
  let nth = 0;
  for (const group of groups) {
    const [numa_node, l3] = group.split(' ');
    nth += 1;
    for (const [event, rate] of Object.entries(EVENTS)) {
      const speed = rate * (0.7 + 0.15 * nth);
      recording.invent('gpu_host_cpu_events_total', { numa_node, l3, event }, true, (_, s) => 1e9 + speed * (s + 8 * Math.sin(s / 15 + nth)));
    }
    if (![...recording.series.keys()].some((key) => key.startsWith('gpu_host_cpu_seconds_total{') && key.includes(`l3="${l3}"`))) {
      const modes = { busy: 5, iowait: 0.1, steal: 0.05, idle: 2.85 };
      for (const [mode, share] of Object.entries(modes)) {
        recording.invent('gpu_host_cpu_seconds_total', { numa_node, l3, mode }, true, (_, s) => 1e4 + share * s);
      }
    }
  }
  for (const event of Object.keys(EVENTS)) {
    for (const state of ['works', 'no_pmu', 'not_permitted', 'unknown']) {
      recording.invent('gpu_host_cpu_event_state', { event, state }, false, () => Number(state === 'works'));
    }
    recording.invent('gpu_host_cpu_event_running_ratio', { event }, false, () => 1);
  }
}

/** What takes the canary weeks to learn, and what only a kernel on real hardware counts. */
export function inventRare(recording) {
  const of = (name, ...wanted) => {
    const found = [...recording.series.values()].filter((series) => series.name === name).map(({ labels }) => Object.fromEntries(labelsOf(labels)));
    return new Map(found.map((labels) => wanted.map((label) => [label, labels[label]])).map((pairs) => [pairs.join(), Object.fromEntries(pairs)])).values();
  };
  for (const { check } of of('gpu_canary_rate_ratio', 'check')) {
    for (const labels of of('gpu_pcie_replays_total', 'gpu', 'uuid')) {
      for (const against of ['baseline', 'siblings']) recording.invent('gpu_canary_rate_ratio', { ...labels, check, against }, false, (frame) => 0.99 + 0.004 * Math.sin((frame / recording.times.length) * 2 * Math.PI + Number(labels.gpu)));
    }
    for (const [le, below] of [['0.9', 0], ['0.95', 0], ['0.98', 0.1], ['1.0', 0.8], ['1.02', 1], ['+Inf', 1]]) {
      recording.invent('gpu_canary_sample_rate_ratio_bucket', { check, le }, true, (_, s) => Math.floor(s / 20) * below);
    }
  }
  for (const labels of of('gpu_pcie_replays_total', 'gpu', 'uuid')) {
    for (const severity of ['correctable', 'non_fatal', 'fatal']) {
      // The GPU whose link gets narrow has one that was not corrected.
      const bad = labels.gpu === '5' && severity === 'non_fatal' && recording.turn;
      recording.invent('gpu_pcie_aer_errors_total', { ...labels, severity }, true, (frame) => Number(Boolean(bad) && frame >= bad));
    }
  }
  let nth = 0;
  for (const { owner } of of('gpu_owner_processes', 'owner')) {
    nth += 1;
    recording.invent('gpu_owner_cpu_events_total', { owner, event: 'context_switches' }, true, (_, s) => 400 * nth * s);
    for (const [mode, cpus] of [['user', 1.2], ['system', 0.15]]) {
      recording.invent('gpu_owner_cpu_seconds_total', { owner, mode }, true, (_, s) => cpus * nth * (s + 4 * Math.sin(s / 15)));
    }
  }
  // After a day of data each owner has a hint.
  const places = [...of('gpu_owner_cpu_remote_ratio', 'gpu', 'uuid', 'gpu_instance', 'owner')];
  for (const [i, labels] of places.entries()) {
    recording.invent('gpu_owner_mig_profile_hint_info', { ...labels, mig_profile: ['7g.141gb', '3g.71gb', '1g.18gb', '2g.35gb'][i % 4] }, false, () => 1);
    recording.invent('gpu_owner_cpu_remote_cache_ratio', labels, false, (frame) => 0.15 * (i % 5) + 0.02 * Math.sin(frame));
  }
  counts(recording);
  lateRuns(recording);
  for (const labels of recording.turn ? of('gpu_pcie_replays_total', 'gpu', 'uuid') : []) {
    if (labels.gpu === '3') recording.invent('gpu_canary_verdict', { ...labels, check: 'sm_rate', verdict: 'throttled' }, false, () => 1);
  }
}

// The canary's first run comes within the recording; before that it has what the run before would have left.
function lateRuns({ series: all, times, every }) {
  const round = (times.at(-1) - times[0] + every) / 1000;
  for (const { name, kind, values } of all.values()) {
    if (!/^gpu_(mig_)?canary_/.test(name)) continue;
    const first = values.findIndex((value) => value !== undefined);
    const before = kind === 'counter' ? 0 : kind === 'time' ? values[first] - round : values[first];
    for (let frame = 0; frame < first; frame++) values[frame] = before;
  }
}

// What is counted once at the turn to faults, by metric and labels: a network device loses its link, an owner is out of the host's
// memory, a link has errors, an exporter is at its limits.
const AT_TURN = [
  ['gpu_host_network_flaps_total', { nic: 'mlx5_0' }, 3],
  ['gpu_host_network_errors_total', { nic: 'mlx5_0', error: 'symbol' }, 40],
  ['gpu_owner_host_oom_kills_total', { owner: 'unit/jupyter.service' }, 2],
  ['gpu_nvlink_errors_total', { gpu: '2', error: 'dl_replay' }, 90],
  ['gpu_pcie_errors_total', { gpu: '2', error: 'correctable' }, 60],
  ['gpu_exporter_series_dropped_total', {}, 120],
  ['gpu_exporter_http_connections_refused_total', {}, 4],
  ['gpu_exporter_events_lost_total', {}, 3],
];

// Counters that do not move on a simulated node: traffic of the network, starts of processes, look-ups of their owners; and what
// is wrong from the turn to faults on.
function counts({ series: all, turn, times }) {
  const seconds = (frame) => (times[frame] - times[0]) / 1000;
  const bad = (frame) => Boolean(turn) && frame >= turn;
  for (const series of all.values()) {
    const of = Object.fromEntries(labelsOf(series.labels));
    const become = (value) => { series.values = times.map((_, frame) => value(frame)); };
    if (series.name === 'gpu_host_network_bytes_total') become((frame) => (of.direction === 'rx' ? 21e9 : 17e9) * (seconds(frame) + 5 * Math.sin(frame / 4)) + 5e10);
    if (series.name === 'gpu_exporter_owner_lookups_total' && of.outcome === 'found') become((frame) => Math.floor(seconds(frame) / 20));
    if (/^gpu_owner_start_seconds_(bucket|count)$/.test(series.name)) {
      const typical = of.phase === 'first_context' ? 6 : 45;
      const below = of.le === undefined || of.le === '+Inf' ? 1 : 1 - Math.exp(-Number(of.le) / typical);
      become((frame) => (seconds(frame) / 10) * below);
    }
    for (const [name, labels, by] of AT_TURN) {
      if (series.name === name && Object.entries(labels).every(([label, value]) => of[label] === value)) become((frame) => by * bad(frame));
    }
    if (!turn) continue;
    // The GPU that is too hot was throttled in its newest run; one that is always busy has waited for nine days.
    if (series.name === 'gpu_exporter_resident_memory_bytes' && of.role === 'sampler') become((frame) => (bad(frame) ? 290 : 40) * 2 ** 20);
    if (series.name === 'gpu_exporter_sample_gap_seconds_total' && of.gpu === '2' && of.buffer === 'power') become((frame) => (bad(frame) ? 0.04 * (seconds(frame) - seconds(turn)) : 0));
    if (series.name === 'gpu_canary_next_due_timestamp_seconds' && of.gpu === '0') become((frame) => times[frame] / 1000 - 9 * 86400);
  }
}

/** The recording of a node whose idle GPU the kubelet has given to a pod that does nothing with it. */
export function inventAllocation(recording) {
  const idle = [...recording.series.values()].find(({ name, labels }) => name === 'gpu_info' && /gpu="4"/.test(labels));
  const { gpu, uuid } = Object.fromEntries(labelsOf(idle.labels));
  const labels = { gpu, uuid, namespace: 'notebooks', pod: 'idle-0', container: 'notebook' };
  const made = recording.with(new Map(recording.series));
  made.invent('gpu_allocation_info', labels, false, () => 1);
  return made;
}

function page(frames, every) {
  const recording = new Recording(every);
  recording.times = Array.from({ length: frames }, (_, i) => i * every);
  return recording;
}

/** The simulated host has no Slurm: the owner in a container of its own is a job of it instead. */
export function inventSlurmOwner(recording) {
  for (const series of recording.series.values()) {
    if (!series.labels.includes('owner="docker/')) continue;
    series.labels = series.labels.replace(/owner="docker\/[^"]*"/, 'owner="slurm/4711.0"');
    const parts = { kind: 'slurm', container_id: '', runtime: '', slurm_job: '4711', slurm_step: '0', slurm_account: 'physics', user: 'trainer' };
    if (series.name !== 'gpu_owner_info') continue;
    for (const [name, value] of Object.entries(parts)) {
      series.labels = series.labels.replace(new RegExp(`(^|,)${name}="[^"]*"`), `$1${name}="${value}"`);
    }
  }
}

/** The recording of a node whose driver was loaded then, within a window of maintenance. */
export function inventUpgrade(recording, { loaded, window: [from, to] }) {
  const made = new Map([
    ['gpu_driver_load_timestamp_seconds{', { name: 'gpu_driver_load_timestamp_seconds', labels: '', valueAt: (time) => (time < loaded ? undefined : loaded / 1000) }],
    ['gpu_driver_loads_total{', { name: 'gpu_driver_loads_total', labels: '', valueAt: (time) => Number(time >= loaded) }],
    ['gpu_window_active{kind="maintenance"', { name: 'gpu_window_active', labels: 'kind="maintenance"', valueAt: (time) => Number(time >= from && time < to) }],
  ]);
  const series = new Map(recording.series);
  for (const [key, one] of made) series.set(key, { ...one, kind: 'made', values: recording.times.map(() => 0) });
  return recording.with(series);
}

// Families that an exporter of some versions ago may lack: what is derived, joined from elsewhere or read by newer calls.
const NEWER = new RegExp(`^gpu_(${[
  'bottleneck', 'window_', 'last_busy_', 'recovery_action', 'repair_pending', 'temperature_margin_', 'devices_(expected|missing)',
  'gpm_', 'mig_gpm_', 'mig_slices', 'mig_profile_', 'mig_host_', 'fabric_', 'ecc_sram_', 'nvlink_(errors|lane|raw|link_bytes)',
  'clock_event_seconds', 'power_(sample|peak|minimum|instant)', 'utilization_(sample|peak|minimum)', 'flops_', 'host_',
  'owner_(cpu|memory_remote|start|host_oom|energy|ended)', 'canary_(rate|sample_rate|work|sm_clock|duty|next_due|step)', 'xid_faults',
  'exporter_(sample_gap|readings|counter_regressions|facts|kubelet|owner|kmsg|events_lost|driver_error_kinds|publish_duration)', 'row_remap_banks', 'pcie_(aer|recoveries)',
].join('|')})`);

/** The recording of an older exporter. */
export const inventOlder = (recording) => recording.with(new Map([...recording.series].filter(([, { name }]) => !NEWER.test(name))));

/** Two services that export their calls. */
export function inventServices(frames, every) {
  const recording = page(frames, every);
  const wave = (s, depth) => 1 + depth * Math.sin((s / (frames * every)) * 2e3 * Math.PI);
  for (const [service, qps, seconds] of [['chat', 42, 0.18], ['embed', 310, 0.02]]) {
    recording.invent('req_qps', { service }, false, (_, s) => qps * wave(s, 0.2));
    recording.invent('rpc_error_ratio', { service }, false, (_, s) => 0.004 * wave(s, 0.5));
    recording.invent('rpc_rtt_seconds', { service }, false, (_, s) => 0.0007 * wave(s, 0.3));
    recording.invent('gpu_fallback_total', { service }, true, (_, s) => qps * 0.002 * s);
    for (const le of [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, Infinity]) {
      const below = 1 - Math.exp(-le / seconds);
      recording.invent('rpc_latency_p95_bucket', { service, le: le === Infinity ? '+Inf' : le === 1 ? '1.0' : String(le) }, true, (_, s) => qps * s * below);
    }
    recording.invent('rpc_latency_p95_count', { service }, true, (_, s) => qps * s);
    recording.invent('rpc_latency_p95_sum', { service }, true, (_, s) => qps * s * seconds);
  }
  return recording;
}

/** kube-state-metrics, of the pods that the simulated nodes have, of one that waits, and of jobs that ended. */
export function inventKubernetes(frames, every, now) {
  const recording = page(frames, every);
  const constant = (name, labels, value) => recording.invent(name, labels, false, () => value);
  constant('kube_node_info', { node: 'healthy' }, 1);
  const pods = [
    ['training', 'llm-0', 'Job', 'llm', 'Running', 86400],
    ['inference', 'chat-7d9c6b5f4-x2kqp', 'ReplicaSet', 'chat-7d9c6b5f4', 'Running', 3 * 86400],
    ['training', 'sweep-17', 'Job', 'sweep-17', 'Pending', 2700],
    ['training', 'sweep-16', 'Job', 'sweep-16', 'Failed', 7200],
    ['training', 'sweep-15', 'Job', 'sweep-15', 'Succeeded', 9000],
  ];
  for (const [namespace, pod, owner_kind, owner_name, phase, age] of pods) {
    constant('kube_pod_container_resource_requests', { namespace, pod, container: 'main', resource: 'nvidia_com_gpu' }, 1);
    constant('kube_pod_created', { namespace, pod }, now / 1000 - age);
    for (const one of ['Pending', 'Running', 'Succeeded', 'Failed']) constant('kube_pod_status_phase', { namespace, pod, phase: one }, Number(one === phase));
    constant('kube_pod_owner', { namespace, pod, owner_kind, owner_name, owner_is_controller: 'true' }, 1);
    if (owner_kind !== 'Job') continue;
    const sweep = owner_name.startsWith('sweep');
    constant('kube_job_owner', { namespace, job_name: owner_name, owner_kind: 'PyTorchJob', owner_name: sweep ? 'sweep' : 'llm', owner_is_controller: 'true' }, 1);
  }
  constant('kube_replicaset_owner', { namespace: 'inference', replicaset: 'chat-7d9c6b5f4', owner_kind: 'Deployment', owner_name: 'chat', owner_is_controller: 'true' }, 1);
  return recording;
}

/** kube-state-metrics, of jobs that have ended. */
export function inventEnds(frames, every) {
  const recording = page(frames, every);
  recording.invent('kube_job_failed', { namespace: 'training', job_name: 'sweep-16', condition: 'true' }, false, () => 1);
  recording.invent('kube_job_complete', { namespace: 'training', job_name: 'sweep-15', condition: 'true' }, false, () => 1);
  return recording;
}

/** A Slurm exporter. */
export function inventSlurm(frames, every) {
  const recording = page(frames, every);
  for (const [partition, jobs] of [['gpu', 7], ['debug', 0]]) {
    recording.invent('slurm_partition_jobs_pending', { partition }, false, () => jobs);
    recording.invent('slurm_partition_jobs_hold', { partition }, false, () => (jobs ? 1 : 0));
  }
  recording.invent('slurm_sdiag_jobs_completed', {}, true, (_, s) => 400 + 0.02 * s);
  recording.invent('slurm_sdiag_jobs_failed', {}, true, (_, s) => 4 + 0.0005 * s);
  return recording;
}

/** The example of a price table with models and teams that the simulated nodes have, and budgets that fit to 25 of them. */
export const inventPrices = (example) => example
  .replaceAll('NVIDIA Example 80GB', 'NVIDIA H200')
  .replaceAll('example-team', 'training')
  .replaceAll('example-account', 'physics')
  .replaceAll('vector(10000)', 'vector(48000)')
  .replaceAll('vector(5000)', 'vector(24000)');
