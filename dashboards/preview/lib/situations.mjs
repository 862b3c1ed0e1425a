// The situations in which the dashboards are drawn: which recording each node plays, and what else is scraped.
import { inventAllocation, inventEnds, inventKubernetes, inventOlder, inventServices, inventSlurm, inventUpgrade } from './invented.mjs';
import { Player } from './recording.mjs';

/** Recordings by scenario, and where their faults begin: frames before that are healthy. */
export const SCENARIOS = ['healthy', 'faults', 'no-mig', 'all-mig', 'no-gpu'];

function fleetOf(length) {
  return Array.from({ length }, (_, i) => (i % 67 === 5 ? 'faults' : i % 5 === 3 ? 'all-mig' : 'healthy'));
}

export const SITUATIONS = {
  healthy: ['healthy'],
  faults: ['faults', 'healthy'],
  'no-mig': ['no-mig'],
  'all-mig': ['all-mig'],
  'no-gpu': ['no-gpu'],
  odd: ['healthy', 'healthy'],
  // 25 nodes of two racks: one has faults, five are in MIG mode, two have another model.
  rack: fleetOf(25).map((scenario, i) => (i % 12 === 10 ? 'no-mig' : scenario)),
  // Of 200 nodes with eight GPUs each, three have faults and forty are in MIG mode.
  fleet: fleetOf(200),
  // 2,000 nodes, with the series alone that the dashboards of a fleet query.
  thousands: fleetOf(2000),
};

/** Situations of many nodes: each node has its own names, and a rack of twenty. */
export const MANY = ['rack', 'fleet', 'thousands'];

/** Situations in which queries are timed, with the dashboards that must answer within so many milliseconds. */
export const TIMED = {
  fleet: { uids: ['gpu-node-fleet', 'gpu-node-oncall'], limit: 200 },
  thousands: { uids: ['gpu-node-fleet', 'gpu-node-oncall'], limit: 1000 },
};

/** Where other dashboards than these are not drawn, and their series are not scraped. */
export const ONLY = { thousands: ['gpu-node-fleet', 'gpu-node-oncall'] };

const HOUR = 3600e3;

/**
 * What is odd about the nodes of `odd`: a quote in their names, an older exporter, a clock that jumps at the turn. Of both
 * Prometheus has nothing for ten minutes.
 */
const ODD = [
  { instance: 'n"1:9408', made: inventOlder, ahead: HOUR },
  { instance: 'n"2:9408', made: (recording) => recording, ahead: -HOUR },
];
const gapOf = (turn) => [turn - 100 * 60e3, turn - 90 * 60e3];

/** When the node with faults of `faults` had its driver loaded, in a window of maintenance. */
const upgradeOf = (turn) => ({ loaded: turn - 1.5 * HOUR, window: [turn - 2 * HOUR, turn - HOUR] });

/** Events by the annotation that has to show them, with their times; undefined for many nodes, where they are not counted. */
export const eventsOf = (situation, turn) => (situation === 'faults' ? {
  'Driver loaded': [upgradeOf(turn).loaded],
  'Maintenance window': upgradeOf(turn).window,
  Xid: [turn],
} : MANY.includes(situation) ? undefined : {});

/** Situations without a fault: nothing may be red but the network device of the simulated host that is down. */
export const WELL = ['healthy', 'odd'];
export const DOWN = ['Network up no'];

/** What is chosen on a dashboard instead of its first node or GPU: that of GPU 2 with its Xid; data sources of logs and traces. */
const EXPLORE = { 'var-loki': 'loki', 'var-tempo': 'tempo' };
export const CHOSEN = {
  faults: { 'gpu-node-gpu': { 'var-instance': 'faults:9408', 'var-gpu': '2' }, 'gpu-node-job': EXPLORE, 'gpu-node-service': EXPLORE },
};

/** Where services, Kubernetes and Slurm are scraped and a price table is loaded; elsewhere dashboards show that they are not. */
export const RICH = ['healthy', 'faults', ...MANY];

const placeOf = (i) => ({ cluster: 'preview', zone: `z${Math.floor(i / 500) + 1}`, rack: `r${String(Math.floor(i / 20) + 1).padStart(3, '0')}` });

/** The recording that each target of a situation plays, with the labels of the target. */
export function nodesOf(situation, recordings, { start, turn }) {
  const others = RICH.includes(situation) ? [
    ['services', inventServices(24, 5000), { job: 'services', namespace: 'inference', instance: 'services:8080' }],
    ['kubernetes', inventKubernetes(24, 5000, turn), { job: 'kube-state-metrics', instance: 'ksm:8080' }],
    // They ended in the last hours.
    ['ends', inventEnds(24, 5000), { job: 'kube-state-metrics', instance: 'ksm-ends:8080' }, turn - 2 * 3600e3],
    ['slurm', inventSlurm(24, 5000), { job: 'slurm-exporter', instance: 'slurm:8080' }],
  ] : [];
  const cluster = MANY.includes(situation) ? { cluster: placeOf(0).cluster } : {};
  const foreign = others.map(([, recording, labels, since]) => ({ player: new Player(recording, { start }), labels: { ...labels, ...cluster }, since, rename: (text) => text }));
  return SITUATIONS[situation].map((scenario, i) => {
    const odd = situation === 'odd' ? ODD[i] : undefined;
    let recording = recordings[scenario];
    const times = scenario === 'faults' ? { first: recording.turn, second: recording.turn + 8, turn } : { phase: (i * 7) % recording.times.length };
    const many = MANY.includes(situation);
    if (odd) {
      recording = odd.made(recording);
      Object.assign(times, { jump: turn, ahead: odd.ahead });
    } else if (scenario === 'faults' && !many) {
      recording = inventUpgrade(recording, upgradeOf(turn));
    } else if (scenario === 'healthy' && many && i % 4 === 1) {
      recording = inventAllocation(recording);
    }
    const id = i.toString(16).padStart(8, '0');
    return {
      player: new Player(recording, { start, ...times }),
      labels: { job: 'gpu-node-exporter', instance: odd?.instance ?? (many ? `node-${String(i + 1).padStart(4, '0')}:9408` : `${scenario}:9408`), ...(many && placeOf(i)) },
      gap: odd && gapOf(turn),
      // Every node has its own GPUs, pods and jobs.
      rename: (labels) => labels.replaceAll('GPU-00000000', `GPU-${id}`).replaceAll('MIG-00000000', `MIG-${id}`)
        .replace(/(^|,)(pod|slurm_job)="([^"]+)"/g, many && i ? `$1$2="$3-${i + 1}"` : '$&'),
    };
  }).concat(foreign);
}
