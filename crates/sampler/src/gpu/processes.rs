//! Number of processes on the GPU and, on request, the processes with the most memory one by one, so that the
//! number of series is limited. The canary's processes are left out.
//!
//! Compute processes are listed once a second, which takes 20 to 45 us per GPU. In MIG mode the list of the GPU
//! includes the instance of every process. Graphics and MPS processes are listed at every slow visit.

use std::collections::{BTreeMap, HashSet};

use nvml_wrapper::Device;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::{ProcessInfo as NvmlProcess, ProcessUtilizationSample};

use super::{ONE, PERCENT};
use crate::raw::processes;
use crate::visit::Visit;
use host::Host;
use model::catalog::{self as m, Engine, MetricId, Process, ProcessInfo, ProcessType};
use model::owners::GpuProcess;
use model::sample::MAX_PROCESSES;

const METRICS: [MetricId; 4] = [
    m::gpu_process_info.id(),
    m::gpu_process_memory_used_bytes.id(),
    m::gpu_process_utilization_ratio.id(),
    m::gpu_processes_dropped.id(),
];
const UTILIZATION: &str = "nvmlDeviceGetProcessUtilization";
const COMPUTE: &str = "nvmlDeviceGetComputeRunningProcesses_v3";
const GRAPHICS: &str = "nvmlDeviceGetGraphicsRunningProcesses_v3";
const MPS: &str = "nvmlDeviceGetMPSComputeRunningProcesses_v3";

/// Lists the compute processes.
pub(super) fn normal(v: &mut Visit<'_>) {
    let compute = foreign(v, COMPUTE, ProcessType::Compute, processes::compute);
    if let Some(list) = &compute {
        list_processes(v, list.iter().map(plain));
    }
    v.state.compute = compute;
}

/// Lists the other processes, and adds rows for single processes up to the configured number.
pub(super) fn slow(v: &mut Visit<'_>) {
    let most = v.settings.processes;
    let graphics = foreign(v, GRAPHICS, ProcessType::Graphics, processes::graphics);
    let mps = foreign(v, MPS, ProcessType::Mps, processes::mps);
    let compute = match v.state.compute.clone() {
        // The compute processes are not listed yet, or listing them failed.
        None if most.is_some() => listed(v, COMPUTE, &METRICS, processes::compute),
        known => known,
    };
    // A process that also computes is in the newer list, and leaves that list when it ends.
    let computing: HashSet<u32> = compute.iter().flatten().map(|one| one.pid).collect();
    if graphics.is_some() || mps.is_some() {
        let rest = [&graphics, &mps].into_iter().flatten().flatten();
        list_processes(v, rest.filter(|one| !computing.contains(&one.pid)).map(plain));
    }
    // MPS comes first, because its clients are in the list of compute processes too.
    let lists = [("mps", mps), ("compute", compute), ("graphics", graphics)];
    let Some(most) = most.filter(|_| lists.iter().any(|(_, list)| list.is_some())) else { return };
    let lists = lists.into_iter().map(|(kind, list)| (kind, list.unwrap_or_default()));
    let (kept, left_out) = bounded(merged(lists), most as usize);
    v.add(COMPUTE, &m::gpu_processes_dropped, (), left_out, ONE);
    let samples = utilization(v);
    for (pid, one) in kept {
        let process = Process { gpu: v.gpu.gpu, uuid: v.gpu.uuid.clone(), pid };
        if v.wants(&METRICS[..1]) {
            let name = name(&v.shared.host, pid);
            for (gpu_instance, compute_instance) in &one.instances {
                let id = |id: &Option<u32>| id.map(|id| id.to_string()).unwrap_or_default();
                let info = ProcessInfo {
                    process_name: name.clone(),
                    process_type: one.kind.to_owned(),
                    gpu_instance: id(gpu_instance),
                    compute_instance: id(compute_instance),
                };
                v.rows.entity(&process).info(&m::gpu_process_info, info);
            }
        }
        if let Some(memory) = one.memory {
            v.add_for(&process, COMPUTE, &m::gpu_process_memory_used_bytes, (), memory, ONE);
        }
        let Some(samples) = &samples else { continue };
        // A process without a sample was idle.
        let busy = samples.get(&pid).copied().unwrap_or_default();
        let engines = [Engine::Sm, Engine::Memory, Engine::Encoder, Engine::Decoder];
        for (engine, percent) in engines.into_iter().zip(busy) {
            let metric = &m::gpu_process_utilization_ratio;
            v.add_for(&process, UTILIZATION, metric, (engine,), percent, PERCENT);
        }
    }
}

