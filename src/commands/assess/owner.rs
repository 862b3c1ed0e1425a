//! Watches a running process, pod or Slurm job.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use assess::recording::RunCounts;
use attribution::{cgroup, names, proc};
use host::Host;
use host::stop::Stop;
use host::terminal::progress;
use model::clock::Mono;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::arguments::AssessArguments;
use super::counters::{CounterReading, RunCounters, Watched, reason};
use super::samples::CpuClock;
use super::{functions, limited, processor};
use collectors::cpu::cpu_groups::online;

/// Number of spans of one watch. A recording needs several spans to show the spread.
const SPANS: u32 = 10;
const TICK: Duration = Duration::from_millis(100);

struct WatchedOwner {
    name: String,
    pids: Vec<u32>,
}

/// Watches the owner. Returns the counts of the whole time and of its spans.
pub fn watch(
    arguments: &AssessArguments,
    host: &Host,
    stop: &Stop,
) -> Result<(RunCounts, Vec<RunCounts>), String> {
    let owner = find(arguments, host)?;
    let (cpu, model) = processor(host);
    raise_descriptors();
    let tasks = tasks(host, &owner.pids);
    if tasks.is_empty() {
        return Err(format!("no process of {} can be read", owner.name));
    }
    let mut counters = RunCounters::open(Watched::Threads(&tasks), cpu);
    let mut gaps = std::mem::take(&mut counters.gaps);
    let clock = CpuClock::open(Watched::Threads(&tasks), &online(host).unwrap_or_default())
        .and_then(|mut clock| clock.start(&owner.pids, host).map(|()| clock));
    let mut clock = clock.inspect_err(|error| drop(gaps.insert("hot functions".into(), reason(error)))).ok();
    counters.start().map_err(|error| error.to_string())?;
    let status = |pid: &u32| std::fs::read(host.path(format!("/proc/{pid}/status"))).unwrap_or_default();
    let allowed = owner.pids.iter().filter_map(|pid| proc::status(&status(pid)).1).reduce(|a, b| a.or(&b));
    let base = RunCounts {
        subject: owner.name.clone(),
        processor: model,
        cpus: allowed.map(|cpus| limited(cpus.len() as f64, host, &owner.pids[0].to_string())),
        threads: Some(tasks.len() as u64),
        not_measured: gaps,
        // Only has to differ between the watches in one recording.
        watch: Some((model::clock::unix_seconds() * 1e3) as u64),
        ..RunCounts::default()
    };
    let watch = OwnerWatch { pids: &owner.pids, duration: arguments.duration, host, stop, base };
    let (mut whole, mut spans) = watch.spans(&mut counters, &mut clock);
    if !stop.stopped() && !is_alive(host, &owner.pids) {
        let ended = format!("it ended after {:.1} s", whole.wall_seconds);
        whole.not_measured.insert("the rest of --for".into(), ended);
    }
    whole.hot = clock.map(|clock| functions(clock, host));
    // A report that is made from the recording needs the functions too.
    if let Some(last) = spans.last_mut() {
        last.hot.clone_from(&whole.hot);
    }
    Ok((whole, spans))
}

struct OwnerWatch<'a> {
    pids: &'a [u32],
    duration: Duration,
    host: &'a Host,
    stop: &'a Stop,
    /// Fields that all spans share.
    base: RunCounts,
}

impl OwnerWatch<'_> {
    /// Counts until the time is over, all processes have exited or a signal stops the command.
    fn spans(&self, counters: &mut RunCounters, clock: &mut Option<CpuClock>) -> (RunCounts, Vec<RunCounts>) {
        let is_over = || self.stop.stopped() || !is_alive(self.host, self.pids);
        let start = SpanEdge::read(counters, self.host, self.pids);
        let (mut spans, mut last, mut shown) = (Vec::new(), start.clone(), 0);
        for span in 1..=SPANS {
            let until = start.at + self.duration * span / SPANS;
            while Mono::now() < until && !is_over() {
                self.stop.wait_until(until.min(Mono::now() + TICK));
                if let Some(clock) = clock {
                    clock.drain(self.host);
                }
                let watched = Mono::now().since(start.at).as_secs();
                if watched > shown {
                    progress(&format!("assess: {watched} s of {} s", self.duration.as_secs()));
                    shown = watched;
                }
            }
            let now = SpanEdge::read(counters, self.host, self.pids);
            // A span that ends early is too short to compare.
            if spans.is_empty() || now.at.since(last.at) * 2 * SPANS >= self.duration {
                spans.push(now.since(&last, counters, &self.base));
            }
            last = now;
            if is_over() {
                break;
            }
        }
        progress("");
        (last.since(&start, counters, &self.base), spans)
    }
}

