// The situations in which the boards are drawn: which recording each node plays, and what else is scraped.
import { inventEnds, inventKubernetes, inventServices, inventSlurm } from './invented.mjs';
import { Player } from './recording.mjs';

/** Recordings by scenario, and where their faults begin: frames before that are healthy. */
export const SCENARIOS = ['healthy', 'faults', 'no-mig', 'all-mig', 'no-gpu'];

export const SITUATIONS = {
  healthy: ['healthy'],
  faults: ['faults', 'healthy'],
  'no-mig': ['no-mig'],
  'all-mig': ['all-mig'],
  'no-gpu': ['no-gpu'],
  // Of 200 nodes with eight GPUs each, three are ill and forty have GPUs that are all cut.
  fleet: Array.from({ length: 200 }, (_, i) => (i % 67 === 5 ? 'faults' : i % 5 === 3 ? 'all-mig' : 'healthy')),
};

/** Where services, Kubernetes and Slurm are scraped and a price table is loaded; elsewhere boards say that they are not. */
export const RICH = ['healthy', 'faults', 'fleet'];

/** Who plays what in a situation, each with the labels of its target. */
export function nodesOf(situation, recordings, { start, turn }) {
  const others = RICH.includes(situation) ? [
    ['services', inventServices(24, 5000), { job: 'services', namespace: 'inference', instance: 'services:8080' }],
    ['kubernetes', inventKubernetes(24, 5000, turn), { job: 'kube-state-metrics', instance: 'ksm:8080' }],
    // They ended in the last hours.
    ['ends', inventEnds(24, 5000), { job: 'kube-state-metrics', instance: 'ksm-ends:8080' }, turn - 2 * 3600e3],
    ['slurm', inventSlurm(24, 5000), { job: 'slurm-exporter', instance: 'slurm:8080' }],
  ] : [];
  const foreign = others.map(([, recording, labels, since]) => ({ player: new Player(recording, { start }), labels, since, rename: (text) => text }));
  return SITUATIONS[situation].map((scenario, i) => {
    const recording = recordings[scenario];
    const times = scenario === 'faults' ? { first: recording.turn, second: recording.turn + 8, turn } : { phase: (i * 7) % recording.times.length };
    const many = situation === 'fleet';
    const id = i.toString(16).padStart(8, '0');
    return {
      player: new Player(recording, { start, ...times }),
      labels: { job: 'gpu-node-exporter', instance: many ? `node-${String(i + 1).padStart(3, '0')}:9408` : `${scenario}:9408` },
      // Every node has its own GPUs, pods and jobs.
      rename: (labels) => labels.replaceAll('GPU-00000000', `GPU-${id}`).replaceAll('MIG-00000000', `MIG-${id}`)
        .replace(/(^|,)(pod|slurm_job)="([^"]+)"/g, many && i ? `$1$2="$3-${i + 1}"` : '$&'),
    };
  }).concat(foreign);
}