/// Returns the processes of one list without the canary's, and adds their number as a row.
fn foreign(
    v: &mut Visit<'_>,
    call: &'static str,
    kind: ProcessType,
    read: impl FnOnce(&Device<'static>) -> Result<Vec<NvmlProcess>, NvmlError>,
) -> Option<Vec<NvmlProcess>> {
    let count = &m::gpu_processes;
    let mut feeds = vec![count.id()];
    if v.settings.processes.is_some() {
        feeds.extend(METRICS);
    }
    let list = listed(v, call, &feeds, read)?;
    v.add(call, count, (kind,), list.len(), ONE);
    Some(list)
}

/// Returns the processes of one list without the canary's.
fn listed(
    v: &mut Visit<'_>,
    call: &'static str,
    feeds: &[MetricId],
    read: impl FnOnce(&Device<'static>) -> Result<Vec<NvmlProcess>, NvmlError>,
) -> Option<Vec<NvmlProcess>> {
    let mut list = v.read(call, feeds, read)?;
    v.retain_foreign(&mut list);
    if !v.state.mig_enabled {
        // Outside MIG mode a process runs on the whole GPU, whatever ids the driver reports.
        for process in &mut list {
            (process.gpu_instance_id, process.compute_instance_id) = (None, None);
        }
    }
    Some(list)
}

/// Adds processes to the list of this visit. If the list exceeds its limit, the processes with the most memory
/// stay.
pub(crate) fn list_processes(v: &mut Visit<'_>, more: impl Iterator<Item = GpuProcess>) {
    let list = v.processes.get_or_insert_default();
    list.extend(more);
    // A process may be in two lists. The entry with the most memory counts.
    list.sort_unstable_by_key(|one| (one.pid, one.instance, std::cmp::Reverse(one.memory)));
    list.dedup_by_key(|one| (one.pid, one.instance));
    if list.len() > MAX_PROCESSES {
        list.sort_by_key(|one| (std::cmp::Reverse(one.memory), one.pid));
        list.truncate(MAX_PROCESSES);
    }
}

/// Returns a process in the form of the batch.
pub(crate) fn plain(process: &NvmlProcess) -> GpuProcess {
    let memory = match process.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => Some(bytes),
        UsedGpuMemory::Unavailable => None,
    };
    GpuProcess {
        pid: process.pid,
        instance: process.gpu_instance_id.zip(process.compute_instance_id),
        memory,
    }
}

/// Memory and instances of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Holding {
    kind: &'static str,
    /// Bytes, if the driver reports them.
    memory: Option<u64>,
    /// GPU and compute instances that the process runs on; a single pair of `None` without MIG.
    instances: Vec<(Option<u32>, Option<u32>)>,
}