/// Readings at the start or end of a span.
#[derive(Clone)]
struct SpanEdge {
    at: Mono,
    counters: Result<CounterReading, String>,
    /// CPU ticks of running processes, from `/proc`.
    ticks: BTreeMap<u32, u64>,
}

impl SpanEdge {
    fn read(counters: &mut RunCounters, host: &Host, pids: &[u32]) -> SpanEdge {
        let ticks = |pid: &u32| Some((*pid, proc::read_stat(&host.path(format!("/proc/{pid}"))).ok()?.ticks));
        SpanEdge {
            at: Mono::now(),
            counters: counters.read(),
            ticks: pids.iter().filter_map(ticks).collect(),
        }
    }

    fn since(&self, before: &SpanEdge, counters: &RunCounters, base: &RunCounts) -> RunCounts {
        let mut gaps = base.not_measured.clone();
        let (counts, clocked) = counters.between(&before.counters, &self.counters, &mut gaps);
        let new_ticks = |(pid, new): (&u32, &u64)| new - before.ticks.get(pid).unwrap_or(new).min(new);
        let by_proc = self.ticks.iter().map(new_ticks).sum::<u64>() as f64 / ticks_per_second();
        RunCounts {
            wall_seconds: self.at.since(before.at).as_secs_f64(),
            cpu_seconds: Some(clocked.unwrap_or(by_proc)),
            counts,
            not_measured: gaps,
            ..base.clone()
        }
    }
}

fn ticks_per_second() -> f64 {
    use nix::unistd::{SysconfVar, sysconf};
    sysconf(SysconfVar::CLK_TCK).ok().flatten().map_or(100.0, |ticks| ticks as f64)
}

fn find(arguments: &AssessArguments, host: &Host) -> Result<WatchedOwner, String> {
    if let Some(pid) = arguments.pid {
        let name = std::fs::read_to_string(host.path(format!("/proc/{pid}/comm")));
        let name = name.map_err(|_| format!("there is no process {pid}"))?;
        let name = format!("process {pid} ({})", name.trim());
        return Ok(WatchedOwner { name, pids: with_children(host, pid) });
    }
    let mut found: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    let mut pods: BTreeMap<String, Option<String>> = BTreeMap::new();
    for pid in processes(host).map_err(|error| format!("cannot list processes: {error}"))? {
        let bytes = std::fs::read(host.path(format!("/proc/{pid}/cgroup"))).unwrap_or_default();
        let membership = cgroup::membership(&bytes);
        let name = match (&arguments.pod, &arguments.job) {
            (Some(wanted), _) => membership.pod_uid.as_ref().and_then(|uid| {
                let container = membership.outermost_container.as_deref();
                let known = pods.entry(uid.clone()).or_insert_with(|| {
                    names::look(host, Some(uid), container)
                        .map(|names| format!("{}/{}", names.namespace, names.pod))
                });
                let by_name = known.as_ref().filter(|name| is_pod(name, wanted));
                let name = by_name.or(Some(uid).filter(|uid| *uid == wanted))?;
                Some(format!("pod {name}"))
            }),
            (None, Some(id)) => {
                membership.job.filter(|job| job.id == *id).map(|job| format!("Slurm job {}", job.id))
            }
            (None, None) => None,
        };
        if let Some(name) = name {
            found.entry(name).or_default().push(pid);
        }
    }
    if found.len() > 1 {
        let names: Vec<String> = found.into_keys().collect();
        return Err(format!("the name is ambiguous: {}", names.join(", ")));
    }
    let owner = found.pop_first().map(|(name, pids)| WatchedOwner { name, pids });
    owner.ok_or_else(|| {
        "no process on this node belongs to it, according to the control groups in /proc".into()
    })
}

/// Returns a process and its current descendants.
fn with_children(host: &Host, pid: u32) -> Vec<u32> {
    let parent = |pid: u32| {
        let status = std::fs::read_to_string(host.path(format!("/proc/{pid}/status"))).ok()?;
        status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
    };
    let parents: Vec<(u32, u32)> =
        processes(host).unwrap_or_default().into_iter().filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut found = vec![pid];
    let mut at = 0;
    while at < found.len() {
        let children = parents.iter().filter(|(child, of)| *of == found[at] && !found.contains(child));
        let children: Vec<u32> = children.map(|(child, _)| *child).collect();
        found.extend(children);
        at += 1;
    }
    found
}

