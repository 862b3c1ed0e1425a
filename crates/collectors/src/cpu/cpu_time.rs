//! CPU time by mode from `/proc/stat`, which needs no counters and no privileges.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::cpu_groups::CpuGroups;
use host::Host;
use model::catalog::schema::KnownLabel;
use model::catalog::{CpuGroup, CpuMode};

/// Maximum number of bytes read. The CPU lines come first, and 8,192 of them fit.
const MOST_BYTES: u64 = 1 << 20;
const STAT: &str = "/proc/stat";

/// Clock ticks of one CPU, in the order of [`CpuMode::ALL`].
type Ticks = [u64; CpuMode::ALL.len()];

/// CPU time since the first reading.
#[derive(Debug, Default)]
pub(crate) struct CpuTimes {
    last: BTreeMap<u32, Ticks>,
    sums: BTreeMap<CpuGroup, Ticks>,
}

impl CpuTimes {
    /// Adds one reading. If the file of the host lists no CPU, the file of this process is read, because the kernel is
    /// the same.
    pub(crate) fn read(&mut self, host: &Host, groups: &CpuGroups) {
        let of = |path: &Path| ticks(&text(path));
        let host = of(&host.path(STAT));
        self.step(if host.is_empty() { of(Path::new(STAT)) } else { host }, groups);
    }

    /// Adds the time since the last reading. A value that decreased adds nothing: the kernel does not guarantee that
    /// idle and I/O wait time increase, and a CPU that was offline may restart at 0.
    fn step(&mut self, now: BTreeMap<u32, Ticks>, groups: &CpuGroups) {
        for (cpu, now) in now {
            let last = self.last.insert(cpu, now).unwrap_or(now);
            let sums = self.sums.entry(groups.group_of(cpu)).or_default();
            for (sum, (now, last)) in sums.iter_mut().zip(now.into_iter().zip(last)) {
                *sum += now.saturating_sub(last);
            }
        }
    }

    /// Returns the seconds since the first reading.
    pub(crate) fn seconds(&self) -> impl Iterator<Item = (&CpuGroup, CpuMode, f64)> {
        let a_second = procfs::ticks_per_second() as f64;
        self.sums.iter().flat_map(move |(group, ticks)| {
            let modes = CpuMode::ALL.iter().zip(ticks);
            modes.map(move |(mode, ticks)| (group, *mode, *ticks as f64 / a_second))
        })
    }
}

fn text(path: &Path) -> String {
    let mut bytes = Vec::new();
    // An unreadable file counts as one without CPUs.
    let _ = File::open(path).and_then(|file| file.take(MOST_BYTES).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Parses proc_stat(5), lines of the form `cpuN user nice system idle iowait irq softirq steal ...`. The guest times
/// after these fields are already part of the user time.
fn ticks(text: &str) -> BTreeMap<u32, Ticks> {
    // The last line may have been cut off.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let cpus = whole.lines().take_while(|line| line.starts_with("cpu"));
    cpus.filter_map(|line| {
        let (cpu, rest) = line.strip_prefix("cpu")?.split_once(' ')?;
        let fields: Vec<u64> = rest.split_ascii_whitespace().map_while(|text| text.parse().ok()).collect();
        let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = fields[..] else { return None };
        let busy = [user, nice, system, irq, softirq].into_iter().fold(0, u64::saturating_add);
        Some((cpu.parse().ok()?, [busy, iowait, steal, idle]))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FIRST: &str = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 100 10 20 1000 5 1 2 7 50 0\n\
        cpu3 0 0 0 500 0 0 0 0 0 0\nintr 9 cpu5 1\nctxt 7\n";

    fn all(times: &CpuTimes) -> Vec<f64> {
        times.seconds().map(|(.., seconds)| seconds * procfs::ticks_per_second() as f64).collect()
    }

    #[test]
    fn time_is_born_at_zero_and_summed_by_mode() {
        let (groups, mut times) = (CpuGroups::default(), CpuTimes::default());
        times.step(ticks(FIRST), &groups);
        assert_eq!(all(&times), [0.0; 4]);
        let later = FIRST.replace("cpu0 100 10 20 1000 5 1 2 7", "cpu0 110 11 22 1050 4 2 4 10");
        times.step(ticks(&later.replace("500", "600")), &groups);
        let modes: Vec<CpuMode> = times.seconds().map(|(_, mode, _)| mode).collect();
        assert_eq!(modes, [CpuMode::Busy, CpuMode::Iowait, CpuMode::Steal, CpuMode::Idle]);
        assert_eq!(all(&times), [16.0, 0.0, 3.0, 150.0], "waiting went back and added nothing");
    }

    #[test]
    fn a_cpu_that_goes_keeps_its_sum_and_one_that_comes_begins_at_zero() {
        let (groups, mut times) = (CpuGroups::default(), CpuTimes::default());
        let line = |cpu: u32, busy: u64| format!("cpu{cpu} {busy} 0 0 0 0 0 0 0 0 0\n");
        for (text, expected) in [
            (line(0, 5), 0.0),
            (line(0, 9) + &line(1, 1000), 4.0),
            (line(1, 1001), 5.0),
            (line(0, 2) + &line(1, 1001), 5.0),
            (line(0, 3) + &line(1, 1001), 6.0),
        ] {
            times.step(ticks(&text), &groups);
            assert_eq!(all(&times)[0], expected, "{text}");
        }
    }

    #[test]
    fn where_the_host_tells_of_no_cpu_the_running_kernel_does() {
        let dir = tempfile::tempdir().unwrap();
        let (host, mut times) = (Host::new(dir.path()), CpuTimes::default());
        times.read(&host, &CpuGroups::default());
        assert_eq!(times.seconds().count(), 4, "one group, four modes");
        std::fs::create_dir(dir.path().join("proc")).unwrap();
        std::fs::write(dir.path().join("proc/stat"), "cpu7 1 1 1 1 1 1 1 1 0 0\n").unwrap();
        let mut times = CpuTimes::default();
        times.read(&host, &CpuGroups::default());
        assert_eq!(times.last.keys().collect::<Vec<_>>(), [&7]);
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_harm_and_sums_never_go_back(
            texts in prop::collection::vec("(cpu[0-3] [0-9]{1,21}( [0-9x]{1,20}){0,9}\n){0,4}\\PC{0,20}", 1..8)
        ) {
            let (mut times, mut before) = (CpuTimes::default(), BTreeMap::new());
            for text in texts {
                // Counters of a machine that has run for years do not come near the end of 64 bits.
                let now = ticks(&text).into_iter().map(|(cpu, ticks)| (cpu, ticks.map(|ticks| ticks >> 8)));
                times.step(now.collect(), &CpuGroups::default());
                for (group, mode, seconds) in times.seconds() {
                    let last = before.insert((group.clone(), mode), seconds).unwrap_or(0.0);
                    prop_assert!(seconds >= last);
                }
            }
        }
    }
}