/// Merges lists of processes by id. A process may be in several lists, each of which has all its memory. In MIG
/// mode it may be in one list several times, once per instance. It has the type of the first list that contains
/// it.
fn merged(lists: impl Iterator<Item = (&'static str, Vec<NvmlProcess>)>) -> BTreeMap<u32, Holding> {
    let mut all: BTreeMap<u32, Holding> = BTreeMap::new();
    for (kind, list) in lists {
        let mut of_list: BTreeMap<u32, Holding> = BTreeMap::new();
        for process in list {
            let memory = plain(&process).memory;
            let instance = (process.gpu_instance_id, process.compute_instance_id);
            let entry =
                of_list.entry(process.pid).or_insert(Holding { kind, memory: None, instances: vec![] });
            entry.memory = [entry.memory, memory].into_iter().flatten().reduce(u64::saturating_add);
            if !entry.instances.contains(&instance) {
                entry.instances.push(instance);
            }
        }
        for (pid, holding) in of_list {
            let memory = holding.memory;
            let known = all.entry(pid).or_insert(holding);
            known.memory = known.memory.max(memory);
        }
    }
    all
}

/// Returns the processes with the most memory and the number of the others. Among equals the lower id stays,
/// which is the older process.
fn bounded(all: BTreeMap<u32, Holding>, most: usize) -> (Vec<(u32, Holding)>, usize) {
    let mut list: Vec<_> = all.into_iter().collect();
    list.sort_by_key(|(pid, one)| (std::cmp::Reverse(one.memory), *pid));
    let left_out = list.len().saturating_sub(most);
    list.truncate(most);
    (list, left_out)
}

/// Reads the utilization of multiprocessors, memory, encoder and decoder by process since the last visit, in
/// percent. Returns `None` if the driver does not report it.
fn utilization(v: &mut Visit<'_>) -> Option<BTreeMap<u32, [u32; 4]>> {
    let since = v.state.processes_seen;
    let samples = v.read(UTILIZATION, &METRICS[2..3], |d| match d.process_utilization_stats(since) {
        // No process was active.
        Err(NvmlError::NotFound) => Ok(Vec::new()),
        other => other,
    })?;
    if let Some(newest) = samples.iter().map(|sample| sample.timestamp).max() {
        v.state.processes_seen = newest.max(since);
    }
    Some(newest(samples))
}

/// Returns the newest sample of every process.
fn newest(mut samples: Vec<ProcessUtilizationSample>) -> BTreeMap<u32, [u32; 4]> {
    samples.sort_by_key(|sample| sample.timestamp);
    samples.into_iter().map(|s| (s.pid, [s.sm_util, s.mem_util, s.enc_util, s.dec_util])).collect()
}

/// Returns the kernel's name of a process, or an empty text if the process has ended. Reading `comm` does not
/// take a lock that a stuck process could hold.
fn name(host: &Host, pid: u32) -> String {
    let path = host.path(format!("/proc/{pid}/comm"));
    let bytes = std::fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&bytes).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn process(pid: u32, bytes: Option<u64>, instance: Option<u32>) -> NvmlProcess {
        NvmlProcess {
            pid,
            used_gpu_memory: bytes.map_or(UsedGpuMemory::Unavailable, UsedGpuMemory::Used),
            gpu_instance_id: instance,
            compute_instance_id: instance.map(|_| 0),
        }
    }

    #[test]
    fn a_process_in_two_lists_holds_its_memory_once() {
        let lists = [("mps", vec![process(1, Some(5), None)]), ("compute", vec![process(1, Some(5), None)])];
        let all = merged(lists.into_iter());
        assert_eq!(all[&1].memory, Some(5));
        assert_eq!(all[&1].kind, "mps");
        assert_eq!(all[&1].instances, [(None, None)]);
    }

    #[test]
    fn a_process_on_two_instances_holds_the_memory_of_both() {
        let list = vec![process(1, Some(5), Some(1)), process(1, Some(7), Some(2))];
        let all = merged([("compute", list)].into_iter());
        assert_eq!(all[&1].memory, Some(12));
        assert_eq!(all[&1].instances, [(Some(1), Some(0)), (Some(2), Some(0))]);
    }

    #[test]
    fn memory_that_the_driver_does_not_give_is_not_zero() {
        let all = merged([("compute", vec![process(1, None, None)])].into_iter());
        assert_eq!(all[&1].memory, None);
    }

    #[test]
    fn the_newest_sample_of_a_process_counts() {
        let sample = |pid, timestamp, sm_util| ProcessUtilizationSample {
            pid,
            timestamp,
            sm_util,
            mem_util: 0,
            enc_util: 0,
            dec_util: 0,
        };
        let seen = newest(vec![sample(1, 20, 50), sample(2, 5, 7), sample(1, 10, 99)]);
        assert_eq!(seen[&1][0], 50);
        assert_eq!(seen[&2][0], 7);
    }

    proptest! {
        #[test]
        fn those_with_the_most_memory_stay_and_the_rest_is_counted(
            memory in prop::collection::vec(prop::option::of(0u64..100), 0..50),
            most in 1usize..20,
        ) {
            let list = memory.iter().zip(1..).map(|(bytes, pid)| process(pid, *bytes, None)).collect();
            let all = merged([("compute", list)].into_iter());
            let (kept, left_out) = bounded(all.clone(), most);
            prop_assert!(kept.len() <= most);
            prop_assert_eq!(kept.len() + left_out, memory.len());
            let least = kept.iter().map(|(_, one)| one.memory).min();
            for (pid, one) in &all {
                let stays = kept.iter().any(|(kept, _)| kept == pid);
                prop_assert!(stays || Some(one.memory) <= least);
            }
        }
    }
}