fn is_pod(name: &str, wanted: &str) -> bool {
    name == wanted || name.split_once('/').is_some_and(|(_, pod)| pod == wanted)
}

fn processes(host: &Host) -> io::Result<Vec<u32>> {
    let entries = std::fs::read_dir(host.path("/proc"))?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// Returns all threads of these processes.
fn tasks(host: &Host, pids: &[u32]) -> Vec<i32> {
    let of =
        |pid: &u32| std::fs::read_dir(host.path(format!("/proc/{pid}/task"))).into_iter().flatten().flatten();
    pids.iter().flat_map(of).filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Returns true if one of the processes is running. A process that exited and was not waited for is a zombie
/// (`Z`).
fn is_alive(host: &Host, pids: &[u32]) -> bool {
    let runs = |task: i64| {
        let stat = std::fs::read(host.path(format!("/proc/{task}/stat"))).unwrap_or_default();
        let stat = String::from_utf8_lossy(&stat);
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    };
    // The first thread may exit before the others.
    pids.iter()
        .any(|pid| runs((*pid).into()) || tasks(host, &[*pid]).into_iter().any(|task| runs(task.into())))
}

/// Raises the limit on open files, because every thread needs one descriptor per event.
fn raise_descriptors() {
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        arguments: AssessArguments,
    }

    const UID: &str = "0a1b2c3d-0a1b-2c3d-4e5f-0a1b2c3d4e5f";

    fn found(of: &[&str]) -> Result<(String, Vec<u32>), String> {
        let dir = tempfile::TempDir::new().unwrap();
        let pod = format!(
            "/kubepods.slice/kubepods-pod{}.slice/cri-containerd-{}.scope",
            UID.replace('-', "_"),
            "a".repeat(64)
        );
        for (pid, group) in
            [(11, pod.as_str()), (12, "/system.slice/slurmstepd.scope/job_42/step_0"), (13, "/")]
        {
            let folder = dir.path().join(format!("proc/{pid}"));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("cgroup"), format!("0::{group}\n")).unwrap();
            std::fs::write(folder.join("comm"), "train\n").unwrap();
        }
        for (pid, parent) in [(15, 16), (16, 13), (17, 12)] {
            let folder = dir.path().join(format!("proc/{pid}"));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("status"), format!("Name:\ttrain\nPPid:\t{parent}\n")).unwrap();
        }
        std::fs::create_dir_all(dir.path().join(format!("var/log/pods/ml_train-0_{UID}"))).unwrap();
        let line = CommandLine::parse_from([&["assess"], of].concat());
        find(&line.arguments, &Host::new(dir.path())).map(|owner| (owner.name, owner.pids))
    }

    #[test]
    fn a_zombie_has_ended() {
        let dir = tempfile::TempDir::new().unwrap();
        for (pid, state) in [(1, "Z"), (2, "S"), (4, "Z")] {
            let folder = dir.path().join(format!("proc/{pid}"));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("stat"), format!("{pid} (a) Z) {state} 1 1\n")).unwrap();
        }
        let host = Host::new(dir.path());
        std::fs::create_dir_all(dir.path().join("proc/4/task/2")).unwrap();
        assert!(!is_alive(&host, &[1, 3]) && is_alive(&host, &[1, 2]) && is_alive(&host, &[4]));
    }

    #[test]
    fn owners_are_found_by_their_control_groups() {
        for asked in ["train-0", "ml/train-0"] {
            assert_eq!(found(&["--pod", asked]), Ok(("pod ml/train-0".into(), vec![11])));
        }
        assert_eq!(found(&["--pod", UID]), Ok((format!("pod {UID}"), vec![11])));
        assert_eq!(found(&["--job", "42"]), Ok(("Slurm job 42".into(), vec![12])));
        assert_eq!(found(&["--pid", "13"]), Ok(("process 13 (train)".into(), vec![13, 16, 15])));
        assert!(found(&["--pid", "14"]).unwrap_err().contains("no process 14"));
        assert!(found(&["--pod", "other/train-0"]).is_err() && found(&["--job", "4"]).is_err());
    }
}
